"""The weights of cells: new ones with a model's words, and how they learn what a teacher says."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import accumulate
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers.modeling_outputs import SequenceClassifierOutput

from objectives.checkpoint import read_checkpoint, write_checkpoint
from objectives.device import to_device
from objectives.problem import Problem
from objectives.progress import Progress
from objectives.search_method import CurvePoint
from objectives.students.cells.cell_classifier import CellConfig, CellForSequenceClassification
from objectives.students.cells.genotype import Genotype
from objectives.students.cells.graph import Graph
from objectives.text.data import Batch, Split
from objectives.training.losses import prediction_loss, teaching_layer
from objectives.training.optimisation import PopulationOptimizer
from objectives.training.teacher_states import teacher_trace

_POINTS = 100
"""Rows of a learning curve, at most."""
_LOSSES = "losses"


def new_cell(genotype: Genotype, problem: Problem) -> CellForSequenceClassification:
    """A new student; its words are those of the problem, frozen, and a map that learns, which
    begins with their principal components."""
    words = problem.words.embeddings
    config = CellConfig(vocab_size=len(words), **problem.words.settings, **genotype.config())
    student = CellForSequenceClassification(config)
    fewer = nn.Linear(words.shape[1], genotype.width, bias=False)
    nn.init.zeros_(fewer.weight)
    nn.init.zeros_(student.types.weight)
    if student.bigrams is not None:
        nn.init.zeros_(student.bigrams.weight)
    words = words.cpu()
    centred = words - words.mean(0)
    values, vectors = torch.linalg.eigh(centred.T @ centred / len(words))
    # Scaled so that what they give of a word has a mean square of 1 in the largest.
    components = (vectors.T.flip(0) / values[-1].sqrt())[: genotype.width]
    with torch.no_grad():
        fewer.weight[: len(components)] = components
    student.words = nn.Sequential(nn.Embedding.from_pretrained(words, freeze=True), fewer)
    return to_device(student, problem.device)


@torch.no_grad()
def finished(student: CellForSequenceClassification) -> CellForSequenceClassification:
    """The student in evaluation mode, its words and their map as one table, which costs less."""
    words, fewer = student.words.children()
    student.words = nn.Embedding.from_pretrained(fewer(words.weight), freeze=False)
    student.train(False)
    return student


def answers_loss(logits_BC: Tensor, batch: Batch, problem: Problem) -> Tensor:
    """The loss of logits against the teacher's of a batch of train: a scalar."""
    wanted_BC, several = problem.teacher_logits[batch.rows], problem.train.several
    return prediction_loss(logits_BC[None], wanted_BC, several=several).sum()


def loss_of(student: nn.Module, problem: Problem) -> Callable[[Batch, int], Tensor]:
    """`answers_loss` of a student on a batch, for `train_cells`."""
    return lambda batch, _: answers_loss(student(**batch.inputs).logits, batch, problem)


def taught_loss(
    answer: SequenceClassifierOutput,
    graph: Graph,
    batch: Batch,
    problem: Problem,
    fits: Iterable[Callable[[Tensor], Tensor]],
    hidden_weight: float,
) -> Tensor:
    """The loss of answers with hidden states: `answers_loss`, and so many times the squared errors
    of what each node gives, mapped by its `fit`, against the normed hidden states of the teacher's
    layer at its depth: a scalar, means over tokens and dimensions, summed over nodes."""
    assert answer.logits is not None  # as transformers types it
    assert answer.hidden_states is not None
    total = answers_loss(answer.logits, batch, problem)
    if not hidden_weight:
        return total
    teacher = teacher_trace(problem, batch, torch.float32, with_scores=False)
    layers, depths = len(teacher.hidden) - 1, graph.depths
    share_BS = batch.attention_mask / batch.attention_mask.sum()
    for state, fit in enumerate(fits, start=1):
        wanted_BSE = teacher.hidden[teaching_layer(depths[state], max(depths), layers)][0]
        wanted_BSE = functional.layer_norm(wanted_BSE, wanted_BSE.shape[-1:])
        errors_BS = (fit(answer.hidden_states[state]) - wanted_BSE).square().mean(-1)
        total = total + hidden_weight * (errors_BS * share_BS).sum()
    return total


