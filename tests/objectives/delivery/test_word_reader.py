"""The dictionary of words gives the ids of the tokenizers library to the last one, or none."""

from __future__ import annotations

import string
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers, processors

from objectives.delivery import deployed
from objectives.students.bert.pretrained import Checkpoint

pytest.importorskip("onnxruntime", reason="the extra 'onnx' is not installed")

from objectives.delivery import classify

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
SPELLING = "abcdefghijklmno0123456789.,!'[]#-"
PIECES = ["good", "mood", "##mood", "##ing", "can", "##not", "10", "##th", "é", "中"]
VOCABULARY = [*SPECIAL, *SPELLING, *(f"##{sign}" for sign in SPELLING), *PIECES]
TEMPLATE = processors.TemplateProcessing(
    single="[CLS] $A [SEP]",
    pair="[CLS] $A [SEP] $B:1 [SEP]:1",
    special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
)


def made(longest: int = 1000, side: str = "right", **parts: Any) -> Tokenizer:
    """A lower-casing WordPiece tokenizer, except for these parts."""
    ids = {piece: number for number, piece in enumerate(VOCABULARY)}
    model = models.WordPiece(ids, unk_token="[UNK]", max_input_chars_per_word=12)
    tokenizer = Tokenizer(parts.get("model", model))
    tokenizer.normalizer = parts.get("normalizer", normalizers.BertNormalizer())
    tokenizer.pre_tokenizer = parts.get("pre_tokenizer", pre_tokenizers.BertPreTokenizer())
    tokenizer.post_processor = parts.get("post_processor", TEMPLATE)
    tokenizer.add_special_tokens(SPECIAL)
    tokenizer.add_tokens(parts.get("added", []))
    tokenizer.enable_truncation(longest, direction=side)
    return tokenizer


words = st.sampled_from(
    ["good", "Mood", "moodmood", "cannot", "10th", "[SEP]", "[sep]", "it's", "a_b", "é", "a" * 12]
)
plain = st.lists(words | st.text(string.ascii_letters, max_size=30), max_size=8)
texts = plain.map(" ".join) | plain.map("".join) | st.text(string.printable) | st.text()
flags = st.fixed_dictionaries(
    {
        "clean_text": st.booleans(),
        "handle_chinese_chars": st.booleans(),
        "strip_accents": st.sampled_from([None, True, False]),
        "lowercase": st.sampled_from([True, True, True, False]),
    }
)
added_tokens = st.builds(
    AddedToken,
    st.sampled_from(["mood", "MOOD", "oo", "g", "!", "É", "good mood", "<x>"]),
    single_word=st.booleans(),
    lstrip=st.booleans(),
    rstrip=st.booleans(),
    normalized=st.booleans(),
)
post_processors = st.sampled_from(
    [
        TEMPLATE,
        processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2)),
        processors.RobertaProcessing(("[SEP]", 3), ("[CLS]", 2)),
        *(
            processors.TemplateProcessing(
                single=single, special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
            )
            for single in (
                "$A",
                "[CLS] $A",
                "$A [CLS] [SEP]",
                "[CLS] $A $A [SEP]",
                "[CLS] $A:1 [SEP]",
            )
        ),
    ]
)


@settings(max_examples=300)  # settings of a tokenizer and texts are many
@given(
    batch=st.lists(texts, min_size=1, max_size=5),
    flags=flags,
    added=st.lists(added_tokens, max_size=2),
    post_processor=post_processors,
    longest=st.integers(1, 40),
    side=st.sampled_from(["right", "left"]),
)
def test_ids_and_segments_are_the_tokenizers(
    batch: list[str], flags: Any, added: Any, post_processor: Any, longest: int, side: str
) -> None:
    tokenizer = made(
        longest,
        side,
        normalizer=normalizers.BertNormalizer(**flags),
        added=added,
        post_processor=post_processor,
    )
    reader = classify.WordReader(tokenizer, longest)
    for text in batch:
        encoding = tokenizer.encode(text)
        assert reader.read(text) in (None, (encoding.ids, encoding.type_ids))


