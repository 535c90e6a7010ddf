"""Models of a run that may be deployed: written for onnxruntime, timed on texts, scored."""

import json
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from objectives.combining.cascade import Cascade, spread
from objectives.combining.members import GateRows, Member, at_least
from objectives.delivery import deployed
from objectives.delivery.bench import UNPRUNED, timings_of
from objectives.delivery.classify import Classifier
from objectives.delivery.exported import load_model
from objectives.delivery.reference import write_reference
from objectives.delivery.timings import Bench, Timing, with_comparisons
from objectives.engines.names import BITS, Engine
from objectives.measures.measured import measured_flops
from objectives.metric import Logits
from objectives.students.bert.pretrained import Checkpoint
from objectives.students.bert.quantising import rounds_inputs
from objectives.workbench.inputs import Inputs
from orchestrator.errors import RunError
from orchestrator.runs.answers import read_answers, read_rows
from orchestrator.runs.records import RunRecord
from reports.exporting.deployed_card import Deployed, deployed_card, named
from reports.exporting.export import export, new_folder
from reports.model_folders import model_folder
from reports.speed import keep_speeds

Say = Callable[[str], None]
_TIMED = 100  # texts of the selection split that are timed
# Another engine is chosen only if it takes at most this share of the first one's time.
_FASTER = 0.95
_FOLDERS = {1: ("onnx",), 2: ("small", "large"), 3: ("small", "middle", "large")}
"""Names of the folders of models, by their number."""
_DEFERS = ("confidence", "temperature", "threshold")


