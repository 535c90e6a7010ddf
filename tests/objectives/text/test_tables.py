"""Conformance of table readers: each odd or damaged table is read rightly, or refused in one line.

A case is a file, the fields of its task, and either the labels of its texts or what is said.
"""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas
import pyarrow
import pytest
from datasets import Dataset
from pyarrow import parquet

from objectives.errors import UserError
from objectives.text.roles import load_text
from objectives.text.task import Task

ROWS = {f"text {row}": ("no", "yes")[row % 2] for row in range(16)}
GRADES = {text: row / 2 for row, text in enumerate(ROWS)}
TAGS = {
    text: [["spam"], ["spam", "urgent"], [], ["it's, well"]][row % 4]
    for row, text in enumerate(ROWS)
}
SIZES = {"alpha": 2, "select": 3, "heldout": 3}
TAGGED = {"multi_label": True, "metric": "micro_f1"}
NUMBERS = {"metric": "pearson_spearman"}

Labels = dict[Any, Any]
Case = tuple[str, bytes | Callable[[Path], None], dict[str, Any], Labels | str]


def lines(
    rows: Any = ROWS, between: str = ",", header: str = "text,label", **changed: str
) -> bytes:
    """Rows as a program writes them that quotes nothing; some texts are `changed`."""
    texts = [
        f"{changed.get(f'at_{row}', text)}{between}{rows[text]}" for row, text in enumerate(rows)
    ]
    return "\n".join([header.replace(",", between), *texts, ""]).encode()


def read(task: Task) -> Labels:
    """The label of each text, or its labels."""
    text = load_text(task)

    def name_of(label: Any) -> Any:
        if text.several:
            return {name for name, has in zip(text.label_names, label, strict=True) if has}
        return float(label) if task.regression else text.label_names[label]

    return {
        row[0] if len(row) == 1 else row: name_of(label)
        for examples in text.roles.values()
        for row, label in zip(examples.texts, examples.labels, strict=True)
    }


def with_texts(**changed: str) -> Labels:
    """The rows, some with other texts."""
    return {changed.get(f"at_{row}", text): label for row, (text, label) in enumerate(ROWS.items())}


APART = {"at_3": '" text 3', "at_6": 'text 6 "'}
"""Two quotes that a parser takes for one field, from the first to the second."""
CLOSED_AMID = {"at_3": '"text 3', "at_6": '"text 6'}
OPEN = {"at_6": '"text 6'}
AMID = {"at_3": '"text" 3'}
PROPER = {"at_1": '"text, 1"'}
WAY_OUT = r"give quotechar='' if quotes are part of the text, or quotechar='\"' if .* right as it"
PAIRS = {(text, f"and {text}"): label for text, label in ROWS.items()}


def quoted(header: str = "text,label") -> list[Case]:
    """Quotes that belong to the text, in files that quote nothing and in those that do."""
    cases: list[Case] = []
    for kind in (APART, CLOSED_AMID, OPEN, AMID):
        own = with_texts(**{row: text.strip() for row, text in kind.items()})
        cases += [
            ("own.tsv", lines(between="\t", **kind), {}, own),
            ("own.csv", lines(between="\t", **kind), {"delimiter": "\t"}, own),
            ("own.csv", lines(**kind), {"quotechar": ""}, own),
        ]
        if kind is not APART:
            cases.append(("own.csv", lines(**kind), {}, own))
            cases.append(("own.csv", lines(**kind, **PROPER), {}, rf"line \d .*; {WAY_OUT}"))
    for proper in ({}, PROPER):
        cases.append(
            ("own.csv", lines(**APART, **proper), {}, f"line 5 reaches to line 8; {WAY_OUT}")
        )
    return cases


