"""The Pareto front of the metric against the cost: in numbers, in one sentence, in a figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go

from orchestrator.records import Measured, RunRecord, TrialResult, UnprunedResult, size_text
from reports.theme import AXIS, BLUE, GREEN, GREY, LAYOUT, ORANGE, VERMILLION, plain


@dataclass(frozen=True, kw_only=True)
class Point:
    """A finished trial."""

    trial: int
    knobs: Mapping[str, Any]
    result: TrialResult


@dataclass(frozen=True, kw_only=True)
class ParetoView:
    """The finished trials of a run, sorted by what they are to its front."""

    metric_name: str
    unpruned: UnprunedResult
    front: tuple[Point, ...]
    """By rising cost, and so by rising metric."""
    dominated: tuple[Point, ...]
    """Inside their budget, but another trial is no worse and cheaper, or as cheap and better."""
    outside: tuple[Point, ...]
    """Outside their budget; they are on no front."""


def pareto_view(run: RunRecord) -> ParetoView:
    """Sort the finished trials of a run."""
    points = {
        trial.number: Point(trial=trial.number, knobs=trial.knobs, result=trial.result)
        for trial in run.trials
        if trial.result is not None
    }
    front = [trial.number for trial in run.front]
    feasible = {trial.number for trial in run.trials if trial.feasible}
    return ParetoView(
        metric_name=run.metric_name,
        unpruned=run.unpruned,
        front=tuple(points[number] for number in front),
        dominated=tuple(points[number] for number in points if number in feasible - set(front)),
        outside=tuple(points[number] for number in points if number not in feasible),
    )


def answer(view: ParetoView) -> str:
    """One sentence: what is kept at half the cost, or what there is instead."""
    name = view.unpruned.cost_name
    if not view.front and view.outside:
        return f"No trial has met its {name} budget yet; {len(view.outside)} finished outside it."
    if not view.front:
        return "No trial has finished yet."
    half = [point for point in view.front if point.result.ratio <= 0.5]
    if half:
        best = half[-1].result
        return f"At {percent(best.ratio)} of the {_cost(view)} the model {_kept(view, best)}."
    smallest = view.front[0].result
    return (
        f"No model on the front has at most half the {_cost(view)} yet; "
        f"the smallest, at {percent(smallest.ratio)}, {_kept(view, smallest)}."
    )


def percent(share: float) -> str:
    """A share as a whole percentage, or with one decimal below 10%."""
    return f"{share:.0%}" if share >= 0.1 else f"{share:.1%}"


def knob_texts(knobs: Mapping[str, Any]) -> list[str]:
    """The knobs of a trial, numbers to four digits."""
    return [
        f"{name} = {value:.4g}" if isinstance(value, float) else f"{name} = {value}"
        for name, value in knobs.items()
    ]


def pareto_figure(view: ParetoView) -> go.Figure:
    """Draw the view: metric on the selection split against the ratio of cost."""
    metric_name = view.metric_name
    grey = {"color": GREY, "size": 8, "symbol": "square", "opacity": 0.45}
    figure = go.Figure()
    _add(figure, view, view.dominated, "dominated", marker=grey)
    cross = {"color": ORANGE, "size": 9, "symbol": "x"}
    _add(figure, view, view.outside, "outside its budget", marker=cross)
    _add(
        figure,
        view,
        view.front,
        "front",
        mode="lines+markers",
        legendrank=1,
        line={"shape": "hv", "color": BLUE, "width": 2},
        marker={"color": BLUE, "size": 10, "symbol": "circle"},
    )
    _add_unpruned(figure, view)
    figure.update_layout(
        **LAYOUT,
        height=480,
        margin={"l": 60, "r": 20, "t": 30, "b": 60},
        legend={"orientation": "h", "xref": "container", "x": 0, "yref": "container", "y": 0},
        xaxis={
            **AXIS,
            "title": {
                "text": f"{view.unpruned.cost_name}, unpruned{_student(view)} = 100% "
                f"({plain(view.unpruned.unit)})",
                "standoff": 8,
            },
            "tickformat": ".0%",
            "rangemode": "tozero",
        },
        yaxis={**AXIS, "title": {"text": f"{plain(metric_name)}, selection split"}},
    )
    return figure


def _add_unpruned(figure: go.Figure, view: ParetoView) -> None:
    """The unpruned model's level, its star at 100%, and the held-out metrics.

    A teacher beyond 100% has its level alone: far to the right, it would crowd the front together.
    """
    unpruned, metric_name = view.unpruned, view.metric_name
    star = [
        f"{unpruned.label} model",
        f"{metric_name} {unpruned.metric:.4f}, held out {unpruned.heldout_metric:.4f}",
        _sizes(unpruned),
    ]
    heldout = [
        (point.result.ratio, point.result.heldout_metric, _hover(point, metric_name))
        for point in view.front
    ]
    level = f"{unpruned.label}: {unpruned.metric:.3f}"
    if unpruned.ratio <= 1:
        figure.add_scatter(
            x=[unpruned.ratio],
            y=[unpruned.metric],
            mode="markers",
            name=star[0],
            legendrank=2,
            marker={"color": VERMILLION, "size": 15, "symbol": "star"},
            hovertext=[_lines(star)],
            hoverinfo="text",
        )
        heldout.append((unpruned.ratio, unpruned.heldout_metric, _lines(star)))
    else:
        times = f"{unpruned.ratio:.1f} x the {unpruned.cost_name}"
        level += f" (held out {unpruned.heldout_metric:.3f}), {times}"
    if heldout:
        x, y, texts = zip(*heldout, strict=True)
        figure.add_scatter(
            x=x,
            y=y,
            mode="markers",
            name="held out",
            legendrank=3,
            marker={"color": GREEN, "size": 9, "symbol": "diamond-open", "line": {"width": 2}},
            hovertext=texts,
            hoverinfo="text",
        )
    figure.add_hline(
        y=unpruned.metric,
        line={"color": VERMILLION, "width": 1.5, "dash": "dash"},
        annotation={"text": level, "font": {"size": 12}},
        annotation_position="top left",
    )


def _add(
    figure: go.Figure,
    view: ParetoView,
    points: Sequence[Point],
    name: str,
    mode: str = "markers",
    **style: Any,
) -> None:
    if points:
        figure.add_scatter(
            x=[point.result.ratio for point in points],
            y=[point.result.metric for point in points],
            mode=mode,
            name=name,
            hovertext=[_hover(point, view.metric_name) for point in points],
            hoverinfo="text",
            **style,
        )


def _hover(point: Point, metric_name: str) -> str:
    result = point.result
    return _lines(
        [
            f"trial {point.trial}",
            f"{metric_name} {result.metric:.4f}, held out {result.heldout_metric:.4f}",
            f"{result.cost_name} ratio {result.ratio:.4f}, "
            f"target {result.target_ratio:.4f} ± {100 * result.tolerance:g}%",
            _sizes(result),
            *knob_texts(point.knobs),
        ]
    )


def _sizes(model: Measured) -> str:
    return ", ".join(f"{size_text(size)} {unit}" for unit, size in model.sizes.items())


def _lines(lines: Sequence[str]) -> str:
    return "<br>".join(plain(line) for line in lines)


def _student(view: ParetoView) -> str:
    """Which unpruned model is 100%, where it is not the teacher."""
    return " student" if view.unpruned.label == "teacher" else ""


def _cost(view: ParetoView) -> str:
    name = view.unpruned.cost_name
    return f"unpruned student's {name}" if _student(view) else name


def _kept(view: ParetoView, result: TrialResult) -> str:
    unpruned, name = view.unpruned, view.metric_name
    whose = "the teacher's" if _student(view) else "its"
    if unpruned.metric > 0 and unpruned.heldout_metric > 0:
        share = result.metric / unpruned.metric
        heldout = result.heldout_metric / unpruned.heldout_metric
        return f"keeps {share:.1%} of {whose} {name} (held out: {heldout:.1%})"
    other = "the teacher" if _student(view) else "the unpruned one"
    # Matthews correlation may be zero or less: a share of it would say nothing.
    return (
        f"has {name} {result.metric:.3f} where {other} has {unpruned.metric:.3f} "
        f"(held out: {result.heldout_metric:.3f} and {unpruned.heldout_metric:.3f})"
    )
