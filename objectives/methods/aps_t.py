"""APS-T (Wang et al. 2020): search widths, whose candidates share one student less and less."""

# The weights of each width are projected from the student's. In a warm-up widths are drawn at
# random and share nearly all. Then a controller learns from their scores by REINFORCE, while the
# projections move apart. In the end the best of ten draws, brought into the budget width by width,
# is cut, its projected weights as plain ones, and distilled.

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise, product
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor
from torch.nn import functional

from objectives.device import matmul_dtype, on_device
from objectives.errors import NonNegativeFloat, PositiveFloat, ShareBelowOne, check_ranges
from objectives.measures.budget import ranks_of
from objectives.problem import Problem
from objectives.progress import Progress
from objectives.pruning.importance import importance_of_student
from objectives.pruning.slices import Model, Order
from objectives.pruning.staged_method import StagedMethod
from objectives.pruning.staged_search import Chosen, staged_search
from objectives.search_method import Outcome
from objectives.strategies.controller import Controller, ControllerSettings
from objectives.students.bert.architecture import BertArchitecture, BertShape
from objectives.students.bert.cutting import cut
from objectives.students.bert.linears import AXES, LINEARS, POSITION_BIAS
from objectives.text.data import Batch
from objectives.training.population import Population
from objectives.training.scoring import all_alpha, best_of, logits_score
from objectives.training.stage_training import StageTraining
from objectives.training.stages import RECOVER, Stage
from objectives.training.teacher_states import keep_states

# Weights of each width as projections of one student's (APS, Wang et al. 2020).
#
# A layer of U units, heads or neurons, has for each width o a matrix P_o, (U, o), whose columns
# have norm 1: unit j of that width is the mix of all units that column j says. A head is mixed
# whole, its query, key, value and output alike, so that its attention is that of a head; a neuron
# in both matrices of its layer; biases as rows are. Two widths share the squared norm of the
# covariance of their weights, if those of the student are independent with variance 1. But for a
# constant factor:
#
#     Phi = the sum of ||P_o^T P_q||^2 over widths o <= q, layers and kinds of units.
#
# With columns of the identity a projection is a choice of units. The first of an order for each
# width ("ordinal": the slices of `slices.py`) share most; choices that use all units equally
# often ("independent") least.

Sharing = Literal["ordinal", "independent", "transition"]
"""Kind of projections: a choice of units, or at first nearly "ordinal" and then moved."""


class Projections(dict[str, dict[int, Tensor]]):
    """Projections by kind of units and width: P of all layers, (layers, U, width)."""

    def __init__(self, sharing: Sharing, orders: Mapping[str, Tensor], shares: Sequence[float]):
        """`orders` are of each kind of units, (layers, U) int64, the most important first. Widths
        are shares of U, rounded, at least 1."""
        super().__init__({space: {} for space in orders})
        generator = torch.Generator().manual_seed(0)
        for space, order_LU in orders.items():
            units, begun = order_LU.shape[1], 0
            for width in dict.fromkeys(max(1, round(share * units)) for share in shares):
                chosen_LO = order_LU.roll(-begun, 1)[:, :width].sort(-1).values
                columns_LUO = functional.one_hot(chosen_LO, units).mT.float()
                if sharing == "independent":  # the next width goes on where this one ends
                    begun += width
                if sharing == "transition":  # at "ordinal" itself Phi is stationary
                    noise = 1e-3 * torch.randn(columns_LUO.shape, generator=generator)
                    columns_LUO = functional.normalize(columns_LUO + noise.to(columns_LUO), dim=1)
                self[space][width] = columns_LUO

    @torch.no_grad()
    def separate(self, rate: float) -> Tensor:
        """Make a step on Phi's gradient, 2 (P_o P_o^T + sum_q P_q P_q^T) P_o; returns old Phi."""
        twice = []
        for of_widths in self.values():
            shared = torch.stack([mix @ mix.mT for mix in of_widths.values()]).sum(0)
            twice.append(shared.square().sum())
            for width, mix in of_widths.items():
                inner = mix.mT @ mix
                twice.append(inner.square().sum())
                gradient = 2 * (shared @ mix + mix @ inner)
                of_widths[width] = functional.normalize(mix - rate * gradient, dim=1)
        return torch.stack(twice).sum()[None] / 2

    def units(self, model: Model, shape: BertShape) -> BertArchitecture:
        """Units of the largest weights in a model of these widths: of a choice the chosen ones."""
        masks = {}
        for space, of_widths in self.items():
            widths = [getattr(layer, space) for layer in model]
            weight = [of_widths[width][n].square().sum(-1) for n, width in enumerate(widths)]
            ranked = ranks_of(torch.stack(weight).cpu())
            masks[space] = (ranked < torch.tensor(widths)[:, None]).tolist()
        return BertArchitecture.from_masks(shape, masks)

    def applied(self, population: Population, model: Model) -> Population:
        """Student of these widths from the weights of a population of one; differentiable."""
        weights = dict(population.weights)
        cut = (*LINEARS, POSITION_BIAS)
        for space, layer, linear, axis in product(self, range(len(model)), cut, (1, 2)):
            if linear[axis] in (space, *AXES[space]):
                mix = self[space][getattr(model[layer], space)][layer]
                for part in ("weight", "bias") if axis == 1 else ("weight",):
                    name = f"bert.encoder.layer.{layer}.{linear.name}.{part}"
                    if linear is not POSITION_BIAS:
                        weights[name] = _mixed(weights[name], axis, mix)
                    elif name in weights:  # added to products of two factors, each mixed
                        weights[name] = _mixed(weights[name], axis, mix.square())
        return replace(population, weights=weights, widths=(model,), padded=model)


