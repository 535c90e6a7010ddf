"""Auto-Keras (Jin et al. 2019): cells that grow by morphs and inherit weights.

The first cell has no operation. Each further one is a morph, or a morph of morphs, of a trained
one: deeper, wider, or with a skip. It begins with that one's weights and answers, is trained on,
and is scored on alpha. A Gaussian process over edit distances says which is next.

What differs from the paper: it begins with a network of some layers. Here a skip has an operation,
and a cell is wider as a whole, by a factor of 2. A score is exp(-loss), less the FLOPs loss. Search
and training take turns, not two threads: a trial is one process, a proposal takes about a second.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import itemgetter
from typing import ClassVar

import torch

from objectives.errors import PositiveFloat, PositiveInt, check_ranges
from objectives.measures.measured import measured_flops
from objectives.problem import Problem
from objectives.progress import Progress
from objectives.search_method import CurvePoint
from objectives.strategies.aimed_search import EitherWay, all_alpha, answer_score, hinge
from objectives.strategies.places.edit_distance import DistanceSettings, EditDistance
from objectives.strategies.places.strategy import Candidate, Choice
from objectives.strategies.super_net_search import Chosen
from objectives.students.cells.cell_classifier import CellForSequenceClassification
from objectives.students.cells.edit_distance import edit_distance
from objectives.students.cells.genotype import Genotype, check_position_wise
from objectives.weights.cells import loss_of, new_cell
from objectives.weights.independent import not_finite
from objectives.weights.morphs import SILENT, Morph, inherit, larger, morphs

_genotype = lru_cache(maxsize=10_000)(Genotype.from_json)


@dataclass(frozen=True, kw_only=True)
class AutoKeras(EitherWay):
    """Search by morphs for a cell of at most so many `nodes`."""

    usual: ClassVar[tuple[str, ...]] = ("conv3", "conv5", "gated", "attention", "max3")
    usual_recurrent: ClassVar[tuple[str, ...]] = ("tanh", "relu", "linear", "gated")

    width: int = 64
    """D of the first cell, a multiple of 16; a wider one has 2 D, 4 D, and so on."""
    widest: int = 256
    """Dimensions of a cell, at most. >= `width`."""
    search_epochs: PositiveFloat = 12
    """Passes over the train split, of which each candidate has the same share. > 0."""
    candidates: PositiveInt = 12
    """Cells that are trained and scored. >= 1."""

    def __post_init__(self) -> None:
        super().__post_init__()
        known = self.names and {*self.names} <= {*SILENT}
        check_ranges(
            self,
            operations=(bool(known), f"some of {', '.join(SILENT)}"),
            widest=(self.widest >= self.width, ">= width"),
        )
        if self.base.recurrent:
            check_position_wise(self.names)

    def _searched(self, problem: Problem, seed: int, progress: Progress) -> Chosen:
        tree = MorphTree(self, seed)
        trained: dict[Choice, CellForSequenceClassification] = {}
        curve: list[CurvePoint] = []
        failed: list[CurvePoint] = []

        def begun(cell: Choice) -> CellForSequenceClassification:
            if cell in trained:
                return trained[cell]
            student = new_cell(_genotype(cell), problem)
            if cell in tree.origins:
                parent, morph = tree.origins[cell]
                inherit(student, begun(parent), morph)
            return student

        for own in range(seed, seed + self.candidates):
            [candidate] = tree.propose(1)
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(own)
                student = begun(candidate["cell"])
            epochs, loss = self.search_epochs / self.candidates, loss_of(student, problem)
            losses = self._train(problem, student, loss, epochs, "search", own, progress)
            if not_finite(0, losses):  # its morphs begin where it did
                failed = losses
                trained.pop(candidate["cell"], None)
                tree.learn([(candidate, min([0.0, *(score for _, score in tree.learned)]))])
                continue
            curve += losses
            trained[candidate["cell"]] = student
            tree.learn([(candidate, self._score(student, problem))])
        left = [(score, known["cell"]) for known, score in tree.learned if known["cell"] in trained]
        if not left:
            return Chosen(self.base, failed)
        _, cell = max(left, key=itemgetter(0))
        return Chosen(_genotype(cell), curve, trained[cell])

    def _score(self, student: CellForSequenceClassification, problem: Problem) -> float:
        score = answer_score(lambda inputs: student(**inputs), all_alpha(problem), problem)
        if self.target_ratio is None:
            return score
        mapping = student.get_parameter("words.1.weight")  # it is folded into the words in the end
        flops = measured_flops(student, problem.seq_len) - 2 * problem.seq_len * mapping.numel()
        loss = hinge(flops, self.target_ratio, self.tolerance, problem)
        return score - self.flops_weight * float(loss)


class MorphTree(EditDistance):
    """Proposes the first cell, then morphs of those it knows; a cell is a genotype as JSON."""

    def __init__(self, method: AutoKeras, seed: int):
        first = {"cell": (method.base.to_json(),)}
        super().__init__(first, seed, DistanceSettings(initial=2), distance)
        self._method = method
        self.origins: dict[Choice, tuple[Choice, Morph]] = {}
        """Of each cell but the first the one that it was made of last, and how."""

    def _drawn(self) -> Candidate:
        first = super()._drawn()
        return self._changed(first, ["cell"]) if self.learned else first

    def _changed(self, candidate: Candidate, among: Sequence[str]) -> Candidate:
        """Each kind of morph is as likely; the cell as it is where there is none."""
        cell, own = _genotype(candidate["cell"]), self._method
        kinds = morphs(cell, own.names, own.nodes, own.widest)
        if not kinds:
            return candidate
        kind = kinds[int(self._rng.integers(len(kinds)))]
        morph = kind[int(self._rng.integers(len(kind)))]
        changed = larger(cell, morph).to_json()
        self.origins[changed] = candidate["cell"], morph
        return {"cell": changed}


def distance(one: Candidate, other: Candidate) -> float:
    """The edit distance of the graphs, and |a - b| / max(a, b) of the widths, once."""
    a, b = _genotype(one["cell"]), _genotype(other["cell"])
    return edit_distance(a.graph, b.graph) + abs(a.width - b.width) / max(a.width, b.width)
