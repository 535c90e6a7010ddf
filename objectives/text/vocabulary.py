"""Smaller vocabularies: the word pieces that are most frequent in the train rows, and a tokenizer
of these. Special tokens and pieces of one character stay, as words are spelt with them."""

import copy
import json
import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase

from objectives.errors import UserError
from objectives.text.data import Split

_INSIDE = "##"
"""Prefix of a piece that continues a word."""


def check_vocabulary(tokenizer: PreTrainedTokenizerBase, share: float) -> None:
    """Raise UserError unless a share in (0, 1] of the tokenizer's pieces can spell every word."""
    document = _document(tokenizer)
    count, least = round(share * len(document["model"]["vocab"])), len(_spelling(document))
    if count < least:
        smallest = math.ceil(1000 * least / len(document["model"]["vocab"])) / 1000
        raise UserError(
            f"vocabulary is {share:g}, or {count:,} pieces, but special tokens and single "
            f"characters alone are {least:,}; it must be at least {smallest:g}"
        )


def _document(tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
    """Tokenizer as a JSON document. Raises UserError unless it uses word pieces."""
    document: dict[str, Any] = {"model": {"type": "not a fast one"}}
    if tokenizer.is_fast:
        document = json.loads(tokenizer.backend_tokenizer.to_str())
    model = document["model"]
    if model["type"] != "WordPiece" or model["continuing_subword_prefix"] != _INSIDE:
        raise UserError(
            f"vocabulary: the tokenizer is {model['type']}, and only a WordPiece vocabulary, as "
            "BERT's, can be cut; leave vocabulary at 1"
        )
    return document


def _spelling(document: Mapping[str, Any]) -> list[int]:
    """Ids that must stay, ascending."""
    special = {token["id"] for token in document["added_tokens"]}
    pieces: Mapping[str, int] = document["model"]["vocab"]
    letters = {n for piece, n in pieces.items() if len(piece.removeprefix(_INSIDE)) <= 1}
    unknown = {pieces[piece] for piece in (document["model"]["unk_token"],) if piece in pieces}
    return sorted(special | letters | unknown)


class Vocabulary:
    """Word pieces by how much a task needs them. Raises UserError for a tokenizer without any."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, train: Split):
        self.tokenizer, self.train = tokenizer, train
        self._made: dict[int, PreTrainedTokenizerBase] = {}

    @cached_property
    def _order(self) -> Sequence[int]:
        """All ids, the most needed first."""
        document = _document(self.tokenizer)
        stay, ids = _spelling(document), document["model"]["vocab"].values()
        tokens = np.concatenate([np.asarray(row) for row in self.train.input_ids])
        uses = np.bincount(tokens, minlength=max(ids) + 1)
        return [*stay, *sorted(set(ids) - set(stay), key=lambda n: (-uses[n], n))]

    def count(self, share: float) -> int:
        """Number of pieces in a share of all, in (0, 1]."""
        return round(share * len(self._order))

    def kept(self, count: int) -> list[int]:
        """Ids of the pieces that stay, ascending: the index of an id there is its new id."""
        return sorted(self._order[:count])

    def tokenizer_of(self, count: int) -> PreTrainedTokenizerBase:
        """Tokenizer with this many pieces, by their new ids."""
        if count in self._made:
            return self._made[count]
        new = {old: new for new, old in enumerate(self.kept(count))}
        document = _document(self.tokenizer)
        model, processor = document["model"], document["post_processor"] or {}
        processors = processor.get("processors", [processor])  # of a Sequence, or itself
        model["vocab"] = {piece: new[n] for piece, n in model["vocab"].items() if n in new}
        for token in document["added_tokens"]:
            token["id"] = new[token["id"]]
        for processor in processors:
            for token in processor.get("special_tokens", {}).values():
                token["ids"] = [new[n] for n in token["ids"]]
            for name in ("sep", "cls"):  # of BertProcessing
                if name in processor:
                    processor[name][1] = new[processor[name][1]]
        smaller = self._made[count] = copy.deepcopy(self.tokenizer)
        smaller._tokenizer = Tokenizer.from_str(json.dumps(document))
        return smaller