@dataclass(frozen=True, eq=False)
class Candidates:
    """Models in folders of `scratch`, each in some of onnxruntime's engines."""

    inputs: Inputs
    engines: Sequence[Engine]  # the unpruned model in the first is the reference for agreement
    scratch: Path
    say: Say
    rounded: set[int | None] = field(default_factory=set, init=False)
    """Trials that quantise inputs in torch but not here, so that their answers differ."""
    flops: dict[int | None, int] = field(default_factory=dict, init=False)
    """FLOPs of the unpruned model; with `Study.student` a run reports its student's."""

    def folder(self, number: int | None, engine: str) -> Path:
        """Folder into which `add` writes a model."""
        return self.scratch / f"{number}-{engine}"

    def add(self, number: int | None, model: Any, tokenizer: Any) -> None:
        """Write a model for each engine; `number` is that of its trial, None of the unpruned."""
        files, task = self.scratch / str(number), self.inputs.task
        length, cut = task.max_length, task.truncation
        texts = deployed.texts_of(self.inputs, "select")
        if number is None:
            self.flops[None] = measured_flops(model, self.inputs.seq_len)
        if rounds_inputs(model) or deployed.is_of_words(model):
            self.rounded.add(number)
        for engine in self.engines:
            self.say(f"writing {named(number)} for {engine}")
            folder = self.folder(number, engine)
            deployed.deploy(folder, model, tokenizer, engine, length, files, cut, texts)

    def add_trial(self, run: RunRecord, number: int) -> None:
        """Write the model of a finished trial of a run of these inputs."""
        folder = model_folder(run, number)
        self.add(number, load_model(folder), Checkpoint(str(folder)).tokenizer)

    def seconds_of_an_answer(self, number: int | None, engine: str) -> float:
        """Time one text among some, on all cores."""
        texts = spread(deployed.texts_of(self.inputs, "select"), _TIMED)
        classifier = Classifier(self.folder(number, engine), threads=0)
        deployed.answers_to(classifier, texts)  # it warms up
        began = time.monotonic()
        deployed.answers_to(classifier, texts)
        return (time.monotonic() - began) / len(texts)

    def judged(
        self, run: RunRecord, numbers: Sequence[int | None], *, keep: bool = False
    ) -> tuple[list[Member], GateRows]:
        """Score each model in its fastest engine; the unpruned one comes last, in all engines. With
        `keep` the times go on the run's page. Raises RunError for a run without answers."""
        judged_rows = read_rows(run)
        if judged_rows is None:
            raise RunError(
                f"'{run.folder}' has no answers of the unpruned model: an earlier version made it, "
                "or rows.safetensors is damaged; launch the study into another folder"
            )
        members = []
        for number, engine, cost in self._fastest(run, numbers, keep):
            self.say(f"{named(number, engine)}: {cost:.2f} ms per text; scoring it")
            members.append(Member(number, cost, self._answers(run, number, engine), engine))
        first = (None, self.engines[0])
        original = next(m.logits for m in members if (m.number, m.engine) == first)
        return members, GateRows(
            metric=self.inputs.task.metric,
            labels=judged_rows.labels,
            original={role: logits.argmax(-1) for role, logits in original.items()},
            classes=original["select"].shape[-1],
        )

    def _fastest(
        self, run: RunRecord, numbers: Sequence[int | None], keep: bool
    ) -> list[tuple[int | None, Engine, float]]:
        """Number, fastest engine, its milliseconds; the unpruned model has one entry an engine."""
        keys = [(number, engine) for number in numbers for engine in self.engines]
        texts = spread(deployed.texts_of(self.inputs, "select"), _TIMED)
        opened = [Classifier(self.folder(*key)) for key in keys]
        times = deployed.text_to_label(opened, texts, say=self.say)
        if keep:
            self._keep(run, numbers, times)
        means = dict(zip(keys, times.mean(axis=0).tolist(), strict=True))
        fastest = []
        for number in numbers:
            milliseconds = {engine: means[number, engine] for engine in self.engines}
            least = {**milliseconds, self.engines[0]: _FASTER * milliseconds[self.engines[0]]}
            taken = self.engines if number is None else [min(self.engines, key=least.__getitem__)]
            fastest += [(number, engine, milliseconds[engine]) for engine in taken]
        return fastest

    def _keep(
        self, run: RunRecord, numbers: Sequence[int | None], times: NDArray[np.float64]
    ) -> None:
        """Put milliseconds (texts, numbers x engines) on the page of the run."""
        names = {n: UNPRUNED if n is None else str(model_folder(run, n)) for n in numbers}
        flops_of_trial = {trial.number: trial.result.flops for trial in run.finished}
        flops = {names[number]: flops_of_trial[number] for number in numbers if number is not None}
        flops[UNPRUNED] = self.flops[None]
        length = round(np.mean(spread(self.inputs.split("select").lengths.tolist(), _TIMED)))
        timings: list[Timing] = []
        for index, engine in enumerate(self.engines):
            folders = ((name, self.folder(number, engine)) for number, name in names.items())
            sizes = {name: next(path.glob("model*")).stat().st_size for name, path in folders}
            timed = times[:, index :: len(self.engines)]
            timings += timings_of(
                engine, timed, sizes, 1, length, lambda name, _: flops[name], texts=True
            )
        conditions: dict[str, str | int] = {"device": "cpu", "threads": 1}
        keep_speeds(run, Bench(UNPRUNED, with_comparisons(timings, UNPRUNED), {}, conditions))

    def _answers(self, run: RunRecord, number: int | None, engine: Engine) -> Mapping[str, Logits]:
        """Read the kept logits, or compute them where none of this precision were kept."""
        if BITS[engine] == run.bits and number not in self.rounded:
            judged = read_rows(run)
            unpruned = None if judged is None else judged.unpruned
            logits = unpruned if number is None else read_answers(run, number)
            if logits is not None:
                return logits
        classifier = Classifier(self.folder(number, engine), threads=0)
        texts = {role: deployed.texts_of(self.inputs, role) for role in ("select", "heldout")}
        return {role: deployed.answers_to(classifier, read) for role, read in texts.items()}

    def deploy(
        self,
        run: RunRecord,
        found: Cascade,
        rows: GateRows,
        out: Path,
        promised: float | None = None,
        original: NDArray[Any] | None = None,
        *,
        replace: bool = False,
    ) -> Deployed:
        """Write the chosen model or cascade to `out`, with all files of an export if it is a
        trial's, and measure it there. It promises the agreement of a gate that it passed, or the
        share of held-out answers that equal `original`, by default those of `rows`."""
        served = self.scratch / "found"
        served.mkdir()
        self._write(served, found)
        done, answers = self._measured(served, out, found, rows)
        original = rows.original["heldout"] if original is None else original
        with new_folder(out, replace=replace) as unfinished:
            first = found.stages[0]
            if done.alone and first.number is not None:
                note = f"classify.py: {done.worth(run.task_metric)}, in {first.engine}"
                export(run, first.number, unfinished, notes=(note,))
            else:
                card = deployed_card(run, done, self.inputs.task.max_length)
                (unfinished / "README.md").write_text(card, encoding="utf-8")
            shutil.copytree(served, unfinished, dirs_exist_ok=True)
            train, heldout = (deployed.texts_of(self.inputs, role) for role in ("train", "heldout"))
            agreed = int((answers == original).sum())
            deferred = round(done.deferred * len(heldout))
            share = promised or max(0.001, float(at_least(agreed, len(heldout))))
            write_reference(unfinished, train, heldout, agreement=share, deferred=deferred)
        return done

    def _write(self, folder: Path, found: Cascade) -> None:
        """Write one model, or all stages of a cascade, to a folder."""
        names = _FOLDERS[len(found.stages)]
        stages: list[dict[str, Any]] = []
        for name, stage in zip(names, found.stages, strict=True):
            part = self.folder(stage.number, stage.engine)
            shutil.copytree(part, folder / name, ignore=shutil.ignore_patterns("class*"))
            settings = json.loads((part / "classifier.json").read_text(encoding="utf-8"))
            [entry] = settings["stages"]
            entry |= {key: f"{name}/{entry[key]}" for key in ("model", "tokenizer")}
            if name != names[-1]:
                entry |= {key: getattr(stage, key) for key in _DEFERS}
            stages.append(entry)
        pairs = settings.get("pairs")
        deployed.write_classifier(folder, stages, settings["labels"], pairs=pairs)

    def _measured(
        self, folder: Path, out: Path, found: Cascade, rows: GateRows
    ) -> tuple[Deployed, NDArray[Any]]:
        """Measure times and answers of `folder`, which becomes `out`; also returns its classes."""
        texts = deployed.texts_of(self.inputs, "heldout")
        others = (self.folder(None, engine) for engine in self.engines)
        opened = [Classifier(path) for path in (folder, *others)]
        times = deployed.text_to_label(opened, spread(texts, 2 * _TIMED), say=self.say)
        means = times.mean(axis=0).tolist()
        parallel = Classifier(folder, threads=0)
        predictions = deployed.answers_to(parallel, texts).argmax(-1)
        int8 = dict(zip(self.engines[1:], means[2:], strict=True)).get("onnxruntime-int8")
        done = Deployed(
            folder=out,
            cascade=found,
            milliseconds=means[0],
            slow=float(np.quantile(times[:, 0], 0.95)),
            speed_up=means[1] / means[0],
            speed_up_int8=None if int8 is None else int8 / means[0],
            heldout_agreement=rows.agreement("heldout", predictions),
            heldout_metric=rows.value("heldout", predictions),
            deferred=parallel.deferred / parallel.asked,
        )
        return done, predictions
