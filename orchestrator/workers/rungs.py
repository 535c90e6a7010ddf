"""The rungs of one population: reports go to the storage, the policy says who stops."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import asdict

import optuna
from optuna.exceptions import UpdateFinishedTrialError
from optuna.trial import TrialState

from orchestrator.early_stopping import EarlyStopping, Point
from orchestrator.runs.records import RUNG, Rung
from orchestrator.workers.progress import LaunchProgress


class WithRungs:
    """The `Progress` of a population whose students may stop early; other calls are passed on.

    What a trial reports is stored as an attribute of it, so that all workers see it and it outlives
    a killed study. Trials that report in one step of a population are decided on together.
    """

    def __init__(
        self,
        policy: EarlyStopping,
        outer: optuna.Study,
        trials: Sequence[optuna.Trial],
        shown: LaunchProgress,
    ):
        """`trials` are those of the population, by slot."""
        self._policy, self._outer, self._trials, self._shown = policy, outer, trials, shown
        self._stage = ""
        self._reports: dict[int, tuple[float, Point]] = {}
        self._stopping: set[int] = set()

    @property
    def rungs(self) -> Sequence[float]:
        """Those of the policy."""
        return self._policy.rungs

    def note(self, line: str) -> None:
        """Shown."""
        self._shown.note(line)

    def begin(self, stage: str, steps: int, done: int = 0) -> None:
        """Shown."""
        self._stage = stage
        self._shown.begin(stage, steps, done)

    def report(self, slot: int, rung: float, metric: float, cost: float) -> None:
        """Keep what a student is worth at a rung; `advance` decides."""
        reported = Rung(share=rung, stage=self._stage, metric=metric, cost=cost)
        try:
            self._trials[slot].set_user_attr(_name(rung), asdict(reported))
            self._reports[slot] = rung, (metric, cost)
        except UpdateFinishedTrialError:  # the others took this worker for dead, and try it again
            self._stopping.add(slot)

    def advance(self) -> Set[int]:
        """The slots that the policy stops, of those that reported in this step."""
        stopping = self._stopping | self._shown.advance()
        for rung in {rung for rung, _ in self._reports.values()}:
            own = {slot: point for slot, (at, point) in self._reports.items() if at == rung}
            points = self._points(_name(rung), own)
            stopping |= {slot for slot, point in own.items() if self._policy.stops(point, points)}
        self._reports, self._stopping = {}, set()
        return stopping

    def _points(self, name: str, own: Mapping[int, Point]) -> list[Point]:
        """What trials reported at a rung, by number, with these slots' own.

        Failed ones count no more: some are tried again.
        """
        points = {
            trial.number: (trial.user_attrs[name]["metric"], trial.user_attrs[name]["cost"])
            for trial in self._outer.get_trials(deepcopy=False)
            if name in trial.user_attrs and trial.state is not TrialState.FAIL
        }
        points |= {self._trials[slot].number: point for slot, point in own.items()}
        return [points[number] for number in sorted(points)]


def _name(rung: float) -> str:
    return f"{RUNG}{rung:.4f}"
