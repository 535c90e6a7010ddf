"""Result tables of the source report, run again at a smaller size."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import fmean

from torch import nn
from transformers import AutoModel, AutoTokenizer

from benchmarks.harness import Benchmark, Row, groups_of, print_table
from benchmarks.tasks import BATCH, RATE, kept, task_of, teacher_for, teacher_row, worth
from maskfront import FOUR_STEPS, MaskSearch, RandomPruning, SearchResult, Stage
from objectives.measures.cost import Units
from objectives.progress import SilentProgress
from objectives.search_method import SearchMethod
from objectives.session import Session
from objectives.students.bert.architecture import BertArchitecture
from objectives.workbench.inputs import read_inputs
from objectives.workbench.workbench import Workbench, prepare
from studies._data import minilm

LAYERS = (0, 1, 3, 4)
"""Layers of MiniLM-L6: each reads there what the layer below it here learns to give."""
TOKENS = 64
"""Tokens of a text at most. 37% of the pairs of RTE are longer, and are truncated."""
STEPS = {"cola": (150, 200), "rte": (50, 50), "sst2": (120, 150)}
"""Batches of a step that searches, and of one that does not; the report has 10 epochs in all."""
WHOLE, GATES = "whole", "heads, gates"
SPACES = ("input_qkv", "heads", GATES, "ffn", "qk", "v")
TARGETS = (None, 0.5, 0.75, 1.0)
"""Shares of a space; None: no FLOPs loss, and a budget that all meet."""
SOURCE: dict[tuple[str, str, float | None], tuple[float, float]] = {
    ("cola", WHOLE, 1.0): (0.426, 1.0),
    ("rte", WHOLE, 1.0): (0.667, 1.0),
    ("sst2", WHOLE, 1.0): (0.917, 1.0),
    ("cola", "input_qkv", None): (0.236, 0.406),
    ("cola", "input_qkv", 0.5): (0.267, 0.654),
    ("cola", "input_qkv", 0.75): (0.289, 0.828),
    ("cola", "input_qkv", 1.0): (0.355, 0.974),
    ("rte", "input_qkv", None): (0.621, 0.456),
    ("rte", "input_qkv", 0.5): (0.646, 0.663),
    ("rte", "input_qkv", 0.75): (0.646, 0.825),
    ("rte", "input_qkv", 1.0): (0.653, 0.975),
    ("sst2", "input_qkv", None): (0.894, 0.455),
    ("sst2", "input_qkv", 0.5): (0.905, 0.662),
    ("sst2", "input_qkv", 0.75): (0.906, 0.852),
    ("sst2", "input_qkv", 1.0): (0.909, 0.974),
}
"""Score on the dev set, and ratio found, by task, space and target (tables of 5.1 and 5.6.1)."""
# Ratios of the report lie above the targets of 0.5 and 0.75; the best checkpoint may be an early
# one. Ours end in the band.


def general_student(cache: Path) -> str:
    """Return the folder of four layers of the pretrained model."""
    folder = cache / "minilm-4"
    if not folder.is_dir():
        model = AutoModel.from_pretrained(minilm())
        model.encoder.layer = nn.ModuleList(model.encoder.layer[i] for i in LAYERS)
        model.config.num_hidden_layers = len(LAYERS)
        AutoTokenizer.from_pretrained(minilm()).save_pretrained(folder)
        model.save_pretrained(folder)
    return str(folder)


def four_steps(rows: int, steps: tuple[int, int]) -> tuple[Stage, ...]:
    """Return the report's steps, with so many batches each, and a rate for so few."""
    return tuple(
        replace(stage, epochs=steps[0 if stage.searches else 1] * BATCH / rows, learning_rate=RATE)
        for stage in FOUR_STEPS
    )


def members_of(space: str, stages: tuple[Stage, ...]) -> list[SearchMethod]:
    """Return the population that searches a space."""
    if space == WHOLE:
        return [RandomPruning(target_ratio=1.0, stages=stages[2:], batch_size=BATCH)]
    search = MaskSearch.preset(
        "seed",
        spaces=(space.partition(",")[0],),
        heads_by="softmax" if space == "heads" else "sigmoid",
        discretise="budget",
        stages=stages,
        batch_size=BATCH,
    )
    free = replace(search, flops_weight=0.0, target_ratio=0.51, tolerance=0.99)
    return [
        free if target is None else replace(search, target_ratio=target)
        for target in TARGETS
        if target or space != "heads"
    ]


