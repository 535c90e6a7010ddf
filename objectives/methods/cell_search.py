"""Cell search: a student of a few operations, trained from nothing on what the teacher says.

A trial is one genotype: `Study.space` names its places ("operations[0]", "width"), and the outer
study's sampler is the strategy. What the student has of the teacher is the embeddings of its words,
frozen, in as few dimensions as it is wide: the map begins with the principal components and learns;
in the end embeddings and map are one table, so that the map costs nothing (AdaBERT, Chen et al.
2020, takes the embeddings, too). The loss is that of the logits and, if asked, of hidden states.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, islice
from typing import ClassVar, Self

import torch
from torch import Tensor, nn
from torch.nn import functional

from objectives.device import to_device
from objectives.errors import check_ranges
from objectives.problem import Problem
from objectives.progress import Progress
from objectives.search_method import CurvePoint, Outcome, SearchMethod, SearchResult
from objectives.students.cells.cell_classifier import CellConfig, CellForSequenceClassification
from objectives.students.cells.genotype import Genotype
from objectives.students.cells.operations import NONE
from objectives.text.data import INPUTS
from objectives.training.losses import prediction_loss, teaching_layer
from objectives.training.optimisation import linear_schedule, weight_optimizer
from objectives.training.population import Trace
from objectives.training.teacher_states import keep_states, teacher_trace
from objectives.weights.independent import not_finite

_POINTS = 100
"""Rows of a learning curve, at most."""


@dataclass(frozen=True, kw_only=True)
class CellSearch(SearchMethod):
    """Students of convolutions, attention, gates and poolings, for ratios below a tenth."""

    per_slot: ClassVar[frozenset[str]] = frozenset({"learning_rate"})

    width: int = 128
    """D, dimensions of the hidden states: a multiple of 16."""
    operations: tuple[str, ...] = ("conv5", "conv5")
    """Of the blocks, in their order: names in `students.cells.operations.OPERATIONS`, or "none",
    where there is no block. A knob "operations[0]" is one of them."""
    epochs: float = 8
    """Passes over the train split. > 0."""
    learning_rate: float = 3e-3
    """Peak of AdamW's rate, after 10% of warm-up; then it falls linearly to 0. > 0."""
    batch_size: int = 32
    """Sequences in a batch of `train`. >= 1."""
    hidden_weight: float = 0.0
    """Weight of the hidden states beside the logits: each block learns, through a map of its own,
    what the teacher's layer at its depth says. 1 helps four blocks, two hardly. >= 0."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_ranges(
            self,
            epochs=(self.epochs > 0, "> 0"),
            learning_rate=(self.learning_rate > 0, "> 0"),
            batch_size=(self.batch_size >= 1, ">= 1"),
            hidden_weight=(self.hidden_weight >= 0, ">= 0"),
        )
        Genotype(self.width, self.operations)

    def canonical(self) -> Self:
        """The blocks first, then the places without one."""
        return replace(self, operations=tuple(sorted(self.operations, key=NONE.__eq__)))

    def shortened(self, share: float) -> Self:
        """With this share of the epochs."""
        return replace(self, epochs=self.epochs * share)

    @classmethod
    def search(
        cls, members: Sequence[Self], problem: Problem, *, seed: int, progress: Progress
    ) -> Iterator[Outcome]:
        """Train the student of each member, one after another."""
        for slot, member in enumerate(members):
            genotype = Genotype(member.width, member.operations)
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed)
                student = _student(genotype, problem)
                sizes = genotype.width, problem.teacher.config.hidden_size
                fits = nn.ModuleList(nn.Linear(*sizes) for _ in genotype.operations)
            fits = to_device(fits, problem.device)
            curve = member._train(student, fits, problem, seed, progress)
            words, fewer = student.words.children()
            with torch.no_grad():  # one table costs less than two
                table = fewer(words.weight)
            student.words = nn.Embedding.from_pretrained(table, freeze=False)
            student.train(False)
            yield not_finite(slot, curve) or SearchResult(
                slot=slot, architecture=genotype, model=student, curve=curve
            )

    def _train(
        self,
        student: CellForSequenceClassification,
        fits: nn.ModuleList,
        problem: Problem,
        seed: int,
        progress: Progress,
    ) -> list[CurvePoint]:
        """Let the student learn the teacher's answers; returns its learning curve."""
        steps = max(1, round(self.epochs * len(problem.train) / self.batch_size))
        weights = {n: w for n, w in student.named_parameters() if w.requires_grad}
        if self.hidden_weight:
            weights |= {f"fits.{name}": weight for name, weight in fits.named_parameters()}
            keep_states(problem, torch.float32, progress)
        optimizer = weight_optimizer(weights, self.learning_rate)
        schedule = linear_schedule(optimizer, steps)
        batches = problem.train.shuffled(self.batch_size, seed, problem.device)
        losses: list[Tensor] = []
        progress.begin("learn", steps)
        student.train()
        for batch in islice(batches, steps):
            inputs = {name: getattr(batch, name) for name in INPUTS}
            answer = student(**inputs, output_hidden_states=True)
            loss = prediction_loss(answer.logits[None], problem.teacher_logits[batch.rows]).sum()
            if self.hidden_weight:
                teacher = teacher_trace(problem, batch, torch.float32, with_scores=False)
                hidden = _hidden_loss(answer.hidden_states, teacher, batch.attention_mask, fits)
                loss = loss + self.hidden_weight * hidden
            loss.backward()
            nn.utils.clip_grad_norm_(list(weights.values()), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad(set_to_none=True)
            progress.advance()
            losses.append(loss.detach())
        return _curve(torch.stack(losses).tolist())


def _hidden_loss(
    states_BSD: Sequence[Tensor], teacher: Trace, attended_BS: Tensor, fits: nn.ModuleList
) -> Tensor:
    """Squared errors of what each block gives, mapped, against the normed hidden states of the
    teacher's layer at its depth: a scalar, means over tokens and dimensions, summed over blocks."""
    layers = len(teacher.hidden) - 1
    share_BS = attended_BS / attended_BS.sum()
    total = share_BS.new_zeros(())
    for block, fit in enumerate(fits, start=1):
        wanted_BSE = teacher.hidden[teaching_layer(block, len(fits), layers)][0]
        wanted_BSE = functional.layer_norm(wanted_BSE, wanted_BSE.shape[-1:])
        errors_BS = (fit(states_BSD[block]) - wanted_BSE).square().mean(-1)
        total = total + (errors_BS * share_BS).sum()
    return total


def _curve(losses: Sequence[float]) -> list[CurvePoint]:
    """Means over as many steps as leave `_POINTS` rows at most."""
    every = math.ceil(len(losses) / _POINTS)
    parts = [losses[first : first + every] for first in range(0, len(losses), every)]
    return [
        {"stage": "learn", "step": step, "loss": sum(part) / len(part)}
        for step, part in zip(accumulate(map(len, parts)), parts, strict=True)
    ]


def _student(genotype: Genotype, problem: Problem) -> CellForSequenceClassification:
    """A new student; its words are the teacher's, frozen, and a map that learns, which begins with
    their principal components."""
    teacher = problem.teacher
    words = teacher.bert.embeddings.word_embeddings.weight.detach()
    config = CellConfig(
        vocab_size=len(words),
        hidden_size=genotype.width,
        operations=genotype.operations,
        type_vocab_size=teacher.config.type_vocab_size,
        max_position_embeddings=teacher.config.max_position_embeddings,
        pad_token_id=teacher.config.pad_token_id,
        id2label=teacher.config.id2label,
        label2id=teacher.config.label2id,
    )
    student = CellForSequenceClassification(config)
    fewer = nn.Linear(words.shape[1], genotype.width, bias=False)
    nn.init.zeros_(fewer.weight)
    nn.init.zeros_(student.types.weight)
    words = words.cpu()
    centred = words - words.mean(0)
    values, vectors = torch.linalg.eigh(centred.T @ centred / len(words))
    # Scaled so that what they give of a word has a mean square of 1 in the largest.
    components = (vectors.T.flip(0) / values[-1].sqrt())[: genotype.width]
    with torch.no_grad():
        fewer.weight[: len(components)] = components
    student.words = nn.Sequential(nn.Embedding.from_pretrained(words, freeze=True), fewer)
    return to_device(student, problem.device)
