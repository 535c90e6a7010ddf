"""Models with other bits in the figure of the front: marks beside it on an axis of milliseconds."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go

from reports.figures.theme import ORANGE, PURPLE, SKY, interval_bars, lines, plain, run_style
from reports.overlay import Overlay
from reports.speed import Speed, TimedModel

_MARKS = (("hexagon", "star-open"), ("pentagon", "star-diamond-open"), ("cross", "hexagram-open"))
"""Of a model of the front and of the unpruned one, for each engine in turn."""
_COLOURS = (PURPLE, ORANGE, SKY)


def add_served(figure: go.Figure, overlay: Overlay, speeds: Sequence[Sequence[Speed]]) -> None:
    """Add what was scored with other bits than the run's own: the same trials as other marks, and
    the unpruned model as another star.

    They have no place on an axis of FLOPs: the page puts them where they belong when its axis is
    switched, and shows them then alone. A point carries the places of its run and its trial (None
    for the unpruned model), and its engine.
    """
    if overlay.by_divergence:
        return  # they were scored by the metric
    for place, own in enumerate(speeds):
        run = overlay.runs[place]
        engines = {one.engine: one for one in own if one.bits != run.bits}
        for mark, one in enumerate(engines.values()):
            front = [(trial.number, one.models.get(trial.number)) for trial in run.front]
            _add(figure, overlay, place, one.engine, front, mark % len(_MARKS))
            unpruned = [(None, one.unpruned_model(run.unpruned))]
            _add(figure, overlay, place, one.engine, unpruned, mark % len(_MARKS))


def _add(
    figure: go.Figure,
    overlay: Overlay,
    place: int,
    engine: str,
    timed: Sequence[tuple[int | None, TimedModel | None]],
    mark: int,
) -> None:
    """One trace: the models of the front in an engine, or the unpruned one alone."""
    run, prefix = overlay.runs[place], overlay.prefix(place)
    heights, bounds, keys, hovers = [], [], [], []
    for trial, model in timed:
        if model is None or model.worth is None:
            continue
        worth, (low, high) = model.worth, model.worth.interval
        name = "unpruned model" if trial is None else f"trial {trial}"
        metrics = f"{run.metric_name} {worth.metric:.4f}, held out {worth.heldout_metric:.4f}"
        heights.append(overlay.height(run, worth.metric))
        bounds.append([overlay.height(run, value) for value in (low, worth.metric, high)])
        keys.append([place, trial, engine])
        hovers.append(lines([f"{prefix}{name} in {engine}", metrics, f"{model.megabytes:.1f} MB"]))
    if not keys:
        return
    star = timed[0][0] is None
    figure.add_scatter(
        x=[None] * len(keys),
        y=heights,
        mode="markers",
        name=plain(f"{prefix}{'unpruned model' if star else 'front'}, {engine}"),
        visible=False,
        marker={
            "symbol": _MARKS[mark][star],
            "size": 15 if star else 10,
            "color": run_style(place)["color"] if overlay.several else _COLOURS[mark],
        },
        error_y=interval_bars(bounds),
        customdata=keys,
        hovertext=hovers,
        hoverinfo="text",
    )
