"""URLs of storages: what they may contain, and what may be shown."""

import os
import shlex
from itertools import chain
from pathlib import Path

from sqlalchemy import make_url
from sqlalchemy.engine import URL
from sqlalchemy.exc import ArgumentError

from objectives.errors import know_password
from orchestrator.errors import RunError

PASSWORD = "MASKFRONT_STORAGE_PASSWORD"
"""Environment variable with the password for a storage URL that has a user and no password."""
HOST = "MASKFRONT_STORAGE_HOST"
"""Environment variable with the hosts that a run folder may name beside this machine, separated by
commas; each may end in "?" and settings of its certificates."""
_HERE = ("", "localhost", "127.0.0.1", "::1")
# URLs of the servers that the user has named to this process, with password, by `_server`.
_named: dict[tuple[object, ...], URL] = {}
# Settings that the URL of a run folder may have behind its "?".
_PLACE = ("host", "port", "unix_socket")
# Settings that a user's URL may have there: one could make PyMySQL read any file.
_SETTINGS = (
    *_PLACE,
    *("charset", "sslmode", "sslrootcert", "sslcert", "sslkey", "ssl_ca", "ssl_check_hostname"),
)
_FILES = ("sqlite", "journal")
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
    """Parse the URL of a storage: add the driver, make paths absolute. Errors show no password."""
    try:
        url = make_url(text)
        port = url.port
    except (ArgumentError, ValueError):
        raise RunError(
            f"that is not the URL of a storage; it must be one of {_KNOWN}", "storage"
        ) from None  # it would show what was taken for a port
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
    if kind in _FILES:
        if url.host or url.database in (None, "", ":memory:"):
            raise RunError(
                f"'{hidden(url)}' names no file; write {kind}:///FOLDER/FILE, or "
                f"{kind}:////FOLDER/FILE if its path begins with a slash",
                "storage",
            )
        return url.set(database=str(Path(str(url.database)).absolute()))
    if kind == "grpc" and not (url.host and port):
        raise RunError(f"'{hidden(url)}' must be grpc://HOST:PORT", "storage")
    driver = "mysql" if kind == "mysql" else url.drivername  # PyMySQL alone is guarded
    return url.set(drivername=_DRIVERS.get(driver, driver))


def remember_server(text: str) -> str:
    """URL that a run folder may hold of one that the user named. This process remembers its
    password, from the URL or the environment, and its settings for `as_named`."""
    url = parse_url(text)
    if kind_of(url) not in _FILES:
        earlier = _named.get(_server(url), url).password
        password = url.password or earlier or os.environ.get(PASSWORD)
        know_password(str(password or ""))
        _named[_server(url)] = url if url.username is None else url.set(password=password)
    return hidden(url)


def as_named(url: URL) -> URL:
    """Add the password and settings that the user gave for this server; RunError for others."""
    # The sender of a run folder may have written where its study lies.
    if kind_of(url) in _FILES:
        return url
    named = _named.get(_server(url)) or _named_by_environment(url)
    settings = {name: value for name, value in url.query.items() if name not in _PLACE}
    if not settings.items() <= dict(named.query).items():
        raise RunError(
            f"storage {hidden(url)} comes from a run folder, which may not set "
            f"{', '.join(settings)}; set it behind the '?' of the storage, or of a host in {HOST}",
            "storage",
        )
    return url.set(password=url.password or named.password, query={**named.query, **url.query})


def _named_by_environment(url: URL) -> URL:
    entries = (entry.partition("?") for entry in os.environ.get(HOST, "").split(","))
    queries = dict.fromkeys(_HERE, "") | {host: query for host, _, query in entries}
    if strange := [host for host in _hosts(url) if host not in queries]:
        trust = shlex.quote(f"{HOST}={','.join(strange)}")
        raise RunError(
            f"storage {hidden(url)} comes from a run folder, and you have not named its server; "
            f"set {trust} if you know it, or name its whole URL",
            "storage",
        )
    query = "&".join(filter(None, map(queries.get, _hosts(url))))
    settings = parse_url(f"{url.drivername}://?{query}").query if query else {}
    password = None if url.username is None else os.environ.get(PASSWORD)
    return url.set(password=password, query=settings)


def _server(url: URL) -> tuple[object, ...]:
    """Identify the server that a password belongs to."""
    return url.username, url.port, *_hosts(url), *url.normalized_query.get("port", ())


def _hosts(url: URL) -> list[str]:
    """Hosts and sockets that a driver may connect to; "" is this machine."""
    named = (url.normalized_query.get(name, ()) for name in ("host", "unix_socket"))
    return [host for text in (url.host or "", *chain(*named)) for host in text.split(",")]


def kind_of(url: URL) -> str:
    """Kind of storage: "sqlite", "postgresql", "mysql", "journal" or "grpc"."""
    return url.drivername.partition("+")[0]


def hidden(url: URL) -> str:
    """URL without password and settings: the only form that is shown or written."""
    address = {name: value for name, value in url.query.items() if name in _PLACE}
    return url._replace(password=None).set(query=address).render_as_string()


def is_file(text: str) -> bool:
    """Whether the storage is a file, which opening would create, and not a server."""
    return kind_of(parse_url(text)) in _FILES


def sqlite_url(file: str | Path) -> str:
    """URL of an SQLite file; special characters of its path are quoted."""
    return URL.create("sqlite", database=str(file)).render_as_string()
