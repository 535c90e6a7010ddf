"""Trial queue: a worker never claims more trials than are wanted, nor one that another has; a trial
that repeats a finished one takes its result instead of training again."""

import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import optuna
from optuna.distributions import BaseDistribution
from optuna.exceptions import UpdateFinishedTrialError
from optuna.trial import FrozenTrial, TrialState, create_trial

from objectives.search_method import SearchMethod
from orchestrator.errors import RunError
from orchestrator.method_space import applies
from orchestrator.optuna_private import all_trials, draw, knobs_of, set_trial_attribute
from orchestrator.runs import records
from orchestrator.runs.artifacts import remove_artifacts
from orchestrator.runs.reading import damages
from orchestrator.runs.records import FinishedTrial, trial_record
from orchestrator.runs.run_folder import MODEL, RunFolder
from orchestrator.study import Study
from orchestrator.workers.heartbeat import Watch, end_record, launch_of, this_machine, workers_of

HALT = "halt"  # study attribute: the token of a launch whose workers are to claim nothing more
OWN = {records.WORKER: ""}  # of each trial that maskfront enqueues; others are another program's
DEATHS_ALONE = "deaths_alone"
"""Trial attribute: number of workers that died while they trained only these knobs. A trial that
has it, even 0, is trained alone: a worker has died with it, and may do so again."""
_MOST_DEATHS = 2  # after one more the knobs are dropped: they may be what kills
ALREADY_ENDED = (UpdateFinishedTrialError, ValueError)  # what Optuna raises for such a trial
Retry = Literal["never", "always", "limited"]  # of failed knobs; "limited": after a worker's death


