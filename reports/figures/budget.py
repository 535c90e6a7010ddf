"""Did the search do what it was told: target ratio against reached ratio, and what moved it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from orchestrator.runs.records import FinishedTrial, RunRecord
from reports.curves import Curves
from reports.figures.knobs import joined_space, knob_points
from reports.figures.theme import (
    AXIS,
    GREY,
    Panel,
    Section,
    axis,
    brief,
    knob_axis,
    lay_out,
    plain,
    run_style,
    x_axis,
)
from reports.overlay import Overlay

_HOVER = "trial %{customdata[1]}<br>asked %{x}, reached %{y}<extra></extra>"
_ASKED = ("target_ratio", "tolerance")
"""Knobs that say what is asked, not how hard the search tries."""


@dataclass(frozen=True, kw_only=True)
class Reached:
    """What a finished trial was asked for and what it reached."""

    trial: FinishedTrial
    open: float | None
    """Ratio of what the masks had left open when the search ended, before units are ranked and
    cut; None if the method does not say."""


def reached(run: RunRecord, curves: Curves) -> list[Reached]:
    """The finished trials of a run."""
    rows = []
    for trial in run.finished:
        curve = curves.get(trial.number)
        left = curve.columns.get("open_ratio") if curve else None
        rows.append(Reached(trial=trial, open=left[-1][1] if left else None))
    return rows


def budget_section(overlay: Overlay, curves: Sequence[Curves]) -> Section | None:
    """Target against reached, and what the masks left open against each knob."""
    rows = [reached(run, own) for run, own in zip(overlay.runs, curves, strict=True)]
    finished = [row for run in rows for row in run]
    if not finished:
        return None
    inside = sum(row.trial.feasible for row in finished)
    sentences = [f"{inside} of {len(finished)} finished trials are inside their budget."]
    known = [row for row in finished if row.open is not None]
    far = [row for row in known if _miss(row) > row.trial.result.tolerance]
    if known:
        sentences.append(
            f"In {len(far)} of {len(known)} trials the masks were still open above the budget when "
            "the search ended: there the ranking of units, not the search, met the budget."
        )
    steering = _knob_panel(overlay, rows) if known else None
    panels = filter(None, (_target_panel(overlay, rows), steering))
    title = "Did the search meet the budget?"
    return Section("budget", title, tuple(sentences), tuple(panels))


def _miss(row: Reached) -> float:
    """How far above its target the search left its masks open, as a share of it."""
    assert row.open is not None
    return row.open / row.trial.result.target_ratio - 1


def _target_panel(overlay: Overlay, rows: Sequence[Sequence[Reached]]) -> Panel:
    figure = go.Figure()
    targets = [row.trial.result.target_ratio for run in rows for row in run]
    ends = [min(targets) * 0.95, max(targets) * 1.05]
    line = {"color": GREY, "dash": "dot"}
    figure.add_scatter(x=ends, y=ends, mode="lines", name="as asked", line=line, hoverinfo="skip")
    for place, run in enumerate(rows):
        prefix, style = plain(overlay.prefix(place)), run_style(place)
        results = [row.trial.result for row in run]
        band = brief(result.tolerance * result.target_ratio for result in results)
        figure.add_scatter(
            x=brief(result.target_ratio for result in results),
            y=[result.reached for result in results],
            mode="markers",
            name=f"{prefix}cut model",
            marker={**style, "size": 8},
            error_y={"type": "data", "array": band, "thickness": 1, "width": 3, "color": GREY},
            customdata=[[place, row.trial.number] for row in run],
            hovertemplate=_HOVER,
        )
        known = [row for row in run if row.open is not None]
        if known:
            figure.add_scatter(
                x=brief(row.trial.result.target_ratio for row in known),
                y=brief(row.open for row in known),
                mode="markers",
                name=f"{prefix}open masks, before the cut",
                marker={"color": style["color"], "symbol": f"{style['symbol']}-open", "size": 8},
                customdata=[[place, row.trial.number] for row in known],
                hovertemplate=_HOVER,
            )
    lay_out(
        figure,
        height=380,
        xaxis=x_axis("target ratio", tickformat=".0%"),
        yaxis=axis("reached ratio", tickformat=".0%"),
    )
    return Panel(
        name="target",
        title="Target and reached",
        figure=figure,
        caption=f"{overlay.cost_name} of each cut model as a share of the unpruned one's, against "
        "the target. The grey bar is as long as the tolerance: where it does not touch the dotted "
        "line, the trial missed its budget. Hollow marks are the share that the masks left open at "
        "the end of the search, before the units were ranked and cut.",
    )


def _knob_panel(overlay: Overlay, rows: Sequence[Sequence[Reached]]) -> Panel | None:
    spaces = joined_space(overlay)
    knobs = [name for name in spaces if name not in _ASKED]
    knobs += [name for name in _ASKED if name in spaces]
    if not knobs:
        return None
    figure = make_subplots(rows=1, cols=len(knobs), shared_yaxes=True, horizontal_spacing=0.03)
    for column, knob in enumerate(knobs, start=1):
        for place, run in enumerate(rows):
            known = [row for row in run if row.open is not None and knob in row.trial.knobs]
            figure.add_scatter(
                **knob_points(overlay, place, knob, [row.trial for row in known], " above target"),
                y=brief(map(_miss, known)),
                marker={**run_style(place), "size": 7},
                showlegend=overlay.several and column == 1,
                row=1,
                col=column,
            )
        figure.update_xaxes(x_axis(knob, **knob_axis(spaces[knob])), row=1, col=column)
    figure.update_yaxes(**AXIS, tickformat="+.2~%")
    figure.update_yaxes(title={"text": "open masks above target"}, row=1, col=1)
    lay_out(figure, height=300, legend=None)
    return Panel(
        name="steering",
        title="How the knobs changed this",
        figure=figure,
        caption="How far above the target the search left the masks open, before the cut, "
        "against each knob. At 0% the search met the target by itself.",
    )
