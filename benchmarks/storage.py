"""How many trials a storage carries, and what the orchestrator takes of a trial's time.

    python -m benchmarks.storage [--seconds 5]            every storage, 1 to 16 workers
    python -m benchmarks.storage --share                  16 workers with trials of 10 seconds
    python -m benchmarks.storage --clients 100 1000       asks and tells of many through the proxy

A worker here is a process (of `--clients`, a thread) that claims trials as `maskfront work` does,
trains for no time, and writes what a finished trial writes to the storage: six links to
artifacts, a constraint, its result, its values. The files themselves are left out. PostgreSQL is a
real one (pgserver) on this machine; so the figures hold for it, at the load that they tell.

Prints its rows and keeps them in benchmarks/results/storage.json or storage-clients.json.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import random
import statistics
import tempfile
import threading
import time
import warnings
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import FloatDistribution
from optuna.exceptions import ExperimentalWarning
from rich.console import Console

from orchestrator.runs.run_folder import RunFolder
from orchestrator.sampler import make_sampler
from orchestrator.storage.connect import open_storage
from orchestrator.workers.claims import Claims
from orchestrator.workers.heartbeat import Heartbeat

SPACE = {
    "flops_weight": FloatDistribution(0.1, 10, log=True),
    "target_ratio": FloatDistribution(0.1, 1, log=True),
    "tolerance": FloatDistribution(0.01, 0.1, log=True),
    "grad_rescale": FloatDistribution(0.03, 0.3, log=True),
}
RESULT = {f"number{n}": random.random() for n in range(16)}
FILES = ("architecture", "picture", "result", "curve", "config", "weights")
TRIAL_SECONDS = 10.0
RESULTS = Path(__file__).parent / "results"


def open_study(url: str, worker: int) -> optuna.Study:
    """The study of a benchmark, as worker `worker` sees it."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.simplefilter("ignore", ExperimentalWarning)
    study = optuna.create_study(
        storage=open_storage(url),
        study_name="benchmark",
        directions=["maximize", "minimize"],
        load_if_exists=True,
    )
    study.sampler = make_sampler(0, 0, 1, worker)
    return study


def tell(study: optuna.Study, trial: optuna.Trial) -> None:
    """All that the storage is told of a finished trial."""
    for name in FILES:
        study._storage.set_trial_system_attr(trial._trial_id, f"artifacts:{name}", "{}" * 60)
    trial.set_constraint("budget", -1.0)
    trial.set_user_attr("result", RESULT)
    study.tell(trial, [random.random(), random.random()])


def work(
    url: str, folder: str, worker: int, seconds: float, pause: float, ready: Any, seen: Any
) -> None:
    """Claim and tell until the time is up, with `pause` seconds of training in between."""
    study, place = open_study(url, worker), RunFolder(Path(folder))
    asks, tells = [], []
    with Heartbeat(study, place, "cpu") as heartbeat:
        claims = Claims(study, place, SPACE, heartbeat.record.name, 10**9)
        ready.wait()
        end = time.monotonic() + seconds
        time.sleep(random.random() * pause)
        while time.monotonic() < end:
            started = time.perf_counter()
            (trial,) = claims.take(1)
            asked = time.perf_counter()
            time.sleep(pause)
            trained = time.perf_counter()
            tell(study, trial)
            asks.append(asked - started)
            tells.append(time.perf_counter() - trained)
    seen.put((asks, tells))


def measure(url: str, workers: int, seconds: float, pause: float = 0.0) -> dict[str, Any]:
    """Trials a second, and the seconds of an ask and of a tell, with this many processes."""
    spawn = multiprocessing.get_context("spawn")
    seen = spawn.Queue()
    with tempfile.TemporaryDirectory() as folder:
        open_study(url, 0)
        ready = spawn.Barrier(workers)
        arguments = [(url, folder, n + 1, seconds, pause, ready, seen) for n in range(workers)]
        processes = [spawn.Process(target=work, args=these) for these in arguments]
        for process in processes:
            process.start()
        found = [seen.get(timeout=seconds + 300) for _ in processes]
        for process in processes:
            process.join()
    asks = [second for one, _ in found for second in one]
    tells = [second for _, one in found for second in one]
    counts = [len(one) for one, _ in found]
    busy = statistics.mean(sum(a) + sum(t) for a, t in found if a)
    overhead = sum(asks) + sum(tells)
    return {
        "workers": workers,
        "trials": len(asks),
        "trials_per_second": len(asks) / max(busy, 1e-9) if not pause else None,
        "fewest_and_most_of_a_worker": [min(counts), max(counts)],
        "ask_ms": quantiles(asks),
        "tell_ms": quantiles(tells),
        "share_of_a_trial": overhead / (overhead + pause * len(asks)) if pause else None,
    }


