"""Train weights on a loss of batches: steps of AdamW, a checkpoint to go on from, a curve."""

import math
from collections.abc import Callable, Iterator, Mapping
from itertools import accumulate
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor, nn

from objectives.checkpoint import read_checkpoint, write_checkpoint
from objectives.progress import Progress
from objectives.search_method import CurvePoint
from objectives.text.data import Batch, Split
from objectives.training.optimisation import PopulationOptimizer

_POINTS = 100
"""Rows of a learning curve, at most."""


_LOSSES = "losses"


class FittingRows(Protocol):
    """The rows and the device that a training needs of a problem."""

    @property
    def train(self) -> Split: ...
    @property
    def device(self) -> str: ...


def trainable(module: nn.Module) -> dict[str, Tensor]:
    """Its weights that learn, by their names."""
    return {name: weight for name, weight in module.named_parameters() if weight.requires_grad}


def steps_of(problem: FittingRows, epochs: float, batch_size: int) -> int:
    """The steps of this many passes over the train rows, one at least."""
    return max(1, round(epochs * len(problem.train) / batch_size))


def train_cells(
    problem: FittingRows,
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
    """Steps of AdamW on a loss of batches of the train rows; returns the learning curve."""
    # `loss` is that of a batch at a step, which count from 1; `learning_rate` the peak. With a
    # `checkpoint` it goes on from there, and leaves one after each pass over the train rows, or
    # after each `every` steps, until a loss is not finite.
    steps = steps_of(problem, epochs, batch_size)
    optimizer = PopulationOptimizer(weights, [learning_rate], steps, "linear")
    losses: list[Tensor] = []
    if checkpoint and (resumed := read_checkpoint(checkpoint, optimizer.state(), progress.note)):
        tensors, _ = resumed
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
    problem: FittingRows,
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
    """The learning curve of the losses of all steps: means that leave about `_POINTS` rows."""
    values = torch.stack(losses).tolist()
    every = math.ceil(len(losses) / _POINTS)
    parts = [values[first : first + every] for first in range(0, len(values), every)]
    return [
        {"stage": stage, "step": step, "loss": sum(part) / len(part)}
        for step, part in zip(accumulate(map(len, parts)), parts, strict=True)
    ]
