"""First section of a page of `compress`: the written model beside all candidates."""

import json
from contextlib import suppress
from dataclasses import asdict, dataclass
from hashlib import file_digest
from operator import itemgetter
from pathlib import Path
from typing import TypeAlias

import plotly.graph_objects as go

from objectives.cache import atomic_write_text
from orchestrator.runs.reading import as_record, read_json
from orchestrator.runs.records import RunRecord
from reports.figures import theme
from reports.figures.theme import Panel, Section

_FILE = "compressed.json"
ALONE, CASCADE, WRITTEN = "one model", "cascade", "written"  # kinds of points
_STYLES = {
    ALONE: {"color": theme.BLUE, "symbol": "circle", "size": 9},
    CASCADE: {"color": theme.SKY, "symbol": "triangle-down-open", "size": 9},
    WRITTEN: {"color": theme.VERMILLION, "symbol": "star", "size": 15},
}


Point: TypeAlias = tuple[str, str, float, float]
"""A model or a cascade: kind, name, milliseconds from text to label, and share of the held-out
texts that it answers as the unpruned model does."""


@dataclass(frozen=True, kw_only=True)
class CompressChoice:
    """The choice of `compress` in words, and all candidates."""

    sentences: tuple[str, str, str, str]
    """Sentences: the model, its scores, whether it passed the gate, the command that serves it."""
    points: tuple[Point, ...]
    files: tuple[str, ...]  # `files_below` of the folder
    folder: str = ""  # absolute

    def keep(self, run: RunRecord) -> None:
        """Write the choice to the run folder."""
        atomic_write_text(run.folder / _FILE, json.dumps(asdict(self)))


def read_choice(run_folder: Path) -> CompressChoice | None:
    """Read the last choice of a run of `compress`; None if nothing was written."""
    with suppress(FileNotFoundError):
        file = run_folder / _FILE
        return as_record(CompressChoice, read_json(file), str(file))
    return None


def forget_choice(run_folder: Path) -> None:
    """Forget the last choice of a run of `compress` if its folder is gone."""
    choice = read_choice(run_folder)
    if choice is not None and not Path(choice.folder).is_dir():
        (run_folder / _FILE).unlink()


def _digest(file: Path) -> str:
    with file.open("rb") as content:
        return file_digest(content, "sha256").hexdigest()


def files_below(folder: Path) -> tuple[str, ...]:
    """List all files below a folder, without Python's bytecode: name and SHA-256 of each."""
    files = [file for file in folder.rglob("*") if file.is_file()]
    return tuple(
        sorted(
            f"{file.relative_to(folder)} {_digest(file)}"
            for file in files
            if "__pycache__" not in file.parts
        )
    )


def compressed_section(run: RunRecord) -> tuple[str, Section] | None:
    """Answer and section of a run of `compress`; None for others, and if nothing was written."""
    choice = read_choice(run.folder)
    if choice is None:
        return None
    figure = go.Figure()
    for kind, style in _STYLES.items():
        points = sorted((p for p in choice.points if p[0] == kind), key=itemgetter(2))
        figure.add_scatter(
            x=[milliseconds for *_, milliseconds, _ in points],
            y=[agreement for *_, agreement in points],
            mode="markers",
            name=kind,
            marker=style,
            text=[theme.plain(name) for _, name, *_ in points],
            hovertemplate="%{text}<br>%{x:.2f} ms, %{y:.1%} of the answers",
        )
    times = [milliseconds for *_, milliseconds, _ in choice.points]
    ticks = theme.log_ticks(0.5 * min(times, default=1), 2 * max(times, default=1))
    x_axis = theme.x_axis("ms from text to label, one thread", type="log", tickvals=ticks)
    y_axis = theme.axis("same answers, held out", tickformat=".0%")
    theme.lay_out(figure, height=400, xaxis=x_axis, yaxis=y_axis)
    caption = (
        "Each model in its fastest engine, the unpruned one in all, and the cascades of two or "
        "three of them that answer most texts as the unpruned model does at their time."
    )
    panel = Panel("compressed-choice", "What could be written", figure, caption)
    *answer, gate, command = choice.sentences
    serves = "It needs onnxruntime, tokenizers and numpy alone. This prints a label a line:"
    section = Section("compressed", "What was written", (gate, serves), (panel,), (command,))
    return " ".join(answer), section
