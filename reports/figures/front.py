"""The figure of the front: objective against cost, every finished trial by what it is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go

from orchestrator.runs.records import FinishedTrial, RunRecord
from orchestrator.runs.results import Measured, UnprunedResult, divergence_words, size_text
from reports.figures.theme import (
    AXIS,
    BLUE,
    COST_AXIS,
    DIVERGENCE_AXIS,
    GREEN,
    GREY,
    LAYOUT,
    LEGEND,
    ORANGE,
    VERMILLION,
    lines,
    plain,
    run_line,
    run_style,
)
from reports.overlay import Overlay
from reports.pareto import ParetoView, pareto_view
from reports.recommended import recommendations

_SYMBOLS = {32: "circle", 8: "triangle-up", 4: "bowtie", 2: "hourglass", 1: "asterisk-open"}
"""Of a model of the front, by the bits of its weights."""


def front_figure(overlay: Overlay) -> go.Figure:
    """Draw the objective on the selection split against the ratio of cost.

    A point carries the places of its run and its trial, from which the page opens its card and
    takes its size in another unit.
    """
    figure = go.Figure()
    for place, run in enumerate(overlay.runs):
        _Drawing(figure, overlay, place, run).draw()
    _add_levels(figure, overlay)
    units = {run.unpruned.unit for run in overlay.runs}
    unit = f" ({plain(units.pop())})" if len(units) == 1 and len(overlay.units) > 1 else ""
    student = " student" * all(run.unpruned.student_is_new for run in overlay.runs)
    figure.update_layout(
        **LAYOUT,
        height=480 + 40 * (len(overlay.runs) - 1),
        margin={"l": 60, "r": 20, "t": 30, "b": 60},
        legend=LEGEND,
        xaxis={
            **AXIS,
            "title": {
                "text": f"{overlay.cost_name}, unpruned{student} = 100%{unit}",
                "standoff": 8,
            },
            **COST_AXIS[overlay.wide],
            "rangemode": "tozero",
            "range": _range(figure, overlay.wide),  # by itself it would make room for the words
        },
        yaxis={
            **AXIS,
            "title": {"text": f"{plain(overlay.objective_name)}, selection split"},
            **({"tickformat": ".0%"} if overlay.relative else {}),
            **(DIVERGENCE_AXIS if overlay.by_divergence else {}),
        },
    )
    return figure


class _Drawing:
    """One run on its way into the figure."""

    def __init__(self, figure: go.Figure, overlay: Overlay, place: int, run: RunRecord):
        self.figure, self.overlay, self.place, self.run = figure, overlay, place, run
        self.view: ParetoView = pareto_view(run)
        self.prefix = overlay.prefix(place)

    def draw(self) -> None:
        several, style, line = self.overlay.several, run_style(self.place), run_line(self.place)
        faint = {"size": 8, "symbol": "square", "color": GREY, "opacity": 0.45}
        self._add_plainly(
            self.view.dominated,
            "dominated",
            marker={**faint, **(style if several else {}), "opacity": 0.3 if several else 0.45},
        )
        missed = {"color": style["color"] if several else ORANGE, "size": 9, "symbol": "x"}
        self._add_plainly(self.view.outside, "outside its budget", marker=missed)
        symbols = [_SYMBOLS[trial.result.weight_bits] for trial in self.view.front]
        self._add(
            self.view.front,
            "front",
            hovertext=[self._hover(trial) for trial in self.view.front],
            hoverinfo="text",
            mode="lines+markers",
            legendrank=1,
            line={"shape": "hv", **(line if several else {"color": BLUE, "width": 2})},
            marker={"size": 10, **(style if several else {"color": BLUE, "symbol": symbols})},
            error_y=self._error([trial.result for trial in self.view.front]),
        )
        if not several:
            self._explain_bits()
        self._add_star()
        self._add_heldout()
        if not several:
            self._name_recommended()

    def _explain_bits(self) -> None:
        """What the marks of the front mean, in the legend, where some model has few bits."""
        bits = {trial.result.weight_bits for trial in self.view.front}
        for number in sorted(bits, reverse=True) if bits != {32} else ():
            self.figure.add_scatter(
                x=[None],
                y=[None],
                mode="markers",
                name="float32 weights" if number == 32 else f"{number}-bit weights",
                marker={"size": 10, "color": BLUE, "symbol": _SYMBOLS[number]},
            )

    def _name_recommended(self) -> None:
        """Write beside the models to look at first what they are."""
        for place, row in enumerate(recommendations(self.view)):
            result = row.trial.result
            height = self.overlay.height(self.run, result.value())
            if self.overlay.by_divergence:  # words stand on a logarithmic axis by the power of ten
                if height == 0:
                    continue
                height = math.log10(height)
            self.figure.add_annotation(
                x=math.log10(result.ratio) if self.overlay.wide else result.ratio,
                y=height,
                text=plain(", ".join(row.reasons)),
                showarrow=True,
                arrowhead=0,
                arrowwidth=1,
                ax=24,
                ay=44 + 22 * place,  # below one another where their points are near
                font={"size": 12},
            )

    @property
    def _starred(self) -> list[UnprunedResult]:
        """The unpruned model; none if it is a teacher beyond 100%, which far to the right would
        crowd the front together, and none on an axis of divergences, whose 0 is nowhere."""
        drawn = self.run.unpruned.ratio <= 1 and not self.overlay.by_divergence
        return [self.run.unpruned] if drawn else []

    def _add_star(self) -> None:
        """The unpruned model at 100%."""
        for unpruned in self._starred:
            self.figure.add_scatter(
                x=[unpruned.ratio],
                y=[self.overlay.height(self.run, unpruned.metric)],
                mode="markers",
                name=plain(f"{self.prefix}{unpruned.label} model"),
                legendrank=2,
                showlegend=not self.overlay.several,
                marker={
                    "color": self._colour(VERMILLION),
                    "size": 15,
                    "symbol": "star",
                },
                error_y=self._error([unpruned]),
                customdata=[[self.place, None]],
                hovertext=[self._hover_star(unpruned)],
                hoverinfo="text",
            )

    def _add_heldout(self) -> None:
        """What the models of the front, and the unpruned one, are worth held out."""
        front, starred = self.view.front, self._starred
        models: list[Measured] = [*(trial.result for trial in front), *starred]
        if models:
            self.figure.add_scatter(
                x=[model.ratio for model in models],
                y=[self.overlay.height(self.run, model.value(heldout=True)) for model in models],
                mode="markers",
                name=plain(f"{self.prefix}held out"),
                legendrank=3,
                visible="legendonly" if self.overlay.several else None,
                marker={
                    "color": self._colour(GREEN),
                    "size": 9,
                    "symbol": "diamond-open",
                    "line": {"width": 2},
                },
                error_y=self._error(models, heldout=True),
                customdata=[
                    *([self.place, trial.number] for trial in front),
                    *([self.place, None] for _ in starred),
                ],
                hovertext=[*map(self._hover, front), *map(self._hover_star, starred)],
                hoverinfo="text",
            )

    def _colour(self, alone: str) -> str:
        """That of the run among several; else the one given."""
        return str(run_style(self.place)["color"]) if self.overlay.several else alone

    def _add(
        self, trials: Sequence[FinishedTrial], name: str, mode: str = "markers", **style: Any
    ) -> None:
        if trials:
            self.figure.add_scatter(
                x=[trial.result.ratio for trial in trials],
                y=[self.overlay.height(self.run, trial.result.value()) for trial in trials],
                mode=mode,
                name=plain(self.prefix + name),
                customdata=[[self.place, trial.number] for trial in trials],
                **style,
            )

    def _add_plainly(self, trials: Sequence[FinishedTrial], name: str, **style: Any) -> None:
        """Trials off the front: there may be a thousand, each hover made where it is looked at."""
        trial = f"{plain(self.prefix)}trial %{{customdata[1]}}"
        template = f"{trial}<br>{plain(self.run.objective_name)} %{{y}}<br>%{{x}}<extra></extra>"
        self._add(trials, name, hovertemplate=template, **style)

    def _error(self, models: Sequence[Measured], heldout: bool = False) -> dict[str, Any] | None:
        """Thin lines over the bootstrap intervals of the models' metrics."""
        if self.overlay.by_divergence:
            return None
        above, below = [], []
        for model in models:
            value = model.heldout_metric if heldout else model.metric
            low, high = model.heldout_interval if heldout else model.interval
            low, value, high = (self.overlay.height(self.run, one) for one in (low, value, high))
            above.append(max(0.0, high - value))
            below.append(max(0.0, value - low))
        return {
            "type": "data",
            "symmetric": False,
            "array": above,
            "arrayminus": below,
            "thickness": 1,
            "width": 0,
        }

    def _hover_star(self, unpruned: UnprunedResult) -> str:
        name = f"{self.prefix}{unpruned.label} model"
        return lines([name, self._worth(unpruned), _sizes(unpruned)])

    def _hover(self, trial: FinishedTrial) -> str:
        result = trial.result
        return lines(
            [
                f"{self.prefix}trial {trial.number}",
                self._worth(result),
                f"{result.budget_name} ratio {result.reached:.4f}, "
                f"target {result.target_ratio:.4f} ± {100 * result.tolerance:g}%",
                _sizes(result),
            ]
        )

    def _worth(self, model: Measured) -> str:
        name, (low, high) = f"{divergence_words(model)}{self.run.metric_name}", model.interval
        sure = f" ({low:.3f} to {high:.3f})" if self.overlay.by_divergence else ""  # else drawn
        return f"{name} {model.metric:.4f}{sure}, held out {model.heldout_metric:.4f}"


