"""Open the Optuna study of a run folder: create it, continue it, or refuse another's."""

import platform
import re
import secrets
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import optuna
from optuna.storages import BaseStorage
from optuna.study import StudyDirection
from optuna.trial import TrialState

from objectives.cache import is_free, sync
from objectives.workbench.inputs import Inputs
from orchestrator.errors import RunError
from orchestrator.identity import sources_of
from orchestrator.optuna_private import as_stored, fail_waiting, knobs_of, study_id_of
from orchestrator.runs import records
from orchestrator.runs.records import RunRecord, own_study, record_of
from orchestrator.runs.run_folder import RunFolder
from orchestrator.storage.urls import kind_of, parse_url
from orchestrator.study import Study
from orchestrator.teacher_study import SUFFIX
from orchestrator.workers.claims import OWN, Claims, killed_too_often
from orchestrator.workers.heartbeat import WorkerRecord, living, this_machine
from orchestrator.workers.limits import begin_launch
from orchestrator.workers.warm_start import WARM_START, earlier_runs

# Messages for entries of a definition whose fingerprints differ.
_CONTENTS = {
    "task.data": "the rows of the task or their roles (train, alpha, select, heldout) have changed",
    "teacher.checkpoint": (
        "the teacher's checkpoint (weights, config.json or tokenizer) or its answers have changed, "
        "or another version of maskfront made the run"
    ),
    "student": "the student's checkpoint has changed (weights or config.json)",
    "augmentation.masked_lm": "the masked LM of the augmentation has changed",
    "augmentation.word_vectors": "the word vectors of the augmentation have changed",
}
_FINGERPRINT = re.compile(r"[0-9a-f]{16}")
JOURNAL_WORKERS = 8  # each worker reads all that all others write: docs/findings.md has the figures


@dataclass(frozen=True)
class OpenRun:
    """Open run: a study with its folder, Optuna study, inputs and device."""

    study: Study
    folder: RunFolder
    optuna_study: optuna.Study
    inputs: Inputs
    device: str

    def claims(self, worker: str = "", token: str = "") -> Claims:
        """Make the trial queue of a worker, or of the launch itself."""
        study, draws = self.study, self.study.sampler is not None
        return Claims(
            self.optuna_study, self.folder, study.knobs, worker, study.trials, token, draws=draws
        )

    def record(self) -> RunRecord:
        """Read the run as it stands."""
        return record_of(self.optuna_study, self.folder.path)


def _directions(study: Study) -> list[StudyDirection]:
    up = study.objective == "metric"
    return [StudyDirection.MAXIMIZE if up else StudyDirection.MINIMIZE, StudyDirection.MINIMIZE]


def open_study(
    study: Study,
    folder: RunFolder,
    storage: BaseStorage,
    definition: dict[str, str],
    note: Callable[[str], object],
    *,
    own: bool,
) -> optuna.Study:
    """Create or continue the Optuna study, or raise RunError. The caller locks the folder."""
    defined = (s for s in storage.get_all_studies() if records.DEFINITION in s.user_attrs)
    begun = any(stored.study_name == study.name for stored in defined)
    if not begun:
        earlier_runs(study)  # refused before anything is written
    _check_same(study, folder, storage, definition, own=own)
    if not begun:
        if not own:
            check_no_trials(folder)
        _set_aside(folder, note)
    for part in (folder.artifacts, folder.cache, folder.trials):
        part.mkdir(parents=True, exist_ok=True)
    for path in (folder.path, *folder.path.absolute().parents[:2]):  # both may be new
        sync(path)
    optuna.create_study(
        storage=storage, study_name=study.name, directions=_directions(study), load_if_exists=True
    )
    optuna_study = own_study(study.name, storage)
    if records.DEFINITION not in optuna_study.user_attrs:
        optuna_study.set_user_attr(records.DEFINITION, definition)
    return optuna_study


def check_no_trials(folder: RunFolder) -> None:
    """Refuse a new study in a folder with trials of a lost one, whose models it would replace."""
    if any(folder.trials.glob("*")):
        lost = folder.shown_storage if folder.address.exists() else folder.database.name
        raise RunError(
            f"'{folder.path}' holds trials of a study whose database is gone; choose another "
            f"folder, or put {lost} back",
            "out",
        )


