"""optuna-dashboard on a run, on a folder of runs, or on a storage; served to this machine alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import optuna_dashboard
import waitress
from optuna.storages import BaseStorage, get_storage

from orchestrator.dashboard_guard import App, guarded
from orchestrator.dashboard_view import ArtifactsView, DashboardView, Sources
from orchestrator.errors import RunError
from orchestrator.run_folder import RunFolder
from orchestrator.storage import open_storage

HOST = "127.0.0.1"
"""The dashboard has no authentication: it is never bound wider."""


def serve(source: str | Path, port: int, started: Callable[[str], None]) -> None:
    """Serve the dashboard until Ctrl-C; `started` is called with its address.

    `source` is a run folder, a folder of run folders, or the URL of an Optuna storage. The
    dashboard's own server handles one connection at a time, so that one half-open browser tab
    blocks all others: waitress, which has threads, serves its WSGI application instead. Port 0
    takes a free one. Raises RunError if there is no run, or if the port is taken.
    """
    try:
        server = waitress.create_server(application(source), host=HOST, port=port)
    except OSError as error:
        raise RunError(
            f"port {port} of {HOST} cannot be used ({error.strerror}); choose another with --port"
        ) from error
    started(f"http://{HOST}:{server.effective_port}/dashboard")
    try:
        server.run()
    finally:
        server.close()


def application(source: str | Path) -> App:
    """The dashboard of a source as a WSGI application. Raises RunError if there is no run."""
    if "://" in str(source):
        storage = _storage_at(str(source))
        return guarded(optuna_dashboard.wsgi(DashboardView(lambda: {"": storage}, joined=False)))
    folder = Path(source)
    found = _runs_in(folder)
    if not found:
        RunFolder(folder).existing()  # says what is missing
    opened: Callable[[Path], Any] = cache(open_storage)

    def storages() -> Sources:
        return {
            "" if run == folder else run.name: opened(RunFolder(run).storage)
            for run in _runs_in(folder)
        }

    def artifacts() -> Sequence[Path]:
        return [RunFolder(run).artifacts for run in _runs_in(folder)]

    app: App = optuna_dashboard.wsgi(
        DashboardView(storages, joined=found != [folder]), artifact_store=ArtifactsView(artifacts)
    )
    return guarded(app)


def _runs_in(folder: Path) -> list[Path]:
    """The folder itself if it is a run, else the runs in it, by name."""
    if RunFolder(folder).storage.is_file():
        return [folder]
    return sorted(run.parent for run in folder.glob(f"*/{RunFolder(folder).storage.name}"))


def _storage_at(url: str) -> BaseStorage:
    path = url.removeprefix("sqlite:///")
    if path != url and not Path(path).is_file():  # opening it would make it
        raise RunError(f"'{path}' does not exist; a storage of SQLite is sqlite:///FILE")
    try:
        return get_storage(url)
    except Exception as error:  # of SQLAlchemy, of a driver, or Optuna's own
        reason = str(error).strip().splitlines()[0]
        raise RunError(f"the storage cannot be opened ({reason}); is its URL right?") from error
