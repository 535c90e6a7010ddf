"""The folder objectives/methods is the registry: each method of `maskfront` a file and a test."""

import inspect
import math
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import pytest

import maskfront
from objectives import methods
from objectives.errors import UserError
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


RANGES = {
    ">= 1": "batch_size candidates edges every finalists heads_kept layers modules most_cells "
    "nodes parents population positions rewards rows sample sizes steps window",
    ">= 0": "cost_power draw entropy_weight flops_weight hidden_weight k noised "
    "orthogonality_weight penalty search_steps sparsity_weight spread teacher_forcing trial",
    "> 0": "damping epochs grad_rescale learning_rate search_epochs",
    "in [0, 1]": "alpha beta hints mu split",
    "in (0, 1]": "mutation ramp target_ratio update_share vocabulary",
    "in [0, 1)": "sparsity tolerance warmup",
    "in (0, 1)": "smallest threshold",
}
"""The numbers among the fields of methods whose range does not depend on another field."""
RANGE_OF = {name: within for within, names in RANGES.items() for name in names.split()}
BEYOND: dict[str, tuple[Any, ...]] = {
    ">= 1": (0, -1),
    ">= 0": (-1,),
    "> 0": (0, -1),
    "in [0, 1]": (-0.1, 1.1),
    "in (0, 1]": (0, 1.1),
    "in [0, 1)": (-0.1, 1),
    "in (0, 1)": (0, 1),
}
DEPENDENT = {"AdaBert.nodes", "CellSearch.epochs", "CellSearch.hidden_weight"}


@pytest.mark.parametrize("method", FOUND)
def test_a_value_out_of_range_is_refused_by_name(method: type[SearchMethod]) -> None:
    needed = {"trials": ""} if method is maskfront.Polish else {}
    hints = get_type_hints(method, include_extras=True)
    for field in fields(method):
        hint, path = hints[field.name], f"{method.__name__}.{field.name}"
        kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
        ranges = [get_args(kind) for kind in kinds if get_origin(kind) is Annotated]
        literal = any(get_origin(kind) is Literal for kind in kinds)
        wrong = ["nothing of the kind"] if ranges or literal else []
        if ranges:
            [(kind, within)] = ranges
            of_cells = field.name == "target_ratio" and ".cells." in method.__module__
            assert within == ("> 0" if of_cells else RANGE_OF[field.name]), path
            wrong += [*BEYOND[within], math.nan, *([1.5] if kind is int else [])]
        elif isinstance(field.default, int | float) and field.name in RANGE_OF:
            assert path in DEPENDENT, f"{path} has no range"
        for value in wrong:
            with pytest.raises(UserError, match=rf"{path} is .*; it must be"):
                method(**needed, **{field.name: value})


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
