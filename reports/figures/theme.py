"""Shared style of the figures: colour-blind-safe colours, layout for light and dark, panels."""

import html
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go
from optuna.distributions import BaseDistribution, CategoricalDistribution

from orchestrator.runs.records import TrialRecord

# Okabe and Ito, "Color Universal Design" (2008).
BLUE = "#0072B2"
GREEN = "#009E73"
ORANGE = "#E69F00"
VERMILLION = "#D55E00"
PURPLE = "#CC79A7"
SKY = "#56B4E9"
GREY = "#808080"

RUN_COLOURS = (BLUE, VERMILLION, GREEN, PURPLE, ORANGE, SKY)
RUN_SYMBOLS = ("circle", "square", "diamond", "triangle-up", "triangle-down", "pentagon")
"""Symbols of the runs of an overlay, in turn, so that colour is never the only difference. From the
seventh on a colour repeats with another symbol and another dash."""
RUN_DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")

AXIS = {
    "gridcolor": "rgba(128, 128, 128, 0.25)",
    "zeroline": False,
    "automargin": True,
    "ticks": "outside",  # a gap between the numbers and the axis
    "tickcolor": "rgba(0, 0, 0, 0)",
}

DIVERGENCE_AXIS: dict[str, Any] = {
    "type": "log",
    "tickvals": [digit * 10.0**power for power in range(-6, 10) for digit in (1, 2, 5)],
    "tickformat": "~r",
}
"""Axis of divergences, which differ by orders of magnitude."""

LAYOUT: dict[str, Any] = {
    "template": "none",
    "font": {"family": "system-ui, sans-serif", "size": 13, "color": "#222222"},
    "paper_bgcolor": "rgba(0, 0, 0, 0)",
    "plot_bgcolor": "rgba(0, 0, 0, 0)",
    "modebar": {  # by itself a dark box over the figure, as its ground is none
        "bgcolor": "rgba(0, 0, 0, 0)",
        "color": "rgba(128, 128, 128, 0.7)",
        "activecolor": "#808080",
    },
    "hoverlabel": {"bgcolor": "white", "font": {"color": "#222222"}, "align": "left"},
}
LEGEND = {"orientation": "h", "xref": "container", "x": 0, "yref": "container", "y": 0}
"""Legend below the axes, from the left edge."""


@dataclass(frozen=True)
class Panel:
    """Figure of the page, which also shows its data as a table and a CSV file."""

    name: str  # id of its element on the page: letters, digits and "-"
    title: str
    figure: go.Figure
    caption: str


@dataclass(frozen=True)
class Section:
    """Section of the page."""

    name: str
    title: str
    sentences: tuple[str, ...]
    panels: tuple[Panel, ...]
    commands: tuple[str, ...] = ()  # to copy, below the sentences


def lay_out(figure: go.Figure, *, height: int, top: int = 20, **own: Any) -> None:
    """Apply the shared layout, with a margin of `top` for titles, and the figure's `own` one."""
    margin = {"l": 60, "r": 20, "t": top, "b": 60}
    figure.update_layout(**LAYOUT | {"height": height, "margin": margin, "legend": LEGEND} | own)


def axis(title: str, **style: Any) -> dict[str, Any]:
    """An axis with a title."""
    return {**AXIS, "title": {"text": plain(title), "font": {"size": 13}}, **style}


def spacing(columns: int) -> float:
    """Space between this many panels side by side, as a share of the figure's width."""
    return min(0.03, 0.5 / max(1, columns - 1))


def x_axis(title: str, **style: Any) -> dict[str, Any]:
    """A horizontal axis, whose title stands clear of the ticks."""
    return axis(title, **style) | {"title": {"text": plain(title), "standoff": 8}}


def log_ticks(low: float, high: float) -> list[float]:
    """Ticks at 1, 2 and 5 of each power of ten; over more than two powers at 1 alone."""
    digits = (1, 2, 5) if high < 100 * low else (1,)
    ticks = [digit * 10.0**power for power in range(-9, 10) for digit in digits]
    return [tick for tick in ticks if low <= tick <= high]


def in_lines(name: str, columns: int) -> str:
    """Break a name at its dots and underscores, to fit this many panels side by side."""
    widest, texts = max(8, 90 // columns), [""]
    for part in re.split(r"(?<=[._])(?=.)", name):
        if texts[-1] and len(texts[-1] + part) > widest:
            texts.append("")
        texts[-1] += part
    return lines(texts)


def interval_bars(points: Iterable[Iterable[float]]) -> dict[str, Any]:
    """Thin upright lines over the intervals of points: low end, point, high end."""
    ends = [(max(0.0, high - value), max(0.0, value - low)) for low, value, high in points]
    error = {"type": "data", "symmetric": False, "thickness": 1, "width": 0}
    return {**error, "array": [up for up, _ in ends], "arrayminus": [down for _, down in ends]}


def run_style(index: int) -> dict[str, Any]:
    """Marker of the run of this index in an overlay."""
    colour = RUN_COLOURS[index % len(RUN_COLOURS)]
    return {"color": colour, "symbol": RUN_SYMBOLS[_shifted(index)]}


def run_line(index: int) -> dict[str, Any]:
    """Line of the run of this index in an overlay."""
    colour = RUN_COLOURS[index % len(RUN_COLOURS)]
    return {"color": colour, "dash": RUN_DASHES[_shifted(index)], "width": 2}


def _shifted(index: int) -> int:
    return (index + index // len(RUN_COLOURS)) % len(RUN_COLOURS)


def knob_axis(
    knob: str, distribution: BaseDistribution | None, trials: Iterable[TrialRecord]
) -> dict[str, Any]:
    """Axis for the trials' values of a knob of this distribution."""
    if isinstance(distribution, CategoricalDistribution):
        return {"type": "category"}
    if getattr(distribution, "log", False):
        values = [trial.knobs[knob] for trial in trials if knob in trial.knobs]
        low, *_, high = sorted(values * 2 or [1.0, 1.0])
        ticks = [low, math.sqrt(low * high), high]  # no range: with shared axes Plotly forgets all
        return {"type": "log", "tickvals": ticks, "tickformat": ".2~g"}
    return {"nticks": 4}


def brief(values: Iterable[Any]) -> list[Any]:
    """Round numbers to five digits, for fewer bytes; text without markup."""
    return [
        float(f"{v:.5g}") if isinstance(v, float) else plain(v) if isinstance(v, str) else v
        for v in values
    ]


def plain(text: object) -> str:
    """Escape text for a figure, where Plotly would read `<b>` and the like as markup."""
    return html.escape(str(text), quote=False)


def lines(texts: list[str]) -> str:
    """Lines of text for a hover."""
    return "<br>".join(plain(text) for text in texts)
