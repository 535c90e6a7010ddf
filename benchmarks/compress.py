"""`compress`, and what a user would do instead: judged from text to label on rows set aside."""

from __future__ import annotations

import argparse
import csv
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from rich.console import Console

from benchmarks.harness import Benchmark, Row, Rows
from benchmarks.tasks import task_of, teacher_for
from maskfront import Task, compress
from objectives.delivery.classify import Classifier
from objectives.delivery.deployed import answers_to, deploy, text_to_label
from objectives.metric import Metric, metric_value
from objectives.session import Session
from objectives.students.bert.exporting import save_model
from objectives.students.bert.pretrained import Checkpoint
from objectives.students.bert.pretrained import Classifier as Model
from objectives.text.roles import load_text
from objectives.text.task import Examples
from objectives.workbench.inputs import read_inputs
from objectives.workbench.teacher import load_teacher

UNSEEN = 2000
"""Rows set aside, of those that the teacher did not learn from."""
_TIMED = 300
GATES: dict[str, dict[str, float]] = {
    "agreement": {"min_agreement": 0.95},
    "metric": {"min_metric_kept": 0.98},
}
Labelled = Sequence[tuple[str, int]]


def teacher_of(name: str, glue: str | None, cache: Path) -> tuple[Model, Labelled, Labelled]:
    """Return the fine-tuned model, the rows that it learnt from, and all others."""
    task = task_of(name, glue)
    inputs = read_inputs(task, teacher_for(name))
    model = load_teacher(
        inputs.teacher, inputs.text, inputs.split("train"), session=Session(cache=cache)
    )
    text = load_text(replace(task, train=None))
    train = inputs.text.roles["train"]
    known = set(train.texts)
    rows = [row for role in text.roles.values() for row in _rows(role) if (row[0],) not in known]
    return model, _rows(train), rows


def _rows(role: Examples) -> Labelled:
    return [(row[0], label) for row, label in zip(role.texts, role.labels.tolist(), strict=True)]


def parts(rows: Labelled, seed: int) -> tuple[Labelled, Labelled]:
    """Split into rows that judge, and those that `compress` may see."""
    order = np.random.default_rng(seed).permutation(len(rows))
    unseen, texts = ([rows[index] for index in part] for part in np.split(order, [UNSEEN]))
    return unseen, texts


def table(file: Path, rows: Labelled, names: Sequence[str], *, labelled: bool) -> None:
    """Write a CSV of texts, and of labels by their names."""
    with file.open("w", newline="", encoding="utf-8") as out:
        writer = csv.writer(out)
        writer.writerow(("text", "label") if labelled else ("text",))
        writer.writerows((text, names[label])[: 1 + labelled] for text, label in rows)


def measured(out: Path, original: Path, unseen: Labelled, metric: Metric) -> Row:
    """Time what was written, and judge it on rows that nothing saw."""
    texts, labels = [text for text, _ in unseen], np.array([label for _, label in unseen])
    folders = (out, original / "float32", original / "int8")
    times = text_to_label([Classifier(folder) for folder in folders], texts[:_TIMED]).mean(axis=0)
    after, before = (
        answers_to(Classifier(folder, threads=0), texts).argmax(-1) for folder in folders[:2]
    )
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


def unpruned_of(asked: argparse.Namespace, folder: Path) -> Unpruned:
    """Fine-tune and deploy."""
    model, train, others = teacher_of(asked.task, asked.glue, asked.cache)
    task, tokenizer = (
        task_of(asked.task, asked.glue),
        Checkpoint(teacher_for(asked.task).checkpoint).tokenizer,
    )
    seconds = {}
    save_model(model, folder / "model")
    tokenizer.save_pretrained(folder / "model")
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
                **GATES[gate],
            )
            worth = measured(out, folder, unseen, task.metric)
        taken = {"taken": compressed.deployed.what(), "passed": compressed.passed}
        return [{**taken, **worth, "seconds": compressed.seconds}]


Answers = np.ndarray[Any, np.dtype[np.int64]]


@dataclass
class Rival:
    """A model that is called as `objectives.delivery.classify.Classifier` is."""

    answer: Callable[[Sequence[str]], Answers]
    """Indices of labels, many texts at a time."""
    mb: float
    seconds: float
    """Time that made it."""
    serve: Callable[[Sequence[str]], Any] | None = None
    """The call that is timed, if it is not `answer`."""

    def __call__(self, texts: Sequence[str], batch: int = 8) -> Any:
        return (self.serve or self.answer)(texts)


def tf_idf(texts: Sequence[str], labels: Answers) -> Rival:
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    began = time.perf_counter()
    words = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, max_features=50_000)
    model = make_pipeline(words, LogisticRegression(C=10, max_iter=1000)).fit(texts, labels)
    seconds = time.perf_counter() - began
    size = model[-1].coef_.nbytes + sum(len(word) + 8 for word in words.vocabulary_)
    return Rival(model.predict, size / 1e6, seconds)


