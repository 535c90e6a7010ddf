"""Which point of a front to take: by its number, by what it may cost, by what it must be worth."""

from collections.abc import Callable
from pathlib import Path

from orchestrator.errors import RunError
from orchestrator.runs.records import FinishedTrial, RunRecord
from orchestrator.runs.run_folder import RunFolder
from reports.recommended import knee as find_knee
from reports.recommended import recommended

_WEIGHTS = "model.safetensors"


def check_run(run: object) -> None:
    """Raises RunError for what is no run, such as the folder of a run."""
    if not isinstance(run, RunRecord):
        raise RunError(
            f"{run!r} is a {type(run).__name__}, not a Run; read one from its folder with "
            "orchestrator.load_run('runs/STUDY')"
        )


def choose(
    run: RunRecord,
    *,
    trial: int | None = None,
    max_ratio: float | None = None,
    min_metric: float | None = None,
    knee: bool = False,
) -> int:
    """The number of a finished trial, chosen in at most one way; all but `trial` look at the front.
    By default it is the one that the report recommends.

    Args:
        run: the run to choose from.
        trial: this one, on the front or not.
        max_ratio: the best model whose cost ratio is at most this, in (0, 1].
        min_metric: the cheapest model whose metric on the selection split is at least this.
        knee: the model where the front bends most.

    Returns:
        The number of the trial.

    Raises:
        RunError: for several ways, for a trial that has no model, for an empty front, and
            where nothing on the front gets there; then it says what comes nearest.
    """
    check_run(run)
    ways = {"trial": trial, "max_ratio": max_ratio, "min_metric": min_metric, "knee": knee or None}
    given = sum(value is not None for value in ways.values())
    if given > 1:
        raise RunError(f"choose a model in one way, not in {given}", *ways)
    if trial is not None:
        check_finished(run, trial)
        return trial
    if max_ratio is not None and not 0 < max_ratio <= 1:
        raise RunError(f"{max_ratio:g} is not a share in (0, 1]: give 0.5, not 50", "max_ratio")
    front = run.front
    if not front:
        raise RunError(f"'{run.folder}' has no model on its front yet; name a trial", "trial")
    if knee or not given:
        return (_at_the_knee(run) if knee else recommended(run) or front[0]).number
    if max_ratio is not None:
        good = [row for row in reversed(front) if row.result.ratio <= max_ratio]
        nearest = front[0]
        wanted = f"{nearest.result.cost_name} ratio <= {max_ratio:g}"
        value = nearest.result.ratio
    elif min_metric is not None:
        good = [row for row in front if row.result.metric >= min_metric]
        nearest = max(front, key=lambda row: row.result.metric)
        wanted = f"{run.metric_name} >= {min_metric:g}"
        value = nearest.result.metric
    if not good:
        raise RunError(
            f"'{run.folder}' has no model with {wanted} on its front; the nearest is trial "
            f"{nearest.number} with {value:.4f}"
        )
    return good[0].number


def _at_the_knee(run: RunRecord) -> FinishedTrial:
    bend = find_knee([row.result for row in run.front])
    if bend is None:
        raise RunError(
            f"the front of '{run.folder}' ({len(run.front)} models) has no knee: choose in another "
            "way",
            *("max_ratio", "min_metric", "trial"),
        )
    return run.front[bend]


def model_folder(run: RunRecord, trial: int) -> Path:
    """Where the model of a finished trial lies. Raises RunError if there is none."""
    check_finished(run, trial)
    folder = RunFolder(run.folder).model(trial)
    if not (folder / _WEIGHTS).is_file():
        raise RunError(
            f"'{folder}', the model of trial {trial}, is gone; choose another trial, "
            "or put the folder back"
        )
    return folder


def kept_front(run: RunRecord, say: Callable[[str], object]) -> list[FinishedTrial]:
    """The front without the trials whose models were deleted, which it says. Raises RunError if
    none is left."""
    folder = RunFolder(run.folder)
    front = [trial for trial in run.front if (folder.model(trial.number) / _WEIGHTS).is_file()]
    for trial in run.front:
        if not front:
            model_folder(run, trial.number)  # raises
        if trial not in front:
            say(f"trial {trial.number} is left out: its model is gone")
    return front


def check_finished(run: RunRecord, trial: int) -> None:
    """Raises RunError for a trial that has not finished, and says what became of it."""
    check_run(run)
    row = next((row for row in run.trials if row.number == trial), None)
    if row is not None and row.result is not None:
        return
    finished = ", ".join(str(n) for n in sorted(row.number for row in run.finished)) or "none yet"
    if row is None:
        raise RunError(f"'{run.folder}' has no trial {trial}; finished: {finished}")
    failure = "" if row.failure is None else f" ({row.failure})"
    raise RunError(
        f"'{run.folder}': trial {trial} has no model, it is {row.state}{failure}; "
        f"finished: {finished}"
    )
