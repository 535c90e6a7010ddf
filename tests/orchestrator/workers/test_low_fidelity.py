"""A study of a low fidelity: cheaper, and never mixed with a full one."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import pytest

from maskfront import Study
from objectives.workbench.fidelity import Fidelity
from orchestrator.errors import RunError
from orchestrator.runs.records import front_document, read_run
from orchestrator.workers.warm_start import WARM_START
from reports.overlay import overlay
from tests.launching import run_study


def steps_of(folder: Path) -> int:
    with (folder / "trials" / "00000" / "curve.csv").open() as file:
        return len(list(csv.DictReader(file)))


@pytest.mark.slow
def test_fidelities_are_never_on_one_front(study: Study, tmp_path: Path) -> None:
    low = replace(study, fidelity=Fidelity(data=0.5, epochs=0.5, max_length=12), trials=2)
    full = replace(study, trials=1)
    run = run_study(low, tmp_path / "low")
    other = run_study(full, tmp_path / "full")

    assert steps_of(run.folder) == steps_of(other.folder) / 4
    assert run.unpruned == other.unpruned
    assert run.fidelity == {"data": "0.5", "epochs": "0.5", "max_length": "12"}
    assert other.fidelity == {}
    assert json.loads(json.dumps(front_document(run)))["fidelity"] == run.fidelity

    for mixed, folder, differs in (
        (full, "low", r"fidelity\.data was 0\.5, is now not set"),
        (low, "full", r"fidelity\.data was not set, is now 0\.5"),
        (replace(low, fidelity=Fidelity(data=0.5)), "low", r"fidelity\.epochs was 0\.5, is now 1"),
    ):
        with pytest.raises(RunError, match=differs):
            run_study(replace(mixed, trials=9), tmp_path / folder)
    assert len(read_run(tmp_path / "low").trials) == 2

    with pytest.raises(RunError, match=r"different fidelities \(data 0\.5, .*; full\)"):
        overlay([run, other])
    assert overlay([run, run]).several

    warm = replace(full, name="warm", warm_start=(run.folder,), trials=4)
    begun = run_study(warm, tmp_path / "warm")
    assert any(str(trial.attributes.get(WARM_START)).startswith("tiny") for trial in begun.trials)
    assert begun.fidelity == {}
