"""Warm start of a study: extreme target ratios, then the knobs on the fronts of earlier runs, those
of the nearest task first (as in auto-sklearn, Feurer et al. 2015)."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.trial import TrialState

from orchestrator.errors import RunError
from orchestrator.runs.records import DEFINITION, METHOD, RunRecord, read_run
from orchestrator.study import Study
from orchestrator.workers.claims import OWN

WARM_START = "warm_start"  # trial attribute: the run and trial whose knobs this one has
_RATIO = "target_ratio"


def earlier_runs(study: Study) -> list[RunRecord]:
    """Read the runs of `Study.warm_start`. Raises RunError for a run with other knobs."""
    runs = [read_run(folder) for folder in study.warm_start]
    for run in runs:
        _check(run, study)
    return runs


def enqueue_warm(optuna_study: optuna.Study, study: Study, features: Mapping[str, float]) -> None:
    """Enqueue knobs of earlier runs in a study without trials; the caller holds a lock."""
    trials = optuna_study.get_trials(deepcopy=False)
    if not study.warm_start or any(trial.state is not TrialState.WAITING for trial in trials):
        return
    for source, knobs in warm_start(study, optuna_study.user_attrs[DEFINITION], features):
        attributes = {**OWN, WARM_START: source}
        optuna_study.enqueue_trial(knobs, user_attrs=attributes, skip_if_exists=True)


def distances(own: Mapping[str, float], others: Sequence[Mapping[str, float]]) -> list[float]:
    """L1 distances of features from this task's, each scaled to [0, 1]; infinite if unknown."""
    tasks = [own, *filter(None, others)]
    spans = {n: max(task[n] for task in tasks) - min(task[n] for task in tasks) for n in own}
    return [
        sum(abs(task[n] - own[n]) / span for n, span in spans.items() if span) if task else math.inf
        for task in others
    ]


def warm_start(
    study: Study, definition: Mapping[str, str], features: Mapping[str, float]
) -> list[tuple[str, dict[str, Any]]]:
    """Knobs to begin with, each with its source. Raises RunError for a run of other knobs."""
    # Fronts give at most half of the wanted trials; of equally near tasks that run comes first
    # whose definition differs in the fewest entries, then as they are named.
    runs = earlier_runs(study)

    def differences(run: RunRecord) -> int:
        names = (run.definition.keys() | definition.keys()) - {"name", "seed"}
        return sum(run.definition.get(name) != definition.get(name) for name in names)

    far = distances(features, [run.features for run in runs])
    order = sorted(range(len(runs)), key=lambda index: (far[index], differences(runs[index])))
    ends: list[tuple[str, dict[str, Any]]] = []
    for method in study.methods:
        name, which = (f"{method}.{_RATIO}", {METHOD: method}) if method else (_RATIO, {})
        if isinstance(ratio := study.space.get(name), FloatDistribution):
            for end in ("high", "low"):
                ends.append((f"{end} {name}", {**which, name: getattr(ratio, end)}))
    knobs_of_fronts = []
    for run in (runs[index] for index in order):
        for trial in run.front:
            shared = ((name, knob) for name, knob in study.knobs.items() if name in trial.knobs)
            knobs = {name: clipped(trial.knobs[name], knob) for name, knob in shared}
            knobs_of_fronts.append((f"{run.name} trial {trial.number}", knobs))
    return ends + knobs_of_fronts[: math.ceil(study.trials / 2)]


def clipped(value: Any, knob: BaseDistribution) -> Any:
    """Clip `value` to the range of the knob, and to its grid if it has a step."""
    if isinstance(knob, CategoricalDistribution):
        return value
    assert isinstance(knob, FloatDistribution | IntDistribution), knob
    inside = min(max(value, knob.low), knob.high)
    if knob.step:
        inside = knob.low + knob.step * round((inside - knob.low) / knob.step)
        inside = min(inside, knob.high)
    return round(inside) if isinstance(knob, IntDistribution) else float(inside)


def _check(run: RunRecord, study: Study) -> None:
    where, method = f"Study.warm_start: '{run.folder}'", study.method_name
    if run.definition["method"] != method:
        raise RunError(
            f"{where} used {run.definition['method']}, but this study uses {method}; name runs of "
            "the same method"
        )
    if run.space.keys() != study.knobs.keys():
        raise RunError(
            f"{where} tuned {', '.join(sorted(run.space))}; this study tunes "
            f"{', '.join(sorted(study.knobs))}; name runs of the same knobs"
        )
    for name, knob in study.knobs.items():
        theirs = run.space[name]
        if not _holds(knob, theirs):
            raise RunError(
                f"{where} drew {name} from {theirs}, which is not in {knob}; name another run"
            )
    if not run.front:
        raise RunError(f"{where} has no front: none of its trials finished inside its budget")


def _holds(knob: BaseDistribution, theirs: BaseDistribution) -> bool:
    """Whether a knob accepts values of another study's; numbers beyond its range are clipped."""
    if isinstance(knob, CategoricalDistribution) and isinstance(theirs, CategoricalDistribution):
        return set(theirs.choices) <= set(knob.choices)
    return CategoricalDistribution not in (type(knob), type(theirs))
