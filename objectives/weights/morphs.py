"""Morphs: larger cells that begin with the weights and the answers of the cell they come from.

A deeper cell has a node more, which adds to a state what an operation makes of it; with a skip a
node reads one more state, through an operation. The operation gives 0 at first, so that the answers
stay (network morphism, Wei et al. 2016). In a wider cell each unit is there twice, and who reads it
splits a weight between the two (Net2Net, Chen et al. 2016), at random, so that they learn apart.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from objectives.students.cells.cell_classifier import CellForSequenceClassification
from objectives.students.cells.genotype import Genotype
from objectives.students.cells.graph import IDENTITY, Graph, Node
from objectives.students.cells.operations import OPERATIONS, Attention, Positions

SILENT = tuple(name for name in OPERATIONS if name != "sigmoid")
"""Operations that can give 0 at first and learn from there; a sigmoid gives more."""


class Growth(NamedTuple):
    """A graph whose other edges keep their order, and the node and the place of its new one."""

    graph: Graph
    new: tuple[int, int]


Morph = Growth | None  # None: twice as wide


def morphs(cell: Genotype, names: Sequence[str], nodes: int, widest: int) -> list[list[Morph]]:
    """Of each kind of morphs that a cell has all of them, with operations of these names, some of
    `SILENT`, and at most so many nodes and dimensions. The nodes of the cell add."""
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
    """What a morph makes of a cell."""
    if morph is None:
        return replace(cell, width=2 * cell.width)
    return replace(cell, operations=(), nodes=morph.graph.nodes)


def _deeper(graph: Graph, state: int, name: str) -> Growth:
    """With a node after a state; whoever read the state reads the node."""
    nodes = [replace(n, inputs=tuple(s + (s >= state) for s in n.inputs)) for n in graph.nodes]
    nodes.insert(state, Node((state, state), (name, IDENTITY)))
    return Growth(Graph(tuple(nodes)), (state, 0))


def _skip(graph: Graph, number: int, state: int, name: str) -> Growth:
    """With an edge to a node, from a state that is not the output: it would be that no longer."""
    nodes, own = [*graph.nodes], graph.nodes[number]
    nodes[number] = Node((*own.inputs, state), (*own.operations, name))
    return Growth(Graph(tuple(nodes)), (number, len(own.inputs)))


@torch.no_grad()
def inherit(
    child: CellForSequenceClassification, parent: CellForSequenceClassification, morph: Morph
) -> None:
    """Let a new model of what a morph makes of its parent answer as its parent does."""
    if morph is None:
        _double(child, parent)
        return
    names = [enumerate(node.operations) for node in morph.graph.nodes]
    edges = [(n, e) for n, own in enumerate(names) for e, name in own if name != IDENTITY]
    known = dict(zip((edge for edge in edges if edge != morph.new), parent.blocks, strict=True))
    sources = [source for source in morph.graph.with_sources()[1] if source in edges]
    for block, source in zip(child.blocks, sources, strict=True):
        if source in known:
            block.load_state_dict(known[source].state_dict())
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
    return [own for name, own in named if "LayerNorm" in name or "bias" in name]


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
                    one = other = weight.unflatten(axis, (parts * heads.get((path, axis), 1), -1))
                    if axis == 1 and not isinstance(module, nn.Embedding):  # it reads the units
                        one = other * torch.rand(other.shape).to(other)
                        other = other - one
                    weight = torch.cat([one, other], axis + 1).flatten(axis, axis + 1)
            if wider.requires_grad:
                wider.copy_(weight)
            if (path, 0) in heads:  # queries: scores are twice as large, over sqrt(2)
                wider[: len(wider) // 3] *= 0.5**0.5
