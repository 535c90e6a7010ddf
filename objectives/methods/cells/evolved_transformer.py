"""Evolved Transformer (So et al. 2019): evolution from the Transformer, with dynamic hurdles."""

# A candidate is a cell that is trained alone, from new weights, in increments. The first is the
# Transformer: positions, attention, feed-forward, each beside an identity, with the norms in front.
# The next are drawn at random; then each is a child: the best of a sample of the population with
# some places drawn again. A child that reaches the hurdle behind an increment keeps weights and
# optimiser and gets the next one. In the end the best go through all increments, and the best of
# these is the cell.

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from operator import itemgetter
from statistics import fmean
from typing import Any, ClassVar, Literal, NamedTuple, TypeVar

from torch import Tensor

from objectives.errors import PositiveFloat, PositiveInt, PositiveShare, UserError, check_ranges
from objectives.methods.cells.base.choosing import Aimed, ChosenCell
from objectives.methods.cells.base.learning import loss_of
from objectives.problem import Problem
from objectives.progress import Progress
from objectives.strategies.evolution import Evolution, EvolutionSettings
from objectives.strategies.strategy import TRIES
from objectives.students.cells.cell_classifier import CellForSequenceClassification
from objectives.students.cells.genotype import Genotype
from objectives.students.cells.graph import IDENTITY, NONE, Graph
from objectives.students.cells.graph_space import GraphSpace
from objectives.training.fitting import curve_of, steps_of, trainable, training_steps
from objectives.training.optimisation import PopulationOptimizer
from objectives.training.scoring import all_alpha, answer_score, best_of

# Progressive dynamic hurdles: who of a search's candidates is trained further.
#
# So et al. 2019 (Evolved Transformer). Training comes in increments; whose fitness reaches the
# hurdle behind an increment gets the next one. Two readings of the source are here:
#
#     dynamic  the paper's (`Hurdles`). Hurdles act on later candidates. There is none at first;
#              each that is added is the mean fitness of those in the population that were
#              trained up to it and no further.
#     static   successive halving by means (`judged_together`). All candidates are trained
#              together, and the mean of those that are left is the hurdle behind each increment.
#
# A fitness equal to the hurdle passes: candidates that are all alike are all trained further.

Train = TypeVar("Train", bound=Callable[[int], float])
"""Trains one candidate for this many more steps, and gives its fitness; the higher the better."""


class Judged(NamedTuple):
    """How far a candidate came: its fitness after its last increment, and their number."""

    fitness: float
    increments: int


class Hurdles:
    """Trains candidates, one after another, as far as the hurdles let them."""

    def __init__(self, increments: Sequence[int]):
        """`increments` are steps, before the first hurdle and after each."""
        self.increments = tuple(increments)
        self.heights: list[float] = []
        """The hurdles behind the first increment, the second and so on."""

    def judge(self, trains: Iterable[Train]) -> Iterator[tuple[Train, Judged]]:
        """Each with how far it came; the next one is not asked for before."""
        first, *further = self.increments
        for train in trains:
            fitness, trained = train(first), 1
            for height, steps in zip(self.heights, further, strict=False):
                if fitness < height:
                    break
                fitness, trained = train(steps), trained + 1
            yield train, Judged(fitness, trained)

    def add(self, population: Iterable[Judged]) -> None:
        """Add the next hurdle, if an increment lies behind it and somebody came so far."""
        level = len(self.heights) + 1
        equals = [judged.fitness for judged in population if judged.increments == level]
        if equals and level < len(self.increments):
            self.heights.append(fmean(equals))


def judged_together(
    increments: Sequence[int], trains: Iterable[Train]
) -> Iterator[tuple[Train, Judged]]:
    """The static reading: each with how far it came."""
    every = list(trains)
    judged: dict[int, Judged] = {}
    left = list(range(len(every)))
    for level, steps in enumerate(increments, 1):
        judged |= {index: Judged(every[index](steps), level) for index in left}
        height = fmean(judged[index].fitness for index in left) if left else 0.0
        left = [index for index in left if judged[index].fitness >= height]
    yield from ((train, judged[index]) for index, train in enumerate(every))


TRANSFORMER = Graph.chain(("positions", "attention", "feed_forward"))
"""A layer of the Transformer as a cell."""


