"""A task's rows in four disjoint roles, its tokens and metrics, and what a user gets wrong."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import scipy.stats
from datasets import ClassLabel, Dataset, DatasetDict, Features, Value
from hypothesis import given
from hypothesis import strategies as st

from objectives.errors import UserError
from objectives.metric import metric_value
from objectives.students.bert.pretrained import Checkpoint
from objectives.text.roles import load_text
from objectives.text.task import ROLES, Examples, Rows, Task, tokenise
from tests.objectives.text.toy import COUNT, ROWS, dataset, numbered, task_of, texts_of

TEXTS, LABELS = map(list, zip(*ROWS, strict=True))


def classed(labels: Sequence[int | None]) -> Dataset:
    """The same with a label column that knows its names, "no" and "yes"."""
    features = Features({"text": Value("string"), "label": ClassLabel(names=["no", "yes"])})
    return Dataset.from_dict(numbered(labels).to_dict(), features=features)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A local data set of two splits; five rows of test stand in train as well."""
    numbered().to_csv(tmp_path / "train.csv", index=False)
    test = numbered(rows=COUNT + 20).select([*range(5), *range(COUNT, COUNT + 20)])
    test.to_csv(tmp_path / "test.csv", index=False)
    return tmp_path


@given(st.integers(0, 100), st.integers(2, 12), st.integers(2, 12), st.integers(2, 12))
def test_roles_are_disjoint_and_stratified_whatever_their_sizes(
    seed: int, alpha: int, select: int, heldout: int
) -> None:
    text = load_text(
        task_of(lambda: numbered("ab"), seed=seed, alpha=alpha, select=select, heldout=heldout)
    )
    everyone = [row for rows in texts_of(text).values() for row in rows]
    assert len(everyone) == len(set(everyone)) == COUNT
    for examples in text.roles.values():
        counts = np.bincount(examples.labels, minlength=2)
        assert abs(int(counts[0] - counts[1])) <= 2


def test_a_small_share_of_few_rows_is_one_row() -> None:
    text = load_text(task_of(numbered, alpha=0.001, metric="agreement"))
    assert len(text.roles["alpha"].texts) == 1


def test_the_seed_decides_the_roles() -> None:
    task = task_of(numbered)
    assert texts_of(load_text(task)) == texts_of(load_text(task))
    assert texts_of(load_text(task)) != texts_of(load_text(replace(task, seed=1)))


def test_of_rows_of_equal_text_the_first_is_kept() -> None:
    def doubled() -> Dataset:
        once = numbered().to_dict()
        return Dataset.from_dict(
            {"text": once["text"] * 2, "label": once["label"] + ["yes"] * COUNT}
        )

    assert texts_of(load_text(task_of(doubled))) == texts_of(load_text(task_of(numbered)))
    assert load_text(task_of(doubled)).fingerprint == load_text(task_of(numbered)).fingerprint


def test_a_fingerprint_changes_with_a_text_a_label_and_a_role() -> None:
    others = [
        task_of(numbered, seed=1),
        task_of(lambda: numbered(("yes", "no"))),
        task_of(lambda: numbered(("no", "yea"))),
        task_of(lambda: numbered(rows=COUNT + 2)),
    ]
    prints = [load_text(task).fingerprint for task in (task_of(numbered), *others)]
    assert len(set(prints)) == len(prints)


def test_a_local_folder_gives_the_rows_of_its_csv(folder: Path) -> None:
    assert texts_of(load_text(task_of(str(folder)))) == texts_of(load_text(task_of(numbered)))


def test_a_local_folder_gives_the_rows_of_its_parquet(tmp_path: Path) -> None:
    numbered().to_parquet(tmp_path / "train.parquet")
    assert texts_of(load_text(task_of(str(tmp_path)))) == texts_of(load_text(task_of(numbered)))


