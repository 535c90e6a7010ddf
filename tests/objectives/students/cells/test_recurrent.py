"""Recurrent cells: the loop of ENAS and DARTS over the tokens, its hidden states and its files."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoModelForSequenceClassification

from objectives.delivery.exported import load_model
from objectives.engines.onnx_model import open_session, run_session, write_int8, write_onnx
from objectives.errors import UserError
from objectives.measures.measured import measured_flops
from objectives.students.cells.cell_classifier import CellForSequenceClassification
from objectives.students.cells.genotype import Genotype
from objectives.students.cells.graph import IDENTITY, NONE, Graph, Node
from objectives.students.cells.operations import POSITION_WISE
from tests.objectives.students.cells.test_cell_classifier import cell

WIDTH = 16
ACTIVATIONS = {"tanh": torch.tanh, "relu": torch.relu, "sigmoid": torch.sigmoid, "linear": Tensor}
CHAIN = tuple(Node((place,), (name,)) for place, name in enumerate(ACTIVATIONS))
"""As ENAS has it: each node reads the one before it."""
BRANCHED = (
    Node((0,), ("tanh",)),
    Node((0, 1), ("linear", IDENTITY), "product"),
    Node((0, 1), ("gated", "relu"), "mean"),
)
READING: dict[str, Any] = {"reads": ("tanh", "linear", IDENTITY, "relu"), "window": 3}


def recurrent(nodes: tuple[Node, ...], **changes: Any) -> CellForSequenceClassification:
    return cell(width=WIDTH, nodes=Graph(nodes).to_list(), recurrent=True, **changes)


def joined(model: CellForSequenceClassification, token: Tensor, state: Tensor) -> Tensor:
    """State 0 of a token, (B, D), written out."""
    assert isinstance(model.join, nn.Linear)
    gate, inner = model.join(torch.cat([token, state], dim=-1)).split(WIDTH, dim=-1)
    gate = gate.sigmoid()
    return gate * inner.tanh() + (1 - gate) * state


@pytest.fixture
def batch() -> dict[str, Tensor]:
    mask = torch.ones(3, 7, dtype=torch.long)
    mask[1, 4:], mask[2, 1:] = 0, 0
    return {"input_ids": torch.arange(1, 22).view(3, 7), "attention_mask": mask}


@torch.no_grad()
def test_a_chain_of_enas_is_the_loop_written_out(batch: dict[str, Tensor]) -> None:
    model = recurrent(CHAIN)
    hidden, mask_BS1 = model.embedded(**batch, token_type_ids=None)
    wanted = torch.zeros_like(hidden)
    for row, length in enumerate((7, 4, 1)):
        state = torch.zeros(WIDTH)
        for t in range(length):
            own = joined(model, hidden[row, t], state)
            for block, (name, activation) in zip(model.blocks, ACTIVATIONS.items(), strict=True):
                normed = block.LayerNorm(own)
                gate, inner = block.operation.gated(normed).split(WIDTH, dim=-1)
                gate, new = gate.sigmoid(), inner if name == "linear" else activation(inner)
                own = gate * new + (1 - gate) * normed
            wanted[row, t] = state = own
    answer = model(**batch, output_hidden_states=True)
    first, last = answer.hidden_states
    assert first.equal(hidden)
    torch.testing.assert_close(last, wanted, atol=1e-6, rtol=0)
    torch.testing.assert_close(answer.logits, model.classified(wanted, mask_BS1), atol=1e-6, rtol=0)


@torch.no_grad()
def test_the_output_of_a_graph_is_the_mean_of_what_nobody_reads(batch: dict[str, Tensor]) -> None:
    model = recurrent(BRANCHED)
    hidden, _ = model.embedded(batch["input_ids"], None, None)
    tanh, linear, gated, relu = model.blocks
    mask, state = torch.ones(1, 1), torch.zeros(3, WIDTH)
    for t in range(7):
        zero = joined(model, hidden[:, t], state)
        one = tanh(zero, mask)
        state = (linear(zero, mask) * one + (gated(zero, mask) + relu(one, mask)) / 2) / 2
    found = model(batch["input_ids"], output_hidden_states=True).hidden_states[-1][:, -1]
    torch.testing.assert_close(found, state, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("nodes", [CHAIN, BRANCHED, ()])
@pytest.mark.parametrize("reads", [False, True])
def test_more_padding_changes_no_answer(
    nodes: tuple[Node, ...], reads: bool, batch: dict[str, Tensor]
) -> None:
    model = recurrent(nodes, pooling=("mean", "max", "min"), **(READING if reads else {}))
    wanted = model(**batch).logits
    further = {name: nn.functional.pad(own, (0, 4)) for name, own in batch.items()}
    further["input_ids"][:, 7:] = 9
    torch.testing.assert_close(model(**further).logits, wanted)
    torch.testing.assert_close(model(batch["input_ids"][1:2, :4]).logits, wanted[1:2])
    before = {name: own.roll(2, dims=1) for name, own in further.items()}  # padding on both sides
    torch.testing.assert_close(model(**before).logits, wanted)


@pytest.mark.parametrize("reads", [False, True])
def test_a_token_sees_those_before_it_alone(reads: bool, batch: dict[str, Tensor]) -> None:
    model, seen = recurrent(BRANCHED, **(READING if reads else {})), list[Tensor]()
    model.words.register_forward_hook(lambda *given: seen.append(given[2]))
    last = model(batch["input_ids"], output_hidden_states=True).hidden_states[-1]
    for t in range(7):
        (gradient,) = torch.autograd.grad(last[:, t].sum(), seen, retain_graph=True)
        reached = gradient.abs().sum(-1) > 0
        assert reached.equal((torch.arange(7) <= t).expand(3, 7))


@torch.no_grad()
def test_what_it_reads_is_the_loop_written_out(batch: dict[str, Tensor]) -> None:
    model = recurrent(CHAIN[:1], **READING)
    hidden, _ = model.embedded(batch["input_ids"], None, None)
    mask, zero = torch.ones(1, 1), torch.zeros(3, WIDTH)
    states, tokens = [zero] * 3, [zero] * 3
    for t in range(7):
        of_state = model.reads[0](states[-1], mask)
        of_tokens = model.reads[1](torch.stack(tokens[-3:]).mean(0), mask)
        of_states = model.reads[3](torch.stack(states[-3:]).mean(0), mask)
        first = joined(model, hidden[:, t] * of_states, of_state * of_tokens)
        states.append(model.blocks[0](first, mask))
        tokens.append(hidden[:, t])
    found = model(batch["input_ids"], output_hidden_states=True).hidden_states[-1]
    torch.testing.assert_close(found, torch.stack(states[3:], 1), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("window", [1, 3])
def test_reading_all_as_it_is_changes_nothing(window: int, batch: dict[str, Tensor]) -> None:
    whole = (IDENTITY, NONE, IDENTITY, NONE)
    plain, reading = recurrent(CHAIN), recurrent(CHAIN, reads=whole, window=window)
    reading.load_state_dict(plain.state_dict())
    torch.testing.assert_close(reading(**batch).logits, plain(**batch).logits)
    own = Genotype(16, nodes=CHAIN, recurrent=True, reads=whole, window=window)
    assert own == Genotype(16, nodes=CHAIN, recurrent=True)


@pytest.mark.parametrize(
    "wrong",
    [
        {"reads": ("tanh",), "window": 2},
        {"reads": READING["reads"], "window": 0},
        {**READING, "recurrent": False},
    ],
)
def test_reads_that_cannot_be_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=r"reads are .* a recurrent cell has none or 4"):
        Genotype(16, **{"recurrent": True, **wrong})


def test_it_costs_its_matmuls_at_each_token() -> None:
    of_none = measured_flops(cell(width=WIDTH), 12)
    for nodes, blocks in ((), 0), (CHAIN, 4):
        of_all = 2 * 12 * (4 * WIDTH**2 + blocks * 2 * WIDTH**2)
        assert measured_flops(recurrent(nodes), 12) - of_none == of_all


@pytest.mark.parametrize("nodes", [CHAIN, BRANCHED])
def test_it_saves_and_loads(
    nodes: tuple[Node, ...], batch: dict[str, Tensor], tmp_path: Path
) -> None:
    model = recurrent(nodes, bigrams=8)
    model.save_pretrained(tmp_path)
    wanted = model(**batch).logits
    known = AutoModelForSequenceClassification.from_pretrained(tmp_path)
    assert isinstance(known, CellForSequenceClassification)
    for own in (known, load_model(tmp_path)):
        assert own(**batch).logits.equal(wanted)


@pytest.mark.slow
@pytest.mark.parametrize("reads", [False, True])
def test_it_runs_in_onnx(reads: bool, batch: dict[str, Tensor], tmp_path: Path) -> None:
    """The loop is one node of the file, so that a text may have any number of tokens."""
    onnx = pytest.importorskip("onnx", reason="NOT TESTED: ONNX; the extra onnx is not installed")
    nodes = (*BRANCHED, Node((3,), ("feed_forward",)), Node((3,), ("sigmoid",)))
    # Products of states make what is last in a float32 grow from token to token.
    short = {**READING, "max_position_embeddings": 24}
    model = recurrent(nodes, **(short if reads else {}))
    file, small = tmp_path / "model.onnx", tmp_path / "model_int8.onnx"
    assert write_onnx(model, file) < 1e-4
    assert [node.op_type for node in onnx.load(file).graph.node].count("Scan") == 1
    write_int8(file, small)
    given = {**batch, "token_type_ids": torch.zeros_like(batch["input_ids"])}
    wanted = model(**given).logits
    torch.testing.assert_close(run_session(open_session(file), given), wanted.detach())
    torch.testing.assert_close(run_session(open_session(small), given), wanted, atol=0.1, rtol=0)


def test_a_genotype_says_it_only_where_it_is() -> None:
    plain, own = (Genotype(16, nodes=BRANCHED, recurrent=recurs) for recurs in (False, True))
    assert Genotype.from_json(own.to_json()) == own != plain
    reading = Genotype(16, nodes=BRANCHED, recurrent=True, **READING)
    assert Genotype.from_json(reading.to_json()) == reading != own
    assert "recurrent" not in plain.to_json() + str(plain.config())
    assert own.config()["recurrent"] is True


@pytest.mark.parametrize(
    "text",
    [
        '{"width": 32, "operations": ["conv3", "gated"], "pooling": ["mean", "max"], "bigrams": 0}',
        '{"width": 16, "operations": [], "pooling": ["min"], "bigrams": 8, "nodes": [{"inputs":'
        ' [0], "operations": ["conv3"], "combination": "add"}]}',
    ],
)
def test_a_genotype_of_before_there_were_recurrent_cells_stays_as_it_is(text: str) -> None:
    assert Genotype.from_json(text).to_json() == text


def test_operations_that_read_other_tokens_are_refused() -> None:
    Genotype(16, (*POSITION_WISE, IDENTITY, NONE), recurrent=True)
    for name in ("conv3", "attention", "max3", "positions"):
        with pytest.raises(
            UserError, match=f"'{name}' reads other tokens.*tanh, .*none"
        ) as refusal:
            Genotype(16, ("tanh", name), recurrent=True)
        assert "\n" not in str(refusal.value)
