"""Loop of a worker: claim a population, search it as one program, report each trial; repeat."""

import copy
import math
import random
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from typing import Any, Literal

import optuna
from optuna.exceptions import ExperimentalWarning, UpdateFinishedTrialError
from optuna.trial import TrialState

from objectives.device import free_memory, matmul_dtype, out_of_memory
from objectives.errors import MaskfrontError, UserError, hide_passwords
from objectives.measures.measured import WrongCostError
from objectives.measures.score import Score
from objectives.search_method import Outcome, SearchFailure, SearchMethod, SearchResult, populations
from objectives.workbench.workbench import Workbench
from orchestrator.errors import RunError
from orchestrator.optuna_private import all_trials
from orchestrator.runs import records, results
from orchestrator.runs.answers import check_teachers, write_rows
from orchestrator.runs.artifacts import upload
from orchestrator.runs.records import RunRecord, unpruned_result
from orchestrator.runs.results import Measured, TrialResult, UnprunedResult
from orchestrator.runs.run_folder import BESIDE
from orchestrator.runs.trial_files import ScoredOutcome, copy_trial, shown_files, write_trial
from orchestrator.signals import check_interrupted
from orchestrator.workers.claims import ALREADY_ENDED, Claims, Finished, NumberedMethod, Retry
from orchestrator.workers.heartbeat import living
from orchestrator.workers.limits import finished_trials, why_it_ends
from orchestrator.workers.opening import OpenRun
from orchestrator.workers.progress import LaunchProgress, TrialTimeoutError

Callback = Callable[[RunRecord], object]  # called with the current run when trials end
Ending = Literal["done", "raised", "out of memory"]  # of a search

# A worker gives up when this many trials in a row have failed, in two populations at least, or when
# all of its first two populations have.
_MOST_FAILURES = 8
_IDLE = 2.0  # seconds at most until a worker without a trial looks again


