"""What a model costs as it is: counted without its weights, whatever its kind."""

from pathlib import Path

import pytest
import torch
from transformers import DistilBertConfig, DistilBertForSequenceClassification

from objectives.measures.cost import Flops
from objectives.measures.measured import measured_flops
from objectives.problem import Problem
from objectives.students.bert.adapters import as_bert
from objectives.students.bert.architecture import BertArchitecture, LayerUnits
from objectives.students.bert.cutting import cut, shape_of
from objectives.students.bert.pretrained import Checkpoint
from objectives.students.bert.pruned_bert import PrunedBertAttention
from tests.bert_variants import write_variant
from tests.conftest import TINY
from tests.objectives.conformance import assert_each_matmul_is_counted

RAGGED = BertArchitecture(
    (
        LayerUnits((0, 2), (1, 5, 40), query_key=((0, 3), (1, 2)), query_inputs=(0, 9)),
        LayerUnits((), tuple(range(30))),
        LayerUnits((3,), ()),
    )
)


@pytest.mark.parametrize("eager", [False, True])
@pytest.mark.parametrize("architecture", [BertArchitecture.full(TINY), RAGGED])
def test_what_is_measured_is_what_the_closed_form_says(
    problem: Problem, architecture: BertArchitecture, eager: bool
) -> None:
    model = cut(problem.student.state_dict(), problem.student.config, architecture)
    for module in model.modules():
        if isinstance(module, PrunedBertAttention):
            module.eager = eager
    assert measured_flops(model, 7) == Flops(TINY, 7).exact(architecture)


def test_a_model_is_as_it_was_once_it_is_measured(problem: Problem) -> None:
    model = cut(problem.student.state_dict(), problem.student.config, RAGGED)
    before = {name: value.data_ptr() for name, value in model.state_dict().items()}
    measured_flops(model, 7)
    assert {name: value.data_ptr() for name, value in model.state_dict().items()} == before


def test_a_model_of_another_kind_is_measured() -> None:
    config = DistilBertConfig(vocab_size=9, n_layers=2, dim=8, n_heads=2, hidden_dim=12)
    with torch.random.fork_rng():
        model = DistilBertForSequenceClassification(config).eval()
    tokens, hidden = 5, 8
    layer = tokens * (4 * hidden**2 + 2 * hidden * 12) + 2 * tokens**2 * hidden
    assert measured_flops(model, tokens) == 2 * (2 * layer + hidden**2 + 2 * hidden)


def test_a_projection_of_the_embeddings_counts(tmp_path: Path) -> None:
    model = as_bert(Checkpoint(write_variant("electra", tmp_path, ["no", "yes"])).load_classifier())
    shape = shape_of(model.config)
    assert shape.embedding
    assert measured_flops(model, 8) == Flops(shape, 8).full


def test_the_list_of_matmuls_is_what_torch_counts_in_each_module(problem: Problem) -> None:
    model = cut(problem.student.state_dict(), problem.student.config, RAGGED)
    assert_each_matmul_is_counted(model, RAGGED, TINY)