@pytest.mark.parametrize(
    "rows",
    [
        pandas.DataFrame({"text": TEXTS, "label": LABELS}, index=range(7, 7 + len(TEXTS))),
        pandas.DataFrame({"text": TEXTS, "label": pandas.Categorical(LABELS)}),
        Dataset.from_dict({"text": TEXTS, "label": LABELS}),
        {"text": np.array(TEXTS), "label": LABELS},
    ],
)
def test_rows_in_memory_are_those_of_a_function(rows: Rows) -> None:
    sizes: dict[str, Any] = {"name": "rows", "alpha": 6, "select": 6, "heldout": 6}
    table = Dataset.from_dict({"text": TEXTS, "label": LABELS})
    wanted = load_text(Task(data=lambda: table, **sizes))
    assert load_text(Task.from_rows(rows, **sizes)).fingerprint == wanted.fingerprint
    apart = Task.from_rows(rows, heldout_rows={"text": ["new"], "label": LABELS[:1]}, **sizes)
    assert load_text(apart).roles["heldout"].texts == [("new",)]


@pytest.mark.parametrize("rows", [TEXTS, tuple(TEXTS), pandas.Series(TEXTS)])
def test_texts_alone_are_a_task_without_labels(rows: Rows) -> None:
    task = Task.from_rows(rows, name="rows", metric="agreement", alpha=6, select=6, heldout=6)
    assert sum(len(role.texts) for role in load_text(task).roles.values()) == len(TEXTS)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("a text", "rows are a str; give a DataFrame"),
        ([1, 2], "rows are a list; give a DataFrame"),
        (["a", "b", None], "row 2 of the list is a NoneType, not a text; leave it out"),
        ({"text": ["a"], "label": []}, "the rows are no table: "),
        (pandas.DataFrame({"text": ["a", 2]}), "the rows are no table: "),
    ],
)
def test_rows_that_are_no_table_are_refused(rows: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        Task.from_rows(rows, name="rows")


@pytest.mark.parametrize("columns", [None, ["number"]])
def test_a_format_for_training_changes_no_text(tmp_path: Path, columns: list[str] | None) -> None:
    table = numbered().to_dict()
    rows = Dataset.from_dict({**table, "number": range(len(table["text"]))})
    formatted = rows.with_format("torch", columns=columns)
    formatted.save_to_disk(tmp_path / "saved")
    plain, *others = (
        load_text(replace(task_of(data), text=("text", "number"))).fingerprint
        for data in (lambda: rows, lambda: formatted, str(tmp_path / "saved"))
    )
    assert others == [plain, plain]


def test_splits_of_a_function_or_a_disk_are_those_of_a_folder(folder: Path, tmp_path: Path) -> None:
    splits = DatasetDict(
        {name: Dataset.from_csv(str(folder / f"{name}.csv")) for name in ("train", "test")}
    )
    both, one = tmp_path / "both", tmp_path / "one"
    splits.save_to_disk(both)
    splits["train"].save_to_disk(one)
    expected = texts_of(load_text(task_of(str(folder), heldout_split="test")))
    for data in (lambda: splits, str(both)):
        assert texts_of(load_text(task_of(data, heldout_split="test"))) == expected
    assert texts_of(load_text(task_of(str(one)))) == texts_of(load_text(task_of(numbered)))
    with pytest.raises(UserError, match="save_to_disk has no subset 'cola'; leave it out"):
        load_text(task_of(str(one), subset="cola"))


def test_splits_that_number_their_classes_differently_are_refused() -> None:
    train = numbered().cast_column("label", ClassLabel(names=["no", "yes"]))
    heldout = Dataset.from_dict({"text": ["one", "two"], "label": ["yes", "no"]})
    heldout = heldout.cast_column("label", ClassLabel(names=["yes", "no"]))
    task = task_of(lambda: DatasetDict(train=train, test=heldout), heldout_split="test")
    with pytest.raises(UserError, match=r"by 'no', 'yes' and by 'yes', 'no'; cast both to one"):
        load_text(task)


def test_a_heldout_split_is_taken_whole_and_its_texts_leave_the_others(folder: Path) -> None:
    test = pandas.read_csv(folder / "test.csv")
    pandas.concat([test, test[:2]]).to_csv(folder / "test.csv", index=False)
    texts = texts_of(load_text(task_of(str(folder), heldout_split="test")))
    assert len(texts["heldout"]) == 25 + 2
    assert sum(map(len, texts.values())) == COUNT + 20 + 2
    others = {row for role in ROLES if role != "heldout" for row in texts[role]}
    assert not others & set(texts["heldout"])


def test_nothing_is_written_beside_the_users_data(folder: Path) -> None:
    before = sorted(folder.rglob("*"))
    load_text(task_of(str(folder)))
    assert sorted(folder.rglob("*")) == before


def test_pairs_of_sentences_are_distinct_as_pairs(tiny_bert: str) -> None:
    def pairs() -> Dataset:
        rows = numbered()
        return rows.rename_column("text", "second").add_column("first", ["bab"] * COUNT)

    text = load_text(task_of(pairs, text=("first", "second")))
    assert ("bab", "text 0") in {row for rows in texts_of(text).values() for row in rows}
    pair = Examples([("bab bel", "dab")], np.array([0]))
    split = tokenise(pair, "train", Checkpoint(tiny_bert).tokenizer, 16)
    (types,) = split.token_type_ids  # [CLS] bab bel [SEP] dab [SEP]
    assert list(types) == [0, 0, 0, 0, 1, 1]


def test_tokens_end_at_the_longest_length(tiny_bert: str) -> None:
    examples = Examples([("bab " * 30,), ("joy",)], np.array([0, 2]))
    split = tokenise(examples, "alpha", Checkpoint(tiny_bert).tokenizer, 12)
    assert (split.role, split.max_length) == ("alpha", 12)
    assert [len(ids) for ids in split.input_ids] == [12, 3]
    assert split.labels.tolist() == [0, 2]


def test_texts_that_are_cut_off_are_counted_and_those_that_just_fit_are_not(tiny_bert: str) -> None:
    tokenizer, labels = Checkpoint(tiny_bert).tokenizer, np.zeros(4, dtype=np.int64)
    words = [("bab " * length,) for length in (9, 10, 11, 30)]  # [CLS] and [SEP] beside them
    split = tokenise(Examples(words, labels), "train", tokenizer, 12)
    assert [len(ids) for ids in split.input_ids] == [11, 12, 12, 12]
    assert split.truncated == 2
    plain = tokenizer([text for (text,) in words], truncation=True, max_length=12)
    assert list(map(list, split.input_ids)) == plain["input_ids"]

    pairs = [("bab " * one, "dab " * other) for one, other in ((4, 5), (4, 6), (20, 20), (1, 1))]
    split = tokenise(Examples(pairs, labels), "train", tokenizer, 12)
    assert split.truncated == 2
    plain = tokenizer(*map(list, zip(*pairs, strict=True)), truncation=True, max_length=12)
    assert list(map(list, split.input_ids)) == plain["input_ids"]
    assert list(map(list, split.token_type_ids)) == plain["token_type_ids"]


def graded(rows: int = COUNT) -> Dataset:
    """Distinct texts with a grade from 0 to 5."""
    grades = np.random.default_rng(0).uniform(0, 5, rows)
    return Dataset.from_dict({"text": [f"text {row}" for row in range(rows)], "label": grades})


def test_labels_that_are_numbers_stay_numbers(tiny_bert: str) -> None:
    task = task_of(graded, metric="pearson_spearman")
    text = load_text(task)
    assert task.regression
    assert text.label_names == ["label"]
    grades = dict(zip(graded()["text"], graded()["label"], strict=True))
    for role, examples in text.roles.items():
        wanted = [grades[text] for (text,) in examples.texts]
        split = tokenise(examples, role, Checkpoint(tiny_bert).tokenizer, 12)
        assert split.regression
        assert split.labels.dtype == np.float32
        np.testing.assert_allclose(split.labels, wanted, rtol=1e-6)
    assert sum(len(examples.texts) for examples in text.roles.values()) == COUNT


def test_a_grade_is_part_of_the_fingerprint() -> None:
    def other() -> Dataset:
        rows = graded().to_dict()
        return Dataset.from_dict({**rows, "label": [rows["label"][0] + 1, *rows["label"][1:]]})

    one, changed = (load_text(task_of(d, metric="pearson_spearman")) for d in (graded, other))
    assert one.fingerprint != changed.fingerprint


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(-3, 3)), min_size=2, max_size=20))
def test_pearson_spearman_is_the_mean_of_both_correlations(rows: list[tuple[int, int]]) -> None:
    truth, said = (np.array(column, dtype=np.float32) for column in zip(*rows, strict=True))
    value = metric_value("pearson_spearman", truth, said)
    if len(set(truth)) == 1 or len(set(said)) == 1:
        assert value == 0
    else:
        pearson = scipy.stats.pearsonr(truth.astype(float), said.astype(float))[0]
        spearman = scipy.stats.spearmanr(truth, said)[0]
        assert value == pytest.approx((pearson + spearman) / 2, abs=1e-6)


