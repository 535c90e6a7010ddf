"""A file of a user's own (CSV, JSON, Parquet): right rows, or one line that says what is wrong."""

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas
import pytest
from hypothesis import given
from hypothesis import strategies as st

from objectives.device import quiet_libraries
from objectives.errors import UserError
from objectives.text.roles import load_text
from objectives.text.task import ROLES, LabelledText, Task
from objectives.text.text_files import TextFile
from tests.objectives.text.toy import ROWS, SIZES, labels_of

HALF = b"\x00\xdc"
"""The second half of a pair of UTF-16, which has no first."""
LATIN_1 = "café,no\n".encode("latin-1")

Load = Callable[..., LabelledText]


def in_csv(rows: Any = ROWS, delimiter: str = ",", header: str = "text,label") -> bytes:
    """Rows as a careless program writes them: nothing is quoted."""
    lines = [header.replace(",", delimiter), *(delimiter.join(map(str, row)) for row in rows)]
    return "".join(line + "\n" for line in lines).encode()


TORN = in_csv(ROWS[:30]).decode().encode("utf-16") + HALF + "x,1\n".encode("utf-16-le")


def labelled(labels: list[Any]) -> list[tuple[str, Any]]:
    return [(text, labels[row % len(labels)]) for row, (text, _) in enumerate(ROWS)]


@pytest.fixture
def load_file(tmp_path: Path) -> Load:
    """Loads the task of a file with the given bytes; of an existing one without."""

    def load_it(content: bytes | None, name: str = "own.csv", **fields: Any) -> LabelledText:
        path = tmp_path / name
        if content is not None:
            path.write_bytes(content)
        return load_text(Task.from_files(path, **{"name": "toy", **SIZES, **fields}))

    return load_it


