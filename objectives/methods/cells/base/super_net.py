"""The super-net of a space of graphs: every cell of the space, with weights that they share."""

# Soft choices (DARTS, Liu et al. 2019), samples (GDAS, Dong & Yang 2019; AdaBERT, Chen et al. 2020)
# and single graphs (ENAS, Pham et al. 2018; evolution) are one forward pass: it is given numbers
# over the choices of each place. Each edge of a node has weights for each operation, whatever state
# it reads; cells that follow one another share choices, not weights.
#
# At one-hot numbers the super-net is the plain model, in its logits, its gradients and its cost.

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers.modeling_outputs import SequenceClassifierOutput

from objectives.errors import UserError
from objectives.measures.measured import measured_flops
from objectives.students.cells.cell_classifier import (
    CellBlock,
    CellConfig,
    CellForSequenceClassification,
)
from objectives.students.cells.genotype import Genotype, check_position_wise
from objectives.students.cells.graph import IDENTITY, NONE
from objectives.students.cells.graph_space import GraphSpace, needed_cells
from objectives.students.cells.recurrence import over_tokens

Number = float | Tensor
"""In [0, 1]; a scalar tensor where it has a gradient."""


def value_of(number: Number) -> float:
    """Without its gradient."""
    return number.item() if isinstance(number, Tensor) else number


def added_up(numbers: Iterable[Number]) -> Number:
    """Their sum; 0 of none."""
    return sum(numbers, 0.0)


def weighed(parts: Iterable[tuple[Tensor, Number]]) -> Tensor:
    """The sum of tensors times their numbers."""
    first, *others = [part if isinstance(n, float) and n == 1 else part * n for part, n in parts]
    return sum(others, first)


def mixed(parts: Sequence[tuple[Tensor, bool]], combination: str, mask_BS1: Tensor) -> Tensor:
    """Combine parts as `cell_classifier.combined` does; parts that are not alive are 0."""
    if combination == "product":
        product = mask_BS1
        for part, alive in parts:
            product = product * (part if alive else part + 1)
        return product
    added = weighed((part, 1.0) for part, _ in parts)
    return added / max(1, sum(alive for _, alive in parts)) if combination == "mean" else added


class SharedReads(nn.Module):
    """The weights of each operation at each place of `GraphSpace.reads`: see `operations.READS`."""

    def __init__(self, space: GraphSpace, width: int):
        super().__init__()
        self.places = [place for place in space.all_places if place.startswith("reads[")]
        """Their names; none where cells read the token and the state as they are."""
        names = [name for name in space.reads if name not in (NONE, IDENTITY)]
        keys = [(f"{place}-{name}", name) for place in range(len(self.places)) for name in names]
        self.blocks = nn.ModuleDict({key: CellBlock(width, name) for key, name in keys})

    def reader(
        self, names: Sequence[Sequence[tuple[str, Number]]]
    ) -> Callable[[int, Tensor, Tensor], Tensor]:
        """A reader for `recurrence.over_tokens`, where each place has numbers over names."""

        def done(place: int, name: str, state_B1D: Tensor, mask_B11: Tensor) -> Tensor:
            if name in (NONE, IDENTITY):
                return state_B1D if name == IDENTITY else torch.ones_like(state_B1D)
            read: Tensor = self.blocks[f"{place}-{name}"](state_B1D, mask_B11)
            return read

        return lambda place, state_B1D, mask_B11: weighed(
            (done(place, name, state_B1D, mask_B11), number) for name, number in names[place]
        )


Weights = Mapping[str, Sequence[float] | Tensor]
"""Numbers over the choices of each of `GraphSpace.places`, in their order."""
_BEFORE_THE_CELL = ("words", "types", "bigrams", "join")
"""The parts of a plain model that make the states which a cell reads, where it has them."""


class _Way(NamedTuple):
    """A way through an edge: the state it reads, its operation, its weight."""

    state: int
    operation: str
    number: Number


