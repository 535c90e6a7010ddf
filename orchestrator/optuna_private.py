"""Everything of Optuna that is used and not documented, so that it may change without notice. Each
function says why the documented way does not do."""

import copy
from collections.abc import Callable, Container, Mapping
from typing import Any

import numpy as np
import optuna
from numpy.typing import NDArray
from optuna.distributions import BaseDistribution
from optuna.storages import BaseStorage
from optuna.study._frozen import FrozenStudy
from optuna.study._multi_objective import _fast_non_domination_rank
from optuna.trial import FrozenTrial, TrialState

__all__ = ["FrozenStudy"]  # what a storage says of a study; no public module has it


def storage_of(study: optuna.Study) -> BaseStorage:
    """The storage of a study. A `Study` has no public way to it."""
    return study._storage


class FilteredStudy(optuna.Study):
    """A study without the trials that `keep` drops, for samplers too, which ask `_get_trials`. The
    public `get_trials` is not what they call."""

    def __init__(
        self,
        name: str,
        storage: BaseStorage,
        keep: Callable[[list[FrozenTrial]], list[FrozenTrial]],
    ):
        super().__init__(name, storage)
        self._keep = keep

    def _get_trials(
        self,
        deepcopy: bool = True,
        states: Container[TrialState] | None = None,
        use_cache: bool = False,
    ) -> list[FrozenTrial]:
        trials = self._keep(super()._get_trials(deepcopy=False, use_cache=use_cache))
        selected = [trial for trial in trials if states is None or trial.state in states]
        return copy.deepcopy(selected) if deepcopy else selected


def all_trials(study: optuna.Study) -> list[FrozenTrial]:
    """Trials by their numbers, also those that a `FilteredStudy` drops."""
    return study._storage.get_all_trials(study._study_id, deepcopy=False)


def system_attributes(study: optuna.Study) -> dict[str, Any]:
    """System attributes, with the dashboard's notes. A `Study` shows its user attributes alone."""
    return study._storage.get_study_system_attrs(study._study_id)


def set_system_attribute(study: optuna.Study, name: str, value: Any) -> None:
    """Set a system attribute. A `Study` sets only user attributes, which the dashboard lists."""
    study._storage.set_study_system_attr(study._study_id, name, value)


def id_of(trial: FrozenTrial) -> int:
    """Id by which the dashboard files a note. Only the number, from 0 in each study, is public."""
    return trial._trial_id


def set_trial_attribute(study: optuna.Study, trial: FrozenTrial, name: str, value: Any) -> None:
    """Set a user attribute of a trial that another process asked for. Only the `Trial` object of
    that process has a public way."""
    study._storage.set_trial_user_attr(trial._trial_id, name, value)


def fail_waiting(study: optuna.Study, trial: FrozenTrial, why: Mapping[str, Any]) -> None:
    """Fail an enqueued trial, with attributes `why`. `Study.tell` takes only trials asked for."""
    for name, value in why.items():
        set_trial_attribute(study, trial, name, value)
    study._storage.set_trial_state_values(trial._trial_id, TrialState.FAIL)


def knobs_of(trial: FrozenTrial) -> dict[str, Any]:
    """Knobs that a trial has drawn or was enqueued with. Only the drawn ones are public."""
    return {**trial.system_attrs.get("fixed_params", {}), **trial.params}


def draw(trial: optuna.Trial, name: str, knob: BaseDistribution) -> Any:
    """Draw a knob of an asked trial. `Study.ask` draws all of them at once, which holds the lock
    too long, and `Trial.suggest_float` and the like take no distribution."""
    return trial._suggest(name, knob)


def holds(knob: BaseDistribution, value: Any) -> bool:
    """Whether a distribution contains the value. Only a trial tells that publicly."""
    try:
        return knob._contains(knob.to_internal_repr(value))
    except (TypeError, ValueError):
        return False


def as_stored(knob: BaseDistribution, value: Any) -> Any:
    """Value of a distribution as a storage gives it back: the integer 2 for an int64 of 2."""
    return knob.to_external_repr(knob.to_internal_repr(value))


def shown_trial(trial: FrozenTrial, id_: int, system_attributes: Mapping[str, Any]) -> FrozenTrial:
    """Copy of a trial with another id and other system attributes. `create_trial` makes its own."""
    shown = copy.copy(trial)
    shown._trial_id, shown._system_attrs = id_, dict(system_attributes)
    return shown


def study_id_of(study: FrozenStudy) -> int:
    """Id of a study in its storage. Only its name is public, which two storages may share."""
    return study._study_id


def shown_study(
    study: FrozenStudy, id_: int, name: str, system_attributes: Mapping[str, Any]
) -> FrozenStudy:
    """Copy of a study with another id, name and system attributes. No public function makes one."""
    shown = copy.copy(study)
    shown._study_id, shown.study_name, shown.system_attrs = id_, name, dict(system_attributes)
    return shown


def non_domination_ranks(losses: NDArray[np.float64], violations: NDArray[np.float64]) -> Any:
    """Rank of each trial's front, (trials,) int, 0 for the first, from losses (trials, objectives);
    infeasible trials come last. Only the first front is public (`best_trials`)."""
    return _fast_non_domination_rank(losses, penalty=violations)
