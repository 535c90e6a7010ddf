"""Teachers that answer rows: a BERT in the students' tokens, other classifiers in their own, or
precomputed answers, for example of an LLM behind an API."""

import abc
import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import torch
from datasets import ClassLabel, Dataset
from numpy.typing import NDArray
from scipy.special import logit
from torch import Tensor
from transformers import BertForSequenceClassification, PreTrainedTokenizerBase

from objectives.device import frozen
from objectives.engines.names import Engine
from objectives.errors import SHOWN, UserError, a_few, did_you_mean
from objectives.measures.measured import measured_costs
from objectives.problem import Words
from objectives.session import Session
from objectives.students.bert.adapters import as_bert
from objectives.students.bert.pretrained import SEVERAL, Checkpoint, named_outputs
from objectives.text.data import Split, Truncation
from objectives.text.reading import read
from objectives.text.roles import number_of
from objectives.text.scanning import hashes_of, scan
from objectives.text.task import Examples, LabelledText, Task, tokenise
from objectives.text.text_files import DELIMITERS, TextFile
from objectives.training.teacher_states import kept_logits
from objectives.workbench.teacher import Reading, Teacher, fine_tuned


class Answering(abc.ABC):
    """Base of teachers that answer the rows of a study."""

    bert: BertForSequenceClassification | None
    """The teacher as a BERT in the students' tokens; None if it is none."""

    @abc.abstractmethod
    def answer(self, split: Split, rows: Examples) -> Tensor:
        """Logits (rows, C) on the CPU, cached for a run; `split` has the students' tokens."""

    def costs(self, seq_len: int) -> Mapping[str, float]:
        """Costs of an answer by unit; empty if unknown."""
        return {}

    def words(self) -> Words:
        """Word embeddings for cells."""
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class BertAnswers(Answering):
    """A BERT that reads the students' tokens."""

    bert: BertForSequenceClassification
    session: Session
    engine: Engine
    """See `Teacher.engine`."""

    def answer(self, split: Split, rows: Examples) -> Tensor:
        engine = self.engine if split.role == "train" else "eager"
        return kept_logits(self.bert, split, session=self.session, engine=engine)

    def costs(self, seq_len: int) -> Mapping[str, float]:
        return measured_costs(self.bert, seq_len)


class _Member(NamedTuple):
    """Classifier of an ensemble."""

    model: Reading
    order: Sequence[int]
    """Index of the classifier's output for each label of the task."""
    bert: BertForSequenceClassification | None
    """The model for another engine, which answers the rows that students learn from."""


@dataclass(frozen=True, eq=False)
class ClassifierAnswers(Answering):
    """Classifiers, each with its own tokens: logits of mean probabilities, or mean numbers."""

    members: Sequence[_Member]
    label_names: Sequence[str]
    several: bool
    """Whether a row may have several of them."""
    max_length: int
    session: Session
    engine: Engine
    """See `Teacher.engine`."""
    bert = None

    def answer(self, split: Split, rows: Examples) -> Tensor:
        engine = self.engine if split.role == "train" else "eager"
        each = []
        for model, order, bert in self.members:
            tokens = tokens_of(rows, split.role, model.tokenizer, self.max_length, split.truncation)
            asked: Any = bert if engine != "eager" else model
            logits = kept_logits(asked, tokens, session=self.session, engine=engine)
            each.append(logits[:, list(order)])
        if len(each) == 1:
            return each[0]
        if split.regression:
            return torch.stack(each).mean(0)
        if split.several:
            return torch.stack(each).double().sigmoid().mean(0).logit(eps=1e-9).float()
        shares = torch.stack([logits.double().log_softmax(-1) for logits in each])
        return shares.logsumexp(0).log_softmax(-1).float()

    def costs(self, seq_len: int) -> Mapping[str, float]:
        """Sum of the costs of its members; not on the meta device, where DeBERTa does not run."""
        total = Counter[str]()
        for member in self.members:
            total.update(measured_costs(member.model.model, seq_len, meta=False))
        return dict(total)

    def words(self) -> Words:
        """Embeddings of the first member."""
        (model, *_), *_ = self.members
        tokenizer = model.tokenizer
        types = tokenizer("a", "b").get("token_type_ids") or [0]
        longest = getattr(model.config, "max_position_embeddings", None) or 0
        return Words.of(
            model.model,
            type_vocab_size=1 + max(types),
            max_position_embeddings=max(longest, self.max_length),  # XLNet says -1
            pad_token_id=tokenizer.pad_token_id,
            id2label=dict(enumerate(self.label_names)),
            label2id={name: number for number, name in enumerate(self.label_names)},
            problem_type=SEVERAL if self.several else None,
        )


