"""The contract's own helpers: what makes a population, and what `per_slot` may name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

import pytest

from objectives.errors import UserError
from objectives.problem import Problem
from objectives.search_method import Outcome, Progress, SearchMethod, populations


@dataclass(frozen=True, kw_only=True)
class Stub(SearchMethod):
    per_slot: ClassVar[frozenset[str]] = frozenset({"ratio"})

    ratio: float = 0.5
    width: int = 1

    @classmethod
    def search(
        cls, members: Sequence[Self], problem: Problem, *, seed: int, progress: Progress
    ) -> Iterator[Outcome]:
        yield from ()


@dataclass(frozen=True, kw_only=True)
class OtherStub(SearchMethod):
    per_slot: ClassVar[frozenset[str]] = frozenset({"ratio"})

    ratio: float = 0.5
    width: int = 1

    search = Stub.search


def test_copies_that_differ_only_per_slot_train_together() -> None:
    members = [Stub(), Stub(width=2), Stub(ratio=0.1), Stub(ratio=0.2, width=2)]
    assert populations(members) == [[0, 2], [1, 3]]


def test_two_methods_never_train_together() -> None:
    assert populations([Stub(), OtherStub()]) == [[0], [1]]


def test_per_slot_that_names_no_field_is_refused_when_the_class_is_made() -> None:
    with pytest.raises(TypeError, match=r"Misspelt\.per_slot names no field: \['ration'\]"):

        class Misspelt(SearchMethod):
            per_slot: ClassVar[frozenset[str]] = frozenset({"ration"})
            ratio: float = 0.5


@pytest.mark.parametrize("field", ["spaces", "width"])
def test_a_list_is_refused_since_fields_are_compared(field: str) -> None:
    with pytest.raises(UserError, match=rf"Stub\.{field} is a list; give a tuple: \('ffn',\)"):
        Stub(**{field: ["ffn"]})  # type: ignore[arg-type]
