"""Figure of the front: objective against cost, every finished trial by its state."""

import math
from collections.abc import Mapping, Sequence
from itertools import cycle, starmap
from typing import Any

import plotly.graph_objects as go

from objectives.workbench.words import NAME
from orchestrator.runs import results
from orchestrator.runs.records import FinishedTrial, RunRecord
from orchestrator.runs.results import Measured, TrialResult, UnprunedResult
from reports.figures import theme
from reports.overlay import Overlay
from reports.pareto import ParetoView
from reports.recommended import recommendations
from reports.speed import Speed

_SYMBOLS = {32: "circle", 8: "triangle-up", 4: "bowtie", 2: "hourglass", 1: "asterisk-open"}
"""Symbols of the front's models, by the bits of their weights."""
_SERVED = (
    (theme.PURPLE, "hexagon", "star-open"),
    (theme.ORANGE, "pentagon", "star-diamond-open"),
    (theme.SKY, "cross", "hexagram-open"),
)
"""Colour of each engine with other bits, in turn, and its marks of front and unpruned model."""
_Points = Mapping[int | None, Measured]  # by the numbers of trials; None is the unpruned model
_Levels = dict[int, tuple[float, str, str]]  # metric, text and its position, by a run's index


def front_figure(overlay: Overlay) -> go.Figure:
    """Draw the objective on the selection split against the ratio of cost. A point carries its
    run's and trial's indices, by which the page opens a card and takes the size in another unit."""
    figure = go.Figure()
    for index, run in enumerate(overlay.runs):
        _Drawing(figure, overlay, index, run).draw()
    _add_levels(figure, overlay)
    units = {run.unpruned.unit for run in overlay.runs}
    unit = f" ({units.pop()})" if len(units) == 1 and len(overlay.units) > 1 else ""
    student = " student" if all(run.unpruned.student_is_new for run in overlay.runs) else ""
    # By itself an axis would make room for the words.
    drawn = [x for trace in figure.data for x in trace.x if x is not None]
    costs = {"tickformat": ".0%", "range": [0, 1.05 * max(drawn, default=1.0)]}
    if overlay.wide:
        ends = [math.log10(min(drawn)) - 0.05, math.log10(max(1, *drawn)) + 0.05]
        ticks = theme.log_ticks(min(drawn), 1)
        costs = {"type": "log", "tickvals": ticks, "tickformat": "~%", "range": ends}
    heights: dict[str, Any] = {}
    if overlay.by_divergence:
        heights = {**theme.DIVERGENCE_AXIS}
        if near := [y for trace in figure.data for y in trace.y if y]:  # room for a tick
            ends = [min(near) / 2, 2 * max(near)]
            heights |= {"range": [*map(math.log10, ends)], "tickvals": theme.log_ticks(*ends)}
    height = f"{overlay.objective_name}, selection split"
    if overlay.relative:
        heights, height = {"tickformat": ".0%"}, "share of the unpruned model's"
    cost = f"{overlay.cost_name}, unpruned{student} = 100%{unit}"
    x_axis, y_axis = theme.x_axis(cost, rangemode="tozero", **costs), theme.axis(height, **heights)
    tall = 480 + 40 * (len(overlay.runs) - 1)
    theme.lay_out(figure, height=tall, top=30, xaxis=x_axis, yaxis=y_axis)
    return figure


def add_served(figure: go.Figure, overlay: Overlay, speeds: Sequence[Sequence[Speed]]) -> None:
    """Add the models that were scored with other bits than the run's own, for an axis of
    milliseconds. A point carries the indices of run and trial (None: unpruned), and its engine."""
    if overlay.by_divergence:
        return  # they were scored by the metric
    for index, (run, of_run) in enumerate(zip(overlay.runs, speeds, strict=True)):
        drawing = _Drawing(figure, overlay, index, run)
        engines = {speed.engine: speed for speed in of_run if speed.bits != run.bits}
        for speed, looks in zip(engines.values(), cycle(_SERVED), strict=False):
            drawing.add_served(speed, *looks)


