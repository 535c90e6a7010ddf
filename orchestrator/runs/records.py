"""Trials as plain rows: the only module through which fronts and reports read a run. It imports no
torch, so that a front opens in a second."""

import gc
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import optuna
from optuna.distributions import BaseDistribution, json_to_distribution
from optuna.storages import BaseStorage
from optuna.trial import FrozenTrial, TrialState

from objectives.engines.names import BITS, FULL_BITS, Engine
from objectives.errors import Finite, FinitePositive, a_few, first_line
from objectives.measures.bootstrap import Worth
from objectives.metric import Metric
from orchestrator.errors import RunError
from orchestrator.optuna_private import FilteredStudy, all_trials, id_of
from orchestrator.runs.reading import as_record, as_type, damages
from orchestrator.runs.results import DIVERGENCE, Measured, TrialResult, UnprunedResult
from orchestrator.runs.run_folder import RunFolder
from orchestrator.storage.connect import read_storage

# Attributes of a trial; times are seconds since 1970.
REPEATS = "repeats"  # the number of the finished trial that it was told from
RESULT = "result"  # a TrialResult as JSON
FAILURE = "failure"  # why it failed
WORKER = "worker"  # the name of the worker that runs it; "" before one does
POPULATION = "population"  # how many trials trained together, with this one, when it last began
PRECISION = "precision"  # of the matmuls of its training: what "auto" became
DEVICE = "device"  # the kind of device it trained on, "cpu" or "cuda"
RETRY_OF = "retry_of"  # the number of the lost trial whose knobs it has
BEGAN = "began"  # when its worker claimed it
LAST_SEEN = "last_seen"  # the last beat of the worker that died with it; 0 if it named none
# Attributes of a study.
UNPRUNED = "unpruned"  # an UnprunedResult as JSON
FEATURES = "features"  # what tells its task from others, for studies that begin with its front
WORDS = "words"  # a Worth as JSON, or None where the task has no labels
NOTES = "notes"  # what the launch said of rows, labels and teacher
DEFINITION = "definition"  # what decides a trial's result, to tell one study from another
VERSIONS = "versions"  # versions and device of the last launch, not of each worker
SOURCES = "sources"  # what the user named
HOME = "home"  # the run folder with its files, if the storage lies elsewhere
ARTIFACTS = "artifacts"  # the bucket that its artifacts go to, if it is not the run folder
WANTED = "wanted"  # finished trials wanted by the last launch
UNTIL = "until"  # when the last launch takes no more trials, by two clocks; None: never
BEFORE = "before"  # trials that were finished when the last launch began
TEACHER_OF = "teacher_of"  # of a study that tunes a teacher: the name of its students'
TUNED = "tuned"  # what it chose: see `RunRecord.tuned`
STOPPED = "stopped"  # why the last launch takes no more trials; None: its front still grows
# A constraint of a trial.
BUDGET = "budget"  # abs(reached - R) - t R, at most 0 where the budget is met
METHOD = "method"  # the knob that says which of several methods a trial has

State = Literal["finished", "failed", "running"]
_STATES: dict[TrialState, State] = {
    TrialState.COMPLETE: "finished",
    TrialState.FAIL: "failed",
    TrialState.RUNNING: "running",
}


@dataclass(frozen=True, kw_only=True)
class TrialRecord:
    """Trial of a run that was started, finished or not."""

    number: int
    state: State
    knobs: dict[str, Any]
    result: TrialResult | None
    failure: str | None
    started: float | None = None  # seconds since 1970
    ended: float | None = None
    """End in seconds since 1970; for a trial whose worker died, its last sign of life. None while
    it runs."""
    attributes: Mapping[str, Any] = field(default_factory=dict)
    """Other attributes of the trial, such as where it ran."""
    damage: tuple[str, ...] = ()
    """Lines on damaged files of a trial that would be on the front."""
    id: int | None = field(default=None, compare=False)  # in its storage; `number` is the study's

    @property
    def end(self) -> float:
        """`ended`, or infinity if unknown, for sorting."""
        return math.inf if self.ended is None else self.ended

    @property
    def seconds(self) -> float | None:
        """Duration; None while the trial runs."""
        if self.started is None or self.ended is None:
            return None
        return self.ended - self.started

    @property
    def feasible(self) -> bool:
        """Whether the trial finished inside its budget, meets all aims and is not damaged."""
        return self.result is not None and self.result.missed is None and not self.damage


