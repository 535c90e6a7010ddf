"""Open the storage that a URL names, and refuse what does not fit."""

import json
import os
import socket
import sqlite3
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import quote, urlencode

import optuna
from optuna.exceptions import ExperimentalWarning, StorageInternalError
from optuna.storages import (
    BaseStorage,
    GrpcStorageProxy,
    JournalStorage,
    RDBStorage,
    get_storage,
    run_grpc_proxy_server,
)
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState
from sqlalchemy import NullPool, create_engine, event, inspect
from sqlalchemy.engine import URL, Engine
from sqlalchemy.exc import SQLAlchemyError

from objectives.cache import atomic_write, kernel_lock, sync
from orchestrator.errors import RunError
from orchestrator.storage.retry import RETRY_SECONDS, reason_of, retried
from orchestrator.storage.urls import (
    as_named,
    hidden,
    is_file,
    kind_of,
    parse_url,
    remember_server,
    sqlite_url,
)

CONNECT_SECONDS = 5  # how long a server may take to answer the first time
_STUDIES = "studies"  # a table of every database of Optuna
# Locks with which one process at a time makes the tables of a server, until it disconnects.
_TURNS = {
    "postgresql": "SELECT pg_advisory_xact_lock(1835103590)",
    "mysql": f"SELECT GET_LOCK('maskfront', {CONNECT_SECONDS - 1})",
}
_LAST = "alembic_version"  # the table that Optuna makes last
# The proxy knows no users and no encryption: other machines reach it best through a tunnel.
_SERVED_AT = "127.0.0.1"


def open_storage(text: str, *, create: bool = True) -> BaseStorage:
    """Open the storage of a URL, or create it; on a server, its tables only if `create`."""
    url = as_named(parse_url(text))
    kind = kind_of(url)
    with _explained(url):
        if kind == "sqlite":
            return _open_sqlite(Path(str(url.database)))
        if kind == "journal":
            return JournalStorage(RepairedJournal(Path(str(url.database))))
        if kind == "grpc":
            return retried(_open_proxy(str(url.host), int(url.port or 0)), hidden(url))
        engine = {"connect_args": _guarded(url), "pool_pre_ping": True}
        # First: PyMySQL waits for ever for a server that takes a call and is silent.
        with _for_one_question(url).connect() as turn:
            if create:
                turn.exec_driver_sql(_TURNS[kind])
            address = url.render_as_string(hide_password=False)
            raw = RDBStorage(address, engine_kwargs=engine, skip_table_creation=not create)
        cached = get_storage(raw)
        weakref.finalize(cached, raw.engine.dispose)  # no connection outlives it
        # A reader is a person who waits.
        return retried(cached, hidden(url), RETRY_SECONDS if create else 2 * CONNECT_SECONDS)


def read_storage(text: str) -> BaseStorage:
    """Open the storage of a URL read-only: nothing is created or changed. Raises RunError."""
    check_exists(text)
    url = as_named(parse_url(text))
    if kind_of(url) in ("postgresql", "mysql"):
        with _explained(url):
            if not inspect(_for_one_question(url)).has_table(_LAST):  # opening would make it
                raise RunError(f"storage {hidden(url)} is not an Optuna database, or is empty")
        return open_storage(text, create=False)
    if kind_of(url) != "sqlite":
        return open_storage(text)
    with _explained(url):
        storage = get_storage(_read_sqlite(Path(str(url.database))))
    for name in BaseStorage.__abstractmethods__:
        if name.startswith("get_"):  # each of them may meet the damage of a file
            setattr(storage, name, _explained(url)(getattr(storage, name)))
    return storage


def check_exists(text: str) -> None:
    """Raise RunError for a file that does not exist: opening it would create it."""
    url = parse_url(text)
    if is_file(text) and not Path(str(url.database)).is_file():
        raise RunError(
            f"there is no storage {hidden(url)}; check its path, or create it with "
            "`maskfront run STUDY.py`"
        )


def _open_sqlite(path: Path) -> RDBStorage:
    """Open SQLite, created if missing. WAL lets readers work while a launch writes, and with
    synchronous=NORMAL it finishes 3 to 7 times as many trials a second as SQLite's defaults."""
    if not path.exists():
        _make_sqlite(path)
    with closing(sqlite3.connect(path)) as connection:
        tables = _tables(connection)
        if tables and _STUDIES not in tables:
            raise RunError(f"'{path}' is not an Optuna database; name another after sqlite:///")
        connection.execute("PRAGMA journal_mode=WAL")
    storage, opened = _sqlite(sqlite_url(path)), path.stat()

    @event.listens_for(storage.engine, "checkout")
    def _check_there(*_: object) -> None:
        with suppress(FileNotFoundError):
            if os.path.samestat(path.stat(), opened):
                return
        raise RunError(
            f"'{path}' was deleted or replaced while this launch was at work, and what it told "
            "since is lost; put the file back, or launch into another folder"
        )

    return storage


