"""What students learn from the teacher: its logits, its attention scores and hidden states."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from objectives.problem import Problem
from objectives.text.data import Batch
from objectives.training.losses import (
    hidden_loss,
    hint_loss,
    intermediate_loss,
    prediction_loss,
    task_loss,
    teaching_layer,
)
from objectives.training.population import Population, Trace
from tests.objectives.conformance import training_of


def test_by_hand() -> None:
    student = torch.tensor([[[0.0, 0.0]], [[math.log(3), 0.0]]])  # halves; 3/4 and 1/4
    teacher = torch.tensor([[math.log(4), 0.0]])  # 4/5 and 1/5
    expected = [math.log(2), -(0.8 * math.log(0.75) + 0.2 * math.log(0.25))]
    torch.testing.assert_close(prediction_loss(student, teacher), torch.tensor(expected))


def test_of_one_output_it_is_the_squared_error() -> None:
    student = torch.tensor([[[1.0], [2.0]], [[4.0], [2.0]]], requires_grad=True)
    teacher = torch.tensor([[1.0], [4.0]])
    loss = prediction_loss(student, teacher)
    torch.testing.assert_close(loss, torch.tensor([2.0, 6.5]))
    (gradient,) = torch.autograd.grad(loss.sum(), student)
    torch.testing.assert_close(gradient[..., 0], torch.tensor([[0.0, -2.0], [3.0, -2.0]]))


@pytest.fixture(scope="module")
def batch(problem: Problem) -> Batch:
    """Texts of unlike length, so that there is padding."""
    some = next(problem.train.in_order(200, "cpu"))
    picked = problem.train.batch(some.rows[[0, 50, 100, 199]].numpy(), "cpu")
    assert not picked.attention_mask.all()
    return picked


def traced(population: Population, batch: Batch) -> Trace:
    trace = Trace()
    population.logits(batch, trace=trace)
    return trace


def whole(students: int) -> list[tuple[Tensor, Tensor]]:
    """All four heads of three layers, each learning from its own."""
    return [(torch.arange(4).expand(students, 4), torch.ones(students, 4))] * 3


def test_the_teacher_itself_has_nothing_to_learn_inside(problem: Problem, batch: Batch) -> None:
    population = Population.of([problem.teacher] * 2)
    loss = intermediate_loss(
        traced(population, batch),
        traced(Population.of([problem.teacher]), batch),
        batch.attention_mask,
        whole(2),
        {},
    )
    loss.sum().backward()
    assert loss.tolist() == [0, 0]
    for name, weight in population.weights.items():
        assert weight.grad is None or not weight.grad.any(), name


def test_a_trace_is_what_transformers_says(problem: Problem, batch: Batch) -> None:
    trace = traced(Population.of([problem.teacher]), batch)
    theirs = problem.teacher(
        batch.input_ids,
        attention_mask=batch.attention_mask,
        token_type_ids=batch.token_type_ids,
        output_hidden_states=True,
    )
    real = batch.attention_mask
    for own, other in zip(trace.hidden, theirs.hidden_states, strict=True):
        torch.testing.assert_close(own[0][real], other[real], atol=1e-5, rtol=1e-5)
    attention = problem.teacher.bert.encoder.layer[1].attention.self
    query, key = (
        projection(theirs.hidden_states[1]).unflatten(-1, (4, 8)).transpose(1, 2)
        for projection in (attention.query, attention.key)
    )
    expected = query @ key.transpose(-1, -2) / 8**0.5
    assert trace.scores[1] is not None
    torch.testing.assert_close(trace.scores[1][0], expected, atol=1e-4, rtol=1e-4)


def test_padding_counts_for_nothing(problem: Problem, batch: Batch) -> None:
    """Twice as much of it changes no loss."""
    pad = (0, batch.input_ids.shape[1])
    wider = replace(
        batch,
        input_ids=torch.nn.functional.pad(batch.input_ids, pad),
        token_type_ids=torch.nn.functional.pad(batch.token_type_ids, pad),
        attention_mask=torch.nn.functional.pad(batch.attention_mask, pad, value=False),
    )
    student, teacher = Population.of([problem.student]), Population.of([problem.teacher])
    with torch.no_grad():
        for weight in student.weights.values():
            weight.mul_(1.1)
    one, other = (
        intermediate_loss(traced(student, b), traced(teacher, b), b.attention_mask, whole(1), {})
        for b in (batch, wider)
    )
    assert one.item() > 0
    torch.testing.assert_close(one, other)


def test_heads_learn_from_those_they_were_and_only_if_they_are_there() -> None:
    """Two students of one layer: the second has one head, which was the teacher's last."""
    generator = torch.Generator().manual_seed(0)
    teacher = Trace(
        hidden=[torch.zeros(1, 2, 3, 4)] * 2,
        scores=[torch.randn(1, 2, 2, 3, 3, generator=generator)],
    )
    assert teacher.scores[0] is not None
    scores = torch.stack([teacher.scores[0][0] + 1, teacher.scores[0][0].flip(1)])
    scores[1, :, 1] = 99
    student = Trace(hidden=[torch.zeros(2, 2, 3, 4)] * 2, scores=[scores])
    heads = [(torch.tensor([[0, 1], [1, 0]]), torch.tensor([[1.0, 1.0], [1.0, 0.0]]))]
    attended = torch.ones(2, 3, dtype=torch.bool)
    loss = intermediate_loss(student, teacher, attended, heads, {})
    torch.testing.assert_close(loss, torch.tensor([1.0, 0.0]))