def _set_aside(folder: RunFolder, note: Callable[[str], object]) -> None:
    """Set aside the files of a run that its storage does not know, as after a power cut."""
    files = [file for file in (folder.rows, folder.bench) if file.exists()]
    if left := [*folder.trials.glob("*"), *files]:
        lost = folder.path / f"lost-{secrets.token_hex(4)}"
        lost.mkdir()
        for part in left:
            part.rename(lost / part.name)
        note(f"the study is new in its storage; files of an earlier one are now in '{lost}'")


def describe(
    optuna_study: optuna.Study, study: Study, device: str, timeout: float | None = None
) -> None:
    """Record what this launch wants, its time limit, and its versions."""
    packages = ("maskfront", "torch", "transformers", "optuna")
    versions = {name: version(name) for name in packages} | {"python": platform.python_version()}
    versions |= {"device": device, "machine": platform.platform()}
    optuna_study.set_user_attr(records.VERSIONS, versions)
    optuna_study.set_user_attr(records.SOURCES, sources_of(study))
    optuna_study.set_user_attr(records.WANTED, study.trials)
    begin_launch(optuna_study, timeout)


def ask_first(optuna_study: optuna.Study, study: Study) -> None:
    """Enqueue the study's first knobs, unless a trial has them that did not fail, or whose worker
    died too often. Where nothing is drawn, drop what only an earlier launch has asked for."""
    space = study.knobs
    # As a storage has them: numbers of numpy are no JSON.
    first = [{name: as_stored(space[name], knobs[name]) for name in knobs} for knobs in study.first]
    waiting = optuna_study.get_trials(deepcopy=False, states=(TrialState.WAITING,))
    for trial in waiting if study.sampler is None else ():
        if WARM_START not in trial.user_attrs and knobs_of(trial) not in first:
            why = {records.FAILURE: "a later launch did not ask for it"}
            fail_waiting(optuna_study, trial, why)
    trials = optuna_study.get_trials(deepcopy=False)
    counted = (t for t in trials if t.state is not TrialState.FAIL or killed_too_often(t))
    had = [knobs_of(trial).items() for trial in counted]
    for knobs in first:
        if not any(knobs.items() <= others for others in had):
            optuna_study.enqueue_trial(knobs, user_attrs=OWN)


def join_study(
    study: Study, folder: RunFolder, storage: BaseStorage, definition: dict[str, str]
) -> optuna.Study:
    """Open a running launch's Optuna study for a worker. Raises RunError for none or another."""
    if study.name not in optuna.get_all_study_names(storage):
        raise RunError(
            f"the storage holds no study '{study.name}'; start it with `maskfront run STUDY.py`"
        )
    _check_same(study, folder, storage, definition, own=False)
    return own_study(study.name, storage)


def bind_folder(folder: RunFolder, optuna_study: optuna.Study, storage: str) -> None:
    """Bind folder and study to each other if the storage lies elsewhere; RunError for a copy."""
    if folder.is_own(storage):
        return
    home = optuna_study.user_attrs.get(records.HOME)
    # A launch that was killed between the two writes below has left the first.
    half_bound = (folder.shown_storage, folder.study_name) == (storage, optuna_study.study_name)
    if home is None and (folder.identity is None or half_bound):
        identity = folder.identity or secrets.token_hex(8)
        folder.write_address(storage, optuna_study.study_name, identity)
        optuna_study.set_user_attr(records.HOME, {"folder": identity, **_place_of(folder)})
        return
    if home is None or home["folder"] != folder.identity or _is_copy(folder, optuna_study, home):
        if home is not None and folder.identity is None and _was_here(folder, home):
            raise RunError(
                f"the files of study '{optuna_study.study_name}' were deleted; delete the study in "
                "the storage, too (optuna.delete_study), or name another study",
                "storage",
            )
        where = "in another folder" if home is None else f"in {home['path']} (on {home['host']})"
        raise RunError(
            f"the files of study '{optuna_study.study_name}' are not in '{folder.path}', but "
            f"{where}; name the study's own folder, shared by all machines",
            "out",
        )
    here = _place_of(folder)
    # Another machine that shares the folder may call it otherwise.
    if (home["host"] == here["host"] or home.get("inode") != here["inode"]) and home != home | here:
        optuna_study.set_user_attr(records.HOME, home | here)


