"""What is left of each layer: heads and FFN neurons of the front's models, as two heat maps."""

from __future__ import annotations

from dataclasses import dataclass

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from orchestrator.records import RunRecord
from reports.pareto import percent
from reports.theme import LAYOUT


@dataclass(frozen=True, kw_only=True)
class Kept:
    """Units of one kind that the front's models keep, one row a model, one column a layer."""

    unit: str
    counts: tuple[tuple[int, ...], ...]
    """A student may have fewer layers than the unpruned model: its row is then shorter."""
    totals: tuple[int, ...]
    """Of the unpruned model, one a layer."""

    @property
    def shares(self) -> tuple[tuple[float | None, ...], ...]:
        """Kept units as a share of the layer's; None where the student has no such layer."""
        layers = len(self.totals)
        return tuple(
            tuple(
                row[layer] / self.totals[layer] if layer < len(row) else None
                for layer in range(layers)
            )
            for row in self.counts
        )


@dataclass(frozen=True, kw_only=True)
class ArchitecturesView:
    """The front's models by rising cost."""

    trials: tuple[int, ...]
    ratios: tuple[float, ...]
    heads: Kept
    ffn: Kept


def architectures_view(run: RunRecord) -> ArchitecturesView:
    """Take what each model of the front keeps."""
    found = [(trial.number, trial.result) for trial in run.front if trial.result is not None]
    return ArchitecturesView(
        trials=tuple(number for number, _ in found),
        ratios=tuple(result.ratio for _, result in found),
        heads=Kept(
            unit="heads",
            counts=tuple(result.heads_per_layer for _, result in found),
            totals=run.unpruned.heads_per_layer,
        ),
        ffn=Kept(
            unit="FFN neurons",
            counts=tuple(result.ffn_per_layer for _, result in found),
            totals=run.unpruned.ffn_per_layer,
        ),
    )


def architectures_figure(view: ArchitecturesView) -> go.Figure:
    """Draw the two heat maps side by side, the smallest model lowest."""
    rows = [
        f"{percent(ratio)} (trial {trial})"
        for trial, ratio in zip(view.trials, view.ratios, strict=True)
    ]
    kinds = (view.heads, view.ffn)
    figure = make_subplots(
        rows=1,
        cols=len(kinds),
        shared_yaxes=True,
        horizontal_spacing=0.03,
        subplot_titles=[f"{kept.unit} kept" for kept in kinds],
    )
    for column, kept in enumerate(kinds, start=1):
        layers = [str(layer + 1) for layer in range(len(kept.totals))]
        figure.add_heatmap(
            x=layers,
            y=rows,
            z=kept.shares,
            text=[[*row, *[""] * (len(layers) - len(row))] for row in kept.counts],
            texttemplate="%{text}",
            hovertext=[
                _hovers(name, row, kept) for name, row in zip(rows, kept.counts, strict=True)
            ],
            hoverinfo="text",
            hoverongaps=False,
            coloraxis="coloraxis",
            xgap=1,
            ygap=1,
            row=1,
            col=column,
        )
    figure.update_xaxes(type="category", showgrid=False, title_text="layer")
    figure.update_yaxes(type="category", showgrid=False, automargin=True)
    figure.update_layout(
        **LAYOUT,
        height=150 + 30 * len(rows),
        margin={"l": 20, "r": 20, "t": 40, "b": 50},
        coloraxis={
            "colorscale": "Cividis",
            "cmin": 0,
            "cmax": 1,
            "colorbar": {"tickformat": ".0%", "thickness": 14},
        },
    )
    return figure


def _hovers(name: str, row: tuple[int, ...], kept: Kept) -> list[str]:
    return [
        f"{name}<br>layer {layer}: {count:,} of {total:,} {kept.unit}"
        for layer, (count, total) in enumerate(zip(row, kept.totals, strict=False), start=1)
    ]
