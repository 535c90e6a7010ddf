"""Speeds of a front's models: measured by `bench`, shown as a table, stored, read."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from objectives.cache import atomic_write_text
from objectives.delivery.timings import Bench, Timing
from objectives.measures.bootstrap import Worth
from orchestrator.errors import RunError
from orchestrator.runs.answers import check_teachers
from orchestrator.runs.reading import REMEDY, as_record, as_type, damaged_files, read_json
from orchestrator.runs.records import RunRecord
from orchestrator.runs.results import UnprunedResult, ratio_text
from orchestrator.runs.run_folder import RunFolder
from orchestrator.terminal import for_shell
from reports.model_folders import kept_front, model_folder

if TYPE_CHECKING:
    from objectives.students.bert.pretrained import Classifier
    from objectives.workbench.inputs import Inputs
    from orchestrator.study import Study

_FORMAT = "maskfront-bench-4"


@dataclass(frozen=True, kw_only=True)
class Speed:
    """The front's models in one engine on one shape of batch, on one device."""

    engine: str
    bits: int  # of the weights in this engine
    batch: int
    length: int  # tokens of each of the `batch` sequences; of texts the mean
    texts: bool  # whether the task's texts were timed, from text to label, on one thread
    device: str  # with its threads, such as "cpu-2threads"
    reference: str  # of speed-ups: "unpruned", or the folder of another model
    reference_model: Timing
    models: Mapping[int, Timing]  # by the numbers of trials
    counted: str  # the unit of the study's cost

    @property
    def unit(self) -> str:
        """Unit of the milliseconds. Two units are never compared, nor measured times with those
        that a study predicts."""
        texts = "-texts" if self.texts else ""
        unit = f"ms@{self.engine}-{self.device}-b{self.batch}{texts}-s{self.length}"
        return f"{unit} measured" if unit == self.counted else unit

    @property
    def unit_text(self) -> str:
        """The unit in words."""
        where = re.sub(r"-(\d+)threads$", r", \1 threads", self.device)
        where = where.replace(" 1 threads", " 1 thread")
        kind = " measured" if self.unit == self.counted else ""
        return f"ms{kind} in {self.engine}, {shape_text(*self.shape)} ({where})"

    @property
    def shape(self) -> tuple[int, int, bool]:
        """Batch, length and kind, which two engines must share to be compared; see `shape_text`."""
        return self.batch, self.length, self.texts

    def model(self, trial: int | None) -> Timing:
        """Timing of a trial, or of the reference."""
        return self.reference_model if trial is None else self.models[trial]

    def timed(self, trial: int | None, unpruned: UnprunedResult) -> Timing | None:
        """Timing of a trial, or of the unpruned model if students are cut from it; else None."""
        if trial is not None:
            return self.models.get(trial)
        cut_from = self.reference == "unpruned" and not unpruned.student_is_new
        return self.reference_model if cut_from else None


def by_shape(speeds: Sequence[Speed]) -> list[list[Speed]]:
    """Group speeds by shape of batch."""
    shapes: dict[tuple[int, int, bool], list[Speed]] = {}
    for speed in speeds:
        shapes.setdefault(speed.shape, []).append(speed)
    return list(shapes.values())


def compared(speeds: Sequence[Speed]) -> Sequence[Speed]:
    """Speeds to compare: from text to label if there are any, else all."""
    return [speed for speed in speeds if speed.texts] or speeds


def front_milliseconds(run: RunRecord) -> dict[int, float]:
    """Milliseconds a text of the front's models, by trial: the study's own cost if it is latency,
    else the median of `bench` at batch 1 in the fastest engine of the study's bits, from text to
    label if that was timed. Empty if nothing was timed."""
    if run.unpruned.cost_name == "latency":
        batch = int(run.definition.get("latency_batch", 1))
        return {trial.number: trial.result.cost / batch for trial in run.front}
    of_one = [s for s in read_speeds(run) if s.batch == 1 and s.bits == run.bits]
    times: dict[int, float] = {}
    for speed in max(by_shape(compared(of_one)), key=lambda alike: alike[0].length, default=()):
        for number, timing in speed.models.items():
            times[number] = min(timing.milliseconds, times.get(number, math.inf))
    return times


def fastest(run: RunRecord, speeds: Sequence[Speed], trial: int | None) -> str:
    """Milliseconds and megabytes of a model in its fastest engine, as text; "" if not timed."""
    models = [(speed.timed(trial, run.unpruned), speed.engine) for speed in speeds]
    timed = [(model, engine) for model, engine in models if model is not None]
    if not timed:
        return ""
    model, engine = min(timed, key=lambda pair: pair[0].milliseconds)
    worth = f", {run.task_metric} {model.worth.metric:.4f}" if model.worth else ""
    size_only = [bits for bits, numbers in without_kernel(run, speeds).items() if trial in numbers]
    size_only_text = f"; its {size_only[0]} bits: size only" if size_only else ""
    return f"{model.text}, {model.megabytes:.1f} MB in {engine}{worth}{size_only_text}"


