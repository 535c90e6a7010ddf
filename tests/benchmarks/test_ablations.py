"""The diagnostics of `benchmarks.ablations`, against what is known."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from benchmarks.ablations import ablated, hessian, largest_eigenvalue
from objectives.measures.evaluate import metric_with_interval, predict
from objectives.students.bert.architecture import BertArchitecture
from objectives.students.bert.cutting import cut
from objectives.training.losses import sequence_losses
from objectives.training.population import Population
from objectives.workbench.workbench import Workbench
from tests.conftest import TINY


def test_power_iteration_on_a_known_quadratic() -> None:
    basis = torch.linalg.qr(torch.randn(12, 12, generator=torch.Generator().manual_seed(0))).Q
    values = torch.tensor([5.0, -2.0, *[0.3] * 10])
    matrix = basis @ torch.diag(values) @ basis.T

    def product(parts: object) -> list[Tensor]:
        one, other = parts  # type: ignore[misc]
        found = matrix @ torch.cat([one.flatten(), other])
        return [found[:8].view(2, 4), found[8:]]

    like = [torch.zeros(2, 4), torch.zeros(4)]
    assert largest_eigenvalue(product, like, 60) == pytest.approx(5.0, rel=1e-4)


def test_a_hessian_vector_product_is_a_difference_of_slopes(workbench: Workbench) -> None:
    problem = workbench.problem
    population = Population.of([problem.teacher])
    product, weights = hessian(population, problem.alpha, 1, "ffn")
    generator = torch.Generator().manual_seed(0)
    vector = [torch.randn(w.shape, generator=generator) for w in weights]

    def slopes(step: float) -> list[Tensor]:
        with torch.no_grad():
            for weight, part in zip(weights, vector, strict=True):
                weight += step * part
        batch = next(problem.alpha.in_order(len(problem.alpha), "cpu"))
        loss = sequence_losses(population.logits(batch), batch.labels).mean()
        found = torch.autograd.grad(loss, weights)
        with torch.no_grad():
            for weight, part in zip(weights, vector, strict=True):
                weight -= step * part
        return list(found)

    own = product(vector)
    for found, up, down in zip(own, slopes(1e-3), slopes(-1e-3), strict=True):
        measured = (up - down) / 2e-3
        assert (measured - found).norm() < 0.05 * found.norm()


def test_a_head_is_removed_as_the_cut_removes_it(workbench: Workbench) -> None:
    metrics = ablated(workbench)
    problem, select = workbench.problem, workbench.select
    for kind in ("removed", "alone"):
        masks = [[True] * TINY.heads for _ in range(TINY.layers)]
        masks[1] = [(head == 2) == (kind == "alone") for head in range(TINY.heads)]
        units = BertArchitecture.from_masks(TINY, {"heads": masks})
        model = cut(problem.teacher.state_dict(), problem.teacher.config, units)
        logits = predict(model, select, "cpu")
        expected, _ = metric_with_interval(logits, select, workbench.metric)
        assert metrics[1, 2, kind] == pytest.approx(expected)
