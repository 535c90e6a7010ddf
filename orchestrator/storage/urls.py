"""The URL of a storage: what it may say, and what of it may be shown."""

import os
from pathlib import Path

from sqlalchemy import make_url
from sqlalchemy.engine import URL
from sqlalchemy.exc import ArgumentError

from orchestrator.errors import RunError

PASSWORD = "MASKFRONT_STORAGE_PASSWORD"
"""Environment variable with the password of a storage whose URL has a user and no password."""
HOST = "MASKFRONT_STORAGE_HOST"
"""Environment variable with the hosts, with commas between them, that this password is for; it is
also for this machine, and for a server that the user names on the command line or in Python."""
_HERE = ("", "localhost", "127.0.0.1", "::1")
_passwords: dict[tuple[object, ...], str] = {}
"""Of the servers that the user has named to this process."""
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
    """The URL of a storage, with its driver and an absolute path. Raises RunError for what no
    storage has; the message never shows a password."""
    try:
        url = make_url(text)
        port = url.port
    except (ArgumentError, ValueError) as error:
        raise RunError(
            f"that is not the URL of a storage; it must be one of {_KNOWN}", "storage"
        ) from error
    kind = kind_of(url)
    if kind not in ("sqlite", "postgres", "postgresql", "mysql", "journal", "grpc"):
        raise RunError(f"'{url.drivername}' is not a storage; use one of {_KNOWN}", "storage")
    if any("pass" in name.lower() for name in url.query):
        raise RunError(f"the URL has a password after the '?'; set {PASSWORD} instead", "storage")
    if unknown := sorted(set(url.query) - set(_SETTINGS)):
        raise RunError(
            f"the URL sets {', '.join(unknown)} after the '?'; it may set {', '.join(_SETTINGS)}",
            "storage",
        )
    if "@" in str(url.host):
        raise RunError(
            "the URL has two '@'; write the one in a user name or password as %40", "storage"
        )
    if kind in ("sqlite", "journal"):
        if url.host or url.database in (None, "", ":memory:"):
            raise RunError(
                f"'{hidden(url)}' names no file; write {kind}:///FOLDER/FILE, or "
                f"{kind}:////FOLDER/FILE if its path begins with a slash",
                "storage",
            )
        return url.set(database=str(Path(str(url.database)).absolute()))
    if kind == "grpc" and not (url.host and port):
        raise RunError(f"'{hidden(url)}' must be grpc://HOST:PORT", "storage")
    return url.set(drivername=_DRIVERS.get(url.drivername, url.drivername))


def remember_password(text: str) -> str:
    """The URL, which the user named, without its password. This process keeps the password, which
    the URL has or the environment has for it: `with_password` knows it."""
    url = parse_url(text)
    password = url.password or os.environ.get(PASSWORD)
    if url.username is None or not password:
        return text
    _passwords[_server(url)] = str(password)
    return hidden(url)


def with_password(url: URL) -> URL:
    """The URL with the password that the user gave for its server, if it asks for one. Raises
    RunError if there is but that of the environment, and it may be for another server: whoever
    sent a run folder may have written where its study lies."""
    password = url.password or _passwords.get(_server(url))
    if url.username is None:
        return url
    if password is None and (password := os.environ.get(PASSWORD)):
        named = os.environ.get(HOST, "").split(",")
        strange = [h for h in _hosts(url) if not (h in _HERE or h.startswith("/") or h in named)]
        if strange:
            raise RunError(
                f"storage {hidden(url)} comes from a run folder; set {HOST}={','.join(strange)} "
                f"if {PASSWORD} is for this host, or unset the password"
            )
    return url.set(password=password)


def _server(url: URL) -> tuple[object, ...]:
    """What a password is for."""
    return url.username, url.port, *_hosts(url), *url.normalized_query.get("port", ())


def _hosts(url: URL) -> list[str]:
    """All that a driver may connect to, a folder with a socket among them; "" is this machine."""
    named = (url.host or "", *url.normalized_query.get("host", ()))
    return [host for text in named for host in text.split(",")]


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