def test_predictions_that_are_not_finite_have_no_correlation() -> None:
    truth = np.array([1, 2, 3], dtype=np.float32)
    for bad in (np.nan, np.inf):
        said = np.array([0, 1, bad], dtype=np.float32)
        assert np.isnan(metric_value("pearson_spearman", truth, said))


def test_metrics_agree_with_hand_arithmetic() -> None:
    truth, said = np.array([1, 1, 1, 0, 0, 0, 0, 0]), np.array([1, 1, 0, 1, 0, 0, 0, 0])
    assert metric_value("accuracy", truth, said) == 6 / 8
    # 2 true positives, 4 true negatives, 1 false positive, 1 false negative
    assert metric_value("f1", truth, said) == pytest.approx(2 * 2 / (2 * 2 + 1 + 1))
    assert metric_value("mcc", truth, said) == pytest.approx(
        (2 * 4 - 1 * 1) / (3 * 3 * 5 * 5) ** 0.5
    )
    three, guess = np.array([0, 1, 2, 2]), np.array([0, 1, 2, 1])
    macro = pytest.approx((1 + 2 / 3 + 2 / 3) / 3)
    assert metric_value("f1", three, guess, classes=3) == macro


def test_f1_goes_by_the_classes_of_the_task_not_of_the_rows() -> None:
    truth, said = np.array([0, 1, 0, 1]), np.array([0, 1, 0, 2])
    assert metric_value("f1", truth, said, classes=3) == pytest.approx((1 + 2 / 3 + 0) / 3)
    assert metric_value("f1", truth, truth // 2, classes=3) == pytest.approx((2 / 3 + 0) / 2)


USER_ERRORS = {
    "unknown data set": (task_of("nobody/nothing"), "data set 'nobody/nothing' could not be load"),
    "no Dataset": (task_of(lambda: [1]), r"data\(\) returned list, not datasets.Dataset or"),
    "missing text column": (
        task_of(numbered, text="sentence"),
        "no column 'sentence'; there are 'text', 'label'$",
    ),
    "a column of another case and with blanks": (
        task_of(lambda: numbered().rename_column("text", "Text "), text="text"),
        "no column 'text'; there are 'Text ', 'label'; did you mean 'Text '\\?$",
    ),
    "a column that is misspelt": (
        task_of(numbered, label="lable"),
        "no column 'lable'; there are 'text', 'label'; did you mean 'label'\\?$",
    ),
    "missing second text column": (task_of(numbered, text=("text", "other")), "no column 'other'"),
    "missing label column": (
        task_of(numbered, label="sentiment"),
        "no column 'sentiment'; there are 'text', 'label'$",
    ),
    "missing held-out split": (
        task_of(numbered, heldout_split="test"),
        "no split 'test'; there are train",
    ),
    "unlabelled row": (
        task_of(lambda: numbered(("a", "b", None))),
        "20 rows lack a label in column 'label'",
    ),
    "unlabelled -1 row": (
        task_of(lambda: classed((0, 1, -1))),
        r"column 'label' has -1, which is not one of its labels \(no, yes\)",
    ),
    "numbers beside words": (
        task_of(
            lambda: DatasetDict({"train": numbered(), "test": numbered([0, 1], rows=9)}),
            heldout_split="test",
        ),
        r"column 'label' have another type in each split \(strs in 'train', ints in 'test'",
    ),
    "unlabelled rows of both kinds": (task_of(lambda: classed((0, 1, -1, None))), "label"),
    "one label": (task_of(lambda: numbered("a")), r"has one label only: a$"),
    "one label of two names": (task_of(lambda: classed([1])), r"has one label only: yes$"),
    "one number": (
        task_of(lambda: numbered([2.5]), metric="pearson_spearman"),
        r"has one label only: 2\.5$",
    ),
    "words for numbers": (
        task_of(numbered, metric="pearson_spearman"),
        r"needs numbers in column 'label' \(could not convert string to float: 'no'\)",
    ),
    "an infinite number": (
        task_of(lambda: numbered([1.0, float("inf")]), metric="pearson_spearman"),
        r"needs numbers in column 'label' \(nan or infinite\)",
    ),
    "no number": (
        task_of(lambda: numbered([1.0, None]), metric="pearson_spearman"),
        "30 rows lack a label in column 'label' of split 'train', the first is row 2;",
    ),
    "no rows": (task_of(lambda: numbered(rows=0)), "split 'train' has no rows"),
    "no rows left for train": (task_of(numbered, select=COUNT - 16), "cannot take 6 .* 'alpha'"),
    "no rows left for a role of numbers": (
        task_of(graded, metric="pearson_spearman", select=COUNT - 10),
        "cannot take 50 rows for 'select' out of 50: heldout=.* and alpha=.* are taken first",
    ),
    "too few rows for a role": (
        task_of(numbered, heldout=100),
        "cannot take 100 stratified rows for 'heldout' out of 60: heldout=100, select=.* and "
        "alpha=6 are taken first; set them to fewer rows$",
    ),
    "fewer rows for a role than labels": (
        task_of(lambda: numbered("abc"), select=2),
        "cannot take 2 stratified rows for 'select' out of 50: .* row of each label; take 3 to 47$",
    ),
    "too few rows for train": (
        task_of(numbered, train=37),
        "train=37, but only 36 rows are left after the other roles; leave train out",
    ),
    "ids for labels": (
        task_of(lambda: numbered([f"{row} " + "long " * 20 for row in range(COUNT)])),
        r"60 of the 60 labels have only one row left \('0 (long ){7}lon', '1 [^']*', '10 [^']*' "
        r"and 57 more\); is 'label' a column of labels, or of ids\?$",
    ),
    "a function that raises": (
        task_of(lambda: Path("tweets.csv").read_text()),
        r"data\(\) raises FileNotFoundError: .*'tweets\.csv'",
    ),
    "a row without a text": (
        task_of(lambda: dataset([("a", "x"), (None, "y")] * 30)),
        "30 rows lack a text in column 'text'",
    ),
}


@pytest.mark.parametrize("case", USER_ERRORS)
def test_what_a_user_gets_wrong_is_one_clear_line(case: str) -> None:
    task, message = USER_ERRORS[case]
    with pytest.raises(UserError, match=message) as error:
        load_text(task)
    assert str(error.value).startswith("task 'toy': ")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"max_length": 2}, "max_length is 2; it must be >= 3, with two"),
        ({"max_length": 24.5}, r"max_length is 24\.5; it must be a whole number"),
        ({"max_length": "48"}, "max_length is '48'; it must be a whole number"),
        ({"select": 0}, "select is 0; it must be >= 1"),
        ({"heldout": 0.2}, r"heldout is 0\.2; it must be a whole number"),
        ({"alpha": -5}, "alpha is -5; it must be >= 1"),
        (
            {"text": ("a", 3)},
            r"text is \('a', 3\); it must be a string or a tuple of which each is a string",
        ),
        ({"label": ["kind"]}, r"label is \['kind'\], .* are for texts with several labels"),
        ({"drop_missing": "no"}, "drop_missing is 'no'; it must be True or False$"),
        ({"train": 0}, "train is 0; it must be >= 1 or None"),
        ({"seed": -1}, "seed is -1; it must be >= 0, below"),
        (
            {"text": ("a", "b", "a")},
            r"text is \('a', 'b', 'a'\); it must be a string or a tuple of 2",
        ),
        ({"text": ()}, r"text is \(\); it must be a string or a tuple of 2"),
        ({"text": None}, "text is None; it must be a string or a tuple of 2"),
        ({"metric": "auc"}, "metric is 'auc'; it must be one of accuracy, mcc, f1, micro_f1"),
        ({"subset": "cola"}, "subset is 'cola', but a function has no configurations;"),
        (
            {"label": ("a", "b", "a"), "multi_label": True, "metric": "micro_f1"},
            r"label is \('a', 'b', 'a'\); it must be different",
        ),
        ({"unlabelled_split": "train"}, ".*train=None takes all of them; set train"),
        ({"unlabelled": 5}, "unlabelled is 5, but there is no unlabelled_split"),
    ],
)
def test_a_setting_out_of_range_is_refused_by_name(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=rf"Task\.{message}"):
        task_of(numbered, **fields)


