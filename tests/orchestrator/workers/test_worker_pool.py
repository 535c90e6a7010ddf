"""Several workers: processes that may be killed, Ctrl-C, a cluster of Dask."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from maskfront import Study, work
from objectives import device
from orchestrator.errors import RunError
from orchestrator.runs.records import WANTED, WORKER, load_optuna_study, read_run
from orchestrator.study_file import load_study
from orchestrator.workers import worker_pool
from orchestrator.workers.heartbeat import workers_of
from orchestrator.workers.loop import LaunchOptions
from orchestrator.workers.worker_pool import launch_workers
from tests.launching import run_study
from tests.orchestrator.methods import marked

WriteStudy = Callable[..., Path]


@pytest.fixture
def study(write_study: WriteStudy, tmp_path: Path) -> Study:
    return marked(load_study(write_study()), tmp_path / "marks")


@pytest.mark.slow
def test_a_killed_worker_is_told_of_and_the_others_go_on(
    study: Study, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    method = replace(study.method, kills=True)  # type: ignore[call-arg]
    seen: list[int] = []
    run = launch_workers(
        replace(study, method=method),
        LaunchOptions(workers=2, out=tmp_path / "run", device="cpu"),
        callbacks=[lambda record: seen.append(len(record.trials)), lambda _: 1 / 0],
    )
    said = capfd.readouterr().out
    states = [trial.state for trial in run.trials]
    assert sorted(states) == ["failed", *["finished"] * 6]
    failed, *_ = [trial for trial in run.trials if trial.state == "failed"]
    retried = [trial for trial in run.trials if trial.knobs == failed.knobs]
    assert [trial.state for trial in retried] == ["failed", "finished"]
    assert "ended: it died (SIGKILL(-9))" in said
    assert f"with the folder '{tmp_path}/run' adds another worker" in " ".join(said.split())
    assert "a callback failed and will be called again: ZeroDivisionError" in said
    assert seen
    assert seen[-1] == 7
    assert "Traceback" not in said
    assert not any((tmp_path / "run" / "workers").iterdir())


@pytest.mark.slow
def test_threads_are_divided_and_no_point_is_asked_twice(
    study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(worker_pool.joblib, "cpu_count", lambda: 6)
    run = launch_workers(
        study,
        LaunchOptions(workers=2, out=tmp_path / "run", device="cpu"),
        console=Console(quiet=True),
    )
    assert capfd.readouterr().out == "", "workers are as quiet as the launch"
    assert [trial.state for trial in run.trials] == ["finished"] * 6
    assert len({trial.knobs["target_ratio"] for trial in run.trials}) == 6
    marks = list((tmp_path / "marks").iterdir())
    assert [mark.read_text() for mark in marks] == ["3", "3"]
    optuna_study = load_optuna_study(tmp_path / "run")
    owners = {trial.user_attrs[WORKER] for trial in optuna_study.trials}
    assert owners == set(workers_of(optuna_study))
    assert {worker.pid for worker in workers_of(optuna_study).values()} == {
        int(m.name) for m in marks
    }


@pytest.mark.slow
def test_workers_have_what_lies_beside_the_study_file(
    write_study: WriteStudy, tiny_data: Path, tmp_path: Path
) -> None:
    (tmp_path / "own_rows.py").write_text(
        "import datasets\n\n"
        "def rows():\n"
        f"    return datasets.load_dataset({str(tiny_data)!r}, split='train')\n"
    )
    path = write_study(
        ("from objectives.text.task", "from own_rows import rows\nfrom objectives.text.task"),
        (f"data={str(tiny_data)!r}", "data=rows"),
    )
    known = list(sys.path)
    study = marked(load_study(path), tmp_path / "marks")
    assert sys.path == known
    study = replace(study, method=replace(study.method, meets=False))  # type: ignore[call-arg]
    run = launch_workers(
        study, LaunchOptions(out=tmp_path / "run", device="cpu"), console=Console(quiet=True)
    )
    assert [trial.state for trial in run.trials] == ["finished"] * 6


def test_a_worker_joins_only_what_was_begun(study: Study, tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"there is no storage sqlite:.*study\.db; check its path"):
        work(study, out=tmp_path / "run", device="cpu")
    assert not (tmp_path / "run").exists()
    alone = replace(study.method, meets=False)  # type: ignore[call-arg]
    study = replace(study, method=alone)
    run_study(study, tmp_path / "run", trials=1)
    other = replace(study, seed=4)
    with pytest.raises(RunError, match="another study: seed was 3, is now 4"):
        work(other, out=tmp_path / "run", device="cpu")
    with pytest.raises(RunError, match="the storage holds no study 'other'; start it with"):
        work(replace(study, name="other"), out=tmp_path / "run", device="cpu")


def test_a_worker_that_joins_serves_as_many_trials_as_the_launch_wants(
    study: Study, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    alone = replace(study.method, meets=False)  # type: ignore[call-arg]
    study = replace(study, method=alone, trials=1)
    place: dict[str, Any] = {"out": tmp_path / "run", "device": "cpu"}
    run_study(study, **place)
    load_optuna_study(tmp_path / "run").set_user_attr(WANTED, 3)  # as a launch with --trials 3 does
    work(study, **place)
    assert [trial.state for trial in read_run(tmp_path / "run").trials] == ["finished"] * 3
    capsys.readouterr()
    work(study, **place)
    assert capsys.readouterr().out == "worker: 3 trials are finished, 3 wanted: nothing to do\n"
    work(study, trials=4, **place)
    assert len(read_run(tmp_path / "run").trials) == 4


@pytest.mark.parametrize(
    ("count", "device", "message"),
    [
        (0, "auto", "workers is 0; it must be at least 1"),
        (3, "auto", r"3 workers, but 2 GPUs; use one worker per GPU with a larger"),
        (2, "cuda:1", "2 workers cannot share cuda:1; leave it out"),
    ],
)
def test_workers_that_do_not_fit_are_refused(
    study: Study,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    count: int,
    device: str,
    message: str,
) -> None:
    monkeypatch.setattr(worker_pool, "visible_gpus", lambda: ["0", "1"])
    with pytest.raises(RunError, match=message):
        launch_workers(study, LaunchOptions(workers=count, out=tmp_path / "run", device=device))
    assert not (tmp_path / "run").exists()


def test_a_cluster_needs_a_worker_too(study: Study, tmp_path: Path) -> None:
    options = LaunchOptions(workers=0, out=tmp_path / "run", backend="dask", cluster="tcp://nobody")
    with pytest.raises(RunError, match="workers is 0; it must be at least 1"):
        launch_workers(study, options)
    assert not (tmp_path / "run").exists()


def test_workers_that_all_fail_after_the_timeout_are_no_end_of_the_time(
    study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = [(number, f"RuntimeError: {number}") for number in (1, 2)]
    monkeypatch.setattr(worker_pool, "_processes", lambda *_: nullcontext([]))
    monkeypatch.setattr(worker_pool, "_follow", lambda *_, **__: ended)
    options = LaunchOptions(workers=2, out=tmp_path / "run", device="cpu", timeout=1e-9)
    with pytest.raises(RunError, match=r"worker 1: RuntimeError: 1; worker 2: RuntimeError: 2"):
        launch_workers(study, options)


def test_a_finished_study_does_not_wait_for_a_task_that_the_cluster_has_lost(
    study: Study,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(worker_pool, "_RETURN", 0.5)
    study = replace(study, method=replace(study.method, meets=False))  # type: ignore[call-arg]
    options = LaunchOptions(workers=2, out=tmp_path / "run", device="cpu", backend="dask")
    with ThreadPoolExecutor() as threads:

        def submit(work_on: Callable[..., Any], job: tuple[Any, ...]) -> Future[Any]:
            return threads.submit(work_on, *job) if job[1] == 1 else Future()  # job[1]: its number

        monkeypatch.setattr(worker_pool, "tasks", lambda *_: nullcontext(submit))
        run = launch_workers(study, options)
    assert [trial.state for trial in run.trials] == ["finished"] * 6
    assert "the cluster has not ended a task: not waited for" in capsys.readouterr().out


def test_each_worker_sees_one_gpu_of_the_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device.torch.cuda, "device_count", lambda: 2)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert device.visible_gpus() == ["0", "1"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,GPU-7")
    assert device.visible_gpus() == ["5", "GPU-7"]
    assert worker_pool.default_workers("auto") == 2
    assert worker_pool.default_workers("cuda:1") == worker_pool.default_workers("cpu") == 1
    environments = worker_pool._environments(2, "auto")
    assert environments == [{"CUDA_VISIBLE_DEVICES": gpu} for gpu in ("5", "GPU-7")]


@pytest.mark.slow
def test_a_worker_of_a_launch_in_the_background_can_be_interrupted() -> None:
    """A shell lets what it starts with & ignore SIGINT, and so would its children."""
    script = (
        "import os, signal, time\n"
        "from orchestrator.signals import begin_worker, interruptible\n"
        "signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "begin_worker(os.getppid())\n"
        "try:\n"
        "    with interruptible('', always=True):\n"
        "        print('ready', flush=True)\n"
        "        time.sleep(600)\n"
        "except KeyboardInterrupt:\n"
        "    print('interrupted')\n"
    )
    for number in (signal.SIGINT, signal.SIGTERM):
        with subprocess.Popen(
            [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            process.send_signal(number)
            assert process.communicate(timeout=120)[0] == "interrupted\n"