def _make_sqlite(path: Path) -> None:
    """Create an empty database, whole, by one process at a time: others would make its tables."""
    with kernel_lock(turns := path.with_name(f".{path.name}.lock")):
        if not path.exists():
            for left in ("-wal", "-shm"):  # of a deleted one; SQLite would take them for this one's
                Path(f"{path}{left}").unlink(missing_ok=True)
            with atomic_write(path) as unfinished:
                unfinished.write_bytes(_empty_sqlite())
        turns.unlink(missing_ok=True)  # who waits for it finds the database


@cache
def _empty_sqlite() -> bytes:
    """Bytes of a database without a study. Optuna loads all its migrations to make one."""
    with TemporaryDirectory() as folder:
        path = Path(folder, "empty.db")
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("PRAGMA journal_mode=WAL")
        RDBStorage(sqlite_url(path), skip_compatibility_check=True).engine.dispose()
        return path.read_bytes()


class _Sqlite(RDBStorage):
    """SQLite storage that syncs its log when a trial ends; synchronous=FULL would at each write."""

    def set_trial_state_values(
        self, trial_id: int, state: TrialState, values: Sequence[float] | None = None
    ) -> bool:
        done = super().set_trial_state_values(trial_id, state, values)
        if state.is_finished():
            with suppress(FileNotFoundError):  # a disk without WAL
                sync(Path(f"{self.engine.url.database}-wal"))
        return done


def _read_sqlite(path: Path) -> RDBStorage:
    """Open SQLite read-only; in a folder that cannot be written as immutable, unless WAL files lie
    beside it, with a connection a query: an open one would not see later changes."""
    if os.access(path, os.W_OK) and os.access(path.parent, os.W_OK):
        query = {"mode": "rw"}
    elif path.with_name(f"{path.name}-wal").exists():
        query = {"mode": "ro"}
    else:
        query = {"mode": "ro", "immutable": "1"}
    file = f"file:{quote(str(path))}"
    with closing(sqlite3.connect(f"{file}?{urlencode(query)}", uri=True)) as connection:
        if _LAST not in _tables(connection):
            raise RunError(f"'{path}' is not an Optuna database, or is empty")
    url = URL.create("sqlite", database=file, query={**query, "uri": "true"})
    settings = {"poolclass": NullPool} if "immutable" in query else {}
    return _sqlite(url.render_as_string(), skip_table_creation=True, **settings)


def _tables(connection: sqlite3.Connection) -> set[str]:
    return {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}


def _sqlite(url: str, *, skip_table_creation: bool = False, **engine: Any) -> RDBStorage:
    storage = _Sqlite(
        url,
        engine_kwargs={"connect_args": {"timeout": 60}, **engine},
        skip_compatibility_check=True,
        skip_table_creation=skip_table_creation,
    )
    if (version := storage.get_current_version()) not in _readable_versions:
        RDBStorage(url, skip_table_creation=True).engine.dispose()  # raises if it is another
        _readable_versions.add(version)

    @event.listens_for(storage.engine, "connect")
    def _relax(connection: Any, _record: Any) -> None:
        connection.execute("PRAGMA synchronous=NORMAL")

    storage.engine.dispose()
    return storage


# Of Optuna's tables; Optuna loads all its migrations to learn its own at each opening, in 20 ms.
_readable_versions: set[str] = set()


def _for_one_question(url: URL) -> Engine:
    arguments = _guarded(url)
    if kind_of(url) == "mysql":
        arguments["read_timeout"] = CONNECT_SECONDS
    return create_engine(url, connect_args=arguments, poolclass=NullPool)


def _guarded(url: URL) -> dict[str, Any]:
    """Arguments to connect to a server that may be an impostor: it gets no file of this machine,
    and no readable password, unless its certificate is checked or its socket is local."""
    arguments: dict[str, Any] = {"connect_timeout": CONNECT_SECONDS}
    if kind_of(url) == "mysql":
        arguments |= {"local_infile": False, "read_timeout": 60, "write_timeout": 60}
        if url.password and not url.query.keys() & {"ssl_ca", "unix_socket"}:
            arguments["password"] = _Hashed(str(url.password).encode("latin1"))  # as PyMySQL does
        return arguments
    # A server whose machine is gone without a word: TCP alone would wait for hours.
    arguments |= {"keepalives_idle": 30, "keepalives_interval": 10, "keepalives_count": 3}
    arguments["tcp_user_timeout"] = 60_000  # ms
    if not str(url.query.get("sslmode")).startswith("verify-"):
        arguments["require_auth"] = "!password"
    return arguments


