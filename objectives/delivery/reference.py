"""Statistics of the texts that a folder was made on, with which `check` compares later texts."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save
from tokenizers import Tokenizer

from objectives.delivery.deployed import Texts
from objectives.errors import UserError

_FILE = "reference.safetensors"
_RARE = 5  # a token of fewer training texts counts as in none: no rare name can be read from it


@dataclass(frozen=True, kw_only=True, eq=False)
class Reference:
    """Promised agreement of a folder, and the strangeness of its held-out texts."""

    agreement: float
    """Share of such texts that are answered as the original model does, at 95% confidence."""
    deferred: int
    """Held-out texts that the first model deferred."""
    pairs: bool
    """Whether it reads pairs of texts."""
    rarity: NDArray[np.float32]
    """(vocabulary,): minus the log of each token's share of the training texts."""
    strangeness: NDArray[np.float32]
    """(held-out texts,): see `strangeness_of`."""


def tokenizer_of(folder: Path) -> Tokenizer:
    """Tokenizer of the folder's last model, without truncation."""
    settings = json.loads((folder / "classifier.json").read_text(encoding="utf-8"))
    tokenizer = Tokenizer.from_file(str(folder / settings["stages"][-1]["tokenizer"]))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _tokens(tokenizer: Tokenizer, texts: Texts) -> list[NDArray[np.int64]]:
    encodings = tokenizer.encode_batch(list(texts), add_special_tokens=False)
    return [np.array(encoding.ids, dtype=np.int64) for encoding in encodings]


def strangeness_of(
    tokenizer: Tokenizer, texts: Texts, rarity: NDArray[np.float32]
) -> NDArray[np.float32]:
    """Mean rarity of the tokens of each text (texts,); 0 for a text without tokens."""
    tokens = _tokens(tokenizer, texts)
    return np.array([rarity[ids].mean() if len(ids) else 0 for ids in tokens], dtype=np.float32)


def write_reference(
    folder: Path, train: Texts, heldout: Texts, *, agreement: float, deferred: int
) -> None:
    """Write the reference, which `read_reference` reads, beside classifier.json."""
    tokenizer = tokenizer_of(folder)
    counts = np.zeros(1 + max(tokenizer.get_vocab().values()), dtype=np.int64)
    for ids in _tokens(tokenizer, train):
        counts[np.unique(ids)] += 1
    counts[counts < _RARE] = 0
    rarity = -np.log((counts + 1) / (counts + 1).sum()).astype(np.float32)
    pairs = not isinstance(heldout[0], str)
    numbers = {"agreement": agreement, "deferred": deferred, "pairs": pairs}
    arrays = {"rarity": rarity, "strangeness": strangeness_of(tokenizer, heldout, rarity)}
    # Not save_file, which writes for the owner alone: another account may run the check.
    (folder / _FILE).write_bytes(save(arrays, {"numbers": json.dumps(numbers)}))


def read_reference(folder: Path) -> Reference:
    """Read the reference. Raises UserError for a folder without one."""
    try:
        with safe_open(folder / _FILE, "numpy") as file:
            arrays = {name: file.get_tensor(name) for name in ("rarity", "strangeness")}
            return Reference(**arrays, **json.loads(file.metadata()["numbers"]))
    except FileNotFoundError:
        raise UserError(
            f"'{folder}' has no {_FILE}, which compress and cascade write: name a folder that one "
            "of them made, or make it again"
        ) from None
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        path = folder / _FILE
        raise UserError(f"'{path}' is damaged ({error}); make the folder again") from error
