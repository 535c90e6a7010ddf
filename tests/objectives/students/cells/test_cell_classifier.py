"""A cell is a plain transformers model: it saves, loads, exports, and padding changes nothing."""

from __future__ import annotations

from pathlib import Path

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
from objectives.measures.measured import measured_flops
from objectives.students.cells.cell_classifier import CellConfig, CellForSequenceClassification
from objectives.students.cells.genotype import Genotype
from objectives.students.cells.operations import NONE, OPERATIONS

VOCABULARY = 50


def cell(*operations: str, width: int = 16) -> CellForSequenceClassification:
    """Random weights, in evaluation mode."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = CellForSequenceClassification(
            CellConfig(
                vocab_size=VOCABULARY, hidden_size=width, operations=operations, num_labels=3
            )
        )
    model.train(False)
    return model


@pytest.mark.parametrize("operation", OPERATIONS)
def test_padding_changes_no_answer(operation: str) -> None:
    model = cell(operation, operation)
    ids = torch.arange(1, 8)[None]
    padded = torch.cat([ids, torch.full((1, 5), 9)], dim=1)
    mask = torch.cat([torch.ones_like(ids), torch.zeros(1, 5, dtype=torch.long)], dim=1)
    alone, beside = model(ids).logits, model(padded, attention_mask=mask).logits
    torch.testing.assert_close(alone, beside)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_all_operations_but_the_gate_look_at_neighbours(operation: str) -> None:
    model = cell(operation)
    ids, other = torch.arange(1, 8)[None], torch.arange(1, 8)[None]
    other[0, 3] = 20
    states: list[torch.Tensor] = []
    model.blocks[0].register_forward_hook(lambda *seen: states.append(seen[2]))
    model(ids)
    model(other)
    changed = (states[0] - states[1]).abs().sum(-1)[0] > 1e-6
    own = [place == 3 for place in range(7)]
    assert changed[3]
    assert (changed.tolist() == own) == (operation == "gated")


@pytest.mark.parametrize("operation", OPERATIONS)
def test_saves_and_loads(operation: str, tmp_path: Path) -> None:
    model = cell(operation, "conv3")
    model.save_pretrained(tmp_path)
    ids = torch.arange(1, 8)[None]
    torch.testing.assert_close(load_model(tmp_path)(ids).logits, model(ids).logits)
    known = AutoModelForSequenceClassification.from_pretrained(tmp_path)
    assert isinstance(known, CellForSequenceClassification)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_runs_in_onnx(operation: str, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime", reason="NOT TESTED: ONNX; the extra onnx is not installed")
    assert write_onnx(cell(operation), tmp_path / "model.onnx") < 1e-4


@given(st.lists(st.sampled_from(list(OPERATIONS)), max_size=3), st.sampled_from([16, 32]))
@settings(max_examples=20, deadline=None)
def test_flops_are_those_of_a_pass(operations: list[str], width: int) -> None:
    model = cell(*operations, width=width)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        model(torch.ones(1, 12, dtype=torch.long))
    assert measured_flops(model, 12) == counter.get_total_flops()


def test_a_convolution_costs_what_its_matmuls_do() -> None:
    width, tokens, kernel = 32, 12, 5
    blocks = measured_flops(cell("conv5", width=width), tokens) - measured_flops(
        cell(width=width), tokens
    )
    assert blocks == 2 * tokens * (3 * width**2 + kernel * width)


@given(
    st.lists(st.sampled_from([*OPERATIONS, NONE]), max_size=6),
    st.integers(1, 20).map(lambda number: 16 * number),
)
def test_a_genotype_survives_json(operations: list[str], width: int) -> None:
    genotype = Genotype(width, tuple(operations))
    assert Genotype.from_json(genotype.to_json()) == genotype
    assert all(len(row) == len(genotype.operations) for row in genotype.sizes().values())


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"width": "x", "operations": []}'])
def test_what_is_no_genotype_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="no genotype"):
        Genotype.from_json(text)
