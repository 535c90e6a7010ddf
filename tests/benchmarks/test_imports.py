"""Every benchmark still fits the code that it measures."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest

import benchmarks

SCRIPTS = sorted(file.stem for file in Path(benchmarks.__path__[0]).glob("*.py"))


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_benchmark_can_be_started(script: str) -> None:
    assert import_module(f"benchmarks.{script}").__doc__
