"""How many trials an hour a whole study makes, by the trials that train together.

CoLA with MiniLM-L6: each trial searches masks for 1.5 epochs and distils for 1.5, bfloat16 where
the device has it. The time is from the start of the first trial to the end of the last: training,
cutting, scores on 2,043 rows, files and reports of the populations before; not the teacher.

    python -m benchmarks.population_study --glue FOLDER [--sizes 1 16 32] [--trials 2 64 64]
        [--device cuda] [--epochs 1.5] [--out benchmarks/results]

Prints a table; writes population_study-<device>.json.
"""

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import optuna
import torch
from optuna.distributions import FloatDistribution

from benchmarks.harness import parsed, parser_of, print_table, write_json
from benchmarks.tasks import teacher_for
from benchmarks.timing import describe, kind_of
from maskfront import MaskSearch, Stage, Study, glue, launch
from objectives.device import choose_device


def study(folder: str, trials: int, population: int, epochs: float) -> Study:
    """So many trials, so many at once."""
    return Study(
        name="cola",
        task=glue("cola", folder, alpha=500, select=1000, max_length=64),
        teacher=teacher_for("cola"),
        method=MaskSearch(
            stages=(
                Stage(name="search", epochs=epochs, learning_rate=1e-4, searches=True),
                Stage(name="recover", epochs=epochs, learning_rate=3e-4, loss="prediction+hidden"),
            )
        ),
        space={
            "flops_weight": FloatDistribution(0.1, 10, log=True),
            "target_ratio": FloatDistribution(0.1, 1, log=True),
            "tolerance": FloatDistribution(0.01, 0.1, log=True),
            "grad_rescale": FloatDistribution(0.03, 0.3, log=True),
        },
        trials=trials,
        population=population,
    )


def seconds_of(trials: Sequence[optuna.trial.FrozenTrial]) -> float:
    """From the start of the first to the end of the last."""
    starts = [trial.datetime_start for trial in trials if trial.datetime_start]
    ends = [trial.datetime_complete for trial in trials if trial.datetime_complete]
    return (max(ends) - min(starts)).total_seconds()


def main() -> None:
    """One study after another; the table, the JSON."""
    parser = parser_of(__doc__)
    parser.add_argument("--glue", required=True, help="folder of nyu-mll/glue")
    parser.add_argument("--sizes", type=int, nargs="+", default=[1, 16, 32])
    parser.add_argument("--trials", type=int, nargs="+", default=[2, 64, 64])
    parser.add_argument("--epochs", type=float, default=1.5, help="of each of the two stages")
    parser.add_argument("--device", default="auto")
    options = parsed(parser)
    device = choose_device(options.device)
    rows: list[dict[str, Any]] = []
    for size, trials in zip(options.sizes, options.trials, strict=True):
        with TemporaryDirectory() as folder:
            run = Path(folder) / "run"
            wanted = study(options.glue, trials, size, options.epochs)
            launch(wanted, out=run, device=device)
            found = optuna.load_study(study_name=None, storage=f"sqlite:///{run}/study.db")
            seconds = seconds_of(found.trials)
        rows.append({"k": size, "trials": trials, "seconds": seconds})
        rows[-1]["trials_per_hour"] = trials * 3600 / seconds
    file = options.out / f"population_study-{kind_of(device)}.json"
    write_json(file, {"device": describe(device), "torch": torch.__version__, "rows": rows})
    lines = [
        [r["k"], r["trials"], f"{r['seconds']:.1f}", f"{r['trials_per_hour']:.0f}"] for r in rows
    ]
    print_table("CoLA", ["K", "trials", "seconds", "trials/h"], lines)


if __name__ == "__main__":
    main()
