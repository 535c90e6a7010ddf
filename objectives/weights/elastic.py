"""One training for all sizes: a student whose units are ordered, trained at several sizes a step.

The units of each layer lie in the order of what they are worth, so that a smaller model is the
first heads and the first neurons of each layer: a slice of the same weights. Each step draws some
sizes, from the smallest to the whole, each for rows of its own, and adds up their losses (after
DynaBERT, Hou et al. 2020, and MatFormer, Devvrit et al. 2024, whose sizes share their rows;
docs/elastic.md has both). What is trained is one student; a model of any size is cut from it.
On a CPU the sizes of a step are slices, one after another; on a GPU they are one batch, each row
under the masks of its size, which is the same but for rounding.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from objectives.checkpoint import read_checkpoint, write_checkpoint
from objectives.device import on_device
from objectives.problem import Problem
from objectives.progress import Progress
from objectives.search_method import CurvePoint
from objectives.students.bert.architecture import BertShape, Widths
from objectives.students.bert.linears import LINEARS, PER_HEAD
from objectives.text.data import Batch
from objectives.training.population import Population, Trace
from objectives.training.stage_training import StageTraining, steps_in
from objectives.training.stages import Stage

Model = tuple[Widths[int], ...]
"""How much is left of each layer of a model."""

_LOSSES, _DRAWS = "losses", "draws"


@dataclass(frozen=True, eq=False)
class Order:
    """In which order the units of each layer stay."""

    shape: BertShape
    heads: Tensor
    """(layers, heads) int64: the first is the last to go."""
    ffn: Tensor
    """(layers, neurons) int64."""

    @classmethod
    def by_worth(cls, shape: BertShape, worth: Mapping[str, Tensor]) -> Order:
        """The units by falling worth, (layers, units) of each space; of a space that is missing as
        they are."""

        def ordered(space: str, size: int) -> Tensor:
            own = worth.get(space, torch.zeros(shape.layers, size))
            return own.cpu().argsort(dim=-1, descending=True, stable=True)

        return cls(shape, ordered("heads", shape.heads), ordered("ffn", shape.ffn))

    @cached_property
    def reverse(self) -> Order:
        """The order that puts ordered units back where they were."""
        return Order(self.shape, self.heads.argsort(-1), self.ffn.argsort(-1))

    def applied(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The state of a whole classifier with its units in this order: it computes what it did."""
        ordered = dict(state)
        for layer in range(self.shape.layers):
            for linear in LINEARS:
                name = f"bert.encoder.layer.{layer}.{linear.name}"
                weight, bias = ordered[f"{name}.weight"], ordered[f"{name}.bias"]
                if (rows := self._places(linear.outputs, layer)) is not None:
                    weight, bias = weight[rows], bias[rows]
                if (columns := self._places(linear.inputs, layer)) is not None:
                    weight = weight[:, columns]
                ordered |= {f"{name}.weight": weight, f"{name}.bias": bias}
        return ordered

    def _places(self, axis: str, layer: int) -> Tensor | None:
        """Where what lies along an axis comes from; None where no unit lies along it."""
        if axis in PER_HEAD:
            size = self.shape.head_dim
            return (self.heads[layer, :, None] * size + torch.arange(size)).flatten()
        return self.ffn[layer] if axis == "ffn" else None


def sliced(weights: Mapping[str, Tensor], model: Model) -> dict[str, Tensor]:
    """The first heads and neurons of each layer of one student, as views of its (1, ...)."""
    views = dict(weights)
    for layer, widths in enumerate(model):
        for linear in LINEARS:
            name = f"bert.encoder.layer.{layer}.{linear.name}"
            rows, columns = (getattr(widths, a, None) for a in (linear.outputs, linear.inputs))
            views[f"{name}.weight"] = views[f"{name}.weight"][:, :rows, :columns]
            views[f"{name}.bias"] = views[f"{name}.bias"][:, :rows]
    return views


def smaller(population: Population, model: Model) -> Population:
    """A student of one size that computes what the whole one does in this slice of it.

    Its matrices are copies in the precision of the matmuls, with gradients of their own: that is
    what a step of its size costs. A gradient through the views would be padded with zeros to the
    whole size, and the weights be brought to the precision in each pass anew.
    """

    def own(view: Tensor) -> Tensor:
        weight = view.detach()
        if weight.ndim == 3:  # a matrix, by its inputs, as `Population` has them
            weight = weight.mT.to(population.matmul_dtype).contiguous().mT
        return weight.requires_grad_()

    weights = {name: own(view) for name, view in sliced(population.weights, model).items()}
    return replace(population, weights=weights, widths=(model,), padded=model)


def row_masks(models: Sequence[Model], whole: Model, rows: int, device: str) -> dict[str, Tensor]:
    """The same as masks of sequences of the whole student, (1, rows, layers, units) of each space:
    the models take turns."""
    masks = {}
    for space in ("heads", "ffn"):
        kept = torch.tensor([[getattr(layer, space) for layer in model] for model in models])
        of_rows = kept[torch.arange(rows) % len(models)]
        units = torch.arange(getattr(whole[0], space))
        masks[space] = on_device((units < of_rows[..., None]).float()[None], device)
    return masks


def rows_of(batch: Batch, turn: int, turns: int) -> Batch:
    """The rows of a batch whose turn it is."""
    own = {field.name: getattr(batch, field.name)[turn::turns] for field in fields(batch)}
    return Batch(**own)


def _rows_of_trace(trace: Trace | None, turn: int, turns: int) -> Trace | None:
    if trace is None:
        return None
    return Trace(hidden=[hidden_KBSD[:, turn::turns] for hidden_KBSD in trace.hidden])