@pytest.mark.parametrize(("projected", "expected"), [(False, 1 + 4), (True, 1 + 4 + 100)])
def test_layers_and_what_counts_of_them_by_hand(projected: bool, expected: float) -> None:
    """Two layers learn from four, each constant: from the second and the fourth.

    Hidden states differ by 0 and 1, attention scores by 0 and 2, embeddings by 10.
    """
    hidden, scores = torch.ones(1, 2, 3, 2), torch.ones(1, 2, 2, 3, 3)
    teacher = Trace([n * hidden for n in range(5)], [n * scores for n in range(4)])
    student = Trace([10 * hidden, 2 * hidden, 5 * hidden], [1 * scores, 5 * scores])
    attended = torch.tensor([[True, True, False], [True, True, True]])
    heads = [(torch.tensor([[0, 1]]), torch.ones(1, 2))] * 2
    fit = {"weight": torch.eye(2)[None], "bias": torch.zeros(1, 2)} if projected else {}
    loss = intermediate_loss(student, teacher, attended, heads, fit)
    torch.testing.assert_close(loss, torch.tensor([float(expected)]))


def test_the_gradients_of_losses_on_logits_agree_with_finite_differences() -> None:
    generator = torch.Generator().manual_seed(0)
    student = torch.randn(2, 4, 3, dtype=torch.float64, generator=generator).requires_grad_()
    teacher = torch.randn(4, 3, dtype=torch.float64, generator=generator)
    labels, numbers = torch.tensor([0, 2, 1, 1]), teacher[:, 0]
    one = student[..., :1].detach().requires_grad_()
    assert torch.autograd.gradcheck(lambda x: prediction_loss(x, teacher), student)
    assert torch.autograd.gradcheck(lambda x: prediction_loss(x, teacher[:, :1]), one)
    assert torch.autograd.gradcheck(lambda x: task_loss(x, labels), student)
    assert torch.autograd.gradcheck(lambda x: task_loss(x, numbers), one)


def test_the_gradient_agrees_with_finite_differences() -> None:
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=generator)

    teacher = Trace([random(1, 2, 3, 5) for _ in range(3)], [random(1, 2, 2, 3, 3)] * 2)
    attended = torch.tensor([[True, True, False], [True, True, True]])
    heads = [(torch.tensor([[0, 1]]), torch.ones(1, 2, dtype=torch.float64))]
    inputs = [random(1, 2, 3, 4), random(1, 2, 3, 4), random(1, 2, 2, 3, 3), random(1, 5, 4)]

    def loss(first: Tensor, last: Tensor, scores: Tensor, weight: Tensor) -> Tensor:
        fit = {"weight": weight, "bias": weight.sum(-1)}
        return intermediate_loss(Trace([first, last], [scores]), teacher, attended, heads, fit)

    leaves = [value.requires_grad_() for value in inputs]
    assert torch.autograd.gradcheck(loss, leaves)


def test_layers_map_evenly_and_where_that_is_not_whole_to_the_layer_below() -> None:
    def taught_by(student: int, teacher: int) -> list[int]:
        return [teaching_layer(layer, student, teacher) for layer in range(student + 1)]

    assert taught_by(4, 12) == [0, 3, 6, 9, 12]
    assert taught_by(3, 3) == [0, 1, 2, 3]
    assert taught_by(4, 6) == [0, 1, 3, 4, 6]
    assert taught_by(2, 3) == [0, 1, 3]


