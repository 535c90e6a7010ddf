"""Workers as tasks of a real cluster of this machine, of Dask or of Ray, one of them killed."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from maskfront import Study
from orchestrator.errors import RunError
from orchestrator.study_file import load_study
from orchestrator.workers.loop import Backend, LaunchOptions
from orchestrator.workers.worker_pool import launch_workers, tasks
from tests.orchestrator.methods import marked
from tests.waiting import wait_for

Cluster = Callable[[], AbstractContextManager[str]]


@contextmanager
def dask_cluster() -> Iterator[str]:
    from distributed import LocalCluster

    with LocalCluster(
        n_workers=2, threads_per_worker=1, host="127.0.0.1", dashboard_address=None
    ) as cluster:
        yield cluster.scheduler_address


@contextmanager
def ray_cluster() -> Iterator[str]:
    """A head node that is ended by itself: `ray stop` would end those of others too.

    It takes a free port, and writes which into its folder. There it makes sockets, too: the path
    must be short.
    """
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block"]
    with TemporaryDirectory(prefix="ray-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        head = subprocess.Popen(
            [
                *command,
                "--port=0",
                f"--temp-dir={folder}",
                "--num-cpus=2",
                "--num-gpus=0",
                "--include-dashboard=false",
                "--object-store-memory=100000000",
            ],
            env={
                **os.environ,
                "RAY_USAGE_STATS_ENABLED": "0",
                "RAY_AUTH_MODE": "disabled",  # else it may want a token that an earlier one made
                "PYTHONPATH": str(Path.cwd()),
            },
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        address = Path(folder, "ray_current_cluster")
        try:
            wait_for("a head of Ray", lambda: address.exists() and address.read_text())
            yield f"127.0.0.1:{address.read_text().rpartition(':')[2]}"
        finally:
            head.terminate()
            try:
                head.wait(timeout=120)  # it gives its tasks 30
            except subprocess.TimeoutExpired:
                head.kill()
                head.wait()


@pytest.fixture
def study(write_study: Callable[..., Path], tmp_path: Path) -> Study:
    return marked(load_study(write_study()), tmp_path / "marks")


@pytest.mark.slow
@pytest.mark.timeout(600)  # a busy machine starts a killed worker of Ray slowly
@pytest.mark.parametrize(
    ("backend", "cluster"),
    [pytest.param("dask", dask_cluster, id="dask"), pytest.param("ray", ray_cluster, id="ray")],
)
def test_a_cluster_runs_the_same_workers_and_one_that_is_killed_costs_no_trial(
    backend: Backend, cluster: Cluster, study: Study, tmp_path: Path
) -> None:
    study = replace(study, method=replace(study.method, kills=True))  # type: ignore[call-arg]
    with cluster() as address:
        run = launch_workers(
            study,
            LaunchOptions(
                workers=2, out=tmp_path / "run", device="cpu", backend=backend, cluster=address
            ),
        )
    assert [trial.state for trial in run.trials if trial.state != "failed"] == ["finished"] * 6
    [lost] = [trial for trial in run.trials if trial.state == "failed"]
    again = [trial for trial in run.trials if trial.knobs == lost.knobs]
    assert [trial.state for trial in again] == ["failed", "finished"]
    assert len(list((tmp_path / "marks").iterdir())) >= 2


@pytest.mark.slow
@pytest.mark.parametrize("greeting", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n"])
def test_what_is_no_dask_is_not_waited_for(greeting: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"tcp://127.0.0.1:{other.getsockname()[1]}"
        calls: list[socket.socket] = []

        def answer() -> None:
            calls.append(other.accept()[0])
            calls[0].sendall(greeting)

        threading.Thread(target=answer).start()
        try:
            with pytest.raises(RunError, match=f"no Dask scheduler answers at {address}"):
                tasks("dask", address).__enter__()
        finally:
            for call in calls:
                call.close()


@pytest.mark.parametrize(("backend", "package"), [("dask", "distributed"), ("ray", "ray")])
def test_a_missing_package_is_named(
    backend: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(RunError, match=rf"pip install .* '\.\[{backend}\]'"):
        tasks(backend, "127.0.0.1:1").__enter__()