class ElasticTraining:
    """One student that is trained at many sizes."""

    def __init__(
        self,
        problem: Problem,
        order: Order,
        models: Sequence[Model],
        stage: Stage,
        *,
        sizes: int,
        batch_size: int,
        seed: int,
        dtype: torch.dtype,
    ):
        """`models` are those that a step draws from, by rising size; the last one is whole. Each of
        the `sizes` of a step has `batch_size` rows."""
        self.problem, self.order, self.models, self.sizes = problem, order, models, sizes
        student = copy.deepcopy(problem.student)
        student.load_state_dict(order.applied(problem.student.state_dict()))
        self.population = Population.of([student], dtype)
        self.training = StageTraining(
            problem,
            [0],
            self.population,
            stage,
            [stage.learning_rate],
            None,
            batch_size=sizes * batch_size,
            seed=seed,
        )
        self._draws = np.random.default_rng(seed)

    def run(self, progress: Progress, checkpoint: Path) -> None:
        """Train to the end.

        After each pass over the train rows it can be gone on with from the `checkpoint`, a file, as
        if nothing had happened. If there is one, it does.

        Raises FloatingPointError after a pass in which a loss was not finite.
        """
        done = self._resume(checkpoint, progress)
        a_pass = steps_in(1, self.problem, self.training.batch_size)
        for step, batch in enumerate(self.training.batches(0, progress, done), start=done + 1):
            self.step(batch, self.draw())
            progress.advance()
            if step % a_pass == 0 or step == self.training.steps:
                self._write(checkpoint)

    def _write(self, checkpoint: Path) -> None:
        losses = torch.cat([row["loss"] for row in self.training.measured])
        if not losses.isfinite().all():
            step = int(losses.isfinite().logical_not().nonzero()[0])
            name = self.training.stage.name
            raise FloatingPointError(f"the loss is {losses[step]} at step {step} of stage {name}")
        tensors = {**self.training.optimizer.state(), _LOSSES: losses}
        write_checkpoint(checkpoint, tensors, {_DRAWS: self._draws.bit_generator.state})

    def _resume(self, checkpoint: Path, progress: Progress) -> int:
        """Go on from a checkpoint; the steps that are done there, none where there is none."""
        optimizer = self.training.optimizer
        found = read_checkpoint(checkpoint, optimizer.shapes(), progress.note)
        if found is None:
            return 0
        tensors, said = found
        losses = tensors[_LOSSES].to(self.problem.device)
        optimizer.resume(tensors, len(losses))
        self.training.measured = [{"loss": loss} for loss in losses.split(1)]
        self._draws.bit_generator.state = said[_DRAWS]
        return len(losses)

    def draw(self) -> list[Model]:
        """The sizes of a step: one of each of as many equal parts of `models`."""
        parts = (np.arange(self.sizes) + self._draws.random(self.sizes)) / self.sizes
        return [self.models[int(part * len(self.models))] for part in parts]

    def step(self, batch: Batch, drawn: Sequence[Model]) -> None:
        """Train on one batch at these sizes."""
        losses = self.gradients(batch, drawn)
        self.training.optimizer.step()
        self.training.measured.append({"loss": losses.mean()[None]})

    def gradients(self, batch: Batch, drawn: Sequence[Model]) -> Tensor:
        """Set the gradient of the mean loss over these sizes, which share the rows out; the loss of
        each, (sizes,)."""
        drawn = drawn[: len(batch.rows)]
        parts = [rows_of(batch, turn, len(drawn)) for turn in range(len(drawn))]
        if self.problem.device == "cpu":
            weights = self.population.weights
            whole = {name: torch.zeros_like(weight) for name, weight in weights.items()}
            losses = [
                self._of_one(model, part, len(drawn), whole)
                for model, part in zip(drawn, parts, strict=True)
            ]
            for name, weight in weights.items():
                weight.grad = whole[name]
            return torch.cat(losses)
        of_all = self._of_all(batch, drawn, parts)
        of_all.mean().backward()
        return of_all.detach()

    def _of_one(
        self, model: Model, batch: Batch, sizes: int, whole: Mapping[str, Tensor]
    ) -> Tensor:
        """Add the gradient of one of the sizes, sliced, to the `whole`; its loss, (1,)."""
        student = smaller(self.population, model)
        loss = self.training.loss(student, batch, {})
        (loss / sizes).backward()
        for name, part in sliced(whole, model).items():
            if (own := student.weights[name].grad) is not None:  # a layer without heads has none
                part += own
        return loss.detach()

    def _of_all(self, batch: Batch, drawn: Sequence[Model], parts: Sequence[Batch]) -> Tensor:
        """The loss of each of the sizes, (sizes,), masked in one pass."""
        student, teacher = self.training.trace(), self.training.teacher(batch)
        (whole,), turns = self.population.widths, len(drawn)
        masks = row_masks(drawn, whole, len(batch.rows), self.problem.device)
        logits = self.population.logits(batch, trace=student, row_masks=masks)
        losses = [
            self.training.compared(
                logits[:, turn::turns],
                _rows_of_trace(student, turn, turns),
                _rows_of_trace(teacher, turn, turns),
                part,
                self.population.matmul_dtype,
            )
            for turn, part in enumerate(parts)
        ]
        return torch.cat(losses)

    def state(self) -> dict[str, Tensor]:
        """The state of the whole student, its units where they were."""
        return self.order.reverse.applied(self.training.state(0))

    def curve(self) -> list[CurvePoint]:
        """The rows of its learning curve."""
        return self.training.curves()[0]
