"""How far does each of the four hyperparameters of the loop move the outcome of a trial?

The quickstart's task, teacher and shared student; R = 0.25. Of each method the trial at its own
settings, then trials that differ in one of them:

    ElasticSearch    masks searched along the order of the shared training, as the quickstart does
    MaskSearch       weights and masks learn together, 94 steps, then 94 steps after the cut

    OMP_NUM_THREADS=1 python -m benchmarks.knobs --cache FOLDER [--seeds 0]

Writes benchmarks/results/knobs.json and prints its table. `heads` and `neurons` are units that the
trial keeps and the one at its own settings cuts, or the other way round. KL is the divergence from
the teacher on the selection split. `open` is the share of the cost that the masks left open in the
last step of the search; the JSON has it at each step. `--picture FILE.svg` draws that.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import plotly.graph_objects as go

from benchmarks.harness import Row, Rows, parsed, parser_of, print_means
from benchmarks.tasks import RATE, kept, worth
from maskfront import MaskSearch, SearchResult, Stage
from objectives.progress import SilentProgress
from objectives.search_method import SearchMethod
from objectives.session import Session
from objectives.students.bert.architecture import BertArchitecture
from objectives.workbench.inputs import read_inputs
from objectives.workbench.workbench import Workbench, prepare
from reports.page.picture import write_picture
from studies.quickstart import study as quickstart

RATIO = 0.25
LEARNS: dict[str, Any] = {"learning_rate": RATE, "loss": "prediction+hidden"}
METHODS: dict[str, SearchMethod] = {
    "ElasticSearch": replace(quickstart.method, target_ratio=RATIO),
    "MaskSearch": MaskSearch(
        target_ratio=RATIO,
        stages=(
            Stage(name="search", epochs=1, searches=True, schedule="constant", **LEARNS),
            Stage(name="recover", epochs=1, **LEARNS),
        ),
    ),
}
SYMBOLS = {"flops_weight": "lambda", "grad_rescale": "kappa"}
CHANGES: dict[str, dict[str, tuple[float, ...]]] = {
    "ElasticSearch": {
        "flops_weight": (0.01, 1.0),
        "grad_rescale": (0.5, 20.0, 60.0),
        "tolerance": (0.01, 0.2),
        "target_ratio": (0.2, 0.3),
    },
    "MaskSearch": {
        "flops_weight": (0.1, 10.0),
        "grad_rescale": (0.03, 0.3),
        "tolerance": (0.01, 0.2),
        "target_ratio": (0.2, 0.3),
    },
}


def changed(units: BertArchitecture, others: BertArchitecture, space: str) -> int:
    """Units of a space that one of the two keeps and the other cuts."""
    pairs = zip(units.layers, others.layers, strict=True)
    return sum(len({*getattr(a, space)} ^ {*getattr(b, space)}) for a, b in pairs)


def rows_of(bench: Workbench, name: str, seed: int) -> list[Row]:
    """The trial of a method at its own settings, and those that differ in one."""
    method = METHODS[name]
    changes = [("", 0.0)]
    changes += [(knob, value) for knob, values in CHANGES[name].items() for value in values]
    members = [replace(method, **({knob: value} if knob else {})) for knob, value in changes]
    outcomes = type(method).search(members, bench.problem, seed=seed, progress=SilentProgress())
    by_slot: dict[int, SearchResult] = {}
    for outcome in outcomes:
        assert isinstance(outcome, SearchResult), outcome
        by_slot[outcome.slot] = outcome
    rows, first = [], by_slot[0].architecture
    assert isinstance(first, BertArchitecture)
    for slot, (knob, value) in enumerate(changes):
        units = by_slot[slot].architecture
        assert isinstance(units, BertArchitecture)
        opened = [p["open_ratio"] for p in by_slot[slot].curve if "open_ratio" in p]
        rows.append(
            {
                "method": name,
                "seed": seed,
                "knob": knob or "(its own settings)",
                "value": value,
                **{space: changed(units, first, space) for space in ("heads", "ffn")},
                **kept(worth(bench, by_slot[slot]), "kl", "heldout_kl", "reached"),
                "open": opened[-1],
                "curve": [round(float(ratio), 4) for ratio in opened],
            }
        )
    return rows


def open_ratios(rows: list[Row]) -> go.Figure:
    """What the masks of MaskSearch left open at each step, a line a setting."""
    figure = go.Figure()
    shown = ("(its own settings)", "flops_weight", "grad_rescale")
    for row in rows:
        if row["method"] == "MaskSearch" and row["knob"] in shown:
            own = row["knob"] == shown[0]
            name = "its own settings" if own else f"{SYMBOLS[row['knob']]} = {row['value']:g}"
            figure.add_scatter(y=row["curve"], mode="lines", name=name, line={"width": 3 - own})
    figure.add_hline(y=RATIO, line={"dash": "dot", "color": "grey"}, annotation_text="R")
    figure.update_layout(
        template="plotly_white",
        xaxis_title="step of the search",
        yaxis={"title": "share of the FLOPs that is open", "tickformat": ".0%", "range": [0, 1.02]},
    )
    return figure


def main() -> None:
    """Run, or go on, and print the table."""
    parser = parser_of(__doc__, seeds=(0,), cache=True)
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=METHODS)
    parser.add_argument("--picture", type=Path)
    asked = parsed(parser)
    inputs = read_inputs(quickstart.task, quickstart.teacher)
    bench = prepare(inputs, Session(cache=asked.cache))
    rows = Rows(asked.out / "knobs.json")
    for seed in asked.seeds:
        for name in asked.methods:
            if not rows.has({"method": name, "seed": seed}):
                rows.add(*rows_of(bench, name, seed))
    if asked.picture:
        write_picture(open_ratios(rows.rows), asked.picture)
    print_means(
        "what each hyperparameter changes",
        rows.rows,
        ("method", "knob", "value"),
        {"heads": ".0f", "ffn": ".0f", "kl": ".4f", "open": ".3f", "reached": ".3f"},
    )


if __name__ == "__main__":
    main()
