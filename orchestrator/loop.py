"""The outer loop: ask a population, search it as one program, tell each trial; again."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import optuna
from optuna.artifacts import upload_artifact
from optuna.exceptions import ExperimentalWarning, StorageInternalError, UpdateFinishedTrialError
from optuna.trial import TrialState
from rich.console import Console
from sqlalchemy.exc import OperationalError

from objectives.device import choose_device, quiet_libraries
from objectives.errors import UserError
from objectives.problem import Workbench, prepare, read_inputs
from objectives.search_method import (
    Outcome,
    SearchFailure,
    SearchMethod,
    SearchResult,
    Stopped,
    populations,
)
from orchestrator.artifacts import LinkingStore
from orchestrator.errors import RunError
from orchestrator.opening import finished_trials, open_study
from orchestrator.progress import LaunchProgress
from orchestrator.records import (
    BUDGET,
    FAILURE,
    RESULT,
    UNPRUNED,
    RunRecord,
    TrialResult,
    UnprunedResult,
    read_run,
    unpruned_result,
)
from orchestrator.run_folder import RunFolder
from orchestrator.study import Study
from orchestrator.trial_files import MODEL, write_trial

Callback = Callable[[RunRecord], object]
"""Called after each population with the run as it stands; `launch` knows nothing of reports."""

_HOPELESS = 2
"""Populations in a row without a finished trial after which a launch gives up."""


def launch(
    study: Study,
    *,
    trials: int | None = None,
    population: int | None = None,
    out: str | Path | None = None,
    device: str = "auto",
    callbacks: Sequence[Callback] = (),
    console: Console | None = None,
) -> RunRecord:
    """Run the study until `trials` are finished, or continue it if its folder holds a run.

    `trials` and `population` stand in for the study's own; `out` is the run folder (runs/NAME by
    default); `device` is "auto", "cpu" or a CUDA device. Ctrl-C fails the running trials, keeps the
    finished ones and raises KeyboardInterrupt. Raises RunError or UserError for what the user can
    mend, before anything is written wherever that is known before.
    """
    study = replace(
        study,
        trials=study.trials if trials is None else trials,
        population=study.population if population is None else population,
    )
    folder = RunFolder(Path(out) if out is not None else Path("runs") / study.name)
    chosen = choose_device(device)
    quiet_libraries()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    inputs = read_inputs(
        study.task,
        study.teacher,
        study.student_layers,
        study.seq_len,
        student=study.student,
        augmentation=study.augmentation,
    )
    definition = study.definition(
        inputs.text.fingerprint,
        inputs.checkpoint_fingerprint,
        inputs.student_fingerprint,
        None if inputs.augmenter is None else inputs.augmenter.definition,
    )
    try:
        with folder.locked():
            outer = open_study(study, folder, definition, chosen)
            if finished_trials(outer) < study.trials:
                with LaunchProgress(study, finished_trials(outer), console) as progress:
                    bench = prepare(
                        inputs,
                        cache=folder.cache,
                        seed=study.seed,
                        device=chosen,
                        progress=progress,
                        cost=study.cost,
                        spaces=study.method.spaces,
                    )
                    _Launch(study, folder, outer, progress, bench).run(callbacks)
    except OSError as error:
        raise _unwritable(error.filename or folder.path, error.strerror or error) from error
    except (StorageInternalError, OperationalError) as error:
        raise _unwritable(folder.storage, error.__cause__ or error) from error
    return read_run(folder.path)


def _unwritable(path: object, reason: object) -> RunError:
    return RunError(
        f"'{path}' could not be written ({reason}); finished trials are kept: free the disk or "
        "choose another folder with --out, and launch again"
    )


class _Launch:
    """One launch at work on an open study."""

    def __init__(
        self,
        study: Study,
        folder: RunFolder,
        outer: optuna.Study,
        progress: LaunchProgress,
        bench: Workbench,
    ):
        self.study, self.folder, self.outer = study, folder, outer
        self.progress, self.bench = progress, bench
        self.running: dict[int, optuna.Trial] = {}

    def run(self, callbacks: Sequence[Callback]) -> None:
        """Populations until enough trials are finished."""
        self._record_unpruned()
        finished, barren = finished_trials(self.outer), 0
        while finished < self.study.trials:
            self._population(min(self.study.population, self.study.trials - finished))
            barren = barren + 1 if finished_trials(self.outer) == finished else 0
            finished = finished_trials(self.outer)
            record = read_run(self.folder.path)
            for callback in callbacks:
                callback(record)
            if barren == _HOPELESS:
                raise RunError(
                    f"study '{self.study.name}': the last {_HOPELESS} populations finished no "
                    f"trial; the newest failed with: {record.trials[-1].failure}"
                )

    def _record_unpruned(self) -> None:
        """Keep the score of the teacher, and name the two objectives.

        Raises RunError if the run's earlier trials were measured otherwise than this launch would.
        """
        shape = self.bench.unpruned_shape
        unpruned = UnprunedResult(
            **asdict(self.bench.unpruned),
            **self._yardstick(),
            heads_per_layer=(shape.heads,) * shape.layers,
            ffn_per_layer=(shape.ffn,) * shape.layers,
        )
        if UNPRUNED in self.outer.user_attrs:
            known = unpruned_result(self.outer.user_attrs[UNPRUNED])
            if (known.unit, known.cost_full) != (unpruned.unit, unpruned.cost_full):
                raise RunError(
                    f"'{self.folder.path}': ratio 1 was {known.cost_full} {known.unit}, would now "
                    f"be {unpruned.cost_full} {unpruned.unit}; go on where it began (device, "
                    "threads, torch, cache folder), or give the study another name"
                )
        self.outer.set_user_attr(UNPRUNED, asdict(unpruned))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)
            self.outer.set_metric_names([self.bench.metric, unpruned.unit])

    def _yardstick(self) -> dict[str, Any]:
        """What the sizes of all models of the run are measured in, and against."""
        return {
            "unit": self.bench.problem.cost.unit,
            "cost_full": self.bench.problem.cost_full,
            "flops_unit": self.bench.flops.unit,
            "flops_full": self.bench.flops_full,
        }

    def _population(self, size: int) -> None:
        """Ask, search and tell `size` trials; whatever happens, none is left running."""
        started = time.monotonic()
        for _ in range(size):
            trial = self.outer.ask(dict(self.study.space))
            self.running[trial.number] = trial
        self.progress.population(sorted(self.running))
        try:
            members = self._members()
            for places in populations([method for _, method in members]):
                self._search([members[place] for place in places], started)
        except KeyboardInterrupt:
            self._fail_all("interrupted")
            raise
        except OSError as error:
            self._fail_all(f"the disk refused a write: {error}")
            raise
        except UserError as error:  # what no other trial of the study would do better
            self._fail_all(str(error))
            raise

    def _members(self) -> list[tuple[int, SearchMethod]]:
        """The trials' methods by number; a trial whose knobs its method refuses has failed."""
        members = []
        for number, trial in list(self.running.items()):
            try:
                members.append((number, self.study.trial_method(trial.params)))
            except UserError as error:
                self._fail(number, str(error))
        return members

    def _search(self, group: Sequence[tuple[int, SearchMethod]], started: float) -> None:
        numbers = [number for number, _ in group]
        methods = [method for _, method in group]
        reason = "the method gave no outcome for it"
        try:
            for outcome in type(methods[0]).search(
                methods, self.bench.problem, seed=self.study.seed, progress=self.progress
            ):
                self._tell(numbers[outcome.slot], outcome, started)
        except (OSError, UserError):
            raise
        except Exception as error:  # a trial may fail in any way; the study goes on
            reason = f"{type(error).__name__}: {error}"
        for number in set(numbers) & set(self.running):
            self._fail(number, reason)

    def _tell(self, number: int, outcome: Outcome, started: float) -> None:
        trial = self.running[number]
        if isinstance(outcome, SearchFailure):
            self._fail(number, outcome.reason)
            return
        if isinstance(outcome, Stopped):
            self.outer.tell(trial, state=TrialState.PRUNED)
            self._ended(number, "stopped early", counts=True)
            return
        result = self._score(number, outcome, started)
        if not math.isfinite(result.metric):
            self._fail(number, f"its {self.bench.metric} is {result.metric}")
            return
        full = self.bench.unpruned.widths
        files = write_trial(self.folder.trial(number), outcome, result, self.bench.tokenizer, full)
        store = LinkingStore(self.folder.artifacts)
        for file in files:
            upload_artifact(artifact_store=store, file_path=str(file), study_or_trial=trial)
        trial.set_constraint(BUDGET, result.violation)
        trial.set_user_attr(RESULT, asdict(result))
        told = self.outer.tell(trial, [float(result.metric), float(result.cost)])
        assert told.state is TrialState.COMPLETE, told.state
        missed = "" if result.violation <= 0 else ", outside its budget"
        self._ended(
            number,
            f"{self.bench.metric} {result.metric:.4f} (held out {result.heldout_metric:.4f}) "
            f"at {result.cost_name} ratio {result.ratio:.3f}, "
            f"asked {result.target_ratio:.3f}{missed}",
            counts=True,
        )

    def _score(self, number: int, found: SearchResult, started: float) -> TrialResult:
        return TrialResult(
            **asdict(self.bench.score(found.model, found.architecture)),
            **self._yardstick(),
            target_ratio=found.target_ratio,
            tolerance=found.tolerance,
            heads_per_layer=found.architecture.heads_per_layer,
            ffn_per_layer=found.architecture.ffn_per_layer,
            model=(self.folder.trial(number) / MODEL).relative_to(self.folder.path).as_posix(),
            seconds=time.monotonic() - started,
        )

    def _fail(self, number: int, reason: str) -> None:
        trial = self.running[number]
        with suppress(UpdateFinishedTrialError):  # interrupted just after it was told
            trial.set_user_attr(FAILURE, reason)
            self.outer.tell(trial, state=TrialState.FAIL)
        self._ended(number, f"failed: {reason}", counts=False)

    def _fail_all(self, reason: str) -> None:
        for number in list(self.running):
            self._fail(number, reason)

    def _ended(self, number: int, line: str, *, counts: bool) -> None:
        del self.running[number]
        self.progress.trial_ended(f"trial {number}: {line}", counts=counts)
