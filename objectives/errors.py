"""The error that a user can mend: bad data, a wrong checkpoint, a setting out of range."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from difflib import get_close_matches
from numbers import Integral
from types import NoneType, UnionType
from typing import Any, Literal, SupportsFloat, get_args, get_origin, get_type_hints

SHOWN = 40
"""Characters of a name that an error shows: it may be a row of text."""


class UserError(ValueError):
    """What is wrong, where, and the remedy, in one line; the command line exits with 2."""


def first_line(error: BaseException) -> str:
    """What an error of a library says first, or its class where it says nothing."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def a_few(names: Sequence[str]) -> str:
    """The first three of them in quotes, long ones cut, and how many more there are."""
    more = f" and {len(names) - 3:,} more" if len(names) > 3 else ""
    return ", ".join(repr(name[:SHOWN]) for name in names[:3]) + more


def did_you_mean(name: str, there: Sequence[str]) -> str:
    """The one that `name` may stand for, as the end of a line; nothing if none is like it.

    One that differs only in case and the blanks around it comes before all others.
    """
    alike = [other for other in there if other.strip().lower() == name.strip().lower()]
    alike += get_close_matches(name, there, n=1)
    return f"; did you mean {alike[0]!r}?" if alike else ""


def check_types(owner: Any) -> None:
    """Raise UserError for the first field of a dataclass whose type wants numbers, whole ones, a
    tuple, or another dataclass, and that holds none: a range is checked afterwards. A list may
    stand for a tuple."""
    types = get_type_hints(type(owner))
    for field in fields(owner):
        value = getattr(owner, field.name)
        wanted = _wanted(types[field.name], value)
        if wanted:
            raise UserError(
                f"{type(owner).__name__}.{field.name} is {value!r}; it must be {wanted}"
            )


def _wanted(hint: Any, value: Any) -> str | None:
    """What a value of this type must be, if this one is none."""
    union = get_args(hint) if isinstance(hint, UnionType) else (hint,)
    if value is None and NoneType in union:
        return None
    choices = [choice for choice in union if choice is not NoneType]
    kinds = {get_origin(choice) or choice for choice in choices}
    if kinds == {int} and (isinstance(value, bool) or not isinstance(value, Integral)):
        return "a whole number"
    if kinds <= {int, float} and not isinstance(value, SupportsFloat):
        return "a number"
    if kinds == {tuple}:
        return _wanted_tuple(get_args(choices[0]), value)
    if isinstance(hint, type) and is_dataclass(hint) and not isinstance(value, hint):
        return f"a {hint.__name__}"
    return None


def _wanted_tuple(hints: tuple[Any, ...], value: Any) -> str | None:
    if not isinstance(value, tuple | list):
        return "a tuple: mind the comma in (x,)"
    if hints[-1] is Ellipsis:
        hints = hints[:1] * len(value)
    if len(value) != len(hints):
        return f"a tuple of {len(hints)}"
    wanted = next(filter(None, map(_wanted, hints, value)), None)
    return wanted and f"a tuple of which each is {wanted}"


def check_ranges(owner: object, ranges: Mapping[str, tuple[bool, str]]) -> None:
    """Raise UserError for the first field of `owner` that is out of its range.

    `ranges` says of each field whether its value is good, and what a good one is. A field whose
    type is a Literal need not be named.
    """
    types = get_type_hints(type(owner))
    choices = {name: get_args(own) for name, own in types.items() if get_origin(own) is Literal}
    allowed = {
        name: (getattr(owner, name) in values, f"one of {', '.join(values)}")
        for name, values in choices.items()
    }
    for name, (good, wanted) in {**allowed, **ranges}.items():
        if not good:
            raise UserError(
                f"{type(owner).__name__}.{name} is {getattr(owner, name)!r}; it must be {wanted}"
            )
