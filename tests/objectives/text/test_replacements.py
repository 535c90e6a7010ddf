"""What may stand for a word: compared with a plain, unbatched computation."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from shutil import copytree

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn import functional
from transformers import AutoTokenizer, BertConfig, BertForMaskedLM, BertTokenizer

from objectives.errors import UserError
from objectives.text.augmentation import Sentence, WordVectors, find_options, open_masked_lm
from tests.conftest import FILLERS, SPECIAL
from tests.objectives.conformance import RecordingProgress, random_states

TEXTS = [
    "joy bab bel",
    "Bab, the TOAST.",
    "grief dog 7 tidal",
    "dog log fog bog nog kog",
    "tides",
    "lab",
    "",
]
GLOVE = WordVectors(
    ["tides", "ebb", "tidal", "SEA", "high-tide", "moon", "rock", "dog"],
    torch.tensor(
        [[1, 0.1], [1, 0.3], [1, 0], [1, 0.2], [1, 0.05], [0, 1], [-1, 0], [0.9, -1]],
        dtype=torch.float32,
    ),
)

Options = Callable[..., list[Sentence]]


@pytest.fixture
def options(tiny_masked_lm: str) -> Options:
    """The sentences of some texts with what can replace their words."""

    def found(
        texts: Sequence[str], count: int = 12, glove: WordVectors | None = None
    ) -> list[Sentence]:
        masked_lm = open_masked_lm(tiny_masked_lm)
        sentences = [masked_lm.sentence(text) for text in texts]
        progress = RecordingProgress()
        find_options(masked_lm, glove, sentences, count=count, device="cpu", progress=progress)
        assert progress.taken == progress.wanted
        return sentences

    return found


def predictions(checkpoint: str, words: Sequence[str], place: int) -> list[str]:
    """The whole vocabulary in the masked LM's order, by one pass of the stock model."""
    model = BertForMaskedLM.from_pretrained(checkpoint).eval()
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    masked = " ".join([*words[:place], "[MASK]", *words[place + 1 :]])
    encoded = tokenizer(masked, " ".join(words), return_tensors="pt")
    (position,) = (encoded["input_ids"][0] == tokenizer.mask_token_id).nonzero()
    with torch.no_grad():
        logits = model(**encoded).logits[0, int(position)]
    order: list[str] = tokenizer.convert_ids_to_tokens(logits.sort(descending=True).indices)
    return order


def test_a_word_of_one_piece_gets_the_likeliest_words_in_their_order(
    options: Options, tiny_masked_lm: str
) -> None:
    compared, dropped = 0, 0
    for sentence in options(TEXTS):
        for place, words in sentence.options.items():
            if len(sentence.pieces[place]) == 1:
                likeliest = predictions(tiny_masked_lm, sentence.words, place)[:12]
                whole = [w for w in likeliest if not w.startswith("##") and w not in SPECIAL]
                assert words == whole
                compared += 1
                dropped += any(word.startswith("##") for word in likeliest)
    assert compared == 14
    assert dropped > 0, "no prediction had a continuation piece to drop"


def test_no_option_is_a_continuation_or_a_special_token(options: Options) -> None:
    words = {w for s in options(TEXTS, count=1000) for found in s.options.values() for w in found}
    assert words == {*FILLERS, "joy", "grief", "toast", "ti", "the", "7", ".", ","}


def test_stop_words_numbers_and_punctuation_stay(options: Options) -> None:
    (sentence,) = options(["The dog, 7 x2 joy."])
    assert sentence.words == ["the", "dog", ",", "7", "x2", "joy", "."]
    assert list(sentence.options) == [1, 5]


def test_a_word_of_several_pieces_gets_the_nearest_vectors_of_one_word(options: Options) -> None:
    """Nearest to "tidal" by cosine: high-tide (two words), tides, SEA, ebb, dog, moon, rock."""
    (sentence,) = options(["tidal tides tiab"], count=4, glove=GLOVE)
    assert sentence.options == {0: ["tides", "sea", "ebb"], 1: ["sea", "tidal", "ebb"], 2: ["tiab"]}


