"""Task: where its text and labels are, how it becomes tokens, and its metric."""

import hashlib
import inspect
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Self, TypeAlias

import pandas as pd
import pyarrow as pa
from datasets import Dataset, DatasetDict
from transformers import PreTrainedTokenizerBase

from objectives.errors import (
    Checked,
    InnerShare,
    PositiveInt,
    UserError,
    check_ranges,
    check_spelling,
)
from objectives.metric import Labels, Metric
from objectives.text.data import Split, Truncation
from objectives.text.text_files import DELIMITERS, TextFile

Rows: TypeAlias = Dataset | pd.DataFrame | pd.Series | Sequence[str] | Mapping[str, Sequence[Any]]
"""Rows in memory: a table, columns by name, or texts alone."""

ROLES = ("train", "alpha", "select", "heldout")

_TOKENISED_TOGETHER = 10_000
"""Rows that are tokenised together, as a tokenizer's record of a row is larger than the tokens."""


@dataclass(frozen=True, kw_only=True)
class Task(Checked):
    """Labelled text: where it is, which columns count, and how many rows each role gets.

    The roles are disjoint and stratified by class: `train` trains weights, `alpha` the architecture
    variables, `select` is what the study sees, `heldout` is reported and never seen by a search.
    Rows of equal text are one row: the first is kept, so that no text stands in two roles. Texts
    are equal if their words are, however many blanks or line ends are between and around them.

    The metric says what the labels are: none for agreement, whose roles are drawn from text alone;
    numbers for pearson_spearman (regression: one output, squared error), classes for all others.
    """

    name: str
    """Name, for people; it decides nothing."""
    data: str | Mapping[str, TextFile] | Callable[[], Dataset | DatasetDict]
    """A data set on the hub; a local folder that `datasets.load_dataset` reads or `save_to_disk`
    wrote; or a function, which returns one split or several. For files see `from_files`."""
    subset: str | None = None
    """Configuration of the data set, such as "cola" of GLUE."""
    text: str | tuple[str, str] = "text"
    """The column of the text, or the two columns of a pair of sentences."""
    label: str | tuple[str, ...] = "label"
    """The column of the labels; the metric agreement reads none. With `multi_label` it holds lists,
    or text with a `separator` between labels; or there are several columns, one a label, of 1 and
    0."""
    multi_label: bool = False
    """A text has any number of labels, also none. Models say of each label whether it is there,
    with a probability of its own: above 0.5 it is, or above its threshold."""
    separator: str = ","
    """Separator between the labels of a text, with `multi_label`."""
    thresholds: Literal["half", "selection"] = "half"
    """Above which probability a label is there, with `multi_label`: 0.5; or of each label the one
    that is best on the selection split for the metric, micro or macro F1. Then each model has its
    own, and a selection row is judged by those that other selection rows choose."""
    metric: Metric = "accuracy"
    """accuracy, mcc (Matthews correlation), f1 (of class 1 of two; macro for more), macro_f1 (mean
    over the classes), pearson_spearman (mean of both correlations, of labels that are
    numbers), or agreement (share of the rows on which a model answers what the teacher does, which
    must be a classifier already). With `multi_label` micro_f1, macro_f1, and accuracy and
    agreement, for which all labels of a row must be right."""
    max_length: int = 128
    """Longest input in tokens, >= 3 with [CLS] and [SEP]; longer text is cut off."""
    truncation: Truncation = "head"
    """Truncation of a longer text: its head; or a quarter of the tokens from its head and the
    others from its tail (one text, `max_length` >= 8)."""
    split: str = "train"
    """The split of the data set that the rows are drawn from."""
    heldout_split: str | None = None
    """A split of the data set that is the held-out one, whole, equal texts and all, so that its
    metric is the published one; None draws `heldout` rows."""
    unlabelled_split: str | None = None
    """A split of the data set whose texts students distil on, those that stand in no role: the
    teacher does not learn from them, and no label of theirs is read. Of `split` itself these are
    the rows beyond `train`, and with `drop_missing` those without a label."""
    unlabelled: PositiveInt | None = None
    """How many texts of `unlabelled_split` students distil on, drawn at random; None takes all.
    >= 1."""
    train: PositiveInt | None = None
    """Rows to train weights on; None takes all that remain. >= 1."""
    alpha: PositiveInt | InnerShare = 500
    """Rows to choose units by. >= 1, or a share in (0, 1) of the rows that `heldout` and `select`
    leave."""
    select: PositiveInt = 1000
    """Rows of the study's metric. >= 1."""
    heldout: int = 1000
    """Rows that are reported and decide nothing. >= 1."""
    seed: int = 0
    """Seed of the draw of roles."""
    drop_missing: bool = False
    """Leave out rows without a text or a label, or of a pair without one of them; otherwise they
    are refused, but where no label is read. One of nothing but blanks is none."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_data()
        if self.unlabelled_split == self.split and self.train is None and not self.drop_missing:
            raise UserError(
                f"Task.unlabelled_split is '{self.split}', the split that the rows are drawn from, "
                "and train=None takes all of them; set train to a number of rows, or "
                "drop_missing=True if some rows have no label"
            )
        self._check_labels()
        if self.unlabelled is not None and self.unlabelled_split is None:
            raise UserError(
                f"Task.unlabelled is {self.unlabelled}, but there is no unlabelled_split to draw "
                "from; name one, or leave unlabelled out"
            )
        check_ranges(
            self,
            max_length=(self.max_length >= 3, ">= 3, with two special tokens"),
            heldout=(self.heldout_split is not None or self.heldout >= 1, ">= 1"),
            truncation=(
                self.truncation == "head" or may_keep_tails(self, self.max_length),
                "head, or of one text head+tail with max_length >= 8",
            ),
            separator=(self.separator != "", "one sign or more"),
            label=(len(set(self.label_columns)) == len(self.label_columns), "different columns"),
            seed=(0 <= self.seed < 2**32, ">= 0, below 2**32"),
        )

    def _check_data(self) -> None:
        data = self.data
        files = isinstance(data, Mapping) and {type(file) for file in data.values()} == {TextFile}
        if not (files or callable(data) or isinstance(data, str)):
            raise UserError(
                f"Task.data is a {type(data).__name__}; give a string, which names a data set on "
                "the hub or a folder, or a function that returns a datasets.Dataset; for rows in "
                "memory call Task.from_rows(rows, ...)"
            )
        if self.subset is not None and not isinstance(data, str):
            what = "a function has" if callable(data) else "files have"
            raise UserError(
                f"Task.subset is {self.subset!r}, but {what} no configurations; leave it out"
            )

    def _check_labels(self) -> None:
        metrics = ("accuracy", "micro_f1", "macro_f1", "agreement")
        if self.multi_label and self.metric not in metrics:
            raise UserError(
                f"Task.metric is '{self.metric}', and with multi_label=True a text has several "
                f"labels; it must be one of {', '.join(metrics)}"
            )
        usual = isinstance(self.label, str) and self.separator == Task.separator
        if not self.multi_label and (self.metric == "micro_f1" or not usual):
            raise UserError(
                f"Task.label is {self.label!r}, separator '{self.separator}' and metric "
                f"'{self.metric}', which together are for texts with several labels; set "
                "multi_label=True, or name one column, no separator and another metric"
            )
        if self.own_thresholds and not (self.multi_label and self.metric.endswith("o_f1")):
            raise UserError(
                f"Task.thresholds is 'selection', but the metric '{self.metric}' chooses none; set "
                "multi_label=True and micro_f1 or macro_f1, or leave thresholds out"
            )

    @classmethod
    def from_files(
        cls,
        data: str | Path,
        *,
        heldout_file: str | Path | None = None,
        unlabelled_file: str | Path | None = None,
        delimiter: str | None = None,
        encoding: str | None = None,
        quotechar: str | None = None,
        **fields: Any,
    ) -> Self:
        """A task of a CSV file (.csv, .tsv), of JSON (.jsonl, a row a line; .json) or of Parquet;
        with the metric agreement also of a text a line (.txt).

        The files are read when a study starts.

        Args:
            data: the file; a folder or a data set on the hub is taken as `Task.data` is.
            heldout_file: a second file, which is the held-out split, whole.
            unlabelled_file: a file of text without labels, which students distil on: of the same
                kinds, or a text a line (.txt). `data` itself gives its rows that have no role.
            delimiter: what separates the columns of a CSV; a comma by default, in .tsv files a tab.
            encoding: of all these files but Parquet; UTF-8 by default.
            quotechar: what encloses fields of a CSV, "" for nothing; by default '"', or nothing if
                quotes do not enclose whole fields and each line is a row without them.
            **fields: the other fields of a Task.

        Returns:
            The task.

        Raises:
            UserError: for another kind of file, or settings that say nothing.
        """
        cls._check_spelling(cls.from_files, fields)
        if Path(data).is_file() or Path(data).suffix.lower() in DELIMITERS:
            if unlabelled_file and Path(unlabelled_file).resolve() == Path(data).resolve():
                fields["unlabelled_split"], unlabelled_file = cls.split, None
            more = {"heldout": heldout_file, "unlabelled": unlabelled_file}
            named = {split: file for split, file in more.items() if file is not None}
            form = (delimiter, encoding or "utf-8", quotechar)
            # Lines of text beside a table have no columns.
            lines = {s for s, file in named.items() if Path(file).suffix.lower() == ".txt"}
            files = {
                split: TextFile.named(file, *((None, form[1]) if split in lines else form))
                for split, file in {cls.split: data, **named}.items()
            }
            fields |= {f"{split}_split": split for split in named}
            return cls(data=files, **fields)
        if (heldout_file, unlabelled_file, delimiter, encoding, quotechar) != (None,) * 5:
            raise UserError(
                f"Task.from_files: '{data}' is not a file, so heldout_file, unlabelled_file, "
                "delimiter, encoding and quotechar do nothing; use heldout_split and "
                "unlabelled_split for splits of a data set"
            )
        return cls(data=str(data), **fields)

    @classmethod
    def from_rows(cls, rows: Rows, *, heldout_rows: Rows | None = None, **fields: Any) -> Self:
        """A task of rows in memory.

        Args:
            rows: a DataFrame, a `datasets.Dataset`, columns by name, or texts alone, which the
                metric agreement needs no labels for.
            heldout_rows: other rows, which are the held-out split, whole.
            **fields: the other fields of a Task.

        Returns:
            The task.

        Raises:
            UserError: for rows of another kind.
        """
        cls._check_spelling(cls.from_rows, fields)
        column = fields.get("text", cls.text)
        splits = {fields.get("split", cls.split): dataset_of(rows, column)}
        if heldout_rows is not None:
            fields["heldout_split"] = "heldout"
            splits["heldout"] = dataset_of(heldout_rows, column)
        return cls(data=lambda: DatasetDict(splits), **fields)

    @classmethod
    def _check_spelling(cls, call: Callable[..., Self], given: Mapping[str, Any]) -> None:
        names = [*inspect.signature(call).parameters, *cls.__dataclass_fields__]
        check_spelling(call.__qualname__, given, names)

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the text columns."""
        return (self.text,) if isinstance(self.text, str) else self.text

    def refusal(self, problem: str) -> UserError:
        """Error that names the task."""
        return UserError(f"task '{self.name}': {problem}")

    @property
    def label_columns(self) -> tuple[str, ...]:
        """Names of the label columns."""
        return (self.label,) if isinstance(self.label, str) else self.label

    @property
    def regression(self) -> bool:
        """Whether the labels are numbers, not classes."""
        return self.metric == "pearson_spearman"

    @property
    def own_thresholds(self) -> bool:
        """Whether each label has a threshold of its own."""
        return self.thresholds == "selection"

    @property
    def labelled(self) -> bool:
        """Whether labels are read; otherwise they are the teacher's answers."""
        return self.metric != "agreement"

    @property
    def classes(self) -> bool:
        """Whether labels are read and are classes, one a text."""
        return self.labelled and not self.regression and not self.multi_label


