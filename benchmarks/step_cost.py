"""What a training step costs a trial: against K, the length of the batch, and the student's size.

MiniLM-L6, batches of 32. A searching step is that of `MaskSearch` (weights on one batch, alpha on
another), K students as one program; after the cut one student distils logits and hidden states. The
floor is what three forward passes a batch would take if the device did nothing but their matmuls,
at the rate of a large one. On a CPU one thread and its processor time.

Model and tweets are the quickstart's. `--made-up` takes random weights and texts, and needs neither
package of requirements-demo.txt: a searching step costs the same, one after the cut somewhat more,
since heads stay in nearly all layers then, where MiniLM loses those of whole layers.

    python -m benchmarks.step_cost [--sizes 1 2 4 8] [--lengths 16 32 64 128]
        [--ratios 0.99 0.5 0.25 0.1 0.05] [--device cpu] [--steps 4] [--rounds 3]
        [--made-up] [--out benchmarks/results] [--picture docs/step-cost.svg]
    python -m benchmarks.step_cost --draw step_cost-cuda.json --picture FILE

Rounds take turns over all cells; a GPU has 1 to 64 students unless they are named, and 30 steps.
Prints a table; writes step_cost-<device>.json after each round, and on a CPU the figure (as .html
it needs no browser). What finds no memory has a row that says so. Needs torch, transformers, rich,
and what `objectives` imports (see `benchmarks.made_up`); the figure, which `--draw` makes of what
was measured elsewhere, plotly and the extra "image".
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks.harness import parsed, parser_of, write_json
from benchmarks.inner_search import make_problem, make_up_problem, padded
from benchmarks.population import SIZES, ceilings
from benchmarks.timing import STEPS, WARM_UP, Stopwatch, clock, describe, kind_of, until_enough
from objectives.device import (
    choose_device,
    free_memory,
    matmul_dtype,
    out_of_memory,
)
from objectives.methods.fisher_search import FisherSearch
from objectives.methods.mask_search import MaskSearch
from objectives.problem import Problem
from objectives.pruning.staged_method import StagedMethod
from objectives.training.stages import Stage

if TYPE_CHECKING:
    import plotly.graph_objects as go

RECOVER = Stage(name="recover", epochs=1, learning_rate=3e-4, loss="prediction+hidden")
SEARCH = MaskSearch(stages=(replace(RECOVER, name="search", searches=True, loss="prediction"),))
DISTIL = FisherSearch(tolerance=0.02, stages=(RECOVER,))
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
            return 2 * sequences * problem.budget.full
        return sequences * self.ratio * problem.budget.full


def cells(sizes: list[int], lengths: list[int], ratios: list[float]) -> list[Cell]:
    """All three panels."""
    return [
        *(Cell("k", True, k=k) for k in sizes),
        *(Cell("tokens", kind, tokens=length) for kind in (True, False) for length in lengths),
        *(Cell("ratio", False, ratio=ratio) for ratio in ratios),
    ]


def figure(rows: list[dict[str, Any]]) -> go.Figure:
    """Milliseconds a student, and the floor: a panel for each of what is varied."""
    from plotly.subplots import make_subplots  # what measures on a GPU need not have it

    from reports.figures.theme import AXIS, BLUE, GREY, LAYOUT, VERMILLION

    rows = [row for row in rows if "ms_a_student" in row]
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


def draw(rows: list[dict[str, Any]], picture: Path) -> None:
    """Write the figure."""
    from reports.page.picture import write_picture

    write_picture(figure(rows), picture)


def seconds_of_step(
    method: StagedMethod, problem: Problem, steps: int, seed: int, students: int
) -> float:
    """Of the last stage, after its first steps; so many students take it at once."""
    kind = kind_of(problem.device)
    epochs = (steps + WARM_UP[kind]) * method.batch_size / len(problem.train)
    last = replace(method.stages[-1], epochs=epochs)
    members = [replace(method, stages=(*method.stages[:-1], last))] * students
    now = clock(problem.device, processor=kind == "cpu")
    watch = Stopwatch(last.name, steps, WARM_UP[kind], now)
    until_enough(type(method).search(members, problem, seed=seed, progress=watch))
    return watch.seconds


def tried(cell: Cell, problem: Problem, steps: int, seed: int) -> float | None:
    """Seconds of a step of all its students; None if there is not enough memory for them."""
    free_memory()
    try:
        return seconds_of_step(cell.method(), problem, steps, seed, students=cell.k)
    except Exception as error:
        if not out_of_memory(error):
            raise
        return None


def row(
    cell: Cell, found: Sequence[float | None], problem: Problem, limits: Mapping[str, float]
) -> dict[str, Any]:
    """What the rounds of one cell say together."""
    good = [seconds for seconds in found if seconds is not None]
    entry = asdict(cell)
    if len(good) < len(found):
        entry["failed"] = "out of memory"
    if good:
        entry["ms_a_student"] = 1000 * statistics.median(good) / cell.k
        entry["floor_ms"] = 1000 * cell.flops(problem) / limits["matmul_flops_per_second"]
    return entry


def show(rows: Sequence[Mapping[str, Any]]) -> None:
    """The table."""
    table = Table("varied", "stage", "K", "tokens", "ratio", "ms a student", "matmuls", "share")
    for entry in rows:
        stage = "search" if entry["searching"] else "distil"
        ratio = "" if entry["searching"] else f"{entry['ratio']}"
        names = (entry["panel"], stage, str(entry["k"]), str(entry["tokens"]), ratio)
        if "ms_a_student" not in entry:
            table.add_row(*names, entry["failed"])
            continue
        own, floor = entry["ms_a_student"], entry["floor_ms"]
        table.add_row(*names, f"{own:.1f}", f"{floor:.1f}", f"{floor / own:.0%}")
    Console().print(table)


def main() -> None:
    """Measure all cells in turn, round after round; the table, the JSON and the figure."""
    parser = parser_of(__doc__)
    parser.add_argument("--sizes", type=int, nargs="+")
    parser.add_argument("--lengths", type=int, nargs="+", default=[16, 32, 64, 128])
    parser.add_argument("--ratios", type=float, nargs="+", default=[0.99, 0.5, 0.25, 0.1, 0.05])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--steps", type=int)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--made-up", action="store_true")
    parser.add_argument("--picture", type=Path)
    parser.add_argument("--draw", type=Path, help="what was measured: draw it, measure nothing")
    options = parsed(parser)
    options.device = choose_device(options.device)
    kind, picture = kind_of(options.device), options.picture
    if picture is None and (kind == "cpu" or options.draw):
        picture = Path("docs/step-cost.svg")
    if options.draw:
        draw(json.loads(options.draw.read_text())["rows"], picture)
        return
    torch.set_num_threads(1)
    now = clock(options.device, processor=kind == "cpu")
    limits = ceilings(options.device, 1, matmul_dtype("auto", options.device), now)
    free_memory()  # the buffers
    document: dict[str, Any] = {
        "device": describe(options.device),
        "clock": "processor time of one thread" if kind == "cpu" else "wall time",
        "precision": str(matmul_dtype("auto", options.device)),
        "torch": torch.__version__,
        "made_up": options.made_up,
        **limits,
    }
    steps = options.steps or STEPS[kind]
    wanted = cells(options.sizes or list(SIZES[kind]), options.lengths, options.ratios)
    seconds: dict[Cell, list[float | None]] = {cell: [] for cell in wanted}
    with TemporaryDirectory() as folder:
        make = make_up_problem if options.made_up else make_problem
        problems = {
            length: padded(make(Path(folder), options.device, length, train=320, alpha=320))
            for length in {cell.tokens for cell in wanted}
        }
        turns = [(seed, cell) for seed in range(options.rounds) for cell in wanted]
        for seed, cell in track(turns, "measure"):
            seconds[cell].append(tried(cell, problems[cell.tokens], steps, seed))
            if cell == wanted[-1]:
                document["rows"] = [
                    row(cell, found, problems[cell.tokens], limits)
                    for cell, found in seconds.items()
                ]
                write_json(options.out / f"step_cost-{kind}.json", document)
    show(document["rows"])
    if picture is not None:
        draw(document["rows"], picture)


if __name__ == "__main__":
    main()
