import errno
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from objectives.cache import atomic_write, atomic_write_text, content_key


def test_a_key_depends_on_what_not_on_the_order() -> None:
    key = content_key({"seed": 1, "text": ["a", "b"]})
    assert key == content_key({"text": ["a", "b"], "seed": 1})
    assert key != content_key({"seed": 2, "text": ["a", "b"]})
    assert key != content_key({"seed": 1, "text": ["b", "a"]})
    assert key == content_key({"seed": np.int64(1), "text": ["a", "b"]})


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_what_breaks_off_leaves_nothing(tmp_path: Path, kind: str) -> None:
    with pytest.raises(KeyboardInterrupt):
        _break_off(tmp_path / "target", kind)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_what_is_whole_is_there_under_its_name_alone(tmp_path: Path, kind: str) -> None:
    with atomic_write(tmp_path / "target") as unfinished:
        _write(unfinished, kind)
        assert not (tmp_path / "target").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["target"]


@pytest.mark.parametrize("kind", ["file", "folder"])
@pytest.mark.parametrize("was", ["file", "folder"])
def test_what_a_killed_writer_left_goes_with_the_next(tmp_path: Path, kind: str, was: str) -> None:
    target = tmp_path / "target"
    killed = atomic_write(target)  # it never comes to its end
    _write(killed.__enter__(), was)
    (left,) = tmp_path.iterdir()
    assert left != target
    with atomic_write(target) as unfinished:
        assert not unfinished.exists()
        _write(unfinished, kind)
    assert [path.name for path in tmp_path.iterdir()] == ["target"]


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_what_was_there_is_replaced(tmp_path: Path, kind: str) -> None:
    target = tmp_path / "target"
    _write(target, kind)
    old = target / "old" if kind == "folder" else target
    old.write_text("old")
    with atomic_write(target) as unfinished:
        _write(unfinished, kind)
    (file,) = (path for path in tmp_path.rglob("*") if path.is_file())
    assert file.read_text() == "content"


def test_who_is_in_an_empty_folder_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "target").mkdir()
    monkeypatch.chdir(tmp_path / "target")
    with atomic_write(tmp_path / "target") as unfinished:
        _write(unfinished, "folder")
    assert [*Path().iterdir()]
    assert [path.name for path in tmp_path.iterdir()] == ["target"]


def test_a_folder_that_cannot_be_deleted_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "target"
    target.mkdir()
    (target / "old").write_text("old")
    monkeypatch.setattr(shutil, "rmtree", lambda *_, **__: None)  # another account's files
    with atomic_write(target) as unfinished:
        unfinished.mkdir()
        (unfinished / "new").write_text("new")
    assert [file.name for file in target.iterdir()] == ["new"]


def test_a_folder_that_cannot_be_replaced_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "target"
    target.mkdir()
    (target / "old").write_text("old")

    def refuse(path: Path, to: Path) -> None:
        raise OSError(errno.ENOSPC, "no room")

    writing = atomic_write(target)
    writing.__enter__().mkdir()
    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", refuse)
        with pytest.raises(OSError, match="no room"):
            writing.__exit__(None, None, None)
    assert [file.name for file in tmp_path.iterdir()] == ["target"]
    assert (target / "old").read_text() == "old"


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    target = tmp_path / "page.html"
    atomic_write_text(target, "one")
    atomic_write_text(target, "two")
    assert target.read_text() == "two"
    assert list(tmp_path.iterdir()) == [target]
    lost = tmp_path / "gone" / "page.html"
    with pytest.raises(FileNotFoundError) as error:
        atomic_write_text(lost, "one")
    assert error.value.filename == str(lost), "the file that the user knows"


@pytest.mark.parametrize("kind", ["file", "folder", "text"])
def test_what_is_written_is_on_disk_before_its_name_and_its_name_before_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    done: list[int | str] = []
    fsync, replace = os.fsync, Path.replace

    def synced(file: int) -> None:
        done.append(os.fstat(file).st_ino)
        fsync(file)

    def renamed(path: Path, target: Path) -> Path:
        done.append("renamed")
        return replace(path, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "replace", renamed)
    target = tmp_path / "target"
    if kind == "text":
        atomic_write_text(target, "content")
    else:
        with atomic_write(target) as unfinished:
            _write(unfinished, kind)
    at = done.index("renamed")
    written = {path.stat().st_ino for path in (target, *target.rglob("*"))}
    assert written == set(done[:at])
    assert done[at + 1 :] == [tmp_path.stat().st_ino]


def _break_off(target: Path, kind: str) -> None:
    with atomic_write(target) as unfinished:
        _write(unfinished, kind)
        raise KeyboardInterrupt


def _write(path: Path, kind: str) -> None:
    if kind == "folder":
        path.mkdir()
        path /= "part"
    path.write_text("content")
