"""The outer loop in figures: hypervolume, importance, knobs."""

import plotly.graph_objects as go

from reports import outer_loop
from reports.figures import theme
from reports.figures.knobs import knob_panel
from reports.figures.theme import Panel, Section
from reports.overlay import Overlay


def outer_section(overlay: Overlay) -> Section | None:
    """All that tells how the outer loop went; None before the first trial has finished."""
    histories = [outer_loop.hypervolume(run) for run in overlay.runs]
    if not any(history.shares for history in histories):
        return None
    sentences = []
    for name, history in zip(overlay.names, histories, strict=True):
        if history.shares:
            final = history.shares[-1]
            good = next(n for n, share in enumerate(history.shares, 1) if share >= 0.99 * final)
            prefix = f"{name}: the" if overlay.several else "The"
            sentences.append(
                f"{prefix} front covers {final:.1%} of the ideal. "
                f"It had 99% of that after {good} of {len(history.shares)} finished trials."
            )
    others = (_importance_panel(overlay), knob_panel(overlay))
    panels = (*_hypervolume_panels(overlay, histories), *filter(None, others))
    return Section("outer", "How the outer loop went", tuple(sentences), panels)


def _hypervolume_panels(overlay: Overlay, histories: list[outer_loop.Hypervolume]) -> list[Panel]:
    by_trials = [[(float(n), y) for n, y in enumerate(h.shares, 1)] for h in histories]
    by_seconds = [list(zip(h.seconds, h.shares, strict=False)) for h in histories]
    worths = [run.unpruned.worth for run in overlay.runs]
    corners = [outer_loop.reference_point(worth)[0] for worth in worths]
    half, less = "half the unpruned model's", "the unpruned model's less 1"
    how = ": " + " or ".join(dict.fromkeys(half if worth > 0 else less for worth in worths))
    if overlay.by_divergence:
        corners, how = list(map(abs, corners)), ""
    worst = ", ".join(dict.fromkeys(f"{corner:.4g}" for corner in corners))
    caption = (
        "The area between the front and the reference point (ratio 1, "
        f"{overlay.runs[0].objective_name} {worst}{how}), as a share of what a model as good as "
        "the unpruned one would cover at no cost. Better models may cover more than 100%."
    )
    if any(len(places) > 1 for places in overlay.groups.values()):
        caption += " A band is the quartiles over seeds."
    figure = _staircases(overlay, by_trials, "finished trials")
    panels = [Panel("hypervolume-trials", "Hypervolume over trials", figure, caption)]
    if any(by_seconds):
        caption = "The same over time; time between launches is left out."
        figure = _staircases(overlay, by_seconds, "seconds in which trials ran")
        panels.append(Panel("hypervolume-seconds", "Hypervolume over seconds", figure, caption))
    return panels


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
                name=theme.plain(overlay.names[place]),
                mode="lines",
                line={**theme.run_line(place), "shape": "hv", "width": 1 if band else 2},
                opacity=0.5 if band else 1,
            )
        if band:
            x, (low, middle, high) = outer_loop.quartiles([histories[place] for place in known])
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
                name=theme.plain(f"median of {name}"),
                line={"shape": "hv", "width": 3, "color": theme.run_style(places[0])["color"]},
            )
    theme.lay_out(
        figure,
        height=320,
        showlegend=overlay.several,
        xaxis=theme.x_axis(title, rangemode="tozero"),
        yaxis=theme.axis("hypervolume, share of the ideal", tickformat=".0%"),
    )
    return figure


def _importance_panel(overlay: Overlay) -> Panel | None:
    figure = go.Figure()
    for place, run in enumerate(overlay.runs):
        prefix, colour = overlay.prefix(place), theme.run_style(place)["color"]
        for objective, values in outer_loop.importances(run).items():
            cost = objective == run.unpruned.cost_name
            low = cost or overlay.by_divergence
            figure.add_bar(
                y=[theme.plain(knob) for knob in values],
                x=list(values.values()),
                orientation="h",
                name=theme.plain(f"{prefix}{'low' if low else 'high'} {objective}"),
                marker={
                    "color": theme.ORANGE if cost and not overlay.several else colour,
                    "pattern": {"shape": "/" if cost else ""},
                },
            )
    if not figure.data:
        return None
    bars = max(len(trace.y) for trace in figure.data)
    few = min(len(run.finished) for run in overlay.runs) < 5 * outer_loop.FEWEST
    hint = " With so few trials this is only a hint." if few else ""
    theme.lay_out(
        figure,
        height=140 + 26 * bars * len(figure.data),
        xaxis=theme.axis("importance", tickformat=".0%"),
        yaxis={**theme.AXIS, "type": "category"},
    )
    return Panel(
        name="importance",
        title="Which knob mattered",
        figure=figure,
        caption="Optuna's PED-ANOVA: how much each knob decides whether a trial is among the "
        f"best 10% of an objective; the bars of one objective and method sum to 100%.{hint}",
    )
