"""The cut model is a plain transformers model: it saves, loads, and runs in a pipeline."""

import copy
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    AutoModelForSequenceClassification,
    BertConfig,
    BertForSequenceClassification,
    PreTrainedModel,
    pipeline,
)
from transformers.dynamic_module_utils import get_imports

from objectives.errors import UserError
from objectives.measures.cost import Flops
from objectives.measures.evaluate import predict
from objectives.problem import Problem
from objectives.students.bert import pruned_bert
from objectives.students.bert.architecture import BertArchitecture, LayerUnits
from objectives.students.bert.cutting import cut, shape_of, widths_of
from objectives.students.bert.pretrained import Classifier
from objectives.students.bert.pruned_bert import PrunedBertForSequenceClassification
from objectives.workbench.workbench import Workbench
from tests.conftest import MARKERS, TINY
from tests.objectives.conformance import ATOL, counted_flops, random_states
from tests.objectives.hypothesis_strategies import EACH_COMBINATION, architectures

RAGGED = BertArchitecture(
    (LayerUnits((0, 2), (1, 5, 40)), LayerUnits((), tuple(range(30))), LayerUnits((3,), ()))
)
EVERY_SPACE = BertArchitecture(
    (
        LayerUnits(
            (0, 2),
            (1, 5, 40),
            query_key=((0, 3, 7), (1, 2, 3)),
            value=((4,), (0,)),
            query_inputs=(0, 9, 31),
            key_inputs=(2, 3),
        ),
        *RAGGED.layers[1:],
    )
)


@pytest.fixture(scope="module")
def ragged(problem: Problem) -> PrunedBertForSequenceClassification:
    """Layers of different widths, one without heads, one without FFN."""
    return cut(problem.student.state_dict(), problem.student.config, RAGGED)