TABLES: list[Case] = [
    *quoted(),
    # In each role, metric and kind of text.
    ("own.csv", lines(GRADES, **APART), NUMBERS, f"line 5 reaches to line 8; {WAY_OUT}"),
    ("own.csv", lines(GRADES, **APART, **PROPER), NUMBERS, "line 5 reaches to line 8;"),
    ("own.csv", lines(dict.fromkeys(ROWS, "spam"), **APART), TAGGED, "line 5 reaches to line 8;"),
    ("own.csv", lines(**APART), {"metric": "agreement"}, "line 5 reaches to line 8;"),
    ("own.csv", lines(**CLOSED_AMID, **PROPER), {"metric": "agreement"}, "line 5 reaches to"),
    (
        "own.csv",
        b"text\n" + b'" a\n' + b"\n".join(map(str.encode, ROWS)) + b'\nb "\n',
        {"metric": "agreement"},
        "line 2 reaches to line 19;",
    ),
    (
        "own.tsv",
        b"text\n" + b'" a\n' + b"\n".join(map(str.encode, ROWS)) + b'\nb "\n',
        {"metric": "agreement"},
        "line 2 reaches to line 19;",
    ),
    (
        "own.csv",
        lines(
            {f"{a},{b}": label for (a, b), label in PAIRS.items()},
            header="a,b,label",
            at_3='" x,y',
            at_6='z,u "',
        ),
        {"text": ("a", "b")},
        "line 5 reaches to line 8;",
    ),
    (
        "own.csv",
        b'text,label,more\n" a,b ",no\n' + lines(header="a,label,more"),
        {},
        "line 2 does not enclose",
    ),
    (
        "own.csv",
        lines(**{f"at_{row}": f'"text {row}"' for row in range(16)} | {"at_6": '"a "b" c"'}),
        {},
        f"line 8 does not enclose a field; {WAY_OUT}",
    ),
    # Quotes that enclose fields.
    ("own.csv", lines(**PROPER), {}, with_texts(at_1="text, 1")),
    ("own.csv", lines(at_1='"a ""b"" \n\nc\nd"'), {}, with_texts(at_1='a "b" \n\nc\nd')),
    ("own.tsv", lines(between="\t", at_1='"a\nb\t""c"""'), {}, with_texts(at_1='a\nb\t"c"')),
    (
        "own.csv",
        lines(at_1='"Dear all,\nno, thanks\nyes, all"', **{"at_3": '"a, b"'}),
        {},
        with_texts(at_1="Dear all,\nno, thanks\nyes, all", at_3="a, b"),
    ),
    ("own.csv", lines(at_1='"Dear all,\nbye"'), {}, with_texts(at_1="Dear all,\nbye")),
    (
        "own.csv",
        lines(at_1='"Dear all,a\nb"'),
        {"quotechar": '"'},
        with_texts(at_1="Dear all,a\nb"),
    ),
    ("own.csv", lines(at_1="'text, 1'"), {"quotechar": "'"}, with_texts(at_1="text, 1")),
    ("own.csv", lines(at_1='5" pipe'), {}, with_texts(at_1='5" pipe')),
    ("own.csv", lines(), {"quotechar": "''"}, r"quotechar is \"''\"; it must be one or none"),
    (
        "own.csv",
        lines(at_1='"he said \\"hi, you\\""'),
        {},
        f"line 3 does not enclose a field; {WAY_OUT}",
    ),
    (
        "own.csv",
        ("\n\n" + lines(**APART).decode()).encode("utf-16"),
        {"encoding": "utf-16"},
        "line 7 reaches to line 10;",
    ),
    ("own.csv", lines(**PROPER).replace(b"\n", b"\r"), {}, with_texts(at_1="text, 1")),
    # Labels with blanks around are those without.
    ("own.csv", lines({text: f" {label}\t" for text, label in ROWS.items()}), {}, ROWS),
    (
        "own.csv",
        lines(
            {text: f"{label}{' ' * (row % 3)}" for row, (text, label) in enumerate(ROWS.items())}
        ),
        {},
        ROWS,
    ),
    (
        "own.csv",
        lines({text: f" {row % 2}" for row, text in enumerate(ROWS)}),
        {},
        {text: str(row % 2) for row, text in enumerate(ROWS)},
    ),
    (
        "own.csv",
        lines({text: f"\u00a0{label} " for text, label in GRADES.items()}),
        NUMBERS,
        GRADES,
    ),
    (
        "own.csv",
        lines({text: " " if row == 3 else label for row, (text, label) in enumerate(ROWS.items())}),
        {},
        "1 row lacks a label in column 'label' .* row 4;",
    ),
]


def table(**columns: Any) -> Callable[[Path], None]:
    """A Parquet file of these columns."""
    return lambda path: parquet.write_table(pyarrow.table(columns), path)


def strings(kind: Any, values: Any = ROWS) -> pyarrow.Array:
    return pyarrow.array([*values], pyarrow.string()).cast(kind)


_VIEW, _LARGE = pyarrow.string_view(), pyarrow.large_string()
_CODED = pyarrow.dictionary(pyarrow.int8(), pyarrow.string())
TABLES += [
    ("own.parquet", table(text=strings(text), label=strings(label, ROWS.values())), {}, ROWS)
    for text, label in ((_VIEW, _VIEW), (_LARGE, _CODED), (_CODED, _LARGE))
]
TABLES += [
    (
        "own.parquet",
        table(text=strings(_LARGE), label=pyarrow.array([*TAGS.values()], pyarrow.list_(kind))),
        TAGGED,
        {text: {*own} for text, own in TAGS.items()},
    )
    for kind in (_VIEW, _LARGE)
]
TABLES += [
    (
        "own.parquet",
        table(text=pyarrow.array([b"a", b"b"] * 8), label=strings(_VIEW, ROWS.values())),
        {},
        "has bytes in column 'text', b'a'; decode them",
    ),
    (
        "own.parquet",
        table(text=strings(_LARGE), label=pyarrow.array([b"a", b"b"] * 8, pyarrow.large_binary())),
        {},
        "has bytes in column 'label', b'a'; decode them",
    ),
]


