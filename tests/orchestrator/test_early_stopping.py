"""Early stopping: the policies as functions, then in studies, then between workers."""

from __future__ import annotations

import math
import os
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Self

import optuna
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from optuna.distributions import IntDistribution
from optuna.trial import TrialState
from rich.console import Console

from objectives.bert.architecture import BertArchitecture
from objectives.bert.cutting import cut
from objectives.errors import UserError
from objectives.methods.fisher_search import FisherSearch
from objectives.problem import Problem
from objectives.progress import Progress
from objectives.search_method import Outcome, SearchMethod, SearchResult, Stopped
from objectives.training.stages import Stage
from orchestrator import Study
from orchestrator.early_stopping import (
    EarlyStopping,
    Hurdles,
    Point,
    SuccessiveHalving,
    ranks,
    spread,
    times_dominated,
)
from orchestrator.runs.records import RUNG, WORKER, load_optuna_study, read_run
from orchestrator.status import run_status
from orchestrator.storage.connect import open_storage
from orchestrator.workers.fleet import launch_workers
from orchestrator.workers.loop import run_study
from orchestrator.workers.progress import LaunchProgress
from orchestrator.workers.rungs import WithRungs
from tests.waiting import wait_for

WriteStudy = Callable[..., Path]

# Few values, so that equal points and equal coordinates occur.
POINTS = st.lists(
    st.tuples(st.sampled_from([0.5, 0.6, 0.7, 0.75, 0.9]), st.integers(1, 9).map(float)),
    min_size=1,
    max_size=40,
)
POLICIES = st.one_of(
    st.floats(0.05, 1).map(lambda keep: SuccessiveHalving(keep=keep)),
    st.integers(2, 12).map(lambda every: Hurdles(every=every)),
)


def dominates(one: Point, other: Point) -> bool:
    return one != other and one[0] >= other[0] and one[1] <= other[1]


def stopped_of(policy: EarlyStopping, rung: Sequence[Point]) -> list[Point]:
    """Who stops where all decide at once."""
    return [own for own in rung if policy.stops(own, rung)]


@given(POINTS)
def test_ranks_peel_front_after_front(points: list[Point]) -> None:
    ranked, left, rank = ranks(points), set(points), 0
    assert ranked.keys() == left
    while left:
        front = {own for own in left if not any(dominates(other, own) for other in left)}
        assert front == {own for own in left if ranked[own] == rank}
        left, rank = left - front, rank + 1


@given(POINTS, POLICIES)
def test_a_trial_of_rank_0_is_never_stopped(points: list[Point], policy: EarlyStopping) -> None:
    stopped = stopped_of(policy, points)
    assume(stopped)
    for own in stopped:
        assert any(dominates(other, own) for other in points)


@given(POINTS, st.floats(0.05, 1))
def test_halving_stops_at_most_its_share_and_no_fewer_than_it_must(
    points: list[Point], keep: float
) -> None:
    policy = SuccessiveHalving(keep=keep)
    stopped = stopped_of(policy, points)
    assert len(stopped) <= (1 - keep) * len(points) + 1e-6
    ranked, count = ranks(points), Counter(points)
    front = sum(count[point] for point, rank in ranked.items() if rank == 0)
    equals = max(count.values()) - 1  # equal points go on, or stop, together
    going = max(front, math.ceil(round(keep * len(points), 9)) + equals)
    assert len(points) - len(stopped) <= going
    if stopped:
        best = min(ranked[own] for own in stopped)
        assert all(ranked[own] <= best for own in points if own not in stopped)


@given(POINTS.flatmap(lambda points: st.tuples(st.just(points), st.permutations(points))))
def test_halving_decides_whatever_the_order(two: tuple[list[Point], list[Point]]) -> None:
    points, shuffled = two
    policy = SuccessiveHalving(keep=0.4)
    for own in points:
        assert policy.stops(own, points) == policy.stops(own, shuffled)


@given(POINTS, st.floats(0.1, 10), st.floats(-5, 5))
def test_halving_does_not_mind_units(points: list[Point], factor: float, shift: float) -> None:
    """FLOPs in billions or milliseconds: the same trials go on. (Powers of two: exact floats.)"""
    factor, shift = 2.0 ** round(math.log2(factor)), float(round(shift))
    policy = SuccessiveHalving(keep=0.4)
    scaled = [(metric, factor * cost + shift) for metric, cost in points]
    assert [policy.stops(own, points) for own in points] == [
        policy.stops(own, scaled) for own in scaled
    ]