PROPER = "text,label\na,no\nb,yes\n"


@pytest.mark.parametrize(
    ("files", "fields", "message"),
    [
        pytest.param({}, {}, "could not be loaded", id="empty"),
        pytest.param(
            {"train": PROPER, "test": PROPER},
            {"split": "validation"},
            "no split 'validation'; there are train, test",
            id="another split",
        ),
        pytest.param(
            {"train": PROPER, "test": "text,label\n"},
            {"heldout_split": "test"},
            r'could not be loaded .*"test" corresponds to no data',
            id="an empty split",
        ),
        pytest.param(
            {"train": PROPER, "test": PROPER},
            {"heldout_split": "test"},
            "nothing is left to train on",
            id="all of train is held out",
        ),
        pytest.param(
            {"train": PROPER, "test": 'text,label\n"unclosed,1\nmore'},
            {},
            r"could not be loaded \(file .*test\.csv.: a quote in line 2",
            id="an open quote",
        ),
        pytest.param(
            {"train": PROPER, "test": "text,label,extra\na,1,1\n"},
            {},
            r"its files differ in their columns: .* \(\{'extra'\}\)\)$",
            id="splits of other columns",
        ),
        pytest.param(
            {"train-1": "text,label\na,no\n", "train-2": "text,label,extra\na,no,1\n"},
            {},
            r"\(Schema at index 1 was different: .* extra: ",
            id="files of one split of other columns",
        ),
    ],
)
def test_what_is_wrong_with_a_folder_is_one_clear_line(
    tmp_path: Path, files: dict[str, str], fields: dict[str, Any], message: str
) -> None:
    for name, content in files.items():
        (tmp_path / f"{name}.csv").write_text(content)
    with pytest.raises(UserError, match=message) as error:
        load_text(task_of(str(tmp_path), **fields))
    assert "\n" not in str(error.value)


def test_where_a_split_is_held_out_heldout_says_nothing(folder: Path) -> None:
    assert load_text(task_of(str(folder), heldout_split="test", heldout=0)).roles["heldout"].texts


@pytest.mark.parametrize(
    "data",
    [
        numbered(),
        DatasetDict(train=numbered()),
        numbered().to_pandas(),
        {"train": "own.csv"},
        {},
        Path("rows"),
        None,
    ],
    ids=lambda data: type(data).__name__,
)
def test_rows_that_no_function_returns_are_refused_with_the_way_to_give_them(data: Any) -> None:
    with pytest.raises(
        UserError, match=rf"Task\.data is a {type(data).__name__}; .* Task\.from_rows\(rows"
    ) as error:
        task_of(data)
    assert "\n" not in str(error.value)
