"""Colours and layout that the figures share: safe for colour-blind eyes, on light and on dark."""

from __future__ import annotations

import html
from typing import Any

# Okabe and Ito, "Color Universal Design" (2008).
BLUE = "#0072B2"
GREEN = "#009E73"
ORANGE = "#E69F00"
VERMILLION = "#D55E00"
GREY = "#808080"

_GRID = "rgba(128, 128, 128, 0.25)"
AXIS = {"gridcolor": _GRID, "zeroline": False, "automargin": True}

LAYOUT: dict[str, Any] = {
    "template": "none",
    "font": {"family": "system-ui, sans-serif", "size": 13, "color": "#222222"},
    "paper_bgcolor": "rgba(0, 0, 0, 0)",
    "plot_bgcolor": "rgba(0, 0, 0, 0)",
    "hoverlabel": {"bgcolor": "white", "font": {"color": "#222222"}, "align": "left"},
}


def plain(text: object) -> str:
    """Text for a figure, where Plotly would take `<b>` and its like for markup."""
    return html.escape(str(text), quote=False)
