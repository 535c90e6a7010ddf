"""Every benchmark still fits the code that it measures."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest

import benchmarks
from benchmarks.measure import NAMES, benchmark_of

SCRIPTS = sorted(file.stem for file in Path(benchmarks.__path__[0]).glob("*.py"))


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_benchmark_can_be_started(script: str) -> None:
    assert import_module(f"benchmarks.{script}").__doc__


@pytest.mark.parametrize("name", NAMES)
def test_the_registry_knows_its_benchmarks_and_their_options(name: str) -> None:
    benchmark = benchmark_of(name)
    assert (benchmark.__doc__ or "").split("\n", 1)[0].rstrip("?:.").strip()
    parser = benchmark.parser()
    given = ["--cache", "folder"] if benchmark.cache else []
    check = ["folder", "model", "source"]
    required = {"gate": ["run"], "check": check, "long_texts": ["texts"]}
    given += [word for option in required.get(name, ()) for word in (f"--{option}", "folder")]
    asked = parser.parse_args(given)
    keys = list(benchmark.keys(benchmark(asked)))
    assert keys
    assert len({str(key) for key in keys}) == len(keys)
