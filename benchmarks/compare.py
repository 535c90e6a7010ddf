"""Which search method keeps the most, each tuned by a study of its own, at equal training steps?"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from rich.console import Console

from benchmarks.comparison import (
    RATIOS,
    Resampled,
    compare,
    comparison_figure,
    comparison_tables,
)
from benchmarks.harness import sharing_cache
from maskfront import Study
from objectives.cache import atomic_write, atomic_write_text, content_key
from objectives.device import choose_device, quiet_libraries
from objectives.errors import MaskfrontError
from objectives.methods.baselines.head_importance import HeadImportance
from objectives.methods.baselines.magnitude_pruning import MagnitudePruning
from objectives.methods.baselines.random_pruning import RandomPruning
from objectives.methods.fisher_pruning import FisherPruning
from objectives.methods.fisher_search import FisherSearch
from objectives.methods.mask_search import MaskSearch
from objectives.methods.width_search import WidthSearch
from objectives.search_method import SearchMethod
from objectives.session import Session
from objectives.students.bert.exporting import save_model
from objectives.text.glue import glue
from objectives.text.task import Task
from objectives.training.stages import Stage
from objectives.workbench.inputs import read_inputs
from objectives.workbench.teacher import Teacher
from objectives.workbench.workbench import prepare
from orchestrator.runs.records import RunRecord
from orchestrator.runs.run_folder import RunFolder
from orchestrator.workers.loop import LaunchOptions, run_study
from reports.page.picture import write_picture
from studies._data import minilm


@dataclass(frozen=True)
class Entry:
    """A method of the comparison, the knobs of its study beside the target ratio."""

    method: SearchMethod
    knobs: Mapping[str, BaseDistribution]
    search: float | None = None
    """Share of the steps that search; None of a baseline, which spends all on distillation."""


LOTS = IntDistribution(0, 9999)
WHO_COMPETES = CategoricalDistribution(["global", "layer"])
YES_OR_NO = CategoricalDistribution([False, True])
MASK_KNOBS = {
    "flops_weight": FloatDistribution(0.1, 10, log=True),
    "grad_rescale": FloatDistribution(0.03, 0.3, log=True),
}
ENTRIES = {
    "random": Entry(RandomPruning(), {"draw": LOTS}),
    "uniform": Entry(RandomPruning(scope="layer"), {"draw": LOTS}),
    "magnitude": Entry(MagnitudePruning(), {"scope": WHO_COMPETES}),
    "head-importance": Entry(HeadImportance(spaces=("heads", "ffn")), {"normalise": YES_OR_NO}),
    "fisher-pruning": Entry(FisherPruning(), {"rearrange": YES_OR_NO, "reconstruct": YES_OR_NO}),
    "fisher-once": Entry(FisherSearch(), {"cost_power": FloatDistribution(0.6, 1.2)}, search=0),
    "mask-search": Entry(MaskSearch(), MASK_KNOBS, search=1 / 3),
    "width-search": Entry(WidthSearch(), MASK_KNOBS, search=1 / 3),
}
BASELINES = {name for name, entry in ENTRIES.items() if entry.search is None}
FIRST = (0.5, 0.1, 0.25, 0.75, 0.33)
"""Target ratios of each study's first trials, so that every method is seen at all `RATIOS`."""
assert set(FIRST) == set(RATIOS)


def entry_study(
    name: str, task: Task, teacher: Teacher, *, epochs: float, trials: int, seed: int
) -> Study:
    """The study of one method: so many passes over the train split in all, the same last stage."""
    entry = ENTRIES[name]
    searching = epochs * (entry.search or 0)
    common: dict[str, Any] = {"learning_rate": 3e-4, "loss": "prediction+hidden"}
    stages = [Stage(name="recover", epochs=epochs - searching, **common)]
    if searching:
        look = Stage(name="search", epochs=searching, searches=True, schedule="constant", **common)
        stages.insert(0, look)
    settings: dict[str, Any] = {"stages": tuple(stages), "tolerance": 0.01}
    return Study(
        name=f"compare-{task.name}-{name}-{seed}",
        task=task,
        teacher=teacher,
        method=replace(entry.method, **settings),
        space={"target_ratio": FloatDistribution(0.08, 0.9, log=True), **entry.knobs},
        first=tuple({"target_ratio": ratio} for ratio in FIRST),
        trials=trials,
        seed=seed,
    )