def test_halving_keeps_a_rank_by_its_spread() -> None:
    """One is left to choose of three on the second front: the middle adds least."""
    front = [(0.9, 1.0)]
    second = [(0.6, 2.0), (0.7, 3.0), (0.88, 9.0)]
    assert spread(second, [*front, *second]) == [(0.6, 2.0), (0.88, 9.0), (0.7, 3.0)]
    stopped = stopped_of(SuccessiveHalving(keep=0.75), [*front, *second])
    assert stopped == [(0.7, 3.0)]


@given(POINTS)
def test_spread_takes_the_farthest_next(points: list[Point]) -> None:
    order = spread(points, points)
    assert sorted(order) == sorted(set(points))
    assert order[0][1] == min(cost for _, cost in points)


def test_halving_waits_for_nobody() -> None:
    """As trials arrive: the first goes on; then who is dominated and not of the better half."""
    policy, seen, stopped = SuccessiveHalving(keep=0.5), [], []
    for own in [(0.5, 5.0), (0.4, 6.0), (0.7, 5.0), (0.6, 4.0), (0.5, 4.5), (0.3, 9.0)]:
        seen.append(own)
        stopped.append(policy.stops(own, seen))
    assert stopped == [False, True, False, False, False, True]


def test_halving_may_stop_all_that_decide_at_once() -> None:
    earlier = [(0.5 + step / 100, 1.0 + step) for step in range(10)]
    late = [(0.1, 20.0), (0.2, 30.0)]
    policy = SuccessiveHalving(keep=0.5)
    assert [policy.stops(own, [*earlier, *late]) for own in late] == [True, True]


@given(POINTS)
def test_times_dominated(points: list[Point]) -> None:
    counted = [sum(dominates(other, own) for other in points) for own in points]
    assert times_dominated(points, points) == counted


@given(POINTS, st.integers(2, 8))
def test_a_hurdle_stands_until_enough_have_come(points: list[Point], every: int) -> None:
    policy = Hurdles(every=every)
    for end in range(1, len(points) + 1):
        setting = points[: end // every * every]
        own = points[end - 1]
        counts = times_dominated(setting, setting) if setting else []
        hurdle = sum(counts) / len(counts) if counts else math.inf
        beaten = sum(dominates(other, own) for other in setting)
        assert policy.stops(own, points[:end]) == (beaten > hurdle + 1e-12)


def test_hurdles_let_all_pass_where_all_are_equal() -> None:
    assert not stopped_of(Hurdles(every=2), [(0.5, 1.0)] * 8)


@pytest.mark.parametrize("policy", [SuccessiveHalving(), Hurdles(every=4)], ids=type)
def test_the_best_of_many_learning_curves_is_found_in_fewer_steps(policy: EarlyStopping) -> None:
    """Curves a (1 - exp(-t / b)), some of which cross, at one cost; t is 1 at the end."""
    found, shares = 0, []
    for seed in range(50):
        draw = random.Random(seed)
        curves = [(draw.uniform(0.5, 1), draw.uniform(0.1, 0.5)) for _ in range(30)]
        reported: dict[float, list[Point]] = {rung: [] for rung in policy.rungs}
        ended, steps = [], 0.0
        for limit, speed in curves:
            for rung in policy.rungs:
                own = (limit * (1 - math.exp(-rung / speed)), 1.0)
                reported[rung].append(own)
                if policy.stops(own, reported[rung]):
                    steps += rung
                    break
            else:
                steps += 1
                ended.append(limit * (1 - math.exp(-1 / speed)))
        found += max(ended) == max(a * (1 - math.exp(-1 / b)) for a, b in curves)
        shares.append(steps / len(curves))
    assert found >= 45
    assert max(shares) < 0.9


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SuccessiveHalving(rungs=()), r"rungs is \(\); it must be rising, in \(0, 1\)"),
        (lambda: SuccessiveHalving(rungs=(0.5, 0.5)), "rungs is"),
        (lambda: Hurdles(rungs=(0.5, 1.0)), "rungs is"),
        (lambda: SuccessiveHalving(keep=0), r"keep is 0; it must be in \(0, 1\]"),
        (lambda: Hurdles(every=1), "every is 1; it must be >= 2"),
    ],
)
def test_a_policy_out_of_range_is_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        make()


