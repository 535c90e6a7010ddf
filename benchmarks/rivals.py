"""What a user would do instead of `compress`: each on the same rows, timed in turns in one run."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from tokenizers import Tokenizer
from transformers import AutoModel

from benchmarks.compress import (
    GATES,
    TIMED,
    Labelled,
    Unpruned,
    answers_of,
    parts,
    table,
    unpruned_of,
)
from benchmarks.harness import Benchmark, Row
from benchmarks.tasks import teacher_for
from maskfront import compress
from objectives.delivery.classify import Classifier
from objectives.delivery.deployed import text_to_label
from objectives.metric import Metric, metric_value

_THROUGHPUT, _BATCH = 2560, 256
Answers = NDArray[np.int64]


@dataclass
class Rival:
    """A model that is called as `objectives.delivery.classify.Classifier` is."""

    answer: Callable[[Sequence[str]], Answers]
    """Indices of labels, many texts at a time."""
    mb: float
    seconds: float
    """Time that made it."""
    serve: Callable[..., Any] | None = None
    """The call that is timed, if it is not `answer`."""
    deferred: Callable[[], float] = float
    """Share of the texts so far that it deferred to a larger model; by default none."""

    def __call__(self, texts: Sequence[str], batch: int = 8) -> Any:
        return self.serve(texts, batch) if self.serve else self.answer(texts)


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
    return Rival(lambda texts: np.asarray(served.predict(texts)), size / 1e6, seconds)


def trained(
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


Run = Callable[[Mapping[str, Answers]], NDArray[np.float32]]


def quantised(model: torch.nn.Module, plain: Path) -> tuple[Run, float]:
    """Export and quantise at the defaults of torch and onnxruntime."""
    import onnxruntime
    from onnxruntime.quantization import quantize_dynamic

    small = plain.with_suffix(".int8.onnx")
    ids = torch.ones(2, 16, dtype=torch.long)
    names = ["input_ids", "attention_mask", "token_type_ids"]
    axes = {name: {0: "batch", 1: "length"} for name in names}
    torch.onnx.export(
        *(model.eval(), (ids, ids, 0 * ids), str(plain)),
        input_names=names,
        dynamic_axes=axes,
        dynamo=False,
    )
    quantize_dynamic(plain, small)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(small), options)
    return lambda inputs: session.run(None, dict(inputs))[0], small.stat().st_size / 1e6


def one_liner(unpruned: Unpruned, folder: Path) -> tuple[Run, float]:
    """Quantise the teacher as the manuals do."""
    return quantised(unpruned.model, folder / "plain.onnx")


class Embedding(torch.nn.Module):
    """Mean of the last states of a pretrained encoder, whose weights stay."""

    def __init__(self, checkpoint: str):
        super().__init__()
        self.encoder = AutoModel.from_pretrained(checkpoint)

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, token_type_ids: torch.Tensor
    ) -> torch.Tensor:
        states = self.encoder(input_ids, attention_mask, token_type_ids).last_hidden_state
        mask = attention_mask[..., None].to(states.dtype)
        return (states * mask).sum(1) / mask.sum(1)


@dataclass
class FrozenEncoder:
    """A logistic regression on an embedding, which asks another model where it is unsure."""

    embed: Callable[..., NDArray[np.float32]]
    head: Any
    sure: float
    """Texts of a lower probability are deferred."""
    asks: Classifier
    counts: NDArray[np.float64] = field(default_factory=lambda: np.zeros(2))
    """Texts deferred and answered so far."""

    def __call__(self, texts: Sequence[str], batch: int = 32) -> Answers:
        shares = self.head.predict_proba(self.embed(texts, batch))
        answers = self.head.classes_[shares.argmax(-1)]
        unsure = np.flatnonzero(shares.max(-1) < self.sure)
        if len(unsure):
            asked = [texts[row] for row in unsure]
            answers[unsure] = self.asks.logits(asked).argmax(-1)
        self.counts += len(unsure), len(texts)
        return np.asarray(answers)


def frozen_encoders(
    unpruned: Unpruned, texts: Sequence[str], labels: Answers, folder: Path
) -> Iterator[tuple[str, Rival]]:
    """Ask the int8 teacher, on one thread, where the regression is unsure. Take each threshold by a
    fifth of the texts, so that the agreement there is as asked."""
    from sklearn.linear_model import LogisticRegression

    began = time.perf_counter()
    encoder = Embedding(teacher_for(unpruned.task.name).checkpoint)
    run, mb = quantised(encoder, folder / "embedding.onnx")
    embed = read_by(unpruned, run)
    states, judging = embed(texts), np.arange(len(texts)) % 5 == 0
    head = LogisticRegression(C=10, max_iter=1000).fit(states[~judging], labels[~judging])
    shares = head.predict_proba(states[judging])
    best = shares.max(-1)
    order = np.argsort(-best)
    wrong = np.cumsum((head.classes_[shares.argmax(-1)] != labels[judging])[order])
    seconds = time.perf_counter() - began
    int8 = Classifier(unpruned.folder / "int8")
    mb += sum(file.stat().st_size for file in (unpruned.folder / "int8").glob("*.onnx")) / 1e6
    for share in (0.95, 0.98, 0.99):
        local = np.flatnonzero(wrong <= (1 - share) * len(order))
        made = FrozenEncoder(embed, head, float(best[order][local[-1]]), int8)

        def deferred(made: FrozenEncoder = made) -> float:
            return float(made.counts[0] / made.counts[1])

        name = f"frozen encoder, else int8, {share:g}"
        yield name, Rival(made, mb, seconds, made, deferred)


def openvino_int8(unpruned: Unpruned, folder: Path) -> tuple[Run, float]:
    """Run our int8 file in OpenVINO."""
    import openvino  # type: ignore[import-not-found]

    (file,) = (unpruned.folder / "int8").glob("*.onnx")
    model = openvino.Core().compile_model(str(file), "CPU", {"INFERENCE_NUM_THREADS": 1})
    return lambda inputs: np.asarray(model(dict(inputs))[0]), file.stat().st_size / 1e6


def ctranslate2_int8(unpruned: Unpruned, folder: Path) -> tuple[Run, float]:
    """Convert the encoder to CTranslate2; the classifier is numpy."""
    import ctranslate2  # type: ignore[import-not-found]

    made, head = folder / "ctranslate2", unpruned.model.classifier
    ctranslate2.converters.TransformersConverter(str(unpruned.folder / "model")).convert(
        str(made), quantization="int8", force=True
    )
    encoder = ctranslate2.Encoder(str(made), compute_type="int8", intra_threads=1)
    weight, bias = head.weight.detach().numpy(), head.bias.detach().numpy()

    def run(inputs: Mapping[str, Answers]) -> NDArray[np.float32]:
        lengths = inputs["attention_mask"].sum(1)
        rows = zip(inputs["input_ids"], lengths, strict=True)
        pooled = encoder.forward_batch([ids[:length].tolist() for ids, length in rows])
        return np.asarray(np.array(pooled.pooler_output) @ weight.T + bias)

    return run, (made / "model.bin").stat().st_size / 1e6


def read_by(unpruned: Unpruned, run: Run) -> Callable[..., NDArray[np.float32]]:
    """Read texts by the same tokenizers, and give the outputs for them."""
    reader = Tokenizer.from_file(str(unpruned.folder / "model" / "tokenizer.json"))
    reader.enable_truncation(unpruned.task.max_length)
    reader.enable_padding()

    def outputs(texts: Sequence[str], batch: int = 32) -> NDArray[np.float32]:
        parts = []
        for start in range(0, len(texts), batch):
            rows = reader.encode_batch(list(texts[start : start + batch]))
            inputs = {
                "input_ids": np.array([row.ids for row in rows]),
                "attention_mask": np.array([row.attention_mask for row in rows]),
                "token_type_ids": np.array([row.type_ids for row in rows]),
            }
            parts.append(run(inputs))
        return np.concatenate(parts)

    return outputs


def engines(unpruned: Unpruned, folder: Path) -> Iterator[tuple[str, Rival]]:
    """The teacher in other engines, on one thread."""
    for name, make in (
        ("torch.onnx.export, quantize_dynamic", one_liner),
        ("OpenVINO, int8", openvino_int8),
        ("CTranslate2, int8", ctranslate2_int8),
    ):
        try:
            began = time.perf_counter()
            run, mb = make(unpruned, folder)
        except ImportError as error:
            Console().print(f"{name} is left out: {error}")
            continue
        outputs = read_by(unpruned, run)

        def answer(
            texts: Sequence[str], batch: int = 32, outputs: Callable[..., Any] = outputs
        ) -> Answers:
            return np.asarray(outputs(texts, batch).argmax(-1))

        yield name, Rival(answer, mb, time.perf_counter() - began, answer)


def compressed(
    unpruned: Unpruned,
    texts: Labelled,
    minutes: float,
    folder: Path,
    student: str | None = None,
    *,
    unlabelled: Sequence[str] = (),
    gates: Sequence[str] = tuple(GATES),
) -> Iterator[tuple[str, Rival]]:
    """Make what `compress` makes of these texts, by each gate."""
    names = list(unpruned.model.config.id2label.values())
    for gate in gates:
        labelled, aim = gate == "metric", GATES[gate]
        table(folder / "texts.csv", texts, names, labelled=labelled, unlabelled=unlabelled)
        done = compress(
            *(unpruned.folder / "model", folder / "texts.csv"),
            out=folder / gate,
            student=student,
            quotechar='"',
            minutes=minutes,
            max_length=unpruned.task.max_length,
            take_nearest=True,
            metric=unpruned.task.metric if labelled else "accuracy",
            **aim,
        )
        yield f"compress, gate of {gate}", served(folder / gate, done.seconds, names)


def judged(
    models: Sequence[tuple[str, Rival]],
    unseen: Labelled,
    metric: Metric,
    throughput: int = _THROUGHPUT,
) -> Iterator[Row]:
    """Judge each beside the first, the teacher, and the second, its int8. Texts a second are those
    of `throughput` texts, if any: each session keeps the memory of its largest batch."""
    texts, labels = [text for text, _ in unseen], np.array([label for _, label in unseen])
    calls = [model for _, model in models]
    times = text_to_label(calls, texts[:TIMED])  # type: ignore[arg-type]
    seconds = []
    if throughput:
        many = (texts * (1 + throughput // len(texts)))[:throughput]
        batches = text_to_label(calls, many, batch=_BATCH)  # type: ignore[arg-type]
        seconds = [{"texts_a_second": 1000 * _BATCH / ms} for ms in batches.mean(0).tolist()]
    answers = [model.answer(texts) for model in calls]
    values = [metric_value(metric, labels, answer) for answer in answers]
    means = times.mean(axis=0)
    for index, (name, model) in enumerate(models):
        yield {
            "rival": name,
            "ms": float(means[index]),
            "ms_p95": float(np.quantile(times[:, index], 0.95)),
            **(seconds[index] if seconds else {}),
            "speedup_float32": float(means[0] / means[index]),
            "speedup_int8": float(means[1] / means[index]),
            "mb": model.mb,
            "metric": values[index],
            "metric_kept": values[index] / values[0],
            "agreement": float((answers[index] == answers[0]).mean()),
            "deferred": model.deferred(),
            "seconds": model.seconds,
        }


def served(folder: Path, seconds: float, names: Sequence[str] | None = None) -> Rival:
    """Load the models of a folder that `deploy` or `compress` wrote; `names`: the order of the
    labels that answers count in, if not the folder's."""
    single = Classifier(folder)
    order = names or list(single.labels or ())
    size = sum(file.stat().st_size for file in folder.glob("**/model*.[on]*")) / 1e6
    counts = [0, 1]

    def answer(texts: Sequence[str]) -> Answers:
        fast = Classifier(folder, threads=0)  # closed again: 24 MPNets take 24 GB
        answers = answers_of(fast, texts, order)
        counts[:] = fast.deferred, fast.asked
        return answers

    return Rival(answer, size, seconds, single, lambda: counts[0] / counts[1])