def quantiles(seconds: list[float]) -> dict[str, float]:
    """Median and 95th percentile, in milliseconds."""
    ordered = sorted(seconds) or [float("nan")]
    return {
        "median": 1000 * ordered[len(ordered) // 2],
        "p95": 1000 * ordered[int(0.95 * (len(ordered) - 1))],
    }


def clients(url: str, count: int, seconds: float, period: float) -> dict[str, Any]:
    """`count` threads behind one proxy, each asking and telling once in `period` seconds."""
    study = open_study(url, 0)
    study.sampler = optuna.samplers.RandomSampler()
    asks: list[float] = []
    tells: list[float] = []
    late: list[float] = []
    errors: list[str] = []
    end = time.monotonic() + seconds

    def client() -> None:
        time.sleep(random.random() * period)
        while time.monotonic() < end:
            began = time.perf_counter()
            try:
                trial = study.ask(SPACE)
                asked = time.perf_counter()
                tell(study, trial)
            except Exception as error:
                errors.append(f"{type(error).__name__}: {error}"[:200])
                return
            asks.append(asked - began)
            tells.append(time.perf_counter() - asked)
            late.append(time.monotonic() - end)
            pause = max(0.0, period - (time.perf_counter() - began)) * random.uniform(0.9, 1.1)
            if time.monotonic() + pause > end:
                return
            time.sleep(pause)

    threads = [threading.Thread(target=client, daemon=True) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=max(0.1, end + 60 - time.monotonic()))
    return {
        "clients": count,
        "period_s": period,
        "asked_per_second": count / period,
        "done_per_second": sum(after <= 0 for after in late) / seconds,
        "ask_ms": quantiles(asks),
        "tell_ms": quantiles(tells),
        "stuck": sum(thread.is_alive() for thread in threads),
        "errors": errors[:3],
    }


def main() -> None:
    """Measure what is asked."""
    from tests.servers import Postgres, free_port, proxy

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--workers", type=int, nargs="*", default=[1, 4, 16])
    parser.add_argument("--share", action="store_true")
    parser.add_argument("--clients", type=int, nargs="*")
    parser.add_argument("--period", type=float, default=60.0)
    asked = parser.parse_args()
    target = RESULTS / f"storage{'-clients' if asked.clients else ''}.json"
    with ExitStack() as stack:
        files = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        postgres = Postgres()
        stack.callback(postgres.stop)

        def served() -> str:
            port = free_port()
            stack.enter_context(proxy(postgres.new_database(), port))
            return f"grpc://127.0.0.1:{port}"

        if asked.clients:
            for count in asked.clients:
                keep(target, clients(served(), count, asked.seconds, asked.period))
            return
        if asked.share:
            row = measure(postgres.new_database(), 16, 6 * TRIAL_SECONDS, pause=TRIAL_SECONDS)
            keep(target, {"storage": "PostgreSQL, trials of 10 s", **row})
            return
        storages = {
            "SQLite, WAL": lambda n: f"sqlite:///{files}/{n}.db",
            "journal": lambda n: f"journal:///{files}/{n}.journal",
            "PostgreSQL": lambda n: postgres.new_database(),
            "proxy, PostgreSQL": lambda n: served(),
        }
        for name, url in storages.items():
            for count in asked.workers:
                row = measure(url(count), count, asked.seconds)
                keep(target, {"storage": name, **row})


def keep(target: Path, row: dict[str, Any]) -> None:
    """Print a row, and put it in the JSON in place of an older one of the same name."""
    names = ("storage", "workers", "clients", "period_s")
    row["load_average"] = os.getloadavg()[0]
    Console(width=100).print(row)
    known = json.loads(target.read_text())["rows"] if target.exists() else []
    rows = [old for old in known if any(old.get(name) != row.get(name) for name in names)]
    document = {
        "optuna": optuna.__version__,
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "rows": [*rows, row],
    }
    target.write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    main()
