"""Polish: models of trials go on from where they are, as they were cut."""

import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from objectives.measures.evaluate import predict
from objectives.methods.baselines.magnitude_pruning import MagnitudePruning
from objectives.methods.baselines.random_pruning import RandomPruning
from objectives.methods.polish import Polish
from objectives.problem import Problem
from objectives.search_method import SearchFailure, SearchMethod, SearchResult
from objectives.students.bert.exporting import save_model
from objectives.training.stages import Stage
from tests.objectives.conformance import SearchMethodConformance, run, search_alone

STAGE = Stage(name="polish", epochs=0.5, learning_rate=1e-3)
RATIOS = (0.7, 0.5, 0.4)


def write_trials(folder: Path, results: Iterable[SearchResult]) -> str:
    """A folder of trials with these results."""
    for number, result in enumerate(results):
        trial = folder / f"{number:05d}"
        trial.mkdir(parents=True)
        (trial / "architecture.json").write_text(result.architecture.to_json())
        save_model(result.model, trial / "model")
    return str(folder)


def cut_to(ratio: float, problem: Problem) -> SearchResult:
    return search_alone(RandomPruning(target_ratio=ratio, stages=()), problem)


@pytest.fixture(scope="session")
def quick(problem: Problem, tmp_path_factory: pytest.TempPathFactory) -> Polish:
    results = [cut_to(ratio, problem) for ratio in RATIOS]
    trials = write_trials(tmp_path_factory.mktemp("polish"), results)
    return Polish(trials=trials, batch_size=16, stages=(STAGE,))


class TestConformance(SearchMethodConformance):
    @pytest.fixture(scope="class")
    @classmethod
    def method(cls, quick: Polish) -> SearchMethod:
        return quick

    @pytest.fixture(scope="class")
    @classmethod
    def population(cls, quick: Polish) -> list[SearchMethod]:
        return [replace(quick, trial=number) for number in range(len(RATIOS))]


def test_a_model_keeps_its_units_and_comes_nearer_to_its_teacher(
    quick: Polish, problem: Problem
) -> None:
    parent = cut_to(RATIOS[1], problem)
    found = search_alone(replace(quick, trial=1), problem)
    assert found.architecture == parent.architecture
    assert found.target_ratio == pytest.approx(RATIOS[1], abs=0.05)
    wanted, before, after = (
        predict(model, problem.train, "cpu").softmax(-1)
        for model in (problem.teacher, parent.model, found.model)
    )
    assert (after - wanted).abs().mean() < 0.7 * (before - wanted).abs().mean()


def test_without_stages_a_model_stays_as_it_was(quick: Polish, problem: Problem) -> None:
    found = search_alone(replace(quick, trial=2, stages=()), problem)
    state = cut_to(RATIOS[2], problem).model.state_dict()
    for name, weight in found.model.state_dict().items():
        assert torch.equal(weight, state[name]), name


@pytest.mark.parametrize("ratio", [0.7, 1.0])
def test_a_sparse_model_learns_and_its_zeros_stay(
    quick: Polish, problem: Problem, tmp_path: Path, ratio: float
) -> None:
    sparse = MagnitudePruning(sparsity=0.5, target_ratio=ratio, stages=())
    parent = search_alone(sparse, problem)
    trials = write_trials(tmp_path, [parent])
    found = search_alone(replace(quick, trials=trials), problem)
    before, after = (
        result.model.bert.encoder.layer[0].intermediate.dense.weight for result in (parent, found)
    )
    assert torch.equal(before == 0, after == 0)
    assert (before == 0).float().mean() == pytest.approx(0.5, abs=0.05)
    assert not torch.equal(before, after)


def why_not(method: Polish, problem: Problem) -> str:
    """Why it has no result."""
    (outcome,) = run([method], problem)
    assert isinstance(outcome, SearchFailure)
    return outcome.reason


@pytest.mark.parametrize("few", [{"weight_bits": 4}, {"vocabulary": 0.5}])
def test_a_model_of_few_bits_or_pieces_is_refused(
    problem: Problem, tmp_path: Path, few: dict[str, Any]
) -> None:
    result = search_alone(RandomPruning(target_ratio=0.5, stages=(), **few), problem)
    polish = Polish(trials=write_trials(tmp_path, [result]), stages=(STAGE,))
    assert "trial 0 has few bits or word pieces of its own" in why_not(polish, problem)


def test_what_is_no_trial_is_refused(quick: Polish, problem: Problem, tmp_path: Path) -> None:
    reason = why_not(replace(quick, trial=9), problem)
    assert re.search(r"00009' has no trial's model to polish \(.*No such", reason)
    (tmp_path / "00000").mkdir()
    (tmp_path / "00000" / "architecture.json").write_text("[]")
    reason = why_not(replace(quick, trials=str(tmp_path)), problem)
    assert "no trial's model to polish" in reason


def test_the_others_go_on_beside_what_is_no_trial(quick: Polish, problem: Problem) -> None:
    members = [replace(quick, trial=number) for number in (9, 1, 2)]
    outcomes = run(members, problem)
    assert isinstance(outcomes[0], SearchFailure)
    assert [outcome.slot for outcome in outcomes] == [0, 1, 2]
    found = [outcome for outcome in outcomes if isinstance(outcome, SearchResult)]
    parents = [cut_to(RATIOS[number], problem).architecture for number in (1, 2)]
    assert [outcome.architecture for outcome in found] == parents
