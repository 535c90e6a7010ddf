"""The URL of a storage: what it may say, and what of it may be shown."""

from __future__ import annotations

import os
from pathlib import Path

from sqlalchemy import make_url
from sqlalchemy.engine import URL
from sqlalchemy.exc import ArgumentError

from orchestrator.errors import RunError

PASSWORD = "MASKFRONT_STORAGE_PASSWORD"
"""Environment variable with the password of a storage whose URL has a user and no password."""
_SETTINGS = (
    *("host", "port", "unix_socket", "charset"),
    *("sslmode", "sslrootcert", "sslcert", "sslkey", "ssl_ca"),
)
"""What a URL may say behind its "?". A run folder may name any server, and PyMySQL would read what
files this machine has where a URL tells it to."""
_DRIVERS = {
    "postgres": "postgresql+psycopg",
    "postgresql": "postgresql+psycopg",  # its own default differs between SQLAlchemy 2.0 and 2.1
    "mysql": "mysql+pymysql",
}
_KNOWN = (
    "sqlite:///FILE (one machine), postgresql://USER@HOST/DATABASE or mysql://... (many), "
    "grpc://HOST:PORT (`maskfront serve-storage`, very many), journal:///FILE (a shared folder, "
    "few workers)"
)


def parse_url(text: str) -> URL:
    """The URL of a storage, with its driver, an absolute path, and the password if one is set.

    Raises RunError for what no storage has; the message never shows a password.
    """
    try:
        url = make_url(text)
        port = url.port
    except (ArgumentError, ValueError) as error:
        raise RunError(f"storage=... is no URL of a storage; it must be one of {_KNOWN}") from error
    kind = kind_of(url)
    if kind not in ("sqlite", "postgres", "postgresql", "mysql", "journal", "grpc"):
        raise RunError(f"storage=... names a '{url.drivername}'; it must be one of {_KNOWN}")
    if any("pass" in name.lower() for name in url.query):
        raise RunError(f"storage=... has a password behind the '?'; set {PASSWORD} instead")
    if unknown := sorted(set(url.query) - set(_SETTINGS)):
        raise RunError(
            f"storage=... says {', '.join(unknown)} behind the '?'; it may say "
            f"{', '.join(_SETTINGS)}"
        )
    if "@" in str(url.host):
        raise RunError("storage=... has two '@'; one in a user's name or password is written %40")
    if kind in ("sqlite", "journal"):
        if url.host or url.database in (None, "", ":memory:"):
            raise RunError(
                f'storage="{hidden(url)}" names no file; write {kind}:///FOLDER/FILE '
                f"({kind}:////FOLDER/FILE if its path begins with a slash)"
            )
        return url.set(database=str(Path(str(url.database)).absolute()))
    if kind == "grpc" and not (url.host and port):
        raise RunError(f'storage="{hidden(url)}" must be grpc://HOST:PORT')
    if url.username is not None and url.password is None and os.environ.get(PASSWORD):
        url = url.set(password=os.environ[PASSWORD])
    return url.set(drivername=_DRIVERS.get(url.drivername, url.drivername))


def without_password(text: str) -> str:
    """The URL with its password, if it has one, moved to where `parse_url` finds it: `PASSWORD`.

    So it can be kept, and whatever opens it later in this process gets in.
    """
    url = parse_url(text)
    if url.password is None:
        return text
    os.environ[PASSWORD] = str(url.password)
    return hidden(url)


def kind_of(url: URL) -> str:
    """Which of "sqlite", "postgresql", "mysql", "journal" and "grpc" it names."""
    return url.drivername.partition("+")[0]


def hidden(url: URL) -> str:
    """The URL without its password: the only way in which one is shown or written."""
    return url._replace(password=None).render_as_string()


def is_file(text: str) -> bool:
    """Whether the storage of a URL is a file, which opening it would make; else it is a server."""
    return kind_of(parse_url(text)) in ("sqlite", "journal")


def sqlite_url(file: str | Path) -> str:
    """The URL of an SQLite file, whatever signs its path has."""
    return URL.create("sqlite", database=str(file)).render_as_string()
