"""From a run to one HTML page, and from a point of its front to a model folder. Makes no trial.

What it writes goes to the run's folder or where the user says, never here.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from reports.choice import choose
    from reports.exporting.export import Exported, export
    from reports.exporting.hub import push
    from reports.page.page import write_report
    from reports.page.picture import front_image
    from reports.speed import bench_front, keep_speeds

__all__ = [
    "Exported",
    "bench_front",
    "choose",
    "export",
    "front_image",
    "keep_speeds",
    "push",
    "write_report",
]

_HOMES = {
    "choose": "reports.choice",
    "Exported": "reports.exporting.export",
    "export": "reports.exporting.export",
    "push": "reports.exporting.hub",
    "write_report": "reports.page.page",
    "front_image": "reports.page.picture",
    "bench_front": "reports.speed",
    "keep_speeds": "reports.speed",
}
"""Where each of them is, imported when it is asked for."""


if not TYPE_CHECKING:  # else mypy would take any name for one of these

    def __getattr__(name: str) -> Any:
        if name in _HOMES:
            return getattr(import_module(_HOMES[name]), name)
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
