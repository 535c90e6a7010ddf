"""The outer loop: the Study, its launch, its storage, the command line. Knows optuna.

`Study` and `launch` load torch, so they are imported when they are asked for: a front or a report
reads a run without them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from orchestrator.loop import launch
    from orchestrator.study import Study

__all__ = ["Study", "launch"]


def __getattr__(name: str) -> Any:
    if name == "Study":
        from orchestrator.study import Study

        return Study
    if name == "launch":
        from orchestrator.loop import launch

        return launch
    raise AttributeError(f"module 'orchestrator' has no attribute '{name}'")
