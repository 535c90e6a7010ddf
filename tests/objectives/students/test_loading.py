"""Conformance of reading checkpoints: each is read as it answered, or refused in one line."""

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import (
    AlbertConfig,
    AlbertForPreTraining,
    AutoTokenizer,
    BertForMaskedLM,
    BertForSequenceClassification,
    BertModel,
    GPT2Config,
    GPT2ForSequenceClassification,
    PreTrainedModel,
)

from objectives.delivery.exported import load_model
from objectives.errors import UserError
from objectives.session import Session
from objectives.students.bert.pretrained import Checkpoint
from objectives.students.loading import PICKLED
from objectives.text.task import Task
from objectives.workbench.inputs import read_inputs
from objectives.workbench.teacher import Teacher
from objectives.workbench.workbench import prepare
from tests.bert_variants import write_variant
from tests.command_line import assert_one_clear_line, maskfront
from tests.objectives.conformance import RecordingProgress

WEIGHTS = "model.safetensors"
LAYER = "bert.encoder.layer.1."
IDS = torch.tensor([[2, 5, 9, 3]])
Damage = Callable[[Path], object]
State = dict[str, Tensor]


def logits(model: PreTrainedModel) -> Tensor:
    with torch.no_grad():
        answer: Tensor = model.eval()(IDS).logits
    return answer


def renamed(change: Callable[[str], str]) -> Damage:
    return weights(lambda state: {change(name): weight for name, weight in state.items()})


def weights(change: Callable[[State], State]) -> Damage:
    def damage(folder: Path) -> None:
        state = {n: w.clone().contiguous() for n, w in change(load_file(folder / WEIGHTS)).items()}
        save_file(state, folder / WEIGHTS, metadata={"format": "pt"})

    return damage


def without(part: str) -> Damage:
    return weights(lambda state: {n: w for n, w in state.items() if not n.startswith(part)})


def config(**fields: Any) -> Damage:
    def damage(folder: Path) -> None:
        settings = json.loads((folder / "config.json").read_text()) | fields
        (folder / "config.json").write_text(json.dumps(settings))

    return damage


def pickled(content: Callable[[State], object], **how: Any) -> Damage:
    def damage(folder: Path) -> None:
        torch.save(content(load_file(folder / WEIGHTS)), folder / PICKLED, **how)
        (folder / WEIGHTS).unlink()

    return damage


def sharded(folder: Path) -> None:
    model = BertForSequenceClassification.from_pretrained(folder)
    (folder / WEIGHTS).unlink()
    model.save_pretrained(folder, max_shard_size="20KB")


def pickled_in_shards(folder: Path) -> None:
    state = load_file(folder / WEIGHTS)
    places = {name: f"part-{number % 2}.bin" for number, name in enumerate(state)}
    for file in set(places.values()):
        torch.save({n: w for n, w in state.items() if places[n] == file}, folder / file)
    (folder / f"{PICKLED}.index.json").write_text(json.dumps({"weight_map": places}))
    (folder / WEIGHTS).unlink()


def one_shard_less(folder: Path) -> None:
    sharded(folder)
    next(folder.glob("model-00002*")).unlink()


def index(content: str) -> Damage:
    def damage(folder: Path) -> None:
        sharded(folder)
        (folder / f"{WEIGHTS}.index.json").write_text(content)

    return damage


def cut_short(name: str) -> Damage:
    def damage(folder: Path) -> None:
        file = folder / name
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])

    return damage


def both(*damages: Damage) -> Damage:
    return lambda folder: [damage(folder) for damage in damages]


def pruned_head(state: State) -> State:
    own = f"{LAYER}attention.self."
    return {n: w[:24] if n.startswith(own) else w for n, w in state.items()}