@dataclass(frozen=True)
class Examples:
    """Rows of one role, as text."""

    texts: Sequence[tuple[str, ...]]
    labels: Labels


@dataclass(frozen=True)
class LabelledText:
    """Data of a task in four roles."""

    roles: Mapping[str, Examples]
    label_names: Sequence[str]
    """Names of a classifier's outputs; of a regression the label's column; empty without labels."""
    unlabelled: Sequence[tuple[str, ...]] = ()
    """Further texts, without a role."""
    read: str = ""
    """Line for the user: rows that were read, left out, and of each role."""

    @property
    def several(self) -> bool:
        """Whether a row may have several labels."""
        return self.roles["train"].labels.ndim == 2

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of every text, with its label and role, hexadecimal, shortened to 16 digits."""
        return self._digest(list(self.unlabelled))

    @cached_property
    def fingerprint_of_roles(self) -> str:
        """`fingerprint` without the texts that have no role."""
        return self._digest([])

    def _digest(self, more: Sequence[tuple[str, ...]]) -> str:
        digest = hashlib.sha256(repr(list(self.label_names)).encode())
        for role in ROLES:
            examples = self.roles[role]
            digest.update(repr((role, list(examples.texts), examples.labels.tolist())).encode())
        digest.update(repr(more).encode() if more else b"")
        return digest.hexdigest()[:16]


def dataset_of(rows: Rows, text: str | tuple[str, str]) -> Dataset:
    """Convert rows in memory to a data set, texts as column `text`. Raises UserError for others."""
    try:
        if isinstance(rows, Dataset):
            return rows
        if isinstance(rows, pd.DataFrame):
            return Dataset.from_pandas(rows, preserve_index=False)
        if isinstance(rows, Mapping):
            return Dataset.from_dict({name: list(column) for name, column in rows.items()})
        if isinstance(rows, Sequence | pd.Series) and not isinstance(rows, str):
            texts = list(rows)
            wrong = [place for place, row in enumerate(texts) if not isinstance(row, str)]
            if isinstance(text, str) and not wrong:
                return Dataset.from_dict({text: texts})
            if 0 < len(wrong) < len(texts):
                kind = type(texts[wrong[0]]).__name__
                raise UserError(f"row {wrong[0]} of the list is a {kind}, not a text; leave it out")
    except (pa.ArrowException, ValueError, TypeError) as error:
        raise UserError(f"the rows are no table: {error}") from error
    raise UserError(
        f"rows are a {type(rows).__name__}; give a DataFrame, a datasets.Dataset, a dict of "
        "columns, or a list of texts"
    )


def may_keep_tails(task: Task, max_length: int) -> bool:
    """Whether the task's texts can keep their tails when cut to this many tokens."""
    return len(task.columns) == 1 and max_length >= 8