@pytest.fixture(scope="module")
def saved(
    ragged: PrunedBertForSequenceClassification,
    workbench: Workbench,
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    """The ragged model and its tokenizer in a folder."""
    folder = tmp_path_factory.mktemp("saved")
    ragged.save_pretrained(folder)
    workbench.tokenizer.save_pretrained(folder)
    return folder


def models_are_close(one: Classifier, other: Classifier, problem: Problem) -> None:
    logits = predict(one, problem.alpha, "cpu"), predict(other, problem.alpha, "cpu")
    torch.testing.assert_close(*logits, atol=ATOL, rtol=0)


@pytest.mark.parametrize("spaces", EACH_COMBINATION, ids="+".join)
@settings(max_examples=2)
@given(data=st.data())
def test_a_saved_model_loads_with_the_same_logits(
    problem: Problem,
    tmp_path_factory: pytest.TempPathFactory,
    data: st.DataObject,
    spaces: tuple[str, ...],
) -> None:
    architecture = data.draw(architectures(TINY, spaces))
    model = cut(problem.student.state_dict(), problem.student.config, architecture)
    folder = tmp_path_factory.mktemp("round-trip")
    model.save_pretrained(folder)
    loaded = PrunedBertForSequenceClassification.from_pretrained(folder)
    models_are_close(loaded, model, problem)
    assert widths_of(loaded.config) == architecture.widths(TINY)


def test_the_auto_class_loads_it_without_custom_code(
    saved: Path, ragged: PrunedBertForSequenceClassification, problem: Problem
) -> None:
    model = AutoModelForSequenceClassification.from_pretrained(saved)
    assert type(model) is PrunedBertForSequenceClassification
    models_are_close(model, ragged, problem)
    assert set(model.config.label2id) == set(MARKERS.values())
    assert model.config.id2label == problem.student.config.id2label
    assert model.config.label2id == problem.student.config.label2id
    assert (saved / "model.safetensors").is_file()
    assert not [file.name for file in saved.iterdir() if file.suffix in (".bin", ".pt", ".py")]


def test_flops_are_counted_in_every_mode_of_a_layer_without_heads(
    ragged: PrunedBertForSequenceClassification,
) -> None:
    assert all(weight.requires_grad for weight in ragged.parameters())
    for mode in (torch.enable_grad, torch.no_grad, torch.inference_mode):
        with mode():
            assert counted_flops(ragged, 24) == Flops(TINY, 24).exact(RAGGED)


def test_a_pipeline_classifies_text_with_it(saved: Path, problem: Problem) -> None:
    classify = pipeline("text-classification", model=str(saved), device="cpu")
    text, short = "bab joy fel gim", "grief"
    together = classify([text, short], batch_size=2)
    assert {answer["label"] for answer in together} <= set(MARKERS.values())
    assert classify(text)[0]["score"] == pytest.approx(together[0]["score"], abs=ATOL)


def test_eager_and_sdpa_attention_agree(saved: Path, problem: Problem) -> None:
    eager, sdpa = (
        AutoModelForSequenceClassification.from_pretrained(saved, attn_implementation=name)
        for name in ("eager", "sdpa")
    )
    assert eager.bert["encoder"]["layer"][0].attention.eager
    assert not sdpa.bert["encoder"]["layer"][0].attention.eager
    models_are_close(eager, sdpa, problem)


def test_only_kept_weights_are_stored(
    ragged: PrunedBertForSequenceClassification, problem: Problem
) -> None:
    sizes = {name: tuple(weight.shape) for name, weight in ragged.named_parameters()}
    first, second = "bert.encoder.layer.0.", "bert.encoder.layer.1."
    assert sizes[first + "attention.self.value.weight"] == (16, 32)
    assert sizes[first + "output.dense.weight"] == (32, 3)
    assert sizes[second + "attention.output.dense.weight"] == (32, 0)
    assert list(sizes) == [name for name, _ in problem.student.named_parameters()]


def test_dimensions_and_inputs_that_are_cut_are_not_stored(problem: Problem) -> None:
    model = cut(problem.student.state_dict(), problem.student.config, EVERY_SPACE)
    sizes = {name: tuple(weight.shape) for name, weight in model.state_dict().items()}
    first = "bert.encoder.layer.0.attention."
    assert sizes[first + "self.query.weight"] == (6, 3)
    assert sizes[first + "self.key.weight"] == (6, 2)
    assert sizes[first + "self.value.weight"] == (2, 32)
    assert sizes[first + "output.dense.weight"] == (32, 2)
    buffers = {name: buffer.tolist() for name, buffer in model.named_buffers() if "self" in name}
    assert buffers == {
        first + "self.query.inputs": [0, 9, 31],
        first + "self.key.inputs": [2, 3],
    }


def test_the_configuration_is_silent_on_what_is_whole(
    ragged: PrunedBertForSequenceClassification, problem: Problem
) -> None:
    sizes = ragged.config.to_diff_dict()["per_layer_config"]
    assert {name for layer in sizes.values() for name in layer} == {
        "num_attention_heads",
        "intermediate_size",
    }
    assert not {"qk_head_dim", "query_inputs"} & set(ragged.config.to_diff_dict())
    assert not [name for name in ragged.state_dict() if name.endswith("inputs")]
    cut_in_all = cut(problem.student.state_dict(), problem.student.config, EVERY_SPACE)
    first = cut_in_all.config.to_diff_dict()["per_layer_config"]["0"]
    assert {name: first[name] for name in ("qk_head_dim", "v_head_dim", "query_inputs")} == {
        "qk_head_dim": 3,
        "v_head_dim": 1,
        "query_inputs": 3,
    }


def test_the_scores_keep_the_scale_of_a_whole_head(problem: Problem) -> None:
    """A dimension whose weights are zero may go or stay."""
    weights = {name: weight.clone() for name, weight in problem.student.state_dict().items()}
    for number in range(TINY.layers):
        for which in ("weight", "bias"):
            query = weights[f"bert.encoder.layer.{number}.attention.self.query.{which}"]
            query.unflatten(0, (TINY.heads, TINY.head_dim))[:, 5:] = 0
    full = BertArchitecture.full(TINY)
    layer = replace(full.layers[0], query_key=(tuple(range(5)),) * TINY.heads)
    whole, less = (
        cut(weights, problem.student.config, architecture)
        for architecture in (full, BertArchitecture((layer,) * TINY.layers))
    )
    models_are_close(whole, less, problem)


@pytest.mark.parametrize("labels", [None, torch.tensor([0, 1])])
def test_it_returns_a_tuple_where_transformers_own_bert_does(
    problem: Problem, labels: torch.Tensor | None
) -> None:
    config, weights = copy.deepcopy(problem.student.config), problem.student.state_dict()
    config.return_dict = False
    bert = BertForSequenceClassification(config).eval()
    bert.load_state_dict(weights)
    model = cut(weights, config, BertArchitecture.full(TINY))
    ids = torch.tensor([[2, 5, 3], [2, 6, 3]])
    for asked in (None, False, True):
        mine, theirs = (one(ids, labels=labels, return_dict=asked) for one in (model, bert))
        assert isinstance(mine, tuple) == isinstance(theirs, tuple) == (asked is not True)
        assert len(mine) == len(theirs)
        for one, other in zip(mine[:], theirs[:], strict=True):
            torch.testing.assert_close(one, other, atol=ATOL, rtol=0)
    models_are_close(model, bert, problem)


@pytest.mark.parametrize(("outputs", "problem_type"), [(1, None), (1, "regression"), (3, None)])
def test_its_loss_is_that_of_transformers_own_bert(outputs: int, problem_type: str | None) -> None:
    config = BertConfig(
        vocab_size=20,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=8,
        num_labels=outputs,
        problem_type=problem_type,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        bert = BertForSequenceClassification(config).eval()
    model = cut(bert.state_dict(), config, BertArchitecture.full(shape_of(config)))
    input_ids = torch.arange(12).view(4, 3)
    labels = torch.tensor([0.5, 2, -1, 7]) if outputs == 1 else torch.tensor([0, 2, 1, 1])
    losses = [one(input_ids=input_ids, labels=labels).loss for one in (model, bert)]
    torch.testing.assert_close(*losses)
    if outputs == 1:
        logits = model(input_ids=input_ids).logits
        torch.testing.assert_close(losses[0], ((logits[:, 0] - labels) ** 2).mean())


def test_the_modelling_file_needs_torch_and_transformers_alone() -> None:
    assert pruned_bert.__file__
    imported = set(get_imports(pruned_bert.__file__)) - sys.stdlib_module_names
    assert imported == {"torch", "transformers"}


def test_it_trains_with_the_checkpoints_dropout(
    ragged: PrunedBertForSequenceClassification, problem: Problem
) -> None:
    batch = next(problem.alpha.in_order(4, "cpu"))
    model = copy.deepcopy(ragged).train()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        one, other = (model(input_ids=batch.input_ids).logits for _ in range(2))
    assert not torch.equal(one, other)


def test_an_architecture_that_does_not_fit_is_refused(problem: Problem) -> None:
    """See test_architecture.py for the others."""
    weights, config = problem.student.state_dict(), problem.student.config
    with pytest.raises(UserError, match="it has 2 layers, the model 3"):
        cut(weights, config, BertArchitecture(RAGGED.layers[:2]))


def test_cutting_leaves_global_random_state_alone(problem: Problem) -> None:
    before = random_states()
    model: PreTrainedModel = cut(problem.student.state_dict(), problem.student.config, RAGGED)
    assert not model.training
    assert random_states() == before


def test_it_takes_what_transformers_own_bert_takes(problem: Problem) -> None:
    """peft, for one, gives the ones that it does not need as None."""
    bert = problem.student
    whole = cut(bert.state_dict(), bert.config, BertArchitecture.full(TINY))
    batch = next(iter(problem.train.in_order(4, "cpu")))
    inputs = {"input_ids": batch.input_ids, "attention_mask": batch.attention_mask}
    turned = torch.arange(batch.input_ids.shape[1]).flip(0)[None]
    asked = {"position_ids": turned, "output_hidden_states": True, "output_attentions": None}
    own, theirs = whole(**inputs, **asked, use_cache=False), bert(**inputs, **asked)
    torch.testing.assert_close(own.logits, theirs.logits, atol=ATOL, rtol=0)
    for mine, other in zip(own.hidden_states, theirs.hidden_states, strict=True):
        attended = batch.attention_mask[..., None]
        torch.testing.assert_close(mine * attended, other * attended, atol=1e-4, rtol=0)
    square = batch.attention_mask[:, None, None, :].bool().expand(-1, 1, turned.shape[1], -1)
    logits = whole(batch.input_ids, square).logits
    torch.testing.assert_close(logits, whole(**inputs).logits, atol=ATOL, rtol=0)
    with pytest.raises(ValueError, match="gives no attentions"):
        whole(**inputs, output_attentions=True)


def test_its_vocabulary_can_grow(ragged: PrunedBertForSequenceClassification) -> None:
    model = copy.deepcopy(ragged)
    known = model.get_input_embeddings().weight.detach().clone()
    with torch.random.fork_rng(devices=[]):
        model.resize_token_embeddings(len(known) + 3, mean_resizing=False)
    grown = model.get_input_embeddings().weight
    assert grown.shape[0] == len(known) + 3 == model.config.vocab_size
    torch.testing.assert_close(grown[: len(known)], known)


def test_gradient_checkpointing_changes_no_gradient(
    ragged: PrunedBertForSequenceClassification, problem: Problem
) -> None:
    batch = next(iter(problem.train.in_order(4, "cpu")))
    gradients = []
    for checkpointed in (False, True):
        model = copy.deepcopy(ragged).train().requires_grad_()
        for module in model.modules():
            for name in ("p", "attention_dropout"):
                if hasattr(module, name):
                    setattr(module, name, 0.0)
        if checkpointed:
            model.activation_checkpointing_enable()
        model(batch.input_ids, batch.attention_mask, labels=batch.labels).loss.backward()
        gradients.append([p.grad for p in model.parameters() if p.grad is not None])
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other)


def test_quantisers_find_its_linear_layers(ragged: PrunedBertForSequenceClassification) -> None:
    """They go by the exact type; only those without inputs or outputs are of another."""
    layers = [m for m in ragged.modules() if isinstance(m, torch.nn.Linear)]
    assert all((type(m) is torch.nn.Linear) == bool(m.weight.numel()) for m in layers)
    assert sum(type(m) is torch.nn.Linear for m in layers) == 3 * 6 + 2 - 4 - 2


def test_its_configuration_is_read_by_transformers_before_5_14(
    ragged: PrunedBertForSequenceClassification,
) -> None:
    """There what a layer says of its own stays as config.json has it."""
    old = copy.copy(ragged.config)
    old.__dict__ = {**vars(old), "per_layer_config": ragged.config.to_dict()["per_layer_config"]}
    for one, other in zip(old.of_layers(), ragged.config.of_layers(), strict=True):
        for name in ("num_attention_heads", "intermediate_size", "query_inputs", "qk_head_dim"):
            assert getattr(one, name) == getattr(other, name)
