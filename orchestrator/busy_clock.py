"""The time in which a study was at work."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from orchestrator.records import TrialRecord


class BusyClock:
    """Seconds in which at least one trial ran, up to a moment.

    The night between two launches is left out. False if no trial has a time.
    """

    def __init__(self, trials: Sequence[TrialRecord]):
        times = [time for t in trials for time in (t.started, t.ended) if time]
        latest = max(times, default=None)
        spans = sorted((t.started, t.ended or latest) for t in trials if t.started)
        self._busy: list[tuple[datetime, datetime]] = []
        for start, end in spans:
            assert end is not None
            if self._busy and start <= self._busy[-1][1]:
                self._busy[-1] = (self._busy[-1][0], max(end, self._busy[-1][1]))
            else:
                self._busy.append((start, end))

    @property
    def now(self) -> float:
        """Seconds up to the last thing that is known."""
        return self(self._busy[-1][1]) if self._busy else 0.0

    def __bool__(self) -> bool:
        return bool(self._busy)

    def __call__(self, moment: datetime) -> float:
        return sum(
            (min(moment, end) - start).total_seconds()
            for start, end in self._busy
            if start < moment
        )
