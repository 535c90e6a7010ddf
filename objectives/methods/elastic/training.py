"""Train one student, whose units are ordered, at several sizes a step."""

# Each step draws some sizes, from the smallest to the whole, each for rows of its own, and adds up
# their losses (after DynaBERT, Hou et al. 2020, and MatFormer, Devvrit et al. 2024, whose sizes
# share their rows; commit 4a646a4 has both). What is trained is one student, kept for all trials of
# a run; a model of any size is cut from it. On a CPU the sizes of a step are slices, one after
# another; on a GPU they are one batch, each row under the masks of its size, which is the same but
# for rounding.
#
# A size may compute in few bits that are drawn with it (after MatQuant, Nair et al. 2025): weights
# and embeddings in these, what enters the weights in 8, and gradients pass the rounding as if there
# were none. As a row's scale is that of its own slice, the sizes are then slices on a GPU, too.

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from transformers import BertForSequenceClassification
from transformers.models.bert.modeling_bert import BertEmbeddings

from objectives.checkpoint import read_checkpoint, write_checkpoint
from objectives.problem import Problem
from objectives.progress import Progress
from objectives.pruning.slices import Model, Order, row_masks, sliced, smaller
from objectives.search_method import CurvePoint, not_finite
from objectives.students.bert.architecture import FULL_BITS, BertArchitecture
from objectives.students.bert.quantising import round_embeddings
from objectives.text.data import Batch
from objectives.training.fitting import Shared, trained_once
from objectives.training.population import EMBEDDINGS, Population, Trace
from objectives.training.recorded import Tensors
from objectives.training.stage_training import StageTraining, batch_and_masks, steps_in
from objectives.training.stages import Stage
from objectives.training.teacher_states import keep_states

INPUTS = 8
"""Bits of what enters weights of few."""
_LOSSES, _DRAWS = "losses", "draws"
_TAUGHT = "taught "  # before the space of a mask of who teaches
_POINTS = 200
"""Rows at most of the training's learning curve, which each trial keeps."""


def shared_student(
    problem: Problem,
    ingredients: Mapping[str, object],
    prepare: Callable[[], "ElasticTraining"],
    progress: Progress,
) -> Shared[BertForSequenceClassification]:
    """The student of a run that was trained at many sizes."""
    # `prepare` makes its training. Raises FloatingPointError if a loss is not finite.

    def train(checkpoint: Path) -> tuple[dict[str, Tensor], list[CurvePoint]]:
        training = prepare()
        training.run(progress, checkpoint)
        weights = {n: w for n, w in training.state().items() if not n.startswith(EMBEDDINGS)}
        curve = training.training.curves()[0]
        return weights, curve[:: math.ceil(len(curve) / _POINTS)]

    def load(weights: Mapping[str, Tensor]) -> BertForSequenceClassification:
        student = copy.deepcopy(problem.student)
        student.load_state_dict(weights, strict=False)  # embeddings are frozen
        return student

    return trained_once(problem, "elastic", ingredients, "model.safetensors", train, load)


def rows_of(batch: Batch, turn: int, turns: int) -> Batch:
    """The rows of a batch whose turn it is."""
    return Batch(**{name: part[turn::turns] for name, part in vars(batch).items()})


def _rows_of_trace(trace: Trace | None, turn: int, turns: int) -> Trace | None:
    return trace and Trace(
        hidden=[hidden_KBSD[:, turn::turns] for hidden_KBSD in trace.hidden],
        masks=[kept_KB if kept_KB is None else kept_KB[:, turn::turns] for kept_KB in trace.masks],
    )


