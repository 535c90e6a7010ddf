"""Teachers that answer rows: a BERT in the students' tokens, or any classifiers in their own."""

import abc
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor
from transformers import BertForSequenceClassification, PreTrainedTokenizerBase

from objectives.device import to_device
from objectives.measures.measured import measured_costs
from objectives.problem import Words
from objectives.session import Session
from objectives.students.bert.pretrained import SEVERAL, Checkpoint, named_outputs
from objectives.text.data import Split, Truncation
from objectives.text.task import Examples, LabelledText, tokenise
from objectives.training.teacher_states import kept_logits
from objectives.workbench.teacher import Reading, Teacher, fine_tuned


class Answering(abc.ABC):
    """Anything that answers the rows of a study."""

    bert: BertForSequenceClassification | None
    """The BERT in the students' tokens that it is, if it is one."""

    @abc.abstractmethod
    def answer(self, split: Split, rows: Examples) -> Tensor:
        """Logits (rows, C) on the CPU, made once for a run; `split` has the students' tokens."""

    def costs(self, seq_len: int) -> Mapping[str, float]:
        """Costs of an answer, by their units; empty where they are not known."""
        return {}

    def words(self) -> Words:
        """Word embeddings for cells where no BERT is at hand."""
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class BertAnswers(Answering):
    """A BERT that reads the students' tokens."""

    bert: BertForSequenceClassification
    session: Session

    def answer(self, split: Split, rows: Examples) -> Tensor:
        return kept_logits(self.bert, split, session=self.session)

    def costs(self, seq_len: int) -> Mapping[str, float]:
        return measured_costs(self.bert, seq_len)


class _Member(NamedTuple):
    """A classifier of several."""

    model: Reading
    tokenizer: PreTrainedTokenizerBase
    order: Sequence[int]
    """For each label of the task its output."""


@dataclass(frozen=True, eq=False)
class ClassifierAnswers(Answering):
    """Classifiers, each in its own tokens: logits of their mean probabilities; the mean of
    numbers."""

    members: Sequence[_Member]
    label_names: Sequence[str]
    several: bool
    """Whether a row may have several of them."""
    max_length: int
    session: Session
    bert = None

    def answer(self, split: Split, rows: Examples) -> Tensor:
        each = []
        for model, tokenizer, order in self.members:
            tokens = tokens_of(rows, split.role, tokenizer, self.max_length, split.truncation)
            logits = kept_logits(model, tokens, session=self.session)  # type: ignore[arg-type]
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
        (model, tokenizer, _), *_ = self.members
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
    teacher: Teacher,
    text: LabelledText,
    max_length: int,
    session: Session,
    truncation: Truncation = "head",
) -> ClassifierAnswers:
    """The checkpoints of a teacher, each fine-tuned if it has no classifier."""
    members = []
    for checkpoint in teacher.models:
        tokenizer = checkpoint.tokenizer

        def load(folder: str, tokenizer: PreTrainedTokenizerBase = tokenizer) -> _Member:
            with torch.random.fork_rng(devices=[]):  # making a model draws numbers
                model = Checkpoint(folder).load_classifier()
            model.eval().requires_grad_(False)
            order = Checkpoint(folder).label_order(text.label_names, several=text.several)
            return _Member(to_device(Reading(model, tokenizer), session.device), tokenizer, order)

        if checkpoint.has_classifier:
            members.append(load(checkpoint.name))
        else:
            train = tokens_of(text.roles["train"], "train", tokenizer, max_length, truncation)
            members.append(fine_tuned(teacher, checkpoint, text, train, load, session=session))
    several = text.several
    names = named_outputs(teacher.models, text.label_names, several=several)
    return ClassifierAnswers(members, names, several, max_length, session)


def tokens_of(
    rows: Examples,
    role: str,
    tokenizer: PreTrainedTokenizerBase,
    max_length: int,
    truncation: Truncation,
) -> Split:
    """The rows as a classifier of any kind reads them, padded on the side of its tokenizer."""
    split = tokenise(rows, role, tokenizer, max_length, truncation)
    return replace(split, pads_left=tokenizer.padding_side == "left")
