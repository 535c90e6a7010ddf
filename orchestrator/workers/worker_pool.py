"""Run several workers of one study: processes of this machine, or tasks of a Dask or Ray cluster.
The durable state is the storage; what a worker returns only says how it ended."""

import asyncio
import gc
import logging
import os
import re
import secrets
import signal
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import Any

import cloudpickle
import joblib
import optuna
from joblib.externals.loky import ProcessPoolExecutor
from rich.console import Console

from objectives.device import choose_device, visible_gpus
from objectives.errors import MaskfrontError
from orchestrator.errors import RunError
from orchestrator.runs.records import UNPRUNED, RunRecord
from orchestrator.signals import begin_worker, check_interrupted, interruptible, unattended
from orchestrator.storage.connect import CONNECT_SECONDS
from orchestrator.storage.urls import as_named, parse_url
from orchestrator.study import Study
from orchestrator.study_file import own_modules
from orchestrator.terminal import say
from orchestrator.workers.claims import HALT
from orchestrator.workers.heartbeat import living
from orchestrator.workers.limits import finished_trials, why_it_ends
from orchestrator.workers.loop import LaunchOptions, address, opened, work, writing
from orchestrator.workers.opening import OpenRun
from orchestrator.workers.worker import Callback, call_back

_LOOK = 1.0  # seconds between two looks at the workers and at the study
_FAREWELL = 30.0  # seconds that processes have to end after Ctrl-C, before they are killed
_RETURN = 30.0  # seconds that a cluster has to end its tasks after the last trial of the study

Ended = tuple[int, str | None]  # a worker's number, and why it ended; None: the study was finished


def launch_workers(
    study: Study,
    options: LaunchOptions,
    *,
    callbacks: Sequence[Callback] = (),
    console: Console | None = None,
) -> RunRecord:
    """Run a study with several workers; the others retry the trials of one that dies."""
    workers, device = options.workers, options.device
    if workers < 1:
        raise RunError(f"workers is {workers}; it must be at least 1")
    backend, cluster = options.backend, options.cluster
    if cluster is not None and backend == "loky":
        raise RunError(f"say whether the cluster at {cluster} is dask or ray", "backend")
    study, folder = options.applied(study)
    environments = _environments(workers, device) if backend == "loky" else []
    note = partial(say, console or Console())
    # A device that is not there is refused here and once, not by each process.
    recorded = choose_device(device) if backend == "loky" else device
    url = as_named(parse_url(address(folder, options.storage)))  # absolute
    with ExitStack() as stack:
        submit = stack.enter_context(tasks(backend, cluster)) if backend != "loky" else None
        stack.enter_context(writing(folder))
        run = stack.enter_context(opened(study, folder, options, recorded, note))
        token = secrets.token_hex(8)
        arguments = {
            "out": str(folder.path.absolute()),
            "storage": url.render_as_string(hide_password=False),
            "device": device,
            "token": token,
            "quiet": console is not None and console.quiet,
        }
        for module in own_modules():  # a worker has not read the study's own files
            cloudpickle.register_pickle_by_value(module)
        packed = bytes(cloudpickle.dumps(study))
        jobs = [(packed, n + 1, arguments, submit is None) for n in range(workers)]
        if submit is None:
            running = stack.enter_context(_processes(jobs, environments))
        else:
            running = [submit(_work, job) for job in jobs]
        try:
            ended = _follow(running, run, callbacks, note, cluster=submit is not None)
        except KeyboardInterrupt:
            if submit is not None:
                run.optuna_study.set_user_attr(HALT, token)
                note("workers stop after their current trials; Ctrl-C again stops them at once")
                wait(running)
            raise
        claims, finished = run.claims(), finished_trials(run.optuna_study)
        over = why_it_ends(run.optuna_study, study.patience) is not None
        wanted = not over or all(reason is not None for _, reason in ended)
        if finished < study.trials and wanted and not (finished and claims.exhausted):
            raise RunError(_unfinished(study, run.optuna_study, ended))
        claims.fail_orphans()
        return run.record()