class ElasticTraining:
    """The training of a student at many sizes."""

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
        taught_by: Mapping[Model, Model] | None = None,
        bits: Sequence[int] = (),
    ):
        """A step draws from `models`, by rising size; each of its `sizes` has `batch_size` rows."""
        # The last of the models is whole. `taught_by` names for each model that of the student, as
        # it is before the training, which it learns from instead of the teacher. `bits` are those
        # that are drawn for each size; none: it computes in float32.
        self.problem, self.order, self.models, self.sizes = problem, order, models, sizes
        student = copy.deepcopy(problem.student)
        student.load_state_dict(order.applied(problem.student.state_dict()))
        self.population, self.taught_by = Population.of([student], dtype), taught_by
        self.whole = Population.of([student], dtype) if taught_by else None
        rates, rows = [stage.learning_rate], sizes * batch_size
        self.training = StageTraining(
            problem, [0], self.population, stage, rates, None, batch_size=rows, seed=seed
        )
        self._draws = np.random.default_rng(seed)
        self.bits = bits
        self._rounded = {few: _rounded(student, order, few) for few in bits if few < FULL_BITS}

    def run(self, progress: Progress, checkpoint: Path) -> None:
        """Train to the end, from the `checkpoint` on, which each pass over the rows leaves."""
        # Raises FloatingPointError after a pass in which a loss was not finite.
        if self.training.stage.loss == "prediction+hidden" and self.whole is None:
            keep_states(self.problem, self.population.matmul_dtype, progress)
        done = self._resume(checkpoint, progress)
        an_epoch = steps_in(1, self.problem, self.training.batch_size)
        for step, batch in enumerate(self.training.batches(0, progress, done), start=done + 1):
            self.step(batch, self.draw(), self.draw_bits())
            progress.advance()
            if step % an_epoch == 0 or step == self.training.steps:
                self._write(checkpoint)

    def _write(self, checkpoint: Path) -> None:
        losses = torch.cat([row["loss"] for row in self.training.measured])
        if failure := not_finite(0, self.training.curves()[0]):
            raise FloatingPointError(failure.reason)
        tensors = {**self.training.optimizer.state(), _LOSSES: losses}
        write_checkpoint(checkpoint, tensors, {_DRAWS: self._draws.bit_generator.state})

    def _resume(self, checkpoint: Path, progress: Progress) -> int:
        """Go on from a checkpoint; the steps that are done there, none where there is none."""
        optimizer = self.training.optimizer
        resumed = read_checkpoint(checkpoint, optimizer.state(), progress.note)
        if resumed is None:
            return 0
        tensors, state = resumed
        losses = tensors[_LOSSES].to(self.problem.device)
        optimizer.resume(tensors, len(losses))
        self.training.measured = [{"loss": loss} for loss in losses.split(1)]
        self._draws.bit_generator.state = state[_DRAWS]
        return len(losses)

    def draw(self) -> list[Model]:
        """The sizes of a step: one of each of as many equal parts of `models`."""
        parts = (np.arange(self.sizes) + self._draws.random(self.sizes)) / self.sizes
        return [self.models[int(part * len(self.models))] for part in parts]

    def draw_bits(self) -> list[int]:
        """The bits of each size of a step, all as often; none where there are none to draw from."""
        return self._draws.choice(self.bits, self.sizes).tolist() if self.bits else []

    def step(self, batch: Batch, drawn: Sequence[Model], bits: Sequence[int] = ()) -> None:
        if bits or self.problem.device == "cpu":
            losses = self.gradients(batch, drawn, bits)
            self.training.optimizer.step()
        else:
            self.training.optimizer.set_rate()
            inputs = self.masked(batch, drawn[: len(batch.rows)])
            losses = self.training.recorded_steps.call(self._masked_step, inputs)["loss"]
        self.training.measured.append({"loss": losses.mean()[None]})

    def gradients(self, batch: Batch, drawn: Sequence[Model], bits: Sequence[int] = ()) -> Tensor:
        """Set the gradient of the mean loss over sizes that share the rows; each loss, (sizes,)."""
        drawn, bits = drawn[: len(batch.rows)], bits[: len(batch.rows)]
        parts = [rows_of(batch, turn, len(drawn)) for turn in range(len(drawn))]
        weights = self.population.weights
        gradients = {name: torch.zeros_like(weight) for name, weight in weights.items()}
        each = zip(drawn, parts, bits or [FULL_BITS] * len(drawn), strict=True)
        # One call a size: its student is gone before the next is made.
        losses = [self._of_one(*arguments, len(drawn), gradients) for arguments in each]
        for name, weight in weights.items():
            weight.grad = gradients[name]
        return torch.cat(losses)

    def _of_one(
        self, model: Model, batch: Batch, bits: int, sizes: int, whole: Mapping[str, Tensor]
    ) -> Tensor:
        """Add the gradient of one of the sizes, sliced, to the `whole`; its loss, (1,)."""
        student = self.sized(model, bits)
        trace, teacher, wanted = self._taught(batch, self._teacher_masks(batch, [model]))
        logits = student.logits(batch, trace=trace)
        loss = self.training.compared(logits, trace, teacher, batch, wanted)
        (loss / sizes).backward()
        for name, part in sliced(whole, model).items():
            gradient = student.weights[name].grad
            if gradient is not None:  # a layer without heads has none
                part += gradient
        return loss.detach()

    def sized(self, model: Model, bits: int) -> Population:
        """A student of one size that computes in few bits, as the model that is cut from it."""
        if bits == FULL_BITS:
            return smaller(self.population, model)
        rounding, embeddings = self._rounded[bits]
        return replace(smaller(self.population, model, (rounding,)), embeddings=embeddings)

    def masked(self, batch: Batch, drawn: Sequence[Model]) -> dict[str, Tensor]:
        """The batch and the masks of sizes that take turns on its rows, for `masked_losses`."""
        taught = {_TAUGHT + s: mask for s, mask in self._teacher_masks(batch, drawn).items()}
        return {**vars(batch), **self._row_masks(drawn, batch), **taught}

    def masked_losses(self, inputs: Tensors, turns: int) -> Tensor:
        """The loss of each of the sizes, (sizes,), masked in one pass."""
        batch, given = batch_and_masks(inputs)
        masks = {space: mask for space, mask in given.items() if not space.startswith(_TAUGHT)}
        taught = {name.removeprefix(_TAUGHT): given[name] for name in given.keys() - masks.keys()}
        student, teacher, wanted = self._taught(batch, taught)
        logits = self.population.logits(batch, trace=student, row_masks=masks)
        losses = []
        for turn in range(turns):
            ours, theirs = (_rows_of_trace(trace, turn, turns) for trace in (student, teacher))
            rows, aims = rows_of(batch, turn, turns), wanted[turn::turns]
            losses.append(self.training.compared(logits[:, turn::turns], ours, theirs, rows, aims))
        return torch.cat(losses)

    def _masked_step(self, inputs: Tensors) -> Tensors:
        losses = self.masked_losses(inputs, min(self.sizes, len(inputs["rows"])))
        losses.mean().backward()
        self.training.optimizer.move()
        return {"loss": losses.detach()}

    def _row_masks(self, drawn: Sequence[Model], batch: Batch) -> dict[str, Tensor]:
        (widths,) = self.population.widths
        return row_masks(drawn, widths, len(batch.rows), self.problem.device)

    def _teacher_masks(self, batch: Batch, drawn: Sequence[Model]) -> dict[str, Tensor]:
        """Masks of the models of the student that teach these; none where the teacher does."""
        if self.taught_by is None:
            return {}
        return self._row_masks([self.taught_by[model] for model in drawn], batch)

    def _taught(
        self, batch: Batch, masks: Mapping[str, Tensor]
    ) -> tuple[Trace | None, Trace | None, Tensor]:
        """Trace to fill, trace of the teacher, or of the student under `masks`, and its logits."""
        if self.whole is None:
            return *self.training.traces(batch), self.problem.teacher_logits[batch.rows]
        traced = self.training.stage.loss != "prediction"
        student, teacher = (Trace(with_scores=False) if traced else None for _ in range(2))
        with torch.no_grad():
            (logits_BC,) = self.whole.logits(batch, trace=teacher, row_masks=masks)
        return student, teacher, logits_BC

    def state(self) -> dict[str, Tensor]:
        """The state of the whole student, its units where they were."""
        return self.order.reverse.applied(self.training.state(0))


def _rounded(
    student: BertForSequenceClassification, order: Order, bits: int
) -> tuple[BertArchitecture, BertEmbeddings]:
    """How a student of this many bits rounds its weights, and its embeddings, rounded."""
    model, layers = copy.deepcopy(student), order.shape.layers
    round_embeddings(model, bits)
    full = BertArchitecture.full(order.shape)
    rounding = full.with_bits([bits] * layers, [INPUTS] * layers, bits)
    return rounding, Population.of([model]).embeddings
