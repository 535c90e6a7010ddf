"""Optuna's private members are used in one file."""

from __future__ import annotations

import re
import tokenize
from itertools import pairwise
from pathlib import Path

import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from orchestrator.optuna_private import holds

ROOT = Path(__file__).parents[2]
_PRIVATE = re.compile(r"_(storage|study_id|trial_id|system_attrs|suggest|contains|user_attrs)")


def test_no_other_file_uses_what_optuna_calls_private() -> None:
    def uses(file: Path) -> bool:
        with file.open("rb") as lines:
            tokens = [token.string for token in tokenize.tokenize(lines.readline)]
        return any(
            (before == "." and _PRIVATE.fullmatch(name)) or name.startswith("optuna._")
            for before, name in pairwise(tokens)
        ) or bool(re.search(r"^from optuna\.(\w+\.)*_", file.read_text(), re.MULTILINE))

    files = [
        file for package in ("orchestrator", "reports") for file in (ROOT / package).rglob("*.py")
    ]
    assert [file.name for file in files if uses(file)] == ["optuna_private.py"]


@pytest.mark.parametrize(
    ("knob", "inside", "outside"),
    [
        (FloatDistribution(0, 1), 0.5, 2.0),
        (IntDistribution(0, 4, step=2), 2, 1),
        (CategoricalDistribution(["a", None]), None, "b"),
        (FloatDistribution(0, 1), 1, "a"),
    ],
)
def test_a_knob_tells_what_it_holds(
    knob: FloatDistribution, inside: object, outside: object
) -> None:
    assert holds(knob, inside)
    assert not holds(knob, outside)
