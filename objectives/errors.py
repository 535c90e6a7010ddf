"""The error that a user can mend: bad data, a wrong checkpoint, a setting out of range."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Integral
from types import NoneType
from typing import Literal, get_args, get_origin, get_type_hints


class UserError(ValueError):
    """What is wrong, where, and the remedy, in one line; the command line exits with 2."""


def first_line(error: BaseException) -> str:
    """What an error of a library says first, or its class where it says nothing."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def check_ranges(owner: object, ranges: Mapping[str, tuple[bool, str]]) -> None:
    """Raise UserError for the first field of `owner` that is out of its range.

    `ranges` says of each field whether its value is good, and what a good one is. A field whose
    type is a Literal, an int, or an int or None need not be named.
    """
    types = get_type_hints(type(owner))
    choices = {name: get_args(own) for name, own in types.items() if get_origin(own) is Literal}
    allowed = {
        name: (getattr(owner, name) in values, f"one of {', '.join(values)}")
        for name, values in choices.items()
    }
    whole = {
        name: (
            isinstance(getattr(owner, name), Integral)
            or (own is not int and getattr(owner, name) is None),
            "a whole number" if own is int else "a whole number, or None",
        )
        for name, own in types.items()
        if own is int or set(get_args(own)) == {int, NoneType}
    }
    for name, (good, wanted) in [*{**allowed, **ranges}.items(), *whole.items()]:
        if not good:
            raise UserError(
                f"{type(owner).__name__}.{name} is {getattr(owner, name)!r}; it must be {wanted}"
            )
