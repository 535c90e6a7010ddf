"""How long a study of thousands of trials takes to look at: status, front, report, dashboard.

    OMP_NUM_THREADS=1 python -m benchmarks.scale [--trials 8000] [--runs FOLDER] [--before CHECKOUT]

The run is made up: drawn trials in SQLite, with the files that a launch leaves, told as it tells
them. It is made once in `--runs` and used again. Each command is a process of its own, so that its
imports count. A refresh is what a launch writes after each population: page, notes and front. A
poll is what the dashboard asks every few seconds, here with nothing new, after a first one.
`--before` is another checkout of this repository, which is timed first. Prints seconds of the
processor, writes benchmarks/results/scale.json.
"""

from __future__ import annotations

import json
import math
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, FloatDistribution, distribution_to_json
from optuna.trial import TrialState, create_trial
from safetensors.numpy import save_file

from benchmarks.harness import Row, parsed, parser_of, print_table, write_json
from benchmarks.timing import describe
from orchestrator.runs import records
from orchestrator.runs.answers import write_answers, write_rows
from orchestrator.runs.results import Measured, TrialResult, UnprunedResult
from orchestrator.runs.run_folder import RunFolder
from orchestrator.storage.connect import open_storage
from reports.dashboard import publish

ROWS, CLASSES, LAYERS, HEADS, NEURONS, STEPS = 1500, 3, 6, 12, 1536, 80
FLOPS, METRIC = 2_700_000_000, 0.75
"""FLOPs and accuracy of the unpruned model."""
SPACE: Mapping[str, BaseDistribution] = {
    "flops_weight": FloatDistribution(0.1, 10, log=True),
    "target_ratio": FloatDistribution(0.05, 0.9, log=True),
    "tolerance": FloatDistribution(0.01, 0.1),
    "gradient_rescale": FloatDistribution(0.1, 10, log=True),
}
_BEGAN = 1_795_255_200.0
_FILES = ("architecture.png", "architecture.json", "result.json", "curve.csv", "config.json")

_POLL = """
import io, json, sys, time
from orchestrator.dashboard.server import application
app = application(sys.argv[1])
def ask(path, query=""):
    environ = {"PATH_INFO": path, "REQUEST_METHOD": "GET", "HTTP_HOST": "localhost"}
    environ |= {"QUERY_STRING": query, "wsgi.input": io.BytesIO()}
    return json.loads(b"".join(app(environ, lambda *_: None)))
begun = time.process_time()
known = ask("/api/studies/1")
opened, polls = time.process_time() - begun, []
for _ in range(5):
    begun = time.process_time()
    assert ask("/api/studies/1", f"after={len(known['trials'])}")["trials"] == []
    polls.append(time.process_time() - begun)
print(json.dumps([opened, sorted(polls)[2]]))
"""
_REFRESH = """
import sys, time
from pathlib import Path
from orchestrator.runs.records import read_run
from reports.page.following import Following
run, begun = read_run(Path(sys.argv[1])), time.process_time()
Following("maskfront run study.py", "")._write(run, live=True)
print(time.process_time() - begun)
"""


