"""What `compress` makes of a classifier in some minutes, by the number of texts.

MiniLM-L6 is fine-tuned on a task once. Of the rows that it did not learn from, 2,000 are set aside;
`compress` gets some of the others, with labels only where the metric is the gate. What it writes is
timed from text to label, one text a call, one thread, beside the unpruned model in float32 and in
int8, and judged on the rows set aside.

    python -m benchmarks.compress --cache FOLDER [--task sst2 --glue FOLDER]
        [--seeds 0] [--plan 200:5 2000:5 16000:10]

A plan is texts and minutes; of fewer texts than that all are taken. Writes
benchmarks/results/compress.json, a row for each task, seed, plan and gate, and goes on where it was
stopped. Seconds are those of the clock: run it alone, on as many threads as there are cores.
"""

from __future__ import annotations

import argparse
import csv
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from benchmarks.harness import Row, Rows, parsed, parser_of, print_means
from benchmarks.tasks import task_of, teacher_for
from maskfront import compress
from objectives.delivery.classify import Classifier
from objectives.delivery.deployed import answers_to, deploy, text_to_label
from objectives.metric import Metric, metric_value
from objectives.session import Session
from objectives.students.bert.exporting import save_model
from objectives.students.bert.pretrained import Checkpoint
from objectives.students.bert.pretrained import Classifier as Model
from objectives.text.roles import load
from objectives.text.task import Examples
from objectives.workbench.inputs import read_inputs
from objectives.workbench.teacher import load_teacher

UNSEEN = 2000
_TIMED = 300
GATES: dict[str, dict[str, float]] = {
    "agreement": {"min_agreement": 0.95},
    "metric": {"min_metric_kept": 0.98},
}
Labelled = Sequence[tuple[str, int]]


def teacher_of(name: str, glue: str | None, cache: Path) -> tuple[Model, Labelled, Labelled]:
    """The fine-tuned model, the rows that it learnt from, and all others."""
    task = task_of(name, glue)
    inputs = read_inputs(task, teacher_for(name))
    model = load_teacher(
        inputs.teacher, inputs.text, inputs.split("train"), session=Session(cache=cache)
    )
    whole = load(replace(task, train=None))
    train = inputs.text.roles["train"]
    known = set(train.texts)
    rows = [row for role in whole.roles.values() for row in _rows(role) if (row[0],) not in known]
    return model, _rows(train), rows


def _rows(role: Examples) -> Labelled:
    return [(row[0], label) for row, label in zip(role.texts, role.labels.tolist(), strict=True)]


def parts(rows: Labelled, seed: int) -> tuple[Labelled, Labelled]:
    """Rows that judge, and those that `compress` may see."""
    order = np.random.default_rng(seed).permutation(len(rows))
    unseen, texts = ([rows[place] for place in own] for own in np.split(order, [UNSEEN]))
    return unseen, texts


def table(file: Path, rows: Labelled, names: Sequence[str], *, labelled: bool) -> None:
    """Write a CSV of texts, and of labels by their names."""
    with file.open("w", newline="", encoding="utf-8") as out:
        writer = csv.writer(out)
        writer.writerow(("text", "label") if labelled else ("text",))
        writer.writerows((text, names[label])[: 1 + labelled] for text, label in rows)


def measured(out: Path, original: Path, unseen: Labelled, metric: Metric) -> Row:
    """Speed and worth of what was written, on rows that nothing saw."""
    texts, labels = [text for text, _ in unseen], np.array([label for _, label in unseen])
    folders = (out, original / "float32", original / "int8")
    times = text_to_label([Classifier(folder) for folder in folders], texts[:_TIMED]).mean(axis=0)
    said, before = (
        answers_to(Classifier(folder, threads=0), texts).argmax(-1) for folder in folders[:2]
    )
    value, value_before = (metric_value(metric, labels, own) for own in (said, before))
    return {
        "ms": float(times[0]),
        "speedup_float32": float(times[1] / times[0]),
        "speedup_int8": float(times[2] / times[0]),
        "mb": sum(file.stat().st_size for file in out.glob("**/*.onnx")) / 1e6,
        "agreement": float((said == before).mean()),
        "metric": value,
        "metric_kept": value / value_before,
    }


def main() -> None:
    """Run, or go on, and print the table."""
    parser = parser_of(__doc__, tasks=("tweets", "sst2", "cola"), seeds=(0,), cache=True)
    parser.add_argument("--plan", nargs="+", type=plan, default=[(200, 5), (2000, 5), (16000, 10)])
    asked = parsed(parser)
    rows = Rows(asked.out / "compress.json")
    model, _, labelled = teacher_of(asked.task, asked.glue, asked.cache)
    names = list(model.config.id2label.values())
    tokenizer = Checkpoint(teacher_for(asked.task).checkpoint).tokenizer
    task = task_of(asked.task, asked.glue)
    with TemporaryDirectory() as scratch:
        folder = Path(scratch)
        save_model(model, folder / "model")
        tokenizer.save_pretrained(folder / "model")
        for name, engine in (("float32", "onnxruntime"), ("int8", "onnxruntime-int8")):
            deploy(folder / name, model, tokenizer, engine, task.max_length)  # type: ignore[arg-type]
        os.chdir(folder)
        for seed in asked.seeds:
            unseen, texts = parts(labelled, seed)
            for number, minutes in asked.plan:
                some = texts[:number]
                for gate, aim in GATES.items():
                    key = {"task": asked.task, "seed": seed, "texts": len(some), "gate": gate}
                    if rows.has({**key, "minutes": minutes}):
                        continue
                    table(folder / "texts.csv", some, names, labelled=gate == "metric")
                    out = folder / f"{asked.task}-{seed}-{number}-{gate}"
                    found = compress(
                        *(folder / "model", folder / "texts.csv"),
                        out=out,
                        minutes=minutes,
                        max_length=task.max_length,
                        take_nearest=True,
                        **aim,
                    )
                    worth = measured(out, folder, unseen, task.metric)
                    own = {"taken": found.deployed.what(), "passed": found.passed}
                    rows.add({**key, "minutes": minutes, **own, **worth, "seconds": found.seconds})
    columns = ("speedup_int8", "speedup_float32", "agreement", "metric_kept", "seconds")
    print_means(
        "what compress makes",
        rows.rows,
        ("task", "texts", "minutes", "gate"),
        dict(zip(columns, (".1f", ".1f", ".3f", ".3f", ".0f"), strict=True)),
    )


def plan(text: str) -> tuple[int, float]:
    """Texts and minutes, such as "2000:5"."""
    try:
        texts, minutes = text.split(":")
        return int(texts), float(minutes)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text}: give TEXTS:MINUTES, such as 2000:5") from None


if __name__ == "__main__":
    main()