FORMS = {
    "a CSV": (in_csv(), "own.csv", {}),
    "a CSV of Excel": (b"\xef\xbb\xbf" + in_csv(), "own.csv", {}),
    "Windows' line ends": (in_csv().replace(b"\n", b"\r\n"), "own.csv", {}),
    "a TSV": (in_csv(delimiter="\t"), "own.TSV", {}),
    "semicolons": (in_csv(delimiter=";"), "own.csv", {"delimiter": ";"}),
    "tabs, as a shell names them": (in_csv(delimiter="\t"), "own.csv", {"delimiter": r"\t"}),
    "UTF-16": (in_csv().decode().encode("utf-16"), "own.csv", {"encoding": "utf-16"}),
    "other columns of one name": (
        in_csv([(*row, 1, 2, 3, 4) for row in ROWS], header="text,label,a,a,,"),
        "own.csv",
        {},
    ),
    "a name like that of a second column": (
        in_csv([(*row, 1) for row in ROWS], header="text,label,text.1"),
        "own.csv",
        {},
    ),
    "a name that looks like a pattern": (in_csv(), "own [1]*.csv", {}),
    "another order and more columns": (
        in_csv([(7, label, text) for text, label in ROWS], header="id,label,text"),
        "own.csv",
        {},
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_file_gives_its_rows(load_file: Load, form: str) -> None:
    content, name, fields = FORMS[form]
    text = load_file(content, name, **fields)
    assert labels_of(text) == dict(ROWS)
    assert {role: len(text.roles[role].texts) for role in ROLES} == {
        "train": 36,
        "alpha": 6,
        "select": 8,
        "heldout": 10,
    }


def test_a_parquet_file_gives_its_rows(load_file: Load, tmp_path: Path) -> None:
    pandas.DataFrame(ROWS, columns=["text", "label"]).to_parquet(tmp_path / "own.parquet")
    text = load_file(None, "own.parquet")
    assert labels_of(text) == dict(ROWS)
    assert text.fingerprint == load_file(in_csv()).fingerprint
    assert text.fingerprint == load_file(None, "own.parquet", delimiter=";").fingerprint


def in_json_lines(rows: Any = ROWS) -> bytes:
    return "".join(
        json.dumps({"text": text, "label": label}, ensure_ascii=False) + "\n"
        for text, label in rows
    ).encode()


def test_a_file_of_json_gives_its_rows(load_file: Load) -> None:
    text = load_file(in_json_lines(), "own.jsonl")
    assert labels_of(text) == dict(ROWS)
    assert text.fingerprint == load_file(in_csv()).fingerprint
    as_a_list = json.dumps([{"id": 7, "label": label, "text": text} for text, label in ROWS])
    assert load_file(as_a_list.encode(), "own.json").fingerprint == text.fingerprint
    words = [("café" + text, label) for text, label in ROWS]
    in_latin_1 = in_json_lines(words).decode().encode("latin-1")
    assert labels_of(load_file(in_latin_1, "own.jsonl", encoding="latin-1")) == dict(words)
    a_list = b"[" + b",".join(in_latin_1.splitlines()) + b"]"
    assert labels_of(load_file(a_list, "own.json", encoding="latin-1")) == dict(words)


BAD_JSON = {
    "a line that is none": (in_json_lines(ROWS[:7]) + b"{text\n", "it cannot be read .*"),
    "another encoding": (
        in_json_lines() + in_json_lines([("café", "no")]).decode().encode("latin-1"),
        r"not all utf-8 at line 61, byte [\d,]+ \(0xe9\); give encoding=",
    ),
    "an empty file": (b"", "own.jsonl' is empty$"),
    "a key that a row lacks": (
        in_json_lines(ROWS[:7]) + b'{"text": "alone"}\n' + in_json_lines(ROWS[7:]),
        "1 row lacks a label in column 'label' of split 'train', the first is row 8;",
    ),
    "other keys": (b'{"tweet": "a", "label": 1}\n', "no column 'text'; there are 'tweet', 'label'"),
}


@pytest.mark.parametrize("case", BAD_JSON)
def test_what_is_wrong_with_json_is_one_line(load_file: Load, case: str) -> None:
    content, message = BAD_JSON[case]
    with pytest.raises(UserError, match=message) as error:
        load_file(content, "own.jsonl")
    assert "\n" not in str(error.value)


def test_a_data_set_by_name_or_folder_is_a_task_as_ever(tmp_path: Path) -> None:
    assert Task.from_files("nyu-mll/glue", name="cola", subset="cola") == Task(
        name="cola", data="nyu-mll/glue", subset="cola"
    )
    assert Task.from_files(tmp_path, name="own").data == str(tmp_path)
    for of_files in (
        *({"heldout_file": "other.csv"}, {"unlabelled_file": "other.txt"}),
        *({"delimiter": ";"}, {"encoding": "latin-1"}, {"quotechar": ""}),
    ):
        with pytest.raises(UserError, match=r"is not a file, .* unlabelled_split for splits"):
            Task.from_files(tmp_path, name="own", **of_files)


def test_a_second_file_is_the_heldout_split_whole(load_file: Load, tmp_path: Path) -> None:
    other = tmp_path / "other.csv"
    other.write_bytes(in_csv([*ROWS[:3], *ROWS[:3], ("new", "yes")]))
    text = load_file(in_csv(), heldout_file=other)
    assert [row for (row,) in text.roles["heldout"].texts] == [
        *(["text 0", "text 1", "text 2"] * 2),
        "new",
    ]
    seen = {row for role in ROLES[:3] for (row,) in text.roles[role].texts}
    assert seen == {f"text {row}" for row in range(3, 60)}


LINES = 'nur ein Satz\n\n  text 3 \na nul \0 byte, "a quote\n日本語\nnur ein Satz\n'


def test_a_file_of_lines_is_text_without_labels(load_file: Load, tmp_path: Path) -> None:
    lines = tmp_path / "lines.txt"
    lines.write_text(LINES)
    text = load_file(in_csv(), unlabelled_file=lines)
    assert text.unlabelled == [("nur ein Satz",), ('a nul \0 byte, "a quote',), ("日本語",)]
    assert text.read.endswith(
        "split 'unlabelled': 6 rows read; left out: 1 without a text, 2 of equal text; unlabelled 3"
    )


def test_a_table_of_text_needs_no_column_of_labels(load_file: Load, tmp_path: Path) -> None:
    table = tmp_path / "more.csv"
    table.write_text("id,text\n1,new\n2,other\n")
    assert load_file(in_csv(), unlabelled_file=table).unlabelled == [("new",), ("other",)]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "file '.*more.txt' is empty"),
        (b"\n \n", "split 'unlabelled' has no rows with a text$"),
        (b"text 1\n", "unlabelled_split 'unlabelled' has only texts that other roles use"),
        (b"caf\xe9\n", "its characters are not all utf-8 at line 1, byte 3"),
    ],
)
def test_what_is_wrong_with_lines_is_one_line(
    load_file: Load, tmp_path: Path, content: bytes, message: str
) -> None:
    lines = tmp_path / "more.txt"
    lines.write_bytes(content)
    with pytest.raises(UserError, match=message) as error:
        load_file(in_csv(), unlabelled_file=lines)
    assert "\n" not in str(error.value)


