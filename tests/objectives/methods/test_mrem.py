"""MREM: modules that learn to give on few bits what they gave in float32."""

import copy
import math
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import register_parametrization
from transformers.masking_utils import create_bidirectional_mask

from objectives.methods.mrem import Mrem, _At, _Reconstruction
from objectives.problem import Problem
from objectives.search_method import SearchFailure, SearchMethod, SearchResult
from objectives.students.bert.packing import rounded_inputs
from objectives.students.bert.quantising import rounded
from objectives.training.losses import hidden_loss
from objectives.training.population import Population, Trace
from tests.conftest import TINY
from tests.objectives.conformance import (
    PruningConformance,
    RecordingProgress,
    logits_of,
    run,
    search_alone,
)

WHOLE = Mrem(weight_bits=2, batch_size=16, rows=64, modules=2, steps=6, learning_rate=3e-3)
QUICK = replace(WHOLE, target_ratio=0.5, tolerance=0.1)


class TestConformance(PruningConformance):
    quick = QUICK

    def test_its_weights_have_two_bits(self, results: list[SearchResult]) -> None:
        for result in results:
            sizes = result.architecture.sizes()
            assert (sizes["weight_bits"], sizes["input_bits"]) == ((2,) * 3, (8,) * 3)

    def test_a_loss_that_is_not_finite_is_a_failure_with_its_reason(
        self, population: list[SearchMethod], problem: Problem
    ) -> None:
        """It reads no answer of the teacher that could be nan: here its weights run away."""
        members = [replace(member, learning_rate=1e30) for member in population]  # type: ignore[call-arg]
        outcomes = run(members, problem)
        assert [outcome.slot for outcome in outcomes] == [0, 1, 2]
        for outcome in outcomes:
            assert isinstance(outcome, SearchFailure)
            assert outcome.reason.startswith(("the loss is nan at step", "the loss is inf at step"))


def at_work(method: Mrem, problem: Problem) -> _Reconstruction:
    """A member that has learnt nothing yet."""
    return _Reconstruction(method, problem, seed=3)


def learnt(method: Mrem, problem: Problem) -> _Reconstruction:
    """A member that has learnt all it can."""
    work = at_work(method, problem)
    for _ in work.steps():
        pass
    return work


def weights(work: _Reconstruction) -> dict[str, Tensor]:
    return {name: weight.detach().clone() for name, weight in work.population.weights.items()}


