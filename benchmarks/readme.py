"""README's figure and its table, both of the tweets' rows of results/rivals.json."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import plotly.graph_objects as go

from benchmarks.harness import RESULTS, groups_of
from reports.figures import theme
from reports.page.picture import write_picture

PICTURE = Path(__file__).parent.parent / "docs" / "rivals.svg"
COLUMNS = ("ms a text", "speed, int8 = 1", "held-out accuracy", "same answers")


class Rival(NamedTuple):
    """Means over the seeds."""

    ms: float
    metric: float
    agreement: float
    seeds: int


TABLE = {  # in the words of the table
    "teacher": "MiniLM-L6, fine-tuned on 4,000 tweets",
    "teacher, int8": "the same in int8 (onnxruntime)",
    "compress, gate of agreement": "**`compress`**, 95% of the answers",
    "compress, gate of metric": "**`compress`**, 98% of the accuracy",
    "model2vec, teacher's answers": "model2vec, trained on MiniLM's answers",
    "tf-idf, teacher's answers": "tf-idf and logistic regression, on MiniLM's answers",
}
FIGURE = {  # in the words of the figure, and where the label stands
    "teacher": ("MiniLM-L6, float32", "top center"),
    "teacher, int8": ("int8", "middle left"),
    "torch.onnx.export, quantize_dynamic": ("torch.onnx.export, quantize_dynamic", "bottom center"),
    "CTranslate2, int8": ("CTranslate2, int8", "top left"),
    "compress, gate of agreement": ("compress, 95% of the answers", "top center"),
    "compress, gate of metric": ("compress, 98% of the accuracy", "bottom right"),
    "model2vec, teacher's answers": ("model2vec", "middle left"),
    "tf-idf, teacher's answers": ("tf-idf", "middle right"),
}


def rivals() -> dict[str, Rival]:
    """Read the rivals of `compress` on the tweets, by name."""
    rows = json.loads((RESULTS / "rivals.json").read_text())["rows"]
    groups = groups_of((row for row in rows if row["task"] == "tweets"), ("rival",))
    means = Rival._fields[:3]
    return {
        name: Rival(*(fmean(row[field] for row in group) for field in means), seeds=len(group))
        for (name,), group in groups.items()
    }


def seeds_of(found: dict[str, Rival]) -> str:
    """Say how many seeds a mean has."""
    (count,) = {found[name].seeds for name in FIGURE}
    return {1: "one seed", 2: "mean of two seeds", 3: "mean of three seeds"}[count]


def table(found: dict[str, Rival]) -> str:
    """Return the table as Markdown; speeds are ratios of its milliseconds before rounding."""
    lines = [f"| tweets, three sentiments | {' | '.join(COLUMNS)} |", "|---" * 5 + "|"]
    for name, words in TABLE.items():
        ms, metric, agreement, _ = found[name]
        speed = found["teacher, int8"].ms / ms
        lines.append(f"| {words} | {ms:.3g} | {speed:.1f} | {metric:.3f} | {agreement:.1%} |")
    return "\n".join(lines)


def labels(found: dict[str, Rival]) -> dict[str, list[str]]:
    """Return the two lines beside each point."""
    numbers = {name: f"{found[name].ms:.3g} ms, {found[name].agreement:.1%}" for name in FIGURE}
    return {name: [words, numbers[name]] for name, (words, _) in FIGURE.items()}


def figure(found: dict[str, Rival]) -> go.Figure:
    """Draw the share of same answers against milliseconds."""
    drawn = go.Figure()
    for name, lines in labels(found).items():
        ours = name.startswith("compress")
        colour = theme.VERMILLION if ours else theme.BLUE
        drawn.add_scatter(
            x=[found[name].ms],
            y=[found[name].agreement],
            mode="markers+text",
            marker={"color": colour, "size": 13 if ours else 9, "symbol": "star" if ours else None},
            text="<br>".join(lines),
            textposition=FIGURE[name][1],
            textfont={"color": colour if ours else "#222222", "size": 12},
            showlegend=False,
        )
    title = f"ms from text to label, one thread, log scale ({seeds_of(found)})"
    ticks = [0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10]
    theme.lay_out(
        drawn,
        height=400,
        width=760,
        xaxis=theme.x_axis(title, type="log", tickvals=ticks, range=[-1.35, 1.1]),
        yaxis=theme.axis(
            "same answers, held out", tickformat=".0%", range=[0.87, 1.018], dtick=0.02
        ),
    )
    return drawn


def main() -> None:
    """Draw the figure, print the table: python -m benchmarks.readme"""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--picture", type=Path, default=PICTURE)
    write_picture(figure(rivals()), parser.parse_args().picture)
    print(table(rivals()))  # noqa: T201


if __name__ == "__main__":
    main()
