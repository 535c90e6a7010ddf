"""Choose a point of a front: by number, cost, metric, milliseconds or knee."""

import math

from orchestrator.errors import RunError
from orchestrator.runs.records import FinishedTrial, RunRecord
from orchestrator.terminal import for_shell
from reports.model_folders import check_finished, check_run
from reports.recommended import knee as find_knee
from reports.recommended import recommended
from reports.speed import front_milliseconds


def choose(
    run: RunRecord,
    *,
    trial: int | None = None,
    max_ratio: float | None = None,
    min_metric: float | None = None,
    max_ms: float | None = None,
    knee: bool = False,
) -> int:
    """The number of a finished trial, chosen in at most one way; all but `trial` look at the front.
    By default it is the one that the report recommends.

    Args:
        run: the run to choose from.
        trial: this one, on the front or not.
        max_ratio: the best model whose cost ratio is at most this, in (0, 1].
        min_metric: the cheapest model whose metric on the selection split is at least this.
        max_ms: the best model that takes at most this many `front_milliseconds` a text.
        knee: the model where the front bends most.

    Returns:
        The number of the trial.

    Raises:
        RunError: for several ways, for a trial that has no model, for an empty front, and
            where nothing on the front gets there; then it says what comes nearest.
    """
    check_run(run)
    ways = {"trial": trial, "max_ratio": max_ratio, "min_metric": min_metric, "max_ms": max_ms}
    ways["knee"] = knee or None
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
        nearest, wanted = front[0], f"{run.unpruned.cost_name} ratio <= {max_ratio:g}"
        value = nearest.result.ratio
    elif min_metric is not None:
        good = [row for row in front if row.result.metric >= min_metric]
        nearest = max(front, key=lambda row: row.result.metric)
        wanted = f"{run.metric_name} >= {min_metric:g}"
        value = nearest.result.metric
    elif max_ms is not None:
        times = _timed(run)
        good = [row for row in reversed(front) if times[row.number] <= max_ms]
        nearest = min(front, key=lambda row: times[row.number])
        wanted = f"{max_ms:g} ms a text or less"
        value = times[nearest.number]
    if not good:
        raise RunError(
            f"'{run.folder}' has no model with {wanted} on its front; the nearest is trial "
            f"{nearest.number} with {value:.4f}"
        )
    return good[0].number


def _timed(run: RunRecord) -> dict[int, float]:
    """Milliseconds of the front's models by trial; infinite if not timed."""
    times = front_milliseconds(run)
    if not any(row.number in times for row in run.front):
        bench = f"maskfront bench {for_shell(run.folder)}"
        raise RunError(f"no model of the front was timed; `{bench}` does that", "max_ms")
    return {row.number: times.get(row.number, math.inf) for row in run.front}


def _at_the_knee(run: RunRecord) -> FinishedTrial:
    bend = find_knee([row.result for row in run.front])
    if bend is None:
        raise RunError(
            f"the front of '{run.folder}' ({len(run.front)} models) has no knee: choose in another "
            "way",
            *("max_ratio", "min_metric", "trial"),
        )
    return run.front[bend]