def answers(right: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Logits that name the label where a row is right, else the next class."""
    said = np.where(right, labels, (labels + 1) % CLASSES)
    return np.eye(CLASSES, dtype=np.float32)[said]


def make_run(folder: RunFolder, trials: int) -> None:
    """Make a run of so many finished trials."""
    generator = np.random.default_rng(0)
    labels = generator.integers(CLASSES, size=ROWS)
    unpruned = {role: generator.random(ROWS) < METRIC for role in ("select", "heldout")}
    folder.artifacts.mkdir(parents=True)
    rows = {role: answers(right, labels) for role, right in unpruned.items()}
    write_rows(folder, dict.fromkeys(rows, labels), rows, {})
    study = optuna.create_study(
        storage=open_storage(folder.storage),
        study_name="many",
        directions=["maximize", "minimize"],
    )
    space = {f"space.{name}": distribution_to_json(knob) for name, knob in SPACE.items()}
    task = {"task.metric": "accuracy", "task.max_length": "64", "task.data": "made up"}
    study.set_user_attr(records.DEFINITION, {"name": "many", "seed": "0", **task, **space})
    study.set_user_attr(records.VERSIONS, {"maskfront": "0", "device": "cpu"})
    study.set_user_attr(records.SOURCES, {"task": "many", "data": "made up", "teacher": "made up"})
    study.set_user_attr(records.WANTED, trials)
    whole = UnprunedResult(**_measured(unpruned, 1.0), student_is_new=False)
    study.set_user_attr(records.UNPRUNED, asdict(whole))
    for number in range(trials):
        knobs = {
            name: float(10 ** generator.uniform(math.log10(knob.low), math.log10(knob.high)))
            for name, knob in SPACE.items()
            if isinstance(knob, FloatDistribution)
        }
        ratio = knobs["target_ratio"] * generator.uniform(0.99, 1.01)
        lost = 0.3 * math.exp(-5 * ratio) + 0.05 * generator.random()
        right = {}
        for role, own in unpruned.items():
            differs = generator.random(ROWS) < 0.1 + lost
            redrawn = generator.random(ROWS) < METRIC - lost / (0.1 + lost)
            right[role] = np.where(differs, redrawn, own)
        result = TrialResult(
            **_measured(right, ratio),
            target_ratio=knobs["target_ratio"],
            tolerance=knobs["tolerance"],
            budget_unit="flops@64",
        )
        study.add_trial(_told(number, knobs, result))
        _write_files(folder, number, result, {r: answers(own, labels) for r, own in right.items()})
    publish(records.read_run(folder.path))


def _measured(right: Mapping[str, np.ndarray], ratio: float) -> dict[str, Any]:
    metrics = {role: float(own.mean()) for role, own in right.items()}
    wide = 1.96 * math.sqrt(METRIC * (1 - METRIC) / ROWS)
    heads, neurons = (max(1, round(ratio * whole)) for whole in (HEADS, NEURONS))
    measured = Measured(
        metric=metrics["select"],
        heldout_metric=metrics["heldout"],
        interval=(metrics["select"] - wide, metrics["select"] + wide),
        heldout_interval=(metrics["heldout"] - wide, metrics["heldout"] + wide),
        widths={"heads": (heads,) * LAYERS, "ffn": (neurons,) * LAYERS},
        cost=round(ratio * FLOPS),
        cost_full=FLOPS,
        unit="flops@64",
        flops=round(ratio * FLOPS),
        flops_full=FLOPS,
        flops_unit="flops@64",
        params=round(ratio * 10_000_000),
        bytes=round(ratio * 40_000_000),
        divergence=0.9 - metrics["select"],
        heldout_divergence=0.9 - metrics["heldout"],
    )
    return vars(measured)


def _told(number: int, knobs: Mapping[str, float], result: TrialResult) -> optuna.trial.FrozenTrial:
    """A trial as a launch of populations of four tells it."""
    began = _BEGAN + 50 * (number // 4)
    start = datetime.fromtimestamp(began)
    artifacts = {
        f"artifacts:{number:08d}-{place}": json.dumps(
            {"artifact_id": f"{number:08d}-{place}", "filename": name, "mimetype": "text/plain"}
        )
        for place, name in enumerate(_FILES)
    }
    trial = create_trial(
        state=TrialState.COMPLETE,
        values=[result.metric, result.cost],
        params=dict(knobs),
        distributions=dict(SPACE),
        user_attrs={
            records.WORKER: f"host-{number % 4}",
            records.BEGAN: began,
            records.POPULATION: 4,
            records.DEVICE: "cpu",
            records.PRECISION: "float32",
            records.RESULT: asdict(result),
        },
        system_attrs=artifacts,
        constraints={records.BUDGET: result.violation},
    )
    trial.datetime_start, trial.datetime_complete = (
        start,
        start + timedelta(seconds=40 + number % 4),
    )
    return trial


def _write_files(
    folder: RunFolder, number: int, result: TrialResult, logits: Mapping[str, np.ndarray]
) -> None:
    """What a trial leaves, with weights of a few bytes."""
    own = folder.trial(number)
    folder.model(number).mkdir(parents=True)
    layers = [
        {"heads": list(range(heads)), "ffn": list(range(ffn))}
        for heads, ffn in zip(result.heads_per_layer, result.ffn_per_layer, strict=True)
    ]
    document = {"format": "maskfront-architecture-1", "layers": layers}
    (own / "architecture.json").write_text(json.dumps(document))
    (own / "result.json").write_text(result.to_json())
    write_answers(folder.answers(number), logits)
    lines = [f"{stage},{step},{1 / (step + 1):.5f}" for stage in "ab" for step in range(STEPS)]
    (own / "curve.csv").write_text("\n".join(["stage,step,loss", *lines, ""]))
    (folder.model(number) / "config.json").write_text("{}")
    save_file({"weight": np.zeros(4)}, folder.model(number) / "model.safetensors")


def timed(checkout: Path, run: Path) -> Row:
    """Seconds of the processor for each look at the run by the code of a checkout."""

    def ran(*arguments: object) -> tuple[float, str]:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        command = [sys.executable, *map(str, arguments)]
        done = subprocess.run(command, cwd=checkout, capture_output=True, text=True, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        taken = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        return taken, done.stdout

    found: Row = {}
    for verb in ("status", "front", "report"):
        target = ["--out", run / "report.html"] if verb == "report" else []
        found[verb], _ = ran("-m", "orchestrator.command.cli", verb, run, *target)
    with TemporaryDirectory() as scratch:  # a refresh writes into the study
        copied = Path(scratch) / run.name
        copied.mkdir()
        for name in ("study.db", "rows.safetensors"):
            shutil.copy(run / name, copied)
        shutil.copytree(run / "trials", copied / "trials", copy_function=os.link)
        found["refresh"] = float(ran("-c", _REFRESH, copied)[1])
        found["dashboard opened"], found["poll"] = json.loads(ran("-c", _POLL, copied)[1])
    return found


def main() -> None:
    """Make, time, print, write."""
    parser = parser_of(__doc__)
    parser.add_argument("--trials", type=int, default=8000)
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="folder of made-up runs")
    parser.add_argument("--before", type=Path, help="another checkout, timed first")
    asked = parsed(parser)
    folder = RunFolder((asked.runs / f"many-{asked.trials}").absolute())
    if not folder.exists():
        make_run(folder, asked.trials)
    checkouts = {"before": asked.before} if asked.before else {}
    checkouts["now"] = Path.cwd()
    seconds = {name: timed(checkout, folder.path) for name, checkout in checkouts.items()}
    lines = [[look, *(f"{own[look]:.2f}" for own in seconds.values())] for look in seconds["now"]]
    print_table(f"{asked.trials} trials: seconds of the processor", ["look", *seconds], lines)
    about = {"machine": describe("cpu"), "trials": asked.trials, "rows": ROWS}
    write_json(asked.out / "scale.json", {**about, "seconds": seconds})


if __name__ == "__main__":
    main()
