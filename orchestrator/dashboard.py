"""optuna-dashboard on a run, served to this machine alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import optuna_dashboard
import waitress
from optuna.artifacts import FileSystemArtifactStore

from orchestrator.errors import RunError
from orchestrator.run_folder import RunFolder
from orchestrator.storage import open_storage

HOST = "127.0.0.1"
"""The dashboard has no authentication, and may delete what it shows: it is never bound wider."""


def serve(run: Path, port: int, started: Callable[[str], None]) -> None:
    """Serve the dashboard of a run until Ctrl-C; `started` is called with its address.

    The dashboard's own server handles one connection at a time, so that one half-open browser tab
    blocks all others: waitress, which has threads, serves its WSGI application instead. Port 0
    takes a free one. Raises RunError if there is no run, or if the port is taken.
    """
    folder = RunFolder(run).existing()
    application = optuna_dashboard.wsgi(
        open_storage(folder.storage), artifact_store=FileSystemArtifactStore(folder.artifacts)
    )
    try:
        server = waitress.create_server(application, host=HOST, port=port)
    except OSError as error:
        raise RunError(
            f"port {port} of {HOST} cannot be used ({error.strerror}); choose another with --port"
        ) from error
    started(f"http://{HOST}:{server.effective_port}/dashboard")
    try:
        server.run()
    finally:
        server.close()
