"""A cell is a plain transformers model: it saves, loads, exports, and padding changes nothing."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModelForSequenceClassification

from objectives.delivery.exported import load_model
from objectives.engines.onnx_model import write_onnx
from objectives.errors import UserError
from objectives.measures.measured import measured_costs, measured_flops
from objectives.students.cells.cell_classifier import (
    POOLINGS,
    CellConfig,
    CellForSequenceClassification,
)
from objectives.students.cells.genotype import Genotype
from objectives.students.cells.graph import IDENTITY, NONE, Graph, Node
from objectives.students.cells.operations import OPERATIONS, POSITION_WISE
from tests.objectives.students.cells.known_formulas import EVERY
from tests.objectives.students.cells.test_graph import graphs

VOCABULARY = 50


def cell(*operations: str, width: int = 16, **changes: Any) -> CellForSequenceClassification:
    """Random weights, in evaluation mode."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = CellForSequenceClassification(
            CellConfig(
                vocab_size=VOCABULARY,
                hidden_size=width,
                operations=operations,
                num_labels=3,
                **changes,
            )
        )
        for weight in model.parameters():  # some begin as zeros
            weight.data += 0.1 * torch.randn_like(weight)
    model.train(False)
    return model


BRANCHED = Graph(
    (
        Node((0,), ("conv3",)),
        Node((0, 1), (IDENTITY, "attention"), "product"),
        Node((0, 1, 1), ("light3", "gated", IDENTITY), "mean"),
    )
)


OR_FORMULA = [*OPERATIONS, *(pytest.param(text, id=name) for name, text in EVERY.items())]


@pytest.mark.parametrize("operation", OR_FORMULA)
def test_padding_changes_no_answer(operation: str) -> None:
    model = cell(operation, operation, width=32, pooling=("mean", "max", "min"))
    ids = torch.arange(1, 8)[None]
    padded = torch.cat([ids, torch.full((1, 5), 9)], dim=1)
    mask = torch.cat([torch.ones_like(ids), torch.zeros(1, 5, dtype=torch.long)], dim=1)
    alone, beside = model(ids).logits, model(padded, attention_mask=mask).logits
    torch.testing.assert_close(alone, beside)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_all_operations_but_some_look_at_neighbours(operation: str) -> None:
    model = cell(operation)
    ids, other = torch.arange(1, 8)[None], torch.arange(1, 8)[None]
    other[0, 3] = 20
    states: list[torch.Tensor] = []
    model.blocks[0].register_forward_hook(lambda *seen: states.append(seen[2]))
    model(ids)
    model(other)
    changed = ((states[0] - states[1]).abs().sum(-1)[0] > 1e-6).tolist()
    own = [place == 3 for place in range(7)]
    assert changed[3] == (operation != "positions")
    assert (changed == own) == (operation in POSITION_WISE)


@pytest.mark.parametrize("operation", [*OR_FORMULA, None])
def test_saves_and_loads(operation: str | None, tmp_path: Path) -> None:
    """An operation in a chain; or all that a graph may have."""
    graph = {"nodes": BRANCHED.to_list(), "pooling": ("min", "mean"), "bigrams": 64}
    model = cell(operation, "conv3", width=32) if operation else cell(**graph)
    model.save_pretrained(tmp_path)
    ids = torch.arange(1, 8)[None]
    torch.testing.assert_close(load_model(tmp_path)(ids).logits, model(ids).logits)
    known = AutoModelForSequenceClassification.from_pretrained(tmp_path)
    assert isinstance(known, CellForSequenceClassification)


