"""Sizes of a model's layers, as pictures and reports show them, for each kind of units."""

from collections.abc import Mapping, Sequence
from itertools import chain, zip_longest

Sizes = Mapping[str, Sequence[int]]

_WORDS = {
    "heads": "heads",
    "ffn": "FFN neurons",
    "query_key": "query and key dimensions",
    "value": "value dimensions",
    "query_inputs": "inputs of Q",
    "key_inputs": "inputs of K",
    "value_inputs": "inputs of V",
    "weight_bits": "bits of weights",
    "input_bits": "bits of what enters them",
    "attention_bits": "bits of Q, K, V and attention",
    "layers": "the layer itself",
    "ranks": "ranks of factored weights",
}
# Units of the unpruned model, for kinds that its sizes leave out.
_OF_WHOLE = {"weight_bits": 32, "input_bits": 32, "attention_bits": 32, "layers": 1}
# Kinds that are removed with each head, and with the last head.
_OF_HEADS, _OF_ATTENTION = ("query_key", "value"), ("query_inputs", "key_inputs", "value_inputs")


def in_words(kind: str) -> str:
    """Name of a kind of units."""
    return _WORDS.get(kind, kind)


def shown(models: Sequence[Sizes], full: Sizes) -> dict[str, tuple[int, ...]]:
    """Kinds of units to show, each with the unpruned model's number, or the largest if that has
    none. A kind is left out where only removed heads reduced it."""
    kinds = {}
    for kind in dict.fromkeys((*_WORDS, *chain(*models))):
        having = [sizes for sizes in models if kind in sizes]
        if kind in _OF_WHOLE and having:
            kinds[kind] = (_OF_WHOLE[kind],) * len(having[0][kind])
        elif not all(_left_with_heads(kind, sizes, full) for sizes in having):
            most = zip_longest(*(sizes[kind] for sizes in having), fillvalue=0)
            kinds[kind] = tuple(full[kind] if kind in full else map(max, most))
    return kinds


def in_numbers(sizes: Sizes, full: Sizes) -> dict[str, list[str]]:
    """Remaining units as text: by kind, for each layer such as "3 of 12"."""
    return {
        in_words(kind): [f"{n:,} of {all_:,}" for n, all_ in zip(sizes[kind], units, strict=False)]
        for kind, units in shown([sizes], full).items()
    }


def _left_with_heads(kind: str, sizes: Sizes, full: Sizes) -> bool:
    """Whether removed heads alone explain the missing units of this kind in every layer."""
    comparable = {kind, "heads"} <= sizes.keys() & full.keys()
    if kind not in (*_OF_HEADS, *_OF_ATTENTION) or not comparable:
        return False
    layers = zip(sizes[kind], full[kind], sizes["heads"], full["heads"], strict=False)
    return all(
        left == (units * heads // (all_heads or 1) if kind in _OF_HEADS else units * bool(heads))
        for left, units, heads, all_heads in layers
    )
