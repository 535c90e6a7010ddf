"""Module-wise reconstruction error minimisation, without labels (MREM, Bai et al. 2022)."""

# The float model says what each layer should give; no label is read. The layers are split into
# modules, and each module learns its weights, straight through their rounding, until its layers
# give on rounded weights and inputs what they gave in float32. A module alone has little to learn,
# so that a few rows are enough. One module with all layers is distillation from end to end; REM, of
# the same paper, reconstructs one weight matrix after another.
#
# A module learns on what the modules before it give, errors and all, or on what they should give,
# or on a mixture (teacher forcing): entering = lambda float + (1 - lambda) quantised, where lambda
# falls from 1 to 0. With lambda = 1 modules know nothing of one another and can learn at the same
# time.

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import ClassVar, Literal, Self, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from objectives.device import matmul_dtype
from objectives.errors import NonNegativeFloat, PositiveFloat, PositiveInt, PositiveShare
from objectives.problem import Problem
from objectives.progress import Progress
from objectives.pruning.importance import scores_per_cost
from objectives.pruning.staged_method import Bits, StagedMethod
from objectives.search_method import CurvePoint, Outcome, not_finite
from objectives.students.bert.architecture import BertArchitecture
from objectives.students.bert.cutting import cut
from objectives.students.bert.linears import LINEARS
from objectives.students.bert.packing import rounded_inputs
from objectives.students.bert.pruned_bert import PrunedBertForSequenceClassification
from objectives.students.bert.quantising import round_embeddings, rounded
from objectives.text.data import Batch
from objectives.training.losses import hidden_loss
from objectives.training.optimisation import linear_schedule
from objectives.training.population import Population, Trace
from objectives.training.stage_training import curve_points
from objectives.training.stages import Stage

# In REM each matrix learns, straight through its rounding, to give on what reaches it in the
# rounded model what the float one gives there: least |W^ a^ + b - W a - b_0|^2, a^ rounded too.

_LAYER = "bert.encoder.layer."


def matrices(
    model: PrunedBertForSequenceClassification, architecture: BertArchitecture
) -> list[list[str]]:
    """Names of the weights of few bits in each layer of a model."""
    return [
        [
            linear.name
            for linear in LINEARS
            if units.weight_bits
            and model.get_parameter(f"{_LAYER}{number}.{linear.name}.weight").numel()
        ]
        for number, units in enumerate(architecture.layers)
    ]


def matrix_by_matrix(
    model: PrunedBertForSequenceClassification,
    architecture: BertArchitecture,
    batches: Sequence[Batch],
    order: Sequence[int],
    learning_rate: float,
) -> Iterator[tuple[int, Tensor]]:
    """Teach the weights of a float model, in place, the bits that the architecture says."""
    # Each matrix takes a step on each batch of the `order`; pooler, norms and classifier stay. What
    # reaches one matrix lies in memory, of the tokens of all batches. In float32.
    #
    # Yields for each step the layer and the loss before it.
    example = copy.deepcopy(model).requires_grad_(False)
    round_embeddings(model, architecture.embedding_bits)
    seen = [batch.attention_mask for batch in batches]
    with torch.no_grad():
        states = [
            [network.bert["embeddings"](b.input_ids, b.token_type_ids) for b in batches]
            for network in (example, model)
        ]
    for number, names in enumerate(matrices(model, architecture)):
        layers = [network.get_submodule(f"{_LAYER}{number}") for network in (example, model)]
        units = architecture.layers[number]
        bits, into = (getattr(units, name) for name in ("weight_bits", "input_bits"))
        learnt, hooks = [], []
        for name in names:
            wanted, linear = (cast("nn.Linear", layer.get_submodule(name)) for layer in layers)
            networks = zip(layers, (wanted, linear), states, strict=True)
            pairs = [_reaching(*arguments, seen) for arguments in networks]
            optimizer = torch.optim.Adam(linear.parameters(), learning_rate, fused=True)
            schedule = linear_schedule(optimizer, len(order))
            for index in order:
                through = linear.weight + (rounded(linear.weight, bits) - linear.weight).detach()
                given = nn.functional.linear(_few(pairs[1][index], into), through, linear.bias)
                aim = nn.functional.linear(pairs[0][index], wanted.weight, wanted.bias)
                loss = (given - aim).square().mean()
                loss.backward()
                optimizer.step()
                schedule.step()
                optimizer.zero_grad(set_to_none=True)
                yield number, loss.detach()
            learnt.append((linear, linear.weight.data))
            linear.weight.data = rounded(linear.weight.data, bits)
            hooks.append(linear.register_forward_pre_hook(partial(_rounds, into)))
        with torch.no_grad():
            states = [_through(*arguments, seen) for arguments in zip(layers, states, strict=True)]
        for hook in hooks:
            hook.remove()
        for linear, weight in learnt:
            linear.weight.data = weight


