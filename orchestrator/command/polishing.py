"""`polish`: distil models of a run further, into a run of their own beside it. Its sampler compares
trials of the same training: one that had more would mislead it."""

import shutil
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

from optuna.distributions import IntDistribution
from rich.console import Console

from objectives.cache import atomic_write, content_key
from objectives.errors import spelled
from objectives.methods.polish import Polish
from objectives.students.bert.architecture import BertArchitecture
from objectives.training.stages import Loss, Stage
from objectives.workbench.fidelity import FULL
from objectives.workbench.inputs import only_answers_of
from orchestrator.command.launching import launch
from orchestrator.command.run import Run, run_in
from orchestrator.errors import RunError
from orchestrator.runs.records import RunRecord
from orchestrator.runs.run_folder import RunFolder, link_or_copy
from orchestrator.study import PopulationSize, Study
from orchestrator.study_file import POLISHED
from reports.model_folders import check_finished
from reports.speed import inputs_of

_MOST = 99_999  # the largest number of a trial that its folder is named for


@spelled
def polish(
    run: RunRecord,
    study: Study,
    *,
    trials: Sequence[int] | None = None,
    epochs: float = 6,
    out: str | Path | None = None,
    population: PopulationSize | None = None,
    workers: int | None = None,
    device: str = "auto",
    command: str | None = None,
    console: Console | None = None,
) -> Run:
    """Distil models of a run further, each on its own, and score them again.

    They go into a run of their own, as they had more training than the trials beside them. The same
    call continues it, one with other trials adds these to it.

    Args:
        run: whose models are polished.
        study: what the run was launched from, whose data it takes.
        trials: numbers of finished trials; the front by default.
        epochs: passes over the train rows.
        out: the folder of the run of polished models; RUN-polished by default.
        population: see `launch`.
        workers: see `launch`.
        device: "auto", "cpu", "cuda" or "cuda:N".
        command: see `launch`.
        console: see `launch`.

    Returns:
        The run of polished models; its knob `trial` is the number of the parent.

    Raises:
        RunError: for another study or other data, or a trial that is not finished.
        UserError: for data that cannot be read.
    """
    source = run.folder if run.folder.name.strip(".") else run.folder.resolve()
    folder = source.with_name(source.name + POLISHED) if out is None else Path(out)
    polishing = _study(run, study, folder, trials, epochs)
    inputs_of(run, study)  # with other rows the held-out ones might be those of the parent's train
    lender, taker = RunFolder(run.folder).cache, RunFolder(folder).cache
    if lender.is_dir() and not taker.exists():
        # The teacher, its answers and states: written once each, and named by their content.
        with atomic_write(taker) as unfinished:
            ignored = shutil.ignore_patterns("*.lock", ".*")  # ".*": what is not whole yet
            shutil.copytree(lender, unfinished, ignore=ignored, copy_function=link_or_copy)
    return launch(
        polishing,
        out=folder,
        population=population,
        workers=workers,
        device=device,
        command=command,
        console=console,
    )


def _study(
    run: RunRecord, study: Study, out: Path, trials: Sequence[int] | None, epochs: float
) -> Study:
    """Study whose trials each polish one of the run's, after those that `out` holds already."""
    if study.name != run.name:
        raise RunError(f"'{run.folder}' is a run of '{run.name}', not of '{study.name}'")
    if trials is None:
        trials = [trial.number for trial in run.front if _is_cut(run, trial.number)]
    wanted = list(trials)
    for number in wanted:
        check_finished(run, number)
        if not _is_cut(run, number):
            raise RunError(
                f"trial {number} is no cut BERT in float32 with all word pieces, and only these "
                "are polished"
            )
    if not wanted:
        raise RunError(
            f"'{run.folder}' has no cut BERT in float32 with all word pieces on its front; name "
            "another of its trials"
        )
    begun = run_in(out)
    had = [t.knobs["trial"] for t in begun.trials if "trial" in t.knobs] if begun else []
    numbers = list(dict.fromkeys(map(int, [*had, *wanted])))
    return replace(
        study,
        name=study.name + POLISHED,
        method=Polish(
            trials=str((run.folder / "trials").absolute()),
            parent=content_key(run.definition),
            spaces=study.spaces or Polish.spaces,
            stages=(replace(Polish.stages[0], epochs=epochs, loss=_loss(study)),),
        ),
        space={"trial": IntDistribution(0, _MOST)},
        first=tuple({"trial": number} for number in numbers),
        trials=len(numbers),
        beside=(),
        warm_start=(),
        fidelity=FULL,
        sampler=None,
        patience=None,
        trial_timeout=None,
    )


def _is_cut(run: RunRecord, number: int) -> bool:
    file = RunFolder(run.folder).trial(number) / "architecture.json"
    try:
        cut = BertArchitecture.from_json(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return not cut.has_bits and cut.vocabulary is None


def _loss(study: Study) -> Loss:
    """Loss of `Polish`; "prediction" if the teacher, or all methods, have answers alone."""
    if only_answers_of(study.teacher, study.student):
        return "prediction"
    settings = [value for method in study.methods.values() for value in vars(method).values()]
    several = chain.from_iterable(entry for entry in settings if isinstance(entry, tuple))
    losses = {entry.loss for entry in (*settings, *several) if isinstance(entry, Stage)}
    return "prediction" if losses and losses <= {"prediction", "hint"} else Polish.stages[0].loss
