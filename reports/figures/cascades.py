"""The cascades of a run in the figure of its front."""

from collections.abc import Sequence

import plotly.graph_objects as go

from objectives.combining.cascade import Cascade
from orchestrator.runs.results import ratio_text
from reports.figures.theme import SKY, lines, plain, run_style
from reports.overlay import Overlay

RATIO_ALONE = "ratio"
"""Of a trace that the page hides where its axis is another than the ratio of cost."""


def add_cascades(figure: go.Figure, overlay: Overlay, found: Sequence[Sequence[Cascade]]) -> None:
    """Add the front of each run's cascades; `found` are those of the runs in their order."""
    for place, (run, own) in enumerate(zip(overlay.runs, found, strict=True)):
        if not own:
            continue
        full, name = run.unpruned.cost_full, run.metric_name
        figure.add_scatter(
            x=[cascade.cost / full for cascade in own],
            y=[overlay.height(run, cascade.metric) for cascade in own],
            mode="lines+markers",
            name=plain(f"{overlay.prefix(place)}cascades"),
            visible="legendonly" if overlay.several else None,
            meta=RATIO_ALONE,
            line={"shape": "hv", "dash": "dot", "width": 1.5},
            marker={
                "color": run_style(place)["color"] if overlay.several else SKY,
                "size": 9,
                "symbol": "triangle-down-open",
                "line": {"width": 2},
            },
            hovertext=[
                lines(
                    [
                        plain(f"{overlay.prefix(place)}cascade: {pair_text(cascade)}"),
                        f"{name} {cascade.metric:.4f}, held out {cascade.heldout_metric:.4f}",
                        f"as the unpruned model: {cascade.agreement:.1%}, held out "
                        f"{cascade.heldout_agreement:.1%}",
                        f"{cascade.deferred:.1%} deferred, {run.unpruned.cost_name} ratio "
                        f"{ratio_text(cascade.cost / full)}",
                    ]
                )
                for cascade in own
            ],
            hoverinfo="text",
        )


def pair_text(cascade: Cascade) -> str:
    """Its two models: "trial 3 → unpruned"."""
    numbers = (cascade.small, cascade.large)
    return " → ".join("unpruned" if number is None else f"trial {number}" for number in numbers)