def _few(inputs: Tensor, bits: int | None) -> Tensor:
    return inputs if bits is None else rounded_inputs(inputs, bits)


def _rounds(bits: int | None, linear: nn.Module, inputs: tuple[Tensor]) -> Tensor:
    """Round the inputs of a linear where it reads."""
    read = getattr(linear, "inputs", slice(None))
    given = inputs[0].clone()
    given[..., read] = _few(given[..., read], bits)
    return given


def _through(layer: nn.Module, states: Sequence[Tensor], seen: Sequence[Tensor]) -> list[Tensor]:
    if isinstance(layer, nn.Identity):  # it is dropped
        return list(states)
    return [layer(x, mask[:, None, None]) for x, mask in zip(states, seen, strict=True)]


@torch.no_grad()
def _reaching(
    layer: nn.Module, linear: nn.Module, states: Sequence[Tensor], seen: Sequence[Tensor]
) -> list[Tensor]:
    """Collect the inputs of a linear for the tokens of each batch: (tokens, inputs)."""
    reached: list[Tensor] = []
    read = getattr(linear, "inputs", slice(None))
    hook = linear.register_forward_pre_hook(lambda _, inputs: reached.append(inputs[0][..., read]))
    _through(layer, states, seen)
    hook.remove()
    return [inputs[mask] for inputs, mask in zip(reached, seen, strict=True)]