@dataclass(frozen=True, kw_only=True)
class FinishedTrial(TrialRecord):
    """Trial with a result, inside its budget or outside."""

    result: TrialResult


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """Snapshot of everything that is known of a run."""

    name: str
    """Name of the study."""
    folder: Path
    """The run folder."""
    metric_name: str
    """Name of the metric: "accuracy"; of an engine of few bits "accuracy in onnxruntime-int8"."""
    unpruned: UnprunedResult
    """Scores and cost of the unpruned model."""
    trials: tuple[TrialRecord, ...]
    """All trials that were started, by number."""
    definition: dict[str, str]
    """Everything that decides the results: runs with equal definitions are of the same study."""
    versions: dict[str, str]
    """Versions of the packages that the run was launched with."""
    sources: dict[str, str]
    """Names that the study gives its data and checkpoints."""
    notes: tuple[str, ...]
    """Notes of the launch on rows, labels and teacher."""
    words: Worth | None = None
    """Scores of tf-idf with a linear model; None if the task has no labels."""
    features: Mapping[str, float] = field(default_factory=dict)
    """Features that describe its task: `workbench.inputs.features_of`."""
    tuned: Mapping[str, Any] = field(default_factory=dict)
    """Chosen hyperparameters of the teacher, if `Teacher.trials` tuned it, with "selection loss"
    and "trial", the number in the tuning study."""
    foreign: tuple[int, ...] = ()
    """Numbers of trials that another program added to the Optuna study."""

    @cached_property
    def finished(self) -> list[FinishedTrial]:
        """Trials with a result."""
        return [trial for trial in self.trials if isinstance(trial, FinishedTrial)]

    @property
    def remarks(self) -> list[str]:
        """Remarks on trials that are on no front."""
        damaged = [
            f"trial {trial.number} is damaged and on no front ({'; '.join(trial.damage)}): launch "
            "again to train it again"
            for trial in self.trials
            if trial.damage
        ]
        return [foreign_note(self.foreign)] * bool(self.foreign) + damaged

    @property
    def objective_name(self) -> str:
        """Name of the objective: "divergence", or the metric's."""
        return DIVERGENCE if self.unpruned.objective == "divergence" else self.metric_name

    @property
    def task_metric(self) -> str:
        """Name of the metric without an engine, for scores that another engine gave."""
        return self.metric_name.partition(" in ")[0]

    @property
    def bits(self) -> int:
        """Bits of the weights in the engine that scored the models."""
        return BITS[self.definition.get("engine", "eager")]

    @cached_property
    def front(self) -> list[FinishedTrial]:
        """The Pareto front of the feasible trials, by rising cost."""
        return pareto_front(self.trials)

    @property
    def fidelity(self) -> dict[str, str]:
        """Settings of a reduced fidelity; empty for full training."""
        return self._defined_below("fidelity.")

    @property
    def space(self) -> dict[str, BaseDistribution]:
        """Distributions of the knobs."""
        knobs = self._defined_below("space.")
        try:
            return {name: json_to_distribution(text) for name, text in knobs.items()}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise RunError(
                f"'{self.folder}': the study's {DEFINITION} has knobs that Optuna cannot read "
                f"({type(error).__name__}: {first_line(error)}); restore it from a copy"
            ) from error

    def _defined_below(self, path: str) -> dict[str, str]:
        named = self.definition.items()
        return {name.removeprefix(path): text for name, text in named if name.startswith(path)}


def pareto_front(trials: Sequence[TrialRecord]) -> list[FinishedTrial]:
    """Feasible trials that none matches at a lower cost, by rising cost; of equals the first."""
    feasible = [t for t in trials if isinstance(t, FinishedTrial) and t.feasible]
    feasible.sort(key=lambda trial: (trial.result.cost, -trial.result.worth, trial.number))
    front, best = [], float("-inf")
    for trial in feasible:
        if trial.result.worth > best:
            front.append(trial)
            best = trial.result.worth
    return front


