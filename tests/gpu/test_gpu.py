"""The path that a GPU takes, on a stand-in for one: see stand_in.py for what that shows.

Where torch was built for CUDA and finds a GPU, on that GPU: `python -m pytest tests/gpu`.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from objectives.cache import kernel_lock
from objectives.delivery.exported import load_model
from objectives.measures.evaluate import score
from objectives.methods.cells.cell_search import CellSearch
from objectives.session import Session
from objectives.students.bert.pruned_bert import PrunedBertForSequenceClassification
from objectives.workbench.inputs import read_inputs
from objectives.workbench.teacher import Teacher
from objectives.workbench.workbench import Workbench, prepare
from orchestrator.runs.records import RunRecord, read_run
from orchestrator.runs.run_folder import RunFolder
from tests.gpu.driver import LOOPS, METHODS, NUMBERS, ONE_TRAINING, RATIOS
from tests.gpu.stand_in import library
from tests.matrix import combinations
from tests.objectives.conformance import TRAINED_ATOL

pytestmark = pytest.mark.timeout(1800)

REAL = torch.version.cuda is not None
"""Not the stand-in."""
ATOL = 1e-3 if REAL else TRAINED_ATOL
"""Its kernels are the CPU's; those of a GPU round in ways of their own, which differ with the shape
(the stand-in with noise of a rounding error on its results: 3e-4 in one method)."""
METRIC_ATOL = 1e-3 if REAL else 1e-6
"""Two answers closer than rounding can change places: a rank of 48 costs 1e-4."""


@pytest.fixture(scope="module")
def folder(tiny_bert: str, tiny_masked_lm: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the driver wrote: once, for all workers of the tests."""
    if REAL and not torch.cuda.is_available():
        pytest.skip(
            "this torch was built for CUDA and finds no GPU; the stand-in wants one without"
        )
    if not REAL and shutil.which("g++") is None:
        pytest.skip("no C++ compiler here, which the stand-in for a GPU needs: apt-get install g++")
    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent
    out = shared / "gpu"
    with kernel_lock(shared / "gpu.lock"):
        if not out.exists():
            _drive(tiny_bert, tiny_masked_lm, out)
    log = (out / "log").read_text()
    assert not log, log
    return out


def _drive(checkpoint: str, masked_lm: str, out: Path) -> None:
    out.mkdir()
    preload = {} if REAL else {"LD_PRELOAD": str(library(out))}
    driver = subprocess.run(
        [sys.executable, "-m", "tests.gpu.driver", checkpoint, masked_lm, str(out)],
        cwd=Path(__file__).parents[2],
        env={**os.environ, **preload},
        stderr=subprocess.PIPE,
        text=True,
    )
    (out / "log").write_text(driver.stderr if driver.returncode else "")


@pytest.fixture(scope="module")
def found(folder: Path) -> dict[str, dict[str, Any]]:
    by_method: dict[str, dict[str, Any]] = json.loads((folder / "found.json").read_text())
    return by_method


@pytest.mark.slow
def test_it_is_seen_what_waits(folder: Path) -> None:
    assert json.loads((folder / "sees.json").read_text()) == {
        "compute": 0,
        "read a value": 1,
        "bring it back": 1,
        "send": 1,
        # From memory that is not pinned the driver may wait; torch does not call that waiting.
        "send without waiting": 0 if REAL else 1,
        "send from pinned memory": 0,
        "choose by truth": 1,
        "choose by places on the host": 1,
        "add a number": 0,
        "add a tensor of the host": -1,
        "choose of the host": -1,
        "put into the host": -1,
        "draw with a generator of the host": -1,
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_finds_what_it_finds_on_a_cpu(found: dict[str, dict[str, Any]], name: str) -> None:
    assert found[name]["same_architectures"]
    assert found[name]["from_cpu"] < ATOL


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_a_slot_is_the_same_trial_alone(found: dict[str, dict[str, Any]], name: str) -> None:
    assert found[name]["from_alone"] < ATOL


@pytest.mark.slow
def test_recorded_steps_are_the_plain_ones(folder: Path) -> None:
    """The stand-in records nothing: there both are plain."""
    recorded = json.loads((folder / "recorded.json").read_text())
    assert recorded["recordings"] > 1 if REAL else not recorded["recordings"]
    assert recorded["apart"] < ATOL


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_no_step_waits_for_the_device(found: dict[str, dict[str, Any]], name: str) -> None:
    assert not found[name]["waits"]


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in METHODS if n not in LOOPS | ONE_TRAINING])
def test_a_step_asks_as_little_of_the_device_for_twice_as_many_students(
    found: dict[str, dict[str, Any]], name: str
) -> None:
    # A step that is replayed asks for little more than its inputs.
    assert (max if REAL else min)(found[name]["operations"]) > 100
    pairs = zip(found[name]["operations"], found[name]["operations_of_twice"], strict=True)
    # AdamW moves students of different rates one by one: two groups each, and their steps' numbers.
    assert all(more - few <= 4 * len(RATIOS) for few, more in pairs)


def test_no_method_is_missing() -> None:
    """Those that search for operations, and `ApsT`, wait for alpha at each step; tests/matrix has
    them."""
    examined = {type(method).__module__ for method in METHODS.values()}
    names = {method.__module__ for method in combinations.METHODS.values()}
    waiting = {name for name in names if ".cells." in name or name.endswith(".aps_t")}
    assert examined == names - waiting | {CellSearch.__module__}


def score_the_same_on_a_cpu(run: RunRecord, bench: Workbench) -> None:
    """The files of all finished trials."""
    for trial in run.finished:
        model = load_model(RunFolder(run.folder).model(trial.number))
        assert isinstance(model, PrunedBertForSequenceClassification)
        assert score(model, bench.select, bench.metric, "cpu") == pytest.approx(
            trial.result.metric, abs=METRIC_ATOL
        )
        assert trial.feasible


@pytest.mark.slow
def test_models_of_bfloat16_score_the_same_on_a_cpu(folder: Path, workbench: Workbench) -> None:
    run = read_run(folder / "run")
    assert len(run.finished) == 4
    score_the_same_on_a_cpu(run, workbench)
    products = json.loads((folder / "products.json").read_text())
    assert products["torch.bfloat16"] > products["torch.float32"]  # the scores' are in float32


@pytest.mark.slow
def test_so_does_one_of_numbers(folder: Path, tiny_bert: str, tmp_path: Path) -> None:
    run = read_run(folder / "numbers")
    assert len(run.finished) == 2
    assert run.unpruned.metric > 0.9
    assert run.unpruned.ratio > 2, "the teacher is larger than the student of ratio 1"
    inputs = read_inputs(NUMBERS, Teacher(checkpoint=tiny_bert, epochs=1))
    bench = prepare(inputs, session=Session(cache=tmp_path))
    score_the_same_on_a_cpu(run, bench)