class _Drawing:
    """Draws one run into the figure."""

    def __init__(self, figure: go.Figure, overlay: Overlay, index: int, run: RunRecord):
        self.figure, self.overlay, self.index, self.run = figure, overlay, index, run
        self.prefix = overlay.prefix(index)

    def draw(self) -> None:
        view, several = self.overlay.views[self.index], self.overlay.several
        style, line = theme.run_style(self.index), theme.run_line(self.index)
        faint = {"size": 8, "symbol": "square", "color": theme.GREY, "opacity": 0.45}
        if several:
            faint |= {**style, "opacity": 0.3}
        missed = {"color": self._colour(theme.ORANGE), "size": 9, "symbol": "x"}
        # There may be a thousand off the front: their hovers are made where they are looked at.
        trial, objective = f"{theme.plain(self.prefix)}trial", theme.plain(self.run.objective_name)
        hover = f"{trial} %{{customdata[1]}}<br>{objective} %{{y}}<br>%{{x}}<extra></extra>"
        groups = (view.dominated, view.near, view.outside, view.front)
        dominated, near, outside, front = map(_points, groups)
        self._add(dominated, "dominated", marker=faint, hovertemplate=hover)
        close = {**faint, "symbol": "square-open", "opacity": 0.9, "line": {"width": 1.5}}
        self._add(near, "not told apart", marker=close, hovertemplate=hover)
        self._add(outside, "outside its budget or aims", marker=missed, hovertemplate=hover)
        symbols = [_SYMBOLS[result.weight_bits] for result in front.values()]
        steps = {"shape": "hv", **(line if several else {"color": theme.BLUE, "width": 2})}
        marks = {"size": 10, **(style if several else {"color": theme.BLUE, "symbol": symbols})}
        self._add(front, "front", mode="lines+markers", legendrank=1, line=steps, marker=marks)
        if not several:
            self._explain_bits({result.weight_bits for result in front.values()})
        unpruned = self.run.unpruned
        # A teacher far to the right would crowd the front together; a divergence of 0 is nowhere.
        drawn = unpruned.ratio <= 1 and not self.overlay.by_divergence
        starred: _Points = {None: unpruned} if drawn else {}
        star = {"color": self._colour(theme.VERMILLION), "size": 15, "symbol": "star"}
        label, shown = f"{unpruned.label} model", "legendonly" if several else None
        self._add(starred, label, legendrank=2, showlegend=not several, marker=star)
        models, green = {**front, **starred}, self._colour(theme.GREEN)
        hollow = {"color": green, "size": 9, "symbol": "diamond-open", "line": {"width": 2}}
        self._add(models, "held out", heldout=True, legendrank=3, visible=shown, marker=hollow)
        if not several:
            self._name_recommended(view)

    def add_served(self, speed: Speed, colour: str, mark: str, star: str) -> None:
        groups: tuple[tuple[list[int | None], str, str, int], ...] = (
            ([trial.number for trial in self.run.front], "front", mark, 10),
            ([None], "unpruned model", star, 15),
        )
        metric = self.run.task_metric
        for numbers, name, symbol, size in groups:
            bounds, keys, hovers = [], [], []
            for number in numbers:
                model = speed.timed(number, self.run.unpruned)
                if model is None or model.worth is None:
                    continue
                worth, (low, high) = model.worth, model.worth.interval
                title = name if number is None else f"trial {number}"
                scores = f"{metric} {worth.metric:.4f}, held out {worth.heldout_metric:.4f}"
                texts = [f"{self.prefix}{title} in {speed.engine}", scores]
                hovers.append(theme.lines([*texts, f"{model.megabytes:.1f} MB"]))
                bounds.append([self._height(value) for value in (low, worth.metric, high)])
                keys.append([self.index, number, speed.engine])
            if keys:
                self.figure.add_scatter(
                    x=[None] * len(keys),
                    y=[height for _, height, _ in bounds],
                    mode="markers",
                    name=theme.plain(f"{self.prefix}{name}, {speed.engine}"),
                    visible=False,
                    marker={"symbol": symbol, "size": size, "color": self._colour(colour)},
                    error_y=theme.interval_bars(bounds),
                    customdata=keys,
                    hovertext=hovers,
                    hoverinfo="text",
                )

    def _explain_bits(self, bits: set[int]) -> None:
        """Explain the front's marks in the legend, if a model has fewer bits."""
        for number in sorted(bits, reverse=True) if bits != {32} else ():
            name = "float32 weights" if number == 32 else f"{number}-bit weights"
            marker = {"size": 10, "color": theme.BLUE, "symbol": _SYMBOLS[number]}
            self.figure.add_scatter(x=[None], y=[None], mode="markers", name=name, marker=marker)

    def _name_recommended(self, view: ParetoView) -> None:
        rows = recommendations(view)
        costs = [trial.result.ratio for trial in view.front] + [min(1, self.run.unpruned.ratio)]
        middle = math.sqrt(min(costs) * max(costs)) if self.overlay.wide else max(costs) / 2
        for index, row in enumerate(rows):
            result = row.trial.result
            right = result.ratio > middle
            height = self._height(result.value())
            if self.overlay.by_divergence:  # words stand on a logarithmic axis by the power of ten
                if height == 0:
                    continue
                height = math.log10(height)
            self.figure.add_annotation(
                x=math.log10(result.ratio) if self.overlay.wide else result.ratio,
                y=height,
                text=theme.plain(row.reasons[0]),
                showarrow=True,
                arrowhead=0,
                arrowwidth=1,
                ax=-24 if right else 24,  # towards the middle, where there is room
                xanchor="right" if right else "left",
                ay=44 + 22 * index,  # below one another where their points are near
                font={"size": 12},
            )

    def _colour(self, alone: str) -> str:
        return str(theme.run_style(self.index)["color"]) if self.overlay.several else alone

    def _height(self, value: float, heldout: bool = False) -> float:
        return self.overlay.height(self.run, value, heldout=heldout)

    def _add(self, points: _Points, name: str, heldout: bool = False, **style: Any) -> None:
        if points:
            if "hovertemplate" not in style:
                style |= self._details(points, heldout)
            self.figure.add_scatter(
                x=[model.ratio for model in points.values()],
                y=[self._height(model.value(heldout), heldout) for model in points.values()],
                name=theme.plain(self.prefix + name),
                customdata=[[self.index, number] for number in points],
                **{"mode": "markers", **style},
            )

    def _details(self, points: _Points, heldout: bool = False) -> dict[str, Any]:
        hovers = {"hovertext": list(starmap(self._hover, points.items())), "hoverinfo": "text"}
        if self.overlay.by_divergence:
            return hovers
        bounds = []
        for model in points.values():
            low, high = model.heldout_interval if heldout else model.interval
            ends = (low, model.value(heldout), high)
            bounds.append([self._height(value, heldout) for value in ends])
        return {**hovers, "error_y": theme.interval_bars(bounds)}

    def _hover(self, number: int | None, model: Measured) -> str:
        name, budget = f"{self.run.unpruned.label} model", []
        if isinstance(model, TrialResult):
            name = f"trial {number}"
            budget = [
                f"{model.budget_name} ratio {results.ratio_text(model.reached, 4)}, "
                f"target {results.ratio_text(model.target_ratio, 4)} ± {100 * model.tolerance:g}%"
            ]
        low, high = model.interval
        sure = f" ({low:.3f} to {high:.3f})" if self.overlay.by_divergence else ""  # else drawn
        worth = f"{results.divergence_words(model)}{self.run.metric_name} {model.metric:.4f}{sure}"
        heldout = f"held out {model.heldout_metric:.4f}"
        sizes = ", ".join(f"{results.size_text(size)} {unit}" for unit, size in model.sizes.items())
        return theme.lines([self.prefix + name, f"{worth}, {heldout}", *budget, sizes])


