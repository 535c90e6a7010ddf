"""The path that a GPU takes, on a stand-in for one: see stand_in.py for what that shows."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from objectives.evaluate import score
from objectives.onnx_model import load_model
from objectives.problem import Workbench
from objectives.pruned_bert import PrunedBertForSequenceClassification
from orchestrator.records import read_run
from tests.gpu.driver import METHODS
from tests.gpu.stand_in import library
from tests.objectives.conformance import TRAINED_ATOL

STEADY = [name for name in METHODS if name != "WidthSearch, interpolated"]
"""All but one that reads back, for each student and layer, which two widths to interpolate."""

pytestmark = [pytest.mark.timeout(300), pytest.mark.xdist_group("gpu")]


@pytest.fixture(scope="module")
def folder(tiny_bert: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the driver wrote."""
    if shutil.which("g++") is None:
        pytest.skip("no C++ compiler here, which the stand-in for a GPU needs: apt-get install g++")
    out = tmp_path_factory.mktemp("gpu")
    driver = subprocess.run(
        [sys.executable, "-m", "tests.gpu.driver", tiny_bert, str(out)],
        env={**os.environ, "LD_PRELOAD": str(library(out))},
        stderr=subprocess.PIPE,
        text=True,
    )
    assert driver.returncode == 0, driver.stderr
    return out


@pytest.fixture(scope="module")
def found(folder: Path) -> dict[str, dict[str, Any]]:
    by_method: dict[str, dict[str, Any]] = json.loads((folder / "found.json").read_text())
    return by_method


def test_the_stand_in_sees_what_would_wait_and_refuses_what_cuda_refuses(folder: Path) -> None:
    assert json.loads((folder / "sees.json").read_text()) == {
        "compute": 0,
        "read a value": 1,
        "bring it back": 1,
        "send": 1,
        "send without waiting": 1,  # which is in vain from pageable memory
        "send from pinned memory": 0,
        "choose by truth": 1,
        "choose by places on the host": 1,
        "add a number": 0,
        "add a tensor of the host": -1,
    }


@pytest.mark.parametrize("name", METHODS)
def test_finds_what_it_finds_on_a_cpu(found: dict[str, dict[str, Any]], name: str) -> None:
    assert found[name]["same_architectures"]
    assert found[name]["from_cpu"] < TRAINED_ATOL


@pytest.mark.parametrize("name", METHODS)
def test_a_slot_of_a_population_is_the_same_trial_alone(
    found: dict[str, dict[str, Any]], name: str
) -> None:
    assert found[name]["from_alone"] < TRAINED_ATOL
    assert found[name]["after_a_stop"] < TRAINED_ATOL


@pytest.mark.parametrize("name", STEADY)
def test_no_step_waits_for_the_device(found: dict[str, dict[str, Any]], name: str) -> None:
    assert found[name]["waits"] == []


@pytest.mark.parametrize("name", STEADY)
def test_a_step_asks_as_little_of_the_device_for_six_students_as_for_three(
    found: dict[str, dict[str, Any]], name: str
) -> None:
    assert found[name]["operations"] == found[name]["operations_of_six"]


def test_a_study_in_bfloat16_leaves_models_that_score_the_same_on_a_cpu(
    folder: Path, workbench: Workbench
) -> None:
    run = read_run(folder / "run")
    assert len(run.finished) == 4
    for trial in run.finished:
        model = load_model(run.folder / trial.result.model)
        assert isinstance(model, PrunedBertForSequenceClassification)
        metric = score(model, workbench.select, workbench.metric, "cpu")
        assert metric == trial.result.metric
        assert trial.feasible
