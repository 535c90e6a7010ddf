"""AutoBERT-Zero (Gao et al. 2022): evolution of layers, each a formula of attention or a light
convolution, by operation priority on a bi-branch super-net."""

# What is illegal is rejected before it is trained. Each candidate takes its weights from the
# super-net, learns for a few steps what the teacher says, its logits and its hidden states, and is
# scored on alpha. After a round, as many candidates as parents, the weights are written back; where
# several children have trained one weight, that of the best stays. The best candidate of all is
# trained on the teacher's logits.

from collections.abc import Container, Iterator
from dataclasses import dataclass, replace
from operator import itemgetter
from random import Random

import torch
from torch import Tensor
from transformers.configuration_utils import PreTrainedConfig

from objectives.device import to_device
from objectives.errors import NonNegativeFloat, PositiveInt
from objectives.methods.cells.auto_bert_zero.bi_branch import BiBranchNet, Student, operations_of
from objectives.methods.cells.auto_bert_zero.layer_space import Layers, LayerSpace
from objectives.methods.cells.base.choosing import CellChoice, ChosenCell
from objectives.methods.cells.base.learning import new_cell, taught_loss
from objectives.problem import Problem
from objectives.progress import Progress
from objectives.strategies.operation_priority import OperationPriority, PrioritySettings
from objectives.strategies.strategy import TRIES, Candidate
from objectives.text.data import Batch
from objectives.training.fitting import curve_of, steps_of, training_steps
from objectives.training.optimisation import PopulationOptimizer
from objectives.training.scoring import all_alpha, answer_score
from objectives.training.teacher_states import keep_states


@dataclass(frozen=True, kw_only=True)
class AutoBertZero(CellChoice):
    """Search for the operations of layers, formulas of attention among them."""

    layers: PositiveInt = 2
    """Layers of the student, each with a feed-forward behind it. >= 1."""
    positions: PositiveInt = 8
    """At most this many functions of a formula. >= 1."""
    candidates: PositiveInt = 60
    """Trained and scored, each with an equal share of the search's steps; the first quarter is
    drawn at random. >= 1."""
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
        """Who proposes children: legal ones whose operations have no score."""
        uniform, guided = self.layer_space.uniform, self.layer_space.guided
        settings = PrioritySettings(
            initial=self._drawn, parents=self.parents, uniform=tuple(uniform)
        )

        def accepts(child: Candidate) -> bool:
            layers = self.layer_space.read(child)
            return layers is not None and layers.operations not in scores

        return OperationPriority({**uniform, **guided}, seed, settings, accepts)

    def _proposed(self, strategy: OperationPriority, random: Random) -> Layers:
        """The next candidate: drawn at random while there are few, or where a child
        is illegal after many tries."""
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
        return ChosenCell(
            replace(self.base, operations=operations_of(best)),
            curve_of("search", losses or failed),
            net.extract(best) if self.inherit else None,
        )

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
        for of_step in training_steps(
            problem, weights, loss, optimizer, steps, batch_size=self.batch_size, seed=seed
        ):
            progress.advance()
            yield of_step