def test_without_vectors_the_nearest_embeddings_are_taken(
    options: Options, tiny_masked_lm: str
) -> None:
    (sentence,) = options(["joy tides"], count=5)
    model = BertForMaskedLM.from_pretrained(tiny_masked_lm)
    tokenizer = AutoTokenizer.from_pretrained(tiny_masked_lm)
    embeddings = model.get_input_embeddings().weight.detach()
    pieces = tokenizer.convert_tokens_to_ids(["ti", "##de", "##s"])
    cosines = functional.cosine_similarity(embeddings[pieces].mean(0)[None], embeddings)
    vocabulary = tokenizer.convert_ids_to_tokens(cosines.sort(descending=True).indices)
    assert sentence.options[1] == [word for word in vocabulary if word.isalpha()][:5]


def test_a_word_without_any_option_keeps_itself(options: Options, tiny_masked_lm: str) -> None:
    for word in FILLERS:
        (sentence,) = options([word], count=1)
        likeliest = predictions(tiny_masked_lm, [word], 0)[0]
        if likeliest.startswith("##") or likeliest in SPECIAL:
            assert sentence.options == {0: [word]}
            return
    raise AssertionError("each likeliest token is a whole word")


def test_a_text_longer_than_the_masked_lm_is_cut_off(options: Options) -> None:
    text = " ".join(FILLERS[:30])
    (sentence,) = options([text])
    changed = [place for place, words in sentence.options.items() if words != [FILLERS[place]]]
    assert list(sentence.options) == list(range(30))
    assert changed == list(range(23)), "[CLS] and 23 words are what it reads"


def test_options_do_not_depend_on_the_other_texts(options: Options) -> None:
    for together, text in zip(options(TEXTS), TEXTS, strict=True):
        (alone,) = options([text])
        assert alone.options == together.options


def test_looking_for_options_leaves_global_random_state_alone(options: Options) -> None:
    before = random_states()
    options(TEXTS)
    assert random_states() == before


@pytest.fixture
def copied(tiny_masked_lm: str, tmp_path: Path) -> Path:
    """A copy of the tiny masked LM, to be broken."""
    return copytree(tiny_masked_lm, tmp_path / "copied")


def refused(checkpoint: Path | str, message: str) -> None:
    with pytest.raises(UserError, match=message) as error:
        open_masked_lm(str(checkpoint))
    assert str(checkpoint) in str(error.value)
    assert "\n" not in str(error.value)


def test_a_checkpoint_without_a_head_for_masked_words_is_refused(tiny_bert: str) -> None:
    refused(tiny_bert, r"it has no masked-LM head \(cls\.predictions\); use a pretrained BERT")


def test_a_checkpoint_that_is_not_there_is_refused(tmp_path: Path) -> None:
    refused(tmp_path / "nowhere", "no such folder")


def test_a_tokenizer_without_mask_or_word_pieces_is_refused(copied: Path) -> None:
    settings = json.loads((copied / "tokenizer.json").read_text())
    settings["model"] = {"type": "WordLevel", "vocab": {"[UNK]": 0, "a": 1}, "unk_token": "[UNK]"}
    settings["added_tokens"] = []
    (copied / "tokenizer.json").write_text(json.dumps(settings))
    (copied / "tokenizer_config.json").write_text('{"tokenizer_class": "TokenizersBackend"}')
    refused(copied, "its tokenizer is not BERT's")


def test_a_tokenizer_larger_than_the_model_is_refused(copied: Path) -> None:
    words = [*SPECIAL, *(f"w{number}" for number in range(60))]
    BertTokenizer(vocab={word: index for index, word in enumerate(words)}).save_pretrained(copied)
    refused(copied, "must know the 65 tokens of its tokenizer and 2 segments, but knows 57 and 2")


def test_a_model_of_one_segment_is_refused(copied: Path) -> None:
    config = BertConfig.from_pretrained(copied)
    config.type_vocab_size = 1
    config.save_pretrained(copied)
    refused(copied, "and 2 segments, but knows 57 and 1; use another BERT")


def test_a_masked_lm_without_one_of_its_weights_is_refused(copied: Path) -> None:
    weights = load_file(copied / "model.safetensors")
    del weights["bert.encoder.layer.1.output.dense.bias"]
    save_file(weights, copied / "model.safetensors", metadata={"format": "pt"})
    refused(copied, r"its files lack the weight 'bert\.encoder\.layer\.1\.output\.dense\.bias'")
