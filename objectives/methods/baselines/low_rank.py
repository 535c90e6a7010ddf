"""Low rank: linear layers become two thinner ones, then the student is distilled.

The ranks are those of least added error per FLOP (or parameter, where the study counts these), by a
singular value decomposition whitened by what enters each layer. A layer whose factors would save
nothing stays whole. No unit leaves: heads and neurons stay as many."""

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import ClassVar, NamedTuple, cast

import torch
from torch import Tensor, nn
from transformers import BertForSequenceClassification

from objectives.device import to_device
from objectives.measures.cost import Cost, CostName
from objectives.problem import Problem
from objectives.pruning.importance import gradients_behind
from objectives.pruning.one_shot import OneShot
from objectives.pruning.reconstruction import held
from objectives.pruning.staged_method import Bits
from objectives.students.bert.architecture import FULL_BITS, BertArchitecture
from objectives.students.bert.cutting import cut, shape_of
from objectives.students.bert.linears import LINEARS
from objectives.students.bert.pretrained import Classifier
from objectives.students.bert.pruned_bert import PrunedBertForSequenceClassification
from objectives.students.bert.quantising import emptied

# A linear layer as two thinner ones: singular values whitened by what enters it.
#
# A weight W, (O, I), becomes U V, (O, r) times (r, I), which saves something below r = O I / (O +
# I) alone. With x what enters, and g the gradient of the logits with respect to what leaves,
#
#     A = sum over tokens of |g|^2 x x' = L L'       |(W - U V) L|^2 = sum of |g|^2 |(W - U V) x|^2
#
# The best U V L is W L with its r largest singular values alone, and the error is the sum of the
# squares of the others (Eckart & Young 1936; whitened as in SVD-LLM, Wang et al. 2024; the
# weights |g|^2 are ours). Padding and tokens that nobody reads count for nothing, and the errors
# of all layers can be compared: over O, what the squared logits move if an error may point
# anywhere.

_HOLD = 0.01
"""Damping: share of the mean square of an input dimension that is added, as rows are few."""

Place = tuple[int, int]
"""A layer, and an index of `LINEARS`."""


class Spectrum(NamedTuple):
    """W L: left vectors, (O, k), falling values, (k,), right vectors times L^-1, (k, I)."""

    left: Tensor
    values: Tensor
    right: Tensor

    @classmethod
    def of(cls, weight: Tensor, second: Tensor) -> "Spectrum":
        """Decompose W, (O, I), with A, (I, I), positive definite; in float64."""
        root = torch.linalg.cholesky(second.double())
        left, values, right = torch.linalg.svd(weight.double() @ root, full_matrices=False)
        right = torch.linalg.solve_triangular(root, right, upper=False, left=False)
        return cls(left.float(), values, right.float())

    def errors(self) -> Tensor:
        """The squared error of each rank from 0 on, (k + 1,), over O."""
        squares = torch.cat([self.values.square(), self.values.new_zeros(1)])
        return squares.flip(0).cumsum(0).flip(0) / len(self.left)

    def factors(self, rank: int) -> tuple[Tensor, Tensor]:
        """V, (r, I), and U, (O, r): rows of one as long as columns of the other learn alike."""
        left, right = self.left[:, :rank] * self.values[:rank].float(), self.right[:rank]
        tiny = torch.finfo(left.dtype).tiny  # of a weight that is all zeros
        lengths = (left.norm(dim=0).clamp_min(tiny) / right.norm(dim=1).clamp_min(tiny)).sqrt()
        return right * lengths[:, None], left / lengths


def spectra(problem: Problem) -> Mapping[Place, Spectrum]:
    """Spectra of all weights of the student's layers, made once a launch on the alpha split."""

    def work_out() -> dict[Place, Spectrum]:
        layers = problem.student_layers
        model = problem.student if layers is None else problem.teacher
        weights, moments = _linears(model), _moments(model, problem)
        return {
            (layer, index): Spectrum.of(weights[n, index].weight, held(moments[n, index], _HOLD))
            for layer, n in enumerate(layers or range(problem.shape.layers))
            for index in range(len(LINEARS))
        }

    return problem.once("spectra", work_out)


def _linears(model: BertForSequenceClassification) -> dict[Place, nn.Linear]:
    return {
        (n, index): cast("nn.Linear", layer.get_submodule(linear.name))
        for n, layer in enumerate(model.bert.encoder.layer)
        for index, linear in enumerate(LINEARS)
    }


def _moments(model: BertForSequenceClassification, problem: Problem) -> dict[Place, Tensor]:
    """A of each weight, (I, I) float64, without damping."""
    modules, total = _linears(model), dict[Place, Tensor]()
    batches = problem.alpha.in_order(problem.alpha.rows_with_gradients, problem.device)
    for _, entering, gradients in gradients_behind([*modules.values()], model, batches):
        for at, x, g in zip(modules, entering, gradients, strict=True):
            weighted = (x * g.norm(dim=-1, keepdim=True)).flatten(0, 1)
            total[at] = total.get(at, 0) + (weighted.T @ weighted).double()
    return total


