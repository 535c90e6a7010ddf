"""How much is left of each layer, as pictures and reports show it: the sizes of an architecture.

A kind of units has a number for each layer. Kinds of another model than BERT go by their own names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

Sizes = Mapping[str, Sequence[int]]

_WORDS = {
    "heads": "heads",
    "ffn": "FFN neurons",
    "query_key": "query and key dimensions",
    "value": "value dimensions",
    "query_inputs": "inputs of Q",
    "key_inputs": "inputs of K",
    "value_inputs": "inputs of V",
}
_OF_HEADS, _OF_ATTENTION = ("query_key", "value"), ("query_inputs", "key_inputs", "value_inputs")
"""Kinds that leave with each head, and with the last."""


def in_words(kind: str) -> str:
    """What to call units of this kind."""
    return _WORDS.get(kind, kind)


def shown(models: Sequence[Sizes], full: Sizes) -> list[str]:
    """The kinds to show of these models, heads and FFN neurons first: all of which in any model
    more is gone than what leaves with a head. `full` are the sizes of the unpruned model."""
    return [
        kind
        for kind in dict.fromkeys((*_WORDS, *full))
        if kind in full
        and any(kind in sizes and not _left_with_heads(kind, sizes, full) for sizes in models)
    ]


def _left_with_heads(kind: str, sizes: Sizes, full: Sizes) -> bool:
    """Whether a layer lacks no more units of this kind than its missing heads had."""
    if kind not in (*_OF_HEADS, *_OF_ATTENTION):
        return False
    layers = zip(sizes[kind], full[kind], sizes["heads"], full["heads"], strict=False)
    return all(
        left == (whole * heads // all_heads if kind in _OF_HEADS else whole * bool(heads))
        for left, whole, heads, all_heads in layers
    )