def fine_tuned(task: Task, teacher: Teacher, out: Path, device: str) -> Teacher:
    """The one teacher of all studies, fine-tuned once, in `out`, named by what decides it."""
    inputs = read_inputs(task, teacher)
    decides = {
        **asdict(replace(teacher, checkpoint=inputs.checkpoint_fingerprint)),
        "rows": inputs.text.fingerprint,
        "max_length": task.max_length,
    }
    folder = out / f"teacher-{content_key(decides)}"
    with RunFolder(out).in_turn("prepare"):
        if not folder.is_dir():
            bench = prepare(
                inputs,
                session=Session(cache=out / "cache", device=choose_device(device)),
            )
            with atomic_write(folder) as unfinished:
                save_model(bench.problem.teacher, unfinished)
                bench.tokenizer.save_pretrained(unfinished)
    return Teacher(checkpoint=str(folder))


def contest(
    task: Task,
    teacher: Teacher,
    out: Path,
    *,
    methods: Sequence[str] = tuple(ENTRIES),
    seeds: Sequence[int] = (0, 1, 2),
    epochs: float = 1.0,
    trials: int = 20,
    population: int = 4,
    device: str = "auto",
    picture: str = ".svg",
) -> str:
    """Run, or continue, all studies; write comparison.json, .md and the picture. The tables."""
    quiet_libraries()
    teacher = fine_tuned(task, teacher, out, device)
    cache = out / "cache"  # what is made once is made once for all
    cache.mkdir(exist_ok=True)
    runs: dict[str, list[RunRecord]] = {name: [] for name in methods}
    for seed in seeds:
        for name, own in runs.items():
            study = entry_study(name, task, teacher, epochs=epochs, trials=trials, seed=seed)
            folder = out / f"{name}-{seed}"
            folder.mkdir(exist_ok=True)
            options = LaunchOptions(population=population, out=folder, device=device)
            with sharing_cache(cache, folder):
                own.append(run_study(study, options))
    inputs = read_inputs(task, teacher)
    samples = Resampled(inputs, kept=out / "samples", device=choose_device(device))
    comparison = compare(runs, baselines=BASELINES, samples=samples)
    tables = comparison_tables(comparison)
    atomic_write_text(out / "comparison.json", json.dumps(asdict(comparison), indent=1) + "\n")
    atomic_write_text(out / "comparison.md", tables)
    write_picture(comparison_figure(runs, comparison), out / f"comparison{picture}")
    return tables


def main() -> None:
    """python -m benchmarks.compare --glue FOLDER --task sst2 --out FOLDER"""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--glue", default="nyu-mll/glue", help="the data set on the hub, or a folder"
    )
    parser.add_argument("--task", default="sst2", choices=["sst2", "cola", "rte", "mrpc", "qnli"])
    parser.add_argument("--checkpoint", default=minilm(), help="fine-tuned once for all")
    parser.add_argument("--teacher-epochs", type=int, default=3)
    parser.add_argument("--out", type=Path, required=True)
    for rows in ("train", "alpha", "select", "max-length"):
        parser.add_argument(f"--{rows}", type=int)
    parser.add_argument("--methods", nargs="+", default=list(ENTRIES), choices=list(ENTRIES))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--epochs", type=float, default=1.0, help="of training in each trial")
    parser.add_argument("--trials", type=int, default=20, help="of each study")
    parser.add_argument("--population", type=int, default=4)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--picture", default=".svg", help="its suffix; .html needs no browser")
    asked = parser.parse_args()
    sizes = {name: getattr(asked, name) for name in ("train", "alpha", "select", "max_length")}
    task = glue(asked.task, asked.glue, **{k: v for k, v in sizes.items() if v is not None})
    try:
        tables = contest(
            task,
            Teacher(checkpoint=asked.checkpoint, epochs=asked.teacher_epochs),
            asked.out,
            methods=asked.methods,
            seeds=asked.seeds,
            epochs=asked.epochs,
            trials=asked.trials,
            population=asked.population,
            device=asked.device,
            picture=asked.picture,
        )
    except MaskfrontError as error:
        raise SystemExit(f"compare: {error}") from error
    Console().out(tables)


study = entry_study(
    "fisher-once",
    glue("sst2"),
    Teacher(checkpoint=minilm(), epochs=3, learning_rate=5e-5),
    epochs=1,
    trials=20,
    seed=0,
)

if __name__ == "__main__":
    main()
