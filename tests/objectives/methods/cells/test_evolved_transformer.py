"""The Evolved Transformer: where it begins, who is trained for how long, and what is chosen."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from random import Random
from typing import Any, ClassVar

import pytest
import torch
from torch import nn

from maskfront import EvolvedTransformer
from objectives.measures.measured import measured_flops
from objectives.methods.cells import evolved_transformer
from objectives.methods.cells.base.learning import answers_loss, finished, new_cell
from objectives.methods.cells.evolved_transformer import TRANSFORMER, Hurdles, Judged
from objectives.problem import Problem
from objectives.students.cells.genotype import Genotype
from objectives.students.cells.graph import IDENTITY, NONE
from objectives.training.fitting import train_cells, trainable
from tests.objectives.conformance import (
    RecordingProgress,
    SearchMethodConformance,
    search_alone,
)

QUICK = EvolvedTransformer(
    **{"width": 16, "nodes": 3, "most_cells": 1, "batch_size": 16, "search_epochs": 0.3},
    **{"operations": (IDENTITY, NONE, "positions", "attention", "feed_forward", "conv3", "max3")},
    **{"epochs": 0.2, "candidates": 3, "every": 1, "population": 2, "sample": 2, "finalists": 2},
    mutation=0.2,
)


class TestEvolvedTransformer(SearchMethodConformance):
    quick = QUICK


def test_the_seed_is_a_transformer(problem: Problem) -> None:
    """Its logits are those of torch's own encoder layer, at the same weights."""
    space = EvolvedTransformer().space
    assert space.graph(space.choices(TRANSFORMER)) == TRANSFORMER.canonical()
    genotype = Genotype(32, nodes=space.graph(space.choices(TRANSFORMER)).nodes)
    assert Genotype.from_json(genotype.to_json()) == genotype
    with torch.random.fork_rng():
        torch.manual_seed(0)
        student = new_cell(genotype, problem)
        layer = nn.TransformerEncoderLayer(
            **{"d_model": 32, "nhead": 2, "dim_feedforward": 128, "dropout": 0.0},
            **{"activation": "gelu", "batch_first": True, "norm_first": True},
        )
    _, attention, forward = student.blocks
    own = {"self_attn.in_proj": attention.operation.query_key_value, "norm1": attention.LayerNorm}
    own |= {"self_attn.out_proj": attention.operation.out, "norm2": forward.LayerNorm}
    own |= {"linear1": forward.operation.inner, "linear2": forward.operation.out}
    joint = {"self_attn.in_proj": "_"}
    layer.load_state_dict(
        {
            f"{name}{joint.get(name, '.')}{kind}": getattr(module, kind)
            for name, module in own.items()
            for kind in ("weight", "bias")
        }
    )
    batch = next(problem.alpha.in_order(8, "cpu"))
    hidden, mask = student.embedded(**batch.inputs)
    angles = torch.arange(hidden.shape[1])[:, None] * 10_000.0 ** (-torch.arange(0, 32, 2) / 32)
    hidden = (hidden + torch.cat([angles.sin(), angles.cos()], -1)) * mask
    hidden = layer(hidden, src_key_padding_mask=~batch.attention_mask) * mask
    assert not batch.attention_mask.all(), "some are padded"
    wanted = student.classified(hidden, mask)
    torch.testing.assert_close(student(**batch.inputs).logits, wanted)


def test_every_cell_of_the_space_is_a_model_that_costs_what_was_said(problem: Problem) -> None:
    method = replace(QUICK, most_cells=2)
    net, random = method._super_net(problem, 0), Random(0)
    for choices in [method.space.choices(TRANSFORMER), *map(method.space.drawn, [random] * 5)]:
        graph = method.space.graph(choices)
        read = {state for node in graph.nodes for state in node.inputs}
        assert all(max(n.inputs) < number for number, n in enumerate(graph.nodes, start=1))
        assert set(range(1, 1 + len(graph.nodes))) - read or not graph.nodes
        said = net.expected_flops(method.space.one_hot(choices), problem.seq_len)
        assert said == measured_flops(finished(net.extract(choices)), problem.seq_len)


def test_candidates_share_the_frozen_words_alone(problem: Problem) -> None:
    net = QUICK._super_net(problem, 0)
    own = {weight.data_ptr(): weight for weight in net.parameters()}
    student = net.extract(QUICK.space.choices(TRANSFORMER))
    shared = [own[w.data_ptr()] for w in student.parameters() if w.data_ptr() in own]
    assert [weight.requires_grad for weight in shared] == [False]


