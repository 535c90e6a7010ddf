"""Front as a small picture, for a README, a slide or a paper."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import plotly.graph_objects as go

from orchestrator.errors import RunError
from reports.figures.front import front_figure
from reports.overlay import Runs, overlay

PICTURES = (".svg", ".png", ".pdf")
_SECONDS = 45.0  # seconds for one attempt, which takes about two
_DRAW = """
import sys, plotly.io
figure = plotly.io.from_json(sys.stdin.read(), skip_invalid=True)
sys.stdout.buffer.write(figure.to_image(format=sys.argv[1]))
"""


def front_image(runs: Runs, target: str | Path) -> Path:
    """Write the front on white, 760 x 440.

    Args:
        runs: one run, or several to be shown on the same axes.
        target: the file; its name ends in .svg, .png, .pdf or .html.

    Returns:
        The file.

    Raises:
        RunError: for another suffix, and if kaleido or its browser is missing.
    """
    figure = front_figure(overlay(runs))
    figure.update_layout(width=760, height=440)
    return write_picture(figure, Path(target))


def write_picture(figure: go.Figure, target: Path) -> Path:
    """Write a figure on white; returns `target`. As .html it needs no browser."""
    figure.update_layout(paper_bgcolor="white", plot_bgcolor="white")
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.suffix == ".html":
        figure.write_html(target)
        return target
    if target.suffix not in PICTURES:
        raise RunError(f"'{target}' ends in '{target.suffix}'; use {', '.join(PICTURES)} or .html")
    picture = _draw(figure, target.suffix.removeprefix("."))
    if not picture:
        raise RunError(
            f"'{target}' needs kaleido and a browser that starts: "
            "pip install -c constraints.txt -e '.[image]', "
            "and set BROWSER_PATH to the executable of Chrome or Chromium"
        )
    target.write_bytes(picture)
    return target


def _draw(figure: go.Figure, kind: str) -> bytes:
    """Figure as the bytes of a file of this kind, empty if that fails. In a process of its own:
    kaleido waits forever for a browser that hangs, which happens now and then, and a new one rarely
    does."""
    if find_spec("kaleido") is None:
        return b""
    for _ in range(2):
        try:
            drawn = subprocess.run(
                [sys.executable, "-P", "-c", _DRAW, kind],  # -P: no module of the folder it is in
                input=figure.to_json().encode(),
                capture_output=True,
                timeout=_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            continue
        return drawn.stdout if drawn.returncode == 0 else b""
    return b""