def test_a_pair_of_texts_and_a_named_label(load_file: Load) -> None:
    rows = [("same", text, label) for text, label in ROWS]
    text = load_file(
        in_csv(rows, header="question,answer,right"), text=("question", "answer"), label="right"
    )
    assert {row for role in ROLES for row in text.roles[role].texts} == {
        ("same", text) for text, _ in ROWS
    }


@given(
    st.lists(
        st.text(st.characters(codec="utf-8", exclude_characters="\x00\r")).filter(str.strip),
        min_size=8,
        unique_by=lambda text: " ".join(text.split()),
    )
)
def test_whatever_a_proper_csv_holds_is_read_as_it_is(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str]
) -> None:
    """Delimiters, quotes, line ends, "NA", numbers and blanks among them."""
    path = tmp_path_factory.mktemp("drawn") / "own.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, quoting=csv.QUOTE_ALL)
        writer.writerows([("text", "label"), *((text, row % 2) for row, text in enumerate(texts))])
    text = load_text(Task.from_files(path, name="drawn", alpha=2, select=2, heldout=2))
    assert labels_of(text) == {text: str(row % 2) for row, text in enumerate(texts)}


def test_only_nothing_at_all_is_missing(load_file: Load) -> None:
    words = ["NA", "null", "None", "nan", "N/A", "-"]
    rows = [*((word, "None") for word in words), *labelled(["None", "nan"])]
    assert labels_of(load_file(in_csv(rows))) == dict(rows)


def test_rows_with_something_missing_can_be_left_out(load_file: Load) -> None:
    gappy = [*ROWS[:5], ("", "no"), ("only a text", ""), *ROWS[5:]]
    assert labels_of(load_file(in_csv(gappy), drop_missing=True)) == dict(ROWS)


def test_a_column_that_looks_like_numbers_for_long_is_still_text(load_file: Load) -> None:
    rows = [(row if row < 11_000 else f"text {row}", row % 3) for row in range(12_000)]
    assert len(labels_of(load_file(in_csv(rows)))) == 12_000


def test_labels_that_are_whole_numbers_are_classes_however_written(load_file: Load) -> None:
    for labels in ([1, 2, 10], ["1.0", "2.0", "10.0"], ["1", "2.", "10.0"]):
        text = load_file(in_csv(labelled(labels)))
        assert text.label_names == ["1", "2", "10"]
        assert labels_of(text)["text 2"] == "10"
    assert load_file(in_csv(labelled(["01", "02"]))).label_names == ["01", "02"]
    assert load_file(in_csv(labelled(["1", "2", "?"]))).label_names == ["1", "2", "?"]


def test_labels_that_are_real_numbers_are_learnt_as_such(load_file: Load) -> None:
    text = load_file(in_csv(labelled([0.5, 1.25, 3])), metric="pearson_spearman")
    assert {number for role in ROLES for number in text.roles[role].labels} == {0.5, 1.25, 3}


def test_a_parquet_file_knows_what_its_labels_are(load_file: Load, tmp_path: Path) -> None:
    for labels, names in (([2.0, 10.0], ["2", "10"]), ([False, True], ["False", "True"])):
        frame = pandas.DataFrame(labelled(labels), columns=["text", "label"])
        frame.to_parquet(tmp_path / "own.parquet")
        assert load_file(None, "own.parquet").label_names == names