def without_kernel(run: RunRecord, speeds: Sequence[Speed]) -> dict[int, list[int]]:
    """Trials of the front by the bits of their weights, if no timed engine has these bits."""
    with_kernel = {32, *(speed.bits for speed in speeds)}
    trials: dict[int, list[int]] = {}
    for row in run.front:
        if row.result.weight_bits not in with_kernel:
            trials.setdefault(row.result.weight_bits, []).append(row.number)
    return trials


def bench_front(run: RunRecord, study: Study | None = None, **settings: Any) -> Bench:
    """Time the models of a run's front.

    Args:
        run: the run.
        study: what the run was launched from: the unpruned model is then the teacher itself, and
            all are timed from text to label in onnxruntime on the study's own texts, and scored on
            its data in the engines of other bits than the run's own.
            (Where the students are cut from another checkpoint the unpruned model is timed alone.)
        **settings: those of `maskfront.bench`, but for the folders and what a run says.

    Returns:
        Milliseconds, beside those of the unpruned model.

    Raises:
        RunError: if the front is empty, if all its models are gone or one is damaged, if the study
            has other data than the run, or if a study comes with `against`.
        UserError: where no engine runs, for a length that the models do not take, or if the
            fine-tuned teacher is not in the run folder any more.
    """
    folders = []
    for row in kept_front(run, settings.get("say", lambda line: None)):
        model = model_folder(run, row.number)
        folders.append(model)
        if damaged := damaged_files(model.parent, model.rglob("*")):
            raise RunError(
                f"'{model.parent}': trial {row.number} is damaged: {'; '.join(damaged)}; put the "
                "file back from a copy, or name the folders of the other models"
            )
    if not folders:
        raise RunError(f"'{run.folder}' has no model on its front yet; there is nothing to time")
    if study is not None and settings.get("against") is not None:
        raise RunError(
            "with a study the models are compared with its teacher; name no other model", "against"
        )

    from objectives.delivery.bench import OfRun, bench  # torch, which a report does without

    of_run = OfRun(layers=len(run.unpruned.heads_per_layer), bits=run.bits)
    if study is not None:
        data = inputs_of(run, study)
        other = run.unpruned.student_is_new or data.only_answers
        unpruned = None if other else teacher_of(run, study, data)
        of_run = replace(of_run, data=data, unpruned=unpruned)
    return bench(folders, of_run=of_run, **settings)


def teacher_of(run: RunRecord, study: Study, data: Inputs) -> Classifier:
    """The fine-tuned teacher of a run, from its cache. Raises UserError if it is gone."""
    from objectives.session import Session

    session = Session(cache=RunFolder(run.folder).cache, seed=study.seed)
    if data.only_answers:
        raise RunError(
            f"the teacher '{data.teacher.name}' {data.only_answers}, so maskfront cannot serve it"
        )
    answering = data.answering(data.split("train"), session, fine_tune=False)
    check_teachers(RunFolder(run.folder), {"": data.selection(answering).numpy()})
    bert = answering.bert
    assert bert is not None
    if run.unpruned.thresholds:
        bert.config.thresholds = [*run.unpruned.thresholds.values()]
    return bert


def inputs_of(run: RunRecord, study: Study) -> Inputs:
    """Read the data of the run's study. Raises RunError if they or the teacher are others."""
    from objectives.workbench.inputs import read_inputs
    from orchestrator.identity import definition_of

    inputs = read_inputs(study.task, study.teacher, student=study.student, seq_len=study.seq_len)
    beside = {extra.task.name: ("", "") for extra in study.beside}  # not read, nor compared
    now = definition_of(
        study, inputs.text.fingerprint, inputs.checkpoint_fingerprint, beside=beside
    )
    was = run.definition
    names = (n for n in now.keys() | was.keys() if n.startswith(("task.", "teacher.checkpoint")))
    if differs := sorted(name for name in names if now.get(name) != was.get(name)):
        raise RunError(
            f"study '{study.name}' does not have the data of the run '{run.folder}' "
            f"({', '.join(differs)}); name the study file that the run was launched with"
        )
    return inputs


def timings_document(bench: Bench) -> dict[str, Any]:
    """Describe each model, engine and shape in a row; times in milliseconds, FLOPs as shares."""
    rows = [asdict(timing) | {"median": timing.milliseconds} for timing in bench.timings]
    return asdict(bench) | {"timings": rows}


