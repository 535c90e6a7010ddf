"""Search methods side by side, drawn and as a table in Markdown."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from benchmarks.comparison.numbers import SPLITS, Comparison, Kept, chosen
from orchestrator.runs.records import RunRecord
from reports.figures.outer_loop import Steps
from reports.figures.theme import AXIS, LAYOUT, plain, run_line, run_style

_NAMES = {"select": "selection split", "heldout": "held-out split"}


def attainment(curves: Sequence[Steps], level: float) -> list[tuple[float, float]]:
    """What at least a share `level` of step curves (ratio, metric) reach at each ratio.

    Of fronts it is the empirical attainment surface (Fonseca and Fleming 1996). It begins where so
    many of them have begun, and falls where they do.
    """
    needed, levels = max(1, math.ceil(level * len(curves))), list[tuple[float, float]]()
    for ratio in sorted({ratio for curve in curves for ratio, _ in curve}):
        reached = [bisect_right(curve, ratio, key=lambda step: step[0]) for curve in curves]
        heights = sorted(
            (curve[n - 1][1] for curve, n in zip(curves, reached, strict=True) if n), reverse=True
        )
        if len(heights) >= needed and (not levels or heights[needed - 1] != levels[-1][1]):
            levels.append((ratio, heights[needed - 1]))
    return levels


def comparison_figure(runs: Mapping[str, Sequence[RunRecord]], comparison: Comparison) -> go.Figure:
    """What half of the seeds reach with what is chosen at each ratio, on both splits; a line for
    each method."""
    figure = make_subplots(
        cols=2, shared_yaxes=True, subplot_titles=[_NAMES[role] for role in SPLITS]
    )
    for place, (name, own) in enumerate(runs.items()):
        for column, role in enumerate(SPLITS, start=1):
            half = attainment([chosen(role, run) for run in own], 0.5)
            figure.add_scatter(
                x=[ratio for ratio, _ in half],
                y=[metric for _, metric in half],
                mode="lines+markers",
                name=plain(name),
                legendgroup=name,
                showlegend=column == 1,
                line={**run_line(place), "shape": "hv"},
                marker={**run_style(place), "size": 7},
                col=column,
                row=1,
            )
    for column, role in enumerate(SPLITS, start=1):
        figure.add_hline(
            y=comparison.unpruned[role], line={"width": 1, "dash": "dash"}, col=column, row=1
        )
    figure.update_layout(
        **LAYOUT,
        width=1000,
        height=480,
        margin={"l": 60, "r": 20, "t": 40, "b": 60},
        legend={"orientation": "h", "y": -0.18},
    )
    figure.update_xaxes(
        **AXIS, title=f"{comparison.cost_name} ratio", tickformat=".0%", matches="x"
    )
    figure.update_yaxes(**AXIS)
    figure.update_yaxes(title=plain(comparison.metric_name), col=1)
    return figure


def comparison_tables(comparison: Comparison) -> str:
    """A table for each split in Markdown, the best method first.

    A cell is the mean over the seeds, and in brackets the interval of the gain on the best
    baseline, which is marked.
    """
    return "\n".join(_table(comparison, role) for role in SPLITS)


def _table(comparison: Comparison, role: str) -> str:
    rows = comparison.contestants
    ratios = list(comparison.best_baseline)
    covered = "hypervolume" if role == "select" else "area"
    columns = ["method", f"{covered} (quartiles)", *(f"at {ratio:g}" for ratio in ratios)]
    columns += ["s a trial", "ratio error"]
    lines = [
        f"{plain(comparison.metric_name)} on the {_NAMES[role]} "
        f"(unpruned {comparison.unpruned[role]:.4f}, seeds: {comparison.seeds})",
        "",
        _line(columns),
        _line(["---"] * len(columns)),
    ]
    for name in sorted(rows, key=lambda name: -float(np.median(rows[name].areas[role]))):
        row = rows[name]
        low, middle, high = np.quantile(row.areas[role], (0.25, 0.5, 0.75))
        cells = [
            _cell(row.kept[role][ratio], name == comparison.best_baseline[ratio])
            for ratio in ratios
        ]
        lines.append(
            _line(
                [
                    f"{name} (baseline)" if row.baseline else name,
                    f"{middle:.4f} ({low:.4f} to {high:.4f})",
                    *cells,
                    f"{row.seconds:.1f}",
                    f"{row.ratio_error:.2%}",
                ]
            )
        )
    return "\n".join([*lines, ""])


def _cell(kept: Kept | None, best: bool) -> str:
    if kept is None:
        return "-"
    if kept.gain is None:
        return f"{kept.metric:.4f}" + " (best baseline)" * best
    return f"{kept.metric:.4f} [{kept.gain.low:+.4f}, {kept.gain.high:+.4f}]"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
