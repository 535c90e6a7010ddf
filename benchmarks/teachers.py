"""Teachers: their rate and epochs, several of them, and what a student has learnt before."""

from __future__ import annotations

import argparse
import ast
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from sysconfig import get_path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from datasets import Dataset, load_dataset
from transformers import AutoTokenizer, BertConfig, BertModel, PreTrainedModel

from benchmarks.harness import Benchmark, Row
from benchmarks.tasks import (
    BATCH,
    RATE,
    TEXT,
    Training,
    epochs_of,
    task_of,
    teacher_for,
)
from maskfront import CellSearch, RandomPruning, SearchMethod, Stage, Task, Teacher, distil
from objectives.measures.evaluate import score
from objectives.session import Session
from objectives.students.bert.exporting import save_model, save_tokenizer
from objectives.training.stages import Loss
from objectives.workbench.inputs import Inputs, read_inputs
from objectives.workbench.teacher_trials import FineTune, tune
from objectives.workbench.words import answers_of_words, worth_of_words
from objectives.workbench.workbench import Workbench, prepare
from studies._data import minilm, tweets

PACKAGES, MOST, FEWEST = 50, 1200, 20
"""Of docstrings: packages, of all sizes, and rows of each at most and at least."""


@cache
def docstrings() -> Dataset:
    """Return first paragraphs of installed packages' docstrings, each with its package."""
    paragraphs_of: dict[str, dict[str, None]] = {}
    for package in sorted(Path(get_path("purelib")).iterdir()):
        if (package / "__init__.py").exists():
            paragraphs = paragraphs_of.setdefault(package.name, {})
            for file in sorted(package.rglob("*.py")):
                if len(paragraphs) >= MOST:
                    break
                paragraphs |= dict.fromkeys(_paragraphs(file))
    sizes = sorted((len(some), name) for name, some in paragraphs_of.items() if len(some) >= FEWEST)
    packages = [sizes[len(sizes) * index // PACKAGES][1] for index in range(PACKAGES)]
    rows = [(text, name) for name in packages for text in paragraphs_of[name]]
    return Dataset.from_dict({"text": [row[0] for row in rows], "label": [row[1] for row in rows]})


def _paragraphs(file: Path) -> Iterator[str]:
    try:
        tree = ast.parse(file.read_text(encoding="utf-8"))
    except (SyntaxError, UnicodeDecodeError):
        return
    kinds = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(tree):
        if isinstance(node, kinds) and (text := ast.get_docstring(node)):
            first = " ".join(text.partition("\n\n")[0].split())
            if len(first) > 30:
                yield first


class Teachers(Benchmark[Inputs]):
    """At which rate, and for how long, does a teacher learn most?

    `loss` is the mean loss on the selection split after each epoch, in nats; `words` the held-out
    metric of a linear model on tf-idf. "docstrings 3000": which of fifty packages is it from?
    """

    name = "teachers"
    tasks = ()
    seeds = (0,)
    grid = {
        "task": ("tweets 500", "tweets 4000", "sst2 2000", "docstrings 3000"),
        "rate": (5e-5, 2e-4),
        "epochs": (3, 4, 6, 8, 10),
    }
    prepared_by = ("task",)
    groups = ("task", "rate", "epochs")
    means = dict.fromkeys(("last", "least", "select", "heldout", "words"), ".4f")

    @classmethod
    def parser(cls) -> argparse.ArgumentParser:
        """Return the options, with the folder of GLUE."""
        parser = super().parser()
        parser.add_argument("--glue", help="folder of nyu-mll/glue, for sst2")
        return parser

    def prepare(self, key: Row) -> Inputs:
        """Read the task, with so many train rows."""
        kind, rows = key["task"].split()
        if kind == "docstrings":
            task = Task(name=kind, data=docstrings, max_length=48, select=1500)
        else:
            task = task_of(kind, None if kind == "tweets" else self.asked.glue)
        return read_inputs(replace(task, train=int(rows)), Teacher(checkpoint=minilm()))

    def rows(self, key: Row, inputs: Inputs) -> list[Row]:
        """Fine-tune a teacher."""
        asked, row = self.asked, Row()
        session = Session(cache=asked.cache, seed=key["seed"], device=asked.device)
        logits = answers_of_words(inputs.task, inputs.text, session)
        row["words"] = worth_of_words(inputs.task, inputs.text, logits).heldout_metric

        def choose(fine_tune: FineTune) -> PreTrainedModel:
            losses: list[float] = []
            settings = {"learning_rate": key["rate"], "epochs": key["epochs"]}
            model, _ = fine_tune(settings, lambda _, loss: losses.append(loss))
            for role in ("select", "heldout"):
                split = inputs.split(role)
                row[role] = score(model, split, inputs.task.metric, session.device)
            row["loss"] = losses
            return model

        with TemporaryDirectory() as scratch:  # which keeps the model
            tune(inputs, replace(session, cache=Path(scratch)), choose)
        return [row]

    def show(self, rows: list[Row]) -> None:
        """Print the means, with the last and the least loss."""
        super().show([{**row, "last": row["loss"][-1], "least": min(row["loss"])} for row in rows])


class Ensemble(Training):
    """What does a student gain from several teachers?

    Cells of two convolutions learn from one of three fine-tuned MiniLM-L6, from the mean of their
    probabilities, or from the annotators' labels, with `smoothing` of 0.1 and of 0.
    """

    name = "ensemble"
    tasks = ()
    flags = TEXT
    labels: dict[str, Any] = {"answers": "sentiment", "answers_as": "labels"}
    grid = {
        "arm": ("member 0", "member 1", "member 2", "ensemble", "labels", "labels, hard"),
        "steps": (4000,),
    }
    prepared_by = ("arm",)
    kept = ("kl", "select", "heldout")
    groups = ("rows", "steps", "arm")
    means = dict.fromkeys((*kept, "teacher_heldout"), ".4f")

    def prepare(self, key: Row) -> Workbench:
        """Prepare the tweets with the teacher of an arm."""
        asked, arm, task = self.asked, key["arm"], task_of("tweets", None)
        if arm.startswith("labels"):
            smoothing = {"smoothing": 0.0} if arm.endswith("hard") else {}
            teacher = Teacher(**self.labels, **smoothing)
        elif arm == "ensemble":
            teacher = Teacher(ensemble=tuple(self._member(seed) for seed in range(3)))
        else:
            teacher = Teacher(checkpoint=self._member(int(arm[-1])))
        if asked.text:
            task = replace(task, unlabelled_split=task.split)
        inputs = read_inputs(task, teacher, student=minilm())
        return prepare(inputs, Session(cache=asked.cache, device=asked.device))

    def _member(self, seed: int) -> str:
        """Return the folder of a MiniLM that was fine-tuned with the seed, made once."""
        folder = self.asked.cache / f"member-{seed}"
        if not folder.is_dir():
            inputs = read_inputs(task_of("tweets", None), teacher_for("tweets"))
            session = Session(cache=self.asked.cache, seed=seed, device=self.asked.device)
            save_model(prepare(inputs, session).problem.teacher, folder)
            save_tokenizer(inputs.tokenizer, folder)
        return str(folder)

    def key(self, key: Row, bench: Workbench) -> Row:
        """Return the key, with the number of train rows."""
        return {**key, "rows": len(bench.problem.train)}

    def method(self, key: Row, bench: Workbench) -> SearchMethod:
        """Return a cell of two convolutions."""
        return CellSearch(epochs=epochs_of(key["steps"], bench))


class General(Training):
    """What do general distillation, and a hint for a thin student, add before the task's own?

    Students begin with three layers of the fine-tuned teacher, of the pretrained model, or of what
    general distillation on all text here made of these; `thin` is new, twice as deep and half as
    wide, and has the hint of the teacher's middle layer for half of the steps or not.
    """

    name = "general"
    tasks = ("tweets", "sst2", "cola", "rte")
    seeds = (0,)
    layers = (0, 2, 4)
    grid = {
        "start": ("layers", "pretrained", "general", "thin", "thin, hint"),
        "passes": (1.0,),
        "steps": (150, 600),
    }
    prepared_by = ("start", "passes")
    groups = ("task", "passes", "steps", "start")
    means = dict.fromkeys(("kl", "heldout_kl", "select", "heldout"), ".4f")

    def prepare(self, key: Row) -> Workbench:
        """Prepare the task with a student of this start."""
        asked = self.asked
        match key["start"]:
            case "layers":
                student: dict[str, Any] = {"student_layers": self.layers}
            case "pretrained":
                student = {"student": self._distilled(0)}
            case "general":
                student = {"student": self._distilled(key["passes"])}
            case _:
                student = {"student": self._thin()}
        inputs = read_inputs(task_of(asked.task, asked.glue), teacher_for(asked.task), **student)
        return prepare(inputs, Session(cache=asked.cache, device=asked.device))

    def _distilled(self, passes: float) -> str:
        """Return the folder of three layers, distilled once."""
        glue = self.asked.glue
        folder: Path = self.asked.cache / f"general-{'glue-' if glue else ''}{passes:g}"
        if not folder.is_dir():
            text: Path = self.asked.cache / "all_text.txt"
            text.write_text("\n".join(all_text(glue)) + "\n", encoding="utf-8")
            # Without a pass: one step at a rate of next to nothing.
            rate, epochs = (RATE, passes) if passes else (1e-12, 1e-9)
            distil(
                *(minilm(), text, folder),
                student_layers=self.layers,
                epochs=epochs,
                learning_rate=rate,
            )
        return str(folder)

    def _thin(self) -> str:
        """Return the folder of a new BERT with 6 heads of 32 dimensions in each of 12 layers."""
        folder = self.asked.cache / "thin"
        if not folder.is_dir():
            torch.manual_seed(0)
            sizes: dict[str, Any] = {"hidden_size": 192, "intermediate_size": 768}
            sizes |= {"num_hidden_layers": 12, "num_attention_heads": 6}
            BertModel(BertConfig.from_pretrained(minilm(), **sizes)).save_pretrained(folder)
            AutoTokenizer.from_pretrained(minilm()).save_pretrained(folder)
        return str(folder)

    def method(self, key: Row, bench: Workbench) -> SearchMethod:
        """Return so many steps in all, by the losses that such a student can learn."""
        losses: tuple[Loss, ...] = ("prediction+hidden",)
        if key["start"].startswith("thin"):
            losses = ("hint", "prediction") if key["start"].endswith("hint") else ("prediction",)
        epochs = epochs_of(key["steps"], bench) / len(losses)
        stages = tuple(
            Stage(name=f"learn {loss}", epochs=epochs, learning_rate=RATE, loss=loss)
            for loss in losses
        )
        return RandomPruning(target_ratio=1.0, batch_size=BATCH, stages=stages)


def all_text(glue: str | None) -> list[str]:
    """Return every text of the train splits here, in one order."""
    columns = {"sst2": ["sentence"], "cola": ["sentence"], "rte": ["sentence1", "sentence2"]}
    lines = list(tweets()["text"])
    for name, texts in columns.items() if glue else ():
        rows = load_dataset(f"{glue}/{name}", split="train")
        lines += [line for column in texts for line in rows[column]]
    return [" ".join(line.split()) for line in lines]
