"""What is made once and kept: named by what it was made from, written whole or not at all."""

from __future__ import annotations

import hashlib
import json
import secrets
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
    """A path to write a file or a folder to that becomes `target` at the end, or vanishes."""
    unfinished = target.with_name(f"{target.name}.unfinished-{secrets.token_hex(4)}")
    try:
        yield unfinished
        unfinished.replace(target)
    finally:
        if unfinished.is_dir():
            shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.unlink(missing_ok=True)
