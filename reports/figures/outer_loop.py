"""The outer loop in figures: hypervolume, importance, knobs."""

from __future__ import annotations

import plotly.graph_objects as go

from reports.figures.knobs import knob_panel
from reports.figures.theme import (
    AXIS,
    LAYOUT,
    LEGEND,
    ORANGE,
    RUN_COLOURS,
    Panel,
    Section,
    plain,
    run_line,
)
from reports.outer_loop import (
    FEWEST,
    Hypervolume,
    hypervolume,
    importances,
    quartiles,
    reference_point,
)
from reports.overlay import Overlay


def outer_section(overlay: Overlay) -> Section | None:
    """All that tells how the outer loop went; None before the first trial has finished."""
    histories = [hypervolume(run) for run in overlay.runs]
    if not any(history.shares for history in histories):
        return None
    knobs = knob_panel(overlay)
    return Section(
        name="outer",
        title="How the outer loop went",
        sentences=tuple(_hypervolume_sentences(overlay, histories)),
        panels=(
            *_hypervolume_panels(overlay, histories),
            *_importance_panels(overlay),
            *([knobs] if knobs else []),
        ),
    )


def _hypervolume_sentences(overlay: Overlay, histories: list[Hypervolume]) -> list[str]:
    sentences = []
    for name, history in zip(overlay.names, histories, strict=True):
        if history.shares:
            final = history.shares[-1]
            good = next(
                place for place, share in enumerate(history.shares, 1) if share >= 0.99 * final
            )
            prefix = f"{name}: the" if overlay.several else "The"
            sentences.append(
                f"{prefix} front covers {final:.1%} of the ideal; "
                f"99% of that was there after {good} of {len(history.shares)} finished trials."
            )
    return sentences


def _hypervolume_panels(overlay: Overlay, histories: list[Hypervolume]) -> list[Panel]:
    by_trials = [
        [(float(n), share) for n, share in enumerate(history.shares, 1)] for history in histories
    ]
    by_seconds = [list(zip(h.seconds, h.shares, strict=False)) for h in histories]
    worst = ", ".join(
        dict.fromkeys(
            f"{abs(point) if overlay.by_divergence else point:.4g}"
            for run in overlay.runs
            for point, _ in [reference_point(run.unpruned.worth)]
        )
    )
    half, less = "half the unpruned model's", "the unpruned model's less 1"
    signs = dict.fromkeys(run.unpruned.worth > 0 for run in overlay.runs)
    how = "" if overlay.by_divergence else ": " + " or ".join(half if up else less for up in signs)
    caption = (
        "The area between the front and the reference point (ratio 1, "
        f"{overlay.runs[0].objective_name} {worst}{how}), as a share of what a model as good as "
        "the unpruned one would cover at no cost. Better models may cover more than 100%."
    )
    panels = [
        Panel(
            name="hypervolume-trials",
            title="Hypervolume over trials",
            figure=_staircases(overlay, by_trials, "finished trials"),
            caption=caption + (" A band is the quartiles over seeds." if _seeded(overlay) else ""),
        )
    ]
    if any(by_seconds):
        panels.append(
            Panel(
                name="hypervolume-seconds",
                title="Hypervolume over seconds",
                figure=_staircases(overlay, by_seconds, "seconds in which trials ran"),
                caption="The same over the clock; time between launches is left out.",
            )
        )
    return panels


def _seeded(overlay: Overlay) -> bool:
    return any(len(places) > 1 for places in overlay.groups.values())


def _staircases(
    overlay: Overlay, histories: list[list[tuple[float, float]]], title: str
) -> go.Figure:
    figure = go.Figure()
    for name, places in overlay.groups.items():
        known = [place for place in places if histories[place]]
        band = len(known) > 1
        for place in known:
            figure.add_scatter(
                x=[x for x, _ in histories[place]],
                y=[y for _, y in histories[place]],
                name=plain(overlay.names[place]),
                mode="lines",
                line={**run_line(place), "shape": "hv", "width": 1 if band else 2},
                opacity=0.5 if band else 1,
            )
        if band:
            x, (low, middle, high) = quartiles([histories[place] for place in known])
            colour = RUN_COLOURS[places[0] % len(RUN_COLOURS)]
            edge = {"x": x, "mode": "lines", "hoverinfo": "skip", "showlegend": False}
            flat = {"shape": "hv", "width": 0}
            figure.add_scatter(y=low, name="lower quartile", line=flat, **edge)
            figure.add_scatter(
                y=high, name="upper quartile", line=flat, fill="tonexty", opacity=0.3, **edge
            )
            figure.add_scatter(
                x=x,
                y=middle,
                mode="lines",
                name=plain(f"median of {name}"),
                line={"shape": "hv", "width": 3, "color": colour},
            )
    figure.update_layout(
        **LAYOUT,
        height=320,
        showlegend=overlay.several,
        legend=LEGEND,
        margin={"l": 60, "r": 20, "t": 20, "b": 60},
        xaxis={**AXIS, "title": {"text": title, "standoff": 8}, "rangemode": "tozero"},
        yaxis={**AXIS, "title": {"text": "hypervolume, share of the ideal"}, "tickformat": ".0%"},
    )
    return figure


def _importance_panels(overlay: Overlay) -> list[Panel]:
    figure = go.Figure()
    counts = []
    for place, run in enumerate(overlay.runs):
        prefix = overlay.prefix(place)
        colour = RUN_COLOURS[place % len(RUN_COLOURS)]
        for objective, values in importances(run).items():
            cost = objective == run.unpruned.cost_name
            low = cost or overlay.by_divergence
            figure.add_bar(
                y=[plain(knob) for knob in values],
                x=list(values.values()),
                orientation="h",
                name=plain(f"{prefix}{'low' if low else 'high'} {objective}"),
                marker={
                    "color": ORANGE if cost and not overlay.several else colour,
                    "pattern": {"shape": "/" if cost else ""},
                },
            )
        counts.append(len(run.finished))
    if not figure.data:
        return []
    bars = max(len(trace.y) for trace in figure.data)
    figure.update_layout(
        **LAYOUT,
        height=140 + 26 * bars * len(figure.data),
        legend=LEGEND,
        margin={"l": 60, "r": 20, "t": 20, "b": 60},
        xaxis={**AXIS, "title": {"text": "importance"}, "tickformat": ".0%"},
        yaxis={**AXIS, "type": "category"},
    )
    return [
        Panel(
            name="importance",
            title="Which knob mattered",
            figure=figure,
            caption="Optuna's PED-ANOVA: how much each knob decides whether a trial is among the "
            "best 10% of an objective; the bars of one objective sum to 100%."
            + (" So few trials give a hint, no more." if min(counts) < 5 * FEWEST else ""),
        )
    ]