def front_document(run: RunRecord) -> dict[str, Any]:
    """The front as plain data, which `maskfront front --json` prints."""
    folder = RunFolder(run.folder)
    return {
        "fidelity": run.fidelity,
        "objective": run.unpruned.objective,
        "unpruned": _sizes_of(run.unpruned),
        "words": None if run.words is None else asdict(run.words),
        "front": [
            {
                "trial": trial.number,
                **_sizes_of(trial.result),
                "target_ratio": trial.result.target_ratio,
                "knobs": trial.knobs,
                "model": folder.model(trial.number).relative_to(run.folder).as_posix(),
            }
            for trial in run.front
        ],
    }


def _sizes_of(measured: Measured) -> dict[str, Any]:
    worth = ("metric", "heldout_metric", "divergence", "heldout_divergence")
    cost = ("cost", "cost_full", "ratio", "unit")
    names = (*worth, *cost, "flops", "flops_full", "flops_unit", "params", "bytes")
    return {name: getattr(measured, name) for name in names}


def read_run(folder: str | Path) -> RunRecord:
    """Read a run folder, finished or running. Raises RunError if no run lies there."""
    folder = Path(folder)
    study = load_optuna_study(folder)
    if UNPRUNED not in study.user_attrs:
        raise RunError(
            f"'{folder}': the first trial has not started; wait if a launch is preparing the "
            "teacher, else launch the study again"
        )
    return record_of(study, folder)


def load_optuna_study(folder: Path) -> optuna.Study:
    """Load the Optuna study of a run folder. Raises RunError if no run lies there."""
    paths = RunFolder(folder).existing()
    storage = read_storage(paths.storage)
    name = paths.study_name
    if name is None:
        names = run_names(storage)
        if len(names) != 1:
            raise RunError(
                f"'{paths.database}' holds {len(names)} studies, but a run has exactly one; launch "
                "it again, or restore the file from a copy"
            )
        (name,) = names
    try:
        return own_study(name, storage)
    except KeyError as error:
        raise RunError(
            f"storage {paths.shown_storage} no longer holds the study '{name}'; restore it from a "
            "copy, or launch the study into another folder",
            "out",
        ) from error


def own_study(name: str, storage: BaseStorage) -> optuna.Study:
    """Load a study without trials of other programs (`own_trials`). Raises KeyError."""
    return FilteredStudy(name, storage, own_trials)


def own_trials(trials: Sequence[FrozenTrial]) -> list[FrozenTrial]:
    """Select the trials that maskfront made and that count. A finished trial whose knobs are tried
    again was damaged; a waiting one is nobody's yet."""
    lost = {trial.user_attrs.get(RETRY_OF) for trial in trials}
    ours = (trial for trial in trials if _is_own(trial))
    return [t for t in ours if t.state is not TrialState.COMPLETE or t.number not in lost]


def _is_own(trial: FrozenTrial) -> bool:
    """Whether maskfront claimed, failed or finished an Optuna trial, or may claim it."""
    marks = {RESULT} if trial.state is TrialState.COMPLETE else {WORKER, FAILURE}
    claimed = trial.state in _STATES and not marks.isdisjoint(trial.user_attrs)
    return claimed or trial.state is TrialState.WAITING


def foreign_trials(study: optuna.Study) -> tuple[int, ...]:
    """Numbers of trials that another program made, such as by `study.optimize`."""
    return tuple(trial.number for trial in all_trials(study) if not _is_own(trial))


def foreign_note(numbers: Sequence[int]) -> str:
    """Note in one line that these trials are left alone."""
    few = a_few([str(number) for number in numbers]).replace("'", "")
    return f"trials of another program in the Optuna study are left alone: {few}"


def run_names(storage: BaseStorage) -> list[str]:
    """Names of the studies of a storage, without those that tune the teacher of another."""
    return [s.study_name for s in storage.get_all_studies() if TEACHER_OF not in s.user_attrs]