def test_hidden_states_of_layers_that_do_not_map_evenly_by_hand() -> None:
    """Two layers learn from three: from the first and the last, which differ by 1 and 2."""
    hidden = torch.ones(1, 1, 2, 2)
    teacher = Trace([n * hidden for n in range(4)])
    student = Trace([0 * hidden, 2 * hidden, 5 * hidden])
    loss = hidden_loss(student, teacher, torch.ones(1, 2, dtype=torch.bool), {})
    torch.testing.assert_close(loss, torch.tensor([1.0 + 4.0]))


def test_what_enters_a_dropped_layer_is_compared_with_nothing() -> None:
    """The first student has the layers 0 and 2 of three; the other one has all."""
    hidden = torch.ones(2, 1, 2, 2)
    teacher = Trace([n * hidden[:1] for n in range(4)])
    kept = [None, torch.tensor([[0.0], [1.0]]), None]
    student = Trace([0 * hidden, 3 * hidden, 3 * hidden, 6 * hidden], masks=kept)
    loss = hidden_loss(student, teacher, torch.ones(1, 2, dtype=torch.bool), {})
    torch.testing.assert_close(loss, torch.tensor([1.0 + 9.0, 4.0 + 1.0 + 9.0]))


def test_the_temperature_softens_both_and_1_is_none_to_the_bit() -> None:
    """T^2 KL up to a constant, by hand; its gradient is 0 where the two agree."""
    generator = torch.Generator().manual_seed(0)
    student, teacher = torch.randn(3, 5, 4, generator=generator), torch.randn(5, 4)
    by = torch.tensor([1.0, 2.0, 0.5])
    loss = prediction_loss(student, teacher, by)
    assert torch.equal(loss[0], prediction_loss(student, teacher)[0])
    for own, t, found in zip(student, by.tolist(), loss, strict=True):
        p, q = (teacher / t).softmax(-1), (own / t).softmax(-1)
        divergence = (p * (p / q).log()).sum(-1).mean()
        entropy = -(p * p.log()).sum(-1).mean()
        torch.testing.assert_close(found, t * t * (divergence + entropy))
    same = (teacher + 1).expand(3, 5, 4).clone().requires_grad_()
    (gradient,) = torch.autograd.grad(prediction_loss(same, teacher, by).sum(), same)
    torch.testing.assert_close(gradient, torch.zeros_like(gradient), atol=1e-6, rtol=0)
    hot = torch.full((3,), 1e3)  # the gradient ends as half of the squared error's over classes
    apart = student.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(prediction_loss(apart, teacher, hot).sum(), apart)
    centred = (student - student.mean(-1, keepdim=True)) - (teacher - teacher.mean(-1, True))
    torch.testing.assert_close(gradient, centred / 4 / 5, atol=2e-3, rtol=0)
    numbers = torch.randn(3, 5, 1), torch.randn(5, 1)
    assert torch.equal(prediction_loss(*numbers, by), prediction_loss(*numbers))


def test_a_hint_is_the_middle_layer_through_a_regressor() -> None:
    """A student deeper and thinner than its teacher, by hand; padding counts for nothing."""
    generator = torch.Generator().manual_seed(0)
    student = Trace([torch.randn(2, 3, 4, 6, generator=generator) for _ in range(6)])
    teacher = Trace([torch.randn(1, 3, 4, 8, generator=generator) for _ in range(3)])
    attended = torch.tensor([[True] * 4, [True, True, False, False], [True, False, False, False]])
    weight, bias = torch.randn(2, 8, 6, generator=generator), torch.randn(2, 8)
    loss = hint_loss(student, teacher, attended, {"weight": weight, "bias": bias})
    for k in range(2):
        own = student.hidden[3][k][attended] @ weight[k].T + bias[k]
        expected = (own - teacher.hidden[1][0][attended]).square().mean()
        torch.testing.assert_close(loss[k], expected)


def test_all_three_losses_at_once_are_their_sum(problem: Problem, batch: Batch) -> None:
    """TernaryBERT's: logits, and weight times attention scores and hidden states."""
    parts = {}
    for loss in ("prediction", "intermediate", "prediction+intermediate"):
        training = training_of(problem, loss)  # type: ignore[arg-type]
        training.stage = replace(training.stage, hidden_weight=0.3)
        with torch.no_grad():
            for weight in training.population.weights.values():
                weight.mul_(1.1)
        parts[loss] = training.loss(training.population, batch, {}).item()
    both = parts["prediction"] + 0.3 * parts["intermediate"]
    assert parts["intermediate"] > 0
    assert parts["prediction+intermediate"] == pytest.approx(both, rel=1e-5)
