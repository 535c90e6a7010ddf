"""Soft choices by hand, and with the gradient of each order in a search of one edge."""

import numpy as np
import pytest
import torch
from torch import Tensor

from objectives.methods.cells.base.soft_search import Tensors, unrolled_gradients
from objectives.strategies.soft_choices import ADABERT, GDAS, SoftChoices, SoftSettings

PLACES = {"0->2": ("none", "conv", "pool"), "1->2": ("none", "conv", "pool"), "0->1": ("a", "b")}
NODES = (("0->2", "1->2"), ("0->1",))


def test_a_softmax_over_the_choices_of_a_place() -> None:
    made = SoftChoices(PLACES, 0)
    with torch.no_grad():
        made.alpha["0->2"].copy_(torch.tensor([0.0, 1.0, 2.0]))
    weights = made.weights()
    assert weights["0->2"].tolist() == pytest.approx([0.0900306, 0.2447285, 0.6652410])
    assert all(w.sum().item() == pytest.approx(1) for w in weights.values())


def test_a_softmax_over_all_that_enters_a_node() -> None:
    """With alpha 0 but for one log 4, of six: that one has 4/9, the others 1/9 each."""
    made = SoftChoices(PLACES, 0, SoftSettings(together=NODES))
    with torch.no_grad():
        for alpha in made.alpha.values():
            alpha.zero_()
        made.alpha["1->2"][1] = np.log(4)
    weights = made.weights()
    assert list(weights) == list(PLACES)
    assert weights["0->2"].tolist() == pytest.approx([1 / 9] * 3)
    assert weights["1->2"].tolist() == pytest.approx([1 / 9, 4 / 9, 1 / 9])
    assert (weights["0->2"].sum() + weights["1->2"].sum()).item() == pytest.approx(1)


def test_with_one_predecessor_the_softmax_of_a_node_is_that_of_its_edge() -> None:
    plain, node = SoftChoices(PLACES, 0), SoftChoices(PLACES, 0, SoftSettings(together=NODES))
    torch.testing.assert_close(node.weights()["0->1"], plain.weights()["0->1"], atol=0, rtol=0)
    assert not torch.allclose(node.weights()["0->2"], plain.weights()["0->2"])


@pytest.mark.parametrize("together", [(), NODES])
def test_gumbel_is_one_hot_forward_and_soft_backward(together: tuple[tuple[str, ...], ...]) -> None:
    settings = SoftSettings(kind="gumbel", temperature=(0.7, 0.7), together=together)
    made = SoftChoices(PLACES, 0, settings)
    noise = np.random.default_rng(0)  # the same draws: of alpha first, then of Gumbel
    for choices in PLACES.values():
        noise.standard_normal(len(choices))
    weights = made.weights()
    groups = together or tuple((name,) for name in PLACES)
    for group in groups:
        hard = torch.cat([weights[name] for name in group])
        assert sorted(hard.tolist()) == [0.0] * (len(hard) - 1) + [1.0]

        gumbel = torch.from_numpy(noise.gumbel(size=len(hard))).float()
        value = torch.arange(len(hard)).float() ** 2
        alphas = [made.alpha[name] for name in group]
        found = torch.autograd.grad((hard * value).sum(), alphas, retain_graph=True)
        smooth = ((torch.cat(alphas) + gumbel) / 0.7).softmax(-1)
        expected = torch.autograd.grad((smooth * value).sum(), alphas)
        torch.testing.assert_close(torch.cat(found), torch.cat(expected))
        assert int(hard.argmax()) == int(smooth.argmax())


def test_gumbel_draws_by_the_softmax_of_alpha_at_any_temperature() -> None:
    """A chi square of 2 degrees of freedom is above 13.8 with probability 0.001."""
    made = SoftChoices({"x": ("a", "b", "c")}, 0, GDAS)
    with torch.no_grad():
        made.alpha["x"].copy_(torch.tensor([0.5, 0.3, 0.2]).log())
        counts = sum(made.weights(progress=0.5)["x"] for _ in range(3000))
    expected = np.array([0.5, 0.3, 0.2]) * 3000
    assert ((np.asarray(counts) - expected) ** 2 / expected).sum() < 13.8


def test_temperatures_fall_from_one_end_to_the_other() -> None:
    adabert, gdas = (SoftChoices(PLACES, 0, settings) for settings in (ADABERT, GDAS))
    assert [adabert.temperature(p) for p in (0, 0.5, 1)] == pytest.approx([1, 0.2**0.5, 0.2])
    assert [gdas.temperature(p) for p in (0, 0.5, 1)] == pytest.approx([10, 5.05, 0.1])


def test_it_proposes_the_largest_weights_first_and_then_draws() -> None:
    made = SoftChoices({"x": ("a", "b"), "y": (1, 2, 3)}, 0)
    with torch.no_grad():
        made.alpha["x"].copy_(torch.tensor([0.0, 1.0]))
        made.alpha["y"].copy_(torch.tensor([0.2, 0.0, 0.1]))
    first, *drawn = made.propose(2001)
    assert first == {"x": "b", "y": 1}
    share = sum(candidate["x"] == "b" for candidate in drawn) / 2000
    assert share == pytest.approx(0.731, abs=0.04)  # 1 / (1 + 1/e)
    assert made.propose(0) == []


def test_a_place_without_a_gradient_stays() -> None:
    made = SoftChoices(PLACES, 0, SoftSettings(weight_decay=0.0, learning_rate=0.1))
    before = {name: alpha.detach().clone() for name, alpha in made.alpha.items()}
    made.learn({"0->2": torch.tensor([1.0, 0.0, -2.0])})
    moved = made.alpha["0->2"].detach() - before["0->2"]
    assert moved.tolist() == pytest.approx([-0.1, 0, 0.1], abs=1e-5)  # Adam's first step
    for name in ("1->2", "0->1"):
        assert torch.equal(made.alpha[name], before[name])


@pytest.mark.parametrize("step_size", [0.0, 0.2])
@pytest.mark.parametrize("kind", ["softmax", "gumbel"])
def test_the_operation_that_fits_wins(step_size: float, kind: str) -> None:
    """One edge, y = x: the identity fits, the square cannot. Alpha and weights take turns."""
    x = torch.randn(64, generator=torch.Generator().manual_seed(1))
    operations = torch.stack([x, x.square()])
    made = SoftChoices(
        {"edge": ("identity", "square")},
        0,
        SoftSettings(kind=kind, learning_rate=0.05, weight_decay=0.0),  # type: ignore[arg-type]
    )
    weights = {"w": torch.tensor(0.5)}
    for _ in range(100):
        chosen = made.weights()["edge"]

        def loss(weights: Tensors, alpha: Tensors, chosen: Tensor = chosen) -> Tensor:
            return (weights["w"] * (chosen @ operations) - x).square().mean()

        found, _ = unrolled_gradients(weights, made.alpha, loss, loss, step_size)
        made.learn(found)
        w = weights["w"].clone().requires_grad_()
        chosen = chosen.detach()
        (downhill,) = torch.autograd.grad(loss({"w": w}, {}, chosen), [w])
        weights = {"w": (w - 0.1 * downhill).detach()}
    assert made.alpha["edge"].softmax(-1)[0] > 0.9
    assert made.propose(1) == [{"edge": "identity"}]
