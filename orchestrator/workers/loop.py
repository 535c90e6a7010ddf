"""The outer loop: `run_study` opens a study and serves it; `work` joins one that is open."""

import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import optuna
from optuna.exceptions import StorageInternalError
from rich.console import Console
from sqlalchemy.exc import OperationalError

from objectives.device import choose_device, quiet_libraries
from objectives.engines.serving import check_engine
from objectives.session import Session
from objectives.text.vocabulary import check_vocabulary
from objectives.workbench.inputs import Inputs, read_inputs
from objectives.workbench.workbench import Workbench, check_cost, prepare
from orchestrator.errors import RunError
from orchestrator.identity import definition_of
from orchestrator.runs.answers import check_teachers
from orchestrator.runs.artifacts import set_artifact_store
from orchestrator.runs.records import FEATURES, WANTED, RunRecord
from orchestrator.runs.run_folder import RunFolder
from orchestrator.sampler import make_sampler
from orchestrator.signals import interruptible, unattended
from orchestrator.storage.connect import check_exists, open_storage
from orchestrator.storage.retry import is_full, reason_of
from orchestrator.storage.urls import hidden, is_file, parse_url, remember_server
from orchestrator.study import PopulationSize, Study
from orchestrator.teacher_study import tune_teacher
from orchestrator.terminal import say
from orchestrator.workers import opening
from orchestrator.workers.heartbeat import Heartbeat, living
from orchestrator.workers.limits import finished_trials
from orchestrator.workers.opening import OpenRun
from orchestrator.workers.progress import LaunchProgress
from orchestrator.workers.warm_start import enqueue_warm
from orchestrator.workers.worker import Callback, Worker

Backend = Literal["loky", "dask", "ray"]


@dataclass(frozen=True, kw_only=True)
class LaunchOptions:
    """Options of a launch: see `orchestrator.launch`."""

    trials: int | None = None
    population: PopulationSize | None = None
    workers: int = 1
    out: str | Path | None = None
    storage: str | None = field(default=None, repr=False)  # it may hold a password
    device: str = "auto"
    artifacts: str | None = None
    backend: Backend = "loky"
    cluster: str | None = None
    timeout: float | None = None

    def applied(self, study: Study) -> tuple[Study, RunFolder]:
        """Apply the options: the study and its folder. Raises RunError if `study` is no Study."""
        if not isinstance(study, Study):
            raise RunError(
                f"a launch takes a Study, not a {type(study).__name__}; read one from a file with "
                "maskfront.load_study('study.py')"
            )
        if self.timeout is not None and not self.timeout > 0:
            raise RunError(f"timeout is {self.timeout}; it must be seconds above 0", "timeout")
        asked: dict[str, Any] = {"trials": self.trials, "population": self.population}
        study = replace(study, **{name: n for name, n in asked.items() if n is not None})
        return study, RunFolder(Path("runs") / study.name if self.out is None else Path(self.out))


def run_trials(
    run: OpenRun,
    progress: LaunchProgress,
    callbacks: Sequence[Callback] = (),
    number: int = 0,
    token: str = "",
) -> None:
    """Run trials as the worker of this number until enough are finished."""
    study, folder, optuna_study, device = run.study, run.folder, run.optuna_study, run.device
    so_far = len(optuna_study.get_trials(deepcopy=False))
    optuna_study.sampler = make_sampler(
        study.seed, so_far, study.at_once(device), number, study.sampler or "random"
    )
    with Heartbeat(optuna_study, folder, device) as heart:
        claims = run.claims(heart.record.name, token)
        session = Session(cache=folder.cache, seed=study.seed, device=device, progress=progress)
        if (finished := finished_trials(optuna_study)) >= study.trials:
            progress.note(f"{finished} trials are finished, {study.trials} wanted: nothing to do")
            claims.fail_orphans()
            if study.teacher.fine_tuned:  # the cache may be gone, and serving a run needs it
                with progress, folder.in_turn("prepare"):
                    tune_teacher(study, optuna_study, run.inputs, session)
                    answering = run.inputs.answering(run.inputs.split("train"), session)
                    check_teachers(folder, {"": run.inputs.selection(answering).numpy()})
            return
        with progress:
            progress.finished(finished)
            with folder.in_turn("prepare"):  # the first one makes what all others read
                bench = _prepare(run, session)
            Worker(run, claims, progress, bench).run(callbacks)


def _prepare(run: OpenRun, session: Session) -> Workbench:
    study = run.study
    notes = tune_teacher(study, run.optuna_study, run.inputs, session)
    bench = prepare(
        run.inputs,
        session=session,
        cost=study.cost,
        engine=study.engine,
        latency_batch=study.latency_batch,
        objective=study.objective,
        spaces=study.spaces,
        fidelity=study.fidelity,
    )
    run.optuna_study.set_user_attr(FEATURES, bench.features)
    enqueue_warm(run.optuna_study, study, bench.features)
    return replace(bench, notes=(*notes, *bench.notes))


def run_study(
    study: Study,
    options: LaunchOptions,
    *,
    callbacks: Sequence[Callback] = (),
    console: Console | None = None,
) -> RunRecord:
    """Run the study in this process, without a report; callbacks are called after populations."""
    study, folder = options.applied(study)
    device = choose_device(options.device)
    note = partial(say, console or Console())
    with writing(folder), opened(study, folder, options, device, note) as run:
        run_trials(run, LaunchProgress(study, console), callbacks)
        return run.record()


