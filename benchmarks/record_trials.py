"""Real trials, for benchmarks/replayed.py to replay.

A random sampler on the quickstart's tweets and model, cut at once by Fisher information; 1,024 rows
of 24 tokens, 1.5 epochs, so that a trial takes 20 seconds of one core. (What is stored was recorded
at every quarter of the training, while trials could still report on their way.)

    python -m benchmarks.record_trials [--trials 100] [--out FOLDER]

Writes benchmarks/results/recorded_trials.json; the run folder may be continued.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from optuna.distributions import (
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

from maskfront import Study
from objectives.methods.fisher_search import FisherSearch
from objectives.text.task import Task
from objectives.training.stages import Stage
from objectives.workbench.teacher import Teacher
from orchestrator.runs.records import RunRecord
from orchestrator.workers.loop import run_study
from studies._quickstart_data import minilm, tweets

RESULTS = Path(__file__).parent / "results" / "recorded_trials.json"

study = Study(
    name="recorded",
    task=Task(
        name="tweets",
        data=tweets,
        label="sentiment",
        max_length=24,
        train=1024,
        alpha=256,
        select=800,
        heldout=100,
    ),
    teacher=Teacher(checkpoint=minilm(), epochs=3, precision="float32"),
    method=FisherSearch(
        stages=(Stage(name="recover", epochs=1.5, learning_rate=3e-4),), precision="float32"
    ),
    space={
        "target_ratio": FloatDistribution(0.05, 1, log=True),
        "flops_weight": FloatDistribution(0.1, 3, log=True),
        "batch_size": IntDistribution(8, 64, log=True),
        "squares": CategoricalDistribution(("logits", "loss")),
    },
    trials=100,
    population=1,
    sampler="random",
)


def document(run: RunRecord) -> dict[str, object]:
    """The finished trials of the run: knobs, cost, and the metric at the end."""
    rows = [
        {
            "knobs": trial.knobs,
            "ratio": trial.result.ratio,
            "violation": trial.result.violation,
            "metrics": [trial.result.metric],
        }
        for trial in run.finished
    ]
    return {
        "what": "metric (accuracy, selection split)",
        "definition": run.definition,
        "unpruned": run.unpruned.metric,
        "trials": rows,
    }


def main() -> None:
    """Run or continue the study; write the file anew after each trial."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=study.trials)
    parser.add_argument("--out", type=Path, default=Path("runs/recorded"))
    options = parser.parse_args()
    torch.set_num_threads(1)

    def keep(run: RunRecord) -> None:
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text(json.dumps(document(run), indent=1) + "\n")

    run_study(study, trials=options.trials, out=options.out, device="cpu", callbacks=[keep])


if __name__ == "__main__":
    main()
