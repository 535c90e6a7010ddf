"""The outer loop: the Study, its launch, its workers and storages, the command line. Knows optuna.

What loads torch is imported when it is asked for: a front or a report reads a run without it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from orchestrator.command.compressing import Compressed, compress
    from orchestrator.command.launching import launch
    from orchestrator.command.polishing import polish
    from orchestrator.command.run import Run, load_run
    from orchestrator.dashboard.server import serve
    from orchestrator.errors import RunError
    from orchestrator.study import Study
    from orchestrator.study_file import load_study
    from orchestrator.workers.loop import work

__all__ = [
    "Compressed",
    "Run",
    "RunError",
    "Study",
    "compress",
    "launch",
    "load_run",
    "load_study",
    "polish",
    "serve",
    "work",
]

_HOMES = {
    "Compressed": "orchestrator.command.compressing",
    "compress": "orchestrator.command.compressing",
    "serve": "orchestrator.dashboard.server",
    "RunError": "orchestrator.errors",
    "launch": "orchestrator.command.launching",
    "polish": "orchestrator.command.polishing",
    "Run": "orchestrator.command.run",
    "load_run": "orchestrator.command.run",
    "Study": "orchestrator.study",
    "load_study": "orchestrator.study_file",
    "work": "orchestrator.workers.loop",
}
"""Where each of them is, imported when it is asked for."""


if not TYPE_CHECKING:  # else mypy would take any name for one of these

    def __getattr__(name: str) -> Any:
        if name in _HOMES:
            return getattr(import_module(_HOMES[name]), name)
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
