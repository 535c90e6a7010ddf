"""A run in which one thing is damaged, another version's or a stranger's is read right, or refused
in one line."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from random import Random

import pytest

from objectives.measures.bootstrap import Worth
from orchestrator.runs.records import (
    BEGAN,
    FEATURES,
    HOME,
    NOTES,
    POPULATION,
    TUNED,
    WANTED,
    WORDS,
    WORKER,
    load_optuna_study,
    read_run,
)
from orchestrator.runs.run_folder import RunFolder
from orchestrator.workers.heartbeat import WORKERS, WorkerRecord
from tests.reports.conftest import many_run, store_run
from tests.reports.mutated import READERS, change_attribute, change_file, problems

_QUICK = 10
CHANGES = int(os.environ.get("MUTATIONS", "60"))
"""Number of changed runs; `make soak` reads more."""


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A run that has all that a run may have, but weights."""
    folder = RunFolder(tmp_path_factory.mktemp("runs") / "mutated")
    store_run(folder, many_run(12))
    worker = WorkerRecord(name="w-1", host="w", machine="m", pid=1, device="cpu", beat=1, at=1.0)
    words = Worth(metric=0.5, interval=(0.4, 0.6), heldout_metric=0.5, heldout_interval=(0.4, 0.6))
    for name, value in {
        WORKERS + worker.name: asdict(worker),
        WORDS: asdict(words),
        WANTED: 12,
        NOTES: ["12 rows read"],
        FEATURES: {"rows": 3.0},
        TUNED: {"trial": 1, "selection loss": 0.3},
        HOME: {"folder": "id", "path": str(folder.path), "host": "w"},
    }.items():
        load_optuna_study(folder.path).set_user_attr(name, value)
    of_trials = {BEGAN: 1.8e9, WORKER: worker.name, POPULATION: 4}
    with closing(sqlite3.connect(folder.database)) as database, database:
        database.executemany(
            "INSERT INTO trial_user_attributes (trial_id, key, value_json) VALUES (?, ?, ?)",
            [(n, key, json.dumps(value)) for n in (1, 2) for key, value in of_trials.items()],
        )
    folder.write_launch("maskfront run a.py", "study = Study(...)", "a.py")
    folder.write_address(folder.storage, "many", "id")
    row = {"model": "unpruned", "engine": "eager", "bits": 32, "batch": 1, "length": 16}
    row |= {"flops": 100, "quartiles": [1.0, 2.0, 2.5], "slow": 3.0, "bytes": 100, "trial": None}
    timings = [row | {"texts": False, "flops_ratio": 1.0, "speed_up": 1.0}]
    conditions = {"device": "cpu", "threads": 1}
    document = {"reference": "unpruned", "conditions": conditions, "timings": timings}
    folder.bench.write_text(json.dumps({"format": "maskfront-bench-4", **document}))
    return folder


def mutated(whole: RunFolder, folder: Path, seed: int) -> str:
    """Make a copy of the run in which one thing is changed; returns what."""
    run = RunFolder(shutil.copytree(whole.path, folder / "mutated"))
    run.write_address(run.storage.replace(str(whole.path), str(run.path)), "many", "id")
    random = Random(seed)
    if random.random() < 0.6:
        return change_attribute(run, random)
    at_top = [run.address, run.bench, run.database, run.path / "launch.json"]
    in_trial = sorted(run.trial(random.randrange(12)).glob("*.[cj]s*"))
    return change_file(random.choice([*at_top, *in_trial]), random)


def test_the_run_itself_is_read(whole: RunFolder) -> None:
    assert list(problems(whole.path)) == []
    assert len(read_run(whole.path).finished) == 12


@pytest.mark.parametrize("seed", range(_QUICK))
def test_one_change_is_read_or_refused(whole: RunFolder, tmp_path: Path, seed: int) -> None:
    changed = mutated(whole, tmp_path, seed)
    assert list(problems(tmp_path / "mutated", (READERS[seed % len(READERS)],))) == [], changed


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_any_change_is_read_or_refused_in_one_line(whole: RunFolder, tmp_path: Path) -> None:
    found = {}
    for seed in range(_QUICK, CHANGES):
        changed = mutated(whole, tmp_path, seed)
        found |= {f"{seed}, {changed}": list(problems(tmp_path / "mutated"))}
        shutil.rmtree(tmp_path / "mutated")
    assert {changed: lines for changed, lines in found.items() if lines} == {}


def test_what_a_newer_version_added_is_left_aside(whole: RunFolder, tmp_path: Path) -> None:
    folder = RunFolder(shutil.copytree(whole.path, tmp_path / "mutated"))
    with closing(sqlite3.connect(folder.database)) as database, database:
        for table in ("study_user_attributes", "trial_user_attributes"):
            database.execute(
                f"UPDATE {table} SET value_json = "
                "json_set(value_json, '$.later', json('{\"version\": 2}')) "
                "WHERE key IN ('unpruned', 'words', 'result', 'home') OR key LIKE 'worker:%'"
            )
    folder.write_address(whole.storage.replace(str(whole.path), str(folder.path)), "many", "id")
    assert list(problems(folder.path)) == []
    assert read_run(folder.path).trials == read_run(whole.path).trials
