"""One study over structure and bits, beside structure alone and int8 alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from optuna.distributions import CategoricalDistribution, FloatDistribution

from benchmarks.harness import Benchmark, Row, sharing_cache
from benchmarks.tasks import TEXT, task_of, teacher_for
from maskfront import ElasticSearch, Run, Stage, Study, launch
from objectives.delivery.bench import OfRun, bench
from objectives.engines.names import Engine
from orchestrator.runs.records import FinishedTrial
from reports.speed import inputs_of, teacher_of

RATIOS = (0.95, 0.5, 0.3, 0.2, 0.13, 0.09, 0.06)
SHALLOW = 0.3
"""Largest ratio of a student of three layers, which has half the FLOPs uncut."""
EPOCHS = {"tweets": 10.0, "sst2": 6.0}
EPOCHS_WITH_TEXT = {"tweets": 5.0, "sst2": 2.0}
BATCHES = (1, 8)
ENGINES: tuple[Engine, ...] = ("eager", "onnxruntime", "onnxruntime-int8")


def study(name: str, glue: str | None, seed: int, *, text: bool) -> Study:
    """Return the study of structure alone, at `RATIOS`."""
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
    """Return the study of structure, bits and vocabulary together, against bytes."""
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
    """Return the study of structure alone, of every second layer."""
    smaller = tuple(knobs for knobs in structure.first if knobs["target_ratio"] <= SHALLOW)
    return replace(
        structure,
        name=structure.name.replace("structure", "three-layers"),
        student_layers=(0, 2, 4),
        space={"target_ratio": FloatDistribution(0.05, SHALLOW, log=True)},
        first=smaller,
        trials=len(smaller),
    )


def rows_of(runs: dict[str, Run], structure: Study) -> Iterator[Row]:
    """Time each model of all fronts and the unpruned one, as served, all in one bench."""
    models: dict[str, tuple[str, FinishedTrial]] = {
        str(run.folder / "trials" / f"{trial.number:05d}" / "model"): (arm, trial)
        for arm, run in runs.items()
        for trial in run.front
    }
    run = runs["structure"]
    data, unpruned = inputs_of(run, structure), run.unpruned
    timed = bench(
        [Path(folder) for folder in models],
        of_run=OfRun(unpruned=teacher_of(run, structure, data), data=data),
        batches=BATCHES,
        lengths=(128,),
        engines=ENGINES,
        rounds=20,
    )
    rows: dict[tuple[str, str], Row] = {}
    for timing in timed.timings:
        key = timing.model, timing.engine
        arm, trial = models.get(key[0], ("unpruned", None))
        if timing.texts:
            continue  # the tables are of fixed lengths
        if timing.engine == "eager" and arm in ("structure", "three layers"):
            continue  # slower than onnxruntime, and of the same size
        size = unpruned if trial is None else trial.result
        scored = timing.worth or size
        row = rows.setdefault(
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
        row[f"ms_batch_{timing.batch}"] = timing.milliseconds
    in_float32 = [row for row in rows.values() if row["arm"] == "unpruned" and row["bits"] == 32]
    for row in rows.values():
        row["times_smaller"] = (unpruned.bytes or 0) / row["bytes"]
        for batch in BATCHES:
            fastest = min(other[f"ms_batch_{batch}"] for other in in_float32)
            row[f"speedup_batch_{batch}"] = fastest / row[f"ms_batch_{batch}"]
        yield row


class Bits(Benchmark[None]):
    """Does a study of structure and bits beat structure alone and int8, as they are served?

    `ElasticSearch` trains one student for all. "structure" tunes R in float32, "three layers" is
    the same of every second layer, "joint" tunes R with bits and vocabulary, against bytes. Times
    as fast is as the unpruned model in float32 in its fastest engine. Runs lie in `--cache`.
    """

    name = "bits"
    tasks = tuple(EPOCHS)
    flags = TEXT  # with it for about twice the steps
    groups = ("task", "text", "arm", "engine", "ratio")
    means = {
        **{"speedup_batch_1": ".2f", "speedup_batch_8": ".2f", "times_smaller": ".2f"},
        "heldout_kept": ".3f",
    }
    trials = 24
    """Trials of the joint study."""

    def prepare(self, key: Row) -> None:
        """Prepare nothing: studies share a cache."""

    def key(self, key: Row, _: None) -> Row:
        """Return the key, with whether there is text without labels."""
        return {**key, "text": self.asked.text}

    def rows(self, key: Row, _: None) -> Iterator[Row]:
        """Run all three studies, and serve their fronts."""
        folder, runs = self.asked.cache, {}
        structure = study(key["task"], self.asked.glue, key["seed"], text=key["text"])
        studies = {"structure": structure, "three layers": shallow(structure)}
        for arm, wanted in {**studies, "joint": joint(structure, self.trials)}.items():
            out = folder / wanted.name
            with sharing_cache(folder / "cache", out):
                runs[arm] = launch(wanted, out=out, device="cpu", report=False)
        return rows_of(runs, structure)

    def show(self, rows: list[Row]) -> None:
        """Print the means, by rounded ratios."""
        super().show([{**row, "ratio": round(row["ratio"], 2)} for row in rows])
