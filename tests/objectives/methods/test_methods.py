"""The folder objectives/methods is the registry: each file a method, each method a test."""

from __future__ import annotations

import inspect
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

import pytest

from objectives import methods
from objectives.search_method import SearchMethod
from tests.objectives.conformance import SearchMethodConformance

NAMES = sorted(module.name for module in iter_modules(methods.__path__))


@pytest.mark.parametrize("name", NAMES)
def test_a_file_defines_one_method(name: str) -> None:
    module = import_module(f"objectives.methods.{name}")
    classes = [value for value in vars(module).values() if inspect.isclass(value)]
    own = [value for value in classes if value.__module__ == module.__name__]
    assert sum(issubclass(value, SearchMethod) for value in own) == 1


@pytest.mark.parametrize("name", NAMES)
def test_a_method_has_a_conformance_test(name: str) -> None:
    file = Path(__file__).with_name(f"test_{name}.py")
    assert file.is_file(), (
        f"objectives/methods/{name}.py has no tests/objectives/methods/{file.name}"
    )
    module = import_module(f"tests.objectives.methods.test_{name}")
    classes = [
        value
        for key, value in vars(module).items()
        if key.startswith("Test") and issubclass(value, SearchMethodConformance)
    ]
    assert classes, f"{file.name} has no Test class that derives from SearchMethodConformance"