def _mixed(weight: Tensor, axis: int, mix_UO: Tensor) -> Tensor:
    """A weight whose units along an axis, of one or more rows each, become mixes of them."""
    by_unit = weight.movedim(axis, -1).unflatten(-1, (len(mix_UO), -1))
    return torch.einsum("...up,uo->...op", by_unit, mix_UO).flatten(-2).movedim(-1, axis)


_EVERY = 8  # steps; one of the projections takes as long as three of a TinyBERT on a CPU


@dataclass(frozen=True, kw_only=True)
class ApsT(StagedMethod):
    """Search of widths by a controller, on projections of one student."""

    searchable: ClassVar[tuple[str, ...]] = ("heads", "ffn")

    sharing: Sharing = "transition"
    """Units that candidates share: "ordinal", the first units; "independent", as few as possible;
    or "transition", at first nearly all and then fewer and fewer."""
    shares: tuple[float, ...] = (0.1, 0.25, 0.5, 0.75, 1.0)
    """Widths of a layer, shares of its heads and neurons, in (0, 1], rising; the least bound R."""
    warmup: ShareBelowOne = 1 / 3
    """Share of the search in which widths are drawn at random and projections rest. In [0, 1)."""
    projection_rate: float = 0.1
    """Step size of the projections on Phi, at every eighth step of the search, times the share of
    the FLOPs that is to go. In (0, 0.1]."""
    cost_power: NonNegativeFloat = 0.1
    """Power of cost over R by which the score of a too expensive candidate is divided. >= 0."""
    grad_rescale: PositiveFloat = 1e-2
    """kappa: step size of the controller's Adam. > 0."""
    entropy_weight: NonNegativeFloat = 4e-3
    """Weight of the entropy of the controller's draws in its loss. >= 0."""
    stages: tuple[Stage, ...] = (
        Stage(name="search", epochs=6, learning_rate=6e-4, loss="prediction+hidden", searches=True),
        RECOVER,
    )
    """The search, a candidate each step, and what the cut student goes through after it."""

    def __post_init__(self) -> None:
        super().__post_init__()
        rising = self.shares and all(a < b for a, b in pairwise((0, *self.shares, 1 + 1e-9)))
        losses = [stage.loss for stage in self.stages if stage.searches]
        searches = losses in (["prediction"], ["prediction+hidden"])
        check_ranges(
            self,
            shares=(bool(rising), "one or more, rising in (0, 1]"),
            projection_rate=(0 < self.projection_rate <= 0.1, "in (0, 0.1]"),
            stages=(searches, "one that searches, its loss not 'intermediate', then others"),
        )

    def inactive(self) -> Mapping[str, str]:
        inactive = dict(super().inactive())
        if self.sharing != "transition":
            inactive["projection_rate"] = f"sharing is '{self.sharing}'"
        return inactive

    @classmethod
    def search(
        cls, members: Sequence[Self], problem: Problem, *, seed: int, progress: Progress
    ) -> Iterator[Outcome]:
        for slot, member in enumerate(members):
            search = _Search(member, problem, seed)
            best = search.found(progress)
            units = search.projections.units(search.model(best), problem.shape)
            student = cut(problem.student.state_dict(), problem.student.config, units)
            student.load_state_dict(search.student(best).slot(0))
            finish = partial(staged_search, problem=problem, seed=seed, progress=progress)
            begun, curves = [student], [search.training.curves()[0]]
            for outcome in finish([member], alpha=Chosen([units]), students=begun, curves=curves):
                yield replace(outcome, slot=slot)


