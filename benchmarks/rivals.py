"""What a user would do instead of `compress`, on the same rows.

MiniLM-L6 is fine-tuned on a task once. Rivals are made of it, or of its train rows, and judged on
the rows that benchmarks.compress sets aside, from text to label, one text a call, one thread:

- the teacher itself, and its int8 (onnxruntime);
- tf-idf of words and pairs of words with logistic regression, on the teacher's train rows;
- the same on the teacher's answers to those rows and to all texts that `compress` may see;
- model2vec: static embeddings distilled from the pretrained model, and its own classifier, on
  either of these rows (`pip install model2vec[distill,train]`; without it these rows are missing).

    python -m benchmarks.rivals --cache FOLDER [--task sst2 --glue FOLDER] [--seeds 0 1 2]

Writes benchmarks/results/rivals.json, a row for each task, seed and rival, and prints them beside
those rows of compress.json that had most texts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from rich.console import Console

from benchmarks.compress import Labelled, parts, teacher_of
from benchmarks.harness import Row, Rows, parsed, parser_of, print_means
from benchmarks.tasks import task_of, teacher_for
from objectives.delivery.classify import Classifier
from objectives.delivery.deployed import answers_to, deploy, text_to_label
from objectives.metric import Metric, metric_value
from objectives.students.bert.pretrained import Checkpoint

Answers = np.ndarray[Any, np.dtype[np.int64]]
_TIMED = 300


@dataclass
class Rival:
    """A model that is called as `objectives.delivery.classify.Classifier` is."""

    answer: Callable[[Sequence[str]], Answers]
    """The places of labels, many texts at a time."""
    mb: float
    seconds: float
    """That made it."""
    serve: Callable[[Sequence[str]], Any] | None = None
    """What is timed, if it is not `answer`."""

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
    """Those that are made of rows, each with its name; the teacher took `asked` seconds a row."""
    known = [text for text, _ in train]
    labels = np.array([label for _, label in train])
    every = known + [text for text, _ in texts]
    said = np.array([answers[text] for text in every])
    makers: dict[str, Callable[..., Rival]] = {
        "tf-idf": tf_idf,
        "model2vec": lambda *rows: model2vec(*rows, checkpoint),
    }
    for name, make in makers.items():
        try:
            yield f"{name}, labels", make(known, labels)
            rival = make(every, said)
        except ImportError as error:
            Console().print(f"{name} is left out: {error}")
            continue
        rival.seconds += asked * len(every)
        yield f"{name}, teacher's answers", rival


def judged(models: Sequence[tuple[str, Rival]], unseen: Labelled, metric: Metric) -> Iterator[Row]:
    """A row of each, beside the first, the teacher, and the second, its int8."""
    texts, labels = [text for text, _ in unseen], np.array([label for _, label in unseen])
    times = text_to_label([model for _, model in models], texts[:_TIMED]).mean(axis=0)  # type: ignore[misc]
    said = [model.answer(texts) for _, model in models]
    worth = [metric_value(metric, labels, own) for own in said]
    for place, (name, model) in enumerate(models):
        yield {
            "rival": name,
            "ms": float(times[place]),
            "speedup_int8": float(times[1] / times[place]),
            "mb": model.mb,
            "metric": worth[place],
            "metric_kept": worth[place] / worth[0],
            "agreement": float((said[place] == said[0]).mean()),
            "seconds": model.seconds,
        }


def served(folder: Path, seconds: float) -> Rival:
    """The unpruned model of a folder."""
    fast = Classifier(folder, threads=0)
    size = (folder / "model.onnx").stat().st_size / 1e6
    return Rival(
        lambda texts: answers_to(fast, texts).argmax(-1), size, seconds, Classifier(folder)
    )


def main() -> None:
    """Run, or go on, and print the table."""
    parser = parser_of(__doc__, tasks=("tweets", "sst2", "cola"), seeds=(0, 1, 2), cache=True)
    asked = parsed(parser)
    rows = Rows(asked.out / "rivals.json")
    model, train, labelled = teacher_of(asked.task, asked.glue, asked.cache)
    checkpoint = teacher_for(asked.task).checkpoint
    tokenizer = Checkpoint(checkpoint).tokenizer
    task = task_of(asked.task, asked.glue)
    with TemporaryDirectory() as scratch:
        whole: list[tuple[str, Rival]] = []
        for name, engine in (("teacher", "onnxruntime"), ("teacher, int8", "onnxruntime-int8")):
            began = time.perf_counter()
            folder = Path(scratch) / engine
            deploy(folder, model, tokenizer, engine, task.max_length)  # type: ignore[arg-type]
            whole.append((name, served(folder, time.perf_counter() - began)))
        missing = [seed for seed in asked.seeds if not rows.has({"task": asked.task, "seed": seed})]
        if missing:  # all seeds share the teacher's answers, which take minutes
            every = [text for text, _ in (*train, *labelled)]
            began = time.perf_counter()
            answers = dict(zip(every, whole[0][1].answer(every).tolist(), strict=True))
            seconds = (time.perf_counter() - began) / len(every)
        for seed in missing:
            key = {"task": asked.task, "seed": seed}
            unseen, texts = parts(labelled, seed)
            made = [*whole, *rivals(train, texts, answers, seconds, checkpoint)]
            rows.add(*({**key, **row} for row in judged(made, unseen, task.metric)))
    ours = Rows(asked.out / "compress.json").rows
    most = max((row["texts"] for row in ours if row["task"] == asked.task), default=0)
    shown = [
        {**row, "rival": f"compress, {row['gate']} as the gate"}
        for row in ours
        if row["texts"] == most and row["task"] == asked.task and "mb" in row
    ]
    forms = {"metric": ".3f", "agreement": ".3f", "ms": ".2f", "mb": ".1f", "seconds": ".0f"}
    print_means("rivals, on rows that nothing saw", [*rows.rows, *shown], ("task", "rival"), forms)


if __name__ == "__main__":
    main()