class Claims:
    """Queue of a study's trials for a worker; workers claim in turn, under a lock of the folder."""

    # So the trials that are still wanted are counted once, and a running trial that names no worker
    # can only be left from one that died between two writes.

    def __init__(
        self,
        optuna_study: optuna.Study,
        folder: RunFolder,
        space: Mapping[str, BaseDistribution],
        worker: str,
        wanted: int,
        token: str = "",
        *,
        draws: bool = True,
    ):
        self._optuna_study, self._folder, self._space = optuna_study, folder, dict(space)
        self._worker, self._wanted = worker, wanted
        self._token, self._watch, self._draws = token, Watch(folder), draws

    @property
    def halted(self) -> bool:
        """Whether the launch of this worker was interrupted."""
        return bool(self._token) and self._optuna_study.user_attrs.get(HALT) == self._token

    @property
    def exhausted(self) -> bool:
        """Whether the study has no sampler and every enqueued trial has ended."""
        return not self._draws and not self._trials(TrialState.WAITING, TrialState.RUNNING)

    def _trials(self, *states: TrialState) -> list[FrozenTrial]:
        return self._optuna_study.get_trials(deepcopy=False, states=states)

    def take(self, most: int, note: Callable[[str], object] = lambda _: None) -> list[optuna.Trial]:
        """Fail trials of dead workers, with a note on each; claim up to `most` that are wanted."""
        claimed: list[optuna.Trial] = []
        try:
            with self._folder.in_turn("claim"):
                self._check_home()
                taken = self._trials(TrialState.COMPLETE, TrialState.RUNNING)
                lost = self._fail_orphans([t for t in taken if t.state is TrialState.RUNNING], note)
                self._ask(claimed, min(most, self._wanted - len(taken) + lost))
            for trial in claimed:  # outside the lock, since models and writes take a while
                drawn: dict[str, Any] = {}
                for name, knob in self._space.items():
                    if applies(name, drawn):
                        drawn[name] = draw(trial, name, knob)
        except RunError:  # the storage is away: others fail these trials
            raise
        except BaseException as error:  # Ctrl-C, while a sampler takes its time
            ctrl_c = isinstance(error, KeyboardInterrupt)
            reason = "interrupted" if ctrl_c else f"{type(error).__name__}: {error}"
            for trial in claimed:
                self.fail(trial.number, {records.FAILURE: reason}, "always")
            raise
        return claimed

    def _ask(self, claimed: list[optuna.Trial], wanted: int) -> None:
        """Add trials to the claimed ones: enqueued knobs first, in the order of their numbers."""
        waiting = iter(self._trials(TrialState.WAITING))
        while len(claimed) < wanted:
            upcoming = next(waiting, None)
            if upcoming is None:
                if not self._draws:
                    return
                self._optuna_study.add_trial(create_trial(state=TrialState.WAITING, user_attrs=OWN))
            if claimed and upcoming is not None and DEATHS_ALONE in upcoming.user_attrs:
                return
            try:
                trial = self._optuna_study.ask()
            except KeyboardInterrupt:
                for begun in self._trials(TrialState.RUNNING):
                    if not begun.user_attrs.get(records.WORKER):  # under the lock: by this `ask`
                        self.fail(begun.number, {records.FAILURE: "interrupted"}, "always")
                raise
            claimed.append(trial)
            trial.set_user_attr(records.WORKER, self._worker)
            trial.set_user_attr(records.BEGAN, time.time())
            cut_off = trial.user_attrs.get(records.RETRY_OF)
            if cut_off is not None and trial.number > min(_retries(self._optuna_study, cut_off)):
                # Its knobs were enqueued again: the storage's first answer was lost.
                self.fail(trial.number, {records.FAILURE: "its knobs were enqueued twice"})
                claimed.remove(trial)
            elif DEATHS_ALONE in trial.user_attrs:
                return

    def _check_home(self) -> None:
        """Raise RunError if another launch at the same moment has bound the study to its folder."""
        home = self._optuna_study.user_attrs.get(records.HOME)
        here = (self._folder.identity, self._folder.inode)
        if home is not None and here != (home["folder"], home.get("inode", here[1])):
            raise RunError(
                f"study '{self._optuna_study.study_name}' was launched into {home['path']} (on "
                f"{home['host']}) at the same time; name that folder",
                "out",
            )

    def fail_orphans(self, note: Callable[[str], object] = lambda _: None) -> None:
        """Fail the trials that dead workers left running; `note` gets a line on each."""
        with self._folder.in_turn("claim"):
            self._fail_orphans(self._trials(TrialState.RUNNING), note)

    def _fail_orphans(self, running: Sequence[FrozenTrial], note: Callable[[str], object]) -> int:
        workers = workers_of(self._optuna_study)
        dead, study = self._watch.dead(workers), self._optuna_study
        lost = 0
        for trial in running:
            owner = trial.user_attrs.get(records.WORKER, "")
            alive = owner in workers and owner not in dead
            if owner and (owner == self._worker or alive):
                continue
            record = workers.get(owner)
            why = {records.LAST_SEEN: 0.0 if record is None else record.at}
            retry: Retry = "limited"
            if record and record.machine != this_machine() and record.launch != launch_of(study):
                # Neither its machine nor its launch outlived it: no fault of its knobs.
                retry = "always"
            if self.fail(trial.number, why, retry):
                lost += 1
                retried = ", its knobs are tried again" if _retries(study, trial.number) else ""
                note(f"trial {trial.number}: its worker died{retried}")
        for name in dead:
            if not workers[name].ended:
                end_record(self._optuna_study, workers[name])
                self._folder.worker(name).unlink(missing_ok=True)
        return lost

    def fail(self, number: int, why: Mapping[str, Any], retry: Retry = "never") -> bool:
        """Fail a running trial, with attributes `why`, and remove its files; False if it ended."""
        trial = all_trials(self._optuna_study)[number]
        if trial.state is not TrialState.RUNNING:
            return False
        try:
            if retry != "never":
                enqueue_again(self._optuna_study, trial, limited=retry == "limited")
            for name, value in why.items():
                set_trial_attribute(self._optuna_study, trial, name, value)
            self._optuna_study.tell(number, state=TrialState.FAIL)
        except ALREADY_ENDED:  # told or failed by another worker just now
            return False
        self.remove_files(trial)
        return True

    def remove_files(self, trial: FrozenTrial | optuna.Trial) -> None:
        """Remove the files of a failed trial."""
        files = self._folder.trial(trial.number)
        for left in (files, files.with_name(f".{files.name}.unfinished")):
            shutil.rmtree(left, ignore_errors=True)
        remove_artifacts(trial, self._optuna_study, self._folder)

    def recover(self, note: Callable[[str], object]) -> None:
        """Fail orphans, retry finished trials whose files are damaged, as these no longer count,
        and remove files of trials whose worker was killed after it failed them."""
        self.fail_orphans(note)
        finished = [trial.number for trial in self._trials(TrialState.COMPLETE)]
        for number, lines in records.damaged_trials(self._folder.path, finished).items():
            trial = all_trials(self._optuna_study)[number]
            enqueue_again(self._optuna_study, trial, limited=False)
            note(f"trial {number} is damaged, its knobs are tried again: {'; '.join(lines)}")
        for failed in self._trials(TrialState.FAIL):
            if self._folder.trial(failed.number).exists():
                self.remove_files(failed)


