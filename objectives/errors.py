"""Errors that a user can mend, such as bad data or a setting out of range, without passwords."""

import inspect
import json
import os
import re
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from difflib import get_close_matches
from functools import cache, partial, wraps
from html import escape
from math import inf
from numbers import Integral
from pathlib import Path
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    ParamSpec,
    Self,
    SupportsFloat,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

Given = ParamSpec("Given")
Result = TypeVar("Result")
SHOWN = 40
"""Characters of a name that an error shows, as it may be a row of text."""


class MaskfrontError(Exception):
    """Error that a user can mend: the fault, where it is, and the remedy, in one line. The command
    line prints the flags of its parameters, and exits with 2."""

    def __init__(self, text: str, *parameters: str):
        text = hide_passwords(text)
        super().__init__(text, *parameters)  # all of them: unpickling calls it with what is here
        self.text = text
        """Text with the fault, where it is, and the remedy."""
        self.parameters = parameters
        """Parameters of the Python call that mend it."""

    def __str__(self) -> str:
        return self.naming("{}=...".format)

    def naming(self, shown: Callable[[str], str]) -> str:
        """Return the text with the parameters after it.

        Args:
            shown: how a parameter is written where the error is read.

        Returns:
            One line.
        """
        names = ", ".join(map(shown, self.parameters))
        return f"{self.text} ({names})" if names else self.text


class UserError(MaskfrontError, ValueError):
    """Fault in what a study names: a setting, its data, a checkpoint."""