def test_string_views_of_a_function_and_of_a_folder_are_read(tmp_path: Path) -> None:
    views = pyarrow.table({"text": strings(_VIEW), "label": strings(_VIEW, ROWS.values())})
    parquet.write_table(views, tmp_path / "train.parquet")
    for data in (lambda: Dataset(views), str(tmp_path)):
        assert read(Task(name="own", data=data, **SIZES)) == ROWS
    assert [file.name for file in tmp_path.iterdir()] == ["train.parquet"]


def listed(write: Callable[[list[str]], str], name: str = "own.csv") -> bytes:
    """Tags in a CSV, each row's as `write` has them."""
    frame = pandas.DataFrame({"text": [*TAGS], "label": list(map(write, TAGS.values()))})
    return frame.to_csv(index=False).encode()


WRITERS: dict[str, Callable[[list[str]], str]] = {
    "pandas": str,
    "JSON": json.dumps,
    "a tuple": lambda own: str(tuple(own)),
    "a set": lambda own: str(set(own)),
    "numpy": lambda own: f"[{' '.join(map(repr, own))}]",
}
TABLES += [
    ("own.csv", listed(write), TAGGED, {text: {*own} for text, own in TAGS.items()})
    for write in WRITERS.values()
]
TABLES += [
    (
        "own.csv",
        listed(lambda own: f"[{', '.join(own)}]"),
        TAGGED,
        r"has '\[spam\]', which is no list of labels as JSON",
    ),
    (
        "own.csv",
        listed(lambda own: "{" + ",".join(own) + "}"),
        TAGGED,
        r"has '\{spam\}', which is no list",
    ),
    ("own.csv", listed(lambda own: json.dumps(dict.fromkeys(own, 1))), TAGGED, "which is no list"),
    ("own.csv", listed(lambda own: json.dumps([own])), TAGGED, "which is no list"),
    ("own.csv", listed(lambda own: f"array({own}, dtype=object)"), TAGGED, "which is no list"),
    (
        "own.csv",
        listed(lambda own: ";".join(own)),
        {**TAGGED, "separator": ";"},
        {text: {*own} for text, own in TAGS.items()},
    ),
    (
        "own.csv",
        listed(lambda own: ";".join(f"[{one}]" for one in ("a", "b", *own))),
        {**TAGGED, "separator": ";"},
        {text: {"[a]", "[b]", *(f"[{one}]" for one in own)} for text, own in TAGS.items()},
    ),
]


@pytest.mark.parametrize("case", range(len(TABLES)))
def test_a_table_is_read_rightly_or_refused_in_one_line(case: int, tmp_path: Path) -> None:
    name, content, fields, wanted = TABLES[case]
    path = tmp_path / name
    if callable(content):
        content(path)
    else:
        path.write_bytes(content)
    fields = {"name": "own", **SIZES, **fields}
    if isinstance(wanted, str):
        with pytest.raises(UserError, match=wanted) as error:
            read(Task.from_files(path, **fields))
        assert "\n" not in str(error.value)
    else:
        assert read(Task.from_files(path, **fields)) == wanted


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        (CLOSED_AMID, r"\(quotes are part of '.*/train\.csv'; name it in Task\.from_files\)"),
        (APART, r"\(file '.*/train\.csv': a quote in line 5 reaches to line 8; give quotechar=''"),
        (PROPER, None),
    ],
)
def test_a_csv_in_a_folder_is_looked_at_too(
    texts: dict[str, str], said: str | None, tmp_path: Path
) -> None:
    (tmp_path / "train.csv").write_bytes(lines(**texts))
    task = Task(name="own", data=str(tmp_path), **SIZES)
    if said is None:
        assert read(task) == with_texts(at_1="text, 1")
        return
    with pytest.raises(UserError, match=said) as error:
        read(task)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("kind", ["heldout_file", "unlabelled_file"])
def test_a_second_table_is_looked_at_as_the_first(kind: str, tmp_path: Path) -> None:
    (tmp_path / "own.csv").write_bytes(lines())
    (tmp_path / "more.csv").write_bytes(lines(**APART))
    task = Task.from_files(
        tmp_path / "own.csv", name="own", **SIZES, **{kind: tmp_path / "more.csv"}
    )
    with pytest.raises(UserError, match=r"more\.csv': a quote in line 5 reaches to line 8"):
        load_text(task)


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_rows_without_labels_are_no_rows_with_none_of_them(tmp_path: Path, kind: str) -> None:
    rows = [{"text": text, "label": tags} for text, tags in TAGS.items()]
    rows += [{"text": f"not judged {row}", "label": None} for row in range(9)]
    own = tmp_path / f"own.{kind}"
    if kind == "jsonl":
        own.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        parquet.write_table(pyarrow.Table.from_pylist(rows), own)
    task = Task.from_files(own, name="toy", **SIZES, **TAGGED)
    assert len(read(task)) == len(rows), "all judged, as none is asked for"
    assert read(replace(task, drop_missing=True)) == {t: {*tags} for t, tags in TAGS.items()}
    left = load_text(replace(task, drop_missing=True, unlabelled_split=task.split)).unlabelled
    assert {text for (text,) in left} == {f"not judged {row}" for row in range(9)}
