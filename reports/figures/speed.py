"""The share of the FLOPs against the measured speed-up, for the models of a front."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go

from reports.figures.theme import (
    AXIS,
    GREY,
    LAYOUT,
    LEGEND,
    RUN_COLOURS,
    RUN_DASHES,
    RUN_SYMBOLS,
    Panel,
    Section,
    plain,
)
from reports.overlay import Overlay
from reports.pareto import percent
from reports.speed import Speed


def speed_section(overlay: Overlay, speeds: Sequence[Sequence[Speed]]) -> Section | None:
    """A panel for each run that was timed; None if none was."""
    sentences, panels = [], []
    for place, own in enumerate(speeds):
        if not own:
            continue
        label = overlay.prefix(place)
        sentences.append(label + _sentence(own))
        missing = sum(row.number not in own[0].models for row in overlay.runs[place].front)
        reference = own[0].reference
        panels.append(
            Panel(
                name=f"speed-up{f'-{place}' if place else ''}",
                title=f"{label}FLOPs and milliseconds",
                figure=_figure(own, place),
                caption="How many times as fast as the "
                f"{'unpruned model' if reference == 'unpruned' else reference} each model of the "
                "front is, by what is left of the FLOPs: medians, models taking turns "
                f"({', '.join(dict.fromkeys(one.device for one in own))}). On the dotted line time "
                "would fall as the FLOPs do."
                + (
                    f" {missing} of the front's models joined it later, and were not timed."
                    if missing
                    else ""
                ),
            )
        )
    if not panels:
        return None
    return Section(
        name="speed",
        title="What the FLOPs are worth in time",
        sentences=tuple(sentences),
        panels=tuple(panels),
    )


def _sentence(speeds: Sequence[Speed]) -> str:
    """The model nearest to half the FLOPs, slowest gain to fastest."""
    models = speeds[0].models
    trial = min(models, key=lambda number: abs(models[number].flops_ratio - 0.5))
    gains = {one.models[trial].speed_up: f"{one.engine}, batch {one.batch}" for one in speeds}
    low, high = min(gains), max(gains)
    times = f"{low:.2f} times as fast ({gains[low]})"
    if high > low:
        times = f"{low:.2f} ({gains[low]}) to {high:.2f} times as fast ({gains[high]})"
    return f"With {percent(models[trial].flops_ratio)} of the FLOPs, trial {trial} runs {times}."


def _figure(speeds: Sequence[Speed], place: int) -> go.Figure:
    figure = go.Figure()
    ratios = [model.flops_ratio for one in speeds for model in one.models.values()]
    steps = [min(ratios) + (1 - min(ratios)) * step / 50 for step in range(51)]
    figure.add_scatter(
        x=steps,
        y=[1 / ratio for ratio in steps],
        mode="lines",
        name="as the FLOPs",
        line={"color": GREY, "dash": "dot"},
        hoverinfo="skip",
    )
    engines = list(dict.fromkeys(one.engine for one in speeds))
    shapes = list(dict.fromkeys((one.batch, one.length) for one in speeds))
    for one in speeds:
        models = sorted(one.models.items(), key=lambda row: row[1].flops_ratio)
        engine, shape = engines.index(one.engine), shapes.index((one.batch, one.length))
        figure.add_scatter(
            x=[model.flops_ratio for _, model in models],
            y=[model.speed_up for _, model in models],
            mode="lines+markers",
            name=plain(f"{one.engine}, {one.batch} x {one.length} tokens"),
            line={
                "color": RUN_COLOURS[engine % len(RUN_COLOURS)],
                "dash": RUN_DASHES[shape % len(RUN_DASHES)],
                "width": 2,
            },
            marker={"symbol": RUN_SYMBOLS[shape % len(RUN_SYMBOLS)], "size": 8},
            customdata=[[place, number] for number, _ in models],
            text=[f"{model.milliseconds:.2f} ms" for _, model in models],
            hovertemplate="trial %{customdata[1]}: %{y:.2f} times as fast, %{text}<br>"
            "at %{x:.1%} of the FLOPs",
        )
    figure.update_layout(
        **LAYOUT,
        height=400,
        margin={"l": 60, "r": 20, "t": 20, "b": 60},
        legend=LEGEND,
        xaxis={**AXIS, "tickformat": ".0%", "title": {"text": "FLOPs ratio", "standoff": 8}},
        yaxis={
            **AXIS,
            "title": {"text": "times as fast"},
            "type": "log",
            "tickvals": [0.5, 0.7, 1, 1.5, 2, 3, 5, 10, 20],
        },
    )
    return figure
