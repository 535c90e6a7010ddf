"""Learning curves of trials, thinned for a screen, and a note on overfitting."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from statistics import median_low

from orchestrator.runs.records import RunRecord
from orchestrator.runs.run_folder import RunFolder
from orchestrator.runs.trial_files import read_curve

_LEAST, _MOST, _ALL = 16, 60, 12_000  # points kept of a curve, and of all curves of a run
_GAP = 2.0  # divergence on other rows over that on training rows that advises more text
_LEAST_FAR = 1e-4  # divergence below which overfitting does not matter


@dataclass(frozen=True)
class Curve:
    """Learning curve of one student: one row a step, stage by stage."""

    rows: Sequence[Mapping[str, str]]

    @cached_property
    def columns(self) -> dict[str, list[tuple[int, float]]]:
        """Values of each measure, numbered by row, without empty cells and text."""
        columns = {}
        for name in self.rows[0] if self.rows else ():
            numbers = ((index, _number(row[name])) for index, row in enumerate(self.rows))
            values = [(index, number) for index, number in numbers if number is not None]
            if values and name not in ("stage", "step"):
                columns[name] = values
        return columns

    @property
    def stages(self) -> dict[str, int]:
        """First row of each stage, by the stage's name."""
        starts: dict[str, int] = {}
        for index, row in enumerate(self.rows):
            starts.setdefault(row.get("stage") or "", index)
        return starts

    def thinned(self, points: int) -> dict[str, list[tuple[int, float]]]:
        """`columns` to four digits, and about this many `points`."""
        starts = [*self.stages.values(), len(self.rows)]
        points = max(4, points // len(starts[1:]))
        shown: set[int] = set()
        for start, end in pairwise(starts):
            step = max(1, math.ceil((end - start) / points))
            shown |= {*range(start, end, step), end - 1}
        return {
            name: [(index, float(f"{value:.4g}")) for index, value in values if index in shown]
            for name, values in self.columns.items()
        }


Curves = Mapping[int, Curve]  # of a run, by the numbers of its trials


def read_curves(run: RunRecord) -> dict[int, Curve]:
    """Curves of the finished trials whose files exist."""
    folder = RunFolder(run.folder)
    rows = {trial.number: read_curve(folder.trial(trial.number)) for trial in run.finished}
    return {number: Curve(curve_rows) for number, curve_rows in rows.items() if curve_rows}


def gap_note(run: RunRecord) -> str | None:
    """Remedy if the front's median model is much further from the teacher on rows not learnt."""
    worths = [(trial.result.divergence, trial.result.train_divergence) for trial in run.front]
    gaps = [(far / near, near, far) for far, near in worths if near and far and far > _LEAST_FAR]
    if len(run.finished) < 2 or not gaps or (middle := median_low(gaps))[0] < _GAP:
        return None
    more = "more text" if "unlabelled data" in run.sources else "text"
    remedy = f"{more} without labels, Task.from_files(unlabelled_file=...)"
    if run.definition["task.metric"] == "agreement":  # there are no labels to do without
        remedy = "more text"
    return (
        "the models answer like the teacher on the rows that they learnt from (divergence "
        f"{middle[1]:.2g}), less so on others ({middle[2]:.2g}): give them {remedy}"
    )


def points_each(curves: int) -> int:
    """Points for each of this many curves of a page."""
    return min(_MOST, max(_LEAST, _ALL // max(1, curves)))


def _number(text: str | None) -> float | None:
    try:
        value = float(text or "nan")
    except ValueError:
        return None
    return value if math.isfinite(value) else None
