"""The report: one HTML page that shows a run and needs nothing but itself."""

from __future__ import annotations

import shlex
from collections import Counter
from pathlib import Path

import plotly.graph_objects as go
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from plotly.io import to_html

from orchestrator.records import RunRecord, TrialRecord, size_text
from orchestrator.run_folder import write_file_whole
from reports.architectures import architectures_figure, architectures_view
from reports.pareto import answer, knob_texts, pareto_figure, pareto_view

_TEMPLATES = Environment(
    loader=FileSystemLoader(Path(__file__).parent),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_TEMPLATES.filters["knobs"] = knob_texts
_TEMPLATES.filters["size"] = size_text

# Plotly's "Share chart" button uploads the figure to its cloud: there is none on this page.
_CONFIG = {
    "displaylogo": False,
    "showSendToCloud": False,
    "modeBarButtonsToRemove": ["select2d", "lasso2d"],
}


def write_report(run: RunRecord, target: Path) -> Path:
    """Write the page, whole or not at all; returns `target`. Raises OSError if the disk refuses."""
    view = pareto_view(run)
    architectures = architectures_view(run)
    sequence = run.unpruned.flops_unit.partition("@")[2]
    content = _TEMPLATES.get_template("page.html.j2").render(
        run=run,
        view=view,
        answer=answer(view),
        counts=Counter(map(state_text, run.trials)),
        state_text=state_text,
        sequence=sequence,
        folder=shlex.quote(str(run.folder)),
        front=_embedded(pareto_figure(view), "front", with_script=True),
        architectures=_embedded(architectures_figure(architectures), "architectures")
        if architectures.trials
        else None,
    )
    target.parent.mkdir(parents=True, exist_ok=True)
    write_file_whole(target, content)
    return target


def state_text(trial: TrialRecord) -> str:
    """What became of a trial, in the page's words."""
    if trial.result is None:
        return "no result" if trial.state == "finished" else trial.state
    return "finished" if trial.feasible else "outside budget"


def _embedded(figure: go.Figure, name: str, with_script: bool = False) -> Markup:
    # Plotly writes "<", ">" and "/" inside its JSON as \u003c and so on: no text closes a script.
    return Markup(
        to_html(
            figure,
            full_html=False,
            include_plotlyjs=with_script,
            div_id=name,
            default_height=f"{figure.layout.height}px",
            config=_CONFIG,
        )
    )
