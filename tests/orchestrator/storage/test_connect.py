"""What a storage URL opens, what it refuses and how; and the sampler of a resumed study."""

from __future__ import annotations

import errno
import os
import re
import socket
import sqlite3
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import optuna
import psycopg
import pymysql
import pytest
from optuna.distributions import FloatDistribution
from optuna.exceptions import StorageInternalError, UpdateFinishedTrialError
from optuna.storages._cached_storage import _CachedStorage
from optuna.trial import TrialState
from sqlalchemy.exc import OperationalError, PendingRollbackError

from orchestrator.errors import RunError
from orchestrator.runs.run_folder import RunFolder
from orchestrator.storage import connect
from orchestrator.storage.connect import open_storage, serve_storage
from orchestrator.storage.retry import is_full, is_lost, retried
from orchestrator.storage.urls import hidden, parse_url
from orchestrator.workers.heartbeat import WorkerRecord, this_machine
from orchestrator.workers.loop import writing
from orchestrator.workers.opening import JOURNAL_WORKERS, check_room
from tests.servers import Postgres

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


def test_a_trials_end_waits_for_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url, synced = f"sqlite:///{tmp_path}/study.db", list[int]()
    study = optuna.create_study(storage=open_storage(url))
    fsync = os.fsync
    monkeypatch.setattr(
        os, "fsync", lambda file: (synced.append(os.fstat(file).st_ino), fsync(file))
    )
    trial = study.ask()
    trial.set_user_attr("a", 1)
    assert synced == []
    study.tell(trial, 1.0)
    assert synced == [(tmp_path / "study.db-wal").stat().st_ino]


@pytest.mark.parametrize(
    "server", [None, *(pytest.param(s, marks=pytest.mark.slow) for s in ("postgres", "mariadb"))]
)
def test_all_that_make_a_database_at_once_get_it(
    server: str | None, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    at_once, url = 4, f"sqlite:///{tmp_path}/study.db"
    if server is not None:
        url = request.getfixturevalue(server).new_database()
    together = threading.Barrier(at_once)

    def make(_: int) -> list[optuna.study.StudySummary]:
        together.wait()
        return open_storage(url).get_all_studies()

    with ThreadPoolExecutor(at_once) as threads:
        assert list(threads.map(make, range(at_once))) == [[]] * at_once
    assert not list(tmp_path.glob(".*")), "nothing else is left"


def test_a_new_database_takes_nothing_of_a_deleted_one(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/study.db"
    study = optuna.create_study(storage=open_storage(url))
    (tmp_path / "study.db").unlink()
    assert (tmp_path / "study.db-wal").stat().st_size
    assert open_storage(url).get_all_studies() == []
    with pytest.raises(RunError, match=r"study\.db' was deleted or replaced while this launch"):
        study.ask()


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("nonsense", "is not the URL of a storage; it must be one of sqlite:///FILE"),
        ("redis://localhost", "'redis' is not a storage; use one of"),
        ("sqlite://", "'sqlite://' names no file; write sqlite:///FOLDER/FILE"),
        ("sqlite:///:memory:", "names no file"),
        ("journal://shared/study", "names no file"),
        ("grpc://somewhere", "must be grpc://HOST:PORT"),
        ("postgresql://me@db/x?password=s3cret", "a password after the '?'"),
        ("postgresql://me:s3cret@db:s3cret/x", "is not the URL"),
        ("mysql://me@db/x?local_infile=1", "sets local_infile after the '?'; it may set host, "),
        ("mysql://me@db/x?read_default_file=my.cnf", "sets read_default_file after"),
        ("postgresql://me:p@s3cret@db/x", "has two '@'"),
    ],
)
def test_a_url_that_is_none_is_one_line(url: str, message: str) -> None:
    with pytest.raises(RunError, match=re.escape(message)) as error:
        parse_url(url)
    assert "s3cret" not in str(error.value)


def test_a_driver_is_named_and_a_password_never_shown() -> None:
    assert parse_url("postgresql://me@db/x").drivername == "postgresql+psycopg"
    assert parse_url("postgres://me@db/x").drivername == "postgresql+psycopg"
    assert parse_url("mysql://me@db/x").drivername == "mysql+pymysql"
    assert parse_url("mysql+mysqldb://me@db/x").drivername == "mysql+pymysql"
    assert parse_url("postgresql+psycopg2://me@db/x").drivername == "postgresql+psycopg2"
    assert hidden(parse_url("postgresql://me:s3cret@db/x")) == "postgresql+psycopg://me@db/x"


