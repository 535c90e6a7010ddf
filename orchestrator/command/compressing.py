"""`compress`: a smaller and faster model out of a classifier and a handful of texts, in minutes. A
study of a few sizes, its models timed in int8; the one that was asked for, exported."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from optuna.distributions import FloatDistribution
from rich.console import Console

from objectives.cache import content_key
from objectives.engines.names import Engine
from objectives.engines.serving import check_engine
from objectives.errors import UserError
from objectives.methods.cross_distillation import CrossDistillation
from objectives.text.roles import count_texts
from objectives.text.task import Task
from objectives.workbench.teacher import Teacher
from orchestrator.command.launching import launch
from orchestrator.command.run import Run, load_run
from orchestrator.errors import RunError
from orchestrator.study import Study
from orchestrator.workers.loop import read_study
from reports.exporting.export import Exported, check_free, export
from reports.page.page import write_report
from reports.speed import Speed, TimedModel, Worth, bench_front, keep_speeds, read_speeds

RATIOS = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3)  # shares of the FLOPs that are tried
_ENGINE: Engine = "onnxruntime-int8"
_MOST = 1000
"""Texts that choose, that judge, and that the weights are solved on: more would take longer."""
_FEWEST = 20  # texts: fewer tell no two sizes apart


@dataclass(frozen=True)
class Compressed:
    """What `compress` found and wrote."""

    run: Run
    """All sizes that were tried: its report.html shows them."""
    trial: int
    """The one that was taken."""
    milliseconds: float
    """A forward pass of one text of `max_length` tokens in int8, measured here."""
    speed_up: float
    """How many times as fast that is as the model was in float32, in its fastest engine."""
    agreement: float
    """Share of the held-out texts on which it answers as the model did, in int8."""
    exported: Exported
    """The folder."""


def compress(
    model: str | Path,
    data: str | Path,
    *,
    out: str | Path,
    text: str = "text",
    max_ms: float | None = None,
    min_agreement: float = 0.98,
    max_length: int = 128,
    command: str | None = None,
    console: Console | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> Compressed:
    """Cut and quantise a classifier with a few texts, none of them labelled and nothing trained.

    Heads and FFN neurons go for which the others can make up, the weights of these are solved for
    (`CrossDistillation`), and become int8. A quarter of the texts chooses the size; another, which
    nothing sees, says what it is worth; the rest is what weights are solved on.

    Args:
        model: folder or hub name of a fine-tuned classifier of BERT's variants.
        data: a file of text: a text a line (.txt), or a table.
        out: the folder to make; it must not hold anything yet. All that was tried lies in
            runs/NAME-KEY, NAME being the folder's, with "-" for signs that no study's name has. The
            key says what decides the sizes: the same call goes on there, and one with other texts,
            model or `max_length` has its own run.
        text: the column of the text, in a table.
        max_ms: milliseconds that one text of `max_length` tokens may take: the model that agrees
            most among those. By default the fastest one of `min_agreement`.
        min_agreement: share of the texts on which a model is to answer as before, in (0, 1]; where
            none does, the nearest is taken.
        max_length: tokens at which texts are cut off, and that are timed.
        command: see `launch`.
        console: see `launch`.
        say: told what is timed.

    Returns:
        What was found, and the folder, which holds the model for transformers and onnxruntime.

    Raises:
        RunError: if the folder is taken, if no model is so fast, and if none runs in int8 here.
        UserError: for a model or a file that cannot be read, too few texts, and without the extra
            "onnx".
    """
    out = Path(out)
    check_free(out)
    check_engine(_ENGINE, "cpu")
    study = _study(out.resolve().name, str(model), data, text, max_length)
    _, definition = read_study(study, "auto")  # no two of its name differ in what decides results
    study = replace(study, name=f"{study.name}-{content_key(definition)[:8]}")
    launch(study, command=command, console=console)
    run = load_run(Path("runs") / study.name)
    timed = bench_front(
        run, study, engines=("onnxruntime", _ENGINE), batches=(1, 8), lengths=(max_length,), say=say
    )
    keep_speeds(run, timed)
    write_report([run], run.folder / "report.html")
    if (reason := timed.skipped.get(_ENGINE)) is not None:
        raise RunError(
            f"no size runs in int8 here ({reason}); install the versions that were tested (pip "
            "install -c constraints.txt -e '.[onnx]'), or take a size in float32: maskfront export "
            f"{run.folder}"
        )
    speed = next(
        one
        for one in read_speeds(run)
        if one.engine == _ENGINE and one.batch == 1 and not one.texts
    )
    trial = _chosen(speed, max_ms, min_agreement)
    taken = speed.models[trial]
    return Compressed(
        run=run,
        trial=trial,
        milliseconds=taken.milliseconds,
        speed_up=taken.speed_up,
        agreement=_worth(taken).heldout_metric,
        exported=export(run, trial, out, int8=study),
    )


def _study(name: str, model: str, data: str | Path, text: str, max_length: int) -> Study:
    """Every size once, compared by divergence: of a few rows agreement is coarse."""
    task = Task.from_files(
        data, name=Path(data).name, text=text, metric="agreement", max_length=max_length
    )
    texts = count_texts(task)
    if texts < _FEWEST:
        raise UserError(f"'{data}' has {texts} different texts; compress needs {_FEWEST} or more")
    quarter = min(texts // 4, _MOST)
    train = min(texts - 2 * quarter - 1, _MOST)
    return Study(
        name=re.sub(r"[^A-Za-z0-9._-]+", "-", name).lstrip("._-") or "model",
        task=replace(task, train=train, alpha=1, select=quarter, heldout=quarter),
        teacher=Teacher(checkpoint=model),
        method=CrossDistillation(rows=_MOST),
        space={"target_ratio": FloatDistribution(min(RATIOS), 1)},
        first=tuple({"target_ratio": ratio} for ratio in RATIOS),
        trials=len(RATIOS),
        objective="divergence",
        sampler=None,
    )


def _chosen(speed: Speed, max_ms: float | None, min_agreement: float) -> int:
    """The number of the trial that was asked for. Raises RunError if none is so fast."""
    fastest = sorted(speed.models, key=lambda number: speed.models[number].milliseconds)
    agreement = {number: _worth(speed.models[number]).metric for number in fastest}
    if max_ms is not None:
        within = [number for number in fastest if speed.models[number].milliseconds <= max_ms]
        if not within:
            least = speed.models[fastest[0]].milliseconds
            raise RunError(
                f"no model takes {max_ms:g} ms or less: the fastest takes {least:.2f} ms; allow "
                "more, or cut texts off earlier",
                "max_ms",
                "max_length",
            )
        return max(reversed(within), key=agreement.__getitem__)
    wanted = min(min_agreement, max(agreement.values()))
    return next(number for number in fastest if agreement[number] >= wanted)


def _worth(model: TimedModel) -> Worth:
    assert model.worth is not None, "models are scored in int8"
    return model.worth