def load_classifiers(
    teacher: Teacher, text: LabelledText, task: Task, session: Session
) -> ClassifierAnswers:
    """Load the checkpoints of a teacher; each is fine-tuned if it has no classifier."""
    members = []
    for checkpoint in teacher.models:
        tokenizer = checkpoint.tokenizer

        def load(folder: str, tokenizer: PreTrainedTokenizerBase = tokenizer) -> _Member:
            with torch.random.fork_rng(devices=[]):  # making a model draws numbers
                model = Checkpoint(folder).load_classifier()
            order = Checkpoint(folder).label_order(text.label_names, several=text.several)
            # Before `Reading`, which sets the padding, at which positions of some models begin.
            bert = None if teacher.engine == "eager" else frozen(as_bert(model), session.device)
            return _Member(frozen(Reading(model, tokenizer), session.device), order, bert)

        if checkpoint.has_classifier:
            members.append(load(checkpoint.name))
        else:
            rows = text.roles["train"]
            train = tokens_of(rows, "train", tokenizer, task.max_length, task.truncation)
            members.append(fine_tuned(teacher, checkpoint, text, train, load, session=session))
    names = named_outputs(teacher.models, text.label_names, several=text.several)
    return ClassifierAnswers(members, names, text.several, task.max_length, session, teacher.engine)


def tokens_of(
    rows: Examples,
    role: str,
    tokenizer: PreTrainedTokenizerBase,
    max_length: int,
    truncation: Truncation,
) -> Split:
    """Tokenise rows for any classifier, padded on the side of its tokenizer."""
    split = tokenise(rows, role, tokenizer, max_length, truncation)
    return replace(split, pads_left=tokenizer.padding_side == "left")


_OFF = 0.02
"""Largest distance from 1 of a sum of probabilities, which may be rounded and are scaled to 1."""
_LEAST = 1e-6
"""Smallest probability; lower ones count as this."""