def default_workers(device: str) -> int:
    """Number of GPUs that the device's name allows, at least 1."""
    return max(1, len(visible_gpus())) if device == "auto" else 1


def _environments(workers: int, device: str) -> list[dict[str, str]]:
    if ":" in device and workers > 1:
        raise RunError(f"{workers} workers cannot share {device}; leave it out", "device")
    gpus = visible_gpus() if device in ("auto", "cuda") else []
    if gpus and workers > len(gpus):
        raise RunError(
            f"{workers} workers, but {len(gpus)} GPUs; use one worker per GPU with a larger "
            "population, or use the CPU",
            "population",
            "device",
        )
    if gpus:
        return [{"CUDA_VISIBLE_DEVICES": gpu} for gpu in gpus[:workers]]
    threads = str(max(1, joblib.cpu_count() // workers))
    return [{"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", threads)}] * workers


def _work(packed: bytes, number: int, arguments: Mapping[str, Any], own_process: bool) -> Ended:
    gc.enable()
    settings = dict(arguments)
    console = Console(quiet=settings.pop("quiet"))
    try:
        # A launch in the background of a script ignores SIGINT, and so would its processes.
        with unattended(), interruptible("launch again to go on", always=own_process):
            work(cloudpickle.loads(packed), number=number, console=console, **settings)
    except KeyboardInterrupt:
        return number, "interrupted"
    except MaskfrontError as error:
        return number, error.text
    except Exception as error:  # the other workers go on
        return number, f"{type(error).__name__}: {error}"
    return number, None


@contextmanager
def _processes(
    jobs: Sequence[tuple[Any, ...]], environments: Sequence[dict[str, str]]
) -> Iterator[list[Future[Ended]]]:
    """Start a process for each job, each in its own pool: if one dies, loky ends its whole pool."""
    begin = {"initializer": begin_worker, "initargs": (os.getpid(),)}
    pools = [ProcessPoolExecutor(max_workers=1, env=each, **begin) for each in environments]
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        try:
            pids = [pid.result() for pid in [pool.submit(os.getpid) for pool in pools]]
        finally:  # Ctrl-C in the terminal waits until the workers have left that to the launch
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        running = [pool.submit(_work, *job) for pool, job in zip(pools, jobs, strict=True)]
        try:
            yield running
        except BaseException:
            for pid, future in zip(pids, running, strict=True):
                if not future.done():  # of one that is, the number may be another process's by now
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGINT)
            wait(running, timeout=_FAREWELL)
            raise
    finally:
        for pool in pools:
            pool.shutdown(wait=True, kill_workers=True)


def _follow(
    running: Sequence[Future[Ended]],
    run: OpenRun,
    callbacks: Sequence[Callback],
    note: Callable[[str], object],
    *,
    cluster: bool,
) -> list[Ended]:
    """Wait until all workers have ended; note each that ended before the study was finished. A
    cluster may never restart a dead worker: with the last trial its tasks have seconds to end."""
    ended: list[Ended] = []
    pending, before = set(running), finished_trials(run.optuna_study)
    shown, needed = before, time.monotonic()
    while pending:
        check_interrupted()
        done, pending = wait(pending, timeout=_LOOK, return_when=FIRST_COMPLETED)
        for future in done:
            number, reason = _result(future, running.index(future) + 1)
            ended.append((number, reason))
            if reason is not None:
                note(f"worker {number} ended: {reason}")
                if pending:
                    note(
                        "  the others go on and retry its trials; `maskfront work` with "
                        f"the folder '{run.folder.path}' adds another worker"
                    )
        finished = finished_trials(run.optuna_study)
        if finished != shown and UNPRUNED in run.optuna_study.user_attrs:
            call_back(callbacks, run, note)
            shown = finished
        all_done = before < finished >= run.study.trials
        if not cluster or not all_done or living(run.optuna_study, run.folder):
            needed = time.monotonic()
        elif time.monotonic() - needed > _RETURN:
            note("the study is finished, but the cluster has not ended a task: not waited for")
            break
    return ended


