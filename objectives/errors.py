"""The error that a user can mend: bad data, a wrong checkpoint, a setting out of range."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, get_args, get_origin, get_type_hints


class UserError(ValueError):
    """What is wrong, where, and the remedy, in one line; the command line exits with 2."""


def first_line(error: BaseException) -> str:
    """What an error of a library says first, or its class where it says nothing."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def one_of(
    owner: object, choices: Mapping[str, Sequence[str]] | None = None
) -> dict[str, tuple[bool, str]]:
    """For `check_ranges`: of each field whether its value is among its choices, and these.

    The choices are those of all fields that are a Literal, unless they are given.
    """
    if choices is None:
        types = get_type_hints(type(owner))
        choices = {name: get_args(own) for name, own in types.items() if get_origin(own) is Literal}
    return {
        name: (getattr(owner, name) in allowed, f"one of {', '.join(allowed)}")
        for name, allowed in choices.items()
    }


def check_ranges(owner: object, ranges: Mapping[str, tuple[bool, str]]) -> None:
    """Raise UserError for the first field of `owner` that is out of its range.

    `ranges` says of each field whether its value is good, and what a good one is.
    """
    for name, (good, wanted) in ranges.items():
        if not good:
            raise UserError(
                f"{type(owner).__name__}.{name} is {getattr(owner, name)!r}; it must be {wanted}"
            )