@dataclass(frozen=True, eq=False)
class GivenAnswers(Answering):
    """Precomputed answers by text."""

    texts: NDArray[np.uint64]
    """Hashes (texts,) of the texts, ascending."""
    logits: Tensor
    """(texts, C)"""
    bert = None

    def answer(self, split: Split, rows: Examples) -> Tensor:
        return self.logits[np.searchsorted(self.texts, hashes_of(rows.texts))]

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of texts and answers, hexadecimal, shortened to 16 digits."""
        both = self.texts.tobytes() + self.logits.numpy().tobytes()
        return hashlib.sha256(both).hexdigest()[:16]


def read_given(teacher: Teacher, task: Task, text: LabelledText) -> tuple[GivenAnswers, list[str]]:
    """Read the answers to all texts of a task, and its labels or, of a task without any, theirs."""
    texts = [row for rows in text.roles.values() for row in rows.texts] + [*text.unlabelled]
    hashes, names = hashes_of(texts), list(text.label_names)
    answers = _found(teacher, task, names, hashes)
    # A nan, which equals nothing, is no answer.
    by_hash = {key: answer for key, answer in answers if answer is not None and answer == answer}
    lacking = [row for row, key in zip(texts, hashes.tolist(), strict=True) if key not in by_hash]
    if lacking:
        raise UserError(
            f"{_source(teacher)}: {len(lacking):,} of {len(texts):,} texts of the task have no "
            f"answer, such as {a_few(lacking[0])}; add them, or leave the texts out of the data"
        )
    unique = np.unique(hashes)
    names, logits = _logits(teacher, task, names, [by_hash[key] for key in unique.tolist()])
    if len(names) < 2 and not task.regression:
        raise UserError(
            f"{_source(teacher)}: it has one label only, {a_few(names)}, which all students would "
            "agree with; give a number for each of two labels or more, or, of texts with numbers, "
            "set metric='pearson_spearman'"
        )
    return GivenAnswers(unique, torch.from_numpy(logits.astype(np.float32))), names


def _source(teacher: Teacher) -> str:
    return f"Teacher.answers '{teacher.answers}'"


def _found(
    teacher: Teacher, task: Task, names: Sequence[str], wanted: NDArray[np.uint64]
) -> Iterator[tuple[int, Any]]:
    """Hashes of wanted texts with answers, the first of equal texts last: it wins in a dict."""
    column, splits = str(teacher.answers), (task.split, task.heldout_split, task.unlabelled_split)
    with TemporaryDirectory() as cache:
        if Path(column).suffix.lower() in DELIMITERS:
            file = TextFile.named(column, None, "utf-8")
            data: Mapping[str, Dataset] = {"answers": file.read(task.columns, cache)}
            splits = ("answers", None, None)
            single = teacher.answers_as == "labels" or task.regression
            columns = [task.label_columns[0]] if single else names
        else:
            data, columns, single = read(task, cache), [column], True
        for split in dict.fromkeys(filter(None, splits[::-1])):
            present = data[split].column_names
            # Of a task without labels each column that is no text is a label's.
            columns = columns or [name for name in present if name not in task.columns]
            if missing := [name for name in columns if name not in present]:
                raise UserError(
                    f"{_source(teacher)}: no column {a_few(missing)}; there are {a_few(present)}"
                    f"{did_you_mean(missing[0], present)}"
                )
            rows = scan(task, data, split, labelled=False)
            texts, first = np.unique(rows.texts, return_index=True)
            some = np.isin(texts, wanted)
            chosen = data[split].select(rows.indices[first[some]]).select_columns(columns)
            answers = [row[columns[0]] if single else row for row in chosen]
            if single and isinstance(kind := chosen.features[columns[0]], ClassLabel):
                given = [None if answer is None or answer < 0 else answer for answer in answers]
                answers = [answer if answer is None else kind.int2str(answer) for answer in given]
            yield from zip(texts[some].tolist(), answers, strict=True)


def _logits(
    teacher: Teacher, task: Task, names: list[str], values: Sequence[Any]
) -> tuple[list[str], NDArray[np.float64]]:
    """Names of the labels, and logits (rows, C) whose softmax or sigmoid are the probabilities."""
    source, hard = _source(teacher), teacher.answers_as == "labels"
    if hard and task.multi_label:
        raise UserError(
            f"{source}: of texts with several labels, give probabilities or logits of each label"
        )
    if hard and not task.regression:
        stripped = [value.strip() if isinstance(value, str) else value for value in values]
        numbered = zip(map(str, stripped), map(number_of, stripped), strict=True)
        labels = [text if text in names or n is None else str(n) for text, n in numbered]
        names = names or sorted(set(labels))
        if unknown := sorted(set(labels) - set(names)):
            raise UserError(
                f"{source}: it has the label {a_few(unknown)}, which the task does not have; its "
                f"labels are {', '.join(names)}"
            )
        place = {name: number for number, name in enumerate(names)}
        shares = np.full((len(labels), len(names)), teacher.smoothing / len(names))
        shares[np.arange(len(labels)), [place[label] for label in labels]] += 1 - teacher.smoothing
        return names, np.log(shares.clip(_LEAST))
    if not names:
        try:
            first = json.loads(values[0]) if isinstance(values[0], str) else values[0]
            names = list(first) if isinstance(first, Mapping) else list(map(str, range(len(first))))
        except (TypeError, ValueError) as error:
            raise _unreadable(source, values[0]) from error
    numbers = np.array(list(_numbers(source, names, values)))
    if not np.isfinite(numbers).all():
        raise UserError(f"{source}: it has nan or infinite numbers; mend them")
    if task.regression or teacher.answers_as == "logits":
        return names, numbers
    sums, several = numbers.sum(1), task.multi_label
    off = (numbers > 1).any(1) if several else np.abs(sums - 1) > _OFF
    if (wrong := (numbers < 0).any(1) | off).any():
        row = numbers[wrong][0]
        raise UserError(
            f"{source}: {wrong.sum():,} rows are no probabilities{' that sum to 1' * (not several)}"
            f", such as {', '.join(f'{number:g}' for number in row[:5])} (sum {row.sum():.3g});"
            " mend them, or set answers_as='logits'"
        )
    if several:
        return names, logit(numbers.clip(_LEAST, 1 - _LEAST))
    return names, np.log((numbers / sums[:, None]).clip(_LEAST))


def _unreadable(source: str, value: Any) -> UserError:
    return UserError(
        f"{source}: {str(value)[:SHOWN]!r} is no list of numbers and no mapping from labels to "
        "numbers; give either (in a CSV as JSON), or set answers_as='labels'"
    )


def _numbers(source: str, names: Sequence[str], values: Sequence[Any]) -> Iterator[list[float]]:
    """Numbers of each row, in the order of the labels."""
    for value in values:
        try:
            read = json.loads(value) if isinstance(value, str) else value
            if isinstance(read, Mapping):
                if lacking := [name for name in names if read.get(name) is None]:
                    raise UserError(
                        f"{source}: an answer is none to the label {a_few(lacking)}: "
                        f"{str(value)[:SHOWN]}; name the labels as the data does"
                    )
                read = [read[name] for name in names]
            row = [float(number) for number in (read if isinstance(read, list) else [read])]
        except UserError:
            raise
        except (TypeError, ValueError) as error:
            raise _unreadable(source, value) from error
        if len(row) != len(names):
            raise UserError(
                f"{source}: an answer has {len(row)} numbers, {str(value)[:SHOWN]}; the task has "
                f"{len(names)} labels: {', '.join(names)}"
            )
        yield row