@pytest.mark.slow
def test_every_operation_and_combination_runs_in_onnx(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime", reason="NOT TESTED: ONNX; the extra onnx is not installed")
    chain = Graph.chain([*OPERATIONS, *EVERY.values()]).nodes
    combined = Node((0, len(chain)), (IDENTITY, IDENTITY), "product")
    graph = Graph((*chain, combined, *BRANCHED.nodes))
    model = cell(nodes=graph.to_list(), pooling=("min", "mean"), bigrams=64)
    assert write_onnx(model, tmp_path / "model.onnx") < 1e-4


def test_a_chain_norms_does_its_operation_and_adds() -> None:
    model = cell("conv3", "attention", "max3")
    ids, mask = torch.arange(1, 15).view(2, 7), torch.ones(2, 7, dtype=torch.long)
    mask[1, 4:] = 0
    hidden, mask_BS1 = model.embedded(ids, mask, None)
    for block in model.blocks:
        hidden = (hidden + block.operation(block.LayerNorm(hidden) * mask_BS1, mask_BS1)) * mask_BS1
    wanted = model.classified(hidden, mask_BS1)
    assert model(ids, attention_mask=mask).logits.equal(wanted)


def test_a_graph_combines_what_its_nodes_read() -> None:
    model = cell(nodes=BRANCHED.to_list())
    ids = torch.arange(1, 8)[None]
    first, mask = model.embedded(ids, None, None)
    conv, attention, light, gated = (
        lambda hidden, own=own: own(hidden, mask) for own in model.blocks
    )
    one = conv(first)
    two, three = first * attention(one), (light(first) + gated(one) + one) / 3
    answer = model(ids, output_hidden_states=True)
    torch.testing.assert_close(answer.logits, model.classified((two + three) / 2, mask))
    torch.testing.assert_close(list(answer.hidden_states), [first, one, two, three])


def test_a_model_that_was_saved_before_there_were_graphs_loads(tmp_path: Path) -> None:
    model = cell("conv3", "gated")
    model.save_pretrained(tmp_path)
    file = tmp_path / "config.json"
    config = json.loads(file.read_text())
    del config["nodes"], config["pooling"], config["bigrams"]
    file.write_text(json.dumps(config))
    names = [name for name in model.state_dict() if name.startswith("blocks.1.")]
    own = [f"{layer}.{kind}" for layer in ("gated", "out") for kind in ("weight", "bias")]
    norm = [f"blocks.1.LayerNorm.{kind}" for kind in ("weight", "bias")]
    assert names == [*norm, *(f"blocks.1.operation.{name}" for name in own)]
    ids = torch.arange(1, 8)[None]
    torch.testing.assert_close(load_model(tmp_path)(ids).logits, model(ids).logits)


def test_a_table_of_pairs_knows_neighbours_and_counts_in_bytes() -> None:
    model, plain = cell(bigrams=64), cell()
    ids = torch.tensor([[5, 9, 7], [9, 5, 7]])
    bag = plain(ids).logits
    torch.testing.assert_close(bag[0], bag[1])
    assert not model(ids).logits[0].allclose(model(ids).logits[1])
    costs, known = (measured_costs(own, 8) for own in (model, plain))
    assert costs["params"] - known["params"] == 64 * 16
    assert 0 <= costs["bytes"] - known["bytes"] - 4 * 64 * 16 < 200, "but for the file's header"
    assert costs["flops@8"] == known["flops@8"]
    padded = torch.tensor([[5, 9, 7, 3, 3]])
    mask = torch.tensor([[1, 1, 1, 0, 0]])
    torch.testing.assert_close(model(padded, attention_mask=mask).logits, model(ids[:1]).logits)


def test_the_lowest_of_the_tokens_may_be_read() -> None:
    model = cell(pooling=("min",))
    hidden, mask_BS1 = torch.randn(2, 5, 16), torch.ones(2, 5, 1)
    mask_BS1[1, 3:] = 0
    read: list[torch.Tensor] = []
    model.LayerNorm.register_forward_pre_hook(lambda _, given: read.append(given[0]))
    model.classified(hidden * mask_BS1, mask_BS1)
    assert read[0].equal(torch.stack([hidden[0].amin(0), hidden[1, :3].amin(0)]))


@given(st.lists(st.sampled_from(list(OPERATIONS)), max_size=3), st.sampled_from([16, 32]))
@settings(max_examples=20, deadline=None)
def test_flops_are_those_of_a_pass(operations: list[str], width: int) -> None:
    model = cell(*operations, width=width)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        model(torch.ones(1, 12, dtype=torch.long))
    assert measured_flops(model, 12) == counter.get_total_flops()


WIDTH, TOKENS = 32, 12
MATMULS = {
    "conv": lambda kernel: 3 * WIDTH**2 + kernel * WIDTH,
    "dilated": lambda kernel: 3 * WIDTH**2 + kernel * WIDTH,
    "plain": lambda kernel: kernel * WIDTH**2,
    "atrous": lambda kernel: kernel * WIDTH**2,
    "separable": lambda kernel: WIDTH**2 + kernel * WIDTH,
    "light": lambda kernel: 3 * WIDTH**2 + kernel * WIDTH,
    "dynamic": lambda kernel: 3 * WIDTH**2 + kernel * WIDTH + WIDTH * (WIDTH // 16) * kernel,
    "attention": lambda heads: 4 * WIDTH**2 + 2 * TOKENS * WIDTH,
    "gated": lambda _: 3 * WIDTH**2,
    "feed_forward": lambda _: 8 * WIDTH**2,
    **dict.fromkeys(("tanh", "relu", "sigmoid", "linear"), lambda _: 2 * WIDTH**2),
    "positions": lambda _: 0,
    "max": lambda _: 0,
    "mean": lambda _: 0,
}
"""Multiplications of an operation at a token, by its name and number."""


@pytest.mark.parametrize("operation", OPERATIONS)
def test_an_operation_costs_what_its_matmuls_do(operation: str) -> None:
    kind = operation.rstrip("0123456789")
    of_one = MATMULS[kind](int(operation[len(kind) :] or 0))
    without = measured_flops(cell(width=WIDTH), TOKENS)
    assert measured_flops(cell(operation, width=WIDTH), TOKENS) - without == 2 * TOKENS * of_one


@pytest.mark.parametrize("dynamic", [False, True])
def test_the_weights_of_a_light_convolution_add_up_to_one(dynamic: bool) -> None:
    """What is the same everywhere stays as it is, away from the ends."""
    own = OPERATIONS["dynamic3" if dynamic else "light3"](32)
    own.out = torch.nn.Identity()
    hidden = torch.randn(1, 1, 32).expand(1, 7, 32)
    units = torch.nn.functional.glu(own.gated(hidden), dim=-1)
    mixed = own(hidden, torch.ones(1, 7, 1))
    torch.testing.assert_close(mixed[:, 1:-1], units[:, 1:-1])
    assert not mixed[:, 0].allclose(units[:, 0])


def test_two_positions_are_told_apart() -> None:
    model, ids = cell("positions", "gated"), torch.tensor([[5, 9], [9, 5]])
    assert not model(ids).logits[0].allclose(model(ids).logits[1])
    bag = cell("gated")(ids).logits
    torch.testing.assert_close(bag[0], bag[1])


@given(
    st.lists(st.sampled_from([*OPERATIONS, NONE]), max_size=6),
    st.integers(1, 20).map(lambda number: 16 * number),
)
def test_a_genotype_survives_json(operations: list[str], width: int) -> None:
    genotype = Genotype(width, tuple(operations))
    assert Genotype.from_json(genotype.to_json()) == genotype
    assert all(len(row) == len(genotype.operations) for row in genotype.sizes().values())


@given(graphs(), st.permutations(list(POOLINGS)))
def test_a_genotype_of_a_graph_survives_json(graph: Graph, pooling: list[str]) -> None:
    genotype = Genotype(16, nodes=graph.nodes, pooling=tuple(pooling), bigrams=8)
    assert genotype.pooling == tuple(POOLINGS)
    assert genotype.graph == graph.canonical()
    assert Genotype.from_json(genotype.to_json()) == genotype
    assert all(len(row) == len(genotype.blocks) for row in genotype.sizes().values())


def test_a_genotype_of_before_there_were_graphs_is_read() -> None:
    text = '{"width": 32, "operations": ["conv3", "gated"]}'
    assert Genotype.from_json(text) == Genotype(32, ("conv3", "gated"))


def test_a_graph_that_is_a_chain_becomes_one() -> None:
    chain = ("conv3", "attention")
    assert Genotype(16, nodes=Graph.chain(chain).nodes) == Genotype(16, chain)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"nodes": (Node((0,), ("conv_3",)),)}, "did you mean 'conv3'"),
        ({"nodes": (Node((1,), ("conv3",)),)}, r"nodes\[0\] reads 1"),
        ({"pooling": ("mean", "mean")}, "each only once"),
        ({"pooling": ()}, "at least one kind"),
        ({"bigrams": -1}, "bigrams is -1"),
        ({"pooling": ("median",)}, "there is no pooling 'median'"),
    ],
)
def test_what_makes_no_model_is_refused(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        Genotype(16, **fields)


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"width": "x", "operations": []}'])
def test_what_is_no_genotype_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="not a genotype"):
        Genotype.from_json(text)
