"""What a training step costs a trial: against K, the length of the batch, and the student's size.

MiniLM-L6, batches of 32. A searching step is that of `MaskSearch` (weights on one batch, alpha on
another), K students as one program; after the cut one student distils logits and hidden states. The
floor is what three forward passes a batch would take if the device did nothing but their matmuls,
at the rate of a large one. On a CPU one thread and its processor time.

    python -m benchmarks.step_cost [--sizes 1 2 4 8] [--lengths 16 32 64 128]
        [--ratios 0.99 0.5 0.25 0.1 0.05] [--device cpu] [--steps 4] [--rounds 3]
        [--picture docs/step-cost.svg]

Rounds take turns over all cells. Prints a table, writes benchmarks/results/step_cost-<device>.json
and the figure (as .html it needs no browser).
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import plotly.graph_objects as go
import torch
from plotly.subplots import make_subplots
from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks.inner_search import describe
from benchmarks.population import ceilings, make_checkpoint, make_problem
from benchmarks.teacher_states import METHOD, RECOVER, seconds_of_step
from objectives.device import matmul_dtype, quiet_libraries
from objectives.methods.mask_search import MaskSearch
from objectives.problem import Problem
from objectives.staged_method import StagedMethod
from reports.picture import write_picture
from reports.theme import AXIS, BLUE, GREY, LAYOUT, VERMILLION

SEARCH = MaskSearch(stages=(replace(RECOVER, name="search", searches=True, loss="prediction"),))
DISTIL = replace(METHOD, precision="auto")
TOKENS, RATIO = 32, 0.5
"""Where they are not what is varied."""


@dataclass(frozen=True)
class Cell:
    """One measurement."""

    panel: str
    """What is varied: "k", "tokens" or "ratio"."""
    searching: bool
    k: int = 1
    tokens: int = TOKENS
    ratio: float = RATIO

    def method(self) -> StagedMethod:
        """What is timed."""
        return SEARCH if self.searching else replace(DISTIL, target_ratio=self.ratio)

    def flops(self, problem: Problem) -> float:
        """Of the matmuls of a student's step: three forward passes of each batch."""
        sequences = 3 * DISTIL.batch_size
        if self.searching:
            return 2 * sequences * problem.cost_full
        return sequences * self.ratio * problem.cost_full


def cells(sizes: list[int], lengths: list[int], ratios: list[float]) -> list[Cell]:
    """All three panels."""
    return [
        *(Cell("k", True, k=k) for k in sizes),
        *(Cell("tokens", kind, tokens=length) for kind in (True, False) for length in lengths),
        *(Cell("ratio", False, ratio=ratio) for ratio in ratios),
    ]


def figure(rows: list[dict[str, Any]]) -> go.Figure:
    """Milliseconds a student, and the floor: a panel for each of what is varied."""
    titles = {"k": "students at once (K)", "tokens": "tokens a sequence", "ratio": "FLOPs ratio"}
    drawn = make_subplots(cols=3, horizontal_spacing=0.08, shared_yaxes=True)
    for column, (panel, title) in enumerate(titles.items(), start=1):
        for searching, colour in ((True, BLUE), (False, VERMILLION)):
            own = [r for r in rows if r["panel"] == panel and r["searching"] is searching]
            name = "searching" if searching else "after the cut"
            for key, label, line in (
                ("ms_a_student", name, {"color": colour, "width": 2}),
                ("floor_ms", "matmuls alone", {"color": GREY, "width": 1, "dash": "dot"}),
            ):
                drawn.add_scatter(
                    x=[row[panel] for row in own],
                    y=[row[key] for row in own],
                    name=label,
                    legendgroup=label,
                    # Each label once: this panel has them all.
                    showlegend=panel == "tokens" and (searching or label == name),
                    mode="lines+markers" if key == "ms_a_student" else "lines",
                    line=line,
                    row=1,
                    col=column,
                )
        ticks = sorted({row[panel] for row in rows if row["panel"] == panel})
        drawn.update_xaxes(
            {
                **AXIS,
                "type": "log",
                "title": title,
                "tickangle": 0,
                "tickvals": ticks,
                "ticktext": ticks,
            },
            row=1,
            col=column,
        )
    drawn.update_yaxes({**AXIS, "type": "log", "dtick": 1})
    drawn.update_yaxes(title="ms a step and student", row=1, col=1)
    return drawn.update_layout(
        **LAYOUT,
        width=900,
        height=380,
        margin={"t": 50, "r": 20},
        legend={"orientation": "h", "y": 1.15},
    )


def main() -> None:
    """Measure all cells in turn, round after round; the table, the JSON and the figure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--lengths", type=int, nargs="+", default=[16, 32, 64, 128])
    parser.add_argument("--ratios", type=float, nargs="+", default=[0.99, 0.5, 0.25, 0.1, 0.05])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--picture", type=Path, default=Path("docs/step-cost.svg"))
    options = parser.parse_args()
    quiet_libraries()
    torch.set_num_threads(1)
    now = time.process_time if options.device == "cpu" else time.perf_counter
    limits = ceilings(options.device, 1, matmul_dtype("auto", options.device), now)
    wanted = cells(options.sizes, options.lengths, options.ratios)
    seconds: dict[Cell, list[float]] = {cell: [] for cell in wanted}
    with TemporaryDirectory() as folder:
        checkpoint = make_checkpoint(Path(folder) / "teacher")
        problems = {
            length: replace(make_problem(checkpoint, length, options.device), cache=Path(folder))
            for length in {cell.tokens for cell in wanted}
        }
        turns = [(seed, cell) for seed in range(options.rounds) for cell in wanted]
        for seed, cell in track(turns, "measure"):
            seconds[cell].append(
                seconds_of_step(
                    cell.method(), problems[cell.tokens], options.steps, seed, students=cell.k
                )
            )
    rows: list[dict[str, Any]] = []
    table = Table("varied", "stage", "K", "tokens", "ratio", "ms a student", "matmuls", "share")
    for cell, found in seconds.items():
        own = 1000 * statistics.median(found) / cell.k
        floor = 1000 * cell.flops(problems[cell.tokens]) / limits["matmul_flops_per_second"]
        rows.append({**asdict(cell), "ms_a_student": own, "floor_ms": floor})
        stage = "search" if cell.searching else "distil"
        ratio = "" if cell.searching else f"{cell.ratio}"
        numbers = (f"{own:.1f}", f"{floor:.1f}", f"{floor / own:.0%}")
        table.add_row(cell.panel, stage, str(cell.k), str(cell.tokens), ratio, *numbers)
    Console().print(table)
    document = {
        "device": describe(options.device),
        "clock": "processor time of one thread" if options.device == "cpu" else "wall time",
        "precision": str(matmul_dtype("auto", options.device)),
        "torch": torch.__version__,
        **limits,
        "rows": rows,
    }
    out = Path(__file__).parent / "results" / f"step_cost-{options.device.split(':')[0]}.json"
    out.write_text(json.dumps(document, indent=2) + "\n")
    write_picture(figure(rows), options.picture)


if __name__ == "__main__":
    main()
