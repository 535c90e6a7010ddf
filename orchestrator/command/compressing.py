"""`compress`: from a classifier and texts to a fast model, by a study of cuts and cells."""

from __future__ import annotations

import json
import math
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from scipy.special import rel_entr

from objectives.cache import atomic_write_text, content_key
from objectives.combining.cascade import Cascade, pairs_of, spread
from objectives.combining.gate import choosing
from objectives.combining.members import GateRows, Member, enough, probabilities
from objectives.device import choose_device
from objectives.engines.names import Engine
from objectives.engines.serving import check_engine
from objectives.errors import UserError, a_few, spelled
from objectives.metric import OF_CLASSES, Logits, Metric
from objectives.students.bert.exporting import InMemory, save_in
from objectives.students.bert.pretrained import Checkpoint
from objectives.text.roles import survey
from objectives.text.task import Rows, Task
from objectives.workbench.inputs import Inputs, check_lengths
from objectives.workbench.teacher import Teacher, constant_metric, ready
from orchestrator.command import planning
from orchestrator.command.candidates import Candidates, Say
from orchestrator.command.cascading import FASTER, Gate
from orchestrator.command.launching import launch
from orchestrator.command.run import Run, run_in
from orchestrator.errors import RunError
from orchestrator.runs.answers import read_answers, read_rows
from orchestrator.runs.reading import as_record, read_json
from orchestrator.study import Study
from orchestrator.terminal import SaysOnce
from orchestrator.workers.loop import read_study
from reports.exporting.deployed_card import Deployed, candidate_points, choice_of, named
from reports.exporting.export import check_free
from reports.figures.compressed import files_below, forget_choice, read_choice
from reports.model_folders import kept_front
from reports.page.page import write_report

GATE = 0.95
"""Share of answers to keep where no gate is named. int8 alone changes one answer in a hundred, and
a few hundred texts measure a share to within two hundredths."""
_MODELS = Path("runs/models")
_FEWEST = 20  # texts: fewer tell no two models apart
# Share of the time in which the unpruned model answers texts; those beyond it are left out.
_ANSWERING = 0.4
_MOST = 8  # trials that are candidates
# Time reserved for the end, as a multiple of the time to write the unpruned model.
_SERVED = 5


@dataclass(frozen=True, kw_only=True)
class Compressed:
    """Result of `compress`: the chosen model, its gate, and the run with all candidates."""

    run: Run
    """Run with all candidates; its report.html shows them."""
    deployed: Deployed
    """Written folder, with its scores on held-out texts."""
    passed: bool
    """Whether the model passed the gate; otherwise it is the nearest."""
    seconds: float
    """Duration of the call."""
    advice: tuple[str, ...]
    """Lines that say what more minutes or more texts would bring."""


