"""The cut model is a plain transformers model: it saves, loads, and runs in a pipeline."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from transformers import AutoModelForSequenceClassification, PreTrainedModel, pipeline

from objectives.architecture import Architecture, LayerUnits
from objectives.errors import UserError
from objectives.evaluate import predict
from objectives.pretrained import Classifier
from objectives.problem import Problem, Workbench
from objectives.pruned_bert import PrunedBertForSequenceClassification, cut
from tests.conftest import MARKERS, TINY
from tests.objectives.conformance import ATOL, random_states
from tests.objectives.strategies import architectures

RAGGED = Architecture(
    (LayerUnits((0, 2), (1, 5, 40)), LayerUnits((), tuple(range(30))), LayerUnits((3,), ()))
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


def close(one: Classifier, other: Classifier, problem: Problem) -> None:
    logits = predict(one, problem.alpha, "cpu"), predict(other, problem.alpha, "cpu")
    torch.testing.assert_close(*logits, atol=ATOL, rtol=0)


@settings(max_examples=10)
@given(architecture=architectures(TINY))
def test_a_saved_model_loads_with_the_same_logits(
    problem: Problem, tmp_path_factory: pytest.TempPathFactory, architecture: Architecture
) -> None:
    model = cut(problem.student.state_dict(), problem.student.config, architecture)
    folder = tmp_path_factory.mktemp("round-trip")
    model.save_pretrained(folder)
    close(PrunedBertForSequenceClassification.from_pretrained(folder), model, problem)


def test_the_auto_class_loads_it_without_custom_code(
    saved: Path, ragged: PrunedBertForSequenceClassification, problem: Problem
) -> None:
    model = AutoModelForSequenceClassification.from_pretrained(saved)
    assert type(model) is PrunedBertForSequenceClassification
    close(model, ragged, problem)


def test_weights_are_saved_as_safetensors_and_nothing_else(saved: Path) -> None:
    assert (saved / "model.safetensors").is_file()
    assert not [file.name for file in saved.iterdir() if file.suffix in (".bin", ".pt", ".py")]


def test_labels_are_kept(saved: Path, problem: Problem) -> None:
    config = AutoModelForSequenceClassification.from_pretrained(saved).config
    assert set(config.label2id) == set(MARKERS.values())
    assert config.id2label == problem.student.config.id2label
    assert config.label2id == problem.student.config.label2id


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
    close(eager, sdpa, problem)


def test_the_full_architecture_is_transformers_own_bert(problem: Problem) -> None:
    student = problem.student
    close(cut(student.state_dict(), student.config, Architecture.full(TINY)), student, problem)


def test_only_kept_weights_are_stored(
    ragged: PrunedBertForSequenceClassification, problem: Problem
) -> None:
    sizes = {name: tuple(weight.shape) for name, weight in ragged.named_parameters()}
    first, second = "bert.encoder.layer.0.", "bert.encoder.layer.1."
    assert sizes[first + "attention.self.value.weight"] == (16, 32)
    assert sizes[first + "output.dense.weight"] == (32, 3)
    assert sizes[second + "attention.output.dense.weight"] == (32, 0)
    assert list(sizes) == [name for name, _ in problem.student.named_parameters()]


def test_it_gives_a_loss_where_labels_are_given(
    ragged: PrunedBertForSequenceClassification, problem: Problem
) -> None:
    batch = next(problem.alpha.in_order(4, "cpu"))
    inputs = {"input_ids": batch.input_ids, "attention_mask": batch.attention_mask}
    output = ragged(**inputs, labels=batch.labels)
    expected = -output.logits.log_softmax(-1)[torch.arange(4), batch.labels].mean()
    torch.testing.assert_close(output.loss, expected)
    loss, logits = ragged(**inputs, labels=batch.labels, return_dict=False)
    assert torch.equal(loss, output.loss)
    assert torch.equal(logits, output.logits)


def test_it_trains_with_the_checkpoints_dropout(
    ragged: PrunedBertForSequenceClassification, problem: Problem
) -> None:
    batch = next(problem.alpha.in_order(4, "cpu"))
    model = copy.deepcopy(ragged).train()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        one, other = (model(input_ids=batch.input_ids).logits for _ in range(2))
    assert not torch.equal(one, other)


@pytest.mark.parametrize(
    ("architecture", "message"),
    [
        (Architecture(RAGGED.layers[:2]), "it has 2 layers, the model 3"),
        (
            Architecture((*RAGGED.layers[:2], LayerUnits((4,), ()))),
            "layer 2 keeps 'heads' unit 4, the model has 4",
        ),
        (
            Architecture((LayerUnits((), (48,)), *RAGGED.layers[1:])),
            "layer 0 keeps 'ffn' unit 48, the model has 48",
        ),
    ],
)
def test_an_architecture_that_does_not_fit_is_refused(
    problem: Problem, architecture: Architecture, message: str
) -> None:
    with pytest.raises(UserError, match=message):
        cut(problem.student.state_dict(), problem.student.config, architecture)


def test_cutting_leaves_global_random_state_alone(problem: Problem) -> None:
    before = random_states()
    model: PreTrainedModel = cut(problem.student.state_dict(), problem.student.config, RAGGED)
    assert not model.training
    assert random_states() == before
