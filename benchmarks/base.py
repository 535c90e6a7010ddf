"""What is left of a model of BERT-base's size: `compress`, its own cuts, MiniLM and cells."""

from __future__ import annotations

import argparse
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from benchmarks.compress import GATES, Labelled, Unpruned, parts, table, unpruned_of
from benchmarks.harness import Row
from benchmarks.rivals import Rival, Rivals, compressed, judged, served
from maskfront import Task, Teacher, launch
from objectives.workbench.inputs import read_inputs
from orchestrator.command.candidates import Candidates
from orchestrator.command.cascading import FASTER
from orchestrator.command.planning import RoleSizes
from studies._data import minilm, other_tweets


class Base(Rivals):
    """What do `compress`, its own cuts, MiniLM and cells keep of a model of BERT-base's size?

    MPNet is fine-tuned on the task, and its answers teach. "compress" is one call by each gate, and
    "student" likewise with MiniLM as its student; "compress-more" and "student-more" also read text
    without labels: all other tweets, and of another task what the teacher learnt from. "cuts" and
    "minilm" are the studies of studies/base.py, whose fronts are judged in float32 and in int8;
    "checkpoint" is MiniLM fine-tuned on the labels. All that is made stays below `--cache` and goes
    on from there.
    """

    name = "base"
    seeds = (0, 1, 2)
    grid = {
        "part": (
            *("compress", "student", "compress-more", "student-more"),
            *("checkpoint", "cuts", "minilm"),
        )
    }
    groups = ("task", "part", "rival")
    means = {name: form for name, form in Rivals.means.items() if name != "texts_a_second"}

    def prepare(self, key: Row) -> Unpruned:
        """Fine-tune the teacher."""
        from studies.base import study  # here, as it needs the packages of requirements-base.txt

        folder = (self.asked.cache / f"base-{self.asked.task}").resolve()
        for name in ("float32", "int8"):
            shutil.rmtree(folder / name, ignore_errors=True)
        return unpruned_of(self.asked, folder, study.teacher)

    def rows(self, key: Row, unpruned: Unpruned) -> Iterator[Row]:
        """Make the models of a part, and judge them beside the teacher and its int8."""
        folder = unpruned.folder / f"seed-{key['seed']}"
        folder.mkdir(exist_ok=True)
        os.chdir(folder)
        unseen, texts = parts(unpruned.others, key["seed"])
        made = [*_both("MPNet", unpruned)]
        kind, _, more = key["part"].partition("-")
        if kind in ("compress", "student"):
            scratch = folder / key["part"]
            scratch.mkdir(exist_ok=True)
            made += compressed(
                *(unpruned, texts, self.asked.minutes, scratch),
                minilm() if kind == "student" else None,
                unlabelled=self._more(unpruned) if more else (),
                gates=self.asked.gates,
            )
        elif key["part"] == "checkpoint":
            made += _both("MiniLM", unpruned_of(self.asked, self.scratch / f"{key['seed']}"))
        else:
            made += self._front(key["part"], unpruned, texts)
        return judged(made, unseen, unpruned.task.metric, throughput=0)

    def _more(self, unpruned: Unpruned) -> Sequence[str]:
        if self.asked.task == "tweets":
            return other_tweets()
        return [text for text, _ in unpruned.train]

    @classmethod
    def parser(cls) -> argparse.ArgumentParser:
        """Return the options, with the gates of `compress`."""
        parser = super().parser()
        parser.add_argument("--gates", nargs="+", choices=GATES, default=list(GATES))
        return parser

    def _front(self, part: str, unpruned: Unpruned, texts: Labelled) -> Iterator[tuple[str, Rival]]:
        """Run a study on the texts without their labels; each model of its front in each engine."""
        from studies.base import study, study_minilm

        file = Path("front.csv")
        table(file, texts, list(unpruned.model.config.id2label.values()), labelled=False)
        task = Task.from_files(
            file,
            name=self.asked.task,
            text="text",
            metric="agreement",
            max_length=unpruned.task.max_length,
            **asdict(RoleSizes.of(len(texts))),
        )
        teacher = Teacher(checkpoint=str(unpruned.folder / "model"))
        asked = replace(
            study if part == "cuts" else study_minilm,
            task=task,
            teacher=teacher,
            objective="divergence",
        )
        run = launch(asked, device=self.asked.device)
        candidates = Candidates(
            read_inputs(task, teacher), FASTER, self.scratch / f"{part}-{len(texts)}", print
        )
        for trial in run.front:
            candidates.add_trial(run, trial.number)
            for engine in FASTER:
                ratio = f"{trial.result.ratio:.2g} of the FLOPs"
                name = f"{trial.knobs['method']}, {ratio}, {engine}"
                yield name, served(candidates.folder(trial.number, engine), trial.seconds)


def _both(name: str, unpruned: Unpruned) -> Iterator[tuple[str, Rival]]:
    for precision, seconds in unpruned.seconds.items():
        yield f"{name}, {precision}", served(unpruned.folder / precision, seconds)