BAD: dict[str, tuple[bytes, dict[str, Any], str]] = {
    "an empty file": (b"", {}, "own.csv' is empty$"),
    "blank lines": (b"\n\n", {}, "own.csv': it has no rows"),
    "a header alone": (b"text,label\n", {}, "own.csv': it has no rows"),
    "a missing column": (
        in_csv(header="tweet,label"),
        {},
        "no column 'text'; there are 'tweet', 'label'; the first line must name the columns;",
    ),
    "a header with blanks and capitals": (
        in_csv(header=" Label,Text "),
        {},
        r"there are ' Label', 'Text '; the first line .*; did you mean 'Text '\?$",
    ),
    "a text column twice": (
        in_csv([(text, "b", label, text) for text, label in ROWS], header="text,b,label,text"),
        {},
        r"own\.csv': the first line names 'text' 2 times \(columns 1, 4\); rename all but the one",
    ),
    "a label column twice, and a blank line and quotes before": (
        b'\n"text",label,label\n' + in_csv([(*row, "x") for row in ROWS], header="a,b,c")[6:],
        {},
        r"names 'label' 2 times \(columns 2, 3\)",
    ),
    "no header": (
        in_csv()[len("text,label\n") :],
        {},
        "no column 'text'; there are 'text 0', 'no'; the first line must",
    ),
    "semicolons": (
        in_csv(delimiter=";"),
        {},
        "there are 'text;label', one column; if ';' separates them, give delimiter=';'$",
    ),
    "semicolons, and commas in the first text": (
        in_csv([("a, b", "no"), *ROWS], delimiter=";"),
        {},
        "first, which names 1 column; if ';' separates them, give delimiter=';'$",
    ),
    "tabs, and commas in the first text": (
        in_csv([("a, b", "no"), *ROWS], delimiter="\t"),
        {},
        r"which names 1 column; if '\\t' separates them, give delimiter='\\t'$",
    ),
    "tabs": (
        in_csv(delimiter="\t"),
        {},
        r"there are 'text\\tlabel', one column; if '\\t' separates them, give delimiter='\\t'",
    ),
    "commas in a text": (
        in_csv([*ROWS[:7], ("a", "b", "no"), *ROWS[7:]]),
        {},
        "Expected 2 fields in line 9, saw 3; put fields that hold ',' in quotes",
    ),
    "commas in the first text": (
        in_csv([("a", "b", "no"), *ROWS]),
        {},
        "the second line has more fields than the first, which names 2 columns; put fields",
    ),
    "a byte order mark, and a quote that holds rows": (
        '\ufefflabel,text\n0,"x, y"\n1,"a\n0,some\n1,another one"\n0,fine\n'.encode(),
        {},
        "a quote in line 3 reaches to line 5",
    ),
    "a quote without an end": (
        in_csv([('"x, y"', "no"), *ROWS[:7], ('"a', "no"), *ROWS[7:]]),
        {},
        "a quote in line 10 reaches to line 63; give quotechar='' if quotes are part",
    ),
    "a quote without an end, where quotes are said to enclose fields": (
        in_csv([*ROWS[:7], ('"a', "no"), *ROWS[7:]]),
        {"quotechar": '"'},
        "EOF inside string starting at row 8; put fields",
    ),
    "missing texts": (
        in_csv([*ROWS[:5], ("", "no"), *ROWS[5:9], ("", "yes")]),
        {},
        "2 rows lack a text in column 'text' of split 'train', the first is row 6; fill them in, "
        "or set drop_missing=True",
    ),
    "a missing text, late": (
        in_csv([*((f"text {row}", row % 2) for row in range(11_000)), ("", "1")]),
        {},
        "1 row lacks a text in column 'text' of split 'train', the first is row 11,001;",
    ),
    "a missing label": (
        in_csv([*ROWS, ("a",)]),
        {},
        "1 row lacks a label in column 'label' of split 'train', the first is row 61;",
    ),
    "real numbers": (
        in_csv(labelled([0.5, 1.25, 3])),
        {},
        r"numbers such as 0\.5, which cannot be classes; set metric='pearson_spearman' to",
    ),
    "words for numbers": (
        in_csv(labelled([0.5, "n/a"])),
        {"metric": "pearson_spearman"},
        "needs numbers in column 'label' .*n/a",
    ),
    "a line of Latin-1": (
        in_csv(ROWS[:30]) + LATIN_1 + in_csv(ROWS[30:]),
        {},
        rf"its characters are not all utf-8 at line 32, byte {len(in_csv(ROWS[:30])) + 3} "
        r"\(0xe9\); give encoding=, such as 'latin-1'",
    ),
    "a line of Latin-1, late": (
        in_csv([(f"text {row} " + "long " * 20, row % 2) for row in range(12_000)]) + LATIN_1,
        {},
        r"not all utf-8 at line 12002, byte [\d,]+ \(0xe9\)",
    ),
    "UTF-16": (
        in_csv().decode().encode("utf-16"),
        {},
        "not all utf-8 at line 1, byte 0 .*such as 'utf-16'",
    ),
    "half a character of UTF-16": (
        TORN,
        {"encoding": "utf-16"},
        rf"not all utf-16 at line 32, byte {TORN.index(HALF):,} .*such as 'latin-1'",
    ),
    "a delimiter of two": (in_csv(), {"delimiter": "||"}, r"'\|\|'; it must be one character"),
    "an encoding that is none": (in_csv(), {"encoding": "klingon"}, "no encoding 'klingon'"),
}


