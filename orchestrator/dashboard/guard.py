"""What stands between a browser and optuna-dashboard, which asks nobody who they are.

A WSGI application around its own. It refuses what would change a run, answers to this machine's
name alone (else any web page could read the runs through a name of its own that leads here), lets
no artifact run as a page, and counts no trial as best that missed its budget.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from orchestrator.optuna_private import non_domination_ranks

Environ = dict[str, Any]
StartResponse = Callable[..., Any]
App = Callable[[Environ, StartResponse], Iterable[bytes]]

_HERE = ("127.0.0.1", "localhost")
_READS = ("GET", "HEAD", "OPTIONS")
_NOTE = re.compile(r"/api/studies/\d+(/\d+)?/note")
_PAGES = ("/dashboard", "/static/", "/api/")
"""What is the dashboard's own; all else may be an artifact."""
_DETAIL = re.compile(r"/api/studies/\d+")
_SAFE = [
    ("X-Content-Type-Options", "nosniff"),
    # Sandboxed: a page among the artifacts opens without scripts and without this origin.
    ("Content-Security-Policy", "sandbox; default-src 'none'; img-src 'self'; style-src 'none'"),
]


def guarded(app: App) -> App:
    """The dashboard's application, guarded."""

    def answer(environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        path, method = environ.get("PATH_INFO", ""), environ.get("REQUEST_METHOD", "GET")
        if not path.isascii():  # it would be routed without what is no UTF-8 in it
            return _refuse(start_response, "this is not an address of the dashboard")
        if environ.get("HTTP_HOST", "").partition(":")[0] not in _HERE:
            return _refuse(start_response, "the dashboard only answers at 127.0.0.1 and localhost")
        if method not in _READS and not (method == "PUT" and _NOTE.fullmatch(path)):
            return _refuse(
                start_response,
                "this dashboard shows runs and keeps notes; delete a run by deleting its folder",
            )
        if method == "GET" and _DETAIL.fullmatch(path):
            return _detail(app, environ, start_response)
        own = path == "/" or path.startswith(_PAGES)
        return app(environ, start_response if own else _with_safe_headers(start_response))

    return answer


def _refuse(start_response: StartResponse, reason: str) -> Iterable[bytes]:
    body = json.dumps({"reason": reason}).encode()
    headers = [("Content-Type", "application/json"), ("Content-Length", str(len(body)))]
    start_response("403 Forbidden", headers)
    return [body]


def _with_safe_headers(start_response: StartResponse) -> StartResponse:
    def start(status: str, headers: list[tuple[str, str]], *rest: Any) -> Any:
        kept = [(k, v) for k, v in headers if k.lower() != "access-control-allow-origin"]
        return start_response(status, kept + _SAFE, *rest)

    return start


def _detail(app: App, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
    """A study with its best trials among the feasible ones. All trials are asked for, whichever the
    browser lacks: the best may be older than these."""
    told: dict[str, Any] = {}

    def start(status: str, headers: list[tuple[str, str]], *rest: Any) -> None:
        told.update(status=status, headers=headers)

    after = re.fullmatch(r"after=(\d+)", environ.get("QUERY_STRING", ""))
    body = b"".join(app({**environ, "QUERY_STRING": ""} if after else environ, start))
    if told["status"].startswith("200"):
        study = json.loads(body)
        study["best_trials"] = _best(study["trials"], study["directions"])
        study["trials"] = study["trials"][int(after[1]) if after else 0 :]
        body = json.dumps(study).encode()
    headers = [(k, v) for k, v in told["headers"] if k.lower() != "content-length"]
    start_response(told["status"], [*headers, ("Content-Length", str(len(body)))])
    return [body]


def _best(trials: list[Mapping[str, Any]], directions: list[str]) -> list[Mapping[str, Any]]:
    """The feasible trials that no other feasible one dominates. In a run each trial has constraints
    but for those of another program."""
    signs = [-1 if direction == "maximize" else 1 for direction in directions]
    constrained = any(trial["constraints"] for trial in trials)
    feasible = [
        trial
        for trial in trials
        if trial["state"] == "Complete"
        and bool(trial["constraints"]) == constrained
        and all(value <= 0 for value in trial["constraints"])
    ]
    values = [[float(value) for value in trial["values"]] for trial in feasible]
    losses = np.array(values).reshape(-1, len(signs)) * signs
    ranks = non_domination_ranks(losses, np.zeros(len(feasible)))
    return [trial for trial, rank in zip(feasible, ranks, strict=True) if rank == 0]