def _result(future: Future[Ended], number: int) -> Ended:
    error = future.exception()
    if error is None:
        return future.result()
    codes = re.search(r"exit codes of the workers are \{(.*)\}", str(error))
    return number, f"it died ({codes[1] if codes else ' '.join(str(error).split())})"


def _unfinished(study: Study, optuna_study: optuna.Study, ended: Sequence[Ended]) -> str:
    reasons, finished = {reason for _, reason in ended} - {None}, finished_trials(optuna_study)
    endings = "; ".join(f"worker {number}: {reason}" for number, reason in ended)
    if len(reasons) == 1:
        endings = str(reasons.pop())
    if not finished:
        return endings
    return (
        f"no worker is left ({endings}); {finished} of {study.trials} trials are finished and "
        "kept: launch again to go on"
    )


Submit = Callable[[Callable[..., Ended], tuple[Any, ...]], "Future[Ended]"]
"""Function that starts a task of a cluster with these arguments."""
# Restarts of a task whose process died, as Dask has by itself.
_RESTARTS = 3


@contextmanager
def tasks(backend: str, address: str | None) -> Iterator[Submit]:
    """Connect to the cluster. Raises RunError if it does not answer within seconds."""
    connect = {"dask": _dask, "ray": _ray}.get(backend)
    if connect is None:
        raise RunError(f"'{backend}' is not known; it must be loky, dask or ray", "backend")
    try:
        with connect(address) as submit:
            yield submit
    except ImportError as error:
        raise RunError(
            f"{backend} needs a package that is not installed: "
            f"pip install -c constraints.txt -e '.[{backend}]'",
            "backend",
        ) from error


@contextmanager
def _dask(address: str | None) -> Iterator[Submit]:
    from distributed import Client

    if address is None:
        raise RunError(
            "dask needs the address of its scheduler, such as tcp://SCHEDULER:8786", "cluster"
        )
    try:
        with ThreadPoolExecutor(1) as aside:  # a notebook has a loop of its own
            aside.submit(asyncio.run, _handshake(address)).result()
        client = Client(address, timeout=CONNECT_SECONDS, set_as_default=False)
    except (OSError, ValueError, MemoryError) as error:  # the last: another protocol
        reason = str(error) or "silence"
        raise RunError(f"no Dask scheduler answers at {address} ({reason})") from error
    with client:
        if not client.scheduler_info()["workers"]:
            raise RunError(f"the Dask cluster at {address} has no workers; start some")
        executor = client.get_executor(pure=False)
        yield lambda function, job: executor.submit(function, *job)


async def _handshake(address: str) -> None:
    """Connect once with a short timeout: a `Client` waits for minutes if something else listens."""
    from distributed.comm.core import connect

    async with asyncio.timeout(CONNECT_SECONDS):
        await (await connect(address)).close()


@contextmanager
def _ray(address: str | None) -> Iterator[Submit]:
    import ray

    if address is not None:  # Ray itself tries for minutes
        host, _, port = address.removeprefix("ray://").rpartition(":")
        try:
            socket.create_connection((host, int(port)), timeout=CONNECT_SECONDS).close()
        except (OSError, ValueError) as error:
            raise RunError(f"no Ray cluster answers at {address} ({error})") from error
    try:
        ray.init(address=address or "auto", log_to_driver=True, logging_level=logging.ERROR)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise RunError(f"no Ray cluster answers at {address or 'auto'} ({error})") from error
    try:
        gpus = int("GPU" in ray.cluster_resources())
        remote: Any = ray.remote(max_retries=_RESTARTS, num_gpus=gpus)
        yield lambda function, job: remote(function).remote(*job).future()
    finally:
        ray.shutdown()
