"""The task's loss: of classes, of numbers, each student by itself."""

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from objectives.training.losses import sequence_losses, task_loss

CLASSES = torch.tensor([0, 1])
NUMBERS = torch.tensor([1.0, 3.0])


def test_classes_by_hand() -> None:
    logits = torch.tensor([[[0.0, 0.0], [0.0, 0.0]], [[0.0, math.log(3)], [0.0, math.log(3)]]])
    expected = torch.tensor([[math.log(2), math.log(2)], [math.log(4), math.log(4 / 3)]])
    torch.testing.assert_close(sequence_losses(logits, CLASSES), expected)
    torch.testing.assert_close(task_loss(logits, CLASSES), expected.mean(-1))


def test_numbers_by_hand() -> None:
    outputs = torch.tensor([[[1.0], [1.0]], [[0.0], [6.0]]])
    expected = torch.tensor([[0.0, 4.0], [1.0, 9.0]])
    torch.testing.assert_close(sequence_losses(outputs, NUMBERS), expected)
    torch.testing.assert_close(task_loss(outputs, NUMBERS), torch.tensor([2.0, 5.0]))


@pytest.mark.parametrize(("labels", "outputs"), [(CLASSES, 2), (NUMBERS, 1)])
def test_no_student_moves_another(labels: Tensor, outputs: int) -> None:
    logits = torch.randn(3, 2, outputs, generator=torch.Generator().manual_seed(0)).requires_grad_()
    for slot, loss in enumerate(task_loss(logits, labels)):
        (gradient,) = torch.autograd.grad(loss, logits, retain_graph=True)
        moved = gradient.abs().sum((1, 2)) > 0
        assert moved.tolist() == [other == slot for other in range(3)]
        alone = logits[slot].detach().requires_grad_()
        plain = (
            functional.cross_entropy(alone, labels)
            if outputs > 1
            else functional.mse_loss(alone[:, 0], labels)
        )
        torch.testing.assert_close(loss, plain)
        torch.testing.assert_close(gradient[slot], torch.autograd.grad(plain, alone)[0])
