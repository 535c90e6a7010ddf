"""Budget of a search: the hinge loss that steers into it, and the cut that meets it."""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

import torch
from torch import Tensor

from objectives.measures.cost import Cost
from objectives.students.bert.architecture import BertArchitecture, Widths

TargetSchedule = Literal["geometric", "linear", "cubic", "constant"]
"""Schedule by which the target ratio falls during a search."""

_MAY_BE_EMPTY = ("heads", "ffn", "layers")
"""Spaces in which a layer may keep nothing."""


@dataclass(frozen=True)
class Budget:
    """Scale of a budget: the cost, and its value at ratio 1."""

    cost: Cost
    """Cost of the student, cut or masked."""
    full: float
    """Cost at ratio 1: of the teacher, or of a student of another checkpoint."""

    def ratio(self, architecture: BertArchitecture) -> float:
        """Ratio of an architecture's cost to the cost at ratio 1."""
        return self.cost.exact(architecture) / self.full


def hinge_loss(
    expected: Tensor, actual: Tensor, target: Tensor, tolerance: Tensor, *, one_sided: bool = False
) -> Tensor:
    """+log E above the band [(1 - t) R, (1 + t) R], -log E below, 0 inside, edges included (Dong &
    Yang 2019, which leaves these open): (K,), as all arguments."""
    # `expected` is E, differentiable; `actual` is F, the cost of the units that are open at the
    # moment (or E itself), which alone decides the side; `target` is R in the unit of the cost;
    # `tolerance` is t, a share of R.
    upper = target if one_sided else (1 + tolerance) * target
    above = (actual > upper).to(expected.dtype)
    below = (actual < (1 - tolerance) * target).to(expected.dtype)
    return (above - below) * expected.log()


def scheduled_ratio(
    target_ratio: Tensor,
    progress: float,
    ramp: float,
    schedule: TargetSchedule = "geometric",
    whole: float = 1.0,
) -> Tensor:
    """Target ratio at `progress` in [0, 1]: it falls from `whole` to R, which it has at `ramp`."""
    # The steps of a search see the progress 0, 1/n, ..., (n - 1)/n: with a ramp of 1 the target of
    # the last is still just above R. The cut is made to R. "cubic" falls fast at first and slowly
    # at the end (Zhu & Gupta 2018).
    done = min(1.0, progress / ramp)
    if schedule == "geometric":
        return whole * (target_ratio / whole) ** done
    left = {"linear": 1 - done, "cubic": (1 - done) ** 3, "constant": 0.0}[schedule]
    return target_ratio + (whole - target_ratio) * left


def discretise(
    scores: Mapping[str, Tensor], cost: Cost, *, target: float, tolerance: float, threshold: float
) -> BertArchitecture:
    """Architecture inside the budget that keeps the units of highest score, (layers, *units_of) of
    each searched space; a missing space is kept whole."""
    # Heads, neurons and inputs are decided one by one; the dimensions of "qk" and "v" in steps, so
    # that the heads of a layer keep equally many: the r-th step opens the r-th best dimension of
    # each head, and its score is the mean of theirs. A layer with heads keeps at least one step,
    # and one input, of each kind; without heads they cost nothing and are dropped. What lies in a
    # layer that is not kept costs nothing and goes with it. A unit of score +inf is kept and one of
    # -inf is not, whatever the budget.
    lanes = _Lanes(scores, cost)
    low, high = (1 - tolerance) * target, (1 + tolerance) * target
    # Steps above the threshold, if that already lies in the band [(1 - t) R, (1 + t) R]. Without a
    # threshold, at infinity, there are none: a model with nothing in it may lie in the band, too.
    as_searched = lanes.forced + lanes.count(lanes.ranked[lanes.values > threshold])
    if threshold < math.inf and low <= lanes.cost_of(as_searched) <= high:
        return lanes.architecture(as_searched)
    # Else by score, each step that still fits below the target beside what is kept already.
    below = lanes.fill(lanes.forced, lanes.ranked, target)
    if lanes.cost_of(below) >= low:
        return lanes.architecture(below)
    # Below the band the cheap steps are used up, or the gap is smaller than a step. The number of
    # units of one kind, first of the most expensive, is changed by as little as possible until the
    # others can fill the rest. With "heads" and "ffn" that finds the band wherever it can be
    # reached; the caller compares `cost.exact` with it.
    for costly in lanes.kinds():
        counts = _other_costly_ones(lanes, costly, below, low, high)
        if counts is not None:
            return lanes.architecture(counts)
    return lanes.architecture(below)


