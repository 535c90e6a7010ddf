"""Single path one-shot (Guo et al. 2020): a super-net trained on one cell a step, then searched.

The cells of the training are drawn uniformly at random, so that the super-net knows nothing of the
search: all trials of a run share it, and it goes on after a kill. The search scores cells on alpha
with the weights of the super-net. The paper's strategy is evolution; random is the bar for it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from objectives.errors import PositiveInt
from objectives.methods.cells.base.choosing import Aimed, ChosenCell, scored
from objectives.methods.cells.base.shared_cells import SharedCells, shared_net
from objectives.problem import Problem
from objectives.progress import Progress
from objectives.strategies.evolution import Evolution, EvolutionSettings
from objectives.strategies.operation_priority import OperationPriority, PrioritySettings
from objectives.strategies.strategy import Places, Scored, Strategy, Uniform
from objectives.students.cells.graph import IDENTITY
from objectives.students.cells.graph_space import GraphSpace
from objectives.training.scoring import all_alpha, best_of

Searcher = Literal["random", "evolution", "priority"]


def strategy_of(name: Searcher, places: Places, seed: int, candidates: int) -> Strategy[Scored]:
    """A strategy whose sizes suit this many candidates."""
    if name == "evolution":
        population = max(1, candidates // 4)
        sample = max(1, population // 4)
        return Evolution(places, seed, EvolutionSettings(population=population, sample=sample))
    if name == "priority":
        return OperationPriority(places, seed, PrioritySettings(initial=max(1, candidates // 4)))
    return Uniform(places, seed)


@dataclass(frozen=True, kw_only=True)
class SinglePath(Aimed):
    """Search among the cells of one super-net that all trials share."""

    usual: ClassVar[tuple[str, ...]] = (IDENTITY, "conv3", "conv5", "conv7", "attention", "max3")

    strategy: Searcher = "evolution"
    """Who proposes: draws at random, evolution by tournament, or upper bounds ("priority")."""
    candidates: PositiveInt = 200
    """Cells that are scored. >= 1."""
    inherit: bool = False
    """The chosen cell begins at the weights of the super-net, not at new ones."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.shared

    @property
    def space(self) -> GraphSpace:
        """Each node reads two states; the output is of those nobody reads."""
        return GraphSpace(nodes=self.nodes, operations=self.names)

    @property
    def shared(self) -> SharedCells:
        """The training that all trials share; it does not depend on their learning rates."""
        return SharedCells(space=self.space, epochs=self.search_epochs, batch_size=self.batch_size)

    def _searched(self, problem: Problem, seed: int, progress: Progress) -> ChosenCell:
        net, curve = shared_net(self.shared, self.base, problem, progress, seed=seed)
        strategy = strategy_of(self.strategy, self.space.places, seed, self.candidates)
        rows = all_alpha(problem)

        def searched() -> Iterator[tuple[Mapping[str, Any], float]]:
            for _ in range(self.candidates):
                [proposed] = strategy.propose(1)
                trained = self.shared.canonical(proposed)
                [(_, score)] = scored(self, net, [trained], rows, problem)
                strategy.learn([(proposed, score)])
                yield trained, score

        best = best_of(searched(), self.candidates, progress)
        return ChosenCell(net.genotype(best), curve, net.extract(best) if self.inherit else None)