@spelled
def compress(
    model: str | Path | InMemory,
    data: str | Path | Rows,
    *,
    out: str | Path,
    student: str | Path | None = None,
    text: str = "text",
    label: str = "label",
    metric: Metric = "accuracy",
    delimiter: str | None = None,
    encoding: str | None = None,
    quotechar: str | None = None,
    minutes: float = 10,
    min_agreement: float | None = None,
    min_metric_kept: float | None = None,
    max_ms: float | None = None,
    take_nearest: bool = False,
    max_length: int = 128,
    command: str | None = None,
    console: Console | None = None,
    say: Say = lambda line: None,
) -> Compressed:
    """Make a classifier as fast as a gate allows, which is a test at 95% confidence.

    A part of the texts chooses the model, another, which nothing saw, says what it is worth; on the
    rest students learn what the classifier answers. The unpruned model in int8 is a candidate, too.

    Args:
        model: folder or hub name of a fine-tuned classifier of BERT's variants; or a model with its
            tokenizer, a Trainer or a pipeline, which is saved below runs/models.
        data: the texts: one per line (.txt), or a table; in Python also a DataFrame, a
            `datasets.Dataset` or a list of texts.
        out: the folder to make; it must not hold anything but what the same call has written. All
            that was tried lies in runs/NAME-KEY, NAME being the folder's, with "-" for signs that
            no study's name has. The key says what decides the trials: the same call goes on there,
            and one with other texts, models or `max_length` has its own run.
        student: a smaller BERT, folder or hub name, such as a MiniLM: it learns the answers
            instead of cuts. It may read other tokens: cells then begin with its word embeddings.
        text: the column of the text, in a table.
        label: the column of the labels, which `min_metric_kept` reads.
        metric: what `min_metric_kept` counts: accuracy, macro_f1, mcc, or f1 of class 1 of two.
        delimiter: what separates the columns of a CSV; "," or, in a .tsv, a tab.
        encoding: how the file's characters are written; UTF-8 by default.
        quotechar: what encloses fields of a CSV, "" for nothing; see `Task.from_files`.
        minutes: time for everything, > 0.
        min_agreement: the gate: share of all texts on which the model answers as before, in (0, 1);
            0.95 if no gate is named.
        min_metric_kept: the gate: share of the metric on the labels that is kept, in (0, 1).
        max_ms: the gate: milliseconds from text to label that a text may take in the mean; of these
            models the one that agrees most. One that takes longer on the held-out texts alone is
            written, and has not `passed`.
        take_nearest: where nothing passes the gate, write the model that agrees most.
        max_length: tokens at which texts are cut off.
        command: see `launch`.
        console: see `launch`; the terminal does not hear a line twice.
        say: told what is done.

    Returns:
        What was found, and the folder: classify.py answers texts with onnxruntime alone. A model of
        a trial, if it is no cascade, can be loaded with transformers too.

    Raises:
        RunError: if the folder is taken, for gates that are none, and if no model passes (it says
            how many more texts would decide).
        UserError: for a model or a file that cannot be read, too few texts, and without the extra
            "onnx".
    """
    began, total = time.monotonic(), _seconds(minutes)
    console = console or SaysOnce()

    def left() -> float:
        return began + total - time.monotonic()

    aims = {"min_agreement": min_agreement, "min_metric_kept": min_metric_kept, "max_ms": max_ms}
    gate = _gate(metric, aims)
    out = Path(out)
    _check_out(out)
    check_engine(FASTER[-1], "cpu")
    model = str(model) if isinstance(model, str | Path) else str(save_in(_MODELS, model))
    judge = {"label": label, "metric": metric} if gate.name == "min_metric_kept" else {}
    columns = {"text": text, "delimiter": delimiter, "encoding": encoding, "quotechar": quotechar}
    small = None if student is None else str(student)
    study, sizes, speed, fewer = _study(
        model, small, data, columns, judge, out, max_length, total, say
    )
    inputs, definition = read_study(study, "auto")
    _check_reach(study, inputs, sizes, gate, take_nearest)
    # The key: no two runs of a name differ in what decides results.
    study = replace(study, name=f"{study.name}-{content_key(definition)[:8]}")
    before = read_choice(Path("runs") / study.name)

    def is_own() -> bool:
        return before is not None and before.files == files_below(out)

    if not is_own():
        check_free(out)
        forget_choice(Path("runs") / study.name)
    file = _speeds_file(model, small, max_length, study.teacher.engine != "eager")
    file.parent.mkdir(parents=True, exist_ok=True)
    atomic_write_text(file, json.dumps(asdict(speed)))
    with TemporaryDirectory() as scratch:
        candidates = Candidates(inputs, FASTER, Path(scratch), say)
        began_writing = left()
        original = Checkpoint(model)
        candidates.add(None, ready(original, inputs.text, "cpu"), original.tokenizer)
        reserve = min(max(0.1 * total, _SERVED * (began_writing - left())), 0.5 * total)
        start = partial(launch, command=command, console=console)

        def tried(knobs: Sequence[planning.Knobs]) -> Run:
            return _tried(study, knobs, left() - reserve, start, say)

        run = tried(planning.at_once(sizes, bool(small)))
        _check_worth(study, inputs, run)
        _check_metric(_gate_rows(run), gate, sizes, take_nearest)
        if (engine := study.teacher.engine) != "eager":  # whose time was a guess so far
            speed = replace(speed, teaching=candidates.seconds_of_an_answer(None, engine))
        for _ in range(planning.ROUNDS):
            chosen = _on_choosing_rows(run)
            more = planning.afterwards(chosen, sizes, left() - reserve, speed)
            if not more:
                break
            run = tried(more)
        numbers: list[int | None] = []
        for trial in spread(kept_front(_on_choosing_rows(run), say), _MOST):
            if numbers and left() < 0.5 * reserve:  # but the fastest: it was trained
                say(f"the time is up: {named(trial.number)} is left out")
                continue
            candidates.add_trial(run, trial.number)
            numbers.append(trial.number)
        members, rows = candidates.judged(run, [*numbers, None], keep=True)
        try:
            cascade, passed = _chosen(members, rows, gate, sizes, take_nearest)
            # First: after a Ctrl-C between the folder and its choice it would be a stranger's.
            points = list(candidate_points(members, rows))
            promised = gate.aim if gate.name == "min_agreement" and passed else None
            # Asked again, as somebody may have put a file there in these minutes.
            deployed = candidates.deploy(run, cascade, rows, out, promised, replace=is_own())
            passed &= gate.name != "max_ms" or deployed.milliseconds <= gate.aim
            verdict = _verdict(gate, sizes, passed)
            choice_of(deployed, run.task_metric, verdict, points).keep(run)
        finally:
            write_report([run], run.folder / "report.html")
    advice, seconds = (*fewer, *planning.advice(run, sizes)), total - left()
    return Compressed(run=run, deployed=deployed, passed=passed, seconds=seconds, advice=advice)