def assert_same_weights(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    assert one.keys() == other.keys()
    for name, weight in one.items():
        assert torch.equal(weight, other[name]), name


def losses(result: SearchResult | _Reconstruction, module: int) -> list[float]:
    points = result.curve if isinstance(result, SearchResult) else result.curve()
    return [float(point["loss"]) for point in points if point["stage"] == f"module {module}"]


@pytest.mark.parametrize(
    ("share", "expected"),
    [
        (0.5, [1.0, 0.75, 0.5, 0.25, 0.0, 0.0, 0.0, 0.0]),
        (1.0, [1 - step / 8 for step in range(8)]),
        (0.0, [0.0] * 8),
        (math.inf, [1.0] * 8),
    ],
)
def test_lambda_falls_from_1_to_0(share: float, expected: list[float]) -> None:
    method = replace(WHOLE, steps=8, teacher_forcing=share)
    assert [method._forcing(step) for step in range(8)] == pytest.approx(expected)


class Ternary(nn.Module):
    """A weight, rounded, that learns as if it were not."""

    def forward(self, weight: Tensor) -> Tensor:
        return weight + (rounded(weight, 2) - weight).detach()


def reconstructed_by_hand(
    layer: nn.Module, entering: list[Tensor], wanted: list[Tensor], method: Mrem, work: Any
) -> Callable[[Tensor, Tensor | None], Tensor]:
    """One layer of transformers' own that learns from its quantised self: the layer, rounded."""
    own = copy.deepcopy(layer).requires_grad_()
    for linear in [module for module in own.modules() if isinstance(module, nn.Linear)]:
        register_parametrization(linear, "weight", Ternary())
        linear.register_forward_pre_hook(
            lambda _, inputs: inputs[0] + (rounded_inputs(inputs[0], 8) - inputs[0]).detach()
        )

    def forward(hidden: Tensor, mask: Tensor | None) -> Tensor:
        found = own(hidden, mask)
        return found[0] if isinstance(found, tuple) else found

    optimizer = torch.optim.Adam(own.parameters(), method.learning_rate)
    for step, number in enumerate(work._order):
        batch, mask = work.passes[number]
        warmup = int(0.1 * method.steps)
        rate = step / warmup if step < warmup else (method.steps - step) / (method.steps - warmup)
        optimizer.param_groups[0]["lr"] = method.learning_rate * rate
        seen = batch.attention_mask
        loss = (forward(entering[number], mask) - wanted[number])[seen].square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return forward


def test_a_module_for_each_layer_without_forcing_learns_layer_by_layer(problem: Problem) -> None:
    """By hand, on transformers' own layers; all but the last, which learns the answer too."""
    method = replace(WHOLE, modules=TINY.layers, teacher_forcing=0.0, steps=6, embedding_bits=32)
    work = learnt(method, problem)
    bert = problem.student.bert
    batches = [problem.train.batch(rows, "cpu") for rows in work._batches]
    hidden = [bert.embeddings(batch.input_ids, batch.token_type_ids).detach() for batch in batches]
    masks = [
        create_bidirectional_mask(problem.student.config, embedded, batch.attention_mask)
        for embedded, batch in zip(hidden, batches, strict=True)
    ]
    work.passes = list(zip(batches, masks, strict=True))  # type: ignore[attr-defined]
    wanted = own = hidden
    for number in range(TINY.layers - 1):
        layer = bert.encoder.layer[number]
        with torch.no_grad():
            wanted = [layer(x, mask) for x, mask in zip(wanted, masks, strict=True)]
            wanted = [x[0] if isinstance(x, tuple) else x for x in wanted]
        forward = reconstructed_by_hand(layer, own, wanted, method, work)
        with torch.no_grad():
            own = [forward(x, mask) for x, mask in zip(own, masks, strict=True)]
            for place, batch in enumerate(batches):
                at = work._begin(work._batches[place])
                for module in work.modules[: number + 1]:
                    at = work._through(module, at)
                seen = batch.attention_mask
                # Last digits decide to which of a few values a weight is rounded.
                apart = (at.reached[0] - own[place])[seen].abs()
                assert (apart > 2e-2).float().mean() < 0.05
                error = (own[place] - wanted[place])[seen].square().mean()
                found = (at.reached[0] - wanted[place])[seen].square().mean()
                torch.testing.assert_close(found, error, rtol=2e-2, atol=0)


def test_one_module_learns_from_end_to_end(problem: Problem) -> None:
    method = replace(WHOLE, modules=1, teacher_forcing=0.0)
    fresh = at_work(method, problem)
    batch = problem.train.batch(fresh._batches[fresh._order[0]], "cpu")
    traces, answers = [], []
    for population in (fresh.population, fresh.whole):
        traces.append(Trace(with_scores=False))
        answers.append(population.logits(batch, trace=traces[-1]))
    expected = hidden_loss(*traces, batch.attention_mask, {}).sum()
    expected = expected + (answers[0] - answers[1]).square().mean()
    next(fresh.steps())
    assert fresh.modules[0].losses[0].item() == pytest.approx(expected.item(), rel=1e-5)
    serial, parallel = (learnt(replace(method, parallel=p), problem) for p in (False, True))
    assert_same_weights(weights(serial), weights(parallel))


@pytest.mark.parametrize("parallel", [False, True])
def test_32_bits_leave_nothing_to_learn(problem: Problem, parallel: bool) -> None:
    method = replace(WHOLE, weight_bits=32, embedding_bits=32, parallel=parallel)
    result = search_alone(method, problem)
    assert {point["loss"] for point in result.curve} == {0.0}
    whole = search_alone(replace(method, steps=1), problem)
    assert torch.equal(logits_of(result, problem), logits_of(whole, problem))


def test_modules_that_are_forced_throughout_learn_the_same_one_by_one_or_together(
    problem: Problem,
) -> None:
    method = replace(WHOLE, modules=TINY.layers, teacher_forcing=math.inf)
    serial, parallel = (learnt(replace(method, parallel=p), problem) for p in (False, True))
    assert_same_weights(weights(serial), weights(parallel))
    apart = [
        weights(learnt(replace(method, parallel=p, teacher_forcing=0.5), problem))
        for p in (False, True)
    ]
    assert any(not torch.equal(w, apart[1][name]) for name, w in apart[0].items())


def test_taking_turns_is_a_pipeline(problem: Problem) -> None:
    """A worker for each module, n batches behind the first, that reads a queue."""
    method = replace(WHOLE, modules=TINY.layers, parallel=True)
    piped, turns = at_work(method, problem), learnt(method, problem)
    queues: list[deque[_At]] = [deque() for _ in range(TINY.layers + 1)]
    queues[0].extend(piped._begin(piped._batches[number]) for number in piped._order)
    done = [0] * TINY.layers
    for tick in range(method.steps + TINY.layers - 1):
        for number in reversed(range(TINY.layers)):  # the last first: none reads what is just made
            if 0 <= tick - number < method.steps:
                at = queues[number].popleft()
                queues[number + 1].append(piped._learn(piped.modules[number], at, done[number]))
                done[number] += 1
    assert done == [method.steps] * TINY.layers
    assert_same_weights(weights(piped), weights(turns))


@pytest.mark.parametrize("parallel", [False, True])
def test_the_loss_of_a_module_touches_no_weight_of_another(
    problem: Problem, parallel: bool
) -> None:
    """Two of three steps: the rate of the first is 0."""
    method = replace(WHOLE, modules=TINY.layers, parallel=parallel, steps=12)
    work = at_work(method, problem)
    at = work._begin(work._batches[0])
    for module in work.modules:
        for step in (0, 1):
            before = weights(work)
            after = work._learn(module, at, step)
        moved = {
            name for name, weight in weights(work).items() if not torch.equal(weight, before[name])
        }
        own = f"bert.encoder.layer.{module.layers[0]}."
        last = module is work.modules[-1]
        for name in moved:
            assert name.startswith(own) or (last and not name.startswith("bert.encoder.")), name
        assert f"{own}output.dense.weight" in moved
        assert ("classifier.weight" in moved) == last
        assert all(weight.grad is None for weight in work.population.weights.values())
        at = after


@pytest.mark.slow
def test_the_loss_falls_module_by_module(problem: Problem) -> None:
    for parallel in (False, True):
        method = replace(WHOLE, modules=TINY.layers, steps=60, rows=240, parallel=parallel)
        result = search_alone(replace(method, teacher_forcing=0.0), problem)
        for module in range(1, TINY.layers + 1):
            course = losses(result, module)
            assert len(course) == 60
            assert sum(course[-10:]) < 0.8 * sum(course[:10])


@pytest.mark.slow
def test_modules_of_any_size_come_far_nearer_than_rounding_on_held_out_rows(
    problem: Problem,
) -> None:
    """Which size is nearer, rounding decides: over eight seeds each of these two won four times."""
    float_model = search_alone(replace(WHOLE, weight_bits=32, embedding_bits=32, steps=1), problem)
    wanted = logits_of(float_model, problem)

    def error(method: Mrem) -> float:
        """Of the answers on the alpha split, which nothing is learnt from."""
        return float((logits_of(search_alone(method, problem), problem) - wanted).square().mean())

    nearest = replace(WHOLE, steps=1)  # whose rate is 0
    mrem = replace(WHOLE, steps=120, rows=240)
    by_layer = replace(mrem, modules=TINY.layers, teacher_forcing=0.0)
    assert max(error(mrem), error(by_layer)) < error(nearest) / 20


def test_rows_are_drawn_with_the_seed(problem: Problem) -> None:
    work = at_work(replace(WHOLE, rows=50), problem)
    rows = [row for batch in work._batches for row in batch.tolist()]
    assert [len(batch) for batch in work._batches] == [16, 16, 16, 2]
    assert len(set(rows)) == 50
    other = _Reconstruction(replace(WHOLE, rows=50), problem, seed=4)
    assert set(rows) != {row for batch in other._batches for row in batch.tolist()}
    all_rows = at_work(replace(WHOLE, rows=10**6), problem)
    assert sum(map(len, all_rows._batches)) == len(problem.train)


@pytest.mark.parametrize(("wanted", "sizes"), [(1, [3]), (2, [2, 1]), (3, [1] * 3), (4, [1] * 3)])
def test_layers_are_split_as_evenly_as_it_goes(
    problem: Problem, wanted: int, sizes: list[int]
) -> None:
    work = at_work(replace(WHOLE, modules=wanted), problem)
    assert [len(module.layers) for module in work.modules] == sizes
    assert [layer for module in work.modules for layer in module.layers] == [0, 1, 2]


def test_a_part_of_a_forward_pass_is_what_the_whole_does_there(problem: Problem) -> None:
    population = Population.of([problem.student, problem.student])
    batch = problem.alpha.batch(problem.alpha.longest_first()[:8], "cpu")
    trace = Trace(with_scores=False)
    logits = population.logits(batch, trace=trace)
    hidden, none = population.through([0], population.embedded(batch), batch.attention_mask)
    rest, answers = population.through([1, 2], hidden[-1], batch.attention_mask)
    assert none is None
    for one, other in zip([*hidden, *rest[1:]], trace.hidden, strict=True):
        torch.testing.assert_close(one, other)
    torch.testing.assert_close(answers, logits)


def test_what_does_nothing_is_named() -> None:
    assert set(WHOLE.inactive()) == {"tolerance"}
    assert set(replace(WHOLE, modules=1).inactive()) == {"tolerance", "parallel"}
    assert replace(WHOLE, steps=100).scale_epochs(0.25).steps == 25


REM = replace(WHOLE, each="matrix", teacher_forcing=0.5)


class TestMatrices(TestConformance):
    quick = replace(QUICK, each="matrix")


def test_each_matrix_learns_to_give_what_the_float_one_gives(problem: Problem) -> None:
    """The first by hand, on what enters it; norms, pooler and classifier stay."""
    method = replace(REM, steps=8, input_bits=32, embedding_bits=8)
    found = method._matrix_by_matrix(problem, 3, RecordingProgress())
    curve, model, _ = found
    drawn, order = method._drawn(problem, 3)
    batches = [problem.train.batch(rows, "cpu") for rows in drawn]
    name = "bert.encoder.layer.0.attention.self.query"
    whole = problem.student.get_submodule(name)
    embeddings = copy.deepcopy(problem.student.bert.embeddings)
    entering = []
    for few in (False, True):
        if few:
            for table in ("word_embeddings", "position_embeddings"):
                weight = embeddings.get_parameter(f"{table}.weight")
                weight.data = rounded(weight.data, 8)
        with torch.no_grad():
            states = [embeddings(b.input_ids, b.token_type_ids)[b.attention_mask] for b in batches]
        entering.append(states)
    weight = nn.Parameter(whole.weight.detach().clone())  # type: ignore[union-attr, operator]
    bias = nn.Parameter(whole.bias.detach().clone())  # type: ignore[union-attr, operator]
    optimizer = torch.optim.Adam([weight, bias], method.learning_rate)
    for step, place in enumerate(order):
        optimizer.param_groups[0]["lr"] = (
            method.learning_rate * (method.steps - step) / method.steps
        )
        through = weight + (rounded(weight, 2) - weight).detach()
        given = nn.functional.linear(entering[1][place], through, bias)
        loss = (given - whole(entering[0][place])).square().mean()
        assert curve[step]["loss"] == pytest.approx(loss.item(), rel=1e-3)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    torch.testing.assert_close(model.get_parameter(f"{name}.weight"), weight, atol=1e-4, rtol=1e-4)
    assert {point["stage"] for point in curve} == {"layer 1", "layer 2", "layer 3"}
    assert len(curve) == 8 * 6 * TINY.layers
    state = problem.student.state_dict()
    for own, value in model.state_dict().items():
        if "LayerNorm" in own or own.startswith(("bert.pooler", "classifier")):
            assert torch.equal(value, state[own]), own


def test_matrices_that_read_some_inputs_learn_on_these(problem: Problem) -> None:
    """What they learn on is rounded as the finished model rounds it."""
    spaces = ("heads", "ffn", "input")
    method = replace(REM, spaces=spaces, target_ratio=0.6, rows=240, batch_size=32)
    nearest, learnt = (
        search_alone(replace(method, steps=steps), problem).model for steps in (1, 40)
    )
    exact = search_alone(replace(method, weight_bits=32, embedding_bits=32, steps=1), problem)
    batch = problem.train.batch(np.arange(64), "cpu")
    with torch.no_grad():
        wanted, rough, near = (m(**batch.inputs).logits for m in (exact.model, nearest, learnt))
    assert (near - wanted).norm() < (rough - wanted).norm()


def test_matrices_come_nearer_than_rounding_and_modules_nearer_still(problem: Problem) -> None:
    """Spec: error of MREM < REM < round to nearest on rows that nothing is learnt from."""
    exact = search_alone(replace(WHOLE, weight_bits=32, embedding_bits=32, steps=1), problem)
    wanted = logits_of(exact, problem)

    def error(method: Mrem) -> float:
        return float((logits_of(search_alone(method, problem), problem) - wanted).square().mean())

    modules = replace(WHOLE, steps=40, rows=240, batch_size=32)
    matrix, nearest = replace(modules, each="matrix"), replace(WHOLE, steps=1)
    assert error(modules) < error(matrix) < error(nearest)
    nothing = replace(REM, weight_bits=32, embedding_bits=32)
    assert search_alone(nothing, problem).curve == []
    assert {"modules", "parallel", "teacher_forcing", "precision"} < set(matrix.inactive())
