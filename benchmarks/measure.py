"""Run a benchmark of the registry: python -m benchmarks.measure NAME [--cache FOLDER] ..."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from benchmarks.harness import Benchmark, parsed

MODULES = {
    "base": ["base"],
    "bits": ["bits"],
    "cascade": ["cascade"],
    "cells": ["cells", "noised", "several_tasks", "systems"],
    "check": ["check"],
    "compress": ["compress"],
    "engines": ["latency_table", "onnx_kernels"],
    "few_bits": ["elastic_bits", "few_bits", "post_training"],
    "gate": ["gate"],
    "long_texts": ["long_texts"],
    "pruning": ["elastic", "few_rows", "generic", "interpolation", "unlabelled"],
    "rivals": ["rivals"],
    "seed_table": ["seed_table"],
    "smallest": ["smallest"],
    "steps": ["bert_base", "inner_search", "population", "step_cost"],
    "strategies": ["cell_table", "strategies"],
    "teachers": ["ensemble", "general", "teachers"],
    "two_methods": ["two_methods"],
}
"""Names of the benchmarks of each module."""
NAMES = {name: module for module, names in MODULES.items() for name in names}


def benchmark_of(name: str) -> type[Benchmark[Any]]:
    """Load a benchmark by its name."""
    module = vars(import_module(f"benchmarks.{NAMES[name]}"))
    classes = [part for part in module.values() if isinstance(part, type)]
    [benchmark] = [part for part in classes if getattr(part, "name", None) == name]
    assert issubclass(benchmark, Benchmark)
    return benchmark


def main(words: Sequence[str] | None = None) -> None:
    """Read the name and its options, measure what is missing, print the table."""
    words = sys.argv[1:] if words is None else words
    names = argparse.ArgumentParser(description=__doc__)
    names.add_argument("name", choices=sorted(NAMES))
    benchmark = benchmark_of(names.parse_args(words[:1]).name)
    benchmark(parsed(benchmark.parser(), words[1:])).run()


if __name__ == "__main__":
    main()
