"""The plain loop that steps are timed against computes what the product computes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional

from benchmarks.steps import METHOD, PlainLoop, logits_of, padded
from objectives.measures.budget import hinge_loss
from objectives.problem import Problem
from objectives.training.losses import prediction_loss
from objectives.training.population import Population


@pytest.mark.parametrize("batches", ["bucketed", "padded"])
def test_logits_losses_and_gradients_of_one_batch_agree(problem: Problem, batches: str) -> None:
    problem = padded(problem) if batches == "padded" else replace(problem)
    loop = PlainLoop(problem, cached=False, frozen=True)
    generator = torch.Generator().manual_seed(0)
    for value in loop.alpha.values():
        value.data = 1 + torch.randn(value.shape, generator=generator)  # above the band
    batch = problem.train.batch(np.arange(8), problem.device)
    population = Population.of([problem.student])
    alpha = {space: value.detach()[None].requires_grad_() for space, value in loop.alpha.items()}
    masks = {space: value.sigmoid() for space, value in alpha.items()}
    closed = {space: mask.detach() for space, mask in masks.items()}
    logits = population.logits(batch, closed)
    learnt = prediction_loss(logits, problem.teacher_logits[batch.rows])
    learnt.sum().backward()
    loss = loop.weight_loss(batch)
    loss.backward()
    pairs = {"distillation loss": (loss[None], learnt)}
    pairs["student's logits"] = (logits_of(loop.student, batch)[None], logits)
    for name, weight in loop.student.named_parameters():
        if weight.grad is not None and "key.bias" not in name:  # in truth 0, for any batch
            pairs[name] = (weight.grad[None], population.weights[name].grad)  # type: ignore[assignment]

    task = functional.cross_entropy(population.logits(batch, masks)[0], batch.labels)
    cost = problem.budget.cost
    expected, actual = cost.expected(masks), cost.expected({s: m > 0.5 for s, m in masks.items()})
    target = torch.tensor([METHOD.target_ratio * problem.budget.full]).to(expected)
    tolerance = torch.tensor([METHOD.tolerance]).to(expected)
    hinge = hinge_loss(expected, actual, target, tolerance)
    losses = loop.alpha_losses(batch)
    pairs |= {"task loss": (losses[0], task), "FLOPs loss": (losses[1][None], hinge)}
    ours = torch.autograd.grad((task + hinge).sum(), list(alpha.values()))
    theirs = torch.autograd.grad(losses[0] + losses[1], list(loop.alpha.values()))
    for space, mine, other in zip(alpha, ours, theirs, strict=True):
        pairs[f"alpha of {space}"] = (other[None], mine)
    for name, (plainly, here) in pairs.items():
        assert (plainly - here).abs().max() < 1e-4 * here.abs().max(), name
