"""Smaller vocabularies: who stays, and a tokenizer that spells what is gone."""

from array import array
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import Sequence, TemplateProcessing
from transformers import (
    AutoTokenizer,
    BertTokenizer,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)

from objectives.errors import UserError
from objectives.text.data import Split
from objectives.text.vocabulary import Vocabulary, check_vocabulary

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abc", "##a", "##b", "##c"]
WORDS = ["abc", "cab", "##bc", "bab", "##ab"]


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    return BertTokenizer(vocab={piece: n for n, piece in enumerate([*PIECES, *WORDS])})


@pytest.fixture(scope="module")
def vocabulary(tokenizer: PreTrainedTokenizerBase) -> Vocabulary:
    """Of rows with "bab" most often, then "cab"."""
    rows = [array("i", tokenizer(text)["input_ids"]) for text in ("bab bab cab", "bab cab abc")]
    types = [array("b", bytes(len(row))) for row in rows]
    return Vocabulary(tokenizer, Split("train", rows, types, np.zeros(2, dtype=np.int64), 0, 16))


def test_the_most_used_pieces_stay_and_the_others_are_spelt(vocabulary: Vocabulary) -> None:
    assert vocabulary.count(1.0) == 16
    assert vocabulary.kept(13) == [*range(11), 12, 14]
    smaller = vocabulary.tokenizer_of(13)
    assert smaller.tokenize("bab cab abc") == ["bab", "cab", "a", "##b", "##c"]
    assert smaller("bab")["input_ids"] == [2, 12, 3]
    assert smaller.tokenize("xyz") == ["[UNK]"]
    assert vocabulary.tokenizer_of(13) is smaller
    assert vocabulary.tokenizer.tokenize("abc") == ["abc"]


def test_all_pieces_are_the_tokenizer(vocabulary: Vocabulary) -> None:
    texts = ["abc cab", "bab", "cabab"]
    assert vocabulary.tokenizer_of(16)(texts).data == vocabulary.tokenizer(texts).data


def test_it_comes_back_from_its_files(vocabulary: Vocabulary, tmp_path: Path) -> None:
    smaller = vocabulary.tokenizer_of(12)
    smaller.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    texts = ["abc cab bab", "c"]
    assert loaded(texts, padding=True).data == smaller(texts, padding=True).data
    assert len(loaded) == 12


def test_a_tokenizer_that_lists_its_steps_has_the_new_ids_too() -> None:
    pieces = [*WORDS, *PIECES]
    document = Tokenizer(
        WordPiece({piece: n for n, piece in enumerate(pieces)}, unk_token="[UNK]")  # type: ignore[call-arg]
    )
    document.pre_tokenizer = Whitespace()
    ends = [(piece, pieces.index(piece)) for piece in ("[CLS]", "[SEP]")]
    template = TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ends)
    document.post_processor = Sequence([template])
    whole = PreTrainedTokenizerFast(tokenizer_object=document, pad_token="[PAD]")
    row = array("i", whole("bab")["input_ids"])
    train = Split("train", [row], [array("b", bytes(len(row)))], np.zeros(1, np.int64), 0, 16)
    smaller = Vocabulary(whole, train).tokenizer_of(12)
    assert smaller.convert_ids_to_tokens(smaller("bab x")["input_ids"]) == [
        *("[CLS]", "bab", "[UNK]", "[SEP]"),
    ]


def test_what_cannot_spell_is_refused(
    tokenizer: PreTrainedTokenizerBase, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_vocabulary(tokenizer, 0.7)
    with pytest.raises(UserError, match=r"is 0\.5, or 8 pieces.* 11; .* at least 0\.688"):
        check_vocabulary(tokenizer, 0.5)
    monkeypatch.setattr(
        tokenizer.backend_tokenizer.__class__, "to_str", lambda own: '{"model": {"type": "BPE"}}'
    )
    with pytest.raises(UserError, match="the tokenizer is BPE, and only a WordPiece"):
        check_vocabulary(tokenizer, 0.9)
