"""Artifacts that are links to what a trial wrote, or copies where a disk has none."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest

from orchestrator.runs.artifacts import LinkingStore


@pytest.mark.parametrize("links", [True, False])
def test_a_file_is_linked_where_the_disk_can(
    links: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, folder = tmp_path / "weights", tmp_path / "artifacts"
    source.write_bytes(b"weights")
    folder.mkdir()
    if not links:

        def refuse(*_: object) -> None:
            raise OSError("no links here")

        monkeypatch.setattr(os, "link", refuse)
    store = LinkingStore(folder)
    with source.open("rb") as file:
        store.write("abc", file)
    with store.open_reader("abc") as file:
        assert file.read() == b"weights"
    assert os.path.samefile(source, folder / "abc") == links


def test_what_is_no_file_is_copied(tmp_path: Path) -> None:
    LinkingStore(tmp_path).write("abc", io.BytesIO(b"bytes"))
    assert (tmp_path / "abc").read_bytes() == b"bytes"