class Recorded(Hurdles):
    """Remembers who was trained for how many steps, and the hurdles."""

    last: ClassVar["Recorded"]

    def __init__(self, increments: Iterable[int]) -> None:
        super().__init__(tuple(increments))
        self.steps: list[int] = []
        self.cells: list[Any] = []
        type(self).last = self

    def judge(self, trains: Iterable[Any]) -> Iterator[tuple[Any, Judged]]:
        for train, judged in super().judge(trains):
            self.steps.append(len(train.losses))
            self.cells.append(train)
            yield train, judged


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evolved_transformer, "Hurdles", Recorded)


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Scores in place of those of answers, in the order in which they are asked for."""
    scores: list[float] = []
    monkeypatch.setattr(evolved_transformer, "answer_score", lambda *_: scores.pop(0))
    return scores


STEPS = replace(QUICK, search_epochs=8 / 15, increments=(1, 1, 2), every=4, sample=64)
"""A pass over train has 15 steps: increments of 2, 2 and 4 steps. A sample has all who live."""


@pytest.mark.usefixtures("recorded")
def test_who_is_trained_for_how_long(problem: Problem, script: list[float]) -> None:
    method = replace(STEPS, candidates=8, population=3, finalists=2)
    script += [1.0, 3.0, 0.0, 5.0]  # 1, 3 and 5 live: the hurdle is 3
    script += [2.9]  # it stops; 2.9, 3 and 5 live
    script += [3.0, 4.0]  # equal to it: goes on; 3, 4 and 5 live, or 2.9, 4 and 5
    script += [6.0, 2.0]  # goes on, and is the worst then: it dies
    script += [3.5, 8.0]  # goes on; the second hurdle is the mean of 4 and 8
    script += [4.1, 8.0]  # of the finalists, 8 and 5
    found = search_alone(method, problem)
    hurdles = Recorded.last
    assert script == []
    assert hurdles.heights == [3.0, 6.0]
    assert hurdles.steps == [2, 2, 2, 2, 2, 4, 4, 4]
    assert [len(one.losses) for one in hurdles.cells] == [2, 2, 2, 8, 2, 4, 4, 8]
    winner = hurdles.cells[3]
    assert isinstance(found.architecture, Genotype)
    assert found.architecture.graph == method.space.graph(winner.choices)
    assert method.space.graph(hurdles.cells[0].choices) == TRANSFORMER.canonical()
    assert len({method.space.graph(one.choices) for one in hurdles.cells}) == 8


@pytest.mark.usefixtures("recorded")
def test_training_that_goes_on_is_training_at_once(problem: Problem) -> None:
    """Two candidates: the first stops after an increment, and goes on as a finalist."""
    method = replace(STEPS, candidates=2, every=1)
    search_alone(method, problem)
    assert [len(one.losses) for one in Recorded.last.cells] == [8, 8]
    student = method._super_net(problem, 3).extract(method.space.choices(TRANSFORMER))
    student.train()
    curve = train_cells(
        problem,
        trainable(student),
        lambda batch, _: answers_loss(student(**batch.inputs).logits, batch, problem),
        **{"epochs": 8 / 15, "learning_rate": method.learning_rate},
        **{"batch_size": 16, "seed": 3, "progress": RecordingProgress()},
    )
    losses = torch.stack(Recorded.last.cells[0].losses).tolist()
    assert losses == pytest.approx([point["loss"] for point in curve], rel=1e-6)


def test_hurdles_may_be_static(problem: Problem, script: list[float]) -> None:
    method = replace(STEPS, candidates=4, finalists=1, reading="static")
    script += [1.0, 2.0, 3.0, 6.0]  # the mean is 3
    script += [5.0, 7.0]  # the mean is 6
    script += [8.0]
    script += [8.0]  # the finalist, who has been trained to the end
    found = search_alone(method, problem)
    assert script == []
    assert [p["step"] for p in found.curve if p["stage"] == "search"][-1] == 8
    assert set(method.inactive()) >= {"every", "population", "sample", "mutation"}


def test_the_flops_loss_counts_against_a_cell(problem: Problem) -> None:
    method = replace(QUICK, candidates=8, target_ratio=1e-4, flops_weight=100.0)
    found = search_alone(method, problem)
    net = method._super_net(problem, 3)
    transformer = net.extract(method.space.choices(TRANSFORMER))
    flops = [measured_flops(model, problem.seq_len) for model in (found.model, transformer)]
    assert flops[0] < flops[1] / 2