def _check_out(out: Path) -> None:
    if out.resolve() == Path.cwd():
        where = f"'{out}' is the folder at work"
        raise RunError(f"{where}, in which runs/ is made; name another", "out")
    if not (out / "classifier.json").is_file():
        check_free(out)


def _tried(
    study: Study, knobs: Sequence[planning.Knobs], left: float, start: Callable[..., Run], say: Say
) -> Run:
    """Start trials with these knobs beside the run's earlier ones, in the seconds that are left."""
    folder = Path("runs") / study.name
    earlier = run_in(folder)
    had = [dict(trial.knobs) for trial in earlier.finished] if earlier else []
    first = (*had, *(planned for planned in knobs if planned not in had))
    seconds = max(1.0, left)
    planned_study = replace(study, first=first, trials=len(first), trial_timeout=seconds)
    try:
        return start(planned_study, timeout=seconds)
    except RunError as error:
        if (run := run_in(folder)) is None:
            raise
        say(str(error))  # it costs nothing of what is there
        return run


def _gate(metric: str, aims: Mapping[str, float | None]) -> Gate:
    """Make the gate. Raises RunError for an invalid one, and a metric that it does not count."""
    gate = Gate.of(metric, GATE, aims)
    if metric not in OF_CLASSES:
        raise RunError(f"no metric '{metric}'; choose one of {', '.join(OF_CLASSES)}", "metric")
    if metric != "accuracy" and gate.name != "min_metric_kept":
        raise RunError(
            f"'{metric}' is counted by no gate; name the share to keep", "min_metric_kept"
        )
    return gate


def _verdict(gate: Gate, sizes: planning.RoleSizes, passed: bool) -> str:
    """Say what the gate promises and whether it was passed."""
    promise = gate.text()
    if gate.name != "max_ms":
        promise += f", with 95% confidence on {sizes.vouching:,} texts"
    if passed:
        return f"It passes the gate: it {promise}."
    if gate.name == "max_ms":
        return f"On the held-out texts it does not pass the gate that it {promise}."
    return f"It is the nearest, and does not pass the gate that it {promise}."


def _seconds(minutes: float) -> float:
    if not 0 < minutes < math.inf:
        raise RunError(f"{minutes:g} minutes are too few; allow at least one", "minutes")
    return 60 * minutes


def _check_reach(
    study: Study, inputs: Inputs, sizes: planning.RoleSizes, gate: Gate, take_nearest: bool
) -> None:
    """Raise RunError if no model can pass the gate, or if the labels lack classes of the model."""
    gated = gate.name != "max_ms" and not take_nearest
    if gated and enough(gate.aim, sizes.vouching) is None:
        more = planning.more_texts(1.0, gate.aim, sizes.judgeable)
        raise RunError(
            f"{sizes.judgeable} texts are too few to say with 95% confidence that any model passes "
            f"this gate ({gate.aim:g}); give {f'about {more:,} ' if more else ''}more texts, or "
            "more minutes if these limit them, ask for less, or take the nearest",
            gate.name,
            "take_nearest",
        )
    outputs, labels = Checkpoint(study.teacher.name).outputs, inputs.text.label_names
    if study.task.labelled and len(labels) < len(outputs):
        raise RunError(
            f"the data has the labels {', '.join(labels)}, but the model has {len(outputs)} "
            "classes; add rows of the others, or choose another gate",
            "label",
            "min_agreement",
        )


