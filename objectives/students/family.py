"""What a search method says of the student that it found, whatever model that is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol


class Architecture(Protocol):
    """The discrete answer of a search; `bert.architecture.BertArchitecture` is BERT's."""

    def to_json(self) -> str:
        """One line of JSON, which a trial keeps as architecture.json."""

    def sizes(self) -> Mapping[str, tuple[int, ...]]:
        """What reports draw: for each kind of units how many are left, one number a layer."""