def record_of(study: optuna.Study, folder: Path) -> RunRecord:
    """Read the current state of a study, which has got as far as its first trial."""
    attributes, where = study.user_attrs, f"'{folder}': the study's"

    def attribute(name: str, hint: Any, otherwise: Any = None) -> Any:
        return as_type(hint, attributes.get(name, otherwise), f"{where} {name}")

    definition, rows = attribute(DEFINITION, Mapping[str, str]), trials_of(study)
    begun = [row for row in rows if row.state is not TrialState.WAITING]
    trials = with_damage([trial_record(row, f"'{folder}'") for row in begun], folder)
    metric = as_type(Metric, definition.get("task.metric"), f"{where} task.metric")
    engine = as_type(Engine, definition.get("engine", "eager"), f"{where} engine")
    words = attributes.get(WORDS)
    return RunRecord(
        name=study.study_name,
        folder=folder,
        metric_name=metric if BITS[engine] == FULL_BITS else f"{metric} in {engine}",
        unpruned=unpruned_result(attributes[UNPRUNED], where),
        trials=tuple(trials),
        definition=definition,
        versions=attribute(VERSIONS, Mapping[str, str]),
        sources=attribute(SOURCES, Mapping[str, str]),
        notes=attribute(NOTES, tuple[str, ...], ()),
        words=None if words is None else as_record(Worth, words, f"{where} {WORDS}"),
        features=attribute(FEATURES, Mapping[str, float], {}),
        tuned=attribute(TUNED, Mapping[str, Any], {}),
        foreign=foreign_trials(study),
    )


def damaged_trials(run: Path, numbers: Iterable[int]) -> dict[int, list[str]]:
    """Lines on the damaged files of these trials, by number."""
    lines_of = {number: damages(RunFolder(run).trial(number)) for number in numbers}
    return {number: lines for number, lines in lines_of.items() if lines}


def with_damage(trials: Sequence[TrialRecord], folder: Path) -> list[TrialRecord]:
    """Add damage to the trials that would be on the front, until every trial on it is intact."""
    marked = list(trials)
    while lost := damaged_trials(folder, [trial.number for trial in pareto_front(marked)]):
        marked = [replace(t, damage=(*t.damage, *lost.get(t.number, ()))) for t in marked]
    return marked


def trials_of(study: optuna.Study) -> list[FrozenTrial]:
    """Read all trials with garbage collection off: to scan thousands of live ones takes longer."""
    collected = gc.isenabled()
    gc.disable()
    try:
        return study.get_trials(deepcopy=False)
    finally:
        if collected:
            gc.enable()


def unpruned_result(attribute: object, where: str = "the study's") -> UnprunedResult:
    """Parse the study attribute `UNPRUNED`."""
    return as_record(UnprunedResult, attribute, f"{where} {UNPRUNED}")


def trial_record(trial: FrozenTrial, where: str = "the study") -> TrialRecord:
    """Parse an Optuna trial that maskfront made. Raises RunError, which calls the run `where`."""
    where = f"{where}: trial {trial.number}'s"
    attributes, failed = dict(trial.user_attrs), trial.state is TrialState.FAIL
    times = {name: attributes.pop(name, None) for name in (RESULT, FAILURE, BEGAN, LAST_SEEN)}
    for name, hint in _HINTS.items():
        as_type(hint, {**attributes, **times}.get(name), f"{where} {name}")
    started, ended = _span(trial, times[BEGAN], times[LAST_SEEN])
    failure = times[FAILURE] or "its process ended before the trial did"
    record = TrialRecord(
        number=trial.number,
        state=_STATES[trial.state],
        knobs=dict(trial.params),
        result=None,
        failure=failure if failed else None,
        started=started,
        ended=ended,
        attributes=attributes,
        id=id_of(trial),
    )
    if trial.state is not TrialState.COMPLETE:
        return record
    result = as_record(TrialResult, times[RESULT], f"{where} {RESULT}")
    return FinishedTrial(**{**vars(record), "result": result})


_HINTS = {
    FAILURE: str | None,
    BEGAN: FinitePositive | None,
    LAST_SEEN: Finite | None,
    WORKER: str | None,
}


def _span(
    trial: FrozenTrial, began: float | None, last_seen: float | None
) -> tuple[float | None, float | None]:
    """Start and end of a trial. Optuna stores times in the writer's time zone, usually without its
    name, so only the duration is taken from them."""
    start, complete = trial.datetime_start, trial.datetime_complete
    if start is None:
        return None, None
    began = start.timestamp() if began is None else began
    if trial.state is TrialState.FAIL and last_seen is not None:
        return began, max(began, last_seen)
    return began, began + max(0.0, (complete - start).total_seconds()) if complete else None
