"""The share of the FLOPs against the measured speed-up, for the models of a front."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import plotly.graph_objects as go

from orchestrator.runs.records import RunRecord
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
from reports.speed import Speed, TimedModel, by_shape


def speed_section(overlay: Overlay, speeds: Sequence[Sequence[Speed]]) -> Section | None:
    """A panel for each run that was timed; None if none was."""
    sentences, panels = [], []
    for place, own in enumerate(speeds):
        if not own:
            continue
        label = overlay.prefix(place)
        sentences += [label + text for text in _sentences(overlay.runs[place], own)]
        missing = sum(row.number not in own[0].models for row in overlay.runs[place].front)
        reference = own[0].reference
        panels.append(
            Panel(
                name=f"speed-up{f'-{place}' if place else ''}",
                title=f"{label}FLOPs and milliseconds",
                figure=_figure(own, place),
                caption="How many times as fast each model of the front is as the "
                f"{'unpruned model' if reference == 'unpruned' else reference} in that engine of "
                "float32 in which it is fastest, by what is left of the FLOPs; at 100% that model "
                "itself: medians, models taking turns "
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


def _sentences(run: RunRecord, speeds: Sequence[Speed]) -> Iterator[str]:
    """What half the FLOPs gains; for each shape which engine is the fastest for which model, and
    how many models the unpruned one beats with fewer bits."""
    models = speeds[0].models
    trial = min(models, key=lambda number: abs(models[number].flops_ratio - 0.5))
    gains = {one.models[trial].speed_up: f"{one.engine}, batch {one.batch}" for one in speeds}
    low, high = min(gains), max(gains)
    times = f"{low:.2f} times as fast ({gains[low]})"
    if high > low:
        times = f"{low:.2f} ({gains[low]}) to {high:.2f} times as fast ({gains[high]})"
    yield f"With {percent(models[trial].flops_ratio)} of the FLOPs, trial {trial} runs {times}."
    for shape in by_shape(speeds):
        where = f"At {shape[0].batch} x {shape[0].length} tokens"
        if len(shape) > 1:
            yield f"{where} the fastest engine is {_fastest(shape)}."
        rival = min(
            (one for one in shape if one.bits < 32 and one.reference_model.worth is not None),
            key=lambda one: one.reference_model.milliseconds,
            default=None,
        )
        if rival is not None:
            yield f"{where} {_beaten(run, shape, rival)}."


def _fastest(shape: Sequence[Speed]) -> str:
    """Each engine that is the fastest for some models, with their milliseconds."""
    best: dict[str, list[str]] = {}
    for number in (None, *sorted(shape[0].models)):
        times = {one.model(number).milliseconds: one.engine for one in shape}
        name = shape[0].reference if number is None else f"trial {number}"
        best.setdefault(times[min(times)], []).append(f"{name} {min(times):.2f} ms")
    return "; ".join(f"{engine} for {', '.join(names)}" for engine, names in best.items())


def _beaten(run: RunRecord, shape: Sequence[Speed], rival: Speed) -> str:
    """How many models of the front are neither faster nor better than the unpruned one with fewer
    bits: in float32, and in its own engine."""
    unpruned = rival.reference_model
    assert unpruned.worth is not None
    front = [trial for trial in run.front if trial.number in rival.models]
    in_float32 = [
        trial.result.metric <= unpruned.worth.metric
        and min(one.models[trial.number].milliseconds for one in shape if one.bits == 32)
        >= unpruned.milliseconds
        for trial in front
        if any(one.bits == 32 for one in shape)
    ]
    in_engine = [
        model.worth is not None
        and model.worth.metric <= unpruned.worth.metric
        and model.milliseconds >= unpruned.milliseconds
        for model in (rival.models[trial.number] for trial in front)
    ]
    counts = [
        f"{sum(beaten)} of {len(beaten)} {words}"
        for beaten, words in (
            (in_float32, "models of the front in float32 in their fastest engine"),
            (in_engine, f"in {rival.engine} like it"),
        )
        if beaten
    ]
    return (
        f"the unpruned model in {rival.engine} takes {unpruned.milliseconds:.2f} ms and "
        f"{unpruned.megabytes:.1f} MB with {run.metric_name} {unpruned.worth.metric:.4f} (held out "
        f"{unpruned.worth.heldout_metric:.4f}), and so beats, being no slower and no worse, "
        f"{' and '.join(counts)}"
    )


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
        models: list[tuple[int | None, TimedModel]] = sorted(
            one.models.items(), key=lambda row: row[1].flops_ratio
        )
        models.append((None, one.reference_model))
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
            text=[
                f"{plain(one.reference) if number is None else f'trial {number}'}: "
                f"{model.milliseconds:.2f} ms, {model.megabytes:.1f} MB"
                for number, model in models
            ],
            hovertemplate="%{text}<br>%{y:.2f} times as fast at %{x:.1%} of the FLOPs",
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
