"""Models cut differently from one student train as one program, each as it would alone."""

import copy

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from objectives.errors import UserError
from objectives.problem import Problem
from objectives.students.bert.architecture import BertArchitecture, LayerUnits
from objectives.students.bert.cutting import cut
from objectives.students.bert.pruned_bert import PrunedBertForSequenceClassification
from objectives.text.data import Batch
from objectives.training.optimisation import parameter_groups
from objectives.training.population import Population
from tests.conftest import TINY
from tests.objectives.hypothesis_strategies import architectures

EVERY_SPACE = ("heads", "ffn", "qk", "v", "input_qkv", "layers")

NARROW = LayerUnits(
    (1,),
    (0,),
    query_key=((2,),),
    value=((7,),),
    query_inputs=(5,),
    key_inputs=(6,),
    value_inputs=(0,),
)
DIFFERENT = [
    BertArchitecture.full(TINY),
    BertArchitecture(
        (NARROW, LayerUnits((), ()), LayerUnits((0, 3), (1, 2, 3), value_inputs=(1, 30)))
    ),
    BertArchitecture((LayerUnits((), tuple(range(9))), NARROW, LayerUnits((), ()))),
    BertArchitecture((NARROW, *(LayerUnits((), (), dropped=True),) * 2)),
]
"""A whole model, layers without heads, without neurons, and with a single unit of everything; and
one without layers."""


@pytest.fixture(scope="module")
def batch(problem: Problem) -> Batch:
    return problem.train.batch(np.arange(6), "cpu")


def cut_models(
    problem: Problem, drawn: list[BertArchitecture]
) -> list[PrunedBertForSequenceClassification]:
    """In float64, in which sums in another order agree to 1e-9 even after some steps."""
    weights, config = problem.student.state_dict(), problem.student.config
    return [cut(weights, config, architecture).double() for architecture in drawn]


def trained(population: Population, batch: Batch, steps: int) -> Population:
    """After some steps of AdamW, with its weight decay, from the labels."""
    optimizer = torch.optim.AdamW(parameter_groups(population.weights, 1e-2), fused=True)
    for _ in range(steps):
        logits = population.logits(batch)
        labels = batch.labels.expand(len(logits), -1)
        functional.cross_entropy(logits.transpose(1, 2), labels, reduction="sum").backward()
        optimizer.step()
        optimizer.zero_grad()
    return population


def assert_close(actual: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    """Equal names and shapes, and values to 1e-9."""
    torch.testing.assert_close(actual, expected, atol=1e-9, rtol=0)


def test_a_slot_is_the_state_of_the_model_that_was_cut(problem: Problem) -> None:
    models = cut_models(problem, DIFFERENT)
    population = Population.of(models)
    for slot, model in enumerate(models):
        state = population.slot(slot)
        torch.testing.assert_close(state, dict(model.state_dict()), atol=0, rtol=0)
        copy.deepcopy(model).load_state_dict(state)


def test_different_models_train_together_as_they_do_alone(problem: Problem, batch: Batch) -> None:
    models = cut_models(problem, DIFFERENT)
    together = trained(Population.of(models), batch, steps=5)
    logits = together.logits(batch).detach()
    for slot, model in enumerate(models):
        alone = trained(Population.of([model]), batch, steps=5)
        assert_close(together.slot(slot), alone.slot(0))
        torch.testing.assert_close(logits[slot], alone.logits(batch)[0].detach(), atol=1e-9, rtol=0)
        moved = together.slot(slot)["bert.pooler.dense.weight"]
        assert not torch.allclose(moved, model.state_dict()["bert.pooler.dense.weight"])


@settings(max_examples=10)
@given(drawn=st.lists(architectures(TINY, EVERY_SPACE), min_size=2, max_size=4))
def test_any_models_give_the_logits_and_gradients_that_they_give_alone(
    problem: Problem, batch: Batch, drawn: list[BertArchitecture]
) -> None:
    models = cut_models(problem, drawn)
    together = trained(Population.of(models), batch, steps=1)
    for slot, model in enumerate(models):
        assert_close(together.slot(slot), trained(Population.of([model]), batch, steps=1).slot(0))


def test_equal_models_are_not_padded(problem: Problem) -> None:
    models = cut_models(problem, DIFFERENT[1:2] * 2)
    population = Population.of(models)
    shapes = {name: weight.shape[1:] for name, weight in population.weights.items()}
    assert shapes == {
        name: weight.shape
        for name, weight in models[0].state_dict().items()
        if "embeddings" not in name and not name.endswith("inputs")
    }


def test_padding_stays_zero(problem: Problem, batch: Batch) -> None:
    """What no model owns: weights of the fused population less those of its slots."""
    models = cut_models(problem, DIFFERENT)
    population = trained(Population.of(models), batch, steps=5)
    for slot in range(len(models)):
        own = population.slot(slot)
        for name, weight in population.weights.items():
            kept = own[name].count_nonzero() if name in own else 0
            assert weight[slot].count_nonzero() == kept, name


def test_an_activation_that_gives_something_for_nothing_is_refused(problem: Problem) -> None:
    config = copy.deepcopy(problem.student.config)
    config.hidden_act = "sigmoid"
    models = [cut(problem.student.state_dict(), config, found) for found in DIFFERENT]
    with pytest.raises(UserError, match="'sigmoid' is not 0 at 0"):
        Population.of(models)
    assert Population.of(models[:1]).size == 1