class _Cell(NamedTuple):
    """A cell as some weights make it."""

    ways: list[list[list[_Way]]]
    """Operations of each edge of each node whose weight is not 0."""
    alive: list[list[bool]]
    """Whether anything passes each edge of each node."""
    combinations: list[list[tuple[str, Number]]]
    """Combinations of each node, with their weights."""
    counts: list[tuple[int, Number]]
    """How much each state counts in the output; they add up to 1."""


class SuperNet(nn.Module):
    """Every cell of a space."""

    def __init__(self, space: GraphSpace, plain: CellForSequenceClassification):
        """`plain` is a model without nodes; words, classifier, sizes and recurrence are its own."""
        super().__init__()
        self.space, self.plain = space, plain
        config, size = plain.config, plain.config.hidden_size
        self._base = Genotype(size, (), (), tuple(config.pooling), config.bigrams, config.recurrent)
        if config.recurrent:
            check_position_wise(space.operations)
            if (space.inputs, space.cells) != (1, (1,)):
                raise UserError("GraphSpace: leave inputs and cells out where cells are recurrent")
        self.reads = SharedReads(space, size)
        self._measured: dict[int, dict[str, int]] = {}
        names = [name for name in space.operations if name not in (NONE, IDENTITY)]
        edges = [(n, e) for n in range(space.nodes) for e in range(space.edges_of(n))]
        keys = [(c, n, e, name) for c in range(space.cells[-1]) for n, e in edges for name in names]
        self.blocks = nn.ModuleDict({_key(*key): CellBlock(size, key[3]) for key in keys})

    def forward(
        self, inputs: Mapping[str, Tensor], weights: Weights, every: bool = False
    ) -> SequenceClassifierOutput:
        """The logits, (B, C), and as hidden states the first one and the output of each cell."""
        # With `every` also what has the weight 0 is computed, where weights have gradients: a
        # sample that is straight through then has the gradients of all choices (AdaBERT), not only
        # of those that it took (GDAS).
        hidden_BSD, mask_BS1 = self.plain.embedded(
            inputs["input_ids"], inputs.get("attention_mask"), inputs.get("token_type_ids")
        )
        cell = self._cell(weights, every)
        depths = self._numbers(weights, "cells", every)
        read = {way.state for edges in cell.ways for edge in edges for way in edge}
        read |= {state for state, _ in cell.counts}
        last = [row + 1 in dict(depths) for row in range(self.space.cells[-1])]
        needed = needed_cells(self.space.inputs, read, last)
        outputs = [hidden_BSD]
        for row in range(len(needed)):
            given = [outputs[max(0, row + 1 - back)] for back in range(self.space.inputs, 0, -1)]
            done = self._output(row, given, mask_BS1, cell, weights) if needed[row] else given[-1]
            outputs.append(done)
        hidden_BSD = weighed((outputs[cells], number) for cells, number in depths)
        logits = self.plain.classified(hidden_BSD, mask_BS1)
        return SequenceClassifierOutput(logits=logits, hidden_states=tuple(outputs))

    def _output(
        self, row: int, own: Sequence[Tensor], mask_BS1: Tensor, cell: _Cell, weights: Weights
    ) -> Tensor:
        """The output of the cell of this number, at all tokens together or token by token."""
        if (join := self.plain.join) is None:
            return self._done(row, own, mask_BS1, cell)
        names = [self._numbers(weights, place, every=False) for place in self.reads.places]
        read = self.reads.reader(names) if names else None
        window = self.space.window if names else 1
        return over_tokens(
            join, own[0], mask_BS1, lambda s, mask: self._done(row, [s], mask, cell), read, window
        )

    def _done(self, row: int, given: Sequence[Tensor], mask_BS1: Tensor, cell: _Cell) -> Tensor:
        """Run the graph of this cell on the states that it is given."""
        states: list[Tensor | None] = list(given)
        for node, (edges, alive) in enumerate(zip(cell.ways, cell.alive, strict=True)):
            parts: list[tuple[Tensor, bool]] = []
            for edge, ways in enumerate(edges):
                scaled: list[tuple[Tensor, Number]] = []
                for entering, name, number in ways:
                    if (state := states[entering]) is not None:
                        if name != IDENTITY:
                            state = self.blocks[_key(row, node, edge, name)](state, mask_BS1)
                        scaled.append((state, number))
                if scaled:
                    parts.append((weighed(scaled), alive[edge]))
            combinations = cell.combinations[node] if parts else []
            combined = [(mixed(parts, name, mask_BS1), number) for name, number in combinations]
            states.append(weighed(combined) if combined else None)
        counted = [(states[state], number) for state, number in cell.counts]
        return weighed((state, number) for state, number in counted if state is not None)

    def _cell(self, weights: Weights, every: bool = False) -> _Cell:
        space, first = self.space, self.space.inputs
        ways: list[list[list[_Way]]] = []
        alive: list[list[bool]] = []
        live, unread = [True] * first, list[Number]([1.0] * (first + space.nodes))
        for node in range(space.nodes):
            edges: list[list[_Way]] = []
            for number in range(space.edges_of(node)):
                states = self._numbers(weights, f"nodes[{node}].inputs[{number}]", every)
                names = self._numbers(weights, f"nodes[{node}].operations[{number}]", every)
                edge = [_Way(s, op, a * b) for s, a in states for op, b in names if op != NONE]
                for state in {way.state for way in edge}:
                    read = added_up(way.number for way in edge if way.state == state)
                    unread[state] = unread[state] * (1 - read)
                edges.append(edge)
            ways.append(edges)
            alive.append([any(live[w.state] and value_of(w.number) for w in e) for e in edges])
            live.append(any(alive[-1]))
        places = [f"nodes[{node}].combination" for node in range(space.nodes)]
        combinations = [self._numbers(weights, place, every) for place in places]
        counts = [
            (state, 1.0 if space.output == "all" else unread[state])
            for state in range(first, len(live))
        ]
        total = added_up(number for state, number in counts if live[state])
        if not any(live[first:]):
            counts, total = [*counts, (first - 1, 1.0)], 1.0
        shares = [(state, number / total) for state, number in counts]
        return _Cell(ways, alive, combinations, [s for s in shares if every or value_of(s[1])])

    def _numbers(self, weights: Weights, place: str, every: bool) -> list[tuple[Any, Number]]:
        """The choices of a place that are not 0, with their numbers."""
        choices = self.space.all_places[place]
        if place not in self.space.places and place not in weights:
            return [(choices[0], 1.0)]
        given = weights[place]
        values = given.tolist() if isinstance(given, Tensor) else given
        learnt = given.unbind() if isinstance(given, Tensor) and given.requires_grad else None
        rows = zip(choices, learnt or values, values, strict=True)
        return [(c, number) for c, number, value in rows if value or (every and learnt)]

    def expected_flops(self, weights: Weights, seq_len: int, kept: float = 1.0) -> Number:
        """Expected FLOPs of a sequence of `seq_len` tokens; of edges the share `kept` stays."""
        # As if inputs and operations were drawn independently; at one-hot weights those of the
        # model that `extract` gives, to the last digit.
        exact = {place: w.double() if isinstance(w, Tensor) else w for place, w in weights.items()}
        cell, costs, inputs = self._cell(exact), self.costs(seq_len), self.space.inputs
        live: list[Number] = [1.0] * inputs
        unread: list[Number] = [1.0] * inputs
        of_cell: Number = 0.0
        empty: Number = 1.0
        for edges in cell.ways:
            dead: Number = 1.0
            for ways in edges:
                of_cell += added_up(w.number * live[w.state] * costs[w.operation] for w in ways)
                dead = dead * (1 - added_up(way.number * live[way.state] for way in ways))
                for state in range(inputs):
                    read = added_up(way.number for way in ways if way.state == state)
                    unread[state] = unread[state] * (1 - read)
            live.append(1 - dead)
            empty = empty * dead
        # An empty cell passes its last input on; whatever else is made of one input has read it.
        unread[-1] = unread[-1] * (1 - empty) if inputs > 1 else 0.0
        needed: list[Number] = [1.0]  # the last cell of a model, the one before it, and so on
        for cells in range(1, self.space.cells[-1]):
            idle: Number = 1.0
            for back in range(1, min(inputs, cells) + 1):
                idle = idle * (1 - needed[-back] * (1 - unread[-back]))
            needed.append(1 - idle)
        depths = self._numbers(exact, "cells", every=False)
        reads = [self._numbers(exact, place, every=False) for place in self.reads.places]
        of_reads = added_up(n * costs[name] for names in reads for name, n in names if name != NONE)
        of_cells = added_up(share * added_up(needed[:n]) for n, share in depths)
        return costs[NONE] + of_reads + kept * of_cell * of_cells

    def costs(self, seq_len: int) -> dict[str, int]:
        """FLOPs of each operation, and of a model without any under the name `NONE`."""
        if seq_len not in self._measured:

            def measured(name: str) -> int:
                config = self._config(replace(self._base, operations=(name,)))
                with torch.device("meta"):
                    model = CellForSequenceClassification(config)
                if self.plain.join is None:
                    return measured_flops(model, seq_len)
                first, two = (measured_flops(model, length) for length in (1, 2))
                return first + (seq_len - 1) * (two - first)  # each token costs the same

            none = measured(NONE)
            names = {IDENTITY, *self.space.operations, *self.space.reads} - {NONE}
            costs = {name: measured(name) - none for name in names}
            self._measured[seq_len] = {**costs, NONE: none}
        return self._measured[seq_len]

    def _config(self, genotype: Genotype) -> CellConfig:
        return CellConfig.from_dict({**self.plain.config.to_dict(), **genotype.config()})

    def genotype(self, choices: Mapping[str, Any]) -> Genotype:
        """The architecture of some choices: one of each place."""
        reads = self.space.reads_of(choices)
        nodes, window = self.space.graph(choices).nodes, self.space.window if reads else 0
        return replace(self._base, nodes=nodes, reads=reads, window=window)

    def extract(self, choices: Mapping[str, Any]) -> CellForSequenceClassification:
        """The plain classifier of some choices, with copies of their weights but frozen ones."""
        with torch.random.fork_rng(devices=[]):  # new weights, none of which stays
            model = CellForSequenceClassification(self._config(self.genotype(choices)))
        frozen = {id(w): w for w in self.plain.parameters() if not w.requires_grad}
        for name, child in self.plain.named_children():
            if name not in ("blocks", "reads"):
                setattr(model, name, copy.deepcopy(child, dict(frozen)))
        for block, key in enumerate(self._keys(choices)):
            model.blocks[block] = copy.deepcopy(self.blocks[key])
        for place, name in enumerate(model.config.reads):
            if name not in (NONE, IDENTITY):
                model.reads[place] = copy.deepcopy(self.reads.blocks[f"{place}-{name}"])
        model.train(False)
        return model

    def _keys(self, choices: Mapping[str, Any]) -> Iterator[str]:
        """Which blocks the model of some choices has, in their order there."""
        graph, sources = self.space.unrolled(choices).with_sources()
        names = [name for node in graph.nodes for name in node.operations]
        for name, (number, edge) in zip(names, sources, strict=True):
            if name != IDENTITY:
                row, node = divmod(number, self.space.nodes + 1)
                yield _key(row, node, edge, name)

    def share(self, other: "SuperNet") -> None:
        """Share the weights of another of this space but norm, pooler and classifier, the head."""
        self.blocks, self.reads = other.blocks, other.reads
        for name in _BEFORE_THE_CELL:
            setattr(self.plain, name, getattr(other.plain, name))

    def shared(self, choices: Mapping[str, Any]) -> nn.ModuleList:
        """The modules of a cell that tasks share: all but the head."""
        before = (getattr(self.plain, name) for name in _BEFORE_THE_CELL)
        blocks = (self.blocks[key] for key in self._keys(choices))
        return nn.ModuleList([*(part for part in before if part is not None), *blocks])


def _key(cell: int, node: int, edge: int, name: str) -> str:
    return f"{cell}-{node}-{edge}-{name}"
