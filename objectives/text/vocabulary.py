"""A smaller vocabulary: the word pieces that a task uses most, and a tokenizer of these alone.

What must stay are the special tokens and the pieces of one character, without which words cannot be
spelt; the others stay by how often the train rows have them. A word whose piece is gone falls into
smaller ones.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase

from objectives.errors import UserError
from objectives.text.data import Split

_INSIDE = "##"
"""What a piece begins with that goes on with a word."""


class Vocabulary:
    """The pieces of a tokenizer by how much a task needs them."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, train: Split):
        self.tokenizer, self.train = tokenizer, train
        self._made: dict[int, PreTrainedTokenizerBase] = {}

    @cached_property
    def _document(self) -> dict[str, Any]:
        """The tokenizer as tokenizers writes it. Raises UserError unless it is of word pieces."""
        document: dict[str, Any] = {"model": {"type": "none of tokenizers'"}}
        if self.tokenizer.is_fast:
            document = json.loads(self.tokenizer.backend_tokenizer.to_str())
        model = document["model"]
        if model["type"] != "WordPiece" or model["continuing_subword_prefix"] != _INSIDE:
            raise UserError(
                f"vocabulary: the tokenizer is {model['type']}, and only WordPiece's, as BERT's, "
                "can be cut; leave vocabulary at 1"
            )
        return document

    @cached_property
    def _order(self) -> tuple[Sequence[int], int]:
        """All ids by falling need, and how many of them must stay."""
        pieces: dict[str, int] = self._document["model"]["vocab"]
        special = {token["id"] for token in self._document["added_tokens"]}
        letters = {n for piece, n in pieces.items() if len(piece.removeprefix(_INSIDE)) <= 1}
        stay = sorted(special | letters)
        uses = np.bincount(
            np.concatenate([np.asarray(row) for row in self.train.input_ids]),
            minlength=max(pieces.values()) + 1,
        )
        others = sorted(set(pieces.values()) - set(stay), key=lambda n: (-uses[n], n))
        return [*stay, *others], len(stay)

    def check(self, share: float) -> None:
        """Raise UserError unless so small a vocabulary can spell."""
        order, least = self._order
        if round(share * len(order)) < least:
            raise UserError(
                f"vocabulary is {share:g}, {round(share * len(order)):,} pieces; special tokens "
                f"and single characters alone are {least:,}, so that it must be at least "
                f"{-(-1000 * least // len(order)) / 1000:g}"
            )

    def kept(self, share: float) -> list[int]:
        """The ids that stay of a share of all pieces, ascending: a piece's place there is its new
        id."""
        self.check(share)
        order, _ = self._order
        return sorted(order[: round(share * len(order))])

    def tokenizer_of(self, kept: Sequence[int]) -> PreTrainedTokenizerBase:
        """The tokenizer that knows these pieces alone, by their new ids."""
        if len(kept) not in self._made:
            self._made[len(kept)] = self._tokenizer_of({old: new for new, old in enumerate(kept)})
        return self._made[len(kept)]

    def _tokenizer_of(self, new: dict[int, int]) -> PreTrainedTokenizerBase:
        document = copy.deepcopy(self._document)
        model, processor = document["model"], document["post_processor"] or {}
        model["vocab"] = {piece: new[n] for piece, n in model["vocab"].items() if n in new}
        for token in document["added_tokens"]:
            token["id"] = new[token["id"]]
        for token in processor.get("special_tokens", {}).values():
            token["ids"] = [new[n] for n in token["ids"]]
        for name in ("sep", "cls"):  # of BertProcessing
            if name in processor:
                processor[name][1] = new[processor[name][1]]
        smaller = copy.deepcopy(self.tokenizer)
        smaller._tokenizer = Tokenizer.from_str(json.dumps(document))
        return smaller