def tokenise(
    examples: Examples,
    role: str,
    tokenizer: PreTrainedTokenizerBase,
    max_length: int,
    truncation: Truncation = "head",
) -> Split:
    """Tokenise one role."""

    def encode(
        texts: Sequence[tuple[str, ...]], length: int | None
    ) -> tuple[list["array[int]"], ...]:
        input_ids: list[array[int]] = []
        token_type_ids: list[array[int]] = []
        for start in range(0, len(texts), _TOKENISED_TOGETHER):
            columns = zip(*texts[start : start + _TOKENISED_TOGETHER], strict=True)
            encoded = tokenizer(
                *map(list, columns), truncation=length is not None, max_length=length, verbose=False
            )
            ids = encoded["input_ids"]
            # RoBERTa's tokenizers and DistilBERT's do not tell the second text from the first.
            types = encoded.get("token_type_ids") or (bytes(len(row)) for row in ids)
            input_ids += (array("i", row) for row in ids)
            token_type_ids += (array("b", row) for row in types)
        return input_ids, token_type_ids

    # One token more than is kept shows which texts are too long.
    input_ids, token_type_ids = encode(examples.texts, max_length + 1)
    too_long = [row for row, ids in enumerate(input_ids) if len(ids) > max_length]
    if too_long:
        keeps_tail = truncation == "head+tail"
        longer = [examples.texts[row] for row in too_long]
        shortened = encode(longer, None if keeps_tail else max_length)
        if keeps_tail:
            head, tail = max_length // 4, max_length // 4 - max_length
            shortened = tuple([ids[:head] + ids[tail:] for ids in part] for part in shortened)
        for row, ids, types in zip(too_long, *shortened, strict=True):
            input_ids[row], token_type_ids[row] = ids, types
    return Split(
        role=role,
        input_ids=input_ids,
        token_type_ids=token_type_ids,
        labels=examples.labels,
        pad_token_id=tokenizer.pad_token_id,
        max_length=max_length,
        truncated=len(too_long),
        truncation=truncation,
    )
