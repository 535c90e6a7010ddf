"""The front as a small picture, for a README, a slide or a paper."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import plotly.graph_objects as go

from orchestrator.errors import RunError
from orchestrator.records import RunRecord
from reports.front_figure import front_figure
from reports.overlay import overlay

PICTURES = (".svg", ".png", ".pdf")
"""Suffixes that `front_image` can write."""


def front_image(runs: Sequence[RunRecord], target: Path) -> Path:
    """Write the front on white, 760 x 440; returns `target`. Raises what `write_picture` does."""
    figure = front_figure(overlay(runs))
    figure.update_layout(width=760, height=440)
    return write_picture(figure, target)


def write_picture(figure: go.Figure, target: Path) -> Path:
    """Write a figure on white; returns `target`. As .html it needs no browser.

    Raises RunError for another suffix, and if kaleido or its browser is missing.
    """
    figure.update_layout(paper_bgcolor="white", plot_bgcolor="white")
    if target.suffix == ".html":
        figure.write_html(target)
        return target
    if target.suffix not in PICTURES:
        raise RunError(f"'{target}' ends in '{target.suffix}'; use {', '.join(PICTURES)} or .html")
    try:
        picture = figure.to_image(format=target.suffix.removeprefix("."))
    except RuntimeError as error:  # kaleido's errors about its browser are of this class too
        raise RunError(
            f"'{target}' needs kaleido and a browser that starts: pip install 'maskfront[image]', "
            "and let BROWSER_PATH name the executable of a Chrome or Chromium"
        ) from error
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(picture)
    return target