LETTERS = st.characters(codec="latin-1") | st.sampled_from("ЖяΣςİıſßﬁ\u2019\u201c…—中한️😀")


@given(text=st.text(st.sampled_from(string.printable) | LETTERS, max_size=100))
def test_usual_texts_are_read(text: str) -> None:
    tokenizer = made()
    ids = tokenizer.encode(text).ids
    assert classify.WordReader(tokenizer, 1000).read(text) == (ids, [0] * len(ids))


UNKNOWN: dict[str, dict[str, Any]] = {
    "another normalizer": {"normalizer": normalizers.Lowercase()},
    "no normalizer": {"normalizer": None},
    "another split": {"pre_tokenizer": pre_tokenizers.Whitespace()},
    "a model of bytes": {"model": models.BPE({"a": 0, "[UNK]": 1}, [], unk_token="[UNK]")},
    "no special tokens": {"post_processor": processors.ByteLevel()},
}


@pytest.mark.parametrize("kind", UNKNOWN)
def test_the_reader_steps_aside_for_other_tokenizers(kind: str) -> None:
    assert classify.WordReader(made(), 100).read("good mood") is not None
    assert classify.WordReader(made(**UNKNOWN[kind]), 100).read("good mood") is None


@pytest.mark.parametrize(
    "text", ["a\U0001d165", "a\u0378", "see [SEP]", ("good", "mood"), "good " * 99]
)
def test_the_reader_steps_aside_for_other_texts(text: Any) -> None:
    """Marks that change places, characters of no Unicode, added tokens, pairs, what is cut off."""
    assert classify.WordReader(made(100), 100).read(text) is None


def test_threads_share_a_dictionary_of_bounded_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(classify, "_WORDS", 8)
    tokenizer = made()
    reader = classify.WordReader(tokenizer, 1000)
    batch = [f"good {number} mood{number % 7} {'a' * 30}!" for number in range(3000)]
    with ThreadPoolExecutor(4) as pool:
        read = list(pool.map(reader.read, batch))
    assert [row and row[0] for row in read] == [tokenizer.encode(text).ids for text in batch]
    assert len(reader.pieces) <= 8 + 4
    assert max(map(len, reader.pieces)) <= 24


def test_the_forms_of_characters_are_bounded_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(classify, "_FORMS", 50)
    tokenizer = made()
    reader = classify.WordReader(tokenizer, 1000)
    text = "".join(map(chr, range(0x4E00, 0x4F00)))
    row: Any = reader.read(text)
    assert row == (tokenizer.encode(text).ids, [0] * len(row[0]))
    assert len(reader.forms) <= 50


def stage(folder: Path, tiny_bert: str, texts: deployed.Texts) -> dict[str, Any]:
    return deployed.stage_of(folder, "model.onnx", Checkpoint(tiny_bert).tokenizer, 24, texts=texts)


def test_a_folder_where_ids_differ_does_not_use_the_reader(
    tiny_bert: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert stage(tmp_path, tiny_bert, ["joy", "gloom gloom"])["words"]
    right: Callable[..., Any] = classify.WordReader.read
    monkeypatch.setattr(
        classify.WordReader, "read", lambda self, text: right(self, text.replace("gloom", "joy"))
    )
    assert stage(tmp_path, tiny_bert, ["joy"])["words"]
    assert not stage(tmp_path, tiny_bert, ["joy", "gloom gloom"])["words"]


@pytest.mark.slow
def test_ids_are_the_tokenizers_on_all_texts_of_the_demo() -> None:
    from studies._data import minilm, tweets

    try:
        tokenizer, batch = Tokenizer.from_file(f"{minilm()}/tokenizer.json"), tweets()["text"]
    except PackageNotFoundError:
        pytest.skip("requirements-demo.txt is not installed")
    tokenizer.no_padding()
    reader = classify.WordReader(tokenizer, 128)
    read = {text: row for text in batch if (row := reader.read(text))}
    assert len(read) > 0.99 * len(set(batch))
    encodings = tokenizer.encode_batch(list(read))
    assert list(read.values()) == [(encoding.ids, encoding.type_ids) for encoding in encodings]
