"""The contract's own helpers: what makes a population, and what `per_slot` may name."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import pytest

from objectives.errors import UserError
from objectives.problem import Problem
from objectives.progress import Progress
from objectives.search_method import Outcome, SearchMethod, populations


@dataclass(frozen=True, kw_only=True)
class Stub(SearchMethod):
    per_slot: ClassVar[frozenset[str]] = frozenset({"ratio"})

    ratio: float = 0.5
    width: int = 1
    spaces: tuple[str, ...] = ("ffn",)

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


def test_a_list_is_refused_since_fields_are_compared() -> None:
    with pytest.raises(UserError, match=r"Stub\.spaces is a list; give a tuple: \('ffn',\)"):
        Stub(spaces=["ffn"])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("field", "value", "wanted"),
    [
        ("spaces", "ffn", r"a tuple: mind the comma in \(x,\)"),
        ("spaces", None, "a tuple"),
        ("ratio", "0.5", "a number"),
        ("ratio", None, "a number"),
        ("width", [1], "a whole number"),
    ],
)
def test_what_is_no_number_or_no_tuple_is_refused(field: str, value: Any, wanted: str) -> None:
    said = rf"Stub\.{field} is {re.escape(repr(value))}; it must be {wanted}"
    with pytest.raises(UserError, match=said):
        Stub(**{field: value})
