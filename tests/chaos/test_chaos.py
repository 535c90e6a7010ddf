"""Nothing is lost, nothing is done twice, nothing is stuck: whatever is killed, and whenever."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import optuna
import pytest
from optuna.artifacts import FileSystemArtifactStore, download_artifact, get_all_artifact_meta
from optuna.trial import FrozenTrial, TrialState
from safetensors import safe_open

from objectives.cache import kernel_lock
from objectives.students.bert.architecture import BertArchitecture
from orchestrator.runs.records import BUDGET, RESULT, RETRY_OF, load_optuna_study, trial_record
from orchestrator.runs.run_folder import RunFolder
from tests.chaos.quick import BUSY
from tests.servers import MariaDb, Postgres, proxy

pytestmark = pytest.mark.timeout(3600)

KILLS = int(os.environ.get("CHAOS_KILLS", "2"))
"""For each storage."""
WANTED = 4 * KILLS + 4
"""Trials: enough that the study outlives the kills."""
SEED = int(os.environ.get("CHAOS_SEED", "0"))

Disturbed = Callable[..., None]

_STUDY = """
from optuna.distributions import FloatDistribution

from objectives.text.task import Task
from objectives.workbench.teacher import Teacher
from maskfront import Study
from tests.chaos.quick import Quick

study = Study(
    name="quick",
    task=Task(
        name="tiny", data={data!r}, max_length=16, train=32, alpha=16, select=24, heldout=24
    ),
    teacher=Teacher(checkpoint={checkpoint!r}, epochs=1, learning_rate=1e-3),
    method=Quick(),
    space={{"share": FloatDistribution(0.1, 1), "noise": FloatDistribution(0, 1)}},
    trials={wanted},
    population=2,
    seed=3,
)
"""


@pytest.fixture
def study_file(tmp_path: Path, tiny_data: Path, tiny_bert: str) -> Path:
    path = tmp_path / "study.py"
    path.write_text(_STUDY.format(data=str(tiny_data), checkpoint=tiny_bert, wanted=WANTED))
    return path


@pytest.fixture
def disturbed(study_file: Path, tmp_path: Path) -> Disturbed:
    """The study under random kills in a storage, with one thing more in the middle; all is well
    in the end."""

    def disturb(url: str, at_half: Callable[[], object] = lambda: None) -> None:
        run_and_kill(study_file, tmp_path / "run", url, at_half)
        check_all_is_well(tmp_path / "run")

    return disturb


def run_and_kill(study: Path, out: Path, url: str, at_half: Callable[[], object]) -> None:
    busy = out.with_name("busy")
    busy.mkdir()
    command = [sys.executable, "-m", "tests.chaos.driver", str(study), str(out), url]
    driver = subprocess.Popen(
        [*command, "--kills", str(KILLS), "--seed", str(SEED)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", BUSY: str(busy)},
    )
    assert driver.stdout is not None
    try:
        lines = []
        for line in driver.stdout:
            lines.append(line)
            if line == "half\n":
                at_half()
        assert driver.wait() == 0
        assert lines[0] == "half\n", lines
        assert lines[-1].startswith(f"{KILLS} kills"), lines
    finally:
        driver.kill()
        driver.wait()
        driver.stdout.close()


def check_all_is_well(out: Path) -> None:
    """What was wanted is complete, once, and on disk; nothing else is left."""
    study = load_optuna_study(out)
    trials = study.get_trials(deepcopy=False)
    complete = [trial for trial in trials if trial.state is TrialState.COMPLETE]
    assert len(complete) == WANTED
    assert {trial.state for trial in trials} <= {TrialState.COMPLETE, TrialState.FAIL}
    knobs = [tuple(sorted(trial.params.items())) for trial in complete]
    assert len(set(knobs)) == WANTED
    retried = [trial for trial in trials if RETRY_OF in trial.user_attrs]
    assert retried
    for trial in retried:
        assert trials[trial.user_attrs[RETRY_OF]].state is TrialState.FAIL
    on_disk = sorted(path.name for path in (out / "trials").iterdir())
    assert on_disk == [f"{trial.number:05d}" for trial in complete]
    for trial in complete:
        check_trial(study, out, trial)


def check_trial(study: optuna.Study, out: Path, trial: FrozenTrial) -> None:
    """Its files are whole and say what the storage says."""
    record = trial_record(trial)
    assert record.result is not None
    assert trial.values == [record.result.metric, record.result.cost]
    assert trial.constraints == {BUDGET: record.result.violation}
    folder = RunFolder(out).trial(trial.number)
    assert json.loads((folder / "result.json").read_text()) == trial.user_attrs[RESULT]
    architecture = BertArchitecture.from_json((folder / "architecture.json").read_text())
    assert architecture.ffn_per_layer == record.result.ffn_per_layer
    with safe_open(folder / "model" / "model.safetensors", "pt") as weights:
        sizes = [weights.get_tensor(name).numel() for name in weights.keys()]  # noqa: SIM118
    assert sum(sizes) == record.result.params
    store = FileSystemArtifactStore(RunFolder(out).artifacts)
    metas = get_all_artifact_meta(trial, storage=study._storage)
    assert {meta.filename for meta in metas} >= {"architecture.json", "result.json", "curve.csv"}
    for meta in metas:
        original = next(folder.rglob(meta.filename))  # the weights lie in model/
        copy = out / "opened"
        copy.unlink(missing_ok=True)
        download_artifact(artifact_store=store, file_path=str(copy), artifact_id=meta.artifact_id)
        assert copy.read_bytes() == (original).read_bytes()


@pytest.mark.slow
def test_sqlite(disturbed: Disturbed, tmp_path: Path) -> None:
    disturbed(f"sqlite:///{tmp_path}/run/study.db")


@pytest.mark.slow
def test_journal_that_is_torn(disturbed: Disturbed, tmp_path: Path) -> None:
    journal = tmp_path / "shared" / "study.journal"

    def tear() -> None:
        with kernel_lock(journal.with_name(f"{journal.name}.flock")), journal.open("ab") as file:
            file.write(b'{"op_code":8,"worker_id":"died-he\0\0\0')

    disturbed(f"journal:///{journal}", tear)


@pytest.mark.slow
def test_postgresql_that_crashes(disturbed: Disturbed, postgres: Postgres) -> None:
    disturbed(postgres.new_database(), postgres.crash)


@pytest.mark.slow
def test_mariadb_that_crashes(disturbed: Disturbed, mariadb: MariaDb) -> None:
    disturbed(mariadb.new_database(), mariadb.crash)


@pytest.mark.slow
def test_proxy_that_is_killed(disturbed: Disturbed, postgres: Postgres) -> None:
    database = postgres.new_database()
    with ExitStack() as stack:
        served, first = stack.enter_context(proxy(database))

        def restart() -> None:
            first.kill()
            first.wait()
            stack.enter_context(proxy(database, int(served.rpartition(":")[2])))

        disturbed(served, restart)
