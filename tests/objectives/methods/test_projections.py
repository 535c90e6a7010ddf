"""Projections of one student: what they share, when they are slices, how they move."""

from itertools import combinations, pairwise, product
from math import comb

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from objectives.methods.aps_t import Projections, Sharing
from objectives.methods.elastic.training import ElasticTraining
from objectives.problem import Problem
from objectives.pruning.importance import importance_of_student
from objectives.pruning.slices import Model, Order, sliced, smaller
from objectives.students.bert.architecture import LayerUnits
from objectives.students.bert.cutting import cut
from objectives.training.population import Population
from objectives.training.stages import Stage
from tests.conftest import TINY

SHARES = (0.25, 0.5, 0.75, 1.0)


def in_order(units: int = 4, layers: int = 1) -> Tensor:
    return torch.arange(units).repeat(layers, 1)


def orders_of(problem: Problem) -> dict[str, Tensor]:
    """Of the tiny student, by importance."""
    order = Order.by_scores(TINY, importance_of_student(problem, ("heads", "ffn"), "logits"))
    return {"heads": order.heads, "ffn": order.ffn}


def model_of(projections: Projections, heads: int, ffn: int) -> Model:
    """All layers with these widths, by their place among the candidates."""
    own = [list(projections[space])[n] for space, n in (("heads", heads), ("ffn", ffn))]
    masks = [range(size) for size in own]
    return (LayerUnits(tuple(masks[0]), tuple(masks[1])).widths(TINY),) * TINY.layers


def phi(of_widths: dict[int, Tensor]) -> Tensor:
    """Its definition, of one kind of units."""
    every = list(of_widths.values())
    pairs = [(a, b) for n, a in enumerate(every) for b in every[n:]]
    return torch.stack([(a.mT @ b).square().sum() for a, b in pairs]).sum()


def moved(rate: float = 0.02, steps: int = 200) -> Projections:
    found = Projections("transition", {"ffn": in_order(6, 2), "heads": in_order(4, 2)}, SHARES)
    for _ in range(steps):
        found.separate(rate)
    return found


def test_phi_is_the_squared_covariance_of_the_weights_of_two_widths() -> None:
    projections = moved(steps=30)
    generator = torch.Generator().manual_seed(0)
    estimated = 0.0
    for of_widths in projections.values():
        for layer in range(2):
            units = next(iter(of_widths.values())).shape[1]
            weights = torch.randn(200_000, units, generator=generator)
            found = [weights @ own[layer] for own in of_widths.values()]
            for n, one in enumerate(found):
                for other in found[n:]:
                    estimated += float((one.mT @ other / len(weights)).square().sum())
    assert float(projections.separate(0.0)) == pytest.approx(estimated, rel=0.01)


@pytest.mark.parametrize("widths", [(1, 2, 3), (1, 2), (2, 3, 4)])
def test_ordinal_shares_most_and_independent_least_of_all_choices(widths: tuple[int, ...]) -> None:
    shares = [width / 4 for width in widths]
    every = [
        float(phi({w: torch.eye(4)[:, list(own)] for w, own in zip(widths, chosen, strict=True)}))
        for chosen in product(*(combinations(range(4), width) for width in widths))
    ]
    assert len(every) == torch.tensor([comb(4, width) for width in widths]).prod()
    ends: tuple[Sharing, ...] = ("ordinal", "independent")
    most, least = (
        float(Projections(own, {"ffn": in_order()}, shares).separate(0.0)) for own in ends
    )
    assert (most, least) == (max(every), min(every))
    assert least < most


def test_ordinal_is_slicing(problem: Problem) -> None:
    orders = {"heads": in_order(4, 3), "ffn": in_order(48, 3)}
    projections = Projections("ordinal", orders, SHARES)
    population = Population.of([problem.student])
    for heads, ffn in ((0, 3), (2, 1), (3, 3)):
        model = model_of(projections, heads, ffn)
        found = projections.applied(population, model).weights
        assert all(
            found[name].equal(own) for name, own in sliced(population.weights, model).items()
        )


@pytest.mark.parametrize("sharing", ["ordinal", "independent"])
def test_a_choice_of_units_is_the_model_cut_to_them(problem: Problem, sharing: Sharing) -> None:
    projections = Projections(sharing, orders_of(problem), SHARES)
    model = model_of(projections, 1, 2)
    units = projections.units(model, TINY)
    assert units.widths(TINY) == model
    wanted = cut(problem.student.state_dict(), problem.student.config, units).state_dict()
    found = projections.applied(Population.of([problem.student]), model).slot(0)
    assert found.keys() == wanted.keys()
    assert all(found[name].equal(weight) for name, weight in wanted.items())


