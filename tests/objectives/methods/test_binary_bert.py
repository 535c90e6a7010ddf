"""BinaryBERT: half of a student in ternary weights, which are split into binary ones."""

from dataclasses import replace

import numpy as np
import pytest

from objectives.measures.bits import bytes_of
from objectives.methods.binary_bert import BinaryBert
from objectives.methods.ternary_bert import TernaryBert
from objectives.problem import Problem
from objectives.pruning.staged_method import StagedMethod
from objectives.search_method import SearchResult
from objectives.students.bert.packing import PackedLinear
from objectives.training.stages import Stage
from tests.conftest import TINY
from tests.objectives.conformance import (
    PruningConformance,
    RecordingProgress,
    assert_same,
    run,
    search_alone,
)
from tests.objectives.pruning.test_few_bits import far
from tests.objectives.pruning.test_staged_search import fuse_as_a_gpu_does

TERNARY = Stage(name="ternary", epochs=0.5, learning_rate=1e-3, quantised=True)
BINARY = replace(TERNARY, name="binary")
QUICK = BinaryBert(target_ratio=0.8, batch_size=16, tolerance=0.1, stages=(TERNARY, BINARY))


class TestConformance(PruningConformance):
    quick = QUICK


def test_by_default_half_of_the_student_is_split(problem: Problem) -> None:
    own = BinaryBert()
    stages = tuple(replace(stage, epochs=0.1) for stage in own.stages)
    found = search_alone(replace(own, stages=stages, tolerance=0.1), problem)
    assert problem.budget.cost.exact(found.architecture) <= 0.5 * problem.budget.full
    assert {(layer.weight_bits, layer.halves) for layer in found.architecture.layers} == {(1, 2)}
    assert found.architecture.sizes()["weight_bits"] == (2,) * TINY.layers
    kinds = {(m.bits, m.halves) for m in found.model.modules() if isinstance(m, PackedLinear)}
    assert kinds == {(1, 2)}


def test_a_split_student_begins_at_the_loss_of_the_ternary_one(problem: Problem) -> None:
    """The first batch of the binary stage is a batch of the ternary one's last weights."""
    still = replace(BINARY, epochs=0.1, learning_rate=1e-12)
    found = search_alone(replace(QUICK, stages=(TERNARY, still)), problem)
    bits = {"weight_bits": 2, "stages": (TERNARY,), "target_ratio": 0.8}
    ternary = search_alone(TernaryBert(batch_size=16, tolerance=0.1, **bits), problem)  # type: ignore[arg-type]
    assert far(found, problem) == pytest.approx(far(ternary, problem), abs=1e-5)


@pytest.mark.slow
def test_splitting_ends_better_than_binary_from_the_start(problem: Problem) -> None:
    """At equal epochs and nearly equal bytes, over pairs with one order of the batches each."""
    common = {"batch_size": 16, "embedding_bits": 8}
    learn = Stage(name="binary", epochs=6, learning_rate=3e-3, quantised=True)
    halves = (replace(learn, name="ternary", epochs=3), replace(learn, epochs=3))
    arms: tuple[StagedMethod, StagedMethod] = (
        TernaryBert(weight_bits=1, stages=(learn,), **common),  # type: ignore[arg-type]
        BinaryBert(stages=halves, tolerance=0.1, **common),  # type: ignore[arg-type]
    )
    gains = []
    for seed in (0, 1, 2):
        scratch, split = (
            next(type(arm).search([arm], problem, seed=seed, progress=RecordingProgress()))
            for arm in arms
        )
        assert isinstance(scratch, SearchResult)
        assert isinstance(split, SearchResult)
        gains.append(far(scratch, problem) - far(split, problem))
    assert np.mean(gains) > 0, gains
    assert min(gains) > -0.5 * np.mean(gains), gains


def test_a_share_of_the_bytes_splits_the_layers_that_gain_most(problem: Problem) -> None:
    sizes, split = [], []
    for share in (0.0, 0.5, 1.0):
        found = search_alone(replace(QUICK, target_ratio=1.0, split=share), problem)
        sizes.append(bytes_of(found.model.state_dict()))
        split.append([layer.halves for layer in found.architecture.layers])
    assert split[0] == [None] * TINY.layers
    assert split[2] == [2] * TINY.layers
    assert 0 < split[1].count(2) < TINY.layers
    assert sizes[0] < sizes[1] <= sizes[0] + 0.5 * (sizes[2] - sizes[0])


def test_students_that_a_gpu_would_train_together_are_split_one_by_one(
    problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    members = [replace(QUICK, target_ratio=1.0, split=share) for share in (1.0, 0.5)]
    alone = [search_alone(member, problem) for member in members]
    fuse_as_a_gpu_does(monkeypatch)
    for one, other in zip(alone, run(members, problem), strict=True):
        assert_same(one, other, problem)
