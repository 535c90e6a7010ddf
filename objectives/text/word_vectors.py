"""Word vectors from a GloVe text file, and the words that lie nearest to one by cosine."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from objectives.errors import UserError

_ROWS = 100_000
"""Rows of a file that are read, the most frequent words, as TinyBERT does."""
_CHUNK = 256
"""Words whose neighbours are looked up together: their cosines with all rows take 100 MB."""


@dataclass(frozen=True, eq=False)
class WordVectors:
    """V words and their vectors."""

    words: Sequence[str]
    vectors: Tensor
    """(V, D) float32."""

    @cached_property
    def place(self) -> Mapping[str, int]:
        """The row of each word."""
        return {word: row for row, word in enumerate(self.words)}

    @property
    def fingerprint(self) -> str:
        """SHA-256 of words and vectors, hexadecimal, shortened to 16 digits."""
        digest = hashlib.sha256(repr(list(self.words)).encode())
        digest.update(self.vectors.numpy().tobytes())
        return digest.hexdigest()[:16]

    def nearest(
        self, queries: Mapping[str, Tensor], count: int, device: str
    ) -> dict[str, list[str]]:
        """For each word and its vector (D,) the `count` nearest other words, nearest first."""
        unit = functional.normalize(self.vectors.to(device), dim=1)
        asked, nearest = list(queries), {}
        for start in range(0, len(asked), _CHUNK):
            chunk = asked[start : start + _CHUNK]
            vectors = torch.stack([queries[word] for word in chunk]).to(device)
            cosines = functional.normalize(vectors, dim=1) @ unit.T
            best = cosines.topk(min(count + 1, len(self.words))).indices.tolist()
            for word, rows in zip(chunk, best, strict=True):
                others = [self.words[row] for row in rows if self.words[row] != word]
                nearest[word] = others[:count]
        return nearest


def read_glove(path: str) -> WordVectors:
    """The first 100,000 rows of a GloVe text file: a word and its numbers, between single spaces.
    Raises UserError for a file that cannot be read, and for a row that is not like the first."""
    words: list[str] = []
    rows: list[np.ndarray[tuple[int], np.dtype[np.float32]]] = []
    for number, line in enumerate(_lines(path), start=1):
        fields = line.rstrip().split(" ")
        width = len(rows[0]) if rows else len(fields) - 1
        name, values = fields[: len(fields) - width], fields[len(fields) - width :]
        # Some files have words with spaces in them (". . ."), but none that ends in a number.
        if not name or not values or any(_is_number(part) for part in name[1:]):
            raise UserError(
                f"word vectors '{path}': row {number} has {len(fields) - 1} numbers, "
                f"not {max(width, 1)}; each row must be a word and as many numbers as the first"
            )
        try:
            row = np.array(values, dtype=np.float32)
        except ValueError:
            row = np.array([np.nan], dtype=np.float32)
        if not np.isfinite(row).all():
            raise UserError(
                f"word vectors '{path}': row {number} ('{name[0]}') has values that are not "
                "finite numbers; each row must be a word and its numbers, between single spaces"
            )
        words.append(" ".join(name))
        rows.append(row)
    if not rows:
        raise UserError(f"word vectors '{path}': the file is empty; name a GloVe text file")
    return WordVectors(words, torch.from_numpy(np.stack(rows)))


def _lines(path: str) -> Iterator[str]:
    try:
        with open(path, encoding="utf-8", newline="\n") as file:
            yield from islice(file, _ROWS)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise UserError(
            f"word vectors '{path}': the file cannot be read ({reason}); name a GloVe text file, "
            "such as glove.6B.300d.txt"
        ) from error


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
