"""Real servers for the tests of storages, of this machine alone.

A PostgreSQL, a MariaDB (which is what Debian has of MySQL), a storage proxy.
"""

from __future__ import annotations

import getpass
import itertools
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import quote

import pymysql

from tests.waiting import wait_for

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it would rather have another folder for its lock
    import pgserver
    from pgserver._commands import pg_ctl


class Postgres:
    """A PostgreSQL in a folder, reached by a socket in that folder."""

    def __init__(self) -> None:
        # Not below pytest's own folder, which it closes to the user that PostgreSQL runs as.
        folder = self._folder = Path(tempfile.mkdtemp(prefix="maskfront-postgres-"))
        self.server = pgserver.get_server(folder, cleanup_mode="stop")
        self._names = (f"maskfront{n}" for n in itertools.count())
        self.socket = self.server.get_uri().partition("host=")[2]

    def new_database(self) -> str:
        """The URL of an empty database."""
        name = next(self._names)
        self.server.psql(f"create database {name};")
        return f"postgresql://postgres@/{name}?host={quote(self.socket)}"

    def new_user(self, name: str, password: str, asks: str = "scram-sha-256") -> str:
        """A URL with a place for the password of a new user, which the server asks for in this
        way."""
        database = self.new_database()
        self.server.psql(f"create user {name} superuser password '{password}';")
        rules = self._folder / "pg_hba.conf"
        rules.write_text(f"local all {name} {asks}\n{rules.read_text()}")
        self.server.psql("select pg_reload_conf();")
        return database.replace("postgres@", f"{name}:{{password}}@")

    def crash(self) -> None:
        """End it as a crash would, and start it again."""
        pg_ctl(
            ["-w", "-m", "immediate", "restart"],
            pgdata=self.server.pgdata,
            user=self.server.system_user,
        )

    def stop(self) -> None:
        """End it for good."""
        self.server.cleanup()
        shutil.rmtree(self._folder)


class MariaDb:
    """A MariaDB in a folder, at a port of 127.0.0.1; it needs Debian's mariadb-server-core."""

    _SYSTEM = Path("/usr/share/mysql")
    """The package's own SQL, of which a server's system tables are made."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="maskfront-mariadb-"))
        self._names = (f"maskfront{n}" for n in itertools.count())
        self.port = free_port()
        self._command = [
            *("mariadbd", "--no-defaults", f"--datadir={self._folder}"),
            f"--tmpdir={self._folder}",  # one that starts clears it, of another's tables too
            f"--user={getpass.getuser()}",  # it would not be root unasked
        ]
        self._make_tables()
        self.start()

    def _make_tables(self) -> None:
        files = ("mysql_system_tables", "mysql_performance_tables", "mysql_system_tables_data")
        tables = "\n".join((self._SYSTEM / f"{name}.sql").read_text() for name in files)
        made = subprocess.run(
            [*self._command, "--bootstrap"],
            input=f"create database mysql;\nuse mysql;\n{tables}",
            capture_output=True,
            text=True,
            check=False,
        )
        assert made.returncode == 0, made.stderr

    def start(self) -> None:
        """Start it, and wait until it answers."""
        here = ["--bind-address=127.0.0.1", f"--port={self.port}"]
        with (self._folder / "log").open("a") as log:
            self._process = subprocess.Popen(
                [*self._command, *here, f"--socket={self._folder}/socket"], stderr=log
            )

        def answers() -> bool:
            assert self._process.poll() is None, (self._folder / "log").read_text()
            with suppress(pymysql.err.OperationalError):
                self.sql("select 1")
                return True
            return False

        try:
            wait_for("a MariaDB that answers", answers)
        except BaseException:
            self.stop()
            raise

    def sql(self, statement: str) -> None:
        """Do one statement as root."""
        with pymysql.connect(host="127.0.0.1", port=self.port, user="root") as connection:
            connection.cursor().execute(statement)

    def new_database(self, user: str = "root") -> str:
        """The URL of an empty database."""
        name = next(self._names)
        self.sql(f"create database {name}")
        return f"mysql://{user}@127.0.0.1:{self.port}/{name}"

    def new_user(self, name: str, password: str) -> str:
        """A URL with a place for the password of a new user, which the server asks for."""
        self.sql(f"create user {name}@'127.0.0.1' identified by '{password}'")
        self.sql(f"grant all on *.* to {name}@'127.0.0.1'")
        return self.new_database(f"{name}:{{password}}")

    def crash(self) -> None:
        """End it as a crash would, and start it again."""
        self._process.kill()
        self._process.wait()
        self.start()

    def stop(self) -> None:
        """End it for good."""
        self._process.kill()
        self._process.wait()
        shutil.rmtree(self._folder)


def free_port() -> int:
    """A port of this machine that nobody serves."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def proxy(url: str, port: int = 0) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """`maskfront serve-storage` in a process of its own, ready: its URL, and the process.

    Port 0 takes a free one.
    """
    command = [sys.executable, "-m", "orchestrator.command.cli", "serve-storage", "--storage", url]
    process = subprocess.Popen(
        [*command, "--port", str(port)], stdout=subprocess.PIPE, text=True, env=dict(os.environ)
    )
    assert process.stdout is not None
    try:
        served = process.stdout.readline().rstrip()
        assert served.startswith(f"grpc://127.0.0.1:{port or ''}"), served
        yield served, process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