@dataclass(frozen=True, kw_only=True)
class Planted(SearchMethod):
    """Trials whose worth at rung and end is planted: `quality`, at a cost by `share` of neurons.

    With a folder `marks`, two processes meet there, and what the second one has is a little worse;
    it reports after the first one has.
    """

    per_slot: ClassVar[frozenset[str]] = frozenset({"quality", "share"})

    quality: int = 5
    share: int = 5
    marks: str = ""

    @classmethod
    def search(
        cls, members: Sequence[Self], problem: Problem, *, seed: int, progress: Progress
    ) -> Iterator[Outcome]:
        worse = bool(members[0].marks) and cls._second(Path(members[0].marks))
        config, shape = problem.student.config, problem.cost.shape
        progress.begin("planted", 3)
        stopped = set(progress.advance())
        costs = [problem.cost_full * member.share // 10 for member in members]
        for rung in progress.rungs:
            for slot, member in enumerate(members):
                if slot not in stopped:
                    progress.report(slot, rung, member.quality / 10 - worse / 100, costs[slot])
            stopped |= progress.advance()
            if members[0].marks:
                Path(members[0].marks, "reported").touch()
        full = BertArchitecture.full(shape)
        for slot in range(len(members)):
            yield (
                Stopped(slot)
                if slot in stopped
                else SearchResult(
                    slot=slot,
                    architecture=full,
                    model=cut(problem.student.state_dict(), config, full),
                    target_ratio=1.0,
                    tolerance=0.1,
                    curve=[{"stage": "planted", "step": 0, "loss": 1.0}],
                )
            )

    @staticmethod
    def _second(marks: Path) -> bool:
        own = marks / f"process-{os.getpid()}"
        order = marks / "order"
        with order.open("a") as file:
            if not own.exists():
                file.write(f"{own.name}\n")
                own.touch()
        wait_for("both workers at work", lambda: len(order.read_text().splitlines()) >= 2)
        second = order.read_text().splitlines()[1] == own.name
        if second:
            wait_for("a report of the first worker", (marks / "reported").exists)
        return second


def planted(study: Study, *trials: tuple[int, int], population: int = 1) -> Study:
    """The tiny study with trials of these qualities and shares, one after another."""
    return replace(
        study,
        method=Planted(),
        space={"quality": IntDistribution(0, 9), "share": IntDistribution(1, 9)},
        first=tuple({"quality": quality, "share": share} for quality, share in trials),
        trials=len(trials),
        population=population,
        early_stopping=SuccessiveHalving(rungs=(0.25, 0.5), keep=0.5),
    )


def test_stopped_trials_are_told_as_pruned_with_what_they_were_worth(
    study: Study, tmp_path: Path
) -> None:
    """The second is dominated; the third is not; the fourth neither, nor of the better half."""
    run = run_study(
        planted(study, (5, 5), (4, 6), (6, 7), (2, 9)), out=tmp_path / "run", device="cpu"
    )
    assert [trial.state for trial in run.trials] == ["finished", "stopped", "finished", "stopped"]
    full = run.unpruned.cost_full
    reported = [[(rung.share, rung.metric) for rung in trial.rungs] for trial in run.trials]
    both = [(0.25, 0.5), (0.5, 0.5)]
    assert reported == [both, [(0.25, 0.4)], [(0.25, 0.6), (0.5, 0.6)], [(0.25, 0.2)]]
    last = run.trials[1].rungs[-1]
    assert (last.cost, last.stage) == (6 * full // 10, "planted")
    assert all(trial.result is None for trial in run.trials if trial.state == "stopped")
    assert not any(name.startswith(RUNG) for t in run.trials for name in t.attributes)
    assert read_run(tmp_path / "run").trials == run.trials

    told = load_optuna_study(tmp_path / "run").get_trials()
    assert [trial.state for trial in told[:2]] == [TrialState.COMPLETE, TrialState.PRUNED]
    assert told[1].values is None
    assert (tmp_path / "run" / "trials" / "00001" / "rungs.json").read_text() == (
        '{"stopped": true, "rungs": [{"share": 0.25, "stage": "planted", "metric": 0.4, '
        f'"cost": {last.cost}}}]}}'
    )
    status = run_status(tmp_path / "run")
    assert "stopped    trial 1: 0.4000 at FLOPs ratio 0.600, after 25%" in status.lines()
    assert [row["trial"] for row in status.document()["stopped"]] == [1, 3]
    assert status.document()["stopped"][0]["metric"] == 0.4


def test_a_population_decides_together(study: Study, tmp_path: Path) -> None:
    """One by one the first would go on, whatever comes after; together the best halves do."""
    trials = ((2, 6), (4, 6), (6, 6), (8, 6))
    run = run_study(planted(study, *trials, population=4), out=tmp_path / "run", device="cpu")
    assert [trial.state for trial in run.trials] == ["stopped", "stopped", "stopped", "finished"]
    assert [len(trial.rungs) for trial in run.trials] == [1, 1, 2, 2]


def test_without_a_policy_nobody_reports(study: Study, tmp_path: Path) -> None:
    free = replace(planted(study, (5, 5), (4, 6)), early_stopping=None)
    run = run_study(free, out=tmp_path / "run", device="cpu")
    assert [trial.state for trial in run.trials] == ["finished"] * 2
    assert not any(trial.rungs for trial in run.trials)


def test_a_policy_may_come_and_go_while_a_study_runs(study: Study, tmp_path: Path) -> None:
    halving = planted(study, (5, 5), (4, 6), (3, 7))
    run_study(replace(halving, early_stopping=None), trials=1, out=tmp_path / "run", device="cpu")
    run_study(halving, trials=2, out=tmp_path / "run", device="cpu")
    hurdles = replace(halving, early_stopping=Hurdles(rungs=(0.25,), every=2))
    run = run_study(hurdles, trials=3, out=tmp_path / "run", device="cpu")
    # The first never reported; the second was alone at its rung; the third is worse than the mean.
    assert [trial.state for trial in run.trials] == ["finished", "finished", "stopped"]


@pytest.mark.slow
def test_the_real_search_stops_and_what_finishes_is_the_same(study: Study, tmp_path: Path) -> None:
    """Random knobs, the same in both; stopping costs no finished trial a digit."""
    method = FisherSearch(
        batch_size=16, tolerance=0.2, stages=(Stage(name="recover", epochs=2, learning_rate=1e-3),)
    )
    space = {name: study.space[name] for name in ("target_ratio", "flops_weight")}
    whole = replace(study, method=method, space=space, first=(), trials=8, sampler="random")
    halving = SuccessiveHalving(rungs=(0.25, 0.5), keep=0.25)
    free = run_study(whole, out=tmp_path / "free", device="cpu")
    run = run_study(replace(whole, early_stopping=halving), out=tmp_path / "run", device="cpu")
    states = Counter(trial.state for trial in run.trials)
    assert states["stopped"] > 0
    assert states["finished"] > 0
    for trial, other in zip(run.trials, free.trials, strict=True):
        assert trial.knobs == other.knobs
        if trial.result is not None:
            assert other.result is not None
            assert (trial.result.metric, trial.result.cost) == (
                other.result.metric,
                other.result.cost,
            )
            assert {rung.cost for rung in trial.rungs} <= {trial.result.cost}
        else:
            assert trial.rungs


def rungs_for(study: optuna.Study, trials: Sequence[optuna.Trial], tiny: Study) -> WithRungs:
    policy = SuccessiveHalving(rungs=(0.5,), keep=0.5)
    return WithRungs(policy, study, trials, LaunchProgress(tiny, Console(quiet=True)))


def test_workers_see_each_others_rungs(study: Study, tmp_path: Path) -> None:
    """Two connections to one storage; failed trials count no more, one that was given up ends."""
    url = f"sqlite:///{tmp_path}/study.db"
    one = optuna.create_study(
        storage=open_storage(url), study_name="s", directions=["maximize", "minimize"]
    )
    other = optuna.load_study(storage=open_storage(url), study_name="s")
    first, second, third = one.ask(), other.ask(), other.ask()
    here, there = rungs_for(one, [first], study), rungs_for(other, [second, third], study)
    here.report(0, 0.5, 0.8, 5.0)
    assert here.advance() == set()
    there.report(0, 0.5, 0.7, 6.0)
    assert there.advance() == {0}
    assert there.advance() == set()
    one.tell(first, state=TrialState.FAIL)
    other.tell(second, state=TrialState.FAIL)
    there.report(1, 0.5, 0.6, 6.0)
    assert there.advance() == set()
    one.tell(third.number, state=TrialState.FAIL)
    there.report(1, 0.5, 0.6, 6.0)  # others took its worker for dead
    assert there.advance() == {1}


@pytest.mark.slow
def test_two_workers_stop_each_others_trials(study: Study, tmp_path: Path) -> None:
    """Within one worker all trials are equal, and so of rank 0; those of one are a little worse."""
    marks = tmp_path / "marks"
    marks.mkdir()
    both = replace(
        planted(study, (5, 5)),
        method=Planted(marks=str(marks)),
        space={"quality": IntDistribution(5, 5), "share": IntDistribution(5, 5)},
        trials=8,
    )
    run = launch_workers(both, 2, out=tmp_path / "run", device="cpu", console=Console(quiet=True))
    workers = {trial.attributes[WORKER]: trial.rungs[0].metric for trial in run.trials}
    assert sorted(workers.values()) == [0.49, 0.5]
    assert {t.rungs[0].metric for t in run.trials if t.state == "stopped"} == {0.49}