class _Hashed(bytes):
    """Password that PyMySQL can hash but not send: before sending it, in clear text or under a key
    that the server has just named, PyMySQL adds a NUL, which is refused here."""

    def __add__(self, _: object) -> bytes:
        raise RunError(
            "the server asks for the password itself, which an impostor would do too; name the "
            "certificate of your server: ?ssl_ca=FILE",
            "storage",
        )


def _open_proxy(host: str, port: int) -> GrpcStorageProxy:
    import grpc

    with warnings.catch_warnings(action="ignore", category=ExperimentalWarning):
        proxy = GrpcStorageProxy(host=host, port=port)
    try:
        proxy.wait_server_ready(timeout=CONNECT_SECONDS)
        with suppress(KeyError):  # a first question: any server of HTTP/2 is ready
            proxy.get_study_id_from_name("")
    except ConnectionError as error:
        raise RunError(
            f"no storage proxy answers at grpc://{host}:{port}; start one there, on that port, "
            "with `maskfront serve-storage`"
        ) from error
    except grpc.RpcError as error:
        if error.code() is grpc.StatusCode.UNIMPLEMENTED:
            raise RunError(
                f"the server at grpc://{host}:{port} is not a storage proxy ({reason_of(error)}); "
                "use the address that `maskfront serve-storage` prints"
            ) from error
    return proxy  # if it is away just now, the caller tries again


@contextmanager
def _explained(url: URL) -> Iterator[None]:
    """Turn a library's error on opening a storage into one line without password."""
    shown, kind = hidden(url), kind_of(url)
    try:
        yield
    except ImportError as error:
        raise RunError(
            f"storage {shown} needs a package that is not installed: "
            f"pip install -c constraints.txt -e '.[{kind}]'"
        ) from error
    except (SQLAlchemyError, StorageInternalError, sqlite3.Error, OSError) as error:
        raise RunError(f"storage {shown} cannot be opened: {reason_of(error)}") from error
    except RuntimeError as error:  # Optuna's word for the tables of another version
        reason = reason_of(error)
        what = "was made by another version of Optuna" if "optuna" in reason else "cannot be opened"
        raise RunError(f"storage {shown} {what}: {reason}") from error
    except ValueError as error:  # a line of a journal that is no JSON
        raise RunError(
            f"storage {shown} is damaged ({error}); restore it from a copy, or name another"
        ) from error


def serve_storage(
    url: str, port: int, started: Callable[[str], None], host: str = _SERVED_AT
) -> None:
    """Serve a storage until Ctrl-C; `started` is called with the URL for its workers."""
    kind = kind_of(parse_url(url))
    if kind in ("journal", "grpc"):
        raise RunError(
            f"a {kind} storage cannot be served (Optuna issue 6084); serve postgresql://..., "
            "mysql://... or sqlite:///FILE"
        )
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    storage = open_storage(remember_server(url))
    with socket.socket() as probe:  # gRPC itself would share a port that another one serves
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            port = probe.getsockname()[1]
        except OSError as error:
            raise RunError(
                f"port {port} of {host} cannot be used ({error.strerror}); choose another", "port"
            ) from error
    started(f"grpc://{host}:{port}")
    with warnings.catch_warnings(action="ignore", category=ExperimentalWarning):
        run_grpc_proxy_server(get_storage(storage), host=host, port=port)


_BLOCK = 1 << 16  # bytes that are read at once


class RepairedJournal(JournalFileBackend):
    """Journal that repairs an incomplete last line before it appends."""

    # A process that dies while it writes, and a full disk, leave half a line, to which Optuna would
    # glue the next record. It was never acknowledged: it is cut off before each record.

    def __init__(self, path: Path):
        path.parent.mkdir(parents=True, exist_ok=True)
        self._journal, self._turns = path, path.with_name(f"{path.name}.flock")
        super().__init__(str(path))
        with path.open("rb") as file:
            start = file.readline(_BLOCK)
        if start.strip(b"\0") and not start.startswith(b'{"op_code":'):  # a repair would spoil it
            raise RunError(
                f"'{path}' is not an Optuna journal; name another file after journal:///"
            )

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        """Append records, all or none; they are on disk when this returns. Raises OSError."""
        record = "".join(json.dumps(log, separators=(",", ":")) + "\n" for log in logs)
        with kernel_lock(self._turns), open(self._journal, "r+b", buffering=0) as file:
            end = _end_of_last_line(file.fileno())
            file.truncate(end)
            file.seek(end)
            try:
                data = memoryview(record.encode())
                while data:
                    data = data[file.write(data) :]
                os.fsync(file.fileno())
            except OSError:
                file.truncate(end)
                raise


def _end_of_last_line(file: int) -> int:
    """Offset in bytes of the end of the last complete line; NULs after it do not count."""
    end = os.fstat(file).st_size
    while end:
        start = max(0, end - _BLOCK)
        newline = os.pread(file, end - start, start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        end = start
    return 0
