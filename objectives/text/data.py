"""Tokenised splits, and batches of sequences of similar length."""

import hashlib
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from objectives.device import on_device
from objectives.metric import Labels

Truncation = Literal["head", "head+tail"]
"""Truncation of a longer text: its first tokens; or its first tokens in a quarter of the room and
its last tokens in the rest (Sun et al. 2019, "How to Fine-Tune BERT for Text Classification?")."""
INPUTS = ("input_ids", "attention_mask", "token_type_ids")
"""Inputs of a model in a batch, each (batch, length)."""
_POOL = 32
"""Batches that are drawn together and sorted by length: enough to save most padding, few enough to
keep the order random (as `LengthGroupedSampler` of transformers does)."""
_WITH_GRADIENTS = 32, 2**12
"""Sequences in a pass with gradients, and tokens above which there are fewer: 32 of 512 tokens took
a model of BERT-base's size more than 24 GB."""
_PAD_TO = 8
"""Lengths are rounded up to this multiple, so that few distinct shapes occur."""


def no_labels(rows: int, like: Labels) -> Labels:
    """Placeholder labels of rows without any: -1 for classes, NaN for numbers."""
    none = np.nan if like.dtype.kind == "f" else -1
    return np.full((rows, *like.shape[1:]), none, like.dtype)


@dataclass(frozen=True)
class Batch:
    """B sequences, padded to S positions."""

    input_ids: Tensor
    token_type_ids: Tensor
    """Token ids and segments, both (B, S) int64."""
    attention_mask: Tensor
    """(B, S) bool; False is padding."""
    labels: Tensor
    """Labels: (B,) int64, classes; or float32, numbers; or (B, C) int8, several labels, 1 or 0."""
    rows: Tensor
    """(B,) int64: indices of the sequences in their split."""

    @property
    def inputs(self) -> dict[str, Tensor]:
        """Tensors that a model reads, by name."""
        return {name: getattr(self, name) for name in INPUTS}


@dataclass(frozen=True, eq=False)
class Split:
    """Tokenised rows of one role: `train`, `alpha`, `select` or `heldout`."""

    role: str
    input_ids: list["array[int]"]
    """Tokens of each row: arrays, which take a fifth of the memory of lists."""
    token_type_ids: list["array[int]"]
    labels: Labels
    pad_token_id: int
    max_length: int
    """Longest sequence, in tokens; no batch is padded beyond it."""
    truncated: int = 0
    """Number of rows that were truncated."""
    truncation: Truncation = "head"
    """Truncation of longer texts."""
    pads_left: bool = False
    """Whether padding goes before the tokens, as XLNet has it."""

    @property
    def regression(self) -> bool:
        """Whether the labels are numbers, not classes."""
        return self.labels.dtype.kind == "f"

    @property
    def several(self) -> bool:
        """Whether a row may have several labels."""
        return self.labels.ndim == 2

    def __len__(self) -> int:
        return len(self.input_ids)

    @property
    def last_token(self) -> int:
        """Largest token id in its rows and their padding."""
        return max(self.pad_token_id, *map(max, filter(None, self.input_ids)))

    @cached_property
    def lengths(self) -> NDArray[np.int64]:
        """Number of tokens of each row (rows,)."""
        return np.array([len(ids) for ids in self.input_ids])

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of its tokens, hexadecimal, shortened to 16 digits."""
        digest = hashlib.sha256()
        for ids, types in zip(self.input_ids, self.token_type_ids, strict=True):
            digest.update(np.array([len(ids), *ids, *types]).tobytes())
        return digest.hexdigest()[:16]

    def answered(self, logits: Tensor) -> "Split":
        """Fill missing labels (see `no_labels`) with `answers` of logits (rows, C)."""
        missing = np.isnan(self.labels) if self.regression else self.labels < 0
        if not missing.any():
            return self
        return replace(self, labels=np.where(missing, self.answers(logits), self.labels))

    def answers(self, logits: Tensor) -> Tensor:
        """Labels of logits (rows, C): likeliest class, number, or all of probability above 0.5."""
        if self.several:
            return (logits > 0).to(torch.int8)
        return logits[:, 0] if self.regression else logits.argmax(-1)

    def at(self, rows: NDArray[np.int64]) -> Self:
        """Select these rows, in this order."""
        ids = [self.input_ids[row] for row in rows]
        types = [self.token_type_ids[row] for row in rows]
        return replace(self, input_ids=ids, token_type_ids=types, labels=self.labels[rows])

    def batch(self, rows: np.ndarray[tuple[int], np.dtype[np.int64]], device: str) -> Batch:
        """Pad these rows to one batch on `device`."""
        lengths = self.lengths[rows]
        width = min(-(-int(lengths.max()) // _PAD_TO) * _PAD_TO, self.max_length)
        ids = np.full((len(rows), width), self.pad_token_id, dtype=np.int64)
        types = np.zeros((len(rows), width), dtype=np.int64)
        starts = width - lengths if self.pads_left else np.zeros_like(lengths)
        for index, (row, start, length) in enumerate(zip(rows, starts, lengths, strict=True)):
            ids[index, start : start + length] = self.input_ids[row]
            types[index, start : start + length] = self.token_type_ids[row]
        positions = np.arange(width) - starts[:, None]
        mask = (positions >= 0) & (positions < lengths[:, None])
        arrays = (ids, types, mask, self.labels[rows], rows)
        return Batch(*(on_device(torch.from_numpy(array), device) for array in arrays))

    def longest_first(self) -> NDArray[np.int64]:
        """Indices of the rows by falling length."""
        return np.argsort(-self.lengths, kind="stable")

    @property
    def rows_with_gradients(self) -> int:
        """Number of rows in a pass that keeps activations for gradients: fewer of long texts."""
        rows, tokens = _WITH_GRADIENTS
        return max(1, min(rows, tokens // int(self.lengths.max(initial=1))))

    def in_order(self, batch_size: int, device: str) -> Iterator[Batch]:
        """Batches of every row once, longest first, for evaluation; see `Batch.rows`."""
        order = self.longest_first()
        for start in range(0, len(order), batch_size):
            yield self.batch(order[start : start + batch_size], device)

    def drawn(
        self, rows: int, generator: np.random.Generator, batch_size: int
    ) -> list[NDArray[np.int64]]:
        """Draw this many rows at random, or all, in batches of similar length."""
        some = generator.permutation(len(self))[:rows]
        some = some[np.argsort(self.lengths[some], kind="stable")]
        return [some[start : start + batch_size] for start in range(0, len(some), batch_size)]

    def shuffled(
        self, batch_size: int, seed: int | tuple[int, ...], device: str, *, first: int = 0
    ) -> Iterator[Batch]:
        """Endless batches, each row once an epoch, in an order that the seed alone decides."""
        generator, pool_size = np.random.default_rng(seed), _POOL * batch_size
        while True:
            order = generator.permutation(len(self))
            pools = np.split(order, range(pool_size, len(order), pool_size))
            rows = np.concatenate(
                [pool[np.argsort(self.lengths[pool], kind="stable")] for pool in pools]
            )
            starts = generator.permutation(range(0, len(rows), batch_size))
            for start in starts[first:]:
                yield self.batch(rows[start : start + batch_size], device)
            first = max(0, first - len(starts))
