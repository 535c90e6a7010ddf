"""The folder objectives/methods is the registry: each method of `maskfront` a file and a test."""

import inspect
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages

import pytest

import maskfront
from objectives import methods
from objectives.search_method import SearchMethod
from tests.objectives.conformance import SearchMethodConformance

FOUND = {
    method: module.name
    for module in walk_packages(methods.__path__, "objectives.methods.")
    for method in vars(import_module(module.name)).values()
    if inspect.isclass(method)
    and issubclass(method, SearchMethod)
    and not inspect.isabstract(method)
    and method.__module__ == module.name
}


def test_a_file_defines_one_method_which_is_public() -> None:
    assert len(set(FOUND.values())) == len(FOUND)
    assert all(getattr(maskfront, method.__name__, None) is method for method in FOUND)


@pytest.mark.parametrize("name", FOUND.values())
def test_a_method_has_a_conformance_test(name: str) -> None:
    file = name.rpartition(".")[2]
    near = [Path(__file__).parent / part / f"test_{file}.py" for part in ("", "cells", "elastic")]
    found = next((path for path in near if path.is_file()), None)
    assert found, f"{name} has no test_{file}.py in tests"
    path = ".".join(found.relative_to(Path(__file__).parents[3]).with_suffix("").parts)
    classes = [
        value
        for key, value in vars(import_module(path)).items()
        if key.startswith("Test") and issubclass(value, SearchMethodConformance)
    ]
    assert classes, f"{found.name} has no Test class that derives from SearchMethodConformance"
