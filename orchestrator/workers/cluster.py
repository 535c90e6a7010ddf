"""Tasks on a Dask or Ray cluster that runs already, by joblib's own backends."""

import asyncio
import logging
import socket
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any

import joblib

from orchestrator.errors import RunError
from orchestrator.storage.connect import CONNECT_SECONDS

Submit = Callable[[Callable[..., Any], Sequence[tuple[Any, ...]]], "Future[list[Any]]"]
"""Starts a function once for each tuple of arguments; the future has their results."""
_RESTARTS = 3
"""How often Ray starts a worker that died again, as Dask does by itself: else all end with it."""


@contextmanager
def tasks(backend: str, address: str | None) -> Iterator[Submit]:
    """What submits to the cluster. Raises RunError if it does not answer within seconds."""
    try:
        connect = {"dask": _dask, "ray": _ray}[backend]
    except KeyError:
        raise RunError(
            f"'{backend}' is not known; it must be loky, dask or ray", "backend"
        ) from None
    with ExitStack() as stack:
        try:
            settings = stack.enter_context(connect(address))
        except ImportError as error:
            raise RunError(
                f"{backend} needs a package that is not installed: "
                f"pip install -c constraints.txt -e '.[{backend}]'",
                "backend",
            ) from error

        def submit(function: Callable[..., Any], jobs: Sequence[tuple[Any, ...]]) -> Any:
            future: Future[list[Any]] = Future()

            def run() -> None:
                try:
                    with joblib.parallel_config(backend=backend, n_jobs=len(jobs), **settings):
                        parallel = joblib.Parallel(batch_size=1, pre_dispatch="all")
                        future.set_result(parallel(joblib.delayed(function)(*job) for job in jobs))
                except BaseException as error:
                    future.set_exception(error)

            threading.Thread(target=run, daemon=True).start()
            return future

        yield submit


@contextmanager
def _dask(address: str | None) -> Iterator[dict[str, Any]]:
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
        said = str(error) or "silence"
        raise RunError(f"no Dask scheduler answers at {address} ({said})") from error
    with client:
        if not client.scheduler_info()["workers"]:
            raise RunError(f"the Dask cluster at {address} has no workers; start some")
        yield {"client": client}


async def _handshake(address: str) -> None:
    """One handshake in time: a `Client` waits for minutes where something else listens."""
    from distributed.comm.core import connect

    async with asyncio.timeout(CONNECT_SECONDS):
        await (await connect(address)).close()


@contextmanager
def _ray(address: str | None) -> Iterator[dict[str, Any]]:
    import ray
    from ray.util.joblib import register_ray

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
        with warnings.catch_warnings(action="ignore"):
            register_ray()
        gpus = {"num_gpus": 1} if ray.cluster_resources().get("GPU") else {}
        again = {"max_restarts": _RESTARTS, "max_task_retries": _RESTARTS}
        yield {"ray_remote_args": {**gpus, **again}}
    finally:
        ray.shutdown()