def enqueue_again(optuna_study: optuna.Study, trial: FrozenTrial, *, limited: bool) -> None:
    """Enqueue the knobs of a trial about to be failed, once; `limited` if its worker died."""
    # A death counts against knobs that trained alone, which are dropped after `_MOST_DEATHS`; where
    # others trained beside them, any of these may be to blame, so that each is tried alone.
    # Optuna's own retry would carry over artifacts, and constraints, which cannot be set twice.
    knobs = knobs_of(trial)
    attributes = {**OWN, records.RETRY_OF: trial.number}
    deaths = _deaths(trial) if limited else trial.user_attrs.get(DEATHS_ALONE)
    if deaths is not None:
        attributes[DEATHS_ALONE] = deaths
    dropped = not knobs or (deaths or 0) > _MOST_DEATHS
    if not dropped and not _retries(optuna_study, trial.number):
        optuna_study.enqueue_trial(knobs, user_attrs=attributes)


def _deaths(trial: FrozenTrial) -> int | None:
    """Number of workers that died with these knobs alone; None if the search had not begun."""
    deaths, together = trial.user_attrs.get(DEATHS_ALONE), trial.user_attrs.get(records.POPULATION)
    return deaths if together is None else (deaths or 0) + (together == 1)


def killed_too_often(trial: FrozenTrial) -> bool:
    """Whether the knobs of a failed trial were dropped, as its worker died once more."""
    return records.LAST_SEEN in trial.user_attrs and (_deaths(trial) or 0) > _MOST_DEATHS


def _retries(optuna_study: optuna.Study, number: int) -> list[int]:
    trials = optuna_study.get_trials(deepcopy=False)
    return [trial.number for trial in trials if trial.user_attrs.get(records.RETRY_OF) == number]


NumberedMethod = tuple[int, SearchMethod]  # a trial's number and its method


class Finished:
    """Finished trials by their canonical method; all else that decides a result is the study's."""

    def __init__(self, study: Study, optuna_study: optuna.Study, folder: RunFolder):
        self._study, self._optuna_study, self._folder = study, optuna_study, folder
        self._read: set[int] = set()
        self._numbers: dict[SearchMethod, list[int]] = {}

    def new_and_repeats(
        self, members: Sequence[NumberedMethod]
    ) -> tuple[list[NumberedMethod], list[NumberedMethod]]:
        """Split members into new ones and those that repeat a finished trial or another member."""
        self._read_finished()
        new: dict[SearchMethod, NumberedMethod] = {}
        repeats = []
        for number, method in members:
            canonical = method.canonical()
            if canonical in new or canonical in self._numbers:
                repeats.append((number, method))
            else:
                new[canonical] = (number, method)
        return list(new.values()), repeats

    def twin_of(self, method: SearchMethod) -> FinishedTrial | None:
        """Find a finished trial of an equal method whose files are intact."""
        self._read_finished()
        for number in self._numbers.get(method.canonical(), ()):
            record = trial_record(all_trials(self._optuna_study)[number])
            folder = self._folder.trial(number)
            intact = (folder / MODEL).is_dir() and not damages(folder)
            if isinstance(record, FinishedTrial) and intact:
                return record
        return None

    def _read_finished(self) -> None:
        for trial in self._optuna_study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,)):
            if trial.number not in self._read:
                self._read.add(trial.number)
                canonical = self._study.trial_method(trial.params).canonical()
                self._numbers.setdefault(canonical, []).append(trial.number)