def _check_worth(study: Study, inputs: Inputs, run: Run) -> None:
    """Raise UserError for a model that is not clearly better than a constant answer."""
    rows, names = read_rows(run), inputs.text.label_names
    if rows is None or not study.task.labelled:
        return
    metric = study.task.metric
    constant = constant_metric(metric, rows.labels["select"], len(names))
    if run.unpruned.interval[0] <= constant:
        model, value = study.teacher.name, run.unpruned.metric
        raise UserError(
            f"model '{model}': its {metric} on the labels is {value:.3f}, and one answer for "
            f"all has {constant:.3f}: most likely they do not mean its outputs (labels "
            f"{a_few(names)}; outputs {a_few(Checkpoint(model).outputs)}), or the texts are "
            "others; correct the data, or choose a gate without labels",
            "label",
            "min_agreement",
        )


def _gate_rows(run: Run) -> GateRows | None:
    """Rows that judge, with the answers that the run has kept."""
    judged_rows = read_rows(run)
    if judged_rows is None:
        return None
    original = {role: logits.argmax(-1) for role, logits in judged_rows.unpruned.items()}
    metric: Any = run.task_metric
    return GateRows(metric, judged_rows.labels, original, judged_rows.unpruned["select"].shape[-1])


def _check_metric(
    rows: GateRows | None, gate: Gate, sizes: planning.RoleSizes, take_nearest: bool
) -> None:
    """Raise RunError if so few rows hang on a class that no model can pass the gate."""
    if rows is None or gate.name != "min_metric_kept" or take_nearest:
        return
    needed = 1 - rows.share_that_breaks(0.0, gate.aim)  # of rows that answer as before
    if enough(needed, sizes.vouching) is None:
        raise _none_passes(gate, sizes, planning.more_texts(1.0, needed, sizes.judgeable))


def _none_passes(
    gate: Gate, sizes: planning.RoleSizes, more: int | None, nearest: str = ""
) -> RunError:
    """Error where no model passes; `more` texts would be enough."""
    limited = "or more minutes if these limit them, "
    enough_texts = f"about {more:,} more texts, {limited}would be enough; " if more else ""
    return RunError(
        f"no model {gate.text()}, with 95% confidence on {sizes.vouching} texts; {nearest}"
        f"{enough_texts}ask for less, or take the nearest",
        gate.name,
        "take_nearest",
    )


def _on_choosing_rows(run: Run) -> Run:
    """The run with each divergence on the rows that choose. The others, which judge the gate, have
    no part in what is trained and in what is a candidate."""
    judged_rows = read_rows(run)
    if judged_rows is None:
        return run
    third = choosing(len(judged_rows.unpruned["select"]))

    def shares(logits: Mapping[str, Logits]) -> NDArray[np.float64]:
        return probabilities(logits["select"][third])

    trials = []
    for trial in run.trials:
        answers = None if trial.result is None else read_answers(run, trial.number)
        if trial.result is not None and answers is not None:
            far = float(rel_entr(shares(judged_rows.unpruned), shares(answers)).sum(-1).mean())
            trial = replace(trial, result=replace(trial.result, divergence=far))
        trials.append(trial)
    return replace(run, trials=tuple(trials))


def _speeds_file(model: str, student: str | None, max_length: int, in_int8: bool) -> Path:
    """File of measured seconds: a machine that is slower the second time would use fewer texts, and
    begin another run."""
    decided = {
        "models": [Checkpoint(name).fingerprint for name in (model, student) if name],
        "machine": [os.cpu_count(), choose_device("auto")],
        "settings": [max_length, in_int8],
    }
    return _MODELS / f"seconds-{content_key(decided)}.json"