@pytest.mark.parametrize(
    ("server", "message"),
    [("postgres", "password authentication failed"), ("mariadb", "Access denied for user 'bob'")],
)
def test_a_wrong_password_is_one_line_without_it(
    server: str, message: str, request: pytest.FixtureRequest
) -> None:
    url = request.getfixturevalue(server).new_user("bob", "right pass%word")
    open_storage(url.format(password="right%20pass%25word"))
    with pytest.raises(RunError, match=message) as error:
        open_storage(url.format(password="s3cret"))
    assert "s3cret" not in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("postgresql://me:s3cret@127.0.0.1:{port}/x", "cannot be opened: connection failed"),
        ("mysql://me:s3cret@127.0.0.1:{port}/x", "cannot be opened: .*Can't connect to MySQL"),
        ("grpc://127.0.0.1:{port}", "no storage proxy answers at grpc://127.0.0.1"),
    ],
)
def test_a_server_that_does_not_answer_is_one_line(
    url: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A port that is taken, so that nobody else comes to serve it, but does not listen."""
    monkeypatch.setattr("orchestrator.storage.connect.CONNECT_SECONDS", 1)
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        with pytest.raises(RunError, match=message) as error:
            open_storage(url.format(port=deaf.getsockname()[1]))
    assert "s3cret" not in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.slow
@pytest.mark.parametrize(
    "url",
    [
        "postgresql://me@127.0.0.1:{port}/x",
        "mysql://me@127.0.0.1:{port}/x",
        "grpc://127.0.0.1:{port}",
    ],
)
def test_a_server_that_never_answers_is_left(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes connections and says nothing; whoever still waits after 30 s would for ever."""
    monkeypatch.setattr("orchestrator.storage.connect.CONNECT_SECONDS", 1)  # psycopg makes 2 of it
    with socket.create_server(("127.0.0.1", 0)) as silent:
        hangs_up = threading.Timer(30, silent.close)
        hangs_up.start()
        before = time.monotonic()
        try:
            with pytest.raises(RunError):
                open_storage(url.format(port=silent.getsockname()[1]))
        finally:
            hangs_up.cancel()
    assert time.monotonic() - before < 20


def test_a_server_of_something_else_is_one_line() -> None:
    other = grpc.server(ThreadPoolExecutor(max_workers=1))
    port = other.add_insecure_port("127.0.0.1:0")
    other.start()
    try:
        with pytest.raises(RunError, match=rf"127.0.0.1:{port} is not a storage proxy"):
            open_storage(f"grpc://127.0.0.1:{port}")
    finally:
        other.stop(None).wait()


def test_a_storage_of_an_older_optuna_is_one_line(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/study.db"
    open_storage(url)
    with sqlite3.connect(tmp_path / "study.db") as connection:
        connection.execute("UPDATE alembic_version SET version_num = 'v3.0.0.a'")
    connection.close()
    with pytest.raises(RunError, match=r"made by another version of Optuna: .*storage upgrade"):
        open_storage(url)


def test_what_does_not_fit_names_what_does() -> None:
    here = WorkerRecord(
        name="a", host="h", machine=this_machine(), pid=1, device="cpu", beat=1, at=time.time()
    )
    far = replace(here, name="b", host="far", machine="far")
    with pytest.raises(RunError, match=r"SQLite serves one machine, and far works .*postgresql"):
        check_room("sqlite:///x", {"b": far})
    check_room("sqlite:///x", {"a": here})
    check_room("postgresql://me@db/x", {"b": far}, 1000)
    check_room("journal:///x", {"b": far}, JOURNAL_WORKERS - 1)
    with pytest.raises(RunError, match=r"journal file serves at most 8 workers, not 9; .*postgres"):
        check_room("journal:///x", {"b": far}, JOURNAL_WORKERS)
    with pytest.raises(RunError, match=r"a journal storage cannot be served .*6084"):
        serve_storage("journal:///x", 1, lambda _: None)


def test_what_is_served_is_cached_and_for_this_machine_alone(
    postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trap T12: the proxy itself reads all trials again at each question, and lets everyone in."""
    served: dict[str, object] = {}
    monkeypatch.setattr(
        connect, "run_grpc_proxy_server", lambda storage, **at: served.update(at, storage=storage)
    )
    serve_storage(postgres.new_database(), 0, lambda _: None)
    assert isinstance(served["storage"], _CachedStorage)
    assert served["host"] == "127.0.0.1"


def test_a_free_port_is_told_by_its_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    served: list[int] = []
    told: list[str] = []
    monkeypatch.setattr(connect, "run_grpc_proxy_server", lambda _, host, port: served.append(port))
    serve_storage(f"sqlite:///{tmp_path}/study.db", 0, told.append)
    assert served[0] > 0
    assert told == [f"grpc://127.0.0.1:{served[0]}"]


def test_a_lost_connection_is_made_anew_and_a_second_result_is_known(tmp_path: Path) -> None:
    """A storage whose answers get lost after they were written, as behind a bad network."""
    inner = open_storage(f"sqlite:///{tmp_path}/study.db")
    lost = StorageInternalError()
    lost.__cause__ = OperationalError("select", {}, Exception("server closed the connection"))
    set_state, fails = inner.set_trial_state_values, [True]

    def forgetful(*arguments: Any, **named: Any) -> bool:
        answer = set_state(*arguments, **named)
        if fails and fails.pop():
            raise lost
        return answer

    inner.set_trial_state_values = forgetful  # type: ignore[method-assign]
    study = optuna.create_study(storage=retried(inner, "shown"), study_name="s")
    trial = study.ask()
    study.tell(trial, 2.0)
    assert study.trials[0].value == 2.0
    assert not fails
    with pytest.raises(UpdateFinishedTrialError):
        inner.set_trial_state_values(trial._trial_id, TrialState.COMPLETE, [2.0])


_IN_A_TRANSACTION = PendingRollbackError("invalid transaction: please rollback() fully")


@pytest.mark.parametrize(
    ("error", "again", "full"),
    [
        (_IN_A_TRANSACTION, True, False),
        (psycopg.errors.AdminShutdown("terminating connection"), True, False),
        (psycopg.errors.CannotConnectNow("carefully starting up"), True, False),
        (psycopg.OperationalError("connection refused: No space left to say why"), True, False),
        (psycopg.errors.DiskFull("could not extend file"), False, True),
        (pymysql.err.OperationalError(2013, "Lost connection, fully"), True, False),
        (pymysql.err.OperationalError(1021, "Plus de place"), False, True),
        (OSError(errno.ENOSPC, "Kein Platz"), False, True),
        (OSError(errno.EDQUOT, "Kontingent"), False, True),
        (OSError(errno.EIO, "an unhelpful disk"), False, False),
    ],
)
def test_errors_are_told_apart_by_their_kind(error: Exception, again: bool, full: bool) -> None:
    raised: BaseException = error
    if not isinstance(error, PendingRollbackError | OSError):  # as SQLAlchemy wraps a driver's
        raised = OperationalError("select", {}, error)
    if not isinstance(error, OSError):  # as Optuna wraps it
        raised, cause = StorageInternalError("during the commit"), raised
        raised.__cause__ = cause
    assert (is_lost(raised), is_full(raised)) == (again, full)
    told = pytest.raises(RunError, match="free the disk or choose" if full else "kept: choose")
    with told, writing(RunFolder(Path("run"))):
        raise raised


def test_a_full_database_is_told_by_its_code(tmp_path: Path) -> None:
    storage = open_storage(f"sqlite:///{tmp_path}/study.db")
    with storage.engine.connect() as connection:
        connection.exec_driver_sql("PRAGMA max_page_count=1")
        with pytest.raises(OperationalError) as error:
            connection.exec_driver_sql(f"insert into studies values (7, '{'n' * 100_000}')")
    assert is_full(error.value)


def test_retries_end_with_one_line(tmp_path: Path) -> None:
    inner = open_storage(f"sqlite:///{tmp_path}/study.db")
    study_id = optuna.create_study(storage=inner)._study_id

    def away(*_: Any, **__: Any) -> None:
        raise OperationalError("select", {}, Exception("no route to host"))

    inner.get_study_user_attrs = away  # type: ignore[method-assign, assignment]
    with pytest.raises(RunError, match=r"storage shown does not answer \(no route to host\)"):
        retried(inner, "shown", seconds=0.2).get_study_user_attrs(study_id)


def test_a_mistake_is_not_retried(tmp_path: Path) -> None:
    storage = retried(open_storage(f"sqlite:///{tmp_path}/study.db"), "shown")
    with pytest.raises(KeyError):
        storage.get_study_user_attrs(99)


def test_no_password_goes_to_a_server_that_wants_it_as_it_is(postgres: Postgres) -> None:
    """Whoever sends a run folder chooses its server."""
    url = postgres.new_user("open", "s3cret", asks="password")
    with pytest.raises(RunError, match=r"cannot be opened: .*cleartext password") as error:
        open_storage(url.format(password="s3cret"))
    assert "s3cret" not in str(error.value)
