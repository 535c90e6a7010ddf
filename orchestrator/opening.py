"""Opening the Optuna study of a run folder: made, continued, or refused because it is another's."""

from __future__ import annotations

import platform
from importlib.metadata import version

import optuna
from optuna.trial import TrialState

from orchestrator.errors import RunError
from orchestrator.records import DEFINITION, SOURCES, VERSIONS
from orchestrator.run_folder import RunFolder
from orchestrator.sampler import make_sampler
from orchestrator.storage import open_storage
from orchestrator.study import Study


def finished_trials(outer: optuna.Study) -> int:
    """Trials that bring the study on: finished and stopped ones, not the failed."""
    states = (TrialState.COMPLETE, TrialState.PRUNED)
    return len(outer.get_trials(deepcopy=False, states=states))


def open_study(
    study: Study, folder: RunFolder, definition: dict[str, str], device: str
) -> optuna.Study:
    """The Optuna study of the folder, made or continued; the caller holds the folder's lock.

    Trials that a dead process left running are failed. Raises RunError if the folder holds another
    study, and says in what it differs.
    """
    fresh = not folder.storage.exists()
    folder.artifacts.mkdir(exist_ok=True)
    folder.cache.mkdir(exist_ok=True)
    storage = open_storage(folder.storage)
    if not fresh:
        _check_same(folder, storage, definition)
    outer = optuna.create_study(
        storage=storage,
        study_name=study.name,
        directions=["maximize", "minimize"],
        load_if_exists=True,
    )
    known = outer.get_trials(deepcopy=False)
    outer.sampler = make_sampler(study.seed, len(known), study.population)
    if DEFINITION not in outer.user_attrs:
        for knobs in study.first:
            outer.enqueue_trial(dict(knobs), skip_if_exists=True)
        outer.set_user_attr(DEFINITION, definition)
    outer.set_user_attr(VERSIONS, _versions(device))
    outer.set_user_attr(SOURCES, study.sources())
    for trial in known:
        if trial.state is TrialState.RUNNING:  # its process is dead: we hold the folder's lock
            outer.tell(trial.number, state=TrialState.FAIL)
    return outer


def _check_same(
    folder: RunFolder, storage: optuna.storages.BaseStorage, definition: dict[str, str]
) -> None:
    for name in optuna.get_all_study_names(storage):
        known = optuna.load_study(study_name=name, storage=storage).user_attrs.get(DEFINITION, {})
        known = known and {"cost": "flops", **known}  # all that there was before it had a name
        differs = [
            f"{key} was {known.get(key, 'not set')}, is now {definition.get(key, 'not set')}"
            for key in sorted(known.keys() | definition.keys())
            if known.get(key) != definition.get(key)
        ]
        if known and differs:
            raise RunError(
                f"'{folder.path}' is the run of another study: {'; '.join(differs)}. "
                "Choose another folder with --out, or give the study another name"
            )


def _versions(device: str) -> dict[str, str]:
    packages = ("maskfront", "torch", "transformers", "optuna")
    return {name: version(name) for name in packages} | {
        "python": platform.python_version(),
        "device": device,
        "machine": platform.platform(),
    }
