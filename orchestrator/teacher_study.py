"""The Optuna study that tunes the teacher of another (`Teacher.trials`), in the same storage."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import optuna
from optuna.pruners import MedianPruner
from optuna.samplers import TPESampler
from optuna.trial import Trial, TrialState

from objectives.errors import UserError
from objectives.session import Session
from objectives.workbench.inputs import Inputs
from objectives.workbench.teacher import Teacher
from objectives.workbench.teacher_trials import FineTune, tune
from orchestrator.errors import RunError
from orchestrator.optuna_private import knobs_of, storage_of
from orchestrator.runs.records import DEFINITION, TEACHER_OF, TUNED
from orchestrator.sampler import make_sampler
from orchestrator.study import Study

if TYPE_CHECKING:
    from transformers import PreTrainedModel

SUFFIX = "-teacher"  # of the tuning study's name, after the name of the main study
_ENDED = (TrialState.COMPLETE, TrialState.PRUNED)


def tune_teacher(
    study: Study, optuna_study: optuna.Study, inputs: Inputs, session: Session
) -> tuple[str, ...]:
    """Tune the teacher if the study asks for it, and record the choice; the caller holds a lock."""
    study = replace(study, teacher=inputs.teacher)  # which is settled
    if study.teacher.trials:
        tune(inputs, session, lambda fine_tune: _best(study, optuna_study, session, fine_tune))
    if (chosen := optuna_study.user_attrs.get(TUNED)) is None:
        return ()
    note = f"the teacher is that of trial {_told(chosen)} of study '{study.name}{SUFFIX}'"
    session.progress.note(note)
    return (note,)


def _best(
    study: Study, optuna_study: optuna.Study, session: Session, fine_tune: FineTune
) -> PreTrainedModel:
    """Run the tuning trials that are left; returns the classifier of the lowest loss."""
    tuning, best_model = _opened(study, optuna_study), None
    while len(tuning.get_trials(deepcopy=False, states=_ENDED)) < study.teacher.trials:
        trial = tuning.ask()
        _draw(trial, study.teacher)
        try:
            model, loss = fine_tune(trial.params, partial(_report, trial))
        except optuna.TrialPruned:
            tuning.tell(trial, state=TrialState.PRUNED)
            continue
        tuning.tell(trial, loss)
        line = _told({**trial.params, "selection loss": loss, "trial": trial.number})
        session.progress.note(f"teacher trial {line}")
        if tuning.best_trial.number == trial.number:
            best_model = model
    if not tuning.get_trials(deepcopy=False, states=_ENDED[:1]):
        raise UserError(
            f"teacher '{study.teacher.name}': no trial has a finite loss; lower "
            f"Teacher.learning_rate, now {study.teacher.learning_rate:g}"
        )
    best = tuning.best_trial
    chosen = {**best.params, "selection loss": best.value, "trial": best.number}
    optuna_study.set_user_attr(TUNED, chosen)
    return best_model or fine_tune(best.params, lambda epoch, loss: None)[0]


def _opened(study: Study, optuna_study: optuna.Study) -> optuna.Study:
    """Create or continue the tuning study; trials that a killed launch left are tried again."""
    tuning = optuna.create_study(
        storage=storage_of(optuna_study),
        study_name=study.name + SUFFIX,
        pruner=MedianPruner(n_startup_trials=3, n_warmup_steps=2),  # two trials have no median
        load_if_exists=True,
    )
    trials, definition = tuning.get_trials(deepcopy=False), optuna_study.user_attrs[DEFINITION]
    tuning.sampler = make_sampler(
        study.seed, len(trials), 1, name=lambda seed: TPESampler(seed=seed, n_startup_trials=4)
    )
    if (trials or tuning.user_attrs) and tuning.user_attrs.get(DEFINITION) != definition:
        raise RunError(
            f"the storage has another study '{tuning.study_name}', which is to tune the teacher of "
            f"'{study.name}'; give yours another name"
        )
    tuning.set_user_attr(DEFINITION, definition)
    tuning.set_user_attr(TEACHER_OF, study.name)
    if not trials:
        names = ("learning_rate", "epochs", "batch_size", "warmup")
        tuning.enqueue_trial({name: getattr(study.teacher, name) for name in names})
    for trial in trials:
        if trial.state is TrialState.RUNNING:
            tuning.enqueue_trial(knobs_of(trial))
            tuning.tell(trial.number, state=TrialState.FAIL)
    return tuning


def _draw(trial: Trial, teacher: Teacher) -> None:
    """Draw hyperparameters around those of the teacher."""
    rate, epochs, batch = teacher.learning_rate, teacher.epochs, teacher.batch_size
    assert rate is not None
    assert epochs is not None
    trial.suggest_float("learning_rate", rate / 5, rate * 10, log=True)
    trial.suggest_int("epochs", -(-epochs // 2), 3 * epochs)
    trial.suggest_categorical("batch_size", sorted({-(-batch // 2), batch}))
    trial.suggest_float("warmup", 0.0, max(0.3, teacher.warmup))


def _report(trial: Trial, epoch: int, loss: float) -> None:
    """Prune the trial if it has diverged, or if half of the others were better at this epoch."""
    if math.isfinite(loss):
        trial.report(loss, epoch)
    if not math.isfinite(loss) or trial.should_prune():
        raise optuna.TrialPruned


def _told(chosen: Mapping[str, Any]) -> str:
    """Describe the chosen trial: "3 (learning_rate 5e-05, ..., selection loss 0.41)"."""
    parts = [f"{name} {value:.3g}" for name, value in chosen.items() if name != "trial"]
    return f"{chosen['trial']} ({', '.join(parts)})"
