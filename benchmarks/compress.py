"""`compress`, judged from text to label on rows set aside."""

from __future__ import annotations

import argparse
import csv
import os
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from numpy.typing import NDArray

from benchmarks.harness import Benchmark, Row
from benchmarks.tasks import task_of, teacher_for
from maskfront import Task, Teacher, compress
from objectives.delivery.classify import Classifier
from objectives.delivery.deployed import answers_to, deploy, text_to_label
from objectives.metric import Metric, metric_value
from objectives.session import Session
from objectives.students.bert.pretrained import Checkpoint
from objectives.students.bert.pretrained import Classifier as Model
from objectives.text.roles import load_text
from objectives.text.task import Examples
from objectives.workbench.inputs import read_inputs
from objectives.workbench.teacher import fine_tuned, load_teacher

UNSEEN = 2000
"""Rows set aside, of those that the teacher did not learn from."""
TIMED = 300
"""Texts that are timed."""
GATES: dict[str, dict[str, float]] = {
    "agreement": {"min_agreement": 0.95},
    "metric": {"min_metric_kept": 0.98},
}
Labelled = Sequence[tuple[str, int]]


def teacher_of(
    name: str, glue: str | None, session: Session, teacher: Teacher | None = None
) -> tuple[Path, Model, Labelled, Labelled]:
    """Return the fine-tuned model, its folder, the rows that it learnt from, and all others."""
    task = task_of(name, glue)
    inputs = read_inputs(task, teacher or teacher_for(name))
    split = inputs.split("train")
    model = load_teacher(inputs.teacher, inputs.text, split, session=session)
    [checkpoint] = inputs.teacher.models
    folder = fine_tuned(inputs.teacher, checkpoint, inputs.text, split, Path, session=session)
    text = load_text(replace(task, train=None))
    train = inputs.text.roles["train"]
    known = set(train.texts)
    rows = [row for role in text.roles.values() for row in _rows(role) if (row[0],) not in known]
    return folder, model, _rows(train), rows


def _rows(role: Examples) -> Labelled:
    return [(row[0], label) for row, label in zip(role.texts, role.labels.tolist(), strict=True)]


def parts(rows: Labelled, seed: int) -> tuple[Labelled, Labelled]:
    """Split into rows that judge, and those that `compress` may see."""
    order = np.random.default_rng(seed).permutation(len(rows))
    unseen, texts = ([rows[index] for index in part] for part in np.split(order, [UNSEEN]))
    return unseen, texts


def table(
    file: Path,
    rows: Labelled,
    names: Sequence[str],
    *,
    labelled: bool,
    unlabelled: Sequence[str] = (),
) -> None:
    """Write a CSV of texts, and of labels by their names; further texts have none."""
    with file.open("w", newline="", encoding="utf-8") as out:
        writer = csv.writer(out)
        writer.writerow(("text", "label") if labelled else ("text",))
        writer.writerows((text, names[label])[: 1 + labelled] for text, label in rows)
        writer.writerows((text, "")[: 1 + labelled] for text in unlabelled)


def answers_of(
    classifier: Classifier, texts: Sequence[str], labels: Sequence[str]
) -> NDArray[np.int64]:
    """Return indices into `labels`: a folder may have them in another order."""
    places = np.array([labels.index(name) for name in classifier.labels or ()])
    return places[answers_to(classifier, texts).argmax(-1)]


def measured(out: Path, original: Path, unseen: Labelled, metric: Metric) -> Row:
    """Time what was written, and judge it on rows that nothing saw."""
    texts, labels = [text for text, _ in unseen], np.array([label for _, label in unseen])
    folders = (out, original / "float32", original / "int8")
    times = text_to_label([Classifier(folder) for folder in folders], texts[:TIMED]).mean(axis=0)
    opened = [Classifier(folder, threads=0) for folder in folders[:2]]
    names = opened[1].labels or ()
    after, before = (answers_of(classifier, texts, names) for classifier in opened)
    value, value_before = (metric_value(metric, labels, answers) for answers in (after, before))
    return {
        "ms": float(times[0]),
        "speedup_float32": float(times[1] / times[0]),
        "speedup_int8": float(times[2] / times[0]),
        "mb": sum(file.stat().st_size for file in out.glob("**/model*.[on]*")) / 1e6,
        "agreement": float((after == before).mean()),
        "metric": value,
        "metric_kept": value / value_before,
    }