def _points(trials: Sequence[FinishedTrial]) -> _Points:
    return {trial.number: trial.result for trial in trials}


def _add_levels(figure: go.Figure, overlay: Overlay) -> None:
    """Draw a dashed line at the metric of each unpruned model, a dotted one at that of tf-idf."""
    if overlay.by_divergence:
        return
    unpruned: _Levels = {}
    words: _Levels = {}
    for index, run in enumerate(overlay.runs):
        level, score = run.unpruned.metric, run.words
        unpruned[index] = (level, _unpruned_text(overlay, run.unpruned), "top left")
        if score is not None:
            text = f"{NAME}: {score.metric:.3f} (held out {score.heldout_metric:.3f})"
            # Clear of the words on the other line, and of the front if it lies below that.
            where = "bottom left" if score.metric <= level else "top right"
            words[index] = (score.metric, text, where)
    _add_lines(figure, overlay, unpruned, "dash", theme.VERMILLION)
    _add_lines(figure, overlay, words, "dot", theme.PURPLE)


def _unpruned_text(overlay: Overlay, unpruned: UnprunedResult) -> str:
    if overlay.relative:
        return unpruned.label
    text = f"{unpruned.label}: {unpruned.metric:.3f}"
    if unpruned.ratio > 1:
        times = f"{unpruned.ratio:.1f} x the {unpruned.cost_name}"
        text += f" (held out {unpruned.heldout_metric:.3f}), {times}"
    return text


def _add_lines(
    figure: go.Figure, overlay: Overlay, levels: _Levels, dash: str, colour: str
) -> None:
    """Draw a line for each level; runs of equal level share it."""
    first: dict[float, int] = {}
    for index, (metric, _, _) in levels.items():
        first.setdefault(overlay.height(overlay.runs[index], metric), index)
    for height, index in first.items():
        _, text, where = levels[index]
        if len(first) > 1:
            text, colour = f"{overlay.names[index]}: {text}", theme.run_style(index)["color"]
        line = {"color": colour, "width": 1.5, "dash": dash}
        note = {"text": theme.plain(text), "font": {"size": 12}}
        figure.add_hline(y=height, line=line, annotation=note, annotation_position=where)