class Rivals(Benchmark[Unpruned]):
    """How good is what a user would do instead of `compress`, on the same rows?

    The teacher, its int8, and int8 by other means (OpenVINO and CTranslate2 where they are
    installed); a logistic regression on the frozen encoder, which asks the int8 where it is unsure;
    tf-idf with logistic regression, and model2vec if it is installed (`pip install
    model2vec[distill,train]`), both on the teacher's train rows and on its answers to these and to
    all texts that `compress` may see; and `compress` by each gate, ten minutes each.
    """

    name = "rivals"
    threads = None
    groups = ("task", "rival")
    means = {
        **{"metric": ".3f", "metric_kept": ".3f", "agreement": ".3f", "deferred": ".2f"},
        "speedup_int8": ".2f",
        **{"ms": ".3f", "ms_p95": ".3f", "texts_a_second": ",.0f", "mb": ".1f", "seconds": ".0f"},
    }

    def prepare(self, key: Row) -> Unpruned:
        """Fine-tune the teacher."""
        unpruned = unpruned_of(self.asked, self.scratch)
        os.chdir(unpruned.folder)
        return unpruned

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
        scratch = unpruned.folder / f"seed-{key['seed']}"
        scratch.mkdir()
        made = [("teacher", teacher), ("teacher, int8", int8)]
        made += engines(unpruned, scratch)
        shown = [text for text, _ in texts]
        taught = np.array([answers[text] for text in shown])
        made += frozen_encoders(unpruned, shown, taught, scratch)
        made += compressed(unpruned, texts, self.asked.minutes, scratch)
        made += trained(train, texts, answers, seconds, checkpoint)
        return judged(made, unseen, unpruned.task.metric)

    @classmethod
    def parser(cls) -> argparse.ArgumentParser:
        """Return the options, with the minutes of `compress`."""
        parser = super().parser()
        parser.add_argument("--minutes", type=float, default=10, help="of each compress")
        return parser