@pytest.mark.parametrize("form", [{"delimiter": "\t"}, {"delimiter": None, "quotechar": "'"}])
def test_a_table_may_not_be_called_txt(tmp_path: Path, form: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=r"a text; call a table \.csv or \.tsv"):
        TextFile.named(tmp_path / "tab.txt", encoding="utf-8", **form)


@pytest.mark.parametrize("case", BAD)
def test_what_is_wrong_with_a_csv_is_one_line(
    load_file: Load, case: str, capfd: pytest.CaptureFixture[str]
) -> None:
    content, fields, message = BAD[case]
    quiet_libraries()
    with pytest.raises(UserError, match=message) as error:
        load_file(content, **fields)
    assert "\n" not in str(error.value)
    assert "".join(capfd.readouterr()) == ""


def test_a_file_that_is_not_there_or_no_table_is_named(load_file: Load, tmp_path: Path) -> None:
    for name in ("own.csv", "own.parquet"):
        with pytest.raises(UserError, match=rf"{name}' does not exist$"):
            load_file(None, name)
    (tmp_path / "parts.parquet").mkdir()
    with pytest.raises(UserError, match=r"parts\.parquet' is a folder, .*: name the file in it"):
        load_file(None, "parts.parquet")
    (tmp_path / "own.xlsx").write_bytes(b"PK")
    with pytest.raises(UserError, match=r"ends in \.xlsx; maskfront reads \.csv, \.tsv, \.parquet"):
        load_file(None, "own.xlsx")
    with pytest.raises(UserError, match=r"own\.parquet': it cannot be read \(Parquet "):
        load_file(in_csv(), "own.parquet")


def test_a_column_that_a_parquet_file_lacks_or_whose_labels_are_lists_is_named(
    load_file: Load, tmp_path: Path
) -> None:
    frame = pandas.DataFrame(labelled([[1], [2]]), columns=["text", "label"])
    frame.to_parquet(tmp_path / "own.parquet")
    with pytest.raises(UserError, match="no column 'sentiment'; there are 'text', 'label'"):
        load_file(None, "own.parquet", label="sentiment")
    with pytest.raises(
        UserError,
        match=r"row 1 of split 'train' has a list in column 'label', \[1\]; a row must have one",
    ):
        load_file(None, "own.parquet")


def test_columns_of_lines_of_json_may_begin_late(load_file: Load) -> None:
    """`datasets` reads 10 MiB at a time, and takes the types of the first piece for all."""
    long = "a" * 2**18
    first = [(f"text {row} {long}", "no") for row in range(44)]
    lines = [json.dumps({"text": text, "label": label, "n": 3}) for text, label in first]
    lines += [json.dumps({"text": f"new {row}", "label": "yes", "n": 3.5}) for row in range(40)]
    lines += [json.dumps({"text": "late", "label": "yes", "note": "new"})]
    text = load_file("\n".join(lines).encode(), "own.jsonl")
    assert sum(len(role.texts) for role in text.roles.values()) == 85


def test_settings_of_a_table_are_none_of_the_lines_beside_it(
    load_file: Load, tmp_path: Path
) -> None:
    lines = tmp_path / "lines.txt"
    lines.write_text("one; two\nthree\n")
    form = {"delimiter": ";", "quotechar": '"'}
    text = load_file(in_csv(delimiter=";"), unlabelled_file=lines, **form)
    assert text.unlabelled == [("one; two",), ("three",)]
    with pytest.raises(UserError, match=r"each line of a \.txt is a text"):
        load_file(b"one; two\n", "own.txt", **form)