def first_line(error: BaseException) -> str:
    """First line of a library's error, or its class if the message is empty."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def causes(error: BaseException) -> Iterator[BaseException]:
    """Iterate over an error and its chain of causes."""
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__


def a_few(names: Sequence[str]) -> str:
    """List the first three names in quotes, long ones cut, and how many more there are."""
    more = f" and {len(names) - 3:,} more" if len(names) > 3 else ""
    return ", ".join(repr(name[:SHOWN]) for name in names[:3]) + more


def did_you_mean(name: str, there: Sequence[str]) -> str:
    """Suggest the name that was meant, as the end of a line; empty if none is similar."""
    alike = [other for other in there if other.strip().lower() == name.strip().lower()]
    alike += get_close_matches(name, there, n=1)
    return f"; did you mean {alike[0]!r}?" if alike else ""


def check_spelling(owner: str, given: Iterable[str], names: Collection[str]) -> None:
    """Raise UserError for the first given name that the owner does not have."""
    for name in given:
        if name not in names:
            hint = did_you_mean(name, list(names))
            raise UserError(f"{owner} has no setting '{name}'{hint}")


def spelled(function: Callable[Given, Result]) -> Callable[Given, Result]:
    """Decorate a public function, so that `check_spelling` refuses misspelt keywords."""
    names = inspect.signature(function).parameters

    @wraps(function)
    def checked(*args: Given.args, **keywords: Given.kwargs) -> Result:
        check_spelling(function.__qualname__, keywords, names)
        return function(*args, **keywords)

    return checked


PositiveInt = Annotated[int, ">= 1"]
NonNegativeInt = Annotated[int, ">= 0"]
PositiveFloat = Annotated[float, "> 0"]
NonNegativeFloat = Annotated[float, ">= 0"]
Share = Annotated[float, "in [0, 1]"]
PositiveShare = Annotated[float, "in (0, 1]"]
ShareBelowOne = Annotated[float, "in [0, 1)"]
InnerShare = Annotated[float, "in (0, 1)"]
Finite = Annotated[float, "a finite number"]
FinitePositive = Annotated[float, "a finite number above 0"]

_RANGES: dict[str, Callable[[Any], bool]] = {
    ">= 1": lambda value: value >= 1,
    ">= 2": lambda value: value >= 2,
    ">= 4": lambda value: value >= 4,
    ">= 0": lambda value: value >= 0,
    "> 0": lambda value: value > 0,
    "in [0, 1]": lambda value: 0 <= value <= 1,
    "in (0, 1]": lambda value: 0 < value <= 1,
    "in [0, 1)": lambda value: 0 <= value < 1,
    "in (0, 1)": lambda value: 0 < value < 1,
    "a finite number": lambda value: -inf < value < inf,
    "a finite number above 0": lambda value: 0 < value < inf,
}

# Cached, for a launch asks a thousand times.
types_of: Callable[[Any], dict[str, Any]] = cache(partial(get_type_hints, include_extras=True))


class Checked:
    """Base of dataclasses that check the names and the types of their fields."""

    def __new__(cls, *_: object, **settings: object) -> Self:
        """Raises UserError for a name that is no field."""
        names = [field.name for field in fields(cls)]  # type: ignore[arg-type]  # of a subclass
        check_spelling(cls.__name__, settings, names)
        return super().__new__(cls)

    def __post_init__(self) -> None:
        check_types(self)


def check_types(owner: Any) -> None:
    """Raise UserError for the first field of a dataclass whose value does not have its type."""
    types = types_of(type(owner))
    for field in fields(owner):
        right = wanted(types[field.name], getattr(owner, field.name))
        if right:
            check_ranges(owner, **{field.name: (False, right)})


def check_ranges(owner: object, /, **ranges: tuple[bool, str]) -> None:
    """Raise UserError for the first field that is not good, given what a good one is."""
    for name, (good, wanted) in ranges.items():
        if not good:
            raise UserError(
                f"{type(owner).__name__}.{name} is {getattr(owner, name)!r}; it must be {wanted}"
            )


_NAMES = {
    int: "a whole number",
    float: "a number",
    str: "a string",
    bool: "True or False",
    Path: "a path",
    NoneType: "None",
}


def wanted(hint: Any, value: Any) -> str | None:
    """Describe the wanted type if the value does not have it; types unknown here allow anything."""
    if type(value) is hint:  # in most cases, and the rest takes long
        return None
    choices = list(get_args(hint)) if get_origin(hint) in (Union, UnionType) else [hint]
    if type(value) in choices:
        return None
    if float in choices and int in choices:
        choices.remove(int)
    each = [_wanted_one(choice, value) for choice in choices]
    return None if None in each else " or ".join(filter(None, each))


def _wanted_one(kind: Any, value: Any) -> str | None:
    if type(value) is kind:
        return None
    origin = get_origin(kind)
    if origin is tuple:
        return _wanted_tuple(get_args(kind), value)
    if origin is Mapping:
        if not isinstance(value, Mapping):
            return "a mapping"
        right = next(filter(None, map(partial(wanted, get_args(kind)[1]), value.values())), None)
        return right and f"a mapping of which each is {right}"
    if origin is Literal:
        among = get_args(kind)
        named = f"one of {', '.join(map(str, among))}" if len(among) > 1 else repr(among[0])
        return None if isinstance(value, Hashable) and value in among else named
    if origin is Annotated:
        number, within = get_args(kind)
        return _wanted_one(number, value) or (None if _RANGES[within](value) else within)
    if kind not in _NAMES and not (isinstance(kind, type) and is_dataclass(kind)):
        return None
    accepted: Any = {int: Integral, float: (float, int, SupportsFloat)}.get(kind, kind)
    array, truth = getattr(value, "ndim", 0) > 0, kind is int and isinstance(value, bool)
    if isinstance(value, accepted) and not array and not truth:
        return None
    if kind in _NAMES:
        return _NAMES[kind]
    return " or ".join(f"{item.__name__}(...)" for item in kind.__subclasses__() or [kind])


def _wanted_tuple(hints: tuple[Any, ...], value: Any) -> str | None:
    given = isinstance(value, tuple | list)
    if hints[-1] is Ellipsis:
        if not given:
            return "a tuple: mind the comma in (x,)"
        hints = hints[:1] * len(value)
    if not given or len(value) != len(hints):
        return f"a tuple of {len(hints)}"
    right = next(filter(None, map(wanted, hints, value)), None)
    return right and f"a tuple of which each is {right}"


_known: set[str] = set()
_SHORT = 4  # a password below this length is hidden as a whole word only
_NAME = r"(?:pass(?:word|wd|phrase)|pwd)"
_IN_URL = re.compile(r"""(\w[\w+.-]{0,30}://[^\s/?#@:"'<>]*):[^\s"'<>]*@""")
_IN_ENVIRONMENT = re.compile(r"(?:pass(?:word|wd|phrase)|_pwd)$", re.IGNORECASE)
_NAMED = re.compile(
    rf"""({_NAME}(?:["']\s*,|["']?\]?\s*[:=]=?)\s*)  # password=, "password":, environ["PASSWORD"] =
    (?:[\w.\[\]| ]*\s=\s*)?                          # the type in password: str = "..."
    (?:"(?:\\.|[^"\\])*"?|'(?:\\.|[^'\\])*'?|[^\s&;,"']+)""",
    re.VERBOSE | re.IGNORECASE,
)


def know_password(password: str) -> None:
    """Hide this password from now on."""
    _known.add(password)


def hide_passwords(text: str) -> str:
    """Replace passwords by ***, and remove them from URLs: those given to `know_password`, those of
    the environment, in any spelling, and whatever follows user: or password= in others."""
    in_environment = {value for name, value in os.environ.items() if _IN_ENVIRONMENT.search(name)}
    for password in sorted(filter(None, _known | in_environment), key=len, reverse=True):
        text = _spellings(password).sub("***", text)
    return _NAMED.sub(r"\1***", _IN_URL.sub(r"\1@", text))


@cache
def _spellings(password: str) -> re.Pattern[str]:
    """Pattern of a password as it is, or as URLs, JSON, Python, libpq, a shell or HTML write it."""
    text = "".join(map(_spellings_of, password))
    return re.compile(text if len(password) >= _SHORT else rf"(?<!\w){text}(?!\w)")


def _spellings_of(character: str) -> str:
    percent = "".join(f"%{byte:02X}" for byte in character.encode(errors="surrogatepass"))
    twice, plus = percent.replace("%", "%25"), ["+"] if character == " " else []
    coded = [json.dumps(character)[1:-1], repr(character)[1:-1]]
    shell = ["'\"'\"'", "'\\''"] if character == "'" else []
    forms = {character, percent, percent.lower(), twice, twice.lower(), *coded, *shell, *plus}
    longest_first = sorted(forms | set(map(escape, forms)), key=len, reverse=True)
    # Each text that is quoted in another has its backslashes doubled.
    any_form = "|".join(map(re.escape, longest_first)).replace(r"\\", r"\\+")
    return rf"\\*(?:{any_form})"