class Worker:
    """Worker of an open study."""

    def __init__(self, run: OpenRun, claims: Claims, progress: LaunchProgress, bench: Workbench):
        self.study, self.folder, self.optuna_study = run.study, run.folder, run.optuna_study
        self.open_run, self.claims, self.progress, self.bench = run, claims, progress, bench
        self.running: dict[int, optuna.Trial] = {}
        self.counted = 0  # trials of this worker that brought the study on
        self.failed: list[str] = []  # why its latest trials failed, since the last that did not
        self.finished = Finished(run.study, run.optuna_study, run.folder)
        self.most: float = math.inf  # trials of one population that memory is known to hold

    def run(self, callbacks: Sequence[Callback]) -> None:
        """Run populations until all workers together have finished enough trials."""
        self._record_unpruned()
        fruitless = 0  # populations in a row of which no trial counted
        while (finished := finished_trials(self.optuna_study)) < self.study.trials:
            check_interrupted()
            if self.claims.halted:
                raise KeyboardInterrupt
            if (why := why_it_ends(self.optuna_study, self.study.patience)) is not None:
                self.progress.note(
                    f"{why}: {finished} of {self.study.trials} trials are finished; "
                    "launch again to go on"
                )
                return
            self.progress.finished(finished)
            before = self.counted
            if not self._population():
                if self.claims.exhausted:
                    if not finished_trials(self.optuna_study):
                        elsewhere = "see the trials of the other workers"
                        reason = self.failed[-1] if self.failed else elsewhere
                        raise RunError(
                            f"study '{self.study.name}': all of its {self.study.trials} trials "
                            f"failed; the last one with: {reason}"
                        )
                    return
                # All that is wanted runs elsewhere, and may fail there.
                time.sleep(random.uniform(0.5, 1) * _IDLE)
                continue
            fruitless = fruitless + 1 if self.counted == before else 0
            call_back(callbacks, self.open_run, self.progress.note)
            enough = len(self.failed) >= _MOST_FAILURES or not self.counted
            if fruitless >= 2 and self.failed and enough and self.study.sampler is not None:
                raise RunError(
                    f"study '{self.study.name}': {len(self.failed)} trials in a row failed; the "
                    f"last one with: {self.failed[-1]}"
                )

    def _record_unpruned(self) -> None:
        """Record the teacher's score; name the objectives. Raises RunError if ratio 1 changed."""
        beside: dict[str, float] = {}
        for name, extra in self.bench.beside.items():
            beside |= _numbers(name, extra, extra.unpruned)
        unpruned = UnprunedResult(
            **asdict(self.bench.unpruned),
            **self._yardstick(self.bench),
            student_is_new=self.bench.problem.student_is_new,
            beside=beside,
        )
        if records.UNPRUNED in self.optuna_study.user_attrs:
            earlier = unpruned_result(self.optuna_study.user_attrs[records.UNPRUNED])
            if (earlier.unit, earlier.cost_full) != (unpruned.unit, unpruned.cost_full):
                raise RunError(
                    f"'{self.folder.path}': ratio 1 was {earlier.cost_full} {earlier.unit}, but "
                    f"is now {unpruned.cost_full} {unpruned.unit}; use the same device, threads, "
                    "torch and cache folder as before, or give the study another name"
                )
        tasks = {"": self.bench, **self.bench.beside}
        teachers = {name: extra.teacher_answers["select"].numpy() for name, extra in tasks.items()}
        check_teachers(self.folder, teachers)
        labels = {"select": self.bench.select.labels, "heldout": self.bench.heldout.labels}
        answers = {role: logits.numpy() for role, logits in self.bench.unpruned_answers.items()}
        write_rows(self.folder, labels, answers, teachers)
        self.optuna_study.set_user_attr(records.NOTES, [*map(hide_passwords, self.bench.notes)])
        words = self.bench.words
        self.optuna_study.set_user_attr(records.WORDS, None if words is None else asdict(words))
        self.optuna_study.set_user_attr(records.UNPRUNED, asdict(unpruned))
        with warnings.catch_warnings(action="ignore", category=ExperimentalWarning):
            by = results.DIVERGENCE if unpruned.objective == "divergence" else self.bench.metric
            self.optuna_study.set_metric_names([by, unpruned.unit])

    def _yardstick(self, bench: Workbench) -> dict[str, Any]:
        """Objective, units and sizes of the unpruned model, which all trials of a run share."""
        return {
            "objective": self.study.objective,
            "unit": bench.problem.counted.cost.unit,
            "cost_full": bench.problem.counted.full,
            "flops_unit": bench.flops.unit,
            "flops_full": bench.flops_full,
        }

    def _population(self) -> bool:
        """Claim, search and report one population; False if there was none to claim."""
        device, workers = self.bench.problem.device, 1
        if self.study.population == "auto" and device.startswith("cuda"):
            workers = max(1, len(living(self.optuna_study, self.folder)))
        most = int(min(self.most, self.study.at_once(device, workers)))
        try:
            claimed = self.claims.take(most, self.progress.note)
            self.running = {trial.number: trial for trial in claimed}
            if not claimed:
                return False
            self.progress.population(sorted(self.running))
            new, repeats = self.finished.new_and_repeats(self._members())
            for indices in populations([method for _, method in new]):
                self._search([new[index] for index in indices])
            for number, method in repeats:
                self._repeat(number, method)
        except KeyboardInterrupt:
            self._fail(self.running, "interrupted", "always")
            raise
        except OSError as error:
            self._fail(self.running, f"the disk refused a write: {error}", "always")
            raise
        except UserError as error:  # what no other trial of the study would do better
            self._fail(self.running, str(error))
            raise
        except RunError:  # the storage is away: others fail these trials
            raise
        except Exception as error:  # not of the search, but of what keeps its results
            self._fail(self.running, f"{type(error).__name__}: {error}", "limited")
            raise
        return True

    def _members(self) -> list[NumberedMethod]:
        """Methods of the trials by number; a trial whose knobs its method refuses fails."""
        members = []
        for number, trial in list(self.running.items()):
            try:
                members.append((number, self.study.trial_method(trial.params)))
            except UserError as error:
                self._fail([number], str(error))
        return members

    def _search(self, group: Sequence[NumberedMethod]) -> None:
        """Search trials as one population; in halves if memory is too small or a trial raises."""
        reason, ended = self._outcomes(group)
        left = [(number, method) for number, method in group if number in self.running]
        raised = ended == "raised" and len(self.failed) < _MOST_FAILURES
        if left and len(group) > 1 and (raised or ended == "out of memory"):
            half = -(-len(group) // 2)
            if ended == "out of memory":
                free_memory()
                self.most = min(self.most, half)
                reason = f"out of memory with {len(group)} trials at once"
            self.progress.note(f"{reason}: {len(left)} trials start again, {half} at a time")
            for start in range(0, len(left), half):
                self._search(left[start : start + half])
            return
        self._fail([number for number, _ in left], reason)

    def _outcomes(self, group: Sequence[NumberedMethod]) -> tuple[str, Ending]:
        """Search and report; returns why trials have no outcome, and how the search ended."""
        methods = [method for _, method in group]
        self._record_how(group)
        self.progress.search(self.study.trial_timeout)
        reason = "the method returned no outcome for it"
        ended: Ending = "done"

        def scored() -> Iterator[tuple[int, Outcome, Mapping[str, ScoredOutcome]]]:
            nonlocal reason, ended
            try:
                for outcome in type(methods[0]).search(
                    methods, self.bench.problem, seed=self.study.seed, progress=self.progress
                ):
                    if self.study.cost == "latency":
                        wait(telling)  # nothing else runs while a model is timed
                    yield group[outcome.slot][0], *self._score(outcome)
            except (OSError, MaskfrontError):
                raise
            except TrialTimeoutError as error:
                reason = str(error)
            except Exception as error:  # a trial may fail in any way; the study goes on
                reason = f"{type(error).__name__}: {error}"
                ended = "out of memory" if out_of_memory(error) else "raised"

        # A thread writes and tells one student while the next is trained and scored.
        telling: list[Future[None]] = []
        with ThreadPoolExecutor(1) as teller:
            for scored_outcome in scored():
                while telling:
                    telling.pop().result()  # what failed there is no fault of the trial's
                telling.append(teller.submit(self._tell, *scored_outcome))
            while telling:
                telling.pop().result()
        return reason, ended

    def _record_how(self, group: Sequence[NumberedMethod]) -> None:
        """Record with each trial, before it begins, what decides its last digits beside its knobs.
        If this worker dies, the size of the population says whether the knobs may be to blame."""
        device = self.bench.problem.device
        for number, method in group:
            how = {records.POPULATION: len(group), records.DEVICE: device.partition(":")[0]}
            if (precision := getattr(method, "precision", None)) is not None:
                how[records.PRECISION] = str(matmul_dtype(precision, device)).removeprefix("torch.")
            with suppress(UpdateFinishedTrialError):  # others took this worker for dead
                for name, value in how.items():
                    self.running[number].set_user_attr(name, value)

    def _tell(self, number: int, outcome: Outcome, tasks: Mapping[str, ScoredOutcome]) -> None:
        """Write and report one outcome; its model is scored on each of the `tasks`."""
        if isinstance(outcome, SearchFailure):
            self._fail([number], outcome.reason)
            return
        result = tasks[""].result
        worths = {self.bench.metric: result.metric, "objective": result.value(), **result.beside}
        for what, worth in worths.items():
            if not math.isfinite(worth):
                self._fail([number], f"its {what} is {worth}")
                return
        with self._still_ours(number):
            write_trial(self.folder.trial(number), tasks)
            self._tell_result(number, result)

    def _tell_result(self, number: int, result: TrialResult, how: str = "") -> None:
        trial = self.running[number]
        with self._still_ours(number):
            files = shown_files(self.folder.trial(number))
            missing = upload(files, trial, self.optuna_study, self.folder)
            trial.set_constraint(records.BUDGET, result.violation)
            for aim, excess in result.aims.items():
                trial.set_constraint(aim, excess)
            for what, worth in result.beside.items():  # by themselves, to be seen and drawn
                trial.set_user_attr(what, worth)
            trial.set_user_attr(records.RESULT, asdict(result))
            frozen = self.optuna_study.tell(trial, [float(result.value()), float(result.cost)])
            assert frozen.state is TrialState.COMPLETE, frozen.state
            missed = "" if result.missed is None else f", {result.missed}"
            ratios = (result.ratio, result.reached, result.target_ratio)
            ratio, reached, asked = map(results.ratio_text, ratios)
            counted = result.budget_name == result.cost_name
            line = (
                f"{results.divergence_words(result)}{self.bench.metric} {result.metric:.4f} "
                f"(held out {result.heldout_metric:.4f}) at {result.cost_name} ratio {ratio}, "
                f"{'' if counted else f'{result.budget_name} ratio {reached}, '}asked {asked}"
                f"{''.join(f', {what} {worth:.4f}' for what, worth in result.beside.items())}"
            )
            self._ended(number, f"{line}{missed}{missing}{how}", counts=True)

    @contextmanager
    def _still_ours(self, number: int) -> Iterator[None]:
        """Drop the result of a trial that other workers took for dead, as they retry its knobs."""
        try:
            yield
        except (*ALREADY_ENDED, OSError):  # the others remove what it writes
            if all_trials(self.optuna_study)[number].state is not TrialState.FAIL:
                raise
            self.claims.remove_files(self.running[number])
            self._ended(number, "failed by other workers: this one seemed dead", counts=False)

    def _repeat(self, number: int, method: SearchMethod) -> None:
        """Report the result of an equal finished trial; if that one has failed, search."""
        twin = self.finished.twin_of(method)
        if twin is None:
            self._search([(number, method)])
            return
        with self._still_ours(number):
            trial = self.running[number]
            # How the twin was trained.
            for name in (records.POPULATION, records.DEVICE, records.PRECISION):
                if name in twin.attributes:
                    trial.set_user_attr(name, twin.attributes[name])
            trial.set_user_attr(records.REPEATS, twin.number)
            copy_trial(self.folder.trial(twin.number), self.folder.trial(number))
            self._tell_result(number, twin.result, f", copied from trial {twin.number}")

    def _score(self, outcome: Outcome) -> tuple[Outcome, Mapping[str, ScoredOutcome]]:
        """Score a model on the study's task, "", and on extra tasks by their folders."""
        if isinstance(outcome, SearchFailure):
            return outcome, {}
        try:
            tasks = {"": self._scored(outcome, self.bench)}
            numbers = {} if outcome.forgotten is None else {"forgotten": outcome.forgotten}
            for (name, bench), extra in zip(self.bench.beside.items(), outcome.beside, strict=True):
                scored = tasks[f"{BESIDE}/{name}"] = self._scored(extra, bench)
                numbers |= _numbers(name, bench, scored.result)
                if extra.forgotten is not None:
                    numbers[f"{name} forgotten"] = extra.forgotten
        except WrongCostError as error:  # of this one: the others of its group go on
            return SearchFailure(outcome.slot, str(error)), {}
        result = replace(tasks[""].result, beside=numbers)
        aims = results.missed_aims(result, self.study.at_least, self.study.at_most)
        return outcome, {**tasks, "": tasks[""]._replace(result=replace(result, aims=aims))}

    def _scored(self, outcome: SearchResult, bench: Workbench) -> ScoredOutcome:
        if bench.problem.train.regression:  # a copy: two outcomes may share a model
            outcome = replace(outcome, model=copy.deepcopy(outcome.model))
            bench.problem.scale.from_standard(outcome.model)
        answers = bench.answers(outcome.model, outcome.architecture)
        score = bench.score(outcome.model, outcome.architecture, answers)
        if not outcome.curve:  # trained on nothing
            score = replace(score, train_divergence=None)
        if score.thresholds:
            outcome.model.config.thresholds = [*score.thresholds.values()]
        problem = bench.problem
        if outcome.target_ratio is None:
            target, unit = score.cost / problem.counted.full, problem.counted.cost.unit
        else:  # a method's own may be a tensor's or numpy's
            target, unit = float(outcome.target_ratio), problem.budget.cost.unit
        result = TrialResult(
            **asdict(score),
            **self._yardstick(bench),
            target_ratio=target,
            tolerance=float(outcome.tolerance),
            budget_unit=unit,
        )
        arrays = {role: logits.numpy() for role, logits in answers.items()}
        tokenizer = bench.tokenizer_of(outcome.architecture)
        return ScoredOutcome(outcome, result, arrays, tokenizer, bench.unpruned.widths)

    def _fail(self, numbers: Iterable[int], reason: str, retry: Retry = "never") -> None:
        reason = hide_passwords(reason)
        for number in list(numbers):
            self.claims.fail(number, {records.FAILURE: reason}, retry)
            self.failed.append(reason)
            self._ended(number, f"failed: {reason}", counts=False)

    def _ended(self, number: int, line: str, *, counts: bool) -> None:
        self.running.pop(number, None)  # a second Ctrl-C may have failed it meanwhile
        if counts:
            self.counted += 1
            self.failed = []
        self.progress.trial_ended(f"trial {number}: {line}", counts=counts)


def _numbers(name: str, bench: Workbench, model: Measured | Score) -> dict[str, float]:
    """Scores on an extra task by name, as in `Measured.beside`."""
    what = f"{name} {bench.metric}"
    return {what: model.metric, f"{what} held out": model.heldout_metric}


def call_back(callbacks: Sequence[Callback], run: OpenRun, note: Callable[[str], object]) -> None:
    """Call each callback with the current run; one that fails is noted and costs no trial."""
    if not callbacks:
        return
    record = run.record()
    for callback in callbacks:
        try:
            callback(record)
        except Exception as error:
            note(f"a callback failed and will be called again: {type(error).__name__}: {error}")
        check_interrupted()
