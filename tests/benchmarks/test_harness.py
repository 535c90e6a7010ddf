"""What benchmarks share: rows survive a restart, options are there, means are those of a group."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

from benchmarks.harness import Rows, groups_of, parsed, parser_of, print_means


def test_rows_are_written_at_once_and_a_restart_goes_on_from_them(tmp_path: Path) -> None:
    file = tmp_path / "some.json"
    first = Rows(file, note="a note")
    assert not first.has({"seed": 0})
    first.add({"seed": 0, "kl": 0.5})
    again = Rows(file, note="a note")
    assert again.has({"seed": 0})
    assert not again.has({"seed": 1})
    again.add({"seed": 1, "kl": 0.7})
    document = json.loads(file.read_text())
    assert [row["seed"] for row in document["rows"]] == [0, 1]
    assert document["note"] == "a note"
    assert document["torch"]


def test_groups_keep_their_order() -> None:
    rows = [{"arm": "b", "kl": 1}, {"arm": "a", "kl": 2}, {"arm": "b", "kl": 3}]
    assert {key: len(own) for key, own in groups_of(rows, ["arm"]).items()} == {
        ("b",): 2,
        ("a",): 1,
    }


def test_means_are_those_of_the_seeds(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"arm": "a", "seed": seed, "kl": kl} for seed, kl in enumerate((0.1, 0.3))]
    print_means("a title", rows, ["arm"], {"kl": ".2f"})
    shown = capsys.readouterr().out
    assert "a title" in shown
    assert "0.20" in shown


def test_the_options_that_benchmarks_share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    threads = torch.get_num_threads()
    given = f"--out {tmp_path / 'new'} --threads {threads} --seeds 3 4 --task cola"
    monkeypatch.setattr(sys, "argv", ["benchmark", *given.split()])
    asked = parsed(parser_of("About it.", tasks=("tweets", "cola"), seeds=(0,)))
    assert (asked.seeds, asked.task, asked.threads) == ([3, 4], "cola", threads)
    assert asked.out.is_dir()
