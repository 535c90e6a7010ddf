"""Share of the FLOPs against measured speed-up, for the models of a front."""

import math
from collections.abc import Iterator, Sequence

import plotly.graph_objects as go

from orchestrator.runs.records import FinishedTrial, RunRecord
from reports.figures import theme
from reports.figures.theme import Panel, Section
from reports.overlay import Overlay
from reports.speed import Speed, by_shape, compared, shape_text, without_kernel


def speed_section(overlay: Overlay, speeds: Sequence[Sequence[Speed]]) -> Section | None:
    """A panel for each run with timed models of its front; None if there is none."""
    sentences, panels = [], []
    for index, timed in enumerate(speeds):
        if not any(speed.models for speed in timed):
            continue
        label = overlay.prefix(index)
        sentences += [label + text for text in _sentences(overlay.runs[index], timed)]
        shown = compared(timed)
        reference = "unpruned model" if timed[0].reference == "unpruned" else timed[0].reference
        devices = ", ".join(dict.fromkeys(speed.device for speed in shown))
        what = "From text to label, tokenisation included. " if shown[0].texts else ""
        caption = (
            f"{what}How many times as fast each model of the front is as the {reference} in its "
            f"fastest float32 engine, against its share of the FLOPs. At 100% is the {reference}. "
            f"Times are medians of models that take turns ({devices}). On the dotted line time "
            "falls as the FLOPs do."
        )
        if len(by_shape(shown)) > 1:
            caption += " The legend shows other shapes of batch."
        missing = sum(row.number not in timed[0].models for row in overlay.runs[index].front)
        if missing:
            caption += f" {missing} of the front's models were not timed: they joined it later."
        name = f"speed-up-{index}" if index else "speed-up"
        panels.append(Panel(name, f"{label}FLOPs and milliseconds", _figure(shown, index), caption))
    title = "What the FLOPs are worth in time"
    return Section("speed", title, tuple(sentences), tuple(panels)) if panels else None


def _sentences(run: RunRecord, speeds: Sequence[Speed]) -> Iterator[str]:
    """For each shape: the fastest engines, and how the unpruned model with fewer bits compares."""
    for shape in by_shape(speeds):
        where = shape_text(*shape[0].shape)
        yield f"{where}: the fastest engine is {_fastest(shape)}."
        rivals = [speed for speed in shape if speed.bits < 32 and _scored(speed, run)]
        if rivals:
            rival = min(rivals, key=lambda speed: speed.reference_model.milliseconds)
            yield f"{where}: {_beaten(run, shape, rival)}."
    for bits, trials in without_kernel(run, speeds).items():
        models = ", ".join(map(str, trials))
        yield (
            f"No timed engine computes with {bits} bits: for trial {models} they save size only."
        )


def _scored(speed: Speed, run: RunRecord) -> bool:
    """Whether the unpruned model was scored in this engine."""
    unpruned = speed.timed(None, run.unpruned)
    return unpruned is not None and (speed.bits == run.bits or unpruned.worth is not None)


def _fastest(shape: Sequence[Speed]) -> str:
    best: dict[str, list[str]] = {}
    for number in (None, *sorted(shape[0].models)):
        times = {speed.model(number).milliseconds: speed.engine for speed in shape}
        name = shape[0].reference if number is None else f"trial {number}"
        best.setdefault(times[min(times)], []).append(f"{name} {min(times):.2f} ms")
    return "; ".join(f"{engine} for {', '.join(names)}" for engine, names in best.items())


def _beaten(run: RunRecord, shape: Sequence[Speed], rival: Speed) -> str:
    """Count models of the front that the unpruned one beats, in float32 and in its own engine."""
    unpruned = rival.reference_model
    worth, limit = unpruned.worth or run.unpruned, unpruned.milliseconds
    front = [trial for trial in run.front if trial.number in rival.models]

    def no_match(trial: FinishedTrial, speed: Speed) -> bool:
        timed = speed.models[trial.number]
        own_worth = timed.worth or trial.result
        return own_worth.metric <= worth.metric and timed.milliseconds >= limit

    groups = {"float32": [speed for speed in shape if speed.bits == 32], rival.engine: [rival]}
    counts = []
    for name, engines in groups.items():
        beaten = sum(all(no_match(trial, speed) for speed in engines) for trial in front)
        if engines:
            counts.append(f"{beaten} of {len(front)} in {name}")
    return (
        f"the unpruned model takes {limit:.2f} ms and {unpruned.megabytes:.1f} MB in "
        f"{rival.engine}, with {run.task_metric} {worth.metric:.4f} (held out "
        f"{worth.heldout_metric:.4f}). It beats these models of the front, "
        f"which are no faster and no better: {', '.join(counts)}"
    )


def _figure(speeds: Sequence[Speed], index: int) -> go.Figure:
    figure = go.Figure()
    least = min(model.flops_ratio for speed in speeds for model in speed.models.values())
    steps = [least + (1 - least) * step / 50 for step in range(51)]
    falling, line = [1 / ratio for ratio in steps], {"color": theme.GREY, "dash": "dot"}
    name = "as the FLOPs"
    figure.add_scatter(x=steps, y=falling, mode="lines", name=name, line=line, hoverinfo="skip")
    engines = list(dict.fromkeys(speed.engine for speed in speeds))
    shapes = list(dict.fromkeys(speed.shape for speed in speeds))
    for speed in speeds:
        timed = sorted(speed.models.items(), key=lambda row: row[1].flops_ratio)
        models = [*timed, (None, speed.reference_model)]
        engine, shape = engines.index(speed.engine), shapes.index(speed.shape)
        dash = theme.RUN_DASHES[shape % len(theme.RUN_DASHES)]
        figure.add_scatter(
            x=[model.flops_ratio for _, model in models],
            y=[model.speed_up for _, model in models],
            mode="lines+markers",
            visible=None if shape == 0 else "legendonly",
            name=theme.plain(f"{speed.engine}, {shape_text(*speed.shape)}"),
            line={"color": theme.run_style(engine)["color"], "dash": dash, "width": 2},
            marker={"symbol": theme.RUN_SYMBOLS[shape % len(theme.RUN_SYMBOLS)], "size": 8},
            customdata=[[index, number] for number, _ in models],
            text=[
                f"{theme.plain(speed.reference) if number is None else f'trial {number}'}: "
                f"{model.text}, {model.megabytes:.1f} MB"
                for number, model in models
            ],
            hovertemplate="%{text}<br>%{y:.2f} times as fast at %{x:.1%} of the FLOPs",
        )
    times = [model.speed_up for speed in speeds for model in speed.models.values()]
    low, high = 0.8 * min(1, *times), 1.25 * max(1, *times)
    ends = [math.log10(low), math.log10(high)]  # as the FLOPs may be far beyond
    ticks = theme.log_ticks(low, high)
    height = 400 + 8 * len(speeds)  # the legend takes its height from the axes
    x_axis = theme.x_axis("FLOPs ratio", tickformat=".0%")
    y_axis = theme.axis("times as fast", type="log", tickvals=ticks, range=ends)
    theme.lay_out(figure, height=height, xaxis=x_axis, yaxis=y_axis)
    return figure