def test_ordinal_is_the_slice_of_the_elastic_student(problem: Problem) -> None:
    scores = importance_of_student(problem, ("heads", "ffn"), "logits")
    stage = Stage(name="elastic", epochs=1, learning_rate=1e-3)
    order, own = Order.by_scores(TINY, scores), {"sizes": 1, "batch_size": 16, "seed": 0}
    elastic = ElasticTraining(problem, order, [], stage, **own, dtype=torch.float32, taught_by=None)
    projections = Projections("ordinal", orders_of(problem), SHARES)
    batch = next(problem.train.shuffled(16, 0, "cpu"))
    model = model_of(projections, 1, 0)
    found = projections.applied(Population.of([problem.student]), model).logits(batch)
    torch.testing.assert_close(found, smaller(elastic.population, model).logits(batch))


def test_heads_and_neurons_are_mixed_whole(problem: Problem) -> None:
    """Heads in another order, some with their signs turned, and neurons in another order: the
    student computes what it did."""
    projections = Projections("ordinal", orders_of(problem), (1.0,))
    generator = torch.Generator().manual_seed(0)
    for space, units in (("heads", 4), ("ffn", 48)):
        mixes = [torch.eye(units)[torch.randperm(units, generator=generator)] for _ in range(3)]
        projections[space][units] = torch.stack(mixes)
    projections["heads"][4][:, :, 1:3] *= -1
    population, batch = Population.of([problem.student]), next(problem.alpha.in_order(8, "cpu"))
    found = projections.applied(population, model_of(projections, 0, 0))
    assert not found.weights["bert.encoder.layer.0.attention.self.key.weight"].equal(
        population.weights["bert.encoder.layer.0.attention.self.key.weight"]
    )
    torch.testing.assert_close(found.logits(batch), population.logits(batch), atol=1e-5, rtol=0)


def test_a_projected_student_passes_its_gradient_on(problem: Problem) -> None:
    """The gradient of the meta-weight is that of the projected weight, mixed back."""
    projections = Projections("transition", orders_of(problem), SHARES)
    for _ in range(100):
        projections.separate(0.02)
    population, batch = Population.of([problem.student]), next(problem.alpha.in_order(8, "cpu"))
    name = "bert.encoder.layer.1.intermediate.dense.weight"
    student = projections.applied(population, model_of(projections, 0, 1))
    student.weights[name].retain_grad()
    student.logits(batch).square().sum().backward()
    mix, own = projections["ffn"][24][1], student.weights[name].grad
    assert own is not None
    torch.testing.assert_close(population.weights[name].grad, mix @ own, atol=1e-4, rtol=1e-4)


def test_a_step_goes_down_the_gradient_of_phi() -> None:
    """By finite differences, in the directions that keep the norms."""
    projections = moved(steps=40)
    for of_widths in projections.values():
        for width, own in of_widths.items():
            of_widths[width] = functional.normalize(own.double(), dim=1)
    before = {width: own.clone() for width, own in projections["ffn"].items()}
    projections.separate(1e-6)
    for width, own in before.items():
        step = (own - projections["ffn"][width]) / 1e-6
        for place in ((0, 1, 0), (1, 3, 0), (1, 5, width - 1)):
            beside = torch.zeros_like(own)
            beside[place] = 1e-5
            both = [phi({**before, width: own + sign * beside}) for sign in (1, -1)]
            slope = float(both[0] - both[1]) / 2e-5
            layer, _, column = place
            gradient = torch.autograd.functional.jacobian(
                lambda one, width=width: phi({**before, width: one}), own
            )[layer, :, column]
            assert float(gradient[place[1]]) == pytest.approx(slope, rel=1e-4, abs=1e-6)
            unit = own[layer, :, column]
            tangent = gradient - (gradient @ unit) * unit
            torch.testing.assert_close(step[layer, :, column], tangent, atol=1e-4, rtol=1e-3)


def test_columns_keep_their_norm_and_phi_only_falls() -> None:
    projections = Projections("transition", {"ffn": in_order(8, 2)}, SHARES)
    levels = [float(projections.separate(0.02)) for _ in range(300)]
    assert all(later <= level * (1 + 1e-6) for level, later in pairwise(levels))
    ends: tuple[Sharing, ...] = ("ordinal", "independent")
    most, least = (
        float(Projections(s, {"ffn": in_order(8, 2)}, SHARES).separate(0.0)) for s in ends
    )
    assert levels[0] == pytest.approx(most, rel=1e-3)
    assert levels[-1] < 0.5 * (most + least)
    for own in projections["ffn"].values():
        torch.testing.assert_close(own.norm(dim=1), torch.ones_like(own[:, 0]))
