"""The prediction loss: soft cross-entropy or squared error, each student by itself."""

from __future__ import annotations

import math

import torch

from objectives.distillation import prediction_loss


def test_by_hand() -> None:
    student = torch.tensor([[[0.0, 0.0]], [[math.log(3), 0.0]]])  # halves; 3/4 and 1/4
    teacher = torch.tensor([[math.log(4), 0.0]])  # 4/5 and 1/5
    expected = [math.log(2), -(0.8 * math.log(0.75) + 0.2 * math.log(0.25))]
    torch.testing.assert_close(prediction_loss(student, teacher), torch.tensor(expected))


def test_it_is_least_where_the_student_says_what_the_teacher_says() -> None:
    teacher = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    student = (teacher + 7)[None].requires_grad_()  # a common shift changes no probability
    (gradient,) = torch.autograd.grad(prediction_loss(student, teacher).sum(), student)
    torch.testing.assert_close(gradient, torch.zeros_like(gradient), atol=1e-6, rtol=0)


def test_it_is_the_mean_over_the_batch_of_each_student() -> None:
    generator = torch.Generator().manual_seed(0)
    student, teacher = torch.randn(2, 4, 3, generator=generator), torch.randn(4, 3)
    rows = [
        [prediction_loss(s[None, None], t[None]) for s, t in zip(k, teacher, strict=True)]
        for k in student
    ]
    expected = torch.stack([torch.stack(row).mean() for row in rows])
    torch.testing.assert_close(prediction_loss(student, teacher), expected)


def test_of_one_output_it_is_the_squared_error() -> None:
    student = torch.tensor([[[1.0], [2.0]], [[4.0], [2.0]]], requires_grad=True)
    teacher = torch.tensor([[1.0], [4.0]])
    loss = prediction_loss(student, teacher)
    torch.testing.assert_close(loss, torch.tensor([2.0, 6.5]))
    (gradient,) = torch.autograd.grad(loss.sum(), student)
    torch.testing.assert_close(gradient[..., 0], torch.tensor([[0.0, -2.0], [3.0, -2.0]]))
