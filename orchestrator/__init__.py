"""The outer loop: the Study, its launch, its workers and storages, the command line. Knows optuna.

What loads torch is imported when it is asked for: a front or a report reads a run without it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from orchestrator.study import Study
    from orchestrator.workers.fleet import launch_workers
    from orchestrator.workers.loop import launch, work

__all__ = ["Study", "launch", "launch_workers", "work"]

_HOMES = {
    "Study": "study",
    "launch": "workers.loop",
    "launch_workers": "workers.fleet",
    "work": "workers.loop",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"orchestrator.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'orchestrator' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
