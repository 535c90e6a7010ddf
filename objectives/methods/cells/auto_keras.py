"""Auto-Keras (Jin et al. 2019): cells that grow by morphs and inherit weights.

The first cell has no operation. Each further one is a morph, or a morph of morphs, of a trained
one: deeper, wider, or with a skip. It begins with that one's weights and answers, is trained on,
and is scored on alpha. A Gaussian process over edit distances says which is next."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from operator import itemgetter
from string import digits
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn

from objectives.errors import PositiveFloat, PositiveInt, check_ranges
from objectives.measures.measured import measured_flops
from objectives.methods.cells.base.choosing import Aimed, ChosenCell, hinge
from objectives.methods.cells.base.learning import loss_of, new_cell
from objectives.problem import Problem
from objectives.progress import Progress
from objectives.search_method import CurvePoint, not_finite
from objectives.strategies.edit_distance import DistanceSettings, EditDistance
from objectives.strategies.strategy import Candidate, Choice
from objectives.students.cells.cell_classifier import CellForSequenceClassification
from objectives.students.cells.genotype import Genotype, check_position_wise
from objectives.students.cells.graph import IDENTITY, Graph, Node
from objectives.students.cells.operations import OPERATIONS, Attention, Positions
from objectives.training.scoring import all_alpha, answer_score

# How far apart two cells are (Auto-Keras, Jin et al. 2019, section 3.1): its operations as
# layers, its edges as skip connections.
#
# The operations are aligned in their order, the edges matched at the lowest cost. Both distances
# are those of the paper; what differs is what a layer has: a kind, and a number, such as the
# kernel.


def edit_distance(one: Graph, other: Graph) -> float:
    """d = d_layers + d_edges of two cells (the paper's lambda is 1); 0 where they are one model."""
    layers, edges = zip(*map(_described, (one, other)), strict=True)
    return _aligned(*layers) + _matched(*edges)


@lru_cache(maxsize=10_000)
def _described(graph: Graph) -> tuple[list[str], list[tuple[int, int, str]]]:
    """The operations in their order; of each edge its start, its reach and its combination."""
    names: list[str] = []
    edges: list[tuple[int, int, str]] = []
    cell = graph.canonical()
    for number, node in enumerate(cell.nodes, start=cell.inputs):
        names += node.operations
        edges += [(state, number - state, node.combination) for state in node.inputs]
    return names, edges


def _of_layers(one: str, other: str) -> float:
    """The cost of one operation instead of another of its kind: by how much kernels differ."""
    kind = one.rstrip(digits)
    if one == other or kind != other.rstrip(digits):
        return float(one != other)
    a, b = (int(name[len(kind) :] or 0) for name in (one, other))
    return abs(a - b) / max(a, b)


def _aligned(one: list[str], other: list[str]) -> float:
    """The lowest cost of an alignment in which each operation that is alone costs 1."""
    costs = np.zeros((len(one) + 1, len(other) + 1))
    costs[:, 0], costs[0] = range(len(one) + 1), range(len(other) + 1)
    for i, a in enumerate(one, start=1):
        for j, b in enumerate(other, start=1):
            alone = 1 + min(costs[i - 1, j], costs[i, j - 1])
            costs[i, j] = min(alone, costs[i - 1, j - 1] + _of_layers(a, b))
    return float(costs[-1, -1])


def _matched(one: list[tuple[int, int, str]], other: list[tuple[int, int, str]]) -> float:
    """The lowest cost of a matching of edges, each of which that has no other costs 1."""
    costs = np.ones((len(one), len(other)))
    for i, (u, d, kind) in enumerate(one):
        for j, (v, e, k) in enumerate(other):
            if kind == k:
                costs[i, j] = (abs(u - v) + abs(d - e)) / (max(u, v) + max(d, e))
    rows, columns = linear_sum_assignment(costs)
    return float(costs[rows, columns].sum()) + abs(len(one) - len(other))


# Morphs: larger cells that begin with the weights and the answers of the cell they come from.
#
# A deeper cell has a node more, which adds to a state what an operation makes of it; with a skip
# a node reads one more state, through an operation. The operation gives 0 at first, so that the
# answers stay (network morphism, Wei et al. 2016). In a wider cell each unit is there twice, and
# who reads it splits a weight between the two (Net2Net, Chen et al. 2016), at random, so that
# they learn apart.

SILENT = tuple(name for name in OPERATIONS if name != "sigmoid")
"""Operations that can give 0 at first and learn from there; a sigmoid gives more."""


class Growth(NamedTuple):
    """A graph whose other edges keep their order, and the node and the place of its new one."""

    graph: Graph
    new: tuple[int, int]


Morph = Growth | None  # None: twice as wide


def morphs(cell: Genotype, names: Sequence[str], nodes: int, widest: int) -> list[list[Morph]]:
    """All morphs of a cell, by kind, that keep it within these numbers of nodes and dimensions."""
    graph = cell.graph
    deep = [_deeper(graph, state, name) for state in range(len(graph.nodes) + 1) for name in names]
    skips = [
        _skip(graph, number, state, name)
        for number, node in enumerate(graph.nodes)
        for state in sorted({*range(number + 1)} - {*node.inputs, *graph.outputs()})
        for name in names
    ]
    # Each dimension of the positions has a frequency of its own, which no other can have.
    wide = 2 * cell.width <= widest and "positions" not in cell.blocks
    kinds = (deep if len(graph.nodes) < nodes else [], skips, [None] if wide else [])
    return [[*kind] for kind in kinds if kind]


def larger(cell: Genotype, morph: Morph) -> Genotype:
    """Apply a morph to a cell."""
    if morph is None:
        return replace(cell, width=2 * cell.width)
    return replace(cell, operations=(), nodes=morph.graph.nodes)


def _deeper(graph: Graph, state: int, name: str) -> Growth:
    """With a node after a state; readers of the state read the node."""
    nodes = [replace(n, inputs=tuple(s + (s >= state) for s in n.inputs)) for n in graph.nodes]
    nodes.insert(state, Node((state, state), (name, IDENTITY)))
    return Growth(Graph(tuple(nodes)), (state, 0))


def _skip(graph: Graph, number: int, state: int, name: str) -> Growth:
    """With an edge to a node, from a state that is not the output: it would be that no longer."""
    nodes, node = [*graph.nodes], graph.nodes[number]
    nodes[number] = Node((*node.inputs, state), (*node.operations, name))
    return Growth(Graph(tuple(nodes)), (number, len(node.inputs)))


@torch.no_grad()
def inherit(
    child: CellForSequenceClassification, parent: CellForSequenceClassification, morph: Morph
) -> None:
    """Let a new model of what a morph makes of its parent answer as its parent does."""
    if morph is None:
        _double(child, parent)
        return
    names = [enumerate(node.operations) for node in morph.graph.nodes]
    edges = [(n, e) for n, row in enumerate(names) for e, name in row if name != IDENTITY]
    inherited = dict(zip((edge for edge in edges if edge != morph.new), parent.blocks, strict=True))
    sources = [source for source in morph.graph.with_sources()[1] if source in edges]
    for block, source in zip(child.blocks, sources, strict=True):
        if source in inherited:
            block.load_state_dict(inherited[source].state_dict())
        for weight in _last(block) if source == morph.new else ():
            weight.zero_()
    for name, weight in parent.named_parameters():
        if weight.requires_grad and not name.startswith("blocks."):
            child.get_parameter(name).copy_(weight)


def _last(block: nn.Module) -> Iterable[Tensor]:
    """The weights of a block that, at 0, make it give 0, and learn."""
    operation = block.get_submodule("operation")
    if hasattr(operation, "out") or isinstance(operation, Positions):
        return [*getattr(operation, "out", operation).parameters()] or operation.parameters()
    named = block.named_parameters()  # the others make nothing of nothing
    return [weight for name, weight in named if "LayerNorm" in name or "bias" in name]


def _double(child: nn.Module, parent: CellForSequenceClassification) -> None:
    """Fill a model that is twice as wide; units come as 1, ..., D, 1, ..., D."""
    heads: dict[tuple[str, int], int] = {}
    for path, module in parent.named_modules():
        twin = child.get_submodule(path)
        if isinstance(module, Attention) and module.heads == twin.heads:  # of twice the units
            heads[f"{path}.query_key_value", 0] = heads[f"{path}.out", 1] = module.heads
        for name, weight in module.named_parameters(recurse=False):
            wider = twin.get_parameter(name)
            for axis in range(weight.ndim):
                if weight.shape[axis] < wider.shape[axis]:
                    parts = max(1, weight.shape[axis] // parent.config.hidden_size)
                    first = other = weight.unflatten(axis, (parts * heads.get((path, axis), 1), -1))
                    if axis == 1 and not isinstance(module, nn.Embedding):  # it reads the units
                        first = other * torch.rand(other.shape).to(other)
                        other = other - first
                    weight = torch.cat([first, other], axis + 1).flatten(axis, axis + 1)
            if wider.requires_grad:
                wider.copy_(weight)
            if (path, 0) in heads:  # queries: scores are twice as large, over sqrt(2)
                wider[: len(wider) // 3] *= 0.5**0.5


_genotype = lru_cache(maxsize=10_000)(Genotype.from_json)


@dataclass(frozen=True, kw_only=True)
class AutoKeras(Aimed):
    """Search by morphs for a cell of at most this many `nodes`."""

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
        silent = self.names and {*self.names} <= {*SILENT}
        check_ranges(
            self,
            operations=(bool(silent), f"some of {', '.join(SILENT)}"),
            widest=(self.widest >= self.width, ">= width"),
        )
        if self.base.recurrent:
            check_position_wise(self.names)

    def _searched(self, problem: Problem, seed: int, progress: Progress) -> ChosenCell:
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

        for cell_seed in range(seed, seed + self.candidates):
            [candidate] = tree.propose(1)
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(cell_seed)
                student = begun(candidate["cell"])
            epochs, loss = self.search_epochs / self.candidates, loss_of(student, problem)
            losses = self._train(problem, student, loss, epochs, "search", cell_seed, progress)
            if not_finite(0, losses):  # its morphs begin where it did
                failed = losses
                trained.pop(candidate["cell"], None)
                tree.learn([(candidate, min([0.0, *(score for _, score in tree.learned)]))])
                continue
            curve += losses
            trained[candidate["cell"]] = student
            tree.learn([(candidate, self._score(student, problem))])
        left = [(score, c["cell"]) for c, score in tree.learned if c["cell"] in trained]
        if not left:
            return ChosenCell(self.base, failed)
        _, cell = max(left, key=itemgetter(0))
        return ChosenCell(_genotype(cell), curve, trained[cell])

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
        """Parent of each cell but the first, and the morph that made it."""

    def _drawn(self) -> Candidate:
        first = super()._drawn()
        return self._changed(first, ["cell"]) if self.learned else first

    def _changed(self, candidate: Candidate, among: Sequence[str]) -> Candidate:
        """Each kind of morph is as likely; the cell as it is where there is none."""
        cell, method = _genotype(candidate["cell"]), self._method
        kinds = morphs(cell, method.names, method.nodes, method.widest)
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
