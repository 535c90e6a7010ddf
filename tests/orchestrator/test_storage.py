"""The SQLite storage and the sampler that goes with it."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import optuna
from optuna.distributions import FloatDistribution

from orchestrator.sampler import make_sampler
from orchestrator.storage import open_storage

_SPACE = {"x": FloatDistribution(0, 1), "y": FloatDistribution(1e-3, 1, log=True)}


def test_storage_is_write_ahead_logged(tmp_path: Path) -> None:
    open_storage(f"sqlite:///{tmp_path}/study.db")
    with sqlite3.connect(tmp_path / "study.db") as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    connection.close()


def test_storage_connections_do_not_wait_for_the_disk_at_each_commit(tmp_path: Path) -> None:
    storage = open_storage(f"sqlite:///{tmp_path}/study.db")
    with storage.engine.connect() as connection:
        normal = 1
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == normal


def test_a_resumed_study_never_repeats_its_draws(tmp_path: Path) -> None:
    draws = []
    for _ in range(3):
        study = optuna.create_study(
            storage=open_storage(f"sqlite:///{tmp_path}/study.db"),
            study_name="s",
            directions=["maximize", "minimize"],
            load_if_exists=True,
        )
        study.sampler = make_sampler(seed=7, trials_so_far=len(study.trials), population=4)
        for trial in [study.ask(dict(_SPACE)) for _ in range(4)]:
            draws.append((trial.params["x"], trial.params["y"]))
            study.tell(trial, [trial.params["x"], trial.params["y"]])
    assert len(set(draws)) == len(draws)


def test_the_same_launch_draws_the_same() -> None:
    def first_draw(trials_so_far: int) -> float:
        study = optuna.create_study(
            directions=["maximize", "minimize"],
            sampler=make_sampler(seed=7, trials_so_far=trials_so_far, population=4),
        )
        return float(study.ask(dict(_SPACE)).params["x"])

    assert first_draw(0) == first_draw(0)
    assert first_draw(0) != first_draw(4)
