"""Status of a run: trials by state, rate and time left, workers, front, failures."""

import math
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from operator import attrgetter
from pathlib import Path
from statistics import fmean
from typing import Any

import optuna
from optuna.trial import FrozenTrial, TrialState

from orchestrator.errors import RunError
from orchestrator.runs import records
from orchestrator.runs.busy_clock import BusyClock
from orchestrator.runs.reading import as_type
from orchestrator.runs.records import FinishedTrial, TrialRecord
from orchestrator.runs.results import DIVERGENCE, ratio_text
from orchestrator.runs.run_folder import RunFolder
from orchestrator.storage.connect import read_storage
from orchestrator.storage.urls import hidden, parse_url, remember_server
from orchestrator.workers.heartbeat import WorkerRecord, is_alive, workers_of

_RECENT = 20  # finished trials from which the rate is taken


@dataclass(frozen=True, kw_only=True)
class Status:
    """A study at one moment."""

    name: str
    wanted: int | None  # trials that the last launch wants
    trials: dict[str, int]  # how many are finished, failed, running and waiting
    per_hour: float | None  # of the last trials that finished; None before there are any
    seconds_left: float | None  # at this rate; None if no worker is alive
    workers: tuple[dict[str, Any], ...]  # those that have not ended: where, what runs, last beat
    front: tuple[FinishedTrial, ...]
    failures: dict[str, int]  # how often trials failed, by reason
    foreign: tuple[int, ...]  # numbers of trials that another program made
    damaged: dict[int, list[str]]  # lines on damaged files of trials that would be on the front

    @property
    def state(self) -> str:
        """State of the run: "running", "finished" or "stopped"."""
        if any(worker["alive"] for worker in self.workers):
            return "running"
        done = self.wanted is not None and self.trials["finished"] >= self.wanted
        return "finished" if done else "stopped"

    def document(self) -> dict[str, Any]:
        """Plain data, as `maskfront status --json` prints it."""
        columns = ("metric", "divergence", "cost", "unit", "ratio")
        front = [
            {"trial": trial.number} | {name: getattr(trial.result, name) for name in columns}
            for trial in self.front
        ]
        return {**vars(self), "state": self.state, "workers": list(self.workers), "front": front}

    def line(self, best: FinishedTrial | None) -> str:
        """The run in one line: finished and wanted trials, state, best trial."""
        wanted = "" if self.wanted is None else f" of {self.wanted}"
        trials = f"{self.trials['finished']}{wanted} trials"
        return f"{trials:18} {self.state:8}  {'' if best is None else _front_text(best)}".rstrip()

    def lines(self) -> list[str]:
        wanted = "" if self.wanted is None else f" of {self.wanted} wanted"
        counts = [f"{count} {state}" for state, count in self.trials.items() if count]
        lines = [f"study      {self.name}", f"trials     {', '.join(counts) or 'none'}{wanted}"]
        if self.per_hour is not None:
            left = "" if self.seconds_left is None else f", {_duration(self.seconds_left)} left"
            lines.append(f"rate       {self.per_hour:.1f} trials an hour{left}")
        for worker in self.workers:
            beat = _duration(worker["seconds_since_beat"])
            at_work = f"runs {worker['running']}" if worker["running"] else "between trials"
            doing = f"alive, {at_work}" if worker["alive"] else "dead"
            where = f"{worker['name']} on {worker['device']}"
            lines.append(f"worker     {where}: {doing}, last beat {beat} ago")
        lines += [f"front      {_front_text(trial)}" for trial in self.front]
        for reason, count in self.failures.items():
            lines.append(f"failed     {'once' if count == 1 else f'{count} times'}: {reason}")
        lines += [f"foreign    {records.foreign_note(self.foreign)}"] if self.foreign else []
        lines += [f"damaged    trial {n}: {'; '.join(files)}" for n, files in self.damaged.items()]
        return lines


def _front_text(trial: FinishedTrial) -> str:
    size = f"{trial.result.cost_name} ratio {ratio_text(trial.result.ratio)}"
    far = trial.result.divergences.get(DIVERGENCE)
    worth = f"{trial.result.metric:.4f}" if far is None else f"{DIVERGENCE} {far:.4g}"
    return f"trial {trial.number}: {worth} at {size}"


def _duration(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))


def run_status(folder: Path) -> Status:
    """Read the status of a run folder. Raises RunError if it holds no run."""
    return status_of(records.load_optuna_study(folder), RunFolder(folder))


