"""Width search: each layer chooses among candidate widths, two sampled at a time."""

# After transformable architecture search (TAS, Dong & Yang 2019), which shrinks convolutions. Here
# a layer's widths are its number of heads and of FFN neurons; width 0 leaves the part out. The
# width of the space "layers" is the depth: the number of layers that stay whole. alpha says how
# likely each candidate is. Every step draws two of them by Gumbel-softmax for each layer, mixes
# them, and trains the weights by distillation; then alpha learns, on other data and with draws of
# its own, from the task loss plus lambda times the FLOPs hinge. The temperature falls all along. At
# the end the likeliest widths are cut, and distilled.

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar, Self

import torch
from torch import Tensor
from torch.nn import functional
from transformers.configuration_utils import PreTrainedConfig

from objectives.device import on_device
from objectives.errors import NonNegativeFloat, PositiveFloat, UserError, check_ranges
from objectives.measures.budget import hinge_loss, ranks_of
from objectives.problem import Problem
from objectives.progress import Progress
from objectives.pruning.descending_alpha import AlphaAdam, DescendingAlpha
from objectives.pruning.importance import importance_of_student
from objectives.pruning.staged_method import StagedMethod, check_searches
from objectives.pruning.staged_search import staged_search
from objectives.search_method import Outcome
from objectives.students.bert.architecture import BertArchitecture, BertShape, units_of
from objectives.students.bert.cutting import shape_of
from objectives.training.losses import task_loss
from objectives.training.stage_training import StageTraining
from objectives.training.stages import Stage


