"""Serve optuna-dashboard for a run, a folder of runs or a storage, on this machine only."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from threading import Lock
from typing import Any

import optuna_dashboard
import waitress
from optuna.storages import BaseStorage

from orchestrator.dashboard.view import App, ArtifactsView, DashboardView, Source, Sources, guarded
from orchestrator.errors import RunError
from orchestrator.runs.artifacts import stores_of
from orchestrator.runs.reading import as_type
from orchestrator.runs.records import HOME
from orchestrator.runs.run_folder import RunFolder, runs_in
from orchestrator.storage.connect import read_storage
from orchestrator.storage.urls import hidden, is_file, parse_url, remember_server

HOST = "127.0.0.1"  # the dashboard has no authentication: it is never bound wider


def serve(source: str | Path, port: int = 8080, started: Callable[[str], object] = print) -> None:
    """Serve the dashboard on 127.0.0.1 until Ctrl-C.

    The dashboard's own server handles one connection at a time, so that one half-open browser tab
    blocks all others: waitress, which has threads, serves its WSGI application instead.

    Args:
        source: a run folder, a folder of run folders, or the URL of an Optuna storage.
        port: 0 takes a free one.
        started: called with the address.

    Raises:
        RunError: if there is no run, or if the port is taken.
    """
    try:
        server = waitress.create_server(application(source), host=HOST, port=port)
    except OSError as error:
        raise RunError(
            f"port {port} of {HOST} cannot be used ({error.strerror}); choose another", "port"
        ) from error
    started(f"http://{HOST}:{server.effective_port}/dashboard")
    try:
        server.run()
    finally:
        # server.close() also closes the pipe by which workers wake it: one that is late would write
        # into whatever file has the pipe's number by then, a database among them.
        server.socket.close()


def application(source: str | Path) -> App:
    """The dashboard of a source as a WSGI application. Raises RunError if there is no run."""
    if "://" in str(source):
        return _of_storage(str(source))
    folder = Path(source)
    if not runs_in(folder):
        RunFolder(folder).existing()  # says what is missing

    turns = Lock()  # a storage opened twice would be two sources

    @cache
    def opened(url: str, file: object) -> BaseStorage:
        """The storage; another one where its file has been replaced."""
        del file
        return read_storage(url)

    def readable() -> dict[Path, Source]:
        """Studies of all runs that can be read; a damaged one hides no other."""
        sources, errors = {}, []
        for run in runs_in(folder):
            try:
                paths = RunFolder(run).existing()
                url = paths.storage
                with turns:
                    storage = opened(url, _file_of(url))
                sources[run] = Source(storage, paths.study_name)
            except RunError as error:
                errors.append(error)
        if errors and not sources:
            raise errors[0]
        return sources

    def sources() -> Sources:
        return {"" if run == folder else run.name: source for run, source in readable().items()}

    def artifacts() -> Iterator[Any]:
        return stores_of(_homes(readable()))

    return _guarded_view(sources, artifacts, lambda: [RunFolder(run).storage for run in readable()])


def _homes(sources: Mapping[Path, Source]) -> list[tuple[Mapping[str, Any], RunFolder]]:
    """Attributes and folder of each study, but for those whose server is away."""
    homes: list[tuple[Mapping[str, Any], RunFolder]] = []
    for run, source in sources.items():
        with suppress(RunError):
            homes += [(study.user_attrs, RunFolder(run)) for study in source.studies()]
    return homes


def _file_of(url: str) -> object:
    """Identity of a storage's file, if it has one: a new run may replace a deleted one."""
    if not is_file(url):
        return None
    with suppress(FileNotFoundError):
        at = Path(str(parse_url(url).database)).stat()
        return at.st_dev, at.st_ino
    return None


def _state_of(urls: Iterable[str]) -> object:
    """Fingerprint of the storages that differs after each write; None unless all are files."""
    states: list[object] = []
    for url in urls:
        if not is_file(url):
            return None
        file = Path(str(parse_url(url).database))
        for part in (file, file.with_name(f"{file.name}-wal")):  # SQLite writes to the second
            with suppress(FileNotFoundError):  # SQLite removes the second when nobody reads
                at = part.stat()
                states.append((part, at.st_ino, at.st_mtime_ns, at.st_size))
    return states


def _of_storage(url: str) -> App:
    """The dashboard of a storage, with the artifacts of its studies whose folders are here."""
    storage = read_storage(remember_server(url))

    def artifacts() -> Iterator[Any]:
        studies = [study.user_attrs for study in storage.get_all_studies()]
        return stores_of([(attributes, _home(attributes, url)) for attributes in studies])

    return _guarded_view(lambda: {"": Source(storage)}, artifacts, lambda: [url])


def _guarded_view(
    sources: Callable[[], Sources],
    artifacts: Callable[[], Iterator[Any]],
    urls: Callable[[], Iterable[str]],
) -> App:
    view = DashboardView(sources)  # type: ignore[abstract]  # what it lacks is defined to refuse
    app = optuna_dashboard.wsgi(view, artifact_store=ArtifactsView(artifacts))
    forget = app._inmemory_cache._trials_last_fetched_at.clear
    return guarded(app, lambda: _state_of(urls()), forget)


def _home(attributes: Mapping[str, Any], storage: str) -> RunFolder | None:
    """The run folder of a study with these user attributes, if it is on this machine."""
    if HOME in attributes:
        home = as_type(Mapping[str, str | int], attributes[HOME], f"the study's {HOME}")
        folder = RunFolder(Path(home.get("path", "")))
        return folder if folder.identity == home.get("folder", "") else None
    url = parse_url(storage)
    folder = RunFolder(Path(url.database or "").parent)
    return folder if folder.is_own(hidden(url)) else None