def units_that_fit(scores: Mapping[str, Tensor], cost: Cost, *, limit: float) -> dict[str, Tensor]:
    """Keep the units of highest score within the limit, as `discretise` without a lower end."""
    lanes = _Lanes(scores, cost)
    return lanes.masks(lanes.fill(lanes.forced, lanes.ranked, limit))


def _other_costly_ones(
    lanes: "_Lanes", costly: Tensor, below: Tensor, low: float, high: float
) -> Tensor | None:
    """Counts inside the band with nearly as many `costly` units as `below`, if there are any."""
    costliest, others = lanes.ranked[costly[lanes.ranked]], lanes.ranked[~costly[lanes.ranked]]
    numbers, everything_else = range(len(costliest) + 1), lanes.forced + lanes.count(others)
    fewest = bisect_left(
        numbers, low, key=lambda n: lanes.cost_of(lanes.count(costliest[:n]) + everything_else)
    )
    too_many = bisect_right(
        numbers, high, key=lambda n: lanes.cost_of(lanes.forced + lanes.count(costliest[:n]))
    )
    taken = int((below - lanes.forced)[costly].sum())
    for number in sorted(range(fewest, too_many), key=lambda number: abs(number - taken)):
        counts = lanes.fill(lanes.forced + lanes.count(costliest[:number]), others, high)
        if lanes.cost_of(counts) >= low:
            return counts
    return None


def ranks_of(scores: Tensor) -> Tensor:
    """Rank of each unit along the last dimension: 0 for the highest, the first of equals before."""
    return scores.argsort(dim=-1, descending=True, stable=True).argsort(dim=-1)


