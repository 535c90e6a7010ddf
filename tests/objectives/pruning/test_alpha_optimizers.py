"""How alpha moves: against which rivals, and where kappa and lambda act."""

from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from objectives.pruning.descending_alpha import AlphaAdam, AlphaOptimizer, AlphaSgd, AlphaSign

SIZES = {"heads": (4,), "ffn": (48,), "qk": (4, 8)}
Make = Callable[[dict[str, Tensor], Tensor], AlphaOptimizer]
MAKES: dict[str, Make] = {
    "sgd": AlphaSgd,
    "adam": AlphaAdam,
    "sign": lambda alpha, size: AlphaSign(alpha, size, 0.5),
}


def noise(students: int, seed: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        space: torch.randn(students, 3, *units, generator=generator)
        for space, units in SIZES.items()
    }


def nothing(students: int) -> dict[str, Tensor]:
    return {space: torch.zeros_like(value) for space, value in noise(students, 0).items()}


def moved(make: Make, sizes: list[float], *, task: float = 1.0, flops: float = 0.0) -> Tensor:
    """All alphas after five steps from 0, (K, units); the factors stand before the gradients."""
    alpha = nothing(len(sizes))
    optimizer = make(alpha, torch.tensor(sizes))
    for step in range(5):
        gradients = (noise(1, 2 * step), noise(1, 2 * step + 1))
        optimizer.step(
            *(
                {space: factor * g.expand(len(sizes), *g.shape[1:]) for space, g in own.items()}
                for own, factor in zip(gradients, (task, flops), strict=True)
            )
        )
    return torch.cat([value.flatten(1) for value in alpha.values()], dim=1)


def test_adam_of_one_student_is_torchs_adam() -> None:
    ours, theirs = noise(1, 99), noise(1, 99)
    adam = torch.optim.Adam(list(theirs.values()), lr=0.03)
    optimizer = AlphaAdam(ours, torch.tensor([0.03]))
    for step in range(10):
        task, flops = (
            {space: 10.0 ** (step % 3 - 3) * g for space, g in noise(1, seed).items()}
            for seed in (step, step + 50)
        )
        for space, value in theirs.items():
            value.grad = task[space] + flops[space]
        adam.step()
        optimizer.step(task, flops)
    torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=0)


def test_sgd_is_the_sum_of_the_gradients() -> None:
    alpha, task, flops = nothing(2), noise(2, 0), noise(2, 1)
    AlphaSgd(alpha, torch.tensor([0.5, 2.0])).step(task, flops)
    for space, value in alpha.items():
        total = task[space] + flops[space]
        torch.testing.assert_close(value[0], -0.5 * total[0])
        torch.testing.assert_close(value[1], -2.0 * total[1])


@pytest.mark.parametrize("name", MAKES)
def test_kappa_acts_on_each_student_alone(name: str) -> None:
    both = moved(MAKES[name], [0.01, 0.5])
    torch.testing.assert_close(both[:1], moved(MAKES[name], [0.01]))
    torch.testing.assert_close(both[1:], moved(MAKES[name], [0.5]))
    torch.testing.assert_close(50 * both[0], both[1], atol=1e-5, rtol=1e-4)


def test_a_factor_on_the_gradient_acts_on_sgd_and_cancels_in_adam_and_sign() -> None:
    """Why kappa is the size of the step, and not what stands before the gradient."""
    plain = {name: moved(make, [0.1]) for name, make in MAKES.items()}
    scaled = {name: moved(make, [0.1], task=1000.0) for name, make in MAKES.items()}
    torch.testing.assert_close(scaled["sgd"], 1000 * plain["sgd"], atol=1e-3, rtol=1e-4)
    torch.testing.assert_close(scaled["adam"], plain["adam"], atol=1e-4, rtol=0)
    assert torch.equal(scaled["sign"], plain["sign"])


def test_lambda_is_lost_in_a_sign_and_in_nothing_else() -> None:
    small, large = ({n: moved(m, [0.1], flops=x) for n, m in MAKES.items()} for x in (1e-6, 1e6))
    assert torch.equal(small["sign"], large["sign"])
    assert not torch.allclose(small["sgd"], large["sgd"])
    assert not torch.allclose(small["adam"], large["adam"])


@pytest.mark.parametrize(
    ("kept", "units", "taken"), [(0.9, 10, 9), (0.07, 100, 7), (0.1, 12, 2), (0.1, 3, 1), (1, 5, 5)]
)
def test_sign_takes_its_share_of_the_entries_rounded_up(
    kept: float, units: int, taken: int
) -> None:
    alpha = {"heads": torch.zeros(1, 1, units)}
    gradients = {"heads": torch.arange(1.0, units + 1).view(1, 1, units)}
    AlphaSign(alpha, torch.ones(1), kept).step(gradients, {"heads": torch.zeros(1, 1, units)})
    assert alpha["heads"].flatten().tolist() == [0.0] * (units - taken) + [-1.0] * taken


def test_of_equal_gradients_sign_takes_the_last() -> None:
    """All neurons cost the same, so their FLOPs gradients are one tie."""
    alpha = {"ffn": torch.zeros(1, 2, 5)}
    equal = {"ffn": torch.full((1, 2, 5), 0.3)}
    AlphaSign(alpha, torch.ones(1), 0.3).step(equal, {"ffn": torch.zeros(1, 2, 5)})
    assert alpha["ffn"].flatten().tolist() == [0.0] * 7 + [-1.0] * 3


def test_a_step_of_adam_is_bounded_by_a_few_kappa() -> None:
    """A large gradient after small ones; a dozen; gradients that grow as fast as moves it most."""

    def farthest(gradients: list[float]) -> float:
        alpha = {"heads": torch.zeros(1, 1, 1)}
        optimizer, way = AlphaAdam(alpha, torch.ones(1)), [0.0]
        for gradient in gradients:
            optimizer.step(
                {"heads": torch.full((1, 1, 1), gradient)}, {"heads": torch.zeros(1, 1, 1)}
            )
            way.append(alpha["heads"].item())
        return max(abs(after - before) for before, after in pairwise(way))

    quiet = [1e-6] * 5000
    assert farthest([1.0] * 20) < 1.01
    assert farthest([*quiet, 1.0]) == pytest.approx(3.15, abs=0.05)
    assert farthest([*quiet, *[1.0] * 12]) == pytest.approx(6.55, abs=0.05)
    rising = [1e-6 * (0.999 / 0.9) ** step for step in range(200)]
    assert 7 < farthest([*quiet, *rising]) < 7.28


def test_sign_moves_the_largest_gradients_on_the_integer_lattice() -> None:
    alpha = {"heads": torch.full((1, 1, 5), 5.0)}
    optimizer = AlphaSign(alpha, torch.ones(1), kept=0.4)
    optimizer.step(
        {"heads": torch.tensor([[[0.1, -0.9, 0.2, 0.8, 0.0]]])},
        {"heads": torch.tensor([[[0.5, 0.4, 0.3, 0.2, 0.1]]])},
    )
    assert alpha["heads"].tolist() == [[[4.0, 5.0, 5.0, 4.0, 5.0]]]
