"""Claims: never too many, never twice, and what a dead worker had is tried again, clean."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import optuna
import pytest
from optuna.artifacts import get_all_artifact_meta
from optuna.trial import TrialState

from orchestrator.errors import RunError
from orchestrator.runs.records import FAILURE, HOME, POPULATION, RETRY_OF, WORKER, trial_record
from orchestrator.runs.run_folder import RunFolder
from orchestrator.study import Study
from orchestrator.workers import heartbeat
from orchestrator.workers.claims import DEATHS_ALONE, HALT, OWN, Claims, enqueue_again
from orchestrator.workers.heartbeat import (
    GRACE,
    WORKERS,
    Heartbeat,
    Watch,
    WorkerRecord,
    launch_of,
    workers_of,
)
from orchestrator.workers.limits import begin_launch
from orchestrator.workers.opening import ask_first, bind_folder
from tests.orchestrator.claiming import SPACE, claims_of, study_of
from tests.orchestrator.methods import scripted
from tests.servers import MariaDb, Postgres, proxy


@pytest.fixture(
    params=[
        "sqlite",
        "journal",
        *(
            pytest.param(server, marks=pytest.mark.slow)
            for server in ("postgresql", "mysql", "grpc")
        ),
    ]
)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """An empty storage of each kind."""
    kind = request.param
    if kind in ("sqlite", "journal"):
        yield f"{kind}:///{tmp_path}/study"
        return
    if kind == "mysql":
        mariadb: MariaDb = request.getfixturevalue("mariadb")
        yield mariadb.new_database()
        return
    postgres: Postgres = request.getfixturevalue("postgres")
    if kind == "postgresql":
        yield postgres.new_database()
    else:
        with proxy(postgres.new_database()) as (served, _):
            yield served


def tell(study: optuna.Study, trials: list[optuna.Trial]) -> None:
    for trial in trials:
        study.tell(trial, [0.5, trial.params["x"]])


def test_two_workers_claim_no_point_twice_nor_more_than_wanted(url: str, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    points = []
    with ExitStack() as stack:
        workers = [study_of(url, number) for number in (1, 2)]
        claims = [claims_of(study, folder, stack, wanted=5) for study in workers]
        claimed = [claim.take(2) for claim in claims]
        claimed.append(claims[0].take(2))
        assert [len(trials) for trials in claimed] == [2, 2, 1]
        assert claims[1].take(2) == []
        workers[0].tell(claimed[0][0], state=TrialState.FAIL)
        claimed.append(claims[1].take(2))
        assert len(claimed[-1]) == 1
        points = [tuple(trial.params.values()) for trials in claimed for trial in trials]
        tell(workers[0], [*claimed[0][1:], *claimed[2]])
        tell(workers[1], [*claimed[1], *claimed[3]])
        assert [claim.take(2) for claim in claims] == [[], []]
    resumed = study_of(url)
    with ExitStack() as stack:
        more = claims_of(resumed, folder, stack, wanted=8).take(9)
        points += [tuple(trial.params.values()) for trial in more]
    assert len(more) == 3
    assert len(set(points)) == len(points) == 9


def test_what_a_killed_worker_had_is_failed_and_tried_again_clean(url: str, tmp_path: Path) -> None:
    """Constraints and artifacts of the dead do not come back (Optuna's own retry brings them)."""
    folder = RunFolder(tmp_path / "run")
    study = study_of(url)
    died = subprocess.run(
        [sys.executable, "-c", _DIES, url, str(folder.path)], env=dict(os.environ), check=False
    )
    assert died.returncode == -9
    lost = study.trials
    assert [trial.state for trial in lost] == [TrialState.RUNNING] * 3
    assert [WORKER in trial.user_attrs for trial in lost] == [True, True, False]
    folder.trial(0).mkdir(parents=True)
    assert len(list(folder.artifacts.iterdir())) == 2
    lines: list[str] = []
    with ExitStack() as stack:
        again = claims_of(study, folder, stack, wanted=2).take(3, lines.append)
    assert len(again) == 2
    assert sorted(lines) == [
        *(f"trial {n}: its worker died, its knobs are tried again" for n in range(2)),
        "trial 2: its worker died",
    ]
    assert [trial.state for trial in study.trials[:3]] == [TrialState.FAIL] * 3
    (dead,) = (w for w in workers_of(study).values() if w.name == lost[0].user_attrs[WORKER])
    rows = [trial_record(trial) for trial in study.trials[:3]]
    assert [row.ended for row in rows[:2]] == [max(dead.at, row.started or 0) for row in rows[:2]]
    assert rows[2].seconds == 0
    assert not folder.trial(0).exists()
    assert list(folder.artifacts.iterdir()) == []
    for trial in again:
        old = lost[trial.user_attrs[RETRY_OF]]
        assert trial.params == old.params
        assert old.constraints == {"budget": 1.0}
        assert study.trials[trial.number].constraints == {}
        assert not get_all_artifact_meta(trial)
        trial.set_constraint("budget", -1.0)
        told = study.tell(trial, [1.0, 2.0])
        assert told.constraints == {"budget": -1.0}
    assert [worker.ended for worker in workers_of(study).values()] == [True, True]


def test_nothing_is_claimed_where_another_launch_is_ahead(url: str, tmp_path: Path) -> None:
    """Both found the study without a home, and each gave it one."""
    folder, study = RunFolder(tmp_path / "run"), study_of(url)
    bind_folder(folder, study, url)
    with ExitStack() as stack:
        claims = claims_of(study, folder, stack, wanted=3)
        assert len(claims.take(1)) == 1
        study.set_user_attr(HOME, {"folder": "other", "path": "/there", "host": "h"})
        with pytest.raises(RunError, match=r"launched into /there \(on h\) at the same time"):
            claims.take(1)
    assert len(study.trials) == 1


def test_knobs_whose_asking_was_answered_late_are_tried_once(url: str, tmp_path: Path) -> None:
    """A storage that went away at that moment may have done it both times."""
    folder, study = RunFolder(tmp_path / "run"), study_of(url)
    for _ in range(2):
        study.enqueue_trial({"x": 0.25, "y": 0.5}, user_attrs={RETRY_OF: 7})
    with ExitStack() as stack:
        claimed = claims_of(study, folder, stack, wanted=2).take(2)
    assert [trial.params["x"] == 0.25 for trial in claimed] == [True, False]
    assert [trial.state for trial in study.trials] == [
        TrialState.RUNNING,
        TrialState.FAIL,
        TrialState.RUNNING,
    ]
    assert study.trials[1].user_attrs[FAILURE] == "its knobs were enqueued twice"


_DIES = """
import os, sys
from contextlib import ExitStack
from pathlib import Path
from optuna.artifacts import FileSystemArtifactStore, upload_artifact
from orchestrator.runs.run_folder import RunFolder
from tests.orchestrator.claiming import claims_of, study_of

study, folder = study_of(sys.argv[1], 1), RunFolder(Path(sys.argv[2]))
folder.artifacts.mkdir(parents=True)
with ExitStack() as stack:
    for trial in claims_of(study, folder, stack, wanted=9).take(2):
        trial.set_constraint("budget", 1.0)
        store = FileSystemArtifactStore(folder.artifacts)
        upload_artifact(artifact_store=store, file_path=os.__file__, study_or_trial=trial)
    study.ask()  # and dies before it is its own
    os.kill(os.getpid(), 9)
"""


def dies_with(trials: list[optuna.Trial], worker: str) -> None:
    """A worker that nobody knows has these in training, together."""
    for trial in trials:
        trial.set_user_attr(POPULATION, len(trials))
        trial.set_user_attr(WORKER, worker)


def test_trials_that_died_together_are_tried_alone(tmp_path: Path) -> None:
    folder, study = RunFolder(tmp_path / "run"), study_of(f"sqlite:///{tmp_path}/study.db")
    first = [{"x": x, "y": 0.5} for x in (0.1, 0.2, 0.3, 0.4)]
    killer = first[1]
    for knobs in first:
        study.enqueue_trial(knobs)
    deaths, together = 0, []
    with ExitStack() as stack:
        claims = claims_of(study, folder, stack, wanted=4)
        while claimed := claims.take(4):
            together.append([trial.params["x"] for trial in claimed])
            if killer in [trial.params for trial in claimed]:
                deaths += 1
                dies_with(claimed, f"dead{deaths}")
            else:
                tell(study, claimed)
    finished = study.get_trials(states=[TrialState.COMPLETE])
    assert [trial.params for trial in finished if trial.params in first] == [*first[:1], *first[2:]]
    assert deaths == 4, "once in company, three times alone"
    assert together[:-1] == [[0.1, 0.2, 0.3, 0.4], [0.1], [0.2], [0.3], [0.4], [0.2], [0.2]]
    assert DEATHS_ALONE not in finished[-1].user_attrs, "drawn in place of what kills"


def test_a_worker_that_dies_before_it_trains_is_no_fault_of_its_knobs(tmp_path: Path) -> None:
    folder, study = RunFolder(tmp_path / "run"), study_of(f"sqlite:///{tmp_path}/study.db")
    study.enqueue_trial({"x": 0.1, "y": 0.5})
    with ExitStack() as stack:
        claims = claims_of(study, folder, stack, wanted=2)
        for attempt in range(5):
            claimed = claims.take(2)
            assert len(claimed) == 2, "nothing is to train alone"
            for trial in claimed:
                trial.set_user_attr(WORKER, f"dead{attempt}")
        assert {"x": 0.1, "y": 0.5} in [trial.params for trial in claims.take(2)]


def test_knobs_that_kill_are_tried_three_times(tmp_path: Path) -> None:
    folder, study = RunFolder(tmp_path / "run"), study_of(f"sqlite:///{tmp_path}/study.db")
    with ExitStack() as stack:
        claims = claims_of(study, folder, stack, wanted=1)
        for attempt in range(4):
            (trial,) = claims.take(1)
            dies_with([trial], f"dead{attempt}")
    params = [tuple(trial.params.values()) for trial in study.trials]
    assert params[0] == params[1] == params[2] != params[3]
    assert RETRY_OF not in study.trials[3].user_attrs


def test_a_launch_does_not_begin_again_with_knobs_that_kill(study: Study, tmp_path: Path) -> None:
    asked = scripted(study, "result", "nan")
    folder, optuna_study = RunFolder(tmp_path / "run"), study_of(f"sqlite:///{tmp_path}/study.db")
    for attempt in range(7):
        with ExitStack() as stack:
            claims = claims_of(optuna_study, folder, stack, wanted=9)
            ask_first(optuna_study, asked)
            (trial,) = claims.take(1)
        dies_with([trial], f"dead{attempt}")
    asked_for = [row.system_attrs.get("fixed_params", {}).get("tag") for row in optuna_study.trials]
    assert asked_for[:7] == [0, 1, 0, 1, 0, 1, None]


def test_first_knobs_may_be_numbers_of_numpy(study: Study) -> None:
    asked, optuna_study = scripted(study, "result", "result"), optuna.create_study()
    ask_first(optuna_study, replace(asked, first=({"end": "result", "tag": np.int64(1)},)))
    (trial,) = optuna_study.get_trials()
    assert json.dumps(trial.system_attrs["fixed_params"]) == '{"end": "result", "tag": 1}'
    ask_first(optuna_study, asked)
    assert len(optuna_study.get_trials()) == 2


def test_knobs_outlive_machines_that_die_with_their_launch(tmp_path: Path) -> None:
    folder, study = RunFolder(tmp_path / "run"), study_of(f"sqlite:///{tmp_path}/study.db")
    knobs = {"x": 0.1, "y": 0.5}
    study.enqueue_trial(knobs)

    def dies(trial: optuna.Trial, number: int) -> None:
        """As a worker of a machine that has been started again since."""
        dead = WorkerRecord(
            name=f"dead{number}",
            host="here",
            machine=f"before {number}",
            pid=1,
            device="cpu",
            beat=1,
            at=0.0,
            launch=launch_of(study),
            ended=True,
        )
        study.set_user_attr(WORKERS + dead.name, asdict(dead))
        dies_with([trial], dead.name)

    with ExitStack() as stack:
        claims = claims_of(study, folder, stack, wanted=1)
        for death in range(5):
            begin_launch(study, None)
            (trial,) = claims.take(1)
            assert trial.params == knobs
            dies(trial, death)
        begin_launch(study, None)
        for death in range(5, 9):  # and now the launch outlives it
            (trial,) = claims.take(1)
            assert (trial.params == knobs) == (death < 8)
            dies(trial, death)


def test_a_trial_whose_worker_died_before_it_named_itself_is_failed(tmp_path: Path) -> None:
    study = study_of(f"sqlite:///{tmp_path}/study.db")
    study.enqueue_trial({"x": 0.1, "y": 0.5}, user_attrs=OWN)
    study.ask()
    Claims(study, RunFolder(tmp_path), SPACE, "", 1).fail_orphans()
    assert [trial.state for trial in study.trials] == [TrialState.FAIL, TrialState.WAITING]


def test_a_launch_by_hand_asks_again_what_failed(study: Study) -> None:
    one, two = {"end": "result", "tag": 0}, {"end": "result", "tag": 1}
    asked, optuna_study = scripted(study, "result", "result"), optuna.create_study()

    def waiting() -> list[dict[str, object]]:
        rows = optuna_study.get_trials(states=(TrialState.WAITING,))
        return [row.system_attrs["fixed_params"] for row in rows]

    ask_first(optuna_study, asked)
    ask_first(optuna_study, asked)
    assert waiting() == [one, two]
    optuna_study.tell(optuna_study.ask().number, state=TrialState.FAIL)
    optuna_study.ask()  # runs
    ask_first(optuna_study, asked)
    assert waiting() == [one]


def test_a_worker_of_another_machine_is_dead_when_its_beat_stands_still(tmp_path: Path) -> None:
    now = [0.0]
    watch = Watch(RunFolder(tmp_path), clock=lambda: now[0])
    other = WorkerRecord(name="far", host="far", machine="far", pid=1, device="cpu", beat=1, at=0.0)

    def dead_after(seconds: float, worker: WorkerRecord) -> bool:
        now[0] += seconds
        return bool(watch.dead({"far": worker}))

    assert not dead_after(1, other)
    assert not any(dead_after(20, replace(other, beat=beat)) for beat in range(2, 20))
    still = replace(other, beat=19)
    assert not any(dead_after(20, still) for _ in range(int(GRACE / 20)))
    assert dead_after(20, still)
    assert not dead_after(20, replace(still, beat=20))
    assert dead_after(0, replace(still, ended=True))


def test_an_outage_of_the_storage_makes_nobody_dead(tmp_path: Path) -> None:
    now = [0.0]
    watch = Watch(RunFolder(tmp_path), clock=lambda: now[0])
    other = WorkerRecord(name="far", host="far", machine="far", pid=1, device="cpu", beat=1, at=0.0)
    for _ in range(4):
        assert not watch.dead({"far": other})
        now[0] += 10 * GRACE
    assert watch.dead({"far": other}) == set()


def test_a_heartbeat_says_when_it_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = study_of(f"sqlite:///{tmp_path}/study.db")
    folder = RunFolder(tmp_path / "run")
    with Heartbeat(study, folder, "cpu", beat=0.01) as beating:
        name = beating.record.name
        first = workers_of(study)[name].beat
        assert first >= 1
        while workers_of(study)[name].beat < first + 3:
            pass
        assert heartbeat.is_free(folder.worker(name)) is False
        assert Watch(folder).dead(workers_of(study)) == set()
    assert workers_of(study)[name].ended
    assert heartbeat.is_free(folder.worker(name)) is None


def test_a_late_beat_brings_no_worker_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The storage was away for longer than the worker waits at its end, and then took the beat."""
    study, folder = study_of(f"sqlite:///{tmp_path}/study.db"), RunFolder(tmp_path / "run")
    monkeypatch.setattr(heartbeat, "FAREWELL", 0.01)
    at_beat, back = Event(), Event()
    beating = Heartbeat(study, folder, "cpu", beat=0.01)
    set_user_attr, name = study.set_user_attr, beating.record.name

    def late(key: str, value: Any) -> None:
        if value["beat"] > 1 and not value["ended"]:
            at_beat.set()
            back.wait()
        set_user_attr(key, value)

    monkeypatch.setattr(study, "set_user_attr", late)
    with beating:
        at_beat.wait()
    back.set()
    beating._thread.join()
    assert workers_of(study)[name].ended
    assert Watch(folder).dead(workers_of(study)) == {name}


def test_a_halted_launch_claims_nothing_more(tmp_path: Path) -> None:
    study = study_of(f"sqlite:///{tmp_path}/study.db")
    mine, joined = (
        Claims(study, RunFolder(tmp_path), SPACE, "w", 2, token) for token in ("mine", "")
    )
    assert not mine.halted
    study.set_user_attr(HALT, "mine")
    assert mine.halted
    assert not joined.halted
    study.set_user_attr(HALT, "another")
    assert not mine.halted


def test_knobs_are_asked_again_once_though_a_worker_was_killed(tmp_path: Path) -> None:
    study = study_of(f"sqlite:///{tmp_path}/study")
    study.enqueue_trial({"x": 0.5})
    with ExitStack() as stack:
        claims = claims_of(study, RunFolder(tmp_path), stack, wanted=1)
        (trial,) = claims.take(1)
    enqueue_again(study, study.trials[trial.number], limited=False)
    with ExitStack() as stack:  # here it was killed: the trial is not told
        other = claims_of(study, RunFolder(tmp_path), stack, wanted=1)
        (again,) = other.take(1)
    assert again.params["x"] == 0.5
    assert [t.state for t in study.trials] == [TrialState.FAIL, TrialState.RUNNING]


@pytest.mark.parametrize(
    ("kind", "method"),
    [(optuna.Trial, "set_user_attr"), (optuna.Trial, "_suggest"), (optuna.Study, "ask")],
)
def test_ctrl_c_while_trials_are_claimed_leaves_none_running_and_blames_no_knobs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type, method: str
) -> None:
    folder, study = RunFolder(tmp_path / "run"), study_of(f"sqlite:///{tmp_path}/study.db")
    study.enqueue_trial({"x": 0.5, "y": 0.5})
    call = getattr(kind, method)

    def interrupted(*arguments: Any, **named: Any) -> None:
        monkeypatch.undo()
        call(*arguments, **named)
        raise KeyboardInterrupt

    for _ in range(4):
        with ExitStack() as stack:
            claims = claims_of(study, folder, stack, wanted=2)
            monkeypatch.setattr(kind, method, interrupted)
            with pytest.raises(KeyboardInterrupt):
                claims.take(2)
        failed = study.get_trials(states=[TrialState.FAIL])
        assert {trial.user_attrs.get(FAILURE) for trial in failed} == {"interrupted"}
        assert TrialState.RUNNING not in [trial.state for trial in study.trials]
    with ExitStack() as stack:
        (trial,) = claims_of(study, folder, stack, wanted=1).take(1)
    assert trial.params == {"x": 0.5, "y": 0.5}


def test_an_error_of_the_sampler_is_what_its_trials_failed_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("no scipy")

    study = study_of(f"sqlite:///{tmp_path}/study.db")
    monkeypatch.setattr(study.sampler, "sample_independent", refuse)
    monkeypatch.setattr(study.sampler, "sample_relative", refuse)
    with ExitStack() as stack, pytest.raises(RuntimeError, match="no scipy"):
        claims_of(study, RunFolder(tmp_path), stack, wanted=2).take(2)
    assert [trial_record(trial).failure for trial in study.trials] == ["RuntimeError: no scipy"] * 2
