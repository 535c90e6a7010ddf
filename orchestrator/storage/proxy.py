"""Optuna's gRPC proxy in front of a storage: very many workers share its few connections."""

import socket
import warnings
from collections.abc import Callable

import optuna
from optuna.exceptions import ExperimentalWarning
from optuna.storages import get_storage, run_grpc_proxy_server

from orchestrator.errors import RunError
from orchestrator.storage.connect import open_storage
from orchestrator.storage.urls import kind_of, parse_url, remember_server

HOST = "127.0.0.1"
"""The proxy knows no users and no encryption: other machines reach it best through a tunnel."""


def serve_storage(url: str, port: int, started: Callable[[str], None], host: str = HOST) -> None:
    """Serve a storage until Ctrl-C; `started` is called with the URL for its workers. Raises
    RunError for a storage that cannot be served, or a port that is taken."""
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
