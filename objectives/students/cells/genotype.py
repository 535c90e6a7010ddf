"""A genotype: what a search chose at each place of a cell."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from objectives.errors import UserError, did_you_mean
from objectives.students.cells.operations import HEAD_DIM, NONE, OPERATIONS


@dataclass(frozen=True)
class Genotype:
    """The architecture of a `CellForSequenceClassification`."""

    width: int
    """D, dimensions of its hidden states: a multiple of `HEAD_DIM`."""
    operations: tuple[str, ...]
    """One for each block, in their order: names of `OPERATIONS`. "none", which is no block, may be
    given and is dropped: a model has one genotype, whose JSON is its canonical form."""

    def __post_init__(self) -> None:
        """Raises UserError for what makes no model."""
        if self.width < 1 or self.width % HEAD_DIM:
            raise UserError(f"width is {self.width}; it must be a multiple of {HEAD_DIM}, > 0")
        known = [*OPERATIONS, NONE]
        for name in self.operations:
            if name not in known:
                raise UserError(
                    f"there is no operation '{name}'{did_you_mean(name, known)}; they are "
                    f"{', '.join(known)}"
                )
        blocks = tuple(name for name in self.operations if name != NONE)
        object.__setattr__(self, "operations", blocks)

    def to_json(self) -> str:
        """One line."""
        return json.dumps({"width": self.width, "operations": self.operations})

    @classmethod
    def from_json(cls, text: str) -> Genotype:
        """What `to_json` wrote. Raises UserError for anything else."""
        try:
            said = json.loads(text)
            return cls(int(said["width"]), tuple(map(str, said["operations"])))
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(f"this is no genotype: {text[:80]!r}") from error

    def sizes(self) -> Mapping[str, tuple[int, ...]]:
        """The width of each block, under the name of its operation; 0 where it has another."""
        return {
            name: tuple(self.width if name == own else 0 for own in self.operations)
            for name in dict.fromkeys(self.operations)
        }
