"""AutoBERT-Zero (Gao et al. 2022): evolution of layers, each a formula of attention or a light
convolution, by operation priority on a bi-branch super-net."""

# What is illegal is rejected before it is trained. Each candidate takes its weights from the
# super-net, learns for a few steps what the teacher says, its logits and its hidden states, and is
# scored on alpha. After a round, as many candidates as parents, the weights are written back; where
# several children have trained one weight, that of the best stays. The best candidate of all is
# trained on the teacher's logits.

import copy
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import chain
from operator import itemgetter
from random import Random
from string import digits
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional
from transformers.configuration_utils import PreTrainedConfig
from transformers.modeling_outputs import SequenceClassifierOutput

from objectives.device import to_device
from objectives.errors import NonNegativeFloat, PositiveInt
from objectives.methods.cells.base.choosing import CellChoice, ChosenCell
from objectives.methods.cells.base.learning import new_cell, taught_loss
from objectives.problem import Problem
from objectives.progress import Progress
from objectives.strategies.operation_priority import OperationPriority, PrioritySettings
from objectives.strategies.strategy import TRIES, Candidate
from objectives.students.cells.cell_classifier import (
    CellBlock,
    CellConfig,
    CellForSequenceClassification,
)
from objectives.students.cells.formulas import (
    INPUTS,
    LONGEST,
    OPERANDS,
    applied,
    formula_shape,
    is_formula,
)
from objectives.students.cells.graph import IDENTITY
from objectives.students.cells.operations import LIGHT_KERNELS
from objectives.text.data import Batch
from objectives.training.fitting import curve_of, steps_of, training_steps
from objectives.training.optimisation import PopulationOptimizer
from objectives.training.scoring import all_alpha, answer_score
from objectives.training.teacher_states import keep_states

KINDS = ("attention", "convolution")
_TRANSFORM = ".transform"
_ALL_INPUTS = "add(add(K,P),add(Q,V))"


class Layers(NamedTuple):
    """Layers, and the choices that act in them."""

    operations: tuple[str, ...]
    """Operation of each layer: a formula, or a name such as "light9"."""
    choices: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class LayerSpace:
    """All rows of some layers, place by place."""

    # A formula has positions, each of which holds a function, or passes its first operand on; an
    # operand is an input or what an earlier position gives. The last position gives the result. So
    # a function is inserted, deleted or replaced by one change, and all other positions stay as
    # they are. Of formulas drawn at random about one in seven reads another token than its own.

    layers: int
    positions: int

    @property
    def uniform(self) -> dict[str, tuple[Any, ...]]:
        """Places that priority does not rank: kinds of layers, and operands."""
        kinds = {f"layers[{layer}].kind": KINDS for layer in range(self.layers)}
        return kinds | {
            f"layers[{layer}].positions[{n}].inputs[{operand}]": tuple(range(len(INPUTS) + n))
            for layer in range(self.layers)
            for n in range(self.positions)
            for operand in range(2)
        }

    @property
    def guided(self) -> dict[str, tuple[Any, ...]]:
        """Places that priority ranks: kernels and functions."""
        kernels = {f"layers[{layer}].kernel": LIGHT_KERNELS for layer in range(self.layers)}
        return kernels | {
            f"layers[{layer}].positions[{number}].function": (IDENTITY, *OPERANDS)
            for layer in range(self.layers)
            for number in range(self.positions)
        }

    def read(self, choices: Mapping[str, Any]) -> Layers | None:
        """The layers of some choices; None where one is illegal, or uses less than two inputs."""
        acting: dict[str, Any] = {}
        layers: list[str] = []
        for layer in range(self.layers):
            operation = self._layer(f"layers[{layer}]", choices, acting)
            if operation is None:
                return None
            layers.append(operation)
        return Layers(tuple(layers), acting)

    def drawn(self, random: Random) -> Layers:
        """Layers at random: the kind of each, then all else until it is legal."""
        acting: dict[str, Any] = {}
        layers: list[str] = []
        places = {**self.uniform, **self.guided}
        for layer in range(self.layers):
            kind, operation = {f"layers[{layer}].kind": random.choice(KINDS)}, None
            while operation is None:
                acting_here: dict[str, Any] = {}
                choices = {place: random.choice(every) for place, every in places.items()} | kind
                operation = self._layer(f"layers[{layer}]", choices, acting_here)
            layers.append(operation)
            acting |= acting_here
        return Layers(tuple(layers), acting)

    def _layer(self, name: str, choices: Mapping[str, Any], acting: dict[str, Any]) -> str | None:
        def chosen(place: str) -> Any:
            acting[place] = choices[place]
            return choices[place]

        @cache
        def value(state: int) -> tuple[str, str] | None:
            """A formula, and the sides of its value."""
            if state < len(INPUTS):
                return INPUTS[state], "nd"
            position = f"{name}.positions[{state - len(INPUTS)}]"
            function = chosen(f"{position}.function")
            numbers = range(OPERANDS.get(function, 1))
            values = [value(chosen(f"{position}.inputs[{number}]")) for number in numbers]
            operands = [operand for operand in values if operand]
            if len(operands) < len(values) or function == IDENTITY:
                return values[0] if operands == values else None
            formulas, shapes = zip(*operands, strict=True)
            if sum(map(len, formulas)) > LONGEST - len("transpose(,)"):
                return None
            shape = formula_shape(function, shapes)
            return (applied(function, *formulas), shape) if shape else None

        if chosen(f"{name}.kind") == "convolution":
            return f"light{chosen(f'{name}.kernel')}"
        formula, shape = value(len(INPUTS) + self.positions - 1) or ("", "")
        reads = sum(name_of_input in formula for name_of_input in INPUTS)
        return formula if shape == "nd" and reads > 1 else None


