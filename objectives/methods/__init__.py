"""Search methods, one a file. The folder is the registry: a file here is a method."""

from __future__ import annotations

import inspect
from importlib import import_module
from pkgutil import iter_modules

from objectives.search_method import SearchMethod


def names() -> list[str]:
    """Names of all methods: the modules of this folder."""
    return sorted(module.name for module in iter_modules(__path__))


def load(name: str) -> type[SearchMethod]:
    """The one search method that a module of this folder defines."""
    module = import_module(f"{__name__}.{name}")
    (method,) = (
        value
        for value in vars(module).values()
        if inspect.isclass(value)
        and issubclass(value, SearchMethod)
        and value.__module__ == module.__name__
    )
    return method
