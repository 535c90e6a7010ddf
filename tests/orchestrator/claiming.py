"""Workers that claim trials of a study of two numbers. Imported in moments: torch is not."""

from __future__ import annotations

from contextlib import ExitStack

import optuna
from optuna.distributions import FloatDistribution

from orchestrator.runs.run_folder import RunFolder
from orchestrator.sampler import make_sampler
from orchestrator.storage.connect import open_storage
from orchestrator.workers.claims import Claims
from orchestrator.workers.heartbeat import Heartbeat

SPACE = {"x": FloatDistribution(0, 1), "y": FloatDistribution(1e-3, 1, log=True)}


def study_of(url: str, worker: int = 0) -> optuna.Study:
    """The study in a storage, as a worker of this number opens it."""
    study = optuna.create_study(
        storage=open_storage(url),
        study_name="s",
        directions=["maximize", "minimize"],
        load_if_exists=True,
    )
    study.sampler = make_sampler(7, len(study.trials), 2, worker)
    return study


def claims_of(
    study: optuna.Study, folder: RunFolder, stack: ExitStack, wanted: int, token: str = ""
) -> Claims:
    """Claims of a living worker."""
    beating = stack.enter_context(Heartbeat(study, folder, "cpu"))
    return Claims(study, folder, SPACE, beating.record.name, wanted, token)