def timings_table(bench: Bench) -> Table:
    """Table of megabytes, milliseconds, speed-ups over the reference and scores of fewer bits."""
    conditions, reference = bench.conditions, escape(_short(bench.reference))
    caption = [f"speed-up: times as fast as {reference} in its fastest float32"]
    if any(timing.texts for timing in bench.timings):
        how = "the task's own texts and tokenizer, one thread, processor time"
        caption.append(f"text to label: {how}")
    caption += [f"no {engine}: {escape(why)}" for engine, why in bench.skipped.items()]
    table = Table(
        title=f"one forward pass of batch x length, median of {conditions['rounds']}; "
        f"{conditions['device']}, {conditions['threads']} threads",
        caption="\n".join(caption),
        box=SIMPLE_HEAD,
        collapse_padding=True,  # a terminal is 80 columns wide
    )
    scored = any(timing.worth for timing in bench.timings)
    last = ("metric", "held out") if scored else ()
    for column in ("model", "FLOPs", "MB", "ms", "95%", "speed-up", *last):
        if column == "model":
            table.add_column(column, overflow="fold")
        else:
            table.add_column(column, justify="right", no_wrap=True)
    shape = attrgetter("engine", "batch", "length", "texts")
    for (engine, *timed), group in groupby(bench.timings, shape):
        table.add_row(f"[bold]{engine}\n{shape_text(*timed)}")
        for timing in group:
            worth = timing.worth
            table.add_row(
                *(escape(_short(timing.model)), ratio_text(timing.flops_ratio)),
                *(f"{timing.megabytes:.1f}", f"{timing.milliseconds:.2f}", f"{timing.slow:.2f}"),
                f"{timing.speed_up:.2f}",
                *([f"{worth.metric:.4f}", f"{worth.heldout_metric:.4f}"] if worth else []),
            )
        table.add_section()
    return table


def shape_text(batch: int, length: int, texts: bool) -> str:
    """Describe what was timed."""
    return f"{batch} x text to label" if texts else f"{batch} x {length} tokens"


def _short(folder: str) -> str:
    return "/".join(Path(folder).parts[-3:])


def keep_speeds(run: RunRecord, timed: Bench) -> Path:
    """Keep milliseconds in the run folder, over those of before: reports and model cards show them.

    Args:
        run: the run.
        timed: what `bench_front` found.

    Returns:
        The file.

    Raises:
        RunError: if the disk refuses.
    """
    document = timings_document(timed)
    trials = {str(RunFolder(run.folder).model(row.number)): row.number for row in run.front}
    for row in document["timings"]:
        row["trial"] = trials.get(row["model"])
    text = json.dumps({"format": _FORMAT, **document}, indent=1) + "\n"
    file = RunFolder(run.folder).bench
    try:
        atomic_write_text(file, text)
    except OSError as error:
        raise RunError(
            f"'{file}' could not be written ({error.strerror}): these times are not saved, and "
            "no report shows them"
        ) from error
    return file


def read_speeds(run: RunRecord) -> tuple[Speed, ...]:
    """Read the speeds that `keep_speeds` stored last. Raises RunError for a damaged file."""
    path = RunFolder(run.folder).bench
    if not path.is_file():
        return ()
    again = f"delete it, or write it again: maskfront bench {for_shell(run.folder)}"
    try:
        document = as_type(Mapping[str, Any], read_json(path), "it")
        if (version := document.get("format", _FORMAT)) == _FORMAT:
            return _speeds(as_record(_Document, document, "it"), run.unpruned.unit)
    except RunError as error:
        reason = error.text.removesuffix(REMEDY)
        raise RunError(f"'{path}' is damaged ({reason}); {again}") from error
    raise RunError(
        f"'{path}' is of another version of maskfront ({version}, not {_FORMAT}); {again}"
    )


@dataclass(frozen=True)
class _Document:
    """Format of `timings_document`."""

    reference: str
    conditions: Mapping[str, Any]
    timings: tuple[Mapping[str, Any], ...]


def _speeds(document: _Document, counted: str) -> tuple[Speed, ...]:
    groups: dict[tuple[Any, ...], dict[str, Timing]] = {}
    shape = attrgetter("engine", "bits", "batch", "length", "texts")
    for row in document.timings:
        if (worth := row.get("worth")) is not None:
            worth = as_record(Worth, worth, "timings.worth")
        timing = as_record(Timing, {**row, "worth": worth}, "timings")
        groups.setdefault(shape(timing), {})[timing.model] = timing
    if lacking := [shape for shape, group in groups.items() if document.reference not in group]:
        raise RunError(f"it has no times of {document.reference!r} in {lacking[0][0]}")
    return tuple(
        Speed(
            engine=engine,
            bits=bits,
            batch=batch,
            length=length,
            texts=texts,
            device="cpu-1threads" if texts else _device(engine, document.conditions),
            reference=document.reference,
            reference_model=group[document.reference],
            models={t.trial: t for t in group.values() if t.trial is not None},
            counted=counted,
        )
        for (engine, bits, batch, length, texts), group in groups.items()
    )


def _device(engine: str, conditions: Mapping[str, Any]) -> str:
    """onnxruntime runs on the CPU wherever torch does."""
    device = str(conditions.get("device")).replace(" ", "-")
    on_cpu = device == "cpu" or engine.startswith("onnxruntime")
    return f"cpu-{conditions.get('threads')}threads" if on_cpu else device
