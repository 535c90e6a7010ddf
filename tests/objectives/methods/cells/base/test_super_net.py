"""A super-net is each of its models: in logits, gradients and cost; soft weights mix them."""

import math
import random
from collections.abc import Mapping
from itertools import product
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from objectives.errors import UserError
from objectives.measures.measured import measured_flops
from objectives.methods.cells.base.super_net import SuperNet
from objectives.students.cells.cell_classifier import CellConfig, CellForSequenceClassification
from objectives.students.cells.graph import COMBINATIONS, IDENTITY, NONE, Graph, Node
from objectives.students.cells.graph_space import GraphSpace

OPERATIONS = ("conv3", "attention", "max3", IDENTITY, NONE)
GRAPHS = GraphSpace(nodes=3, operations=OPERATIONS, combinations=COMBINATIONS)
STACKED = GraphSpace(
    nodes=2, operations=OPERATIONS, edges=0, inputs=2, output="all", cells=(0, 1, 2, 3)
)
CHAINED = GraphSpace(nodes=1, operations=("conv3", "gated", NONE), inputs=2, cells=(1, 3))
HIGHWAYS = ("tanh", "relu", "sigmoid", "linear", NONE)
DARTS = GraphSpace(nodes=2, operations=HIGHWAYS, edges=0, output="all")
ENAS = GraphSpace(nodes=3, operations=(*HIGHWAYS, "gated", IDENTITY), edges=1)
READING = GraphSpace(
    nodes=1, operations=HIGHWAYS, edges=0, output="all", reads=(IDENTITY, NONE, "tanh"), window=3
)
RECURRENT = {"recurrent, all": DARTS, "recurrent, unread": ENAS, "recurrent, reads": READING}
SPACES = {"graphs": GRAPHS, "stacked": STACKED, "chained": CHAINED, **RECURRENT}
TOKENS = 9


def net_of(space: GraphSpace, recurrent: bool = False) -> SuperNet:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = CellConfig(vocab_size=50, hidden_size=16, num_labels=3, recurrent=recurrent)
        return SuperNet(space, CellForSequenceClassification(config))


NETS = {name: net_of(space, name in RECURRENT) for name, space in SPACES.items()}


@pytest.fixture
def inputs() -> dict[str, Tensor]:
    ids = torch.arange(1, 19).view(2, TOKENS)
    mask = torch.ones_like(ids)
    mask[1, 5:] = 0
    return {"input_ids": ids, "attention_mask": mask}


def gradients(model: torch.nn.Module, logits: Tensor) -> list[Tensor]:
    """Of all weights that have one, in no order."""
    model.zero_grad()
    logits.square().sum().backward()
    found = [w.grad for w in model.parameters() if w.grad is not None]
    return sorted(found, key=lambda gradient: (gradient.numel(), gradient.abs().sum().item()))


@pytest.mark.parametrize("name", SPACES)
@given(seed=st.integers(0, 2**32))
def test_at_one_hot_weights_it_is_the_plain_model(name: str, seed: int) -> None:
    space, net = SPACES[name], NETS[name]
    choices = space.drawn(random.Random(seed))
    plain = net.extract(choices)
    assert plain.graph.canonical() == space.graph(choices)
    ids = torch.arange(1, 19).view(2, TOKENS)
    given = {"input_ids": ids, "attention_mask": (ids != 18) & (ids != 17)}
    weights = space.one_hot(choices)
    found, wanted = net(given, weights).logits, plain(**given).logits
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-4)
    pairs = [gradients(own, logits) for own, logits in ((net, found), (plain, wanted))]
    torch.testing.assert_close(*pairs, atol=1e-4, rtol=1e-3)
    if not space.reads:
        learn = {name for name, weight in net.named_parameters() if weight.grad is not None}
        shared = {id(weight) for weight in net.shared(choices).parameters()}
        assert learn == {
            name
            for name, weight in net.named_parameters()
            if id(weight) in shared or name.split(".")[1] in ("LayerNorm", "pooler", "classifier")
        }
    flops = net.expected_flops(weights, TOKENS)
    assert flops == measured_flops(plain, TOKENS)
    of_tensors = {place: torch.tensor(own).requires_grad_() for place, own in weights.items()}
    assert net.expected_flops(of_tensors, TOKENS) == flops


def soft(space: GraphSpace, seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        place: torch.randn(len(choices), generator=generator).softmax(-1).requires_grad_()
        for place, choices in space.places.items()
    }


@pytest.mark.parametrize("name", ["stacked", "recurrent, all", "recurrent, reads"])
def test_every_soft_choice_has_a_gradient(name: str, inputs: dict[str, Tensor]) -> None:
    net, weights = NETS[name], soft(SPACES[name])
    net(inputs, weights).logits.square().sum().backward()
    for place, own in weights.items():
        assert own.grad is not None, place
        nothing = [c == NONE and "reads" not in place for c in SPACES[name].places[place]]
        assert ((own.grad != 0) | torch.tensor(nothing)).all(), place


def test_a_soft_edge_is_the_weighted_sum_of_its_operations(inputs: dict[str, Tensor]) -> None:
    """As DARTS has it: a node adds its edges up, and nothing of "none"."""
    space = GraphSpace(nodes=1, operations=("conv3", "gated", NONE), edges=0)
    net, weights = net_of(space), torch.tensor([0.5, 0.2, 0.3])
    first, mask = net.plain.embedded(inputs["input_ids"], inputs["attention_mask"], None)
    conv, gated = net.blocks.values()
    wanted = 0.5 * conv(first, mask) + 0.2 * gated(first, mask)
    answer = net(inputs, {"nodes[0].operations[0]": weights})
    torch.testing.assert_close(answer.hidden_states[-1], wanted)


