"""`cascade`: two models of a run in one folder, the large one asked where the small one is unsure.

The models of the front and the unpruned one are written for onnxruntime, timed from text to label
on the run's own texts, and answer its judging rows; the cheapest cascade that meets the aim is
written and measured again.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np

from objectives.cache import atomic_write
from objectives.combining.cascade import (
    Cascade,
    Pair,
    best_within,
    cheapest_agreeing,
    cheapest_keeping,
    pairs_of,
)
from objectives.combining.members import Member, Rows
from objectives.engines.names import Engine
from orchestrator.errors import RunError
from orchestrator.runs.records import RunRecord
from orchestrator.study import Study
from reports.choice import model_folder
from reports.exporting.cascade_card import Cascaded, cascade_card
from reports.exporting.export import check_free
from reports.speed import inputs_of, teacher_of

if TYPE_CHECKING:
    from objectives.delivery.classify import Classifier
    from objectives.delivery.deployed import Texts
    from objectives.workbench.inputs import Inputs

_MOST = 8
"""Models that are tried: of a longer front every other one, or fewer."""
_TIMED = 100
"""Texts of the selection split that are timed."""


def cascade(
    run: RunRecord,
    study: Study,
    out: str | Path,
    *,
    min_agreement: float | None = None,
    min_metric: float | None = None,
    max_ms: float | None = None,
    engine: Engine = "onnxruntime-int8",
    say: Callable[[str], None] = lambda line: None,
) -> Cascaded:
    """Write the best cascade of two models of a run to `out`, to be run without torch.

    Args:
        run: the run.
        study: what it was launched from: its texts are timed, its unpruned model is a candidate.
        out: the folder to make; it must not hold anything yet.
        min_agreement: the fastest that answers this share of the texts as the unpruned model does,
            with 95% confidence by the selection rows. 0.99 if no aim is named.
        min_metric: the fastest whose metric is at least this, with the same confidence.
        max_ms: the one of the highest agreement that takes at most this long in the mean.
        engine: "onnxruntime", its int8 or its int4: in it the models are judged and written.
        say: told what is done.

    Returns:
        The folder, and what its own answers to the held-out rows are worth.

    Raises:
        RunError: for two aims, if the folder is taken, if the run compares numbers, if no cascade
            meets the aim (it says what comes nearest), and if a single model is enough.
        UserError: without the extra "onnx", and if the fine-tuned teacher is gone.
    """
    aims = {"min_agreement": min_agreement, "min_metric": min_metric, "max_ms": max_ms}
    if sum(aim is not None for aim in aims.values()) > 1:
        raise RunError("a cascade has one aim", *aims)
    for name in ("min_agreement", "min_metric"):
        aim = aims[name]
        if aim is not None and not 0 < aim <= 1:
            raise RunError(f"{aim:g} is no share above 0 and at most 1", name)
    if run.definition["task.metric"] == "pearson_spearman":
        raise RunError("a model that gives numbers is never unsure: there is no cascade of it")
    if not engine.startswith("onnxruntime"):
        raise RunError(f"a cascade runs in onnxruntime, not in '{engine}'", "engine")
    out = Path(out)
    check_free(out)

    from objectives.delivery.deployed import answers_to, text_to_label, texts_of

    inputs = inputs_of(run, study)
    texts = {role: texts_of(inputs, role) for role in ("select", "heldout")}
    with TemporaryDirectory() as name:
        scratch = Path(name)
        served = _served(run, study, inputs, engine, scratch, say)
        times = text_to_label([*served.values()], texts["select"][:_TIMED], say=say).mean(axis=0)
        members = []
        for (number, own), cost in zip(served.items(), times, strict=True):
            say(f"{_name(number)} answers {sum(map(len, texts.values()))} texts")
            answers = {role: answers_to(own, of) for role, of in texts.items()}
            members.append(Member(number, float(cost), answers))
        unpruned = members[-1].logits
        rows = Rows(
            metric=inputs.task.metric,
            labels={split.role: split.labels for split in inputs.judging()},
            original={role: logits.argmax(-1) for role, logits in unpruned.items()},
            classes=unpruned["select"].shape[-1],
        )
        found = _chosen(run, list(pairs_of(members, rows)), **aims)
        with atomic_write(out.resolve()) as unfinished:
            unfinished.mkdir(parents=True)
            _write(unfinished, scratch, found)
            done = _measured(unfinished, out, found, served[None], texts["heldout"], rows, say)
            card = cascade_card(run, done, engine, inputs.task.max_length)
            (unfinished / "README.md").write_text(card, encoding="utf-8")
    return done


def _served(
    run: RunRecord,
    study: Study,
    inputs: Inputs,
    engine: Engine,
    scratch: Path,
    say: Callable[[str], None],
) -> dict[int | None, Classifier]:
    """Models of the front by rising cost, and at last the unpruned one, each in a folder of
    `scratch` that bears its number."""
    from objectives.delivery.deployed import deploy
    from objectives.delivery.exported import load_model
    from objectives.students.bert.pretrained import load_tokenizer

    front = run.front[:: -(-len(run.front) // _MOST) or 1]
    if not front:
        raise RunError(f"'{run.folder}' has no model on its front yet")
    folders = {trial.number: model_folder(run, trial.number) for trial in front}
    unpruned = teacher_of(run, study, inputs)
    served = {}
    for number in (*folders, None):
        say(f"writing {_name(number)} for {engine}")
        model: Any = unpruned
        tokenizer = inputs.tokenizer
        if number is not None:
            model, tokenizer = load_model(folders[number]), load_tokenizer(str(folders[number]))
        folder = scratch / str(number)
        served[number] = deploy(folder, model, tokenizer, engine, inputs.task.max_length)
    return served


def _chosen(
    run: RunRecord,
    pairs: list[Pair],
    min_agreement: float | None,
    min_metric: float | None,
    max_ms: float | None,
) -> Cascade:
    if max_ms is not None:
        found, aim, name = best_within(pairs, max_ms), f"takes at most {max_ms:g} ms", "max_ms"
        fastest = min((pair.small.cost for pair in pairs), default=np.nan)
        nearest = f"the fastest model alone takes {fastest:.2f} ms"
    elif min_metric is not None:
        found, name = cheapest_keeping(pairs, min_metric), "min_metric"
        aim = f"has {run.metric_name} >= {min_metric:g} with 95% confidence"
        nearest = f"the unpruned model has {run.unpruned.metric:.4f} on the selection split"
    else:
        share = 0.99 if min_agreement is None else min_agreement
        found, name = cheapest_agreeing(pairs, share), "min_agreement"
        aim = f"answers {share:.1%} of all texts as the unpruned model does, with 95% confidence"
        nearest = "the selection split has too few rows to say so; ask for less"
    if found is None:
        raise RunError(f"'{run.folder}': no cascade {aim}: {nearest}", name)
    if found.deferred == 0:
        raise RunError(
            f"'{run.folder}': {_name(found.small)} alone {aim}, in {found.cost:.2f} ms: "
            "export it with ONNX",
            name,
        )
    whole = (pair.large.cost for pair in pairs if pair.large.number is None)
    unpruned = max(whole, default=np.inf)
    if found.cost >= unpruned:
        raise RunError(
            f"'{run.folder}': the fastest cascade that {aim} takes {found.cost:.2f} ms, and the "
            f"unpruned model alone {unpruned:.2f} ms; ask for less",
            name,
        )
    return found


def _write(folder: Path, scratch: Path, found: Cascade) -> None:
    """The folder of a cascade out of those of its two models."""
    from objectives.delivery.deployed import write_classifier

    stages = []
    for name, number in (("small", found.small), ("large", found.large)):
        part = scratch / str(number)
        shutil.copytree(part, folder / name, ignore=shutil.ignore_patterns("class*"))
        settings = json.loads((part / "classifier.json").read_text(encoding="utf-8"))
        [stage] = settings["stages"]
        stages.append(stage | {key: f"{name}/{stage[key]}" for key in ("model", "tokenizer")})
    stages[0] |= {
        "confidence": found.confidence,
        "temperature": found.temperature,
        "threshold": found.threshold,
    }
    write_classifier(folder, stages, settings["labels"])


def _measured(
    folder: Path,
    out: Path,
    found: Cascade,
    unpruned: Classifier,
    texts: Texts,
    rows: Rows,
    say: Callable[[str], None],
) -> Cascaded:
    """What the folder's own answers to the held-out rows are worth."""
    from objectives.delivery.classify import Classifier
    from objectives.delivery.deployed import answers_to, text_to_label

    times = text_to_label([Classifier(folder), unpruned], texts[: 3 * _TIMED], say=say)
    own = Classifier(folder)
    said = answers_to(own, texts).argmax(-1)
    return Cascaded(
        folder=out,
        cascade=found,
        milliseconds=float(times[:, 0].mean()),
        slow=float(np.quantile(times[:, 0], 0.95)),
        speed_up=float(times[:, 1].mean() / times[:, 0].mean()),
        heldout_agreement=rows.agreement("heldout", said),
        heldout_metric=rows.value("heldout", said),
        deferred=own.deferred / own.asked,
    )


def _name(number: int | None) -> str:
    return "the unpruned model" if number is None else f"trial {number}"