def _was_here(folder: RunFolder, home: Mapping[str, Any]) -> bool:
    here = _place_of(folder)
    return all(home[name] == here[name] for name in ("path", "host"))


def _place_of(folder: RunFolder) -> dict[str, Any]:
    path = folder.path.absolute()
    return {"path": str(path), "host": socket.gethostname(), "inode": folder.inode}


def _is_copy(folder: RunFolder, optuna_study: optuna.Study, home: Mapping[str, Any]) -> bool:
    """Whether this folder is a copy of the study's home: that other folder exists and is running,
    or has models that are missing here. Otherwise it is the home, moved to another disk."""
    if home.get("inode", folder.inode) == folder.inode:
        return False
    other = RunFolder(Path(home["path"]))
    same = other.path.exists() and other.path.samefile(folder.path)
    at_work = not same and (is_free(other.lock) is False or bool(living(optuna_study, other)))
    finished = optuna_study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    missing = [t.number for t in finished if not folder.trial(t.number).is_dir()]
    if home["host"] != socket.gethostname():  # its folders cannot be looked at
        return at_work or bool(missing)
    return at_work or any(other.trial(number).is_dir() for number in missing)


def _check_same(
    study: Study, folder: RunFolder, storage: BaseStorage, definition: dict[str, str], *, own: bool
) -> None:
    """Refuse another study of the same name, and in a run's own database any other study."""
    for stored in storage.get_all_studies():
        ours = own and stored.study_name != study.name + SUFFIX
        if stored.study_name != study.name and not ours:
            continue
        if stored.directions != _directions(study):
            raise RunError(
                f"the storage has a study '{stored.study_name}' with other objectives than "
                f"{study.objective} and cost; give yours another name"
            )
        was = stored.user_attrs.get(records.DEFINITION, {})
        if not was and any(
            trial.state is not TrialState.WAITING
            for trial in storage.get_all_trials(study_id_of(stored), deepcopy=False)
        ):
            raise RunError(
                f"the storage has a study '{stored.study_name}' that maskfront did not make; "
                "give yours another name"
            )
        differs = [
            _difference(key, was.get(key, "not set"), definition.get(key, "not set"))
            for key in sorted(was.keys() | definition.keys())
            if was.get(key) != definition.get(key)
        ]
        if was and differs:
            raise RunError(
                f"'{folder.path}' is the run of another study: {'; '.join(differs)}. "
                "Choose another folder, or give the study another name",
                "out",
            )


def _difference(key: str, was: str, now: str) -> str:
    """Describe how an entry of the definition has changed; fingerprints get a message instead."""
    if key in _CONTENTS and _FINGERPRINT.fullmatch(was) and _FINGERPRINT.fullmatch(now):
        return _CONTENTS[key]
    return f"{key} was {was}, is now {now}"


def check_room(text: str, alive: Mapping[str, WorkerRecord], more: int = 1) -> None:
    """Raise RunError if the storage cannot serve the live workers and `more` on this machine."""
    kind = kind_of(parse_url(text))
    if kind == "journal" and len(alive) + more > JOURNAL_WORKERS:
        raise RunError(
            f"a journal file serves at most {JOURNAL_WORKERS} workers, not "
            f"{len(alive) + more}; use a server, such as postgresql://USER@HOST/DATABASE",
            "storage",
        )
    elsewhere = {worker.host for worker in alive.values() if worker.machine != this_machine()}
    if kind == "sqlite" and elsewhere:
        raise RunError(
            f"SQLite serves one machine, and {', '.join(sorted(elsewhere))} works on this study; "
            "use postgresql://USER@HOST/DATABASE, or run `maskfront serve-storage` there; if that "
            "machine was restarted, try again in two minutes",
            "storage",
        )