OF_MEANS = {
    "one cell": GraphSpace(nodes=2, operations=("conv3", "attention", NONE), edges=1),
    "cells": GraphSpace(nodes=1, operations=("conv3", "gated"), edges=1, cells=(0, 1, 3)),
    "of two": GraphSpace(nodes=1, operations=("conv3", "gated"), edges=0, inputs=2, cells=(1, 3)),
}


@pytest.mark.parametrize("name", OF_MEANS)
def test_the_expected_cost_is_the_mean_of_the_costs(name: str) -> None:
    """Over all choices of a space, by their probabilities."""
    space = OF_MEANS[name]
    net, weights = net_of(space), soft(space, seed=1)
    mean = 0.0
    for chosen in product(*space.places.values()):
        choices = dict(zip(space.places, chosen, strict=True))
        shares = [weights[p][space.places[p].index(c)].item() for p, c in choices.items()]
        mean += math.prod(shares) * measured_flops(net.extract(choices), TOKENS)
    assert float(net.expected_flops(weights, TOKENS).detach()) == pytest.approx(mean)


def test_each_read_stays_where_a_share_of_the_edges_does() -> None:
    space = SPACES["recurrent, reads"]
    net, costs = net_of(space), net_of(space).costs(TOKENS)
    dearest = {
        place: max(own, key=lambda n: costs.get(n, 0)) for place, own in space.places.items()
    }
    reads = sum(costs[name] for place, name in dearest.items() if place.startswith("reads"))
    whole, none, half = (
        net.expected_flops(space.one_hot(dearest), TOKENS, kept) for kept in (1.0, 0.0, 0.5)
    )
    assert none == costs[NONE] + reads > costs[NONE]
    assert half == pytest.approx((whole + none) / 2)


def test_what_has_the_weight_zero_is_not_computed(inputs: dict[str, Tensor]) -> None:
    net, done = NETS["graphs"], list[str]()
    hooks = [
        block.register_forward_hook(lambda *_, key=key: done.append(key))
        for key, block in net.blocks.items()
    ]
    graph = Graph((Node((0, 0), ("conv3", IDENTITY)), Node((1,), ("attention",))))
    net(inputs, GRAPHS.one_hot(GRAPHS.choices(graph)))
    for hook in hooks:
        hook.remove()
    assert done == ["0-0-0-conv3", "0-1-0-attention"]


def test_weights_of_recurrent_nodes_that_are_not_used_get_no_gradient(
    inputs: dict[str, Tensor],
) -> None:
    net = net_of(ENAS, recurrent=True)
    graph = Graph((Node((0,), ("tanh",)), Node((0,), ("relu",))))
    choices = ENAS.choices(graph)
    net(inputs, ENAS.one_hot(choices)).logits.square().sum().backward()
    used = {"0-0-0-tanh", "0-1-0-relu"}
    for key, block in net.blocks.items():
        given = [w.grad for w in block.parameters() if w.grad is not None and w.grad.any()]
        assert bool(given) == (key in used), key


@pytest.mark.parametrize(
    ("space", "said"),
    [
        (GraphSpace(operations=("tanh",), inputs=2), "leave inputs and cells out where"),
        (GraphSpace(operations=("tanh",), cells=(1, 2)), "leave inputs and cells out where"),
        (GraphSpace(operations=("tanh", "conv3")), "'conv3' reads other tokens"),
    ],
)
def test_a_space_that_cannot_be_recurrent_is_refused(space: GraphSpace, said: str) -> None:
    with pytest.raises(UserError, match=said) as refusal:
        net_of(space, recurrent=True)
    assert "\n" not in str(refusal.value)


def straight_through(space: GraphSpace) -> tuple[dict[str, Tensor], Mapping[str, Tensor]]:
    """A sample whose gradients reach the logits of the choices, and these."""
    logits = {
        place: torch.zeros(len(all_)).requires_grad_() for place, all_ in space.places.items()
    }
    sample = {}
    for place, own in logits.items():
        probabilities = own.softmax(-1)
        taken = torch.zeros(len(own))
        taken[0] = 1
        sample[place] = taken - probabilities.detach() + probabilities
    return sample, logits


def test_a_sample_has_the_gradients_of_what_it_took_or_of_all(inputs: dict[str, Tensor]) -> None:
    space = GraphSpace(nodes=1, operations=("conv3", "gated", "max3"), edges=0)
    net = net_of(space)
    found: list[Any] = []
    for every in (False, True):
        sample, logits = straight_through(space)
        answer = net(inputs, sample, every=every)
        answer.logits.square().sum().backward()
        found.append((answer.logits.detach(), logits["nodes[0].operations[0]"].grad))
    wanted = net(
        inputs, space.one_hot({**space.drawn(random.Random(0)), "nodes[0].operations[0]": "conv3"})
    )
    torch.testing.assert_close(found[0][0], wanted.logits)
    torch.testing.assert_close(found[1][0], wanted.logits)
    values = torch.tensor([1.0, 0.0, 0.0]).requires_grad_()
    net(inputs, {"nodes[0].operations[0]": values}, every=True).logits.square().sum().backward()
    assert values.grad is not None
    thirds = torch.full((3, 3), -1 / 9) + torch.eye(3) / 3  # of a softmax at equal logits
    torch.testing.assert_close(found[1][1], thirds @ values.grad, atol=1e-5, rtol=1e-4)
    taken = values.grad * torch.tensor([1.0, 0.0, 0.0])
    torch.testing.assert_close(found[0][1], thirds @ taken, atol=1e-5, rtol=1e-4)


def test_weights_that_lack_a_place_are_refused(inputs: dict[str, Tensor]) -> None:
    with pytest.raises(KeyError, match=r"nodes\[0\].operations\[0\]"):
        NETS["graphs"](inputs, {})
