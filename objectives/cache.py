"""What is made once and kept: named by what it was made from, written whole or not at all."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path


def content_key(ingredients: Mapping[str, object]) -> str:
    """SHA-256 of all that decides a thing, as JSON; hexadecimal, shortened to 16 digits."""
    text = json.dumps(ingredients, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@contextmanager
def written_whole(target: Path) -> Iterator[Path]:
    """A path to write a file or a folder to that becomes `target` at the end, or vanishes.

    A `target` that is there is replaced. What a killed process left under the unfinished name is
    removed first: only one may write a `target` at a time, so whoever shares its folder holds a
    lock.
    """
    unfinished = target.with_name(f".{target.name}.unfinished")
    _remove(unfinished)
    try:
        yield unfinished
        if target.is_dir():
            _remove(target)
        unfinished.replace(target)
    finally:
        _remove(unfinished)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
