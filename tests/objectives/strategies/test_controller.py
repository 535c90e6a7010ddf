"""ENAS' controller: its probabilities and its gradient by enumeration of a whole space."""

from itertools import product

import numpy as np
import pytest
import torch

from objectives.strategies.controller import Controller, ControllerSettings
from objectives.strategies.strategy import Candidate, Places

ACTIVATIONS = ("tanh", "relu", "identity", "sigmoid")
CELL: Places = {
    "activation[0]": ACTIVATIONS,
    "input[1]": (0,),
    "activation[1]": ACTIVATIONS,
    "input[2]": (0, 1),
    "activation[2]": ACTIVATIONS,
}
"""ENAS' cell of three nodes: 2! x 4^3 = 128."""


def all_of(places: Places) -> list[Candidate]:
    return [dict(zip(places, choices, strict=True)) for choices in product(*places.values())]


def controller(hidden: int = 8, **settings: float) -> Controller:
    return Controller(CELL, 0, ControllerSettings(hidden=hidden, **settings))


def test_the_probabilities_of_all_cells_sum_to_one() -> None:
    cells = all_of(CELL)
    log_probs, _ = controller().log_probs(cells)
    assert len(cells) == 128
    assert float(log_probs.detach().exp().sum()) == pytest.approx(1, abs=1e-5)


def test_a_log_probability_is_the_sum_over_the_decisions() -> None:
    """By hand: the LSTM of torch, fed with the embedding of the choice before."""
    policy, cell = (made := controller()).policy, all_of(CELL)[77]
    state, word, total, entropy = None, torch.zeros(1, 8), 0.0, 0.0
    embeddings = {ACTIVATIONS: 0, (0,): 1, (0, 1): 2}
    for decoder, (name, choices) in zip(policy.decoders, CELL.items(), strict=True):
        state = policy.cell(word, state)
        shares = decoder(state[0])[0].softmax(-1)
        index = choices.index(cell[name])
        total += float(shares[index].detach().log())
        entropy -= float((shares * shares.log()).detach().sum())
        word = policy.embeddings[embeddings[choices]](torch.tensor([index]))
    log_probs, entropies = made.log_probs([cell])
    assert log_probs.item() == pytest.approx(total, abs=1e-5)
    assert entropies.item() == pytest.approx(entropy, abs=1e-5)


def test_it_starts_as_the_paper_says() -> None:
    policy = controller().policy
    assert all(float(parameter.detach().abs().max()) <= 0.1 for parameter in policy.parameters())
    assert all(not decoder.bias.any() for decoder in policy.decoders)


def test_it_draws_by_its_probabilities() -> None:
    """A chi square of 127 degrees of freedom is above 182 with probability 0.001."""
    made = controller()
    with torch.no_grad():
        for parameter in made.policy.parameters():
            parameter.mul_(10)
    cells = all_of(CELL)
    expected = made.log_probs(cells)[0].exp().detach().double().numpy() * 20_000
    found = [tuple(cell.values()) for cell in made.propose(20_000)]
    counts = np.array([found.count(tuple(cell.values())) for cell in cells])
    kept = expected > 5
    assert kept.sum() > 100
    assert ((counts - expected) ** 2 / expected)[kept].sum() < 182


@pytest.mark.parametrize("baseline", [0.0, 0.7])
def test_the_expected_step_follows_the_exact_gradient(baseline: float) -> None:
    """sum p(c) (R(c) - b) grad log p(c) is the gradient of E[R], whatever the baseline."""
    made, cells = controller(), all_of(CELL)
    parameters = list(made.policy.parameters())
    rewards = torch.from_numpy(np.random.default_rng(0).random(len(cells))).float()

    probabilities = made.log_probs(cells)[0].exp()
    exact = torch.autograd.grad((probabilities * rewards).sum(), parameters)
    log_probs, _ = made.log_probs(cells)
    step = torch.autograd.grad(
        (probabilities.detach() * (rewards - baseline) * log_probs).sum(), parameters
    )
    for ours, theirs in zip(step, exact, strict=True):
        torch.testing.assert_close(ours, theirs, atol=2e-6, rtol=1e-3)


def test_a_score_is_one_step_of_adam_along_that_gradient() -> None:
    """The first step of Adam is the learning rate times the sign of the gradient."""
    made, cell = controller(learning_rate=0.01, entropy_weight=0.0), all_of(CELL)[5]
    made.baseline = 0.5
    log_probs, _ = made.log_probs([cell])
    uphill = torch.autograd.grad(log_probs.sum(), list(made.policy.parameters()))
    before = [parameter.detach().clone() for parameter in made.policy.parameters()]
    made.learn([(cell, 0.9)])
    for old, new, gradient in zip(before, made.policy.parameters(), uphill, strict=True):
        clear = gradient.abs() > 1e-5
        torch.testing.assert_close(
            (new - old)[clear], 0.01 * gradient.sign()[clear], rtol=0.01, atol=0
        )


def test_the_baseline_is_a_moving_average_and_the_first_score_teaches_nothing() -> None:
    made, cell = controller(entropy_weight=0.0), all_of(CELL)[5]
    before = made.log_probs([cell])[0].detach()
    made.learn([(cell, 0.8)])
    assert made.baseline == 0.8
    torch.testing.assert_close(made.log_probs([cell])[0].detach(), before, atol=0, rtol=0)
    made.learn([(cell, 0.4), (cell, 0.6)])
    assert made.baseline == pytest.approx(0.95 * (0.95 * 0.8 + 0.05 * 0.4) + 0.05 * 0.6)


def test_entropy_holds_the_policy_open() -> None:
    cells = all_of(CELL)
    flat, sure = (controller(learning_rate=0.02, entropy_weight=w) for w in (10.0, 0.0))
    for made in (flat, sure):
        made.learn([(cell, float(cell["activation[0]"] == "relu")) for cell in made.propose(30)])
    assert flat.log_probs(cells[:1])[1] > sure.log_probs(cells[:1])[1]


def test_it_learns_to_choose_what_pays() -> None:
    """One if all three activations are tanh: at the start one cell in 64."""
    made = controller(learning_rate=0.05)
    for _ in range(20):
        made.learn([(cell, float(paying(cell))) for cell in made.propose(10)])
    cells = [cell for cell in all_of(CELL) if paying(cell)]
    assert len(cells) == 2
    assert float(made.log_probs(cells)[0].detach().exp().sum()) > 0.9


def paying(cell: Candidate) -> bool:
    return all(cell[f"activation[{node}]"] == "tanh" for node in range(3))
