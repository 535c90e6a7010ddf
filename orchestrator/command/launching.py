"""`launch`: run a study and report on it, from Python or the command line."""

import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from pprint import pformat

from rich.console import Console

from objectives.errors import spelled
from orchestrator.command.run import Run, run_of
from orchestrator.signals import interruptible, unattended
from orchestrator.study import PopulationSize, Study
from orchestrator.study_file import file_of, is_named
from orchestrator.terminal import for_shell, say
from orchestrator.workers.loop import Backend, LaunchOptions, run_study
from orchestrator.workers.worker import Callback
from orchestrator.workers.worker_pool import default_workers, launch_workers
from reports.curves import gap_note
from reports.page.following import Following


@spelled
@unattended()
@interruptible("finished trials are kept, launch again to go on")
def launch(
    study: Study,
    *,
    trials: int | None = None,
    population: PopulationSize | None = None,
    workers: int | None = None,
    out: str | Path | None = None,
    storage: str | None = None,
    device: str = "auto",
    artifacts: str | None = None,
    backend: Backend = "loky",
    cluster: str | None = None,
    timeout: float | None = None,
    report: bool = True,
    callbacks: Sequence[Callback] = (),
    command: str | None = None,
    console: Console | None = None,
) -> Run:
    """Run the study until its trials are finished, or continue it if its folder holds a run.

    Finished trials outlive whatever ends the launch: launch again to go on. Ctrl-C fails the
    running trials, whose knobs the next launch tries again, and raises KeyboardInterrupt.

    Args:
        study: what to run.
        trials: trials wanted; the study's own number by default.
        population: trials that train together, or "auto"; the study's own by default.
        workers: processes, each with a GPU of its own or its share of the cores, or tasks of a
            cluster; by default one for each GPU, else one, which is this process.
        out: the run folder; runs/NAME by default.
        storage: URL of the storage of the Optuna study: sqlite:///FILE,
            postgresql://USER@HOST/DATABASE, mysql://..., grpc://HOST:PORT or journal:///FILE; a
            file in the run folder by default. A password in it is written nowhere;
            MASKFRONT_STORAGE_PASSWORD may hold it instead, and MASKFRONT_STORAGE_HOST the host for
            later commands.
        device: "auto", "cpu", "cuda" or "cuda:N".
        artifacts: where to copy the files of a new study's trials to, for dashboards on other
            machines: s3://BUCKET.
        backend: where workers run: "loky" processes on this machine, "dask" or "ray" tasks on a
            cluster, whose machines share the run folder.
        cluster: address of the cluster, such as "tcp://SCHEDULER:8786".
        timeout: seconds after which no more trials begin; those that run are finished, and the next
            launch goes on. `Study.patience` stops a launch whose front no longer grows,
            `Study.trial_timeout` a trial that takes too long.
        report: keep report.html, the notes and the front of the dashboard up to date. One that
            fails is told of and costs no trial.
        callbacks: called with the run as it stands when more trials have ended.
        command: how to launch the run again, for its report; by default the script at work.
        console: what shows progress and notes; the terminal by default.

    Returns:
        The run: its front, its numbers, its models.

    Raises:
        RunError: for a run folder, a storage or workers that cannot be.
        UserError: for data, checkpoints or settings that cannot be. As with RunError, the text is
            one line that names the remedy, and nothing is written where that is known before.
    """
    console = console or Console()
    options = LaunchOptions(
        trials=trials,
        population=population,
        workers=default_workers(device) if workers is None else workers,
        out=out,
        storage=storage,
        device=device,
        artifacts=artifacts,
        backend=backend,
        cluster=cluster,
        timeout=timeout,
    )
    options.applied(study)  # refuses what cannot be launched before it is looked up in a file
    file = file_of(study)
    study_file = _shown(file) if file and is_named(study) else None
    if file is None:  # in a notebook
        source = f"study = {pformat(study, width=100)}\n"
    else:
        source = file.read_text(encoding="utf-8", errors="replace")
    following = Following(command or _command(), source, study_file, note=partial(say, console))
    in_process = (options.workers, backend, cluster) == (1, "loky", None)
    engine = run_study if in_process else launch_workers
    called: Sequence[Callback] = [following, *callbacks] if report else callbacks
    try:
        record = engine(study, options, callbacks=called, console=console)
    except BaseException:
        following.cut_short()
        raise
    if report:
        following.end(record)
    if (gap := gap_note(record)) is not None:
        say(console, gap)
    return run_of(record)


def _command() -> str:
    """How this process was started, without arguments, which may hold secrets."""
    main = sys.modules["__main__"]
    if main.__spec__ is not None:
        return f"python -m {main.__spec__.name}"
    script = Path(getattr(main, "__file__", None) or "")
    if not script.is_file():
        return "launch(study)"
    return f"python {for_shell(_shown(script))}"


def _shown(file: Path) -> str:
    """Relative path of a file, or its name: a report reveals no home directory."""
    here, file = Path.cwd(), file.absolute()
    return str(file.relative_to(here)) if file.is_relative_to(here) else file.name
