"""The time in which a study was at work."""

from __future__ import annotations

from orchestrator.runs.busy_clock import BusyClock
from orchestrator.runs.records import TrialRecord

START = 1_795_255_200.0


def at(start: int | None, end: int | None) -> TrialRecord:
    """A trial that ran from one second to another."""
    started, ended = (None if second is None else START + second for second in (start, end))
    return TrialRecord(
        number=0, state="running", knobs={}, result=None, failure=None, started=started, ended=ended
    )


def test_the_clock_leaves_out_the_time_between_launches() -> None:
    clock = BusyClock([at(0, 10), at(5, 20), at(1000, 1010), at(1005, None)])
    seconds = [clock(START + s) for s in (-1, 0, 7, 20, 500, 1000, 1004, 2000)]
    assert seconds == [0, 0, 7, 20, 20, 20, 24, 30]
    assert clock.now == 30


def test_without_times_it_says_so() -> None:
    clock = BusyClock([at(None, None)])
    assert not clock
    assert (clock.now, clock(START)) == (0, 0)
