"""Which trials a worker may run: never more than are wanted, never one that another one has."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Literal

import optuna
from optuna.distributions import BaseDistribution
from optuna.exceptions import UpdateFinishedTrialError
from optuna.trial import FrozenTrial, TrialState

from orchestrator.errors import RunError
from orchestrator.runs.artifacts import remove_artifacts
from orchestrator.runs.records import BEGAN, FAILURE, HOME, LAST_SEEN, WORKER
from orchestrator.runs.run_folder import RunFolder
from orchestrator.workers.heartbeat import Watch, end_record, workers_of

HALT = "halt"
"""Study attribute: the token of a launch whose workers are to claim nothing more."""
RETRY_OF = "retry_of"
"""Trial attribute: the number of the trial that was cut off, and whose knobs this one has."""
_RETRIES = "retries"
"""Trial attribute: how often these knobs may have been what made a worker end."""
_MOST_RETRIES = 2
"""After that the knobs themselves may be what kills."""
GIVEN_UP = (UpdateFinishedTrialError, ValueError)
"""What Optuna raises for an attribute, and for the values, of a trial that has ended already."""
Fate = Literal["drop", "ask again", "ask again a few times"]
"""What becomes of the knobs of a trial that failed; a few times: as often as a worker may die with
them."""

_TAKEN = (TrialState.COMPLETE, TrialState.PRUNED, TrialState.RUNNING)


class Claims:
    """Takes trials of a study for one worker.

    Workers claim in turn, under a lock of the run folder. So the trials that are still wanted are
    counted once, and a running trial that names no worker can only be left from one that died
    between two writes.
    """

    def __init__(
        self,
        outer: optuna.Study,
        folder: RunFolder,
        space: Mapping[str, BaseDistribution],
        worker: str,
        wanted: int,
        token: str = "",
    ):
        self._outer, self._folder, self._space = outer, folder, dict(space)
        self._worker, self._wanted = worker, wanted
        self._token, self._watch = token, Watch(folder)

    @property
    def halted(self) -> bool:
        """Whether the launch of this worker was interrupted."""
        return bool(self._token) and self._outer.user_attrs.get(HALT) == self._token

    def take(self, most: int, note: Callable[[str], object] = lambda _: None) -> list[optuna.Trial]:
        """Claim up to `most` trials, fewer or none where that many are running or finished.

        First those of dead workers are failed, and asked again. `note` gets a line on each.
        """
        claimed: list[optuna.Trial] = []
        try:
            with self._folder.in_turn("claim"):
                self._check_home()
                taken = self._outer.get_trials(deepcopy=False, states=_TAKEN)
                lost = self._bury([t for t in taken if t.state is TrialState.RUNNING], note)
                wanted = min(most, self._wanted - len(taken) + len(lost))
                while len(claimed) < wanted:
                    trial = self._outer.ask()
                    claimed.append(trial)
                    trial.set_user_attr(WORKER, self._worker)
                    trial.set_user_attr(BEGAN, time.time())
                    if self._asked_twice(trial):
                        fail(self._outer, trial, "its knobs were asked for twice")
                        claimed.remove(trial)
            remove_artifacts(lost, self._outer, self._folder)
            for trial in claimed:
                draw(trial, self._space)
        except RunError:  # the storage is away: others bury these trials
            raise
        except BaseException as error:  # Ctrl-C, while a sampler takes its time
            ctrl_c = isinstance(error, KeyboardInterrupt)
            reason = "interrupted" if ctrl_c else f"{type(error).__name__}: {error}"
            innocent = ctrl_c or isinstance(error, OSError)  # a full disk is no fault of knobs
            for trial in claimed:
                fail(
                    self._outer, trial, reason, "ask again" if innocent else "ask again a few times"
                )
            raise
        return claimed

    def _check_home(self) -> None:
        """Raise RunError if another launch, which began in the same moment, has bound the study to
        its folder: the models of some trials would lie here, of others there."""
        home = self._outer.user_attrs.get(HOME)
        if home is not None and home["folder"] != self._folder.identity:
            raise RunError(
                f"study '{self._outer.study_name}' was launched into {home['path']} (on "
                f"{home['host']}) at the same time; name that folder with out=..."
            )

    def _asked_twice(self, trial: optuna.Trial) -> bool:
        """Whether an earlier trial has its knobs: they were enqueued again, since the storage's
        answer to the first time was lost."""
        cut_off = trial.user_attrs.get(RETRY_OF)
        return cut_off is not None and any(
            known.user_attrs.get(RETRY_OF) == cut_off and known.number < trial.number
            for known in self._outer.get_trials(deepcopy=False)
        )

    def bury(self) -> None:
        """Fail the trials that dead workers left running, where no more are wanted."""
        with self._folder.in_turn("claim"):
            running = self._outer.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
            lost = self._bury(running, lambda _: None)
        remove_artifacts(lost, self._outer, self._folder)

    def _bury(
        self, running: Sequence[FrozenTrial], note: Callable[[str], object]
    ) -> list[FrozenTrial]:
        """Fail the trials of dead workers; which they are."""
        workers = workers_of(self._outer)
        dead = self._watch.dead(workers)
        lost = []
        for trial in running:
            owner = trial.user_attrs.get(WORKER)
            if owner == self._worker or (owner in workers and owner not in dead):
                continue
            seen = workers[owner].at if owner in workers else 0.0
            if self._fail(trial, seen, note):
                lost.append(trial)
        for name in dead:
            if not workers[name].ended:
                end_record(self._outer, workers[name])
                self._folder.worker(name).unlink(missing_ok=True)
        return lost

    def _fail(self, trial: FrozenTrial, seen: float, note: Callable[[str], object]) -> bool:
        """Fail a trial whose worker died, `seen` for the last time then, and ask again.

        False if its worker has told it just now.
        """
        if self._outer.get_trials(deepcopy=False)[trial.number].state is not TrialState.RUNNING:
            return False
        again = ask_again(self._outer, trial, blamed=WORKER in trial.user_attrs)
        try:
            optuna.Trial(self._outer, trial._trial_id).set_user_attr(LAST_SEEN, seen)
            self._outer.tell(trial.number, state=TrialState.FAIL)
        except GIVEN_UP:  # its worker lives after all, and told it
            return False
        folder = self._folder.trial(trial.number)
        for left in (folder, folder.with_name(f".{folder.name}.unfinished")):
            shutil.rmtree(left, ignore_errors=True)
        note(
            f"trial {trial.number}: its worker died"
            + (", its knobs are tried again" if again else "")
        )
        return True


def fail(outer: optuna.Study, trial: optuna.Trial, reason: str, knobs: Fate = "drop") -> bool:
    """Fail a trial of one's own; False if it has ended already, told or given up by others."""
    with suppress(*GIVEN_UP):
        trial.set_user_attr(FAILURE, reason)
        if knobs != "drop":
            known = outer.get_trials(deepcopy=False)[trial.number]
            ask_again(outer, known, blamed=knobs == "ask again a few times")
        outer.tell(trial, state=TrialState.FAIL)
        return True
    return False


def ask_again(outer: optuna.Study, trial: FrozenTrial, *, blamed: bool) -> bool:
    """Enqueue the knobs of a trial that is about to be failed; whether they are tried again.

    They are not if they were `blamed` once too often. The knobs are enqueued before the trial is
    failed: if this process is killed in between, whoever fails the trial next finds them enqueued
    and adds nothing. Optuna's own retry would carry over artifacts, and constraints, which cannot
    be set twice.
    """
    knobs = {**trial.system_attrs.get("fixed_params", {}), **trial.params}
    retries = trial.user_attrs.get(_RETRIES, 0) + blamed
    again = bool(knobs) and retries <= _MOST_RETRIES
    asked = any(
        known.user_attrs.get(RETRY_OF) == trial.number for known in outer.get_trials(deepcopy=False)
    )
    if again and not asked:
        outer.enqueue_trial(knobs, user_attrs={RETRY_OF: trial.number, _RETRIES: retries})
    return again


def draw(trial: optuna.Trial, space: Mapping[str, BaseDistribution]) -> None:
    """Draw all knobs of an asked trial: outside the lock, since models and writes take a while."""
    for name, knob in space.items():
        trial._suggest(name, knob)  # as `Study.ask` itself does, under the lock