class _Search:
    """The training of a student each step of which is at the widths of one candidate."""

    def __init__(self, method: ApsT, problem: Problem, seed: int):
        self.method, self.problem, stage = method, problem, method.stages[0]
        self.alpha = problem.alpha.shuffled(method.batch_size, seed, problem.device)
        dtype = matmul_dtype(method.precision, problem.device)
        self.population = Population.of([problem.student], dtype)
        share = method.lr_scale(problem, None)
        # A student that hardly learns cannot follow projections that move at their full rate.
        self.projection_rate = method.projection_rate * share
        rates = [stage.learning_rate * share]
        begun = partial(StageTraining, batch_size=method.batch_size, seed=seed)
        self.training = begun(problem, [0], self.population, stage, rates, None)
        scores = importance_of_student(problem, method.spaces, "logits")
        order = Order.by_scores(problem.shape, scores)
        orders = {space: on_device(getattr(order, space), problem.device) for space in scores}
        self.projections = Projections(method.sharing, orders, method.shares)
        spaces = product(range(problem.shape.layers), method.spaces)
        places = {f"{space}[{layer}]": tuple(self.projections[space]) for layer, space in spaces}
        rate, bonus = method.grad_rescale, method.entropy_weight
        settings = ControllerSettings(learning_rate=rate, baseline_decay=0.99, entropy_weight=bonus)
        self.controller = Controller(places, seed, settings)

    def found(self, progress: Progress) -> Mapping[str, Any]:
        method, training, controller = self.method, self.training, self.controller
        sharing = self.projections.separate(0.0)
        if training.stage.loss == "prediction+hidden":
            keep_states(self.problem, self.population.matmul_dtype, progress)
        for step, batch in enumerate(training.batches(0, progress)):
            if step >= method.warmup * training.steps:
                (proposed,) = controller.propose(1)
                controller.learn([(proposed, self.score(proposed, [next(self.alpha)]))])
                if method.sharing == "transition" and step % _EVERY == 0:
                    sharing = self.projections.separate(self.projection_rate)
            (drawn,) = controller.propose(1)
            loss = training.loss(self.student(drawn), batch, {})
            loss.sum().backward()
            training.optimizer.step()
            training.measured.append({"loss": loss.detach(), "sharing": sharing})
            progress.advance()
        near = [self.nearest(candidate) for candidate in controller.propose(10)]
        least, rows = min(map(self.miss, near)), all_alpha(self.problem)
        left = [candidate for candidate in near if self.miss(candidate) == least]
        return best_of(((c, self.score(c, rows)) for c in left), len(left), progress)

    def student(self, candidate: Mapping[str, Any]) -> Population:
        return self.projections.applied(self.population, self.model(candidate))

    @torch.no_grad()
    def score(self, candidate: Mapping[str, Any], rows: Sequence[Batch]) -> float:
        """Score its answers to rows of alpha, less where it costs more than R."""
        student = self.student(candidate)
        score = logits_score(lambda batch: student.logits(batch)[0], rows, self.problem)
        return score / float(max(1.0, self.ratio(candidate)) ** self.method.cost_power)

    def nearest(self, candidate: Mapping[str, Any]) -> Mapping[str, Any]:
        """Candidate in the budget, or as near as changes of one width after another bring it."""
        for widths_of in [self.controller.places.items()] * len(candidate):
            near = ({**candidate, name: width} for name, widths in widths_of for width in widths)
            candidate = min([candidate, *near], key=self.miss)
        return candidate

    def miss(self, candidate: Mapping[str, Any]) -> float:
        """Distance of its cost from the band, as a share of R."""
        return max(0.0, abs(self.ratio(candidate) - 1) - self.method.tolerance)

    def ratio(self, candidate: Mapping[str, Any]) -> float:
        budget, model = self.problem.budget, self.model(candidate)
        cost = budget.cost.fixed + sum(budget.cost.layer(widths) for widths in model)
        return float(cost / budget.full / self.method.target_ratio)

    def model(self, candidate: Mapping[str, Any]) -> Model:
        """Its widths; of units that are not searched all."""
        layers = []
        for n, uncut in enumerate(self.population.widths[0]):
            heads = candidate.get(f"heads[{n}]", uncut.heads)
            size, ffn = heads * self.population.head_dim, candidate.get(f"ffn[{n}]", uncut.ffn)
            layers.append(uncut._replace(heads=heads, query_key=size, value=size, ffn=ffn))
        return tuple(layers)
