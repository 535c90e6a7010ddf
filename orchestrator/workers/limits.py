"""Decide whether a launch takes more trials: by number, time and growth of the front."""

import math
import time
from collections.abc import Sequence
from operator import attrgetter

import optuna
from optuna.trial import TrialState

from orchestrator.runs.records import BEFORE, STOPPED, UNTIL, FinishedTrial, trial_record
from orchestrator.workers.heartbeat import LAUNCHES, launch_of, this_machine


def finished_trials(optuna_study: optuna.Study) -> int:
    """Number of finished trials."""
    return len(optuna_study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,)))


def begin_launch(optuna_study: optuna.Study, timeout: float | None) -> None:
    """Record the start of a launch and for how many seconds it takes trials."""
    until = None
    if timeout is not None:
        clocks = {"monotonic": time.monotonic() + timeout, "wall": time.time() + timeout}
        until = {"machine": this_machine(), **clocks}
    optuna_study.set_user_attr(UNTIL, until)
    optuna_study.set_user_attr(BEFORE, finished_trials(optuna_study))
    optuna_study.set_user_attr(STOPPED, None)
    optuna_study.set_user_attr(LAUNCHES, launch_of(optuna_study) + 1)


def why_it_ends(optuna_study: optuna.Study, patience: int | None) -> str | None:
    """Reason to take no more trials though some are wanted; None to continue."""
    # Once the front has stopped growing all workers end, though a running trial may make it grow.
    attributes = optuna_study.user_attrs
    until, stopped = attributes.get(UNTIL), attributes.get(STOPPED)
    if until is not None:
        # The machine's processes share a clock that nobody sets; other machines have the wall's.
        same = until["machine"] == this_machine()
        if time.monotonic() > until["monotonic"] if same else time.time() > until["wall"]:
            return "the time is up"
    if stopped is None and patience is not None:
        ended = optuna_study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
        records = [trial_record(trial) for trial in ended]
        growth = last_growth([record for record in records if isinstance(record, FinishedTrial)])
        if len(records) - max(growth, attributes.get(BEFORE, 0)) >= patience:
            stopped = f"the front has not grown for {patience} finished trials (Study.patience)"
            optuna_study.set_user_attr(STOPPED, stopped)
    return stopped


def last_growth(trials: Sequence[FinishedTrial]) -> int:
    """Number of trials, by their ends, up to the last that added hypervolume; 0 if none did."""
    # The volume is counted from the cost of the unpruned model and from a metric of 0, of a
    # divergence from infinity. So a trial adds to it that costs less, is better than that, and is
    # matched by no earlier one in both objectives.
    before: list[tuple[float, float]] = []
    growth = 0
    for count, trial in enumerate(sorted(trials, key=attrgetter("end", "number")), 1):
        result = trial.result
        worst = 0 if result.objective == "metric" else -math.inf
        if not trial.feasible or result.ratio >= 1 or result.worth <= worst:
            continue
        if not any(ratio <= result.ratio and worth >= result.worth for ratio, worth in before):
            before.append((result.ratio, result.worth))
            growth = count
    return growth
