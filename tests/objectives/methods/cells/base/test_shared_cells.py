"""One super-net for a run: trained once, resumed after a kill, and what a trial takes of it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from maskfront import CellSearch, UserError
from objectives.measures.evaluate import divergence, predict
from objectives.methods.cells.base.shared_cells import SharedCells, shared_net
from objectives.methods.cells.base.super_net import SuperNet
from objectives.problem import Problem
from objectives.search_method import SearchFailure, SearchResult
from objectives.students.cells.cell_classifier import CellForSequenceClassification
from objectives.students.cells.genotype import Genotype
from objectives.students.cells.graph import Graph, Node
from objectives.students.cells.graph_space import GraphSpace
from objectives.training.fitting import Shared
from tests.objectives.conformance import (
    KilledAt,
    KilledError,
    RecordingProgress,
    logits_of,
    run,
    search_alone,
)

SPACE = GraphSpace(nodes=2, operations=("conv3", "gated", "identity", "none"))
SHARED = SharedCells(space=SPACE, epochs=3, batch_size=16, learning_rate=1e-2)
METHOD = CellSearch(width=16, operations=("conv3",), epochs=0, batch_size=16, shared=SHARED)


def net_of(problem: Problem, progress: RecordingProgress, **changes: Any) -> Shared[SuperNet]:
    shared = replace(SHARED, **changes)
    return shared_net(shared, Genotype(16), problem, progress, seed=3)


def test_it_is_trained_once_for_a_run(fresh: Problem) -> None:
    progress = RecordingProgress()
    assert isinstance(run([METHOD], fresh, progress)[0], SearchResult)
    assert progress.taken == progress.wanted == [45]
    graph = Graph((Node((0,), ("gated",)), Node((0, 1), ("conv3", "identity"))))
    other = replace(METHOD, operations=(), nodes=graph.nodes)
    again = RecordingProgress()
    (found,) = run([other], replace(fresh), again)  # another launch
    assert again.wanted == []
    assert isinstance(found, SearchResult)
    assert found.architecture.graph == graph.canonical()
    assert found.curve[-1]["stage"] == "super-net"


def test_a_killed_training_goes_on_to_the_same_weights(fresh: Problem, tmp_path: Path) -> None:
    wanted = net_of(replace(fresh, cache=tmp_path / "other"), RecordingProgress())
    for killed_at, done in ((20, 0), (40, 15)):
        progress = KilledAt(killed_at)
        with pytest.raises(KilledError):
            net_of(fresh, progress)
        assert progress.began == [done]
    progress = RecordingProgress()
    found = net_of(fresh, progress)
    assert progress.began == [30]
    assert found.curve == wanted.curve
    state = wanted.model.state_dict()
    assert all(state[name].equal(weight) for name, weight in found.model.state_dict().items())


def test_a_trial_is_what_the_super_net_says(fresh: Problem) -> None:
    found = search_alone(METHOD, fresh)
    net = net_of(fresh, RecordingProgress()).model
    batch = next(fresh.alpha.in_order(len(fresh.alpha), "cpu"))
    weights = SPACE.one_hot(SPACE.choices(Graph.chain(["conv3"]).canonical()))
    with torch.no_grad():
        wanted = net(batch.inputs, weights).logits
    ordered = logits_of(found, fresh)[batch.rows]
    torch.testing.assert_close(ordered, wanted, atol=1e-5, rtol=1e-4)


def test_shared_weights_know_the_task_and_own_epochs_add_to_it(fresh: Problem) -> None:
    shared = replace(SHARED, epochs=12)
    methods = [replace(METHOD, shared=shared, epochs=epochs) for epochs in (0, 6)]
    results = [search_alone(method, fresh) for method in methods]
    teacher = predict(fresh.teacher, fresh.alpha, "cpu")
    far = [divergence(logits_of(result, fresh), teacher, fresh.alpha) for result in results]
    nothing = replace(METHOD, shared=None, epochs=0.01)
    untrained = divergence(logits_of(search_alone(nothing, fresh), fresh), teacher, fresh.alpha)
    assert far[0] < 0.6 * untrained
    assert far[1] < far[0]
    assert [point["stage"] for point in results[1].curve][-1] == "learn"


def test_a_table_of_pairs_goes_along(fresh: Problem) -> None:
    shared = replace(SHARED, epochs=0.5)
    found = search_alone(replace(METHOD, shared=shared, bigrams=32, pooling=("mean",)), fresh)
    assert found.architecture == Genotype(16, ("conv3",), pooling=("mean",), bigrams=32)
    assert isinstance(found.model, CellForSequenceClassification)
    assert found.model.bigrams is not None
    assert found.model.bigrams.weight.abs().max() > 0, "it began as zeros"
    assert found.model.config.bigrams == 32


def test_a_loss_that_is_not_finite_fails_all_trials_and_leaves_nothing(fresh: Problem) -> None:
    poisoned = replace(fresh, teacher_logits=torch.full_like(fresh.teacher_logits, torch.nan))
    outcomes = run([METHOD, METHOD], poisoned)
    assert all(isinstance(o, SearchFailure) and "nan" in o.reason for o in outcomes)
    assert len(outcomes) == 2


@pytest.mark.parametrize(
    ("given", "change", "said"),
    [
        (SHARED, {"space": replace(SPACE, operations=("conv_3",))}, "did you mean 'conv3'"),
        (SPACE, {"nodes": 0}, r"GraphSpace.nodes is 0; it must be >= 1"),
        (SPACE, {"cells": (2, 1)}, r"GraphSpace.cells is \(2, 1\)"),
        (SHARED, {"epochs": 0}, r"SharedCells.epochs is 0"),
    ],
)
def test_a_space_or_a_training_out_of_range_is_refused(
    given: Any, change: dict[str, Any], said: str
) -> None:
    with pytest.raises(UserError, match=said):
        replace(given, **change)


def test_what_a_trial_trains_by_is_idle_where_it_does_not_train() -> None:
    assert set(METHOD.inactive()) == {"learning_rate", "batch_size", "hidden_weight"}
    assert replace(METHOD, epochs=1).inactive() == {}


def test_less_training_is_less_of_both() -> None:
    short = replace(METHOD, epochs=2).scale_epochs(0.5)
    assert short.epochs == 1
    assert short.shared is not None
    assert short.shared.epochs == 1.5
