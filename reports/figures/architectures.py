"""Heat maps of what the front's models keep: how many units of each layer, and which."""

from collections import Counter
from dataclasses import dataclass

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from orchestrator.runs.records import RunRecord
from orchestrator.runs.run_folder import RunFolder
from orchestrator.runs.sizes import in_words, shown
from orchestrator.runs.trial_files import read_layers
from reports.figures import theme
from reports.figures.theme import Panel, Section
from reports.overlay import Overlay
from reports.pareto import percent


@dataclass(frozen=True, kw_only=True)
class KeptUnits:
    """Units of one kind that the front's models keep, one row a model, one column a layer."""

    unit: str
    counts: tuple[tuple[int, ...], ...]  # a student with fewer layers has a shorter row
    totals: tuple[int, ...]  # units of the unpruned model, one number a layer

    @property
    def shares(self) -> tuple[tuple[float | None, ...], ...]:
        """Share of each layer's units that is kept; None if there is no such layer."""
        return tuple(
            tuple(
                row[layer] / total if layer < len(row) and total else None
                for layer, total in enumerate(self.totals)
            )
            for row in self.counts
        )


def kinds_kept(run: RunRecord) -> list[KeptUnits]:
    """Units of each kind that the front's models keep, by rising cost; see `sizes.shown`."""
    models = [trial.result.widths for trial in run.front]
    return [
        KeptUnits(
            unit=in_words(kind),
            counts=tuple(widths.get(kind, ()) for widths in models),
            totals=totals,
        )
        for kind, totals in shown(models, run.unpruned.widths).items()
    ]


@dataclass(frozen=True, kw_only=True)
class Consensus:
    """Units that the models of a front agree on."""

    models: int
    heads: tuple[tuple[float, ...], ...]  # share of the models that keep each head, a row a layer
    ffn: tuple[tuple[int, int, int], ...]  # neurons of a layer that all, some, no models keep


def consensus(run: RunRecord) -> Consensus | None:
    """Compare the architectures of the front; None unless at least two can be read."""
    full = list(zip(run.unpruned.heads_per_layer, run.unpruned.ffn_per_layer, strict=False))
    folder = RunFolder(run.folder)
    architectures = [read_layers(folder.trial(trial.number)) for trial in run.front if full]
    if len(architectures) < 2 or any(len(model) != len(full) for model in architectures):
        return None
    heads, ffn = [], []
    for (all_heads, all_neurons), *models in zip(full, *architectures, strict=True):
        having = Counter(head for model in models for head in set(model["heads"]))
        heads.append(tuple(having[head] / len(models) for head in range(all_heads)))
        every = set.intersection(*(set(model["ffn"]) for model in models))
        some = set.union(*(set(model["ffn"]) for model in models))
        ffn.append((len(every), len(some) - len(every), all_neurons - len(some)))
    return Consensus(models=len(architectures), heads=tuple(heads), ffn=tuple(ffn))


_COLOURS = {"colorscale": "Cividis", "cmin": 0, "cmax": 1}
_BAR = {"tickformat": ".0%", "thickness": 14}
_CELLS = {"xgap": 1, "ygap": 1, "coloraxis": "coloraxis"}


def architecture_section(overlay: Overlay) -> Section | None:
    """Heat maps of every run whose front has a model with layers; None if there is none."""
    sentences, panels = [], []
    for index, run in enumerate(overlay.runs):
        kinds = kinds_kept(run)
        if not kinds:
            continue
        label = overlay.prefix(index)
        suffix = f"-{index}" if index else ""
        caption = (
            "Units left in each layer of each model on the front, the smallest model at the "
            "bottom. The number is the count, the colour is its share of the unpruned layer. An "
            "empty cell is a layer that the student never had."
        )
        figure, title = architectures_figure(run, kinds), f"{label}How much is left of each layer"
        panels.append(Panel(f"architectures{suffix}", title, figure, caption))
        agreed = consensus(run)
        if agreed:
            sentences.append(label + _sentence(run, agreed))
            caption = (
                f"Left: the share of the {agreed.models} models of the front that keep each "
                "attention head. Right: FFN neurons that all of them keep, that some keep, and "
                "that none keeps."
            )
            figure, title = consensus_figure(agreed), f"{label}Which units the models agree on"
            panels.append(Panel(f"consensus{suffix}", title, figure, caption))
    title = "What the models keep"
    return Section("architecture", title, tuple(sentences), tuple(panels)) if panels else None


