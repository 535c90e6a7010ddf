"""What README and docs show works: every block is run, or else compiled and its reason given."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from typer.main import get_command

from benchmarks.measure import benchmark_of
from orchestrator.command.cli import app
from tests.conftest import FILLERS, MARKERS
from tests.docs.blocks import PAGES, ROOT, Block, Reader, blocks_of, commands

BLOCKS = [block for page in PAGES for block in blocks_of(page)]
RUN = [page for page in PAGES if any(block.is_run for block in blocks_of(page))]
SHELL = [block for block in BLOCKS if block.language == "sh"]
ROWS = 4_550
"""Of the reader's file: what the examples take, and a few more."""
QUICK = ("docs/how-to/data.md", "docs/how-to/model.md")
"""Pages that `make test` reads too; the others start process after process."""


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.fixture(scope="module")
def beginning(tmp_path_factory: pytest.TempPathFactory, tiny_bert: str) -> Path:
    """The folder of a reader who has the files that the pages speak of: tiny ones."""
    folder = tmp_path_factory.mktemp("reader")
    shutil.copytree(tiny_bert, folder / "my-bert")
    generator = np.random.default_rng(0)
    words = list(MARKERS)
    rows = {}
    while len(rows) < ROWS:
        marker = words[len(rows) % len(words)]
        text = [marker, *generator.choice(FILLERS, size=generator.integers(6, 14))]
        rows[" ".join(generator.permutation(text))] = MARKERS[marker]
    table = pd.DataFrame({"text": list(rows), "sentiment": list(rows.values())})
    table["label"] = table["sentiment"]  # the default name of the column
    table.to_csv(folder / "tweets.csv", index=False)
    return folder


@pytest.fixture(scope="module")
def after_the_tutorial(beginning: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a reader who has run the tutorial's study."""
    folder = tmp_path_factory.mktemp("later") / "reader"
    shutil.copytree(beginning, folder)
    study = next(
        block
        for block in blocks_of(ROOT / "docs" / "tutorial.md")
        if block.note == "file: my_study.py"
    )
    (folder / "my_study.py").write_text(study.text)
    run = Block(study.page, study.line, "sh", "", "maskfront run my_study.py")
    Reader(folder).copy(run)
    return folder


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=() if name(page) in QUICK else pytest.mark.slow, id=name(page))
        for page in RUN
    ],
)
def test_a_reader_can_copy_every_block_of(
    page: Path, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks = [block for block in blocks_of(page) if block.is_run]
    makes_it = any(block.note == "file: my_study.py" for block in blocks)
    speaks_of_it = any(
        "my_study" in block.text or "runs/my-tweets" in block.text for block in blocks
    )
    fixture = "after_the_tutorial" if speaks_of_it and not makes_it else "beginning"
    folder = tmp_path / "reader"
    shutil.copytree(request.getfixturevalue(fixture), folder)
    for launch in folder.glob("runs/*/launch.json"):  # as if it was launched here
        inodes = {"inode": launch.parent.stat().st_ino, "working_folder": folder.stat().st_ino}
        launch.write_text(json.dumps(json.loads(launch.read_text()) | inodes))
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    reader = Reader(folder)
    for block in blocks:
        reader.copy(block)


def test_every_block_says_what_it_is() -> None:
    odd = [block.where for block in BLOCKS if block.language not in ("python", "sh", "text")]
    assert odd == []


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.where)
def test_the_block_is_whole(block: Block) -> None:
    if block.language == "python":
        compile(block.text, block.where, "exec")
    elif block.language == "sh":
        subprocess.run(["bash", "-n"], input=block.text, text=True, check=True)


def test_the_options_that_the_pages_name_are_there() -> None:
    group: Any = get_command(app)
    known = {
        command: {flag for option in own.params for flag in option.opts}
        for command, own in group.commands.items()
    }
    seen = 0
    for block in SHELL:
        for words in commands(block):
            if "maskfront" in words:
                at = words.index("maskfront") + 1
                options = {word for word in words[at:] if word.startswith("--")}
                assert options <= known[words[at]], block.where
                seen += len(options)
    assert seen > 20


def test_the_benchmarks_that_the_pages_name_are_there_with_their_options() -> None:
    shared = (ROOT / "benchmarks/harness.py").read_text()
    seen = 0
    for block in SHELL:
        for words in commands(block):
            module = next((word for word in words if word.startswith("benchmarks.")), None)
            if module is not None:
                options = {word for word in words if word.startswith("--")}
                if module == "benchmarks.measure":
                    benchmark = benchmark_of(words[words.index(module) + 1])
                    assert options <= set(benchmark.parser().format_help().split()), block.where
                else:
                    source = (ROOT / f"{module.replace('.', '/')}.py").read_text() + shared
                    assert all(re.search(rf'"(--)?{o[2:]}"', source) for o in options), block.where
                seen += 1
    assert seen > 10
