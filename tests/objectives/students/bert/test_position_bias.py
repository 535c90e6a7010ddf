"""Relative positions: MPNet's numbers go with the heads that they belong to."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer
from transformers.models.mpnet.modeling_mpnet import MPNetEncoder

from objectives.delivery.classify import Classifier, WordReader
from objectives.delivery.deployed import deploy
from objectives.engines.names import Engine
from objectives.measures.bits import Bytes
from objectives.measures.cost import Params
from objectives.measures.evaluate import count_parameters
from objectives.methods.mrem import _through
from objectives.problem import Problem
from objectives.students.bert.architecture import FULL_BITS, SPACES_OF_LAYERS, BertArchitecture
from objectives.students.bert.cutting import cut
from objectives.students.bert.position_bias import PositionBias, buckets_of
from objectives.students.bert.pretrained import Checkpoint
from objectives.students.bert.quantising import quantised
from objectives.text.data import Batch
from objectives.training.population import Population
from tests.bert_variants import write_variant
from tests.conftest import TINY
from tests.objectives.hypothesis_strategies import architectures
from tests.objectives.methods import test_projections as projections
from tests.objectives.methods.elastic import test_training as elastic
from tests.objectives.training import test_fusing as fusing

order = elastic.order
test_a_slice_is_a_mask_is_a_cut = elastic.test_a_slice_is_a_mask_is_a_cut
test_an_order_can_be_undone = elastic.test_an_order_changes_no_answer_and_can_be_undone
test_heads_and_neurons_are_mixed_whole = projections.test_heads_and_neurons_are_mixed_whole
test_a_slot_is_the_cut_model = fusing.test_a_slot_is_the_state_of_the_model_that_was_cut
test_any_models_train_as_alone = (
    fusing.test_any_models_give_the_logits_and_gradients_that_they_give_alone
)

TEXTS = ["joy bab", "grief fog lab dur", "Toast, dog! dab fel", "bim  <mask> nog", "café joy"]
CUT = BertArchitecture.from_masks(
    TINY,
    {
        "heads": [[True, False, True, False], [False] * 4, [True] * 4],
        "ffn": [[n % 3 > 0 for n in range(TINY.ffn)]] * TINY.layers,
    },
)


@pytest.fixture(scope="module")
def problem(mpnet_problem: Problem) -> Problem:
    return mpnet_problem


@pytest.fixture(scope="module")
def batch(problem: Problem) -> Batch:
    drawn = problem.train.batch(np.arange(16), "cpu")
    assert not drawn.attention_mask.all()
    return drawn


@given(length=st.integers(1, 600))
def test_buckets_are_those_of_mpnet(length: int) -> None:
    positions = torch.arange(length)
    expected = MPNetEncoder.relative_position_bucket(positions - positions[:, None])
    assert torch.equal(buckets_of(length, positions.device), expected)


@pytest.mark.parametrize("kind", ["bool", "float"])
def test_a_mask_of_bools_is_a_mask_to_be_added(kind: str) -> None:
    bias = PositionBias(2, 32)
    bias.weight.data = torch.arange(64.0).view(2, 32)
    seen = torch.tensor([True, True, False]).view(1, 1, 1, 3)
    mask = seen if kind == "bool" else torch.zeros(1, 1, 1, 3).masked_fill(~seen, -torch.inf)
    added = bias(mask, buckets_of(3, seen.device))
    assert added[0, :, 1, :2].tolist() == [[1, 0], [33, 32]]
    assert added.softmax(-1)[..., 2].max() == 0


def test_a_layer_that_is_called_alone_adds_them(problem: Problem, batch: Batch) -> None:
    """REM walks through a model layer by layer."""
    small = cut(problem.student.state_dict(), problem.student.config, CUT).eval()
    with torch.no_grad():
        _, *states = small(
            batch.input_ids, batch.attention_mask, output_hidden_states=True
        ).hidden_states
        for layer, (before, after) in zip(
            small.bert.encoder.layer[1:], pairwise(states), strict=True
        ):
            [through] = _through(layer, [before], [batch.attention_mask.bool()])
            torch.testing.assert_close(through, after)


def test_each_layer_takes_the_numbers_of_its_heads(problem: Problem) -> None:
    small = cut(problem.student.state_dict(), problem.student.config, CUT)
    name = "bert.encoder.layer.{}.attention.self.position_bias.weight"
    shared = problem.student.get_parameter(name.format(0))
    assert shared.shape == (TINY.heads, 32)
    for layer, heads in enumerate(([0, 2], [], [0, 1, 2, 3])):
        assert torch.equal(small.get_parameter(name.format(layer)), shared[heads])


def test_every_bucket_in_reach_moves_the_logits(problem: Problem, batch: Batch) -> None:
    """Else cut and masked models could agree because no number matters. The first position, which
    is all that the last layer's output is read at, has no keys before it."""
    population = Population.of([problem.student])
    before = population.logits(batch).detach()
    for layer in range(TINY.layers):
        name = f"bert.encoder.layer.{layer}.attention.self.position_bias.weight"
        for bucket in (0, 17, 23) if layer == TINY.layers - 1 else (0, 1, 7, 17, 23):
            weight = population.weights[name].detach().clone()
            weight[..., bucket] += 1
            changed = Population.of([problem.student])
            changed.weights[name] = weight
            assert (changed.logits(batch) - before).abs().max() > 1e-4, (layer, bucket)