class Rows(Protocol):
    """What a training needs of a problem: rows, and the device of rows and weights."""

    @property
    def train(self) -> Split: ...
    @property
    def device(self) -> str: ...


def trainable(module: nn.Module) -> dict[str, Tensor]:
    """Its weights that learn, by their names."""
    return {name: weight for name, weight in module.named_parameters() if weight.requires_grad}


def steps_of(problem: Rows, epochs: float, batch_size: int) -> int:
    """The steps of so many passes over the train rows, one at least."""
    return max(1, round(epochs * len(problem.train) / batch_size))


def train_cells(
    problem: Rows,
    weights: Mapping[str, Tensor],
    loss: Callable[[Batch, int], Tensor],
    *,
    epochs: float,
    learning_rate: float,
    batch_size: int,
    seed: int,
    progress: Progress,
    stage: str = "learn",
    checkpoint: Path | None = None,
    every: int | None = None,
) -> list[CurvePoint]:
    """Steps of AdamW on a loss of batches of the train rows; returns the learning curve.

    `loss` is that of a batch at a step, which count from 1; `learning_rate` the peak. With a
    `checkpoint` it goes on from there, and leaves one after each pass over the train rows, or after
    `every` so many steps, until a loss is not finite.
    """
    steps = steps_of(problem, epochs, batch_size)
    optimizer = PopulationOptimizer(weights, torch.tensor([learning_rate]), steps, "linear")
    losses: list[Tensor] = []
    if checkpoint and (found := read_checkpoint(checkpoint, optimizer.state(), progress.note)):
        tensors, _ = found
        losses = list(tensors[_LOSSES].to(problem.device))
        optimizer.resume(tensors, len(losses))
    done = len(losses)
    every = every or math.ceil(len(problem.train) / batch_size)
    progress.begin(stage, steps, done)
    for of_step in training_steps(
        problem, weights, loss, optimizer, range(done, steps), batch_size=batch_size, seed=seed
    ):
        progress.advance()
        losses.append(of_step)
        if checkpoint and len(losses) % every == 0 and bool(of_step.isfinite()):
            state = {**optimizer.state(), _LOSSES: torch.stack(losses)}
            write_checkpoint(checkpoint, state, {})
    return curve_of(stage, losses)


def training_steps(
    problem: Rows,
    weights: Mapping[str, Tensor],
    loss: Callable[[Batch, int], Tensor],
    optimizer: PopulationOptimizer,
    steps: range,
    *,
    batch_size: int,
    seed: int,
) -> Iterator[Tensor]:
    """Make each of these steps of a training, which count from 0, when its loss is asked for: a
    scalar, detached. In between weights and optimiser stay as they are."""
    batches = problem.train.shuffled(batch_size, seed, problem.device, first=steps.start)
    for step, batch in zip(steps, batches, strict=False):
        of_step = loss(batch, step + 1)
        of_step.backward()
        nn.utils.clip_grad_norm_(list(weights.values()), 1.0)
        optimizer.step()
        yield of_step.detach()


def curve_of(stage: str, losses: list[Tensor]) -> list[CurvePoint]:
    """The learning curve of the losses of all steps: means over so many as leave `_POINTS` rows."""
    values = torch.stack(losses).tolist()
    every = math.ceil(len(losses) / _POINTS)
    parts = [values[first : first + every] for first in range(0, len(values), every)]
    return [
        {"stage": stage, "step": step, "loss": sum(part) / len(part)}
        for step, part in zip(accumulate(map(len, parts)), parts, strict=True)
    ]