def _sentence(run: RunRecord, agreed: Consensus) -> str:
    heads = [share for layer in agreed.heads for share in layer]
    gone, neurons = heads.count(0.0), sum(run.unpruned.ffn_per_layer)
    always, _, never = map(sum, zip(*agreed.ffn, strict=True))
    everywhere = [
        f"{layer}.{head}"
        for layer, row in enumerate(agreed.heads, 1)
        for head, share in enumerate(row, 1)
        if share == 1
    ]
    named = f" (layer.head: {', '.join(everywhere)})" if 0 < len(everywhere) <= 12 else ""
    return (
        f"{heads.count(1.0)} of {len(heads)} heads{named} and {always:,} of "
        f"{neurons:,} FFN neurons are in all {agreed.models} models of the front; "
        f"{gone} head{'s' * (gone != 1)} and {never:,} neurons are in none."
    )


def architectures_figure(run: RunRecord, kinds: list[KeptUnits]) -> go.Figure:
    """Draw a heat map of each kind, two side by side, the smallest model lowest."""
    rows = [f"{percent(trial.result.ratio)} (trial {trial.number})" for trial in run.front]
    lines = -(-len(kinds) // 2)
    height = lines * (110 + min(28, 16 + 120 // len(rows)) * len(rows))
    figure = make_subplots(
        rows=lines,
        cols=2,
        shared_yaxes=True,
        horizontal_spacing=0.03,
        vertical_spacing=55 / (height - 90) if lines > 1 else 0,  # layers' numbers, and a title
        subplot_titles=[f"{units.unit} kept" for units in kinds],
    )
    for index, units in enumerate(kinds):
        layers = [str(layer + 1) for layer in range(len(units.totals))]
        figure.add_heatmap(
            x=layers,
            y=rows,
            z=units.shares,
            text=[[*row, *[""] * (len(layers) - len(row))] for row in units.counts],
            texttemplate="%{text}" if len(rows) * len(layers) <= 400 else None,
            hovertext=[
                [
                    f"{name}<br>layer {layer}: {count:,} of {total:,} {units.unit}"
                    for layer, count, total in zip(layers, row, units.totals, strict=False)
                ]
                for name, row in zip(rows, units.counts, strict=True)
            ],
            hoverinfo="text",
            hoverongaps=False,
            name=f"{units.unit} kept",
            **_CELLS,
            row=index // 2 + 1,
            col=index % 2 + 1,
        )
    figure.update_xaxes(type="category", showgrid=False)
    figure.update_xaxes(title_text="layer", row=lines)
    figure.update_yaxes(type="category", showgrid=False, automargin=True)
    margin, colours = {"l": 20, "r": 20, "t": 40, "b": 50}, {**_COLOURS, "colorbar": _BAR}
    theme.lay_out(figure, height=height, margin=margin, legend=None, coloraxis=colours)
    return figure


def consensus_figure(agreed: Consensus) -> go.Figure:
    """Draw heads as a heat map, layer by head, and FFN neurons as bars, layer by layer."""
    layers = [str(layer) for layer in range(1, len(agreed.heads) + 1)]
    title = "heads: share of models that keep it"
    titles = [title, "FFN neurons"]
    figure = make_subplots(rows=1, cols=2, horizontal_spacing=0.2, subplot_titles=titles)
    heads = [str(head + 1) for head in range(max(map(len, agreed.heads)))]
    hover = "layer %{y}, head %{x}: kept by %{z:.0%}<extra></extra>"
    cells = {"z": agreed.heads, "hovertemplate": hover, **_CELLS}
    figure.add_heatmap(x=heads, y=layers, name=title, **cells, row=1, col=1)
    names, colours = ("all keep", "some keep", "none keeps"), (theme.BLUE, theme.SKY, theme.GREY)
    bars = zip(names, colours, ("", "/", "."), zip(*agreed.ffn, strict=True), strict=True)
    for name, colour, pattern, counts in bars:
        marker = {"color": colour, "pattern": {"shape": pattern}}
        figure.add_bar(x=counts, y=layers, orientation="h", name=name, marker=marker, row=1, col=2)
    figure.update_xaxes(title_text="head", type="category", showgrid=False, row=1, col=1)
    figure.update_xaxes(**theme.AXIS, title_text="neurons", row=1, col=2)
    figure.update_yaxes(type="category", autorange="reversed", title_text="layer")
    height, legend = 170 + 24 * len(layers), {**theme.LEGEND, "x": 0.5}
    scale = {**_COLOURS, "colorbar": {**_BAR, "x": 0.41}}
    theme.lay_out(figure, barmode="stack", height=height, top=40, legend=legend, coloraxis=scale)
    return figure