def _add_levels(figure: go.Figure, overlay: Overlay) -> None:
    """A dashed line at the metric of each unpruned model; runs with the same one share it."""
    if overlay.by_divergence:
        return
    levels: dict[float, list[int]] = {}
    for place, run in enumerate(overlay.runs):
        levels.setdefault(overlay.height(run, run.unpruned.metric), []).append(place)
    for level, places in levels.items():
        unpruned = overlay.runs[places[0]].unpruned
        text = f"{unpruned.label}: {unpruned.metric:.3f}"
        if unpruned.ratio > 1:
            times = f"{unpruned.ratio:.1f} x the {unpruned.cost_name}"
            text += f" (held out {unpruned.heldout_metric:.3f}), {times}"
        if overlay.relative:
            text = unpruned.label
        elif len(levels) > 1:
            text = f"{overlay.names[places[0]]}: {text}"
        alone = overlay.several and len(levels) > 1
        figure.add_hline(
            y=level,
            line={
                "color": run_style(places[0])["color"] if alone else VERMILLION,
                "width": 1.5,
                "dash": "dash",
            },
            annotation={"text": plain(text), "font": {"size": 12}},
            annotation_position="top left",
        )


def _range(figure: go.Figure, wide: bool) -> list[float]:
    """From 0 to the rightmost point, 1 in an empty figure; of a logarithmic axis from the leftmost,
    in powers of ten."""
    points = [x for trace in figure.data for x in trace.x if x is not None]
    if wide:
        return [math.log10(min(points)) - 0.05, math.log10(max(points)) + 0.05]
    return [0, 1.05 * max(points, default=1.0)]


def _sizes(model: Measured) -> str:
    return ", ".join(f"{size_text(size)} {unit}" for unit, size in model.sizes.items())
