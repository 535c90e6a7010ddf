"""Long texts at BERT-base's size: milliseconds by length, and what cuts in heads gain there."""

from __future__ import annotations

import argparse
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.harness import Benchmark, Row
from benchmarks.tasks import kept, search, worth
from maskfront import CrossDistillation, Task, Teacher
from objectives.delivery.classify import Classifier
from objectives.delivery.deployed import deploy, text_to_label
from objectives.engines.names import Engine
from objectives.session import Session
from objectives.workbench.inputs import read_inputs
from objectives.workbench.teacher import fine_tuned
from objectives.workbench.workbench import Workbench, prepare
from studies._data import mpnet

_TUNED_AT = 64
"""Tokens of the texts that the teacher learns from: few, as a CPU takes long."""
_RATIO = 0.85
"""Share of the FLOPs at each length: heads alone can give a third."""
_TIMED = 30  # texts
_ENGINES: tuple[Engine, ...] = ("onnxruntime", "onnxruntime-int8")


class LongTexts(Benchmark[Workbench]):
    """What do 256 and 512 tokens cost a model of BERT-base's size, and do cuts in heads gain there?

    MPNet, fine-tuned on the first 64 tokens, is cut without training to 0.85 of the FLOPs at each
    length. Milliseconds are those from text to label on one thread, of the model whole and cut.
    """

    name = "long_texts"
    tasks = ()
    seeds = (0,)
    threads = None
    grid = {"length": (64, 256, 512), "cut": ("heads", "ffn", "heads+ffn")}
    prepared_by = ("length",)
    groups = ("length", "cut")
    means = {
        **{"whole_float32": ".1f", "whole_int8": ".1f", "cut_float32": ".1f", "cut_int8": ".1f"},
        **{"heldout_kl": ".4f", "heldout_agreement": ".3f", "heldout": ".3f"},
    }

    @classmethod
    def parser(cls) -> argparse.ArgumentParser:
        """Return the options, with the file of the texts."""
        parser = super().parser()
        parser.add_argument("--texts", required=True, help="CSV with the columns text and kind")
        return parser

    def prepare(self, key: Row) -> Workbench:
        """Fine-tune the teacher, and let it answer the texts at a length."""
        session = Session(cache=self.asked.cache, device=self.asked.device)
        inputs = read_inputs(self._task(_TUNED_AT), Teacher(checkpoint=mpnet()))
        [checkpoint] = inputs.teacher.models
        train = inputs.split("train")
        tuned = fine_tuned(inputs.teacher, checkpoint, inputs.text, train, Path, session=session)
        return prepare(
            read_inputs(self._task(key["length"]), Teacher(checkpoint=str(tuned))), session
        )

    def rows(self, key: Row, bench: Workbench) -> list[Row]:
        """Cut the model, and time both."""
        method = CrossDistillation(
            rows=128, spaces=tuple(key["cut"].split("+")), target_ratio=_RATIO
        )
        result = search(method, bench.problem, key["seed"])
        times = {}
        with TemporaryDirectory(dir=self.scratch) as scratch:
            models = {"whole": bench.problem.teacher, "cut": result.model}
            for name, model in models.items():
                for engine in _ENGINES:
                    precision = "int8" if engine.endswith("int8") else "float32"
                    folder = Path(scratch) / f"{name}_{precision}"
                    deploy(folder, model, bench.tokenizer, engine, key["length"])
                    times[folder.name] = Classifier(folder)
            texts = [row[0] for row in bench.texts["heldout"].texts[:_TIMED]]
            means = text_to_label(list(times.values()), texts).mean(axis=0).tolist()
        measures = ("reached", "kl", "heldout_kl", "heldout_agreement", "heldout")
        return [
            {
                "flops": bench.problem.budget.full,
                **dict(zip(times, means, strict=True)),
                **kept(worth(bench, result), *measures),
                "teacher_heldout": bench.unpruned.heldout_metric,
            }
        ]

    def _task(self, length: int) -> Task:
        sizes = {"train": 300, "alpha": 100, "select": 200, "heldout": 300}
        return Task.from_files(
            self.asked.texts, name="long", text="text", label="kind", max_length=length, **sizes
        )
