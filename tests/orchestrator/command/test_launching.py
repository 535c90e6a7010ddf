"""`launch` leaves what `maskfront run` leaves: from a script, from a notebook, with workers."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import replace
from io import StringIO
from pathlib import Path
from types import ModuleType

import pytest
import torch
from optuna_dashboard import get_note
from rich.console import Console

from maskfront import Study, launch, load_run
from objectives.errors import UserError
from orchestrator.runs.records import load_optuna_study
from orchestrator.runs.run_folder import RunFolder
from reports.page.following import Following
from reports.speed import inputs_of, teacher_of
from tests.command_line import maskfront_process
from tests.orchestrator.conftest import WriteStudy
from tests.orchestrator.methods import scripted

_LAUNCH = """
from maskfront import launch

run = launch(study, trials=2, workers={workers}, device="cpu")
print(len(run.front), "on the front")
"""
_SCRIPT = "\nif __name__ == '__main__':" + textwrap.indent(_LAUNCH, "    ")


def ran(arguments: Sequence[object], folder: Path) -> str:
    """What a command printed, which ended well in this folder."""
    done = subprocess.run(
        [sys.executable, *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
        timeout=360,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def files(run: Path) -> set[str]:
    """What lies in a run folder; what is named after content or at random, by its kind."""
    names = (p.relative_to(run).as_posix() for p in run.rglob("*") if p.is_file())
    names = (name for name in names if not name.startswith("study.db-"))  # of who reads it now
    return {re.sub(r"[0-9a-f-]{16,}", "ID", name) for name in names}


@pytest.mark.slow
def test_a_script_leaves_what_the_command_leaves(write_study: WriteStudy, tmp_path: Path) -> None:
    script = write_study()
    script.write_text(script.read_text() + _SCRIPT.format(workers=1))
    # A process of its own, as the script is: the tests' has float32 where others have bfloat16.
    done = maskfront_process(
        "run", "study.py", "--trials", 2, "--out", "said", "--device", "cpu", cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert "on the front" in ran(["study.py"], tmp_path)
    said, run = (load_run(tmp_path / name) for name in ("said", "runs/tiny"))
    assert files(run.folder) == files(said.folder) >= {"report.html", "launch.json", "study.db"}
    assert run.definition == said.definition
    assert [t.knobs for t in run.trials] == [t.knobs for t in said.trials]
    assert [t.result for t in run.trials] == [t.result for t in said.trials]
    launched = [json.loads((own.folder / "launch.json").read_text()) for own in (said, run)]
    assert [own["command"] for own in launched] == [
        "maskfront run study.py --trials 2 --out said --device cpu",
        "python study.py",
    ]
    assert {own["source"] for own in launched} == {script.read_text()}
    assert {own["study_file"] for own in launched} == {"study.py"}
    assert get_note(load_optuna_study(run.folder)).startswith("**")


@pytest.mark.slow
def test_workers_get_a_scripts_sampler_and_modules(write_study: WriteStudy, tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text(
        "import optuna\ndef own(seed):\n    return optuna.samplers.QMCSampler(seed=seed)\n"
    )
    script = write_study(("study = Study(", "import beside\nstudy = Study("))
    text = script.read_text().replace("seed=3,", "seed=3,\n    sampler=lambda s: beside.own(s),")
    script.write_text(text + _LAUNCH.format(workers=2))
    assert "on the front" in ran(["study.py"], tmp_path)
    optuna_study = load_optuna_study(tmp_path / "runs" / "tiny")
    assert sum(trial.state.is_finished() for trial in optuna_study.trials) == 2
    assert (tmp_path / "runs" / "tiny" / "report.html").is_file()


@pytest.mark.parametrize("file", [None, "<stdin>"])
def test_a_notebook_has_no_file_and_the_report_shows_the_study(
    study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str | None
) -> None:
    """Nor has a script that Python reads from a pipe, whatever name that gives it."""
    notebook = ModuleType("__main__")
    if file is not None:
        notebook.__file__ = file
    monkeypatch.setitem(sys.modules, "__main__", notebook)
    monkeypatch.delitem(sys.modules, "maskfront_study")
    run = launch(scripted(study, "result"), out=tmp_path / "run", device="cpu")
    launched = json.loads((run.folder / "launch.json").read_text())
    assert launched["command"] == "launch(study)"
    assert launched["source"].startswith("study = Study(name='tiny',")
    assert launched["study_file"] is None
    assert run == load_run(run.folder)


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("maskfront", "study = Study(name='tiny',"),
        ("script.py", "compress('model')"),  # to look for a study in it would compress again
    ],
)
def test_a_study_that_a_command_made_is_in_no_study_file(
    study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, source: str
) -> None:
    script = ModuleType("__main__")
    script.__file__ = str(tmp_path / name)
    (tmp_path / name).write_text("compress('model')\n")
    monkeypatch.setitem(sys.modules, "__main__", script)
    run = launch(scripted(study, "result"), out=tmp_path / "run", device="cpu", command="maskfront")
    launched = json.loads((run.folder / "launch.json").read_text())
    assert launched["source"].startswith(source)
    assert launched["study_file"] is None


def test_without_a_report_nothing_is_written_but_the_run(study: Study, tmp_path: Path) -> None:
    run = launch(scripted(study, "result"), out=tmp_path / "run", device="cpu", report=False)
    assert len(run.front) == 1
    assert not {"report.html", "launch.json"} & files(run.folder)


def test_a_teacher_that_was_deleted_is_made_again(study: Study, tmp_path: Path) -> None:
    settings = {"out": tmp_path / "run", "device": "cpu", "report": False}
    run = launch(replace(study, trials=1), **settings)
    data = inputs_of(run, study)
    was = teacher_of(run, study, data).state_dict()
    shutil.rmtree(run.folder / "cache")
    with pytest.raises(UserError, match="launch the study again with the same number of trials"):
        teacher_of(run, study, data)
    launch(replace(study, trials=1), **settings)
    again = teacher_of(run, study, data).state_dict()
    assert all(torch.equal(weight, again[name]) for name, weight in was.items())


def test_a_report_that_fails_ends_no_launch(
    study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError("a bug in a figure")

    monkeypatch.setattr(Following, "_write", fail)
    said = StringIO()
    run = launch(
        scripted(study, "result"),
        out=tmp_path / "run",
        device="cpu",
        console=Console(file=said, width=200),
    )
    assert len(run.front) == 1
    assert "a callback failed and will be called again: ZeroDivisionError" in said.getvalue()
    last = said.getvalue().splitlines()[-1]
    assert last.startswith("the report could not be written (ZeroDivisionError: a bug in a figure)")


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("--storage postgresql://me:s3cret@db/x", "--storage postgresql://me@db/x"),
        ("launch(study, storage='postgresql://me:s3cret@db/x')", "'postgresql://me@db/x')"),
        ("PASSWORD = 's3cret'; url = f'...{PASSWORD}'", "PASSWORD = ***; url"),
        ("url = 'postgresql://me:s3cret@' + host", "url = 'postgresql://me@' + host"),
    ],
)
def test_a_report_never_shows_the_password(text: str, kept: str, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.write_launch(text, text, None)
    launched = folder.read_launch()
    assert launched is not None
    assert kept in launched.command
    assert "s3cret" not in str(launched)
    assert "s3cret" not in (tmp_path / "launch.json").read_text()
