"""A launch in this process, without a report, by the keywords of its options."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from orchestrator.runs.records import RunRecord
from orchestrator.study import Study
from orchestrator.workers import loop
from orchestrator.workers.loop import LaunchOptions
from orchestrator.workers.worker import Callback


def run_study(
    study: Study,
    out: str | Path | None = None,
    *,
    device: str = "cpu",
    callbacks: Sequence[Callback] = (),
    console: Console | None = None,
    **options: Any,
) -> RunRecord:
    """See `orchestrator.workers.loop.run_study`."""
    asked = LaunchOptions(out=out, device=device, **options)
    return loop.run_study(study, asked, callbacks=callbacks, console=console)
