"""The folder objectives/methods is the registry: each file a method, each method a test."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest

from objectives import methods
from objectives.search_method import SearchMethod
from tests.objectives.conformance import SearchMethodConformance


def test_every_file_of_the_folder_is_a_method() -> None:
    files = {file.stem for file in Path(methods.__file__).parent.glob("*.py")}
    assert set(methods.names()) == files - {"__init__"}
    assert "mask_search" in methods.names()


@pytest.mark.parametrize("name", methods.names())
def test_a_method_loads_by_name(name: str) -> None:
    method = methods.load(name)
    assert issubclass(method, SearchMethod)
    assert method.__module__ == f"objectives.methods.{name}"


@pytest.mark.parametrize("name", methods.names())
def test_a_method_has_a_conformance_test(name: str) -> None:
    file = Path(__file__).with_name(f"test_{name}.py")
    assert file.is_file(), f"objectives/methods/{name}.py has no tests/objectives/{file.name}"
    module = import_module(f"tests.objectives.test_{name}")
    classes = [
        value
        for key, value in vars(module).items()
        if key.startswith("Test") and issubclass(value, SearchMethodConformance)
    ]
    assert classes, f"{file.name} has no Test class that derives from SearchMethodConformance"