@dataclass(frozen=True, kw_only=True)
class EvolvedTransformer(Aimed):
    """Search by evolution among cells that are trained alone, the Transformer first."""

    usual: ClassVar[tuple[str, ...]] = (
        *(IDENTITY, NONE, "positions", "attention", "attention4", "feed_forward", "gated"),
        *("plain3", "plain5", "separable3", "separable5", "separable7"),
        *("atrous3", "atrous5", "light3", "light5", "light7"),
    )

    recurrent: ClassVar[bool] = False  # type: ignore[misc]

    search_epochs: PositiveFloat = 1.0
    """Passes over the train split of a candidate that reaches every hurdle. > 0."""
    nodes: PositiveInt = 4
    """Nodes of a cell. >= 3, which the Transformer takes; 6 in the paper."""
    most_cells: PositiveInt = 2
    """At most this many cells, all alike, follow one another. >= 1."""
    increments: tuple[float, ...] = (1.0, 1.0, 2.0)
    """Parts of a candidate's training, between the hurdles; the paper's by default. > 0 each."""
    reading: Literal["dynamic", "static"] = "dynamic"
    """Hurdles for later candidates, as in the paper; or all candidates are drawn at random and
    trained together, and the mean of those that are left is their hurdle."""
    candidates: PositiveInt = 40
    """Cells that are trained. >= 1."""
    every: PositiveInt = 12
    """Candidates before each new hurdle; 5,000 in the paper. >= 1."""
    population: PositiveInt = 10
    """Candidates that live at once; 100 in the paper. >= 1."""
    sample: PositiveInt = 3
    """Candidates of a tournament; 30 in the paper. >= 1."""
    mutation: PositiveShare = 0.025
    """Probability in (0, 1] that a place of a child is drawn again."""
    finalists: PositiveInt = 3
    """Best candidates, which go through all increments in the end; 20 in the paper. >= 1."""

    def __post_init__(self) -> None:
        super().__post_init__()
        good = bool(self.increments) and all(0 < part < math.inf for part in self.increments)
        check_ranges(self, increments=(good, "numbers > 0, at least one"))
        try:
            self.space.choices(TRANSFORMER)
        except ValueError as error:
            raise UserError(
                f"EvolvedTransformer begins at the Transformer, which is not in its space: {error}"
                f"; give 3 nodes or more, and {IDENTITY}, positions, attention and feed_forward "
                "among the operations"
            ) from error

    @property
    def space(self) -> GraphSpace:
        """Each node has two branches; the output is of those nobody reads."""
        return GraphSpace(
            nodes=self.nodes,
            operations=self.names,
            combinations=("add", "product"),
            cells=tuple(range(1, max(1, self.most_cells) + 1)),  # 0 is refused by its own name
        )

    def inactive(self) -> dict[str, str]:
        evolving = ("every", "population", "sample", "mutation")
        static = dict.fromkeys(evolving, "reading is static") if self.reading == "static" else {}
        return super().inactive() | static

    def _searched(self, problem: Problem, seed: int, progress: Progress) -> ChosenCell:
        """Choose by evolution; the super-net is not trained, candidates begin at its weights."""
        net = self._super_net(problem, seed)
        settings = EvolutionSettings(
            population=self.population, sample=self.sample, dies="worst", mutation=self.mutation
        )
        strategy = Evolution(self.space.places, seed, settings)
        steps = steps_of(problem, self.search_epochs, self.batch_size) / sum(self.increments)
        hurdles = Hurdles([max(1, round(steps * part)) for part in self.increments])
        rows = all_alpha(problem)
        tried: set[Genotype] = set()

        def begun(choices: Mapping[str, Any]) -> _Candidate:
            student, steps = net.extract(choices), sum(hurdles.increments)
            weights, rate = trainable(student), [self.learning_rate]
            optimizer = PopulationOptimizer(weights, rate, steps, "linear")
            batches = problem.train.shuffled(self.batch_size, seed, problem.device)
            loss = loss_of(student, problem)
            training = training_steps(batches, weights, loss, optimizer, range(steps))
            flops_loss = float(self._flops_loss(net, self.space.one_hot(choices), problem))

            def score() -> float:
                return answer_score(lambda own: student(**own), rows, problem) - flops_loss

            return _Candidate(choices, student, training, score)

        def candidates() -> Iterator[_Candidate]:
            choices: Mapping[str, Any] = self.space.choices(TRANSFORMER)
            for number in range(self.candidates):
                for _ in range(TRIES if number else 0):
                    [choices] = strategy.propose(1)
                    if net.genotype(choices) not in tried:
                        break
                tried.add(net.genotype(choices))
                yield begun(choices)

        judged: dict[Genotype, Judged] = {}
        best: list[tuple[float, _Candidate]] = []
        dynamic = self.reading == "dynamic"
        judge = hurdles.judge if dynamic else partial(judged_together, hurdles.increments)
        progress.begin("search", self.candidates)
        for number, (candidate, result) in enumerate(judge(candidates()), start=1):
            progress.advance()
            strategy.learn([(candidate.choices, result.fitness)])
            judged[net.genotype(candidate.choices)] = result
            if dynamic and number >= self.every * (1 + len(hurdles.heights)):
                hurdles.add(judged[net.genotype(alive)] for alive, _ in strategy.learned)
            best.append((result.fitness, candidate))
            best = sorted(best, key=itemgetter(0), reverse=True)[: self.finalists]
        finals = ((finalist, finalist(sum(hurdles.increments))) for _, finalist in best)
        winner = best_of(finals, len(best), progress, "finalists")
        return ChosenCell(net.genotype(winner.choices), curve_of("search", winner.losses))


@dataclass(eq=False)
class _Candidate:
    """A cell that is trained alone, some steps at a time."""

    choices: Mapping[str, Any]
    student: CellForSequenceClassification
    training: Iterator[Tensor]
    score: Callable[[], float]
    losses: list[Tensor] = field(default_factory=list)

    def __call__(self, steps: int) -> float:
        """Train it for this many more steps, or for those that are left; gives its score then."""
        self.student.train()
        self.losses += islice(self.training, steps)
        self.student.train(False)
        return self.score()
