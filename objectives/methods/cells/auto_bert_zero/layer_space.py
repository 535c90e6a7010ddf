"""Rows of layers, place by place: each is an attention by any formula of a few functions, or a
light convolution (AutoBERT-Zero, Gao et al. 2022)."""

# A formula has positions, each of which holds a function, or passes its first operand on; an
# operand is an input or what an earlier position gives. The last position gives the result. So a
# function is inserted, deleted or replaced by one change, and all other positions stay as they are.
# Of formulas drawn at random about one in seven reads another token than its own.

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import Any, NamedTuple

from objectives.students.cells.formulas import INPUTS, LONGEST, OPERANDS, applied, formula_shape
from objectives.students.cells.graph import IDENTITY
from objectives.students.cells.operations import LIGHT_KERNELS

KINDS = ("attention", "convolution")
"""Kinds of layers."""


class Layers(NamedTuple):
    """Layers, and the choices that act in them."""

    operations: tuple[str, ...]
    """Operation of each layer: a formula, or a name such as "light9"."""
    choices: dict[str, Any]
    """Choices that act in these layers."""


@dataclass(frozen=True, kw_only=True)
class LayerSpace:
    """All rows of some layers."""

    layers: int
    positions: int
    """Positions of each formula."""

    @property
    def uniform(self) -> dict[str, tuple[Any, ...]]:
        """The places that priority is not about: the kinds of layers, and operands."""
        kinds = {f"layers[{layer}].kind": KINDS for layer in self._layers}
        return kinds | {
            f"layers[{layer}].positions[{number}].inputs[{operand}]": (
                *range(len(INPUTS) + number),
            )
            for layer in self._layers
            for number in range(self.positions)
            for operand in range(2)
        }

    @property
    def guided(self) -> dict[str, tuple[Any, ...]]:
        """The others: kernels and functions."""
        kernels = {f"layers[{layer}].kernel": LIGHT_KERNELS for layer in self._layers}
        return kernels | {
            f"layers[{layer}].positions[{number}].function": (IDENTITY, *OPERANDS)
            for layer in self._layers
            for number in range(self.positions)
        }

    @property
    def _layers(self) -> range:
        return range(self.layers)

    def read(self, choices: Mapping[str, Any]) -> Layers | None:
        """The layers of one choice of each place that acts; None where a function has no value, a
        result is not n x d, or a formula uses less than two inputs."""
        acting: dict[str, Any] = {}
        layers: list[str] = []
        for layer in self._layers:
            operation = self._layer(f"layers[{layer}]", choices, acting)
            if operation is None:
                return None
            layers.append(operation)
        return Layers(tuple(layers), acting)

    def drawn(self, random: Random) -> Layers:
        """Layers at random: the kind of each, then all else until it is legal."""
        acting: dict[str, Any] = {}
        layers: list[str] = []
        places = {**self.uniform, **self.guided}
        for layer in self._layers:
            kind, operation = {f"layers[{layer}].kind": random.choice(KINDS)}, None
            while operation is None:
                acting_here: dict[str, Any] = {}
                choices = {place: random.choice(every) for place, every in places.items()} | kind
                operation = self._layer(f"layers[{layer}]", choices, acting_here)
            layers.append(operation)
            acting |= acting_here
        return Layers(tuple(layers), acting)

    def _layer(self, name: str, choices: Mapping[str, Any], acting: dict[str, Any]) -> str | None:
        def chosen(place: str) -> Any:
            acting[place] = choices[place]
            return choices[place]

        @cache
        def value(state: int) -> tuple[str, str] | None:
            """A formula, and the sides of its value."""
            if state < len(INPUTS):
                return INPUTS[state], "nd"
            position = f"{name}.positions[{state - len(INPUTS)}]"
            function = chosen(f"{position}.function")
            numbers = range(OPERANDS.get(function, 1))
            values = [value(chosen(f"{position}.inputs[{number}]")) for number in numbers]
            operands = [operand for operand in values if operand]
            if len(operands) < len(values) or function == IDENTITY:
                return values[0] if operands == values else None
            formulas, shapes = zip(*operands, strict=True)
            if sum(map(len, formulas)) > LONGEST - len("transpose(,)"):
                return None
            shape = formula_shape(function, shapes)
            return (applied(function, *formulas), shape) if shape else None

        if chosen(f"{name}.kind") == "convolution":
            return f"light{chosen(f'{name}.kernel')}"
        formula, shape = value(len(INPUTS) + self.positions - 1) or ("", "")
        return (
            formula
            if shape == "nd" and sum(name_of_input in formula for name_of_input in INPUTS) > 1
            else None
        )
