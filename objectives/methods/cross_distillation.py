"""Cross distillation after Bai et al. 2020: pruning with a handful of rows, no label, no training.

Units go by what the answer loses without them once the weights of the others have made up for it
(`surgeon.py`). Then, layer by layer, the weights that read the units of a block are those of least
squares between what the block gives and what the unpruned one gives (`side_by_side.py`). A block is
wrong for two reasons: for the units that it lost, and for the blocks before it, which feed it what
they should not. Cross distillation (CD) weighs the two up: its loss is mu of the squared error on
what enters the block of the unpruned model, and 1 - mu of that on what enters the pruned one's.
Soft cross distillation (SCD) mixes inputs in place of losses.

Unlike the paper: the loss is quadratic in the weights, so that by default they are solved for, once
their units are chosen, and not trained (commit 4a646a4 has the numbers); what the blocks before did
to the hidden state beside a block is for this one to make up for, too. `prox` chooses the units of
a block as the paper does, by proximal gradient steps; how many it keeps is as before.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from torch import Tensor
from transformers import BertForSequenceClassification

from objectives.compression.reconstruction import solved, stepped
from objectives.compression.side_by_side import Pair
from objectives.errors import PositiveFloat, PositiveInt, Share
from objectives.problem import Problem
from objectives.strategies.one_shot import OneShot
from objectives.strategies.ranking import per_cost
from objectives.strategies.surgeon import surgeon_scores
from objectives.students.bert.architecture import BertArchitecture
from objectives.students.bert.pretrained import Classifier
from objectives.text.data import Batch
from objectives.training.stages import Stage

_BATCH_SIZE = 32


@dataclass(frozen=True, kw_only=True)
class CrossDistillation(OneShot):
    """Cut what the others can make up for, then solve for their weights, layer by layer."""

    searchable: ClassVar[tuple[str, ...]] = ("heads", "ffn")

    stages: tuple[Stage, ...] = ()
    """None, as a few rows train nothing. With many, distillation goes on from what was solved."""
    rows: PositiveInt = 1024
    """Of train, drawn with the seed; all, if there are fewer. >= 1. Of their tokens the hidden
    states of both models stay in memory, 8 E bytes each. Nothing else is read."""
    mixes: Literal["inputs", "losses"] = "inputs"
    """What of the two paths is mixed: "inputs" is SCD, "losses" CD."""
    mu: Share = 0.6
    """Share of the loss on the unpruned model's path, with mixed losses. In [0, 1]."""
    alpha: Share = 0.75
    """Share of the unpruned model's path in what its own weights get, with mixed inputs; the rest
    is the pruned one's. In [0, 1]."""
    beta: Share = 0.75
    """Share of the pruned model's path in what its weights get, likewise; where both are 1 each
    model goes its own way, which is plain reconstruction. In [0, 1]."""
    damping: PositiveFloat = 0.1
    """How much the solution is held at the weights that the unpruned model has: of the mean square
    of what enters a weight. Few rows want more. > 0."""
    prox: Literal["closed", "hard", "soft"] = "closed"
    """Which units of a block stay: those that rank highest, whose weights then have a closed form;
    or those that proximal steps leave: "hard", of the largest weights on a falling schedule, as in
    the paper's code; "soft", by the group lasso of its text. Steps take minutes where the closed
    form takes seconds."""

    def idle(self) -> Mapping[str, str]:
        """Losses are mixed by mu, inputs by alpha and beta."""
        losses = self.mixes == "losses"
        names = ("alpha", "beta") if losses else ("mu",)
        reason = f"it only acts with mixes='{'inputs' if losses else 'losses'}'"
        return {**super().idle(), **dict.fromkeys(names, reason)}

    def scores(self, problem: Problem, seed: int) -> dict[str, Tensor]:
        """How far the answer moves without a unit, per cost."""
        scores = problem.once(
            ("surgeon scores", self.rows, self.damping, seed),
            lambda: surgeon_scores(problem, self._batches(problem, seed), self.damping),
        )
        return per_cost({space: scores[space] for space in self.spaces}, problem.budget.cost)

    def _found(self, problem: Problem, seed: int) -> tuple[BertArchitecture, Classifier]:
        """The units inside the budget, with their weights solved for; with `prox` as many units of
        each block, and their weights, as the steps leave."""
        chosen = self.choose(problem, seed)
        if self.prox == "closed":
            return chosen, self.student(problem, chosen, seed)
        batches = self._batches(problem, seed)
        return stepped(problem, chosen, batches, self.pairs, self.damping, self.prox)

    @property
    def pairs(self) -> Sequence[Pair]:
        """What the loss compares."""
        if self.mixes == "inputs":
            return [Pair(self.alpha, self.beta)]
        return [Pair(1.0, 0.0, self.mu), Pair(0.0, 1.0, 1 - self.mu)]

    def student(
        self, problem: Problem, architecture: BertArchitecture, seed: int
    ) -> BertForSequenceClassification:
        """The student with the weights behind its units solved for."""
        batches = self._batches(problem, seed)
        return solved(problem, architecture, batches, self.pairs, self.damping)

    def _batches(self, problem: Problem, seed: int) -> list[Batch]:
        drawn = problem.train.drawn(self.rows, np.random.default_rng(seed), _BATCH_SIZE)
        return [problem.train.batch(rows, problem.device) for rows in drawn]