class _Lanes:
    """The steps of a search, in lanes: those of one kind in one layer, best first. `counts`,
    (lanes,) or (..., lanes) int64, say how many of each lane are taken."""

    def __init__(self, scores: Mapping[str, Tensor], cost: Cost):
        self.scores = {space: score.detach().double().cpu() for space, score in scores.items()}
        self.cost = cost
        steps = {space: _steps(space, score) for space, score in self.scores.items()}
        self.rows = {space: score.shape[:2] for space, score in steps.items()}
        """(layers, rows) of each space: its lanes."""
        ends = list(accumulate(layers * rows for layers, rows in self.rows.values()))
        self.of_space = dict(zip(steps, map(slice, [0, *ends], ends), strict=True))
        """Where the lanes of each space lie."""
        self.lengths = torch.cat(
            [torch.full((score[..., 0].numel(),), score.shape[-1]) for score in steps.values()]
        )
        """The steps of each lane."""
        values = torch.cat([score.flatten() for score in steps.values()])
        order = values.argsort(descending=True, stable=True)
        lane_of = torch.arange(len(self.lengths)).repeat_interleave(self.lengths)[order]
        values = values[order]
        self.forced = self.count(lane_of[values == torch.inf])
        """Number of steps of each lane that are always kept."""
        decided = values.isfinite()
        self.values, self.ranked = values[decided], lane_of[decided]
        """The score and the lane of each step that is to be decided, by falling score."""

    def count(self, steps: Tensor) -> Tensor:
        return steps.bincount(minlength=len(self.lengths))

    def kinds(self) -> Iterator[Tensor]:
        """Lanes of each space with steps to decide, (lanes,) bool, first those that cost most."""
        spaces = list(self.of_space.values())
        one_less = self.lengths - torch.eye(len(self.lengths), dtype=torch.int64)
        for kind in self.prices(one_less[[lanes.start for lanes in spaces]]).argsort(stable=True):
            costly = torch.zeros(len(self.lengths), dtype=torch.bool)
            costly[spaces[int(kind)]] = True
            if costly[self.ranked].any():
                yield costly

    def fill(self, counts: Tensor, steps: Tensor, limit: float) -> Tensor:
        """Take the steps in order, each that fits below the limit beside what is taken."""
        while len(steps):
            # Costs never fall as steps are taken: the first that does not fit ends its lane.
            taken = counts
            fitting = bisect_right(
                range(1, len(steps) + 1),
                limit,
                key=lambda n: self.cost_of(taken + self.count(steps[:n])),
            )
            counts = counts + self.count(steps[:fitting])
            one_more = counts + torch.eye(len(counts), dtype=torch.int64)
            fits = self.prices(one_more) <= limit
            steps = steps[fitting + 1 :]  # the next does not fit, however a cost is rounded
            steps = steps[fits[steps]]
        return counts

    def cost_of(self, counts: Tensor) -> float:
        return self.prices(counts).item()

    def prices(self, counts: Tensor) -> Tensor:
        """Costs (...) of models (..., lanes), float64: int64 would be compared in float32."""
        layers: Tensor = self.cost.layer(widths := self._widths(counts)).double() * widths.layers
        return layers.sum(-1) + self.cost.fixed

    def architecture(self, counts: Tensor) -> BertArchitecture:
        masks = {space: mask.tolist() for space, mask in self.masks(counts).items()}
        return BertArchitecture.from_masks(self.cost.shape, masks)

    def masks(self, counts: Tensor) -> dict[str, Tensor]:
        """Masks that keep this many of the best units of each lane, in the shapes of the scores."""
        masks = {}
        for space, lanes in self.of_space.items():
            counts_kept = counts[lanes].view(self.rows[space])
            counts_kept = counts_kept[:, 0] if space in _MAY_BE_EMPTY else counts_kept.clamp_min(1)
            masks[space] = ranks_of(self.scores[space]) < counts_kept[..., None]
        return masks

    def _widths(self, counts: Tensor) -> Widths[Tensor]:
        """Remaining widths of each layer, each (..., layers)."""
        shape, slices = self.cost.shape, self.of_space
        full = {"heads": shape.heads, "ffn": shape.ffn, "layers": 1}
        full |= dict.fromkeys(("qk", "v"), shape.head_dim)

        def kept(space: str) -> Tensor:
            """(..., layers, rows)"""
            if space in slices:
                return counts[..., slices[space]].view(*counts.shape[:-1], *self.rows[space])
            size = full.get(space, shape.hidden)
            return counts.new_full((*counts.shape[:-1], shape.layers, 1), size)

        heads = kept("heads")[..., 0]
        inputs = kept("input_qkv" if "input_qkv" in slices else "input").clamp_min(1)
        inputs = (inputs * (heads > 0)[..., None]).expand(*inputs.shape[:-1], 3)
        return Widths(
            heads=heads,
            query_key=heads * kept("qk")[..., 0].clamp_min(1),
            value=heads * kept("v")[..., 0].clamp_min(1),
            query_inputs=inputs[..., 0],
            key_inputs=inputs[..., 1],
            value_inputs=inputs[..., 2],
            ffn=kept("ffn")[..., 0],
            layers=kept("layers")[..., 0],
        )


def _steps(space: str, score: Tensor) -> Tensor:
    """Scores of the steps, best first: (layers, rows, steps), a row for each set in a layer."""
    ranked = score.sort(dim=-1, descending=True).values
    if space in ("qk", "v"):
        ranked = ranked.mean(1)
    return ranked if ranked.ndim == 3 else ranked[:, None]