@settings(max_examples=8)
@given(data=st.data(), bits=st.sampled_from([8, 4, 2, 1, FULL_BITS]))
def test_parameters_and_bytes_are_counted(
    problem: Problem, data: st.DataObject, bits: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    units = data.draw(architectures(TINY, [s for s in SPACES_OF_LAYERS if s != "input"]))
    model = cut(problem.student.state_dict(), problem.student.config, units)
    embeddings = model.get_submodule("bert.embeddings").state_dict(prefix="bert.embeddings.")
    numbers = sum(tensor.numel() for tensor in embeddings.values())
    assert count_parameters(model) == Params(problem.shape, numbers, 0).exact(units)
    few = units.with_bits([bits] * TINY.layers, [8] * TINY.layers, bits)
    folder = tmp_path_factory.mktemp("model")
    quantised(model, few).save_pretrained(folder)
    shapes = {name: tuple(tensor.shape) for name, tensor in embeddings.items()}
    written = (folder / "model.safetensors").stat().st_size
    assert Bytes(problem.shape, shapes).exact(few) == written


@pytest.mark.parametrize(
    "engine", ["onnxruntime", pytest.param("onnxruntime-int8", marks=pytest.mark.slow)]
)
def test_it_answers_without_torch_as_with_it(
    problem: Problem, tmp_path: Path, engine: Engine
) -> None:
    pytest.importorskip("onnxruntime", reason="the extra 'onnx' is not installed")
    tokenizer = Checkpoint(write_variant("mpnet", tmp_path / "whole")).tokenizer
    model = cut(problem.student.state_dict(), problem.student.config, CUT)
    tokens = tokenizer(TEXTS, padding=True, return_tensors="pt")
    assert not tokens["attention_mask"].all()
    with torch.no_grad():
        expected = model(**tokens).logits
    deploy(tmp_path / "out", model, tokenizer, engine, 24, texts=TEXTS)
    classifier = Classifier(tmp_path / "out")
    assert classifier.stages[0].settings["words"]
    found = torch.from_numpy(classifier.logits(TEXTS)).float()
    atol = 1e-4 if engine == "onnxruntime" else 0.3 * expected.std().item()
    torch.testing.assert_close(found, expected, atol=atol, rtol=0)


def test_the_reader_of_words_gives_mpnets_ids_or_steps_aside(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime", reason="the extra 'onnx' is not installed")
    write_variant("mpnet", tmp_path)
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    reader = WordReader(tokenizer, 24)
    read = [reader.read(text) for text in TEXTS]
    assert [row is None for row in read] == [False, False, False, True, False]
    for text, row in zip(TEXTS, read, strict=True):
        assert row in (None, (tokenizer.encode(text).ids, tokenizer.encode(text).type_ids))
