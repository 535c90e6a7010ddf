"""One study over structure and bits beside structure alone and int8 alone, as they are served.

MiniLM-L6 is fine-tuned once a task. `ElasticSearch` trains one student for all; two studies cut
from it: "structure" tunes R in float32, "joint" R with the bits of weights and embeddings and the
share of the vocabulary, against bytes. "three layers" is as "structure", of every second layer.
Then all models of the fronts, and the unpruned one, take turns in each engine, and are scored in
it:

    structure, three layers   as cut, in float32
    these, then int8          the same files after onnxruntime's dynamic quantisation
    int8 of the unpruned      no search at all
    joint, packed             the file of the study, in torch
    joint, int8               the same weights in onnxruntime's int8

    python -m benchmarks.bits --task tweets --out FOLDER [--glue FOLDER] [--seeds 0 1 2] [--text]

With `--text` students learn from the rows beyond train, too, without their labels, for about twice
the steps.

Times as fast is as the unpruned model in float32 in its fastest engine, times smaller as its file
of weights. Writes benchmarks/results/bits.json seed by seed, and goes on where it was stopped.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from optuna.distributions import CategoricalDistribution, FloatDistribution

from benchmarks.harness import (
    RESULTS,
    Row,
    Rows,
    parsed,
    parser_of,
    print_means,
    sharing_cache,
)
from benchmarks.tasks import task_of, teacher_for
from maskfront import ElasticSearch, Run, Stage, Study, launch
from objectives.delivery.bench import OfRun, bench
from objectives.engines.names import Engine
from orchestrator.runs.records import FinishedTrial
from reports.speed import inputs_of, teacher_of

RATIOS = (0.95, 0.5, 0.3, 0.2, 0.13, 0.09, 0.06)
SHALLOW = 0.3
"""The largest of them for a student of three layers, which has half the FLOPs uncut."""
EPOCHS = {"tweets": 10.0, "sst2": 6.0}
EPOCHS_WITH_TEXT = {"tweets": 5.0, "sst2": 2.0}
BATCHES = (1, 8)
ENGINES: tuple[Engine, ...] = ("eager", "onnxruntime", "onnxruntime-int8")


def study(name: str, glue: str | None, seed: int, *, text: bool) -> Study:
    """Structure alone, at `RATIOS`."""
    task, epochs = task_of(name, glue), EPOCHS[name]
    if text:
        task, epochs = replace(task, unlabelled_split=task.split), EPOCHS_WITH_TEXT[name]
    training = Stage(name="elastic", epochs=epochs, learning_rate=6e-4, loss="prediction+hidden")
    return Study(
        name=f"{name}-structure-{seed}{'-text' * text}",
        task=task,
        teacher=teacher_for(name),
        method=ElasticSearch(search_steps=0, elastic=training, smallest=0.04, tolerance=0.03),
        space={"target_ratio": FloatDistribution(0.05, 1, log=True)},
        first=tuple({"target_ratio": ratio} for ratio in RATIOS),
        trials=len(RATIOS),
        seed=seed,
    )


def joint(structure: Study, trials: int) -> Study:
    """Structure, bits and vocabulary together, against bytes."""
    given = {"weight_bits": 4, "embedding_bits": 4, "vocabulary": 0.3}
    return replace(
        structure,
        name=structure.name.replace("structure", "joint"),
        method=replace(structure.method, input_bits=8),  # type: ignore[type-var]
        cost="bytes",
        space={
            **structure.space,
            "weight_bits": CategoricalDistribution([8, 4]),
            "embedding_bits": CategoricalDistribution([8, 4]),
            "vocabulary": FloatDistribution(0.15, 1.0),
        },
        first=tuple({**knobs, **given} for knobs in structure.first),
        trials=trials,
    )


def shallow(structure: Study) -> Study:
    """Structure alone, of a student of every second layer."""
    smaller = tuple(knobs for knobs in structure.first if knobs["target_ratio"] <= SHALLOW)
    return replace(
        structure,
        name=structure.name.replace("structure", "three-layers"),
        student_layers=(0, 2, 4),
        space={"target_ratio": FloatDistribution(0.05, SHALLOW, log=True)},
        first=smaller,
        trials=len(smaller),
    )


def rows_of(runs: dict[str, Run], own: Study) -> Iterator[Row]:
    """Of each model of all fronts, and of the unpruned one, as it is served: all in one bench."""
    models: dict[str, tuple[str, FinishedTrial]] = {
        str(run.folder / "trials" / f"{trial.number:05d}" / "model"): (arm, trial)
        for arm, run in runs.items()
        for trial in run.front
    }
    run = runs["structure"]
    data, unpruned = inputs_of(run, own), run.unpruned
    timed = bench(
        [Path(folder) for folder in models],
        of_run=OfRun(unpruned=teacher_of(run, own, data), data=data),
        batches=BATCHES,
        lengths=(128,),
        engines=ENGINES,
        rounds=20,
    )
    found: dict[tuple[str, str], Row] = {}
    for timing in timed.timings:
        key = timing.model, timing.engine
        arm, trial = models.get(key[0], ("unpruned", None))
        if timing.texts:
            continue  # the tables are of fixed lengths
        if timing.engine == "eager" and arm in ("structure", "three layers"):
            continue  # slower than onnxruntime, and of the same size
        size = unpruned if trial is None else trial.result
        scored = timing.worth or size
        row = found.setdefault(
            key,
            {
                "arm": arm,
                "engine": timing.engine,
                "ratio": size.flops / unpruned.flops_full,
                "bits": 8 if timing.engine.endswith("int8") else 32,
                "knobs": {} if trial is None else trial.knobs,
                # In torch the file of the study, else what the engine reads.
                "bytes": size.bytes if timing.engine == "eager" else timing.bytes,
                "select": scored.metric,
                "heldout": scored.heldout_metric,
                "heldout_kept": scored.heldout_metric / unpruned.heldout_metric,
            },
        )
        row[f"ms_batch_{timing['batch']}"] = timing.milliseconds
    whole = [row for row in found.values() if row["arm"] == "unpruned" and row["bits"] == 32]
    for row in found.values():
        row["times_smaller"] = (unpruned.bytes or 0) / row["bytes"]
        for batch in BATCHES:
            fastest = min(one[f"ms_batch_{batch}"] for one in whole)
            row[f"speedup_batch_{batch}"] = fastest / row[f"ms_batch_{batch}"]
        yield row


def launched(structure: Study, trials: int, out: Path) -> dict[str, Run]:
    """The runs of all three studies, which share the teacher and the elastic students."""
    runs = {}
    own = {"three layers": shallow(structure), "joint": joint(structure, trials)}
    for arm, one in {"structure": structure, **own}.items():
        with sharing_cache(out / "cache", out / one.name):
            runs[arm] = launch(one, out=out / one.name, device="cpu", report=False)
    return runs


def main() -> None:
    """Run, or go on, and print the table."""
    parser = parser_of(__doc__, tasks=tuple(EPOCHS), seeds=(0, 1, 2))
    parser.set_defaults(out=None)
    parser.add_argument("--trials", type=int, default=24, help="of the joint study")
    parser.add_argument("--text", action="store_true", help="rows beyond train, without labels")
    asked = parsed(parser)
    if asked.out is None:
        parser.error("--out is needed: the folder of the runs")
    rows = Rows(RESULTS / "bits.json")
    for seed in asked.seeds:
        key = {"task": asked.task, "text": asked.text, "seed": seed}
        if not rows.has(key):
            structure = study(asked.task, asked.glue, seed, text=asked.text)
            runs = launched(structure, asked.trials, asked.out)
            rows.add(*({**key, **row} for row in rows_of(runs, structure)))
    print_means(
        "structure and bits: shares of the unpruned float32 model's",
        [{**row, "ratio": round(row["ratio"], 2)} for row in rows.rows],
        ("task", "text", "arm", "engine", "ratio"),
        {
            **{"speedup_batch_1": ".2f", "speedup_batch_8": ".2f", "times_smaller": ".2f"},
            "heldout_kept": ".3f",
        },
    )


if __name__ == "__main__":
    main()
