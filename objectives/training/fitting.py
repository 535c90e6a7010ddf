"""Train weights on a loss of batches, by AdamW, with checkpoints and a learning curve."""

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from safetensors.torch import load_file, save
from torch import Tensor, nn
from transformers import BertForSequenceClassification

from objectives.cache import content_key
from objectives.checkpoint import read_checkpoint, write_checkpoint
from objectives.device import matmul_dtype
from objectives.problem import Problem
from objectives.progress import Progress
from objectives.search_method import CurvePoint
from objectives.text.data import Batch, Split
from objectives.training.losses import intermediate_loss
from objectives.training.optimisation import PopulationOptimizer
from objectives.training.population import Population, Trace
from objectives.training.teacher_states import RunTeacher

_POINTS = 100
"""Most rows of a learning curve."""
_LOSSES = "losses"
_CURVE, _CHECKPOINT = "curve.json", "checkpoint.safetensors"
_Model = TypeVar("_Model")
_EVERY = 500  # steps of a general distillation from one checkpoint to the next


@dataclass(frozen=True, eq=False)
class Text:
    """Rows without a task."""

    train: Split
    device: str


def trainable(module: nn.Module) -> dict[str, Tensor]:
    """Trainable weights of a module by name."""
    return {name: weight for name, weight in module.named_parameters() if weight.requires_grad}


def steps_of(problem: Problem | Text, epochs: float, batch_size: int) -> int:
    """Number of steps of this many passes over the train rows, at least one."""
    return max(1, round(epochs * len(problem.train) / batch_size))


def train_cells(
    problem: Problem | Text,
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
    """Minimise a loss of batches of the train rows by AdamW; returns the learning curve."""
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
    batches = problem.train.shuffled(batch_size, seed, problem.device, first=done)
    for of_step in training_steps(batches, weights, loss, optimizer, range(done, steps)):
        progress.advance()
        losses.append(of_step)
        if checkpoint and len(losses) % every == 0 and bool(of_step.isfinite()):
            state = {**optimizer.state(), _LOSSES: torch.stack(losses)}
            write_checkpoint(checkpoint, state, {})
    return curve_of(stage, losses)


def training_steps(
    batches: Iterator[Batch],
    weights: Mapping[str, Tensor],
    loss: Callable[[Batch, int], Tensor],
    optimizer: PopulationOptimizer,
    steps: range,
) -> Iterator[Tensor]:
    """Make each step when its loss, a detached scalar, is requested; in between nothing moves."""
    for step, batch in zip(steps, batches, strict=False):
        of_step = loss(batch, step + 1)
        of_step.backward()
        nn.utils.clip_grad_norm_(list(weights.values()), 1.0)
        optimizer.step()
        yield of_step.detach()


class Shared(NamedTuple, Generic[_Model]):
    """A model that all trials of a run share, and the curve of its training."""

    model: _Model
    curve: Sequence[CurvePoint]


def trained_once(
    problem: Problem,
    name: str,
    ingredients: Mapping[str, object],
    file: str,
    train: Callable[[Path], tuple[Mapping[str, Tensor], Sequence[CurvePoint]]],
    load: Callable[[Mapping[str, Tensor]], _Model],
) -> Shared[_Model]:
    """The model of a run: trained if the run has none, read once a launch."""
    # `ingredients` are all that decides it beside the problem, as JSON. `train` gives the weights
    # that `file` keeps, and goes on from a checkpoint, which outlives a kill; `load` makes the
    # model of them.

    def make(folder: Path, begun: Path) -> None:
        weights, curve = train(begun / _CHECKPOINT)
        # save_file would write for this account alone.
        (folder / file).write_bytes(save({n: w.contiguous() for n, w in weights.items()}))
        (folder / _CURVE).write_text(json.dumps(curve))

    def read() -> Shared[_Model]:
        folder = problem.cached(name, ingredients, make)
        return Shared(load(load_file(folder / file)), json.loads((folder / _CURVE).read_text()))

    return problem.once((name, content_key(ingredients)), read)


def curve_of(stage: str, losses: list[Tensor]) -> list[CurvePoint]:
    """Learning curve of the losses of all steps: means that leave about `_POINTS` rows."""
    values = torch.stack(losses).tolist()
    every = math.ceil(len(losses) / _POINTS)
    parts = [values[first : first + every] for first in range(0, len(values), every)]
    return [
        {"stage": stage, "step": step, "loss": sum(part) / len(part)}
        for step, part in zip(accumulate(map(len, parts)), parts, strict=True)
    ]


def distil_states(
    student: BertForSequenceClassification,
    teacher: BertForSequenceClassification,
    text: Text,
    **training: Any,
) -> list[CurvePoint]:
    """Train the layers of a student of the teacher's width on the teacher's states and scores."""
    dtype, heads = matmul_dtype("auto", text.device), student.config.num_attention_heads
    population, asked = Population.of([student], dtype), RunTeacher(teacher, dtype)
    every_head = torch.arange(heads)[None].to(text.device), torch.ones(1, heads).to(text.device)

    def loss(batch: Batch, _: int) -> Tensor:
        trace, wanted = Trace(), asked.run(batch, with_scores=True)
        population.logits(batch, trace=trace)
        alike = [every_head] * student.config.num_hidden_layers
        return intermediate_loss(trace, wanted, batch.attention_mask, alike, {}).sum()

    weights = {n: w for n, w in population.weights.items() if n.startswith("bert.encoder.")}
    curve = train_cells(text, weights, loss, seed=0, stage="distil", every=_EVERY, **training)
    student.load_state_dict(population.slot(0))
    return curve
