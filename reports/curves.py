"""Learning curves of trials, thinned to what a screen shows."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from orchestrator.runs.records import RunRecord
from orchestrator.runs.run_folder import RunFolder
from orchestrator.runs.trial_files import read_curve

_LEAST, _MOST, _ALL = 16, 60, 12_000
"""Points kept of a curve, whose stages share them, and of all curves of a run."""


@dataclass(frozen=True)
class Curve:
    """What a method measured while it trained one student: one row a step, stage by stage."""

    rows: Sequence[Mapping[str, str]]

    @cached_property
    def columns(self) -> dict[str, list[tuple[int, float]]]:
        """Of each measure its values, numbered by row; empty cells and words are left out."""
        names = [*self.rows[0]] if self.rows else []
        found = {
            name: [
                (place, value)
                for place, row in enumerate(self.rows)
                if (value := _number(row[name])) is not None
            ]
            for name in names
            if name not in ("stage", "step")
        }
        return {name: values for name, values in found.items() if values}

    @property
    def stages(self) -> dict[str, int]:
        """The stages by the row they start with."""
        starts: dict[str, int] = {}
        for place, row in enumerate(self.rows):
            starts.setdefault(row.get("stage") or "", place)
        return starts

    def thinned(self, points: int) -> dict[str, list[tuple[int, float]]]:
        """`columns` to four digits, and about so many `points`."""
        starts = [*self.stages.values(), len(self.rows)]
        points = max(4, points // len(starts[1:]))
        kept: set[int] = set()
        for start, end in pairwise(starts):
            step = max(1, math.ceil((end - start) / points))
            kept |= {*range(start, end, step), end - 1}
        return {
            name: [(place, float(f"{value:.4g}")) for place, value in values if place in kept]
            for name, values in self.columns.items()
        }


Curves = Mapping[int, Curve]
"""Of one run, by the numbers of its trials."""


def read_curves(run: RunRecord) -> dict[int, Curve]:
    """The curves of the finished trials whose files are there."""
    folder = RunFolder(run.folder)
    rows = {trial.number: read_curve(folder.trial(trial.number)) for trial in run.finished}
    return {number: Curve(own) for number, own in rows.items() if own}


def points_each(curves: int) -> int:
    """Points that a page has room for in each of so many curves."""
    return min(_MOST, max(_LEAST, _ALL // max(1, curves)))


def _number(text: str | None) -> float | None:
    try:
        value = float(text or "nan")
    except ValueError:
        return None
    return value if math.isfinite(value) else None
