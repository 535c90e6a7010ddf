"""The folder objectives/methods is the registry: each file a method, each method a test."""

from __future__ import annotations

import inspect
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages

import pytest

from objectives import methods
from objectives.search_method import SearchMethod
from tests.objectives.conformance import SearchMethodConformance

NAMES = sorted(
    module.name.removeprefix("objectives.methods.")
    for module in walk_packages(methods.__path__, "objectives.methods.")
    if not module.ispkg
)


@pytest.mark.parametrize("name", NAMES)
def test_a_file_defines_one_method(name: str) -> None:
    module = import_module(f"objectives.methods.{name}")
    classes = [value for value in vars(module).values() if inspect.isclass(value)]
    own = [value for value in classes if value.__module__ == module.__name__]
    assert sum(issubclass(value, SearchMethod) for value in own) == 1


@pytest.mark.parametrize("name", NAMES)
def test_a_method_has_a_conformance_test(name: str) -> None:
    file = Path(__file__).with_name(f"test_{name.rpartition('.')[2]}.py")
    assert file.is_file(), f"objectives.methods.{name} has no {file.name} in tests"
    module = import_module(f"tests.objectives.methods.{file.stem}")
    classes = [
        value
        for key, value in vars(module).items()
        if key.startswith("Test") and issubclass(value, SearchMethodConformance)
    ]
    assert classes, f"{file.name} has no Test class that derives from SearchMethodConformance"
