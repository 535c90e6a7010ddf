"""Where the time went: every trial as a bar in the slot that it trained in."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from os.path import commonprefix

import plotly.graph_objects as go

from orchestrator.runs.busy_clock import BusyClock
from orchestrator.runs.records import WORKER, TrialRecord
from orchestrator.workers.heartbeat import host_of
from reports.figures.theme import (
    AXIS,
    BLUE,
    GREY,
    LAYOUT,
    LEGEND,
    ORANGE,
    SKY,
    VERMILLION,
    Panel,
    plain,
)
from reports.overlay import Overlay

_LOOKS = {
    "finished": (BLUE, ""),
    "outside budget": (ORANGE, "/"),
    "failed": (VERMILLION, "x"),
    "stopped": (SKY, "."),
    "running": (GREY, "-"),
}
"""Colour and pattern of a trial, by what became of it."""
_LONG = 12
"""Letters of a host's name that an axis has room for."""


def state_text(trial: TrialRecord) -> str:
    """What became of a trial, in the page's words."""
    if trial.result is None:
        return trial.state
    return "finished" if trial.feasible else "outside budget"


def lanes(trials: Sequence[TrialRecord]) -> dict[int, str]:
    """Of each trial with a start its worker and slot, in the order of the lanes.

    A trial takes the first slot of its worker that was free then, and a worker the first number
    of its host: so a study that was launched again goes on in the lanes of its first launch. Host
    and worker are named where there are several.
    """
    by_host: dict[str, dict[str, list[TrialRecord]]] = {}
    for trial in trials:
        if trial.started is not None:
            worker = str(trial.attributes.get(WORKER, ""))
            by_host.setdefault(host_of(worker), {}).setdefault(worker, []).append(trial)
    placed: dict[tuple[str, int, int], list[int]] = {}
    for host, workers in by_host.items():
        lived = [_spans(own) for own in workers.values()]
        lives = [(min(spans)[0], max(end for _, end in spans)) for spans in lived]
        for place, own, spans in zip(_first_free(lives), workers.values(), lived, strict=True):
            for trial, slot in zip(own, _first_free(spans), strict=True):
                placed.setdefault((host, place, slot), []).append(trial.number)
    hosts, several = short_hosts(by_host), any(worker for _, worker, _ in placed)
    return {
        number: ", ".join(
            [hosts[host]] * (len(hosts) > 1) + [f"worker {worker}"] * several + [f"slot {slot}"]
        )
        for (host, worker, slot), numbers in sorted(placed.items())
        for number in numbers
    }


def _spans(trials: Sequence[TrialRecord]) -> list[tuple[float, float]]:
    return [
        (t.started, math.inf if t.ended is None else t.ended)
        for t in trials
        if t.started is not None
    ]


def _first_free(spans: Sequence[tuple[float, float]]) -> list[int]:
    """Of each span from start to end the first place that was free when it began."""
    free: list[float] = []
    places = [0] * len(spans)
    for index in sorted(range(len(spans)), key=lambda index: (spans[index][0], index)):
        start, end = spans[index]
        place = next((i for i, until in enumerate(free) if until <= start), len(free))
        free[place : place + 1] = [end]
        places[index] = place
    return places


def short_hosts(hosts: Iterable[str]) -> dict[str, str]:
    """Hosts without their domain, and long ones without what all their names begin with."""
    full = list(hosts)
    short = [host.partition(".")[0] for host in full]
    if len(set(short)) < len(full):
        short = full
    shared = commonprefix(short).rpartition("-")[0]  # noqa: RUF071 - letters, not folders
    if shared and len(full) > 1 and max(map(len, short)) > _LONG:
        short = [f"…{host.removeprefix(shared)}" for host in short]
    return dict(zip(full, short, strict=True))


def timeline_panel(overlay: Overlay) -> Panel | None:
    """Bars from start to end; None if no trial has times."""
    bars: dict[str, list[tuple[str, float, float, int, int]]] = {}
    order: dict[str, None] = {}
    for place, run in enumerate(overlay.runs):
        clock, lane_of = BusyClock(run.trials), lanes(run.trials)
        prefix = f"{overlay.names[place]}, " if overlay.several else ""
        order |= dict.fromkeys(plain(prefix + lane) for lane in lane_of.values())
        for trial in run.trials:
            if trial.started is not None:
                start = clock(trial.started)
                end = clock.now if trial.ended is None else clock(trial.ended)
                lane = plain(prefix + lane_of[trial.number])
                row = (lane, start, end - start, place, trial.number)
                bars.setdefault(state_text(trial), []).append(row)
    if not bars:
        return None
    figure = go.Figure()
    for state, rows in bars.items():
        colour, pattern = _LOOKS[state]
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
    figure.update_layout(
        **LAYOUT,
        height=130 + 26 * len(order),
        barmode="overlay",
        showlegend=True,
        margin={"l": 60, "r": 20, "t": 20, "b": 60},
        legend=LEGEND,
        xaxis={**AXIS, "title": {"text": "seconds in which trials ran", "standoff": 8}},
        yaxis={**AXIS, "type": "category", "categoryarray": [*order], "autorange": "reversed"},
    )
    return Panel(
        name="timeline",
        title="Where the time went",
        figure=figure,
        caption="Each bar is a trial, from its start to its end, in the slot of the worker that "
        "ran it; trials of one population start together and share the machine. Time between "
        "launches is left out.",
    )