def gumbel_noise(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Draws of Gumbel(0, 1), on the CPU: argmax(log p + noise) falls on i with probability p_i."""
    return -torch.empty(shape).exponential_(generator=generator).log()


def draw_two(probabilities: Tensor, noise: Tensor) -> Tensor:
    """Two indices of the last axis, one after the other, without replacement: (..., 2) int64."""
    # The two largest log p + Gumbel noise (Vieira 2014; Kool et al. 2019): what torch.multinomial
    # does, but the draws of one row do not depend on how many rows there are.
    return (probabilities.log() + noise).topk(2, dim=-1).indices


def two_sampled(alpha: Tensor, noise: Tensor, lots: Tensor, temperature: float) -> Tensor:
    """Weights of the candidates on the last axis of alpha: two above 0, which sum to 1."""
    # Dong & Yang 2019 (TAS), as their code: the two are drawn from softmax((log softmax(alpha) +
    # noise) / temperature), without a gradient, and weighted by a softmax of these two. Their own
    # draw needs Gumbel noise too: `lots`. Both are of the shape of one student's alpha.
    perturbed = (alpha.log_softmax(-1) + noise) / temperature
    two = draw_two(perturbed.detach().softmax(-1) + 1e-7, lots)
    weights = perturbed.gather(-1, two).softmax(-1).clamp_min(torch.finfo(alpha.dtype).tiny)
    return torch.zeros_like(perturbed).scatter(-1, two, weights)


@dataclass(frozen=True, kw_only=True)
class WidthSearch(StagedMethod):
    """Search for the widths of the layers (TAS). The usual knobs are those of `per_slot`.

    On CoLA it is behind `FisherSearch`, which ranks the units once (docs/comparison.md)."""

    per_slot: ClassVar[frozenset[str]] = StagedMethod.per_slot | {"flops_weight", "grad_rescale"}
    searchable: ClassVar[tuple[str, ...]] = ("heads", "ffn", "layers")

    flops_weight: NonNegativeFloat = 2.0
    """lambda: weight of the FLOPs loss beside the task loss of alpha. >= 0."""
    grad_rescale: PositiveFloat = 0.1
    """kappa: step size of alpha's optimiser. > 0."""
    stages: tuple[Stage, ...] = (
        Stage(name="search", epochs=2, searches=True),
        Stage(name="recover", epochs=1),
    )
    """Stages of the weights, those that search first."""
    spaces: tuple[str, ...] = ("heads", "ffn")
    """heads, ffn and layers, or some of them."""
    shares: tuple[float, ...] = (0, 0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1)
    """Candidates, shares of a layer's units and of layers: two or more, rising from >= 0 to 1."""
    temperature: tuple[PositiveFloat, PositiveFloat] = (10.0, 0.1)
    """Temperature of the Gumbel-softmax at the start and at the end, linear between. > 0."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_searches(self)
        rising = len(self.shares) > 1 and all(low < high for low, high in pairwise(self.shares))
        good = rising and self.shares[0] >= 0 and self.shares[-1] == 1
        check_ranges(self, shares=(good, "two or more, rising from >= 0 to 1"))

    def check_shapes(self, student: PreTrainedConfig, teacher: PreTrainedConfig) -> None:
        super().check_shapes(student, teacher)
        for space in self.spaces:
            units = _units(shape_of(student), space)
            if len(_candidates(self.shares, units)) < 2:
                where = "" if space == "layers" else " of a layer"
                raise UserError(
                    f"WidthSearch.shares is {self.shares}: all of them keep the same number of the "
                    f"{units} {space}{where}, so there is nothing to search"
                )

    @classmethod
    def search(
        cls, members: Sequence[Self], problem: Problem, *, seed: int, progress: Progress
    ) -> Iterator[Outcome]:
        alpha = WidthAlpha(members, problem, seed)
        return staged_search(members, problem, alpha, seed=seed, progress=progress)


class WidthAlpha(DescendingAlpha):
    """The alpha of a population: (K, rows, candidates), a row for each layer, one for the depth."""

    # A layer of width c keeps its c units of highest Fisher information, and so a model its layers.

    members: Sequence[WidthSearch]
    method: WidthSearch
    from_train = False

    def __init__(self, members: Sequence[WidthSearch], problem: Problem, seed: int):
        super().__init__(members, problem, seed)
        self.batches = problem.alpha.shuffled(self.method.batch_size, seed, problem.device)
        shape, spaces, device = problem.shape, self.method.spaces, problem.device
        numbers = {s: _candidates(self.method.shares, _units(shape, s)) for s in spaces}
        self.widths = {space: torch.tensor(of_space) for space, of_space in numbers.items()}
        """The candidates of each space, rising."""
        inside = {s: torch.arange(int(w[-1])) < w[:, None] for s, w in self.widths.items()}
        self.reach = {space: mask.float().to(device) for space, mask in inside.items()}
        """1 for each position within a candidate, else 0: (candidates, units)."""
        importance = importance_of_student(problem, spaces, "loss")
        rows_of = {s: value.mT if s == "layers" else value for s, value in importance.items()}
        self.ranks = {space: ranks_of(rows).to(device) for space, rows in rows_of.items()}
        """Rank of each unit in its row, 0 the best: (rows, units)."""
        self.alpha = {}
        for space, widths in self.widths.items():
            # All but equal, and the same for all students; 0.01 N(0, 1) as the paper's code.
            rows = len(self.ranks[space])
            start = 0.01 * torch.randn(rows, len(widths), generator=self.generator)
            every = start.expand(len(members), -1, -1).clone()
            self.alpha[space] = every.to(device).requires_grad_()
        self.optimizer = AlphaAdam(self.alpha, self.step_size)

    def masks(self, progress: float) -> dict[str, Tensor]:
        """A sample: two widths of each layer, mixed; and all depths, as in the paper."""
        first, last = self.method.temperature
        temperature = first + (last - first) * progress
        sampled = {}
        for space, alpha in self.alpha.items():
            # The same draws for all students, so that no trial depends on its neighbours.
            drawn = gumbel_noise((2, *alpha.shape[1:]), self.generator)
            noise, lots = on_device(drawn, self.problem.device)
            if space == "layers":
                shares = ((alpha.log_softmax(-1) + noise) / temperature).softmax(-1)
            else:
                shares = two_sampled(alpha, noise, lots, temperature)
            sampled[space] = self._of_units(space, self._survival(space, shares))
        return sampled

    def learn(
        self, training: StageTraining, masks: Mapping[str, Tensor], progress: float
    ) -> dict[str, Tensor]:
        """A step against the task loss, of a sample of its own, and lambda times the hinge."""
        batch, budget = next(self.batches), self.problem.budget
        loss = task_loss(training.population.logits(batch, self.masks(progress)), batch.labels)
        shares = {space: alpha.softmax(-1) for space, alpha in self.alpha.items()}
        chosen = {s: functional.one_hot(p.argmax(-1), p.shape[-1]).to(p) for s, p in shares.items()}
        expected, actual = (
            budget.cost.expected(
                {s: self._of_units(s, self._survival(s, part)) for s, part in parts.items()}
            )
            for parts in (shares, chosen)
        )
        hinge = hinge_loss(expected, actual, self.target_ratio * budget.full, self.tolerance)
        self.optimizer.step(self.gradients(loss), self.gradients(self.flops_weight * hinge))
        return {
            "alpha_loss": loss.detach(),
            "expected_ratio": expected.detach() / budget.full,
            "open_ratio": actual / budget.full,
        }

    def architecture(self, index: int) -> BertArchitecture:
        """The likeliest widths, and if these miss the budget, the nearest that meet it."""
        # A layer's next unit goes by how likely the layer is wider than that: from one candidate to
        # the next it falls evenly, so that widths between candidates can meet a budget exactly.
        positions = {s: self.positions(s, value.double()) for s, value in self.of(index).items()}
        scores = {s: self._of_units(s, row[None])[0] for s, row in positions.items()}
        return self.members[index].within_budget(scores, self.problem, threshold=1.0)

    def positions(self, space: str, alpha: Tensor) -> Tensor:
        """Scores of a row's positions, (rows, units), falling; above 1 in the likeliest width."""
        widths, share = self.widths[space], alpha.softmax(-1)
        index = torch.arange(int(widths[-1]))
        candidate = torch.searchsorted(widths, index, right=True)  # the least that is wider
        below = torch.cat([torch.zeros(1, dtype=widths.dtype), widths])[candidate]
        wider = share.flip(-1).cumsum(-1).flip(-1)[:, candidate]
        way = (index - below) / (widths[candidate] - below)
        likeliest = widths[share.argmax(-1)]
        return wider - share[:, candidate] * way + (index < likeliest[:, None])

    def _survival(self, space: str, shares: Tensor) -> Tensor:
        """The share of the candidates that are wider than each position: (K, rows, units)."""
        return shares @ self.reach[space].to(shares.dtype)

    def _of_units(self, space: str, positions: Tensor) -> Tensor:
        """(K, rows, positions) as (K, layers, *units_of)."""
        ranks = self.ranks[space].to(positions.device)
        of_units = positions.gather(-1, ranks.expand(len(positions), -1, -1))
        return of_units.mT if space == "layers" else of_units


def _units(shape: BertShape, space: str) -> int:
    return shape.layers if space == "layers" else units_of(shape, space)[0]


def _candidates(shares: Sequence[float], units: int) -> list[int]:
    """The widths of a layer of this many units, rising; of equal ones one stays."""
    return sorted({round(share * units) for share in shares})