@dataclass(frozen=True)
class Unpruned:
    """The fine-tuned model of a task: in memory, and in float32 and int8 below a folder."""

    task: Task
    model: Model
    train: Labelled
    others: Labelled
    folder: Path
    seconds: Mapping[str, float]
    """Seconds of deploying it, by precision."""


def unpruned_of(
    asked: argparse.Namespace, folder: Path, teacher: Teacher | None = None
) -> Unpruned:
    """Fine-tune and deploy a teacher, by default MiniLM-L6."""
    session = Session(cache=asked.cache, device=asked.device)
    tuned, model, train, others = teacher_of(asked.task, asked.glue, session, teacher)
    teacher = teacher or teacher_for(asked.task)
    task, tokenizer = task_of(asked.task, asked.glue), Checkpoint(teacher.checkpoint).tokenizer
    seconds = {}
    shutil.copytree(tuned, folder / "model", dirs_exist_ok=True)
    for name, engine in (("float32", "onnxruntime"), ("int8", "onnxruntime-int8")):
        began = time.perf_counter()
        deploy(folder / name, model, tokenizer, engine, task.max_length)  # type: ignore[arg-type]
        seconds[name] = time.perf_counter() - began
    return Unpruned(task, model, train, others, folder, seconds)


class Compress(Benchmark[Unpruned]):
    """What does `compress` make of a classifier in minutes, by the number of texts?

    It has labels only where the metric is the gate. A plan is texts and minutes; of fewer texts
    than that all are taken. Seconds are those of the clock: run it alone, on all cores.
    """

    name = "compress"
    seeds = (0,)
    threads = None
    grid = {"plan": ("200:5", "2000:5", "16000:10"), "gate": tuple(GATES)}
    groups = ("task", "texts", "minutes", "gate")
    means = {
        **{"speedup_int8": ".1f", "speedup_float32": ".1f", "agreement": ".3f"},
        **{"metric_kept": ".3f", "seconds": ".0f"},
    }

    def prepare(self, key: Row) -> Unpruned:
        """Fine-tune the teacher."""
        unpruned = unpruned_of(self.asked, self.scratch)
        os.chdir(unpruned.folder)
        return unpruned

    def key(self, key: Row, unpruned: Unpruned) -> Row:
        """Return the key, with the texts that there are."""
        texts, minutes = key.pop("plan").split(":")
        number = min(int(texts), len(unpruned.others) - UNSEEN)
        return {**key, "texts": number, "minutes": float(minutes)}

    def rows(self, key: Row, unpruned: Unpruned) -> list[Row]:
        """Compress, and judge what was written."""
        folder, gate, task = unpruned.folder, key["gate"], unpruned.task
        unseen, texts = parts(unpruned.others, key["seed"])
        names = list(unpruned.model.config.id2label.values())
        table(folder / "texts.csv", texts[: key["texts"]], names, labelled=gate == "metric")
        with TemporaryDirectory(dir=folder) as scratch:
            out = Path(scratch) / "compressed"
            compressed = compress(
                *(folder / "model", folder / "texts.csv"),
                out=out,
                minutes=key["minutes"],
                max_length=task.max_length,
                take_nearest=True,
                metric=task.metric if gate == "metric" else "accuracy",
                **GATES[gate],
            )
            worth = measured(out, folder, unseen, task.metric)
        taken = {"taken": compressed.deployed.what(), "passed": compressed.passed}
        return [{**taken, **worth, "seconds": compressed.seconds}]
