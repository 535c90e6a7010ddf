"""What a launch says of students that know the rows they learnt from better than others."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from optuna.distributions import FloatDistribution
from rich.console import Console

from maskfront import FisherSearch, Run, Stage, Study, launch
from orchestrator.study_file import load_study
from reports.curves import gap_note

_SAID = "the models answer like the teacher on the rows that they learnt from (divergence 0.0"


@pytest.fixture(scope="module")
def tiny(tiny_study_file: Path) -> Study:
    """Two models, distilled for 40 passes over 16 rows."""
    study = load_study(tiny_study_file)
    return replace(
        study,
        task=replace(study.task, train=16),
        method=FisherSearch(
            stages=(Stage(name="distil", epochs=40, learning_rate=1e-3),), batch_size=8
        ),
        space={"target_ratio": FloatDistribution(0.3, 0.6)},
        first=({"target_ratio": 0.3}, {"target_ratio": 0.5}),
        trials=2,
    )


def launched(study: Study, out: Path) -> tuple[Run, str]:
    """The run, and what its launch printed."""
    printed = StringIO()
    run = launch(study, out=out, device="cpu", console=Console(file=printed, width=200))
    return run, printed.getvalue()


@pytest.fixture(scope="module")
def overfit(tiny: Study, tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, str]:
    return launched(tiny, tmp_path_factory.mktemp("runs") / "run")


def test_a_launch_whose_students_overfit_names_the_remedy(overfit: tuple[Run, str]) -> None:
    run, printed = overfit
    for trial in run.finished:
        result = trial.result
        assert result.divergence > 2 * result.train_divergence > 0
    last = printed.splitlines()[-1]
    assert last == gap_note(run)
    assert last.startswith(_SAID)
    assert last.endswith("give them text without labels, Task.from_files(unlabelled_file=...)")
    page = (run.folder / "report.html").read_text()
    assert page.count(_SAID) == 1
    table = run.dataframe()
    assert table["train_divergence"].tolist() == [t.result.train_divergence for t in run.finished]


def test_the_remedy_helps_and_then_nothing_is_said(
    tiny: Study, overfit: tuple[Run, str], tmp_path: Path
) -> None:
    """As many steps, on 16 rows and the text of all that have no role."""
    method = replace(tiny.method, stages=(replace(tiny.method.stages[0], epochs=2.6),))
    task = replace(tiny.task, unlabelled_split="train")
    run, printed = launched(replace(tiny, method=method, task=task), tmp_path / "run")
    assert gap_note(run) is None
    assert _SAID not in printed + (run.folder / "report.html").read_text()
    for trial, before in zip(run.finished, overfit[0].finished, strict=True):
        assert trial.result.heldout_divergence < before.result.heldout_divergence
    assert run.sources["unlabelled data"] == "split train"


def test_a_method_that_trains_nothing_learns_nothing_by_heart(tiny: Study, tmp_path: Path) -> None:
    method = replace(tiny.method, stages=())
    run, printed = launched(replace(tiny, method=method), tmp_path / "run")
    assert {trial.result.train_divergence for trial in run.finished} == {None}
    assert _SAID not in printed


def test_what_is_said_goes_by_the_middle_of_the_front(overfit: tuple[Run, str]) -> None:
    run = overfit[0]
    few, many = sorted(run.finished, key=lambda trial: trial.result.cost)

    def said(*gaps: tuple[float | None, float | None], **changes: object) -> str | None:
        numbers = (
            replace(trial.result, train_divergence=near, divergence=far, metric=trial.result.cost)
            for trial, (near, far) in zip((few, many), gaps, strict=False)
        )
        trials = tuple(replace(few, number=n, result=one) for n, one in enumerate(numbers))
        return gap_note(replace(run, **{"trials": trials, **changes}))

    large, small = (0.008, 0.028), (0.02, 0.03)
    assert "(divergence 0.008), less so on others (0.028)" in (said(large, large) or "")
    named = {"unlabelled data": "more.txt"}
    assert "give them more text without" in (said(large, large, sources=named) or "")
    of_answers = {**run.definition, "task.metric": "agreement"}
    assert (said(large, large, definition=of_answers) or "").endswith(": give them more text")
    assert said(large) is None, "one trial"
    assert said(large, small) is said(small, small) is None
    assert said(large, (None, 0.5)) is not None, "one that learnt nothing says nothing"
    assert said((1e-12, 1e-8), (0.0, 0.0)) is None, "nothing is cut"
