"""Where the time went: every trial as a bar in the slot that it trained in."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go

from orchestrator.records import TrialRecord
from reports.outer_loop import BusyClock
from reports.overlay import Overlay
from reports.theme import AXIS, BLUE, GREY, LAYOUT, ORANGE, SKY, VERMILLION, Panel, plain

_LOOKS = {
    "finished": (BLUE, ""),
    "outside budget": (ORANGE, "/"),
    "failed": (VERMILLION, "x"),
    "stopped": (SKY, "."),
    "running": (GREY, "-"),
}
"""Colour and pattern of a trial, by what became of it."""


def state_text(trial: TrialRecord) -> str:
    """What became of a trial, in the page's words."""
    if trial.result is None:
        return "no result" if trial.state == "finished" else trial.state
    return "finished" if trial.feasible else "outside budget"


def lanes(trials: Sequence[TrialRecord]) -> dict[int, int]:
    """Of each trial with a start the first lane that was free then."""
    free: list[float] = []
    placed: dict[int, int] = {}
    for trial in sorted((t for t in trials if t.started), key=lambda t: (t.started, t.number)):
        assert trial.started is not None
        start = trial.started.timestamp()
        end = trial.ended.timestamp() if trial.ended else float("inf")
        lane = next((i for i, until in enumerate(free) if until <= start), len(free))
        free[lane : lane + 1] = [end]
        placed[trial.number] = lane
    return placed


def timeline_panel(overlay: Overlay) -> Panel | None:
    """Bars from start to end; None if no trial has times."""
    bars: dict[str, list[tuple[str, float, float, int, int]]] = {}
    for place, run in enumerate(overlay.runs):
        clock, lane_of = BusyClock(run.trials), lanes(run.trials)
        prefix = f"{overlay.names[place]}, " if overlay.several else ""
        for trial in run.trials:
            if trial.started:
                start = clock(trial.started)
                end = clock(trial.ended) if trial.ended else clock.now
                lane = plain(f"{prefix}slot {lane_of[trial.number]}")
                row = (lane, start, end - start, place, trial.number)
                bars.setdefault(state_text(trial), []).append(row)
    if not bars:
        return None
    figure = go.Figure()
    for state, rows in bars.items():
        colour, pattern = _LOOKS.get(state, (GREY, ""))
        figure.add_bar(
            y=[lane for lane, *_ in rows],
            base=[start for _, start, *_ in rows],
            x=[length for _, _, length, *_ in rows],
            orientation="h",
            name=state,
            marker={
                "color": colour,
                "pattern": {"shape": pattern},
                "line": {"width": 1, "color": "rgba(128, 128, 128, 0.6)"},
            },
            customdata=[[place, number] for *_, place, number in rows],
            hovertemplate="trial %{customdata[1]}: %{x:.0f} s from %{base:.0f} s<extra></extra>",
        )
    slots = len({lane for rows in bars.values() for lane, *_ in rows})
    figure.update_layout(
        **LAYOUT,
        height=130 + 26 * slots,
        barmode="overlay",
        showlegend=True,
        margin={"l": 60, "r": 20, "t": 20, "b": 60},
        legend={"orientation": "h", "xref": "container", "x": 0, "yref": "container", "y": 0},
        xaxis={**AXIS, "title": {"text": "seconds in which trials ran", "standoff": 8}},
        yaxis={**AXIS, "type": "category", "categoryorder": "category descending"},
    )
    return Panel(
        name="timeline",
        title="Where the time went",
        figure=figure,
        caption="Each bar is a trial, from its start to its end; trials of one population start "
        "together and share the machine. Time between launches is left out.",
    )
