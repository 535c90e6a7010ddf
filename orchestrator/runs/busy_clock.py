"""Time in which a study was running."""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate

from orchestrator.runs.records import TrialRecord


class BusyClock:
    """Seconds in which any trial ran, up to a moment: nights between launches do not count."""

    def __init__(self, trials: Sequence[TrialRecord]):
        times = [time for t in trials for time in (t.started, t.ended) if time is not None]
        latest = max(times, default=0.0)
        begun = [(t.started, t.ended) for t in trials if t.started is not None]
        spans = sorted((start, latest if end is None else end) for start, end in begun)
        busy: list[tuple[float, float]] = []
        for start, end in spans:
            if busy and start <= busy[-1][1]:
                busy[-1] = (busy[-1][0], max(end, busy[-1][1]))
            else:
                busy.append((start, end))
        self._starts, self._ends = [start for start, _ in busy], [end for _, end in busy]
        self._before = list(accumulate((end - start for start, end in busy), initial=0.0))

    @property
    def now(self) -> float:
        """Seconds up to the last recorded moment."""
        return self._before[-1]

    def __bool__(self) -> bool:
        return bool(self._starts)

    def __call__(self, moment: float) -> float:
        begun = bisect_left(self._starts, moment)
        if not begun:
            return 0.0
        return self._before[begun] - max(0.0, self._ends[begun - 1] - moment)
