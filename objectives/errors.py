"""The error that a user can mend: bad data, a wrong checkpoint, a setting out of range."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
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
    """Raise UserError for the first field of a dataclass whose type wants a number, a whole one, or
    a tuple, and that holds none: a range is checked afterwards. A list may stand for a tuple."""
    types = get_type_hints(type(owner))
    for field in fields(owner):
        hint, value = types[field.name], getattr(owner, field.name)
        union = get_args(hint) if isinstance(hint, UnionType) else (hint,)
        kinds = {get_origin(kind) or kind for kind in union}
        if value is None and NoneType in kinds:
            continue
        wanted = None
        whole = isinstance(value, Integral) and not isinstance(value, bool)
        if kinds <= {int, NoneType} and not whole:
            wanted = "a whole number"
        elif kinds <= {int, float, NoneType} and not isinstance(value, SupportsFloat):
            wanted = "a number"
        elif kinds <= {tuple, NoneType} and not isinstance(value, tuple | list):
            wanted = "a tuple: mind the comma in (x,)"
        if wanted:
            raise UserError(
                f"{type(owner).__name__}.{field.name} is {value!r}; it must be {wanted}"
            )


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