def rows_of(bench: Workbench, space: str, steps: tuple[int, int], seed: int) -> Iterator[Row]:
    """Train the population of a space; yield a row for each member."""
    # Stage n takes the rows in the order of `seed` + n: no two seeds share one here, and `whole`
    # has those of the last two steps.
    problem, begun = bench.problem, time.process_time()
    seed = len(FOUR_STEPS) * seed + (2 if space == WHOLE else 0)
    members = members_of(space, four_steps(len(problem.train), steps))
    search = type(members[0]).search
    outcomes = list(search(members, problem, seed=seed, progress=SilentProgress()))
    seconds = (time.process_time() - begun) / len(members)
    for member, outcome in zip(members, outcomes, strict=True):
        assert isinstance(outcome, SearchResult), outcome
        units = outcome.architecture
        assert isinstance(units, BertArchitecture)
        row = kept(worth(bench, outcome), "kl", "select", "heldout", "reached")
        row |= {"flops": bench.flops.exact(units) / bench.flops_full, "processor_seconds": seconds}
        if isinstance(member, MaskSearch):
            cost = Units(problem.shape, member.spaces)
            opened = [point["open_ratio"] for point in outcome.curve if "open_ratio" in point]
            row |= {
                "target": member.target_ratio if member.flops_weight else None,
                "open": opened[-1],
                "open_least": min(opened),
                "per_layer": [
                    round(cost.layer(widths) * problem.shape.layers / cost.full, 4)
                    for widths in units.widths(problem.shape)
                ],
            }
        else:
            row |= {"target": 1.0, **teacher_row(bench)}
        yield row


def print_tables(rows: list[Row]) -> None:
    """Print a table for each task: means over seeds, beside the report's."""
    for (task,), of_task in groups_of(rows, ["task"]).items():
        lines = []
        for (space, target), group in groups_of(of_task, ["space", "target"]).items():
            means = [
                f"{fmean(row[name] for row in group):.3f}" if name in group[0] else ""
                for name in ("select", "heldout", "kl", "reached", "open", "open_least", "flops")
            ]
            layers = zip(*(row.get("per_layer", []) for row in group), strict=True)
            per_layer = " ".join(f"{fmean(layer):.2f}" for layer in layers)
            score, ratio = SOURCE.get((task, space, target), ("", ""))
            asked = "none" if target is None else target
            lines.append([space, asked, len(group), *means, per_layer, score, ratio])
        names = ("open", "least", "FLOPs", "per layer", "report", "its ratio")
        print_table(task, ["space", "target", "n", "select", "heldout", "KL", "cut", *names], lines)


class SeedTable(Benchmark[Workbench]):
    """Which findings of the report on mask search hold? Its search, in each kind of units.

    Four layers of the pretrained MiniLM-L6 learn by `MaskSearch.preset("seed")`. The targets train
    together, as one population; `whole` is the student that nobody cuts. In a row `open` is the
    share that the search left open in its last step, `flops` the share of the FLOPs that is left.
    With `--teacher bert-base-uncased --student huawei-noah/TinyBERT_General_4L_312D --steps 2670
    2670` it is the report's own search, for a GPU.
    """

    name = "seed_table"
    tasks = tuple(STEPS)
    # Units of "heads" compete by a softmax in their layer, those of "heads, gates" by sigmoids.
    grid = {"space": (WHOLE, *SPACES)}
    about = {"layers": LAYERS, "steps": STEPS}
    prepared_by = ("space",)

    @classmethod
    def parser(cls) -> argparse.ArgumentParser:
        """Return the options, with other checkpoints and steps."""
        parser = super().parser()
        parser.add_argument("--teacher", default=minilm(), help="checkpoint")
        parser.add_argument("--student", help="checkpoint; four layers of MiniLM by default")
        parser.add_argument("--steps", nargs=2, type=int, help="of each step, searching or not")
        return parser

    def prepare(self, key: Row) -> Workbench:
        """Prepare a problem whose budget counts units of the space."""
        asked, space = self.asked, key["space"]
        inputs = read_inputs(
            replace(task_of(asked.task, asked.glue), max_length=TOKENS),
            replace(teacher_for(asked.task), checkpoint=asked.teacher),
            student=asked.student or general_student(asked.cache),
        )
        spaces = ("ffn",) if space == WHOLE else (space.partition(",")[0],)
        session = Session(cache=asked.cache, device=asked.device)
        return prepare(inputs, session, cost="units", spaces=spaces)

    def rows(self, key: Row, bench: Workbench) -> Iterator[Row]:
        """Train the population of the space."""
        steps = tuple(self.asked.steps or STEPS[key["task"]])
        return rows_of(bench, key["space"], steps, key["seed"])

    def show(self, rows: list[Row]) -> None:
        """Print the tables."""
        print_tables(rows)