def adapter(folder: Path) -> None:
    (folder / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    save_file({"lora_A": torch.ones(1)}, folder / "adapter_model.safetensors")


def adapter_alone(folder: Path) -> None:
    adapter(folder)
    (folder / WEIGHTS).unlink()
    (folder / "config.json").unlink()


class Code:
    """What runs a command where pickle loads it."""

    def __reduce__(self) -> tuple[object, ...]:
        return os.system, ("touch it-was-run",)


READ: dict[str, Damage] = {
    "names of TensorFlow": renamed(
        lambda name: re.sub("LayerNorm.bias$", "LayerNorm.beta", name).replace(
            "LayerNorm.weight", "LayerNorm.gamma"
        )
    ),
    "shards": sharded,
    "pickled": pickled(dict),
    "pickled as of old": pickled(dict, _use_new_zipfile_serialization=False),
    "pickled, shards": pickled_in_shards,
    "positions of old": weights(
        lambda s: s | {"bert.embeddings.position_ids": torch.arange(64)[None]}
    ),
    "attention of the hub": config(attn_implementation="kernels-community/flash-attn"),
    "chunks": config(chunk_size_feed_forward=3),
}
REFUSED: dict[str, tuple[Damage, str]] = {
    "compiled": (
        renamed("_orig_mod.{}".format),
        r"(\d+) of its \1 weights are not .* save the model without '_orig_mod\.'",
    ),
    "compiled layers": (
        renamed(lambda n: n.replace("encoder.layer", "encoder._orig_mod.layer")),
        r"48 of its \d+ weights .* 'bert\.encoder\._orig_mod\.layer\.0",
    ),
    "in parallel": (renamed("module.{}".format), r"without 'module\.'"),
    "wrapped twice": (renamed("net._orig_mod.{}".format), r"without 'net\._orig_mod\.'"),
    "wrapped head": (
        both(
            renamed(lambda n: n.replace("classifier.", "_orig_mod.classifier.")),
            config(architectures=["BertModel"]),
        ),
        r"2 of its \d+ weights .* without '_orig_mod\.'",
    ),
    "a head pruned": (
        weights(pruned_head),
        r"self\.key\.bias' and 5 more is of size \(24,\) in its files and \(32,\) by its config",
    ),
    "two labels": (
        config(id2label={"0": "a", "1": "b"}, label2id={"a": 0, "b": 1}),
        r"'classifier\.bias' and 1 more is of size \(3,\) in its files and \(2,\) by",
    ),
    "fewer words": (config(vocab_size=20), r"word_embeddings\.weight' is of size \(48, 32\)"),
    "other width": (config(hidden_size=16), "is of size"),
    "a layer less": (without(LAYER), r"lack the weight 'bert\.encoder\.layer\.1\..* and 15 more"),
    "more layers": (config(num_hidden_layers=5), r"lack the weight 'bert\.encoder\.layer\.3\."),
    "layers without end": (config(num_hidden_layers=10**9), "asks for 1,000,000,000 layers"),
    "fewer layers": (config(num_hidden_layers=2), r"no place for the weight 'bert\.enc.* 15 more"),
    "no bias": (without("classifier.bias"), r"lack the weight 'classifier\.bias', which"),
    "no pooler": (without("bert.pooler"), r"lack the weight 'bert\.pooler\.dense\.bias' and 1"),
    "no head": (without("classifier"), r"lack the weight 'classifier\.bias' and 1 more"),
    "a head of another": (
        weights(lambda s: s | {"norm.weight": torch.ones(3)}),
        r"no place for the weight 'norm\.weight'",
    ),
    "rounded": (
        weights(lambda s: s | {"classifier.weight": s["classifier.weight"].to(torch.int8)}),
        r"'classifier\.weight' is of torch\.int8",
    ),
    "quantised": (
        config(quantization_config={"quant_method": "gptq", "bits": 4}),
        r"are quantised \(quantization_config",
    ),
    "adapter beside": (adapter, r"adapter of peft .*merge_and_unload\(\)"),
    "adapter alone": (adapter_alone, r"adapter of peft .*merge_and_unload\(\)"),
    "no weights": (lambda f: (f / WEIGHTS).unlink(), r"neither model\.safetensors nor pytorch_m"),
    "cut short": (cut_short(WEIGHTS), r"model\.safetensors cannot be read"),
    "a shard less": (one_shard_less, r"index\.json names model-00002-.*, which is not there"),
    "an index of nothing": (index('{"weight_map": 3}'), r"index\.json cannot be read"),
    "no index": (index("{"), r"index\.json cannot be read"),
    "pickled code": (
        pickled(lambda s: {**s, "x": Code()}),
        r"pytorch_model\.bin cannot be read \(unsupported GLOBAL posix\.system",
    ),
    "pickled module": (
        pickled(lambda s: torch.nn.Linear(2, 2)),
        r"\(Unsupported global: GLOBAL torch\.nn\.modules\.linear\.Linear was not",
    ),
    "pickled checkpoint": (pickled(lambda s: {"model": s, "step": 3}), "holds more than weights"),
    "pickled, cut short": (both(pickled(dict), cut_short(PICKLED)), r"pytorch_model\.bin cannot"),
    "heads of no number": (config(num_attention_heads=0), r"config\.json cannot be used"),
    "heads that do not divide": (config(num_attention_heads=5), r"config\.json cannot be used"),
    "heads below 0": (config(num_attention_heads=-1), r"config\.json cannot be used"),
    "an unknown activation": (config(hidden_act="x"), r"config\.json cannot be used"),
    "a text for a number": (config(layer_norm_eps="x"), r"config\.json cannot be read"),
    "a number for names": (config(id2label=3), r"config\.json cannot be read"),
    "a text model of nothing": (config(text_config=3), r"config\.json cannot be read"),
    "dtype of nothing": (config(dtype=3), r"config\.json cannot be (read|used)"),
}


@pytest.mark.parametrize("damage", READ.values(), ids=READ)
def test_a_checkpoint_is_read_as_it_was(damage: Damage, fine_tuned: str, tmp_path: Path) -> None:
    folder = copytree(fine_tuned, tmp_path / "model")
    damage(folder)
    Checkpoint(str(folder)).check_classifier()
    expected = logits(BertForSequenceClassification.from_pretrained(fine_tuned))
    for model in (Checkpoint(str(folder)).load_classifier(), load_model(folder)):
        torch.testing.assert_close(logits(model), expected, atol=1e-6, rtol=0)
        assert {weight.dtype for weight in model.parameters()} == {torch.float32}


@pytest.mark.parametrize(("damage", "message"), REFUSED.values(), ids=REFUSED)
def test_a_damaged_checkpoint_is_refused_in_one_line(
    damage: Damage, message: str, fine_tuned: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = copytree(fine_tuned, tmp_path / "model")
    damage(folder)
    with pytest.raises(UserError, match=message) as refused:
        Checkpoint(str(folder)).check_classifier()
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "it-was-run").exists()


def test_pickled_weights_and_what_a_tokenizer_warns_of_are_told_at_the_start(
    fine_tuned: str, planted_task: Task, tmp_path: Path
) -> None:
    folder = copytree(fine_tuned, tmp_path / "model")
    assert read_inputs(planted_task, Teacher(checkpoint=str(folder))).notes == ()
    READ["pickled"](folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_tokens(["<url>"])
    tokenizer.save_pretrained(folder)
    inputs = read_inputs(planted_task, Teacher(checkpoint=str(folder)))
    assert re.search(r"1 tokens without an embedding in the model: '<url>'", inputs.notes[0])
    assert inputs.notes[1].endswith("by torch's restricted loader, which runs no code")
    progress = RecordingProgress()
    prepare(inputs, Session(cache=tmp_path, progress=progress))
    assert progress.notes[:2] == [*inputs.notes]


@pytest.mark.parametrize("name", ["compiled layers", "a layer less", "adapter beside", "no bias"])
def test_what_is_loaded_without_a_check_is_refused_too(
    name: str, fine_tuned: str, tmp_path: Path
) -> None:
    folder, (damage, message) = copytree(fine_tuned, tmp_path / "model"), REFUSED[name]
    damage(folder)
    for load in (lambda: Checkpoint(str(folder)).load_classifier(), lambda: load_model(folder)):
        with pytest.raises(UserError, match=message):
            load()


@pytest.mark.parametrize("name", ["compiled", "two labels", "pickled code"])
def test_compress_refuses_a_damaged_checkpoint_in_one_line(
    name: str, fine_tuned: str, tiny_data: Path, tmp_path: Path
) -> None:
    folder, (damage, message) = copytree(fine_tuned, tmp_path / "model"), REFUSED[name]
    damage(folder)
    asked = ("--data", tiny_data / "train.csv", "--max-length", 24, "--out", tmp_path / "out")
    done = maskfront("compress", folder, *asked, cwd=tmp_path)
    assert_one_clear_line(done, message)


def test_masks_that_a_decoder_once_saved_are_no_weights(tmp_path: Path) -> None:
    sizes = GPT2Config(n_embd=16, n_layer=1, n_head=2, vocab_size=48)
    GPT2ForSequenceClassification(sizes).save_pretrained(tmp_path)
    expected = logits(Checkpoint(str(tmp_path)).load_classifier())
    masks = {f"transformer.h.0.attn.{name}": torch.ones(1) for name in ("bias", "masked_bias")}
    weights(lambda state: state | masks)(tmp_path)
    assert torch.equal(logits(Checkpoint(str(tmp_path)).load_classifier()), expected)


def test_a_head_of_pretraining_is_no_wrapped_classifier(tmp_path: Path) -> None:
    sizes = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 16}
    model = AlbertForPreTraining(AlbertConfig(vocab_size=9, num_hidden_layers=1, **sizes))
    model.save_pretrained(tmp_path)  # it has a sop_classifier.classifier
    Checkpoint(str(tmp_path)).check_classifier()


@pytest.mark.parametrize("kind", [BertModel, BertForMaskedLM])
def test_a_pretrained_model_gets_a_new_head_and_lacks_nothing_else(
    kind: type[PreTrainedModel], fine_tuned: str, tmp_path: Path
) -> None:
    folder = copytree(fine_tuned, tmp_path / "model")
    kind.from_pretrained(folder).save_pretrained(folder)
    Checkpoint(str(folder)).check_classifier()
    before = load_file(folder / WEIGHTS)
    body = "" if kind is BertModel else "bert."
    embeddings = f"{body}embeddings.word_embeddings.weight"
    model = Checkpoint(str(folder)).load_classifier(["a", "b"])
    assert torch.equal(model.get_input_embeddings().weight, before[embeddings])
    for damage, message in (
        (without(f"{body}encoder.layer.1."), "lack the weight"),
        (config(num_hidden_layers=2), "no place for the weight"),
    ):
        damage(copytree(folder, tmp_path / message))
        with pytest.raises(UserError, match=message):
            Checkpoint(str(tmp_path / message)).check_classifier()


def test_a_pooler_that_a_roberta_left_over_does_not_matter(tmp_path: Path) -> None:
    folder = Path(write_variant("roberta", tmp_path / "roberta", ["a", "b"]))
    expected = logits(Checkpoint(str(folder)).load_classifier())
    weights(lambda s: s | {"roberta.pooler.dense.weight": torch.ones(2, 2)})(folder)
    Checkpoint(str(folder)).check_classifier()
    assert torch.equal(logits(Checkpoint(str(folder)).load_classifier()), expected)