def operations_of(layers: Sequence[str]) -> tuple[str, ...]:
    """The blocks of a model of these layers: positions first, a feed-forward after each layer."""
    return ("positions", *chain.from_iterable((layer, "feed_forward") for layer in layers))


def _kind(operation: str) -> str:
    return "formula" if is_formula(operation) else operation.rstrip(digits)


class BiBranchNet(nn.Module):
    """All models of some layers, each an attention that formulas share and a light convolution."""

    # A smaller kernel is the middle of the largest, times a square matrix of its own, which begins
    # as the identity. A candidate trains a copy of the weights that it uses; what it changed is
    # written back.

    def __init__(self, layers: int, plain: CellForSequenceClassification, teacher_size: int):
        """`plain` is a model without blocks: words, classifier and sizes are its own."""
        super().__init__()
        self.plain, width = plain, plain.config.hidden_size
        branches = (_ALL_INPUTS, f"light{LIGHT_KERNELS[-1]}")
        every = [("positions",), *[branches, ("feed_forward",)] * layers]
        blocks = [{_kind(name): CellBlock(width, name) for name in names} for names in every]
        self.blocks = nn.ModuleList(map(nn.ModuleDict, blocks))
        self.transforms = nn.ModuleList(
            nn.ParameterDict({str(kernel): torch.eye(kernel) for kernel in LIGHT_KERNELS[:-1]})
            for _ in every
        )
        self.fits = nn.ModuleList(nn.Linear(width, teacher_size) for _ in every)
        """Linear maps from the state behind each block to the teacher's."""

    def model(self, layers: Sequence[str]) -> CellForSequenceClassification:
        """The plain model of some layers, without its blocks' weights; the rest is not copied."""
        config = {**self.plain.config.to_dict(), "operations": operations_of(layers)}
        with torch.device("meta"):
            model = CellForSequenceClassification(CellConfig.from_dict(config))
        for name, child in self.plain.named_children():
            if name not in ("blocks", "reads"):
                setattr(model, name, child)
        return model

    def path(self, layers: Sequence[str]) -> dict[str, Tensor]:
        """The weights that some layers use, as views: the model's by its names, and others'."""
        model, names = self.model(layers), operations_of(layers)
        views: dict[str, Tensor] = {f"fits.{n}": w for n, w in self.fits.named_parameters()}
        for name, weight in model.named_parameters():
            if not name.startswith("blocks."):
                views |= {name: weight} if weight.requires_grad else {}
                continue
            _, number, parameter = name.split(".", 2)
            kind = _kind(names[int(number)])
            views[name] = largest = self.get_parameter(f"blocks.{number}.{kind}.{parameter}")
            if weight.shape != largest.shape:
                taps = weight.shape[-1]
                views[name] = largest.narrow(-1, (largest.shape[-1] - taps) // 2, taps)
                views[name + _TRANSFORM] = self.get_parameter(f"transforms.{number}.{taps}")
        return views

    def take(self, layers: Sequence[str]) -> "Student":
        """Some layers with copies of the weights that they use."""
        copies = {n: w.detach().clone().requires_grad_() for n, w in self.path(layers).items()}
        return Student(tuple(layers), self.model(layers), copies)

    @torch.no_grad()
    def write_back(self, candidate: "Student") -> None:
        """Write the candidate's weights back into the super-net."""
        for name, view in self.path(candidate.layers).items():
            view.copy_(candidate.weights[name])

    @torch.no_grad()
    def extract(self, layers: Sequence[str]) -> CellForSequenceClassification:
        """The plain model of some layers with copies of their weights."""
        candidate = self.take(layers)
        model = copy.deepcopy(candidate.model)
        model.load_state_dict(candidate.of_model(), strict=False, assign=True)
        model.train(False)
        return model


@dataclass(frozen=True, eq=False)
class Student:
    """Layers with weights of their own."""

    layers: tuple[str, ...]
    model: CellForSequenceClassification
    weights: Mapping[str, Tensor]
    """See `BiBranchNet.path`."""

    def __call__(self, inputs: Mapping[str, Tensor]) -> SequenceClassifierOutput:
        """Run the model; the answer has its hidden states."""
        kwargs = {**inputs, "output_hidden_states": True}
        answer: SequenceClassifierOutput = functional_call(self.model, self.of_model(), (), kwargs)
        return answer

    def of_model(self) -> dict[str, Tensor]:
        """The weights of the model by its names, kernels transformed."""
        weights = self.weights
        return {
            name: weight @ weights[name + _TRANSFORM] if name + _TRANSFORM in weights else weight
            for name, weight in weights.items()
            if not name.startswith("fits.") and not name.endswith(_TRANSFORM)
        }

    def fits(self) -> Iterator[Callable[[Tensor], Tensor]]:
        """Maps of the state behind each block to the teacher's."""
        for number in range(len(self.model.blocks)):
            weight, bias = (self.weights[f"fits.{number}.{kind}"] for kind in ("weight", "bias"))
            yield partial(functional.linear, weight=weight, bias=bias)


@dataclass(frozen=True, kw_only=True)
class AutoBertZero(CellChoice):
    """Search for the operations of layers, formulas of attention among them."""

    layers: PositiveInt = 2
    """Layers of the student, each with a feed-forward behind it. >= 1."""
    positions: PositiveInt = 8
    """At most this many functions of a formula. >= 1."""
    candidates: PositiveInt = 60
    """Candidates, all trained for as many steps; the first quarter is drawn at random. >= 1."""
    parents: PositiveInt = 5
    """K: the best candidates, each of which has a child in a round. >= 1."""
    hidden_weight: NonNegativeFloat = 1.0
    """Weight of the hidden states beside the logits while it searches. >= 0."""
    inherit: bool = False
    """The chosen student begins at the weights of the super-net, not at new ones."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.base

    def check_shapes(self, student: PreTrainedConfig, teacher: PreTrainedConfig) -> None:
        """Hidden states are those of a BERT."""
        super().check_shapes(student, teacher)
        if self.hidden_weight:
            _ = teacher.hidden_size

    @property
    def layer_space(self) -> LayerSpace:
        """The layers that it chooses from."""
        return LayerSpace(layers=self.layers, positions=self.positions)

    @property
    def _drawn(self) -> int:
        """Candidates before the first child."""
        return max(1, self.candidates // 4)

    def _strategy(self, seed: int, scores: Container[tuple[str, ...]]) -> OperationPriority:
        """Strategy that proposes children: legal ones whose operations have no score."""
        uniform, guided = self.layer_space.uniform, self.layer_space.guided
        settings = PrioritySettings(initial=self._drawn, parents=self.parents, uniform=(*uniform,))

        def accepts(child: Candidate) -> bool:
            layers = self.layer_space.read(child)
            return layers is not None and layers.operations not in scores

        return OperationPriority({**uniform, **guided}, seed, settings, accepts)

    def _proposed(self, strategy: OperationPriority, random: Random) -> Layers:
        """The next candidate: drawn at random while there are few, or where a child is illegal."""
        children = strategy.propose(1) if len(strategy.learned) >= self._drawn else []
        legal = [self.layer_space.read(child) for child in children]
        if child := next(filter(None, legal), None):
            return child
        tried = [choices for choices, _ in strategy.learned]
        drawn = (self.layer_space.drawn(random) for _ in range(TRIES))
        new = (layers for layers in drawn if layers.choices not in tried)
        return next(new, None) or self.layer_space.drawn(random)

    def _searched(self, problem: Problem, seed: int, progress: Progress) -> ChosenCell:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            plain = new_cell(self.base, problem)
            taught = problem.teacher.config.hidden_size if self.hidden_weight else self.width
            net = BiBranchNet(self.layers, plain, taught)
        net = to_device(net, problem.device)
        if self.hidden_weight:
            keep_states(problem, torch.float32, progress)
        scores: dict[tuple[str, ...], float] = {}
        strategy, random, rows = self._strategy(seed, scores), Random(seed), all_alpha(problem)
        steps, count = steps_of(problem, self.search_epochs, self.batch_size), self.candidates
        progress.begin("search", steps)
        losses, failed = list[Tensor](), list[Tensor]()
        for first in range(0, count, self.parents):
            mature = []
            for number in range(first, min(first + self.parents, count)):
                layers = self._proposed(strategy, random)
                candidate = net.take(layers.operations)
                its_steps = range(number * steps // count, (number + 1) * steps // count)
                trained = [*self._trained(candidate, its_steps, problem, seed, progress)]
                score = answer_score(candidate, rows, problem)  # 0 where a loss was not finite
                (losses if score else failed).extend(trained)
                mature += [(score, candidate)] if score else []
                scores[layers.operations] = score
                strategy.learn([(layers.choices, score)])
            for _, candidate in sorted(mature, key=itemgetter(0)):
                net.write_back(candidate)
        best = max(scores, key=scores.__getitem__)
        genotype = replace(self.base, operations=operations_of(best))
        curve = curve_of("search", losses or failed)
        return ChosenCell(genotype, curve, net.extract(best) if self.inherit else None)

    def _trained(
        self, candidate: Student, steps: range, problem: Problem, seed: int, progress: Progress
    ) -> Iterator[Tensor]:
        """The losses of its steps, which it makes meanwhile."""
        weights, graph = candidate.weights, candidate.model.graph
        rates = [self.learning_rate]

        def loss(batch: Batch, _: int) -> Tensor:
            answer, fits = candidate(batch.inputs), candidate.fits()
            return taught_loss(answer, graph, batch, problem, fits, self.hidden_weight)

        optimizer = PopulationOptimizer(weights, rates, len(steps), "linear")
        first, device = steps.start, problem.device
        batches = problem.train.shuffled(self.batch_size, seed, device, first=first)
        for of_step in training_steps(batches, weights, loss, optimizer, steps):
            progress.advance()
            yield of_step
