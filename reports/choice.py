"""Which point of a front to take: by its number, by what it may cost, by what it must be worth."""

from __future__ import annotations

from pathlib import Path

from orchestrator.errors import RunError
from orchestrator.runs.records import RunRecord
from orchestrator.runs.run_folder import RunFolder
from reports.recommended import knee as find_knee


def check_run(run: object) -> None:
    """Raises RunError for what is no run, such as the folder of a run."""
    if not isinstance(run, RunRecord):
        raise RunError(
            f"{run!r} is a {type(run).__name__}, not a Run; that of a run's folder is "
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
    """The number of a finished trial, chosen in exactly one way; all but `trial` look at the front.

    Args:
        run: the run to choose from.
        trial: this one, on the front or not.
        max_ratio: the best model whose cost ratio is at most this, in (0, 1].
        min_metric: the cheapest model whose metric on the selection split is at least this.
        knee: the model where the front bends most.

    Returns:
        The number of the trial.

    Raises:
        RunError: for none or several ways, for a trial that has no model, for an empty front, and
            where nothing on the front gets there; then it says what comes nearest.
    """
    check_run(run)
    ways = {
        "trial": trial is not None,
        "max_ratio": max_ratio is not None,
        "min_metric": min_metric is not None,
        "knee": knee,
    }
    if (given := sum(ways.values())) != 1:
        raise RunError(f"choose a model in one way, not in {given}", *ways)
    if trial is not None:
        check_finished(run, trial)
        return trial
    if max_ratio is not None and not 0 < max_ratio <= 1:
        raise RunError(f"{max_ratio:g} is no share above 0 and at most 1: 0.5, not 50", "max_ratio")
    points = [(row.number, row.result) for row in run.front]
    if not points:
        raise RunError(f"'{run.folder}' has no model on its front yet; name a trial", "trial")
    if max_ratio is not None:
        within = [number for number, result in points if result.ratio <= max_ratio]
        if not within:
            number, nearest = points[0]
            raise RunError(
                f"'{run.folder}' has no model with {nearest.cost_name} ratio <= {max_ratio:g} on "
                f"its front; the nearest is trial {number} with {nearest.ratio:.4f}"
            )
        return within[-1]
    if min_metric is not None:
        good = [number for number, result in points if result.metric >= min_metric]
        if not good:
            number, nearest = max(points, key=lambda point: point[1].metric)
            raise RunError(
                f"'{run.folder}' has no model with {run.metric_name} >= {min_metric:g} on its "
                f"front; the nearest is trial {number} with {nearest.metric:.4f}"
            )
        return good[0]
    bend = find_knee([result for _, result in points])
    if bend is None:
        raise RunError(
            f"the front of '{run.folder}' ({len(points)} models) bends nowhere: choose in "
            "another way",
            "max_ratio",
            "min_metric",
            "trial",
        )
    return points[bend][0]


def model_folder(run: RunRecord, trial: int) -> Path:
    """Where the model of a finished trial lies. Raises RunError if there is none."""
    check_finished(run, trial)
    folder = RunFolder(run.folder).model(trial)
    if not (folder / "model.safetensors").is_file():
        raise RunError(
            f"'{folder}', the model of trial {trial}, is gone; choose another trial, "
            "or put the folder back"
        )
    return folder


def check_finished(run: RunRecord, trial: int) -> None:
    """Raises RunError for a trial that has not finished, and says what became of it."""
    check_run(run)
    rows = {row.number: row for row in run.trials}
    row = rows.get(trial)
    if row is not None and row.result is not None:
        return
    finished = ", ".join(str(n) for n in sorted(rows) if rows[n].result is not None) or "none yet"
    if row is None:
        raise RunError(f"'{run.folder}' has no trial {trial}; finished: {finished}")
    failure = "" if row.failure is None else f" ({row.failure})"
    raise RunError(
        f"'{run.folder}': trial {trial} has no model, it is {row.state}{failure}; "
        f"finished: {finished}"
    )
