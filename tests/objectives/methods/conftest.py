"""What the tests of search methods share."""

from dataclasses import replace
from pathlib import Path

import pytest

from objectives.problem import Problem


@pytest.fixture
def fresh(problem: Problem, tmp_path: Path) -> Problem:
    """The tiny problem in a run of its own: nothing is in its cache."""
    return replace(problem, cache=tmp_path / "cache")