def model2vec(texts: Sequence[str], labels: Answers, checkpoint: str) -> Rival:
    from model2vec.distill import distill  # type: ignore[import-not-found]
    from model2vec.train import StaticModelForClassification  # type: ignore[import-not-found]

    began = time.perf_counter()
    model = StaticModelForClassification.from_static_model(model=distill(checkpoint, device="cpu"))
    model.fit(list(texts), labels.tolist(), device="cpu")
    seconds = time.perf_counter() - began
    served = model.to_pipeline()
    size = sum(parameter.nbytes for parameter in model.parameters())
    return Rival(lambda own: np.asarray(served.predict(own)), size / 1e6, seconds)


def rivals(
    train: Labelled, texts: Labelled, answers: Mapping[str, int], asked: float, checkpoint: str
) -> Iterator[tuple[str, Rival]]:
    """Make what is made of rows, each with its name; the teacher took `asked` seconds a row."""
    train_texts = [text for text, _ in train]
    labels = np.array([label for _, label in train])
    every = train_texts + [text for text, _ in texts]
    taught = np.array([answers[text] for text in every])
    makers: dict[str, Callable[..., Rival]] = {
        "tf-idf": tf_idf,
        "model2vec": lambda *rows: model2vec(*rows, checkpoint),
    }
    for name, make in makers.items():
        try:
            yield f"{name}, labels", make(train_texts, labels)
            rival = make(every, taught)
        except ImportError as error:
            Console().print(f"{name} is left out: {error}")
            continue
        rival.seconds += asked * len(every)
        yield f"{name}, teacher's answers", rival


def judged(models: Sequence[tuple[str, Rival]], unseen: Labelled, metric: Metric) -> Iterator[Row]:
    """Judge each beside the first, the teacher, and the second, its int8."""
    texts, labels = [text for text, _ in unseen], np.array([label for _, label in unseen])
    times = text_to_label([model for _, model in models], texts[:_TIMED]).mean(axis=0)  # type: ignore[misc]
    answers = [model.answer(texts) for _, model in models]
    values = [metric_value(metric, labels, own) for own in answers]
    for index, (name, model) in enumerate(models):
        yield {
            "rival": name,
            "ms": float(times[index]),
            "speedup_int8": float(times[1] / times[index]),
            "mb": model.mb,
            "metric": values[index],
            "metric_kept": values[index] / values[0],
            "agreement": float((answers[index] == answers[0]).mean()),
            "seconds": model.seconds,
        }


def served(folder: Path, seconds: float) -> Rival:
    """Load the unpruned model of a folder."""
    fast = Classifier(folder, threads=0)
    size = sum(file.stat().st_size for file in folder.glob("*.onnx")) / 1e6
    return Rival(
        lambda texts: answers_to(fast, texts).argmax(-1), size, seconds, Classifier(folder)
    )


class Rivals(Benchmark[Unpruned]):
    """How good is what a user would do instead of `compress`, on the same rows?

    Beside the teacher and its int8: tf-idf with logistic regression, and model2vec if it is
    installed (`pip install model2vec[distill,train]`), both on the teacher's train rows and on its
    answers to these and to all texts that `compress` may see.
    """

    name = "rivals"
    threads = None
    groups = ("task", "rival")
    means = {"metric": ".3f", "agreement": ".3f", "ms": ".2f", "mb": ".1f", "seconds": ".0f"}

    def prepare(self, key: Row) -> Unpruned:
        """Fine-tune the teacher."""
        return unpruned_of(self.asked, self.scratch)

    def rows(self, key: Row, unpruned: Unpruned) -> Iterator[Row]:
        """Make all rivals, and judge them."""
        teacher, int8 = (
            served(unpruned.folder / name, seconds) for name, seconds in unpruned.seconds.items()
        )
        train, others = unpruned.train, unpruned.others
        every = [text for text, _ in (*train, *others)]
        began = time.perf_counter()
        answers = dict(zip(every, teacher.answer(every).tolist(), strict=True))
        seconds = (time.perf_counter() - began) / len(every)
        unseen, texts = parts(others, key["seed"])
        checkpoint = teacher_for(self.asked.task).checkpoint
        made = [("teacher", teacher), ("teacher, int8", int8)]
        made += rivals(train, texts, answers, seconds, checkpoint)
        return judged(made, unseen, unpruned.task.metric)

    def show(self, rows: list[Row]) -> None:
        """Print the means, beside those rows of `compress` that had most texts."""
        compressed = [
            row
            for row in Rows(self.asked.out / "compress.json").rows
            if "mb" in row and row["task"] == self.asked.task
        ]
        most = max((row["texts"] for row in compressed), default=0)
        shown = [
            {**row, "rival": f"compress, {row['gate']} as the gate"}
            for row in compressed
            if row["texts"] == most
        ]
        super().show([*rows, *shown])