@unattended()
@interruptible("other workers, or the next launch, take what is left")
def work(
    study: Study,
    *,
    trials: int | None = None,
    population: PopulationSize | None = None,
    out: str | Path | None = None,
    device: str = "auto",
    storage: str | None = None,
    number: int | None = None,
    token: str = "",
    console: Console | None = None,
) -> None:
    """Be one more worker of a study that a launch has opened, until its trials are finished.

    Args:
        study: the study that the launch runs.
        trials: trials wanted; by default as many as the launch wants.
        population: trials that train together, or "auto"; the study's own by default.
        out: the launch's own run folder, shared between machines where there are several;
            runs/NAME by default.
        device: "auto", "cpu", "cuda" or "cuda:N".
        storage: URL of the storage; by default that of the run folder.
        number: 1 at least, for the workers that a launch starts; others draw their own.
        token: of the launch, by which it ends its workers.
        console: what shows progress and notes; the terminal by default.

    Raises:
        RunError: for a run folder or a storage that has no such study.
        UserError: for data or checkpoints that cannot be.
    """
    study, folder = LaunchOptions(trials=trials, population=population, out=out).applied(study)
    url, chosen = address(folder, storage), choose_device(device)
    check_exists(url)
    with writing(folder):
        opened_storage = open_storage(url)
        inputs, definition = read_study(study, chosen)
        optuna_study = opening.join_study(study, folder, opened_storage, definition)
        if trials is None:
            study = replace(study, trials=optuna_study.user_attrs.get(WANTED, study.trials))
        opening.bind_folder(folder, optuna_study, hidden(parse_url(url)))
        opening.check_room(url, living(optuna_study, folder))
        speaker = "worker" if number is None else f"worker {number}"
        number = secrets.randbits(64) if number is None else number
        run = OpenRun(study, folder, optuna_study, inputs, chosen)
        run_trials(run, LaunchProgress(study, console, speaker), number=number, token=token)


@contextmanager
def opened(
    study: Study,
    folder: RunFolder,
    options: LaunchOptions,
    device: str,
    note: Callable[[str], object],
) -> Iterator[OpenRun]:
    """Create or continue the run for a launch, under the folder's lock, and recover lost trials."""
    url = address(folder, options.storage)
    server = None if is_file(url) else open_storage(url)  # at once: the data may take a while
    inputs, definition = read_study(study, device)
    shown = hidden(parse_url(url))
    with folder.locked():
        local = folder.is_own(shown)
        if local and not folder.database.exists():
            # Before an empty database lies where the lost one belongs.
            opening.check_no_trials(folder)
        server = server or open_storage(url)
        optuna_study = opening.open_study(study, folder, server, definition, note, own=local)
        opening.bind_folder(folder, optuna_study, shown)
        opening.check_room(url, living(optuna_study, folder), options.workers)
        opening.describe(optuna_study, study, device, options.timeout)
        run = OpenRun(study, folder, optuna_study, inputs, device)
        run.claims().recover(note)
        if finished_trials(optuna_study) < study.trials:
            # A later launch may want others, or failed ones again.
            opening.ask_first(optuna_study, study)
        set_artifact_store(optuna_study, options.artifacts)
        yield run


def address(folder: RunFolder, storage: str | None) -> str:
    """URL of the launch's storage, from its options or the run folder; RunError if they differ."""
    folder.check_no_links()
    if storage is None:
        return folder.storage
    remembered, asked = folder.shown_storage, hidden(parse_url(storage))
    if remembered != asked and (folder.address.exists() or folder.database.exists()):
        raise RunError(
            f"'{folder.path}' has its study in {remembered}, not in {asked}; leave the storage "
            "out, or choose another folder",
            "storage",
            "out",
        )
    return remember_server(storage)


def read_study(study: Study, device: str) -> tuple[Inputs, dict[str, str]]:
    """Read and check the inputs of all trials; also the definition of the study."""
    quiet_libraries()
    teachers = (study.teacher, *(extra.teacher for extra in study.beside))
    for engine in (study.engine, *(teacher.engine for teacher in teachers)):
        check_engine(engine, device)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    inputs = read_inputs(
        study.task,
        study.teacher,
        student_layers=study.student_layers,
        seq_len=study.seq_len,
        student=study.student,
        augmentation=study.augmentation,
        beside=study.beside,
    )
    check_cost(inputs, study.cost)  # before hours of fine-tuning
    study.check_shapes(*inputs.configs())
    if study.least_vocabulary < 1:
        check_vocabulary(inputs.tokenizer, study.least_vocabulary)
    return inputs, definition_of(
        study,
        inputs.text.fingerprint,
        inputs.checkpoint_fingerprint,
        inputs.student_fingerprint,
        None if inputs.augmenter is None else inputs.augmenter.definition,
        {n: (b.text.fingerprint, b.checkpoint_fingerprint) for n, b in inputs.beside.items()},
    )


@contextmanager
def writing(folder: RunFolder) -> Iterator[None]:
    """Turn write errors of a disk or a database into a RunError."""
    try:
        yield
    except (OSError, StorageInternalError, OperationalError) as error:
        if isinstance(error, OSError):
            path, reason = error.filename or folder.path, str(error.strerror or error)
        else:
            path, reason = folder.shown_storage, reason_of(error)
        remedy = "free the disk or choose" if is_full(error) else "choose"
        raise RunError(
            f"'{path}' could not be written ({reason}); finished trials are kept: {remedy} another "
            "folder, and launch again",
            "out",
        ) from error
