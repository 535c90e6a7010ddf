"""Finished trials as plain rows: the one door through which fronts and reports read a run.

Imports no torch, so that a front opens in a second.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import optuna
from optuna.trial import FrozenTrial, TrialState

from orchestrator.errors import RunError
from orchestrator.run_folder import RunFolder
from orchestrator.storage import open_storage

RESULT = "result"
"""Trial attribute: a TrialResult as JSON."""
FAILURE = "failure"
"""Trial attribute: why a trial failed."""
UNPRUNED = "unpruned"
"""Study attribute: the UnprunedResult as JSON."""
DEFINITION = "definition"
"""Study attribute: what decides a trial's result, to tell one study from another."""
VERSIONS = "versions"
"""Study attribute: versions and device of the launches."""
BUDGET = "budget"
"""Constraint: abs(F / F_full - R) - t R, at most 0 where the budget is met."""

State = Literal["finished", "failed", "stopped", "running"]
_STATES: dict[TrialState, State] = {
    TrialState.COMPLETE: "finished",
    TrialState.FAIL: "failed",
    TrialState.PRUNED: "stopped",
    TrialState.RUNNING: "running",
}


@dataclass(frozen=True, kw_only=True)
class UnprunedResult:
    """The teacher: what the students are cut from, or if they are another model, learn from."""

    metric: float
    heldout_metric: float
    flops: int
    flops_full: int
    """FLOPs of ratio 1: the teacher's, or the unpruned student's if that is another checkpoint."""
    params: int
    unit: str
    """Of all FLOPs of the run, such as "flops@128"."""
    heads_per_layer: tuple[int, ...]
    """Of the model of ratio 1, and so is the next."""
    ffn_per_layer: tuple[int, ...]

    @property
    def ratio(self) -> float:
        """FLOPs of the teacher as a share of those of ratio 1: 1, unless the student is another."""
        return self.flops / self.flops_full

    @property
    def label(self) -> str:
        """What to call it: "unpruned" where it is what the students are cut from, or "teacher"."""
        return "unpruned" if self.flops == self.flops_full else "teacher"


@dataclass(frozen=True, kw_only=True)
class TrialResult:
    """What a finished trial found, measured on the cut model."""

    metric: float
    """On the selection split: what the study saw."""
    heldout_metric: float
    """On the held-out split: what no search ever saw."""
    flops: int
    flops_full: int
    unit: str
    params: int
    target_ratio: float
    tolerance: float
    heads_per_layer: tuple[int, ...]
    ffn_per_layer: tuple[int, ...]
    model: str
    """Folder of the cut model, relative to the run's."""
    seconds: float
    """From the start of the trial's population to the end of this trial."""

    @property
    def ratio(self) -> float:
        """FLOPs as a share of those of the unpruned model of the run."""
        return self.flops / self.flops_full

    @property
    def violation(self) -> float:
        """How far the ratio lies outside the band around R; at most 0 inside.

        Less than one FLOP outside is rounding, and counts as inside.
        """
        excess = abs(self.ratio - self.target_ratio) - self.tolerance * self.target_ratio
        return 0.0 if 0 < excess * self.flops_full < 1 else excess

    def to_json(self) -> str:
        """One line of JSON."""
        return json.dumps(asdict(self))


@dataclass(frozen=True, kw_only=True)
class TrialRecord:
    """One trial of a run that was started, finished or not."""

    number: int
    state: State
    knobs: dict[str, Any]
    result: TrialResult | None
    failure: str | None

    @property
    def feasible(self) -> bool:
        """Whether the trial finished inside its budget."""
        return self.result is not None and self.result.violation <= 0


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """All that is known of a run."""

    name: str
    folder: Path
    metric_name: str
    unpruned: UnprunedResult
    trials: tuple[TrialRecord, ...]
    definition: dict[str, str]
    versions: dict[str, str]

    @property
    def front(self) -> list[TrialRecord]:
        """The Pareto front of the feasible trials, by rising FLOPs."""
        return pareto_front(self.trials)


def pareto_front(trials: Sequence[TrialRecord]) -> list[TrialRecord]:
    """Feasible trials that no other matches in metric with fewer FLOPs, by rising FLOPs.

    Of equal trials (same metric, same FLOPs) the first stays.
    """
    rows = [
        (trial.result.flops, -trial.result.metric, trial.number, trial)
        for trial in trials
        if trial.result is not None and trial.feasible
    ]
    front: list[TrialRecord] = []
    best = float("-inf")
    for _, loss, _, trial in sorted(rows, key=lambda row: row[:3]):
        if -loss > best:
            front.append(trial)
            best = -loss
    return front


def front_document(run: RunRecord) -> dict[str, Any]:
    """The front as plain data: what `maskfront front --json` prints."""
    unpruned = run.unpruned
    return {
        "unpruned": {
            "metric": unpruned.metric,
            "heldout_metric": unpruned.heldout_metric,
            "flops": unpruned.flops,
            "flops_full": unpruned.flops_full,
            "ratio": unpruned.ratio,
            "params": unpruned.params,
            "unit": unpruned.unit,
        },
        "front": [
            {
                "trial": trial.number,
                "metric": result.metric,
                "heldout_metric": result.heldout_metric,
                "flops": result.flops,
                "flops_full": result.flops_full,
                "ratio": result.ratio,
                "unit": result.unit,
                "params": result.params,
                "target_ratio": result.target_ratio,
                "knobs": trial.knobs,
                "model": result.model,
            }
            for trial in run.front
            if (result := trial.result) is not None
        ],
    }


def read_run(folder: Path) -> RunRecord:
    """Read a run folder, finished or running. Raises RunError if no run lies there."""
    paths = RunFolder(folder).existing()
    storage = open_storage(paths.storage)
    summaries = optuna.get_all_study_names(storage)
    if len(summaries) != 1:
        raise RunError(f"'{paths.storage}' holds {len(summaries)} studies; a run has exactly one")
    study = optuna.load_study(study_name=summaries[0], storage=storage)
    attributes = study.user_attrs
    if UNPRUNED not in attributes:
        raise RunError(
            f"'{folder}': the run has not got as far as its first trial; launch it again"
        )
    return RunRecord(
        name=study.study_name,
        folder=folder,
        metric_name=attributes[DEFINITION]["task.metric"],
        unpruned=UnprunedResult(**_tuples(attributes[UNPRUNED])),
        trials=tuple(
            trial_record(trial)
            for trial in study.get_trials(deepcopy=False)
            if trial.state is not TrialState.WAITING
        ),
        definition=attributes[DEFINITION],
        versions=attributes[VERSIONS],
    )


def trial_record(trial: FrozenTrial) -> TrialRecord:
    """A row from an Optuna trial."""
    finished = trial.state is TrialState.COMPLETE
    return TrialRecord(
        number=trial.number,
        state=_STATES[trial.state],
        knobs=dict(trial.params),
        result=TrialResult(**_tuples(trial.user_attrs[RESULT])) if finished else None,
        failure=trial.user_attrs.get(FAILURE, "its process ended before it did")
        if trial.state is TrialState.FAIL
        else None,
    )


def _tuples(document: dict[str, Any]) -> dict[str, Any]:
    return {k: tuple(v) if isinstance(v, list) else v for k, v in document.items()}