def _study(
    model: str,
    student: str | None,
    data: str | Path | Rows,
    columns: Mapping[str, Any],
    judge: Mapping[str, Any],
    out: Path,
    max_length: int,
    seconds: float,
    say: Say,
) -> tuple[Study, planning.RoleSizes, planning.AnswerTimes, list[str]]:
    """Make the study without trials. Also returns the texts used, the models' speed, and a line
    that says why not all texts are used, if so. `judge`: label and metric of a gate that reads
    labels; students learn from texts without a label, too."""
    source = Path(data).name if isinstance(data, str | Path) else "the rows"
    settings: dict[str, Any] = {"name": source, "metric": "agreement", "max_length": max_length}
    if isinstance(data, str | Path):
        table = Task.from_files(data, **settings, **columns)
    else:
        table = Task.from_rows(data, **settings, text=columns["text"])
    unlabelled = 0
    if judge:
        unlabelled = survey(table).texts
        table = replace(table, drop_missing=True, **judge)
    counts = survey(table)
    unlabelled = max(0, unlabelled - counts.texts)
    if counts.texts < _FEWEST:
        labelled = f" with a label in '{judge['label']}'" if judge else ""
        raise UserError(
            f"'{source}' has {counts.texts} different texts{labelled}; compress needs {_FEWEST} or "
            "more"
        )
    for checkpoint in (model, student):
        if checkpoint:
            check_lengths(Checkpoint(checkpoint), max_length)
    many = planning.RoleSizes.of(counts.texts + unlabelled).many
    in_int8 = many and choose_device("auto") == "cpu"
    engine: Engine = FASTER[-1] if in_int8 else "eager"
    file = _speeds_file(model, student, max_length, in_int8)
    if file.is_file():
        speed = as_record(planning.AnswerTimes, read_json(file), str(file))
    else:
        speed = planning.answer_times(model, student, counts.some, max_length, in_int8=in_int8)
    answering = _ANSWERING * seconds
    sizes = planning.affordable(counts.texts, unlabelled, answering, speed, counts.labels)
    if min(sizes.train, sizes.heldout) < counts.labels:
        raise UserError(
            f"'{source}' has {counts.texts:,} texts with one of {counts.labels} labels; give about "
            f"{7 * counts.labels:,} or more, or choose a gate without labels",
            "min_agreement",
        )
    fewer = []
    if sizes.texts < counts.texts + unlabelled:
        answered = f"your model answers about {1 / speed.teacher:,.0f} a second here"
        fewer.append(
            f"{sizes.texts:,} of the {counts.texts + unlabelled:,} texts are used: {answered}, "
            "more in more minutes"
        )
        say(fewer[0])
    if sizes.unlabelled:
        table = replace(table, unlabelled_split=table.split)
    task = replace(table, **asdict(sizes))
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", out.resolve().name).lstrip("._-") or "model"
    study = Study(
        name=name,
        task=task,
        teacher=Teacher(checkpoint=model, engine=engine),
        method=planning.METHODS_OF_STUDENT if student else planning.METHODS,
        space=planning.SPACE_OF_STUDENT if student else planning.SPACE,
        student=student,
        objective="divergence",
        first=(planning.at_once(sizes, bool(student))[0],),
        trials=1,
        sampler=None,
    )
    return study, sizes, speed, fewer


def _chosen(
    members: Sequence[Member],
    rows: GateRows,
    gate: Gate,
    sizes: planning.RoleSizes,
    take_nearest: bool,
) -> tuple[Cascade, bool]:
    """Choose the model; also returns whether it passes the gate. Raises RunError if none does."""
    pairs = list(pairs_of(members, rows))
    first = (None, FASTER[0])
    unpruned = next(member for member in members if (member.number, member.engine) == first)
    cascade = gate.best(pairs, 0.999 * unpruned.cost)
    if cascade is not None and cascade.cost < unpruned.cost:
        return cascade, True
    faster = (pair for pair in pairs if pair.small.cost < unpruned.cost)
    smaller = {pair.small.cost: pair.at(-math.inf) for pair in faster}.values()
    if not smaller:
        raise RunError("no model or engine here is faster than the original: nothing is written")
    if gate.name == "max_ms":
        fastest = min(smaller, key=lambda member: member.cost)
        if take_nearest:
            return fastest, False
        raise RunError(
            f"no model takes {gate.aim:g} ms or less: the fastest takes {fastest.cost:.2f} ms; "
            "allow more, or cut texts off earlier",
            *("max_ms", "max_length", "take_nearest"),
        )
    nearest = max(smaller, key=lambda member: (member.agreement, -member.cost))
    if take_nearest:
        return nearest, False
    reached, more = nearest.agreement, None
    if gate.name == "min_agreement":
        more = planning.more_texts(reached, gate.aim, sizes.judgeable)
    else:
        reached = nearest.metric / max(rows.value("select", rows.original["select"]), 1e-9)
    model = named(nearest.stages[0].number, nearest.stages[0].engine)
    raise _none_passes(gate, sizes, more, f"the nearest, {model}, reaches {reached:.1%}: ")