@dataclass(frozen=True, kw_only=True)
class Mrem(StagedMethod):
    """Few bits by reconstruction, module by module, from a few rows without labels.

    Units of the least Fisher score go first, if `target_ratio` is below 1; the whole float model is
    the example all the same."""

    stages: ClassVar[tuple[Stage, ...]] = ()  # type: ignore[misc]

    target_ratio: PositiveShare = 1.0
    """R: share of the unpruned model's cost to keep. In (0, 1]."""
    weight_bits: Bits = 4
    """Bits of each weight, in all layers, or an entry a layer: 32 (not quantised), 8, 4, 2 or 1."""
    input_bits: Bits = 8
    """To which what enters a weight of few bits is rounded: 32 (not at all), 8 or 4."""
    embedding_bits: int = 4
    """Bits of the embeddings of words and positions, which do not learn: 32, 8, 4, 2 or 1."""
    rows: PositiveInt = 1024
    """Rows of train, drawn with the seed; all, if there are fewer. >= 1. MREM-S keeps hidden states
    of their tokens in memory, 8 E bytes each."""
    each: Literal["module", "matrix"] = "module"
    """Part that is reconstructed at a time: "module" is MREM; "matrix" is REM, in which each weight
    matrix takes `steps` steps, in float32, and the example is the float model as it was cut."""
    modules: PositiveInt = 4
    """Into which the layers are split; no more than there are layers. >= 1."""
    steps: PositiveInt = 250
    """Steps of each module, a batch each. >= 1."""
    learning_rate: PositiveFloat = 1e-4
    """Peak of Adam's rate, after 10% of warm-up; then it falls linearly to 0. > 0."""
    teacher_forcing: NonNegativeFloat = 0.5
    """Share of the steps in which lambda falls from 1 to 0; 0: none, infinite: it stays 1. >= 0."""
    parallel: bool = False
    """False (MREM-S): a module learns when those before it are done. True (MREM-P): all learn at
    the same time, each on the latest output of the one before it.

    In one process the modules take turns on a batch and hand their outputs on: to the digit what a
    pipeline computes in which module n is n batches behind the first."""

    def inactive(self) -> Mapping[str, str]:
        full = "a ranking that is done once always fills the budget R"
        alone = {"parallel": "there is only one module"} if self.modules == 1 else {}
        if self.each == "matrix":
            names = ("modules", "parallel", "teacher_forcing", "precision")
            alone = dict.fromkeys(names, "it acts with each='module'")
        return {**super().inactive(), "tolerance": full, **alone}

    def scale_epochs(self, share: float) -> Self:
        return replace(self, steps=max(1, round(self.steps * share)))

    def _forcing(self, step: int) -> float:
        """lambda, the share of the float model in what enters a module at a step, from 0 on."""
        falling = self.teacher_forcing * self.steps
        return max(1 - step / falling, 0.0) if falling else 0.0

    @classmethod
    def search(
        cls, members: Sequence[Self], problem: Problem, *, seed: int, progress: Progress
    ) -> Iterator[Outcome]:
        """Reconstruct the members one after another, as they share little."""
        members[0].check_shapes(problem.student.config, problem.teacher.config)
        for slot, member in enumerate(members):
            by_matrix = member.each == "matrix"
            reconstruct = member._matrix_by_matrix if by_matrix else member._module_by_module
            curve, model, units = reconstruct(problem, seed, progress)
            yield not_finite(slot, curve) or member.result(slot, problem, model, units, curve)

    def _chosen(self, problem: Problem) -> BertArchitecture:
        return self.within_budget(scores_per_cost(problem, self.spaces, "logits"), problem)

    def _drawn(self, problem: Problem, seed: int) -> tuple[list[NDArray[np.int64]], list[int]]:
        """Rows of the batches, and which batch comes at each step."""
        generator = np.random.default_rng(seed)
        batches = problem.train.drawn(self.rows, generator, self.batch_size)
        passes = -(-self.steps // len(batches))
        orders = [generator.permutation(len(batches)) for _ in range(passes)]
        return batches, np.concatenate(orders)[: self.steps].tolist()

    def _module_by_module(
        self, problem: Problem, seed: int, progress: Progress
    ) -> tuple[list[CurvePoint], PrunedBertForSequenceClassification, BertArchitecture]:
        run = _Reconstruction(self, problem, seed)
        progress.begin(f"reconstruct {len(run.modules)} modules", self.steps * len(run.modules))
        for _ in run.steps():
            progress.advance()
        run.cut.load_state_dict(run.population.slot(0))
        losses = {f"module {n}": module.losses for n, module in enumerate(run.modules, start=1)}
        return _curve(losses), run.cut, run.units

    def _matrix_by_matrix(
        self, problem: Problem, seed: int, progress: Progress
    ) -> tuple[list[CurvePoint], PrunedBertForSequenceClassification, BertArchitecture]:
        units, student = self._chosen(problem), problem.student
        model = cut(student.state_dict(), student.config, units)
        learned, (drawn, order) = self.in_bits(units), self._drawn(problem, seed)
        number = sum(map(len, matrices(model, learned)))
        progress.begin(f"reconstruct {number} matrices", self.steps * number)
        batches = [problem.train.batch(rows, problem.device) for rows in drawn]
        losses: dict[int, list[Tensor]] = {}
        for layer, loss in matrix_by_matrix(model, learned, batches, order, self.learning_rate):
            losses.setdefault(layer, []).append(loss)
            progress.advance()
        return _curve({f"layer {n + 1}": of_layer for n, of_layer in losses.items()}), model, units


def _curve(losses: Mapping[str, Sequence[Tensor]]) -> list[CurvePoint]:
    return [
        point
        for stage, of_stage in losses.items()
        for point in curve_points(stage, [{"loss": loss[None]} for loss in of_stage])[0]
    ]


@dataclass
class _At:
    """A batch on its way through both models."""

    batch: Batch
    wanted: Tensor
    """(1, B, S, D): what the float model gives up to here."""
    reached: Tensor
    """(1, B, S, D): output of the quantised model up to here."""


@dataclass
class _Module:
    """Consecutive layers, and who moves their weights; the last also has pooler and classifier."""

    layers: Sequence[int]
    optimizer: torch.optim.Optimizer
    schedule: torch.optim.lr_scheduler.LRScheduler
    losses: list[Tensor] = field(default_factory=list)


class _Reconstruction:
    def __init__(self, member: Mrem, problem: Problem, seed: int):
        self.member, self.problem = member, problem
        self.units = member._chosen(problem)
        self.learned = member.in_bits(self.units)
        student, dtype = problem.student, matmul_dtype(member.precision, problem.device)
        self.cut = cut(student.state_dict(), student.config, self.units)
        round_embeddings(self.cut, self.learned.embedding_bits)
        self.whole = Population.of([student], dtype)
        self.population = replace(Population.of([self.cut], dtype), rounding=(self.learned,))
        self._batches, self._order = member._drawn(problem, seed)
        layers = np.arange(len(self.units.layers))
        parts = np.array_split(layers, min(member.modules, len(layers)))
        self.modules = [self._module(part.tolist()) for part in parts]

    def _module(self, layers: Sequence[int]) -> _Module:
        inside = tuple(f"bert.encoder.layer.{layer}." for layer in layers)
        last = len(self.units.layers) - 1 in layers
        weights = [
            weight
            for name, weight in self.population.weights.items()
            if name.startswith(inside) or (last and not name.startswith("bert.encoder."))
        ]
        optimizer = torch.optim.Adam(weights, self.member.learning_rate, fused=True)
        return _Module(layers, optimizer, linear_schedule(optimizer, self.member.steps))

    def steps(self) -> Iterator[None]:
        """Take all modules through all their steps, and stop after each step of each."""
        if self.member.parallel:
            for step, number in enumerate(self._order):
                at = self._begin(self._batches[number])
                for module in self.modules:
                    at = self._learn(module, at, step)
                    yield
            return
        passes = [self._begin(rows) for rows in self._batches]
        for module in self.modules:
            for step, number in enumerate(self._order):
                self._learn(module, passes[number], step)
                yield
            passes = [self._through(module, at) for at in passes]

    @torch.no_grad()
    def _begin(self, rows: NDArray[np.int64]) -> _At:
        batch = self.problem.train.batch(rows, self.problem.device)
        return _At(batch, self.whole.embedded(batch), self.population.embedded(batch))

    @torch.no_grad()
    def _through(self, module: _Module, at: _At) -> _At:
        """The batch behind a module that is done."""
        seen = at.batch.attention_mask
        wanted, _ = self.whole.through(module.layers, at.wanted, seen)
        quantised, _ = self.population.through(module.layers, at.reached, seen)
        return _At(at.batch, wanted[-1], quantised[-1])

    def _learn(self, module: _Module, at: _At, step: int) -> _At:
        """Take a step of a module; returns the batch behind the module as it was before."""
        seen, share = at.batch.attention_mask, self.member._forcing(step)
        with torch.no_grad():
            wanted, float_logits = self.whole.through(module.layers, at.wanted, seen)
        quantised, answered = self.population.through(
            module.layers, at.reached.lerp(at.wanted, share), seen
        )
        loss = hidden_loss(Trace(quantised), Trace(wanted), seen, {}).sum()
        if answered is not None and float_logits is not None:
            loss = loss + (answered - float_logits).square().mean()
        loss.backward()
        module.optimizer.step()
        module.schedule.step()
        module.optimizer.zero_grad(set_to_none=True)
        module.losses.append(loss.detach())
        return _At(at.batch, wanted[-1], quantised[-1].detach())