def storage_status(url: str, name: str | None) -> Status:
    """Read the status of a study in a storage; `name` may be None if it holds only one."""
    storage = read_storage(remember_server(url))
    names = records.run_names(storage)
    if name is None and len(names) == 1:
        (name,) = names
    if not names:
        raise RunError(
            f"storage {hidden(parse_url(url))} holds no study; `maskfront run` with this storage "
            "starts one there"
        )
    if name not in names:
        asked = "no study is named" if name is None else f"there is no study '{name}'"
        raise RunError(f"{asked}; the storage has {', '.join(names)}: name one of these")
    return status_of(records.own_study(name, storage), None)


def status_of(study: optuna.Study, folder: RunFolder | None) -> Status:
    """Status of an Optuna study; with `folder` the workers of this machine are known for sure."""
    if folder is None and records.DEFINITION not in study.user_attrs:
        raise RunError(f"maskfront did not make the study '{study.study_name}'")
    where = f"study '{study.study_name}'" if folder is None else f"'{folder.path}'"
    rows, asked = records.trials_of(study), study.user_attrs.get(records.WANTED)
    wanted = as_type(int | None, asked, f"{where}: the study's {records.WANTED}")
    begun = [row for row in rows if row.state is not TrialState.WAITING]
    trials = [records.trial_record(row, where) for row in begun]
    rate = trials_per_second(trials)
    workers = [record for record in workers_of(study, where).values() if not record.ended]
    shown = tuple(_worker(record, rows, folder) for record in workers)
    states: Counter[str] = Counter(trial.state for trial in trials)
    failures = Counter(trial.failure for trial in trials if trial.failure)
    states["waiting"] = len(rows) - len(trials)
    if folder is not None:
        trials = records.with_damage(trials, folder.path)
    left = None
    if rate is not None and wanted is not None and any(worker["alive"] for worker in shown):
        left = max(0, wanted - states["finished"]) / rate
    return Status(
        name=study.study_name,
        wanted=wanted,
        trials={state: states[state] for state in ("finished", "failed", "running", "waiting")},
        per_hour=None if rate is None else 3600 * rate,
        seconds_left=left,
        workers=shown,
        front=tuple(records.pareto_front(trials)) if records.UNPRUNED in study.user_attrs else (),
        failures=dict(failures.most_common()),
        foreign=records.foreign_trials(study),
        damaged={trial.number: list(trial.damage) for trial in trials if trial.damage},
    )


def trials_per_second(trials: Sequence[TrialRecord]) -> float | None:
    """Finished trials a second, over the time in which the latest ran and any was running."""
    # A trial counts for the share of its own time that lies in this, also one that still runs.
    # Populations of which some trials have ended are left out, unless there are no others: on a CPU
    # they search together, and end one by one.
    counted = [t for t in trials if t.state == "finished" and t.seconds]
    running = [t for t in trials if t.state == "running" and t.started]
    claimed: dict[Any, float] = {}  # by worker, which has one population at a time
    for trial in running:
        worker, began = trial.attributes.get(records.WORKER), trial.started or 0.0
        claimed[worker] = min(began, claimed.get(worker, math.inf))
    ended = [t for t in counted if t.end <= claimed.get(t.attributes.get(records.WORKER), math.inf)]
    recent = sorted(ended or counted, key=attrgetter("end"))[-_RECENT:]
    if not recent:
        return None
    begin, end = min(trial.started or 0.0 for trial in recent), recent[-1].end
    usual = fmean(trial.seconds or 0.0 for trial in recent)

    def share(trial: TrialRecord) -> float:
        start, lasts = trial.started or 0.0, trial.seconds or usual
        inside = min(trial.end, end) - max(start, begin)
        return min(max(inside / lasts, 0.0), 1.0)

    clock = BusyClock(trials)
    sharing = [*counted, *(running if ended else ())]
    return sum(map(share, sharing)) / (clock(end) - clock(begin))


def _worker(
    record: WorkerRecord, trials: Sequence[FrozenTrial], folder: RunFolder | None
) -> dict[str, Any]:
    running = [trial for trial in trials if trial.state is TrialState.RUNNING]
    return {
        **{name: getattr(record, name) for name in ("name", "host", "pid", "device")},
        "alive": is_alive(record, folder),
        "seconds_since_beat": max(0.0, time.time() - record.at),
        "running": [t.number for t in running if t.user_attrs.get(records.WORKER) == record.name],
    }
