"""What is made once for a run: by whichever worker comes first, whole or not at all."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from objectives.problem import Problem

MAKER = """
import sys, time
from pathlib import Path
from objectives.cache import kernel_lock, atomic_write

folder = Path(sys.argv[1])
with kernel_lock(folder.parent / f"{folder.name}.lock"), atomic_write(folder) as unfinished:
    unfinished.mkdir()
    (unfinished / "half").touch()
    begun = folder.with_name(f".{folder.name}.begun")
    begun.mkdir()
    (begun / "first part").touch()
    print("making", flush=True)
    time.sleep(60)
"""
"""What `Problem.cached` does, by a process that is killed in the middle."""


def test_it_is_made_once_and_read_by_all(problem: Problem, tmp_path: Path) -> None:
    own = replace(problem, cache=tmp_path)
    made: list[str] = []
    found: list[Path] = []

    def make(folder: Path, begun: Path) -> None:
        made.append(threading.current_thread().name)
        time.sleep(0.3)
        (folder / "thing").write_text("whole")

    workers = [
        threading.Thread(target=lambda: found.append(own.cached("thing", {"size": 1}, make)))
        for _ in range(3)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert len(made) == 1
    assert len(set(found)) == 1
    assert (found[0] / "thing").read_text() == "whole"
    assert found[0].parent == tmp_path


def test_other_ingredients_or_problems_make_another(problem: Problem, tmp_path: Path) -> None:
    own = replace(problem, cache=tmp_path)
    folders = {
        one.cached("thing", ingredients, lambda folder, _: (folder / "thing").touch())
        for one in (own, replace(own, budget=replace(own.budget, full=own.budget.full + 1)))
        for ingredients in ({"size": 1}, {"size": 2})
    }
    assert len(folders) == 4


def test_what_fails_leaves_nothing(problem: Problem, tmp_path: Path) -> None:
    own = replace(problem, cache=tmp_path)

    def fail(folder: Path, begun: Path) -> None:
        (folder / "half").touch()
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        own.cached("thing", {}, fail)
    assert [path.suffix for path in tmp_path.iterdir()] == [".lock"]
    assert own.cached("thing", {}, lambda folder, _: (folder / "thing").touch()).is_dir()


def test_a_maker_that_is_killed_holds_nobody_up(problem: Problem, tmp_path: Path) -> None:
    own = replace(problem, cache=tmp_path)
    folder = own.cached("thing", {}, lambda folder, _: None)
    folder.rmdir()
    process = subprocess.Popen(
        [sys.executable, "-c", MAKER, str(folder)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "making\n"
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()

    def make(unfinished: Path, begun: Path) -> None:
        assert not list(unfinished.iterdir()), "what the dead one left is gone"
        assert (begun / "first part").exists(), "but for what it left to go on with"
        (unfinished / "thing").write_text(json.dumps("whole"))

    assert (own.cached("thing", {}, make) / "thing").is_file()
    assert {path.name for path in tmp_path.iterdir()} == {folder.name, f"{folder.name}.lock"}


def test_once_makes_a_thing_for_each_key_and_launch(problem: Problem) -> None:
    own = replace(problem)
    made: list[str] = []

    def make(name: str) -> str:
        made.append(name)
        return name

    for name in ("one", "two", "one"):
        assert own.once(("thing", name), lambda name=name: make(name)) == name
    assert made == ["one", "two"]
    assert replace(own).once(("thing", "one"), lambda: make("anew")) == "anew"