def with_ranks(whole: BertArchitecture, ranks: Mapping[Place, int]) -> BertArchitecture:
    """The architecture with weights of these ranks; 0 leaves one whole."""
    layers = []
    for number, layer in enumerate(whole.layers):
        ranks_of_layer = tuple(ranks.get((number, index), 0) for index in range(len(LINEARS)))
        layers.append(replace(layer, ranks=ranks_of_layer if any(ranks_of_layer) else None))
    return replace(whole, layers=tuple(layers))


def ranks_within(found: Mapping[Place, Spectrum], cost: Cost, target: float) -> BertArchitecture:
    """Ranks of least error for each saved number at no more than the target; else the smallest."""
    steps = [step for at, spectrum in found.items() for step in _steps(at, spectrum)]
    steps.sort(key=itemgetter(0))
    full = BertArchitecture.full(cost.shape)

    def taken(number: int, looser: int = 0) -> BertArchitecture:
        ranks = {at: rank for _, at, rank, _ in steps[:number]}
        if looser:
            ranks[steps[number - 1][1]] += looser
        return with_ranks(full, ranks)

    number = bisect_left(range(len(steps)), -target, key=lambda n: -cost.exact(taken(n)))
    if not number:
        return full
    _, _, rank, most = steps[number - 1]
    spare = range(1, most - rank + 1)
    fit = bisect_left(spare, True, key=lambda more: cost.exact(taken(number, more)) > target)
    return taken(number, fit)


def _steps(at: Place, spectrum: Spectrum) -> Iterator[tuple[float, Place, int, int]]:
    """From the weight down to rank 1 along the lower hull of its errors."""
    # First to the rank of the lowest rate, then one by one. Of each the rate (the added error for
    # each saved number), the rank, and the one that would save least in its place.
    outputs, inputs = len(spectrum.left), spectrum.right.shape[1]
    errors, both = spectrum.errors().tolist(), outputs + inputs
    most = (outputs * inputs - 1) // both
    rates = [errors[rank] / (outputs * inputs - rank * both) for rank in range(1, most + 1)]
    if rates:
        first = rates.index(min(rates)) + 1
        yield min(rates), at, first, most
        for rank in range(first - 1, 0, -1):
            yield (errors[rank] - errors[rank + 1]) / both, at, rank, rank


@torch.no_grad()
def factored(
    student: BertForSequenceClassification,
    architecture: BertArchitecture,
    found: Mapping[Place, Spectrum],
) -> PrunedBertForSequenceClassification:
    """The student with weights of the architecture's ranks, in evaluation mode on the CPU."""
    full = BertArchitecture.full(shape_of(student.config))
    uncut = cut(student.state_dict(), student.config, full)
    ranks = [{"ranks": layer.ranks and list(layer.ranks)} for layer in architecture.layers]
    model, state = emptied(uncut.config, {}, ranks), uncut.state_dict()
    for (number, index), spectrum in found.items():
        if rank := architecture.layers[number].rank(index):
            name = f"bert.encoder.layer.{number}.{LINEARS[index].name}"
            reduce, expand = spectrum.factors(rank)
            state |= {f"{name}.reduce.weight": reduce, f"{name}.expand.weight": expand}
            state[f"{name}.expand.bias"] = state.pop(f"{name}.bias")
            del state[f"{name}.weight"]
    model.load_state_dict(state)
    return model


@dataclass(frozen=True, kw_only=True)
class LowRank(OneShot):
    """Weights as products of two thinner ones, of the ranks that the budget allows.

    The embeddings may have few bits and word pieces may leave, but weights of low rank are not
    quantised here: export with int8, which quantises the factors."""

    costs: ClassVar[frozenset[CostName]] = frozenset({"flops", "params", "bytes", "bitops"})
    searchable: ClassVar[tuple[str, ...]] = ()
    spaces: ClassVar[tuple[str, ...]] = ()  # type: ignore[misc]
    weight_bits: ClassVar[Bits] = FULL_BITS  # type: ignore[misc]

    def inactive(self) -> Mapping[str, str]:
        return {
            **super().inactive(),
            "tolerance": "ranks always fill the budget R",
            "input_bits": "weights of low rank are not quantised",
        }

    def choose(self, problem: Problem, seed: int) -> BertArchitecture:
        target = self.target_ratio * problem.budget.full
        return ranks_within(spectra(problem), problem.budget.cost, target)

    def student(self, problem: Problem, architecture: BertArchitecture, seed: int) -> Classifier:
        student = factored(problem.student, architecture, spectra(problem))
        return to_device(student, problem.device)
