"""The knobs against what came out: slices, and parallel coordinates."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import plotly.graph_objects as go
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution
from plotly.subplots import make_subplots

from orchestrator.runs.records import TrialRecord
from reports.figures.theme import (
    AXIS,
    DIVERGENCE_AXIS,
    GREY,
    LAYOUT,
    LEGEND,
    Panel,
    brief,
    knob_axis,
    plain,
    run_line,
    run_style,
)
from reports.overlay import Overlay

_DRAWN = 200
"""Trials off the front that parallel coordinates draw; more would be a carpet."""


def knob_panels(overlay: Overlay) -> list[Panel]:
    """Slices and parallel coordinates, if the runs tune anything."""
    spaces = joined_space(overlay)
    return [_slices(overlay, spaces), _parallel(overlay, spaces)] if spaces else []


def joined_space(overlay: Overlay) -> dict[str, BaseDistribution]:
    """The knobs of all runs, each with what holds its values in all of them."""
    named: dict[str, list[BaseDistribution]] = {}
    for run in overlay.runs:
        for name, distribution in run.space.items():
            named.setdefault(name, []).append(distribution)
    joined = {name: _joined(distributions) for name, distributions in named.items()}
    return {name: distribution for name, distribution in joined.items() if distribution}


def _joined(distributions: Sequence[BaseDistribution]) -> BaseDistribution | None:
    """What holds the values of all, on a logarithmic scale if all have one; None if some are
    numbers and some are not."""
    first = distributions[0]
    if all(distribution == first for distribution in distributions):
        return first
    choices = [d.choices for d in distributions if isinstance(d, CategoricalDistribution)]
    if len(choices) == len(distributions):
        return CategoricalDistribution(list(dict.fromkeys(chain(*choices))))
    if choices:
        return None
    numbers: list[Any] = list(distributions)
    return FloatDistribution(
        min(d.low for d in numbers),
        max(d.high for d in numbers),
        log=all(d.log for d in numbers),
    )


def _slices(overlay: Overlay, spaces: Mapping[str, BaseDistribution]) -> Panel:
    figure = make_subplots(
        rows=2,
        cols=len(spaces),
        shared_xaxes=True,
        shared_yaxes=True,
        horizontal_spacing=0.03,
        vertical_spacing=0.06,
    )
    for column, (knob, distribution) in enumerate(spaces.items(), start=1):
        for place, run in enumerate(overlay.runs):
            known = [trial for trial in run.finished if knob in trial.knobs]
            heights = [overlay.height(run, trial.result.value()) for trial in known]
            ratios = [trial.result.ratio for trial in known]
            for row, values in enumerate((heights, ratios), start=1):
                figure.add_scatter(
                    x=brief(trial.knobs[knob] for trial in known),
                    y=brief(values),
                    mode="markers",
                    name=plain(overlay.names[place]),
                    showlegend=overlay.several and column == row == 1,
                    marker={
                        **run_style(place),
                        "size": 6,
                        "opacity": [1 if trial.feasible else 0.35 for trial in known],
                    },
                    customdata=[[place, trial.number] for trial in known],
                    hovertemplate=f"trial %{{customdata[1]}}<br>{plain(knob)} %{{x}}"
                    "<br>%{y}<extra></extra>",
                    row=row,
                    col=column,
                )
        figure.update_xaxes(**AXIS, **knob_axis(distribution), row=1, col=column)
        figure.update_xaxes(
            **AXIS,
            **knob_axis(distribution),
            title={"text": plain(knob), "standoff": 8},
            row=2,
            col=column,
        )
    figure.update_yaxes(**AXIS)
    figure.update_yaxes(title={"text": plain(overlay.objective_name)}, row=1, col=1)
    if overlay.by_divergence:
        figure.update_yaxes(DIVERGENCE_AXIS, row=1)
    figure.update_yaxes(
        title={"text": f"{overlay.cost_name} ratio"}, tickformat=".0%", row=2, col=1
    )
    figure.update_layout(**LAYOUT, height=460, margin={"l": 60, "r": 20, "t": 20, "b": 60})
    return Panel(
        name="slices",
        title="Each knob against each objective",
        figure=figure,
        caption="Every finished trial; faint ones lie outside their budget.",
    )


def _parallel(overlay: Overlay, spaces: Mapping[str, BaseDistribution]) -> Panel:
    figure = go.Figure()
    axes = [*map(plain, spaces), f"{overlay.cost_name} ratio", plain(overlay.objective_name)]
    rows: list[tuple[int, TrialRecord, list[Any], bool]] = []
    for place, run in enumerate(overlay.runs):
        front = {trial.number for trial in run.front}
        for trial in run.finished:
            if set(spaces) <= set(trial.knobs):
                values = [trial.knobs[name] for name in spaces]
                ends = [trial.result.ratio, overlay.height(run, trial.result.value())]
                rows.append((place, trial, values + ends, trial.number in front))
    scales = [
        _Scale([row[2][axis] for row in rows], distribution)
        for axis, distribution in enumerate([*spaces.values(), None, None])
    ]
    others = [row for row in rows if not row[3]]
    others = others[:: max(1, math.ceil(len(others) / _DRAWN))]
    figure.add_scatter(
        **_polyline(axes, others, scales),
        name="off the front",
        line={"color": GREY, "width": 1},
        opacity=0.35,
    )
    for place in range(len(overlay.runs)):
        figure.add_scatter(
            **_polyline(axes, [row for row in rows if row[3] and row[0] == place], scales),
            name=plain(f"{overlay.prefix(place)}front"),
            line=run_line(place),
        )
    for name, scale in zip(axes, scales, strict=True):
        for y, text in ((0, scale.low), (1, scale.high)):
            figure.add_annotation(
                x=name, y=y, text=plain(text), showarrow=False, yshift=12 * (2 * y - 1),
                font={"size": 11},
            )  # fmt: skip
    figure.update_layout(
        **LAYOUT,
        height=380,
        margin={"l": 40, "r": 40, "t": 20, "b": 70},
        legend=LEGEND,
        xaxis={**AXIS, "type": "category"},
        yaxis={"visible": False, "range": [-0.1, 1.1]},
    )
    return Panel(
        name="parallel",
        title="Trials as lines through their knobs",
        figure=figure,
        caption=f"Models of the front, and up to {_DRAWN} other trials, from knob to knob to their "
        "cost and objective. Each axis runs from the lowest value tried to the highest, on a "
        "logarithmic scale where the knob was drawn from one.",
    )


class _Scale:
    """Values of one axis as heights from 0 to 1."""

    def __init__(self, values: Sequence[Any], distribution: BaseDistribution | None):
        self.log = getattr(distribution, "log", False)
        self.choices: list[Any] = []
        if isinstance(distribution, CategoricalDistribution):
            self.choices = list(distribution.choices)
            values = range(len(self.choices))
        self.least, self.most = (end(values, default=0) for end in (min, max))
        ends = (self.choices[0], self.choices[-1]) if self.choices else (self.least, self.most)
        self.low, self.high = (f"{v:.3g}" if isinstance(v, float) else str(v) for v in ends)

    def __call__(self, value: Any) -> float:
        number = float(self.choices.index(value) if self.choices else value)
        ends = (self.least, number, self.most)
        low, at, high = map(math.log, ends) if self.log else ends
        return (at - low) / (high - low) if high > low else 0.5


def _polyline(
    axes: Sequence[str], rows: Sequence[tuple[int, TrialRecord, list[Any], bool]], scales: Any
) -> dict[str, Any]:
    """All rows as one trace: a gap between two of them."""
    x: list[str | None] = []
    y: list[float | None] = []
    keys: list[list[int] | None] = []
    texts: list[str | None] = []
    for place, trial, values, _ in rows:
        x += [*axes, None]
        y += [*brief(scale(one) for scale, one in zip(scales, values, strict=True)), None]
        keys += [[place, trial.number]] * len(axes) + [None]
        texts += [
            f"trial {trial.number}: {plain(f'{v:.4g}' if isinstance(v, float) else v)}"
            for v in values
        ] + [None]
    return {
        "x": x,
        "y": y,
        "customdata": keys,
        "hovertext": texts,
        "hoverinfo": "text",
        "mode": "lines+markers",
        "marker": {"size": 4},
    }
