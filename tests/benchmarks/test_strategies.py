"""Strategies on a made-up table: rows, a restart, and what counts as found."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path

import pytest

from benchmarks import measure
from benchmarks.strategies import STRATEGIES, Table, read_table, search
from objectives.errors import UserError

PLACES = {"operation": ["conv3", "conv5", "gated"], "width": [32, 64, 128], "norm": [True, False]}


def write(file: Path, left_out: int = 0) -> Path:
    """The later a choice stands the better."""
    candidates = list(product(*PLACES.values()))[left_out:]
    scores = [
        float(sum(PLACES[name].index(choice) for name, choice in zip(PLACES, one, strict=True)))
        for one in candidates
    ]
    file.write_text(json.dumps({"places": PLACES, "candidates": candidates, "scores": scores}))
    return file


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return read_table(write(tmp_path / "made-up.json"))


def test_the_best_share_is_one_candidate_at_least(table: Table) -> None:
    assert len(table.scores) == 18
    assert table.goal == table.scores["gated", 128, False] == 5
    thousand = Table(places={"x": tuple(range(1000))}, scores={(i,): float(i) for i in range(1000)})
    assert thousand.goal == 990


def test_a_table_that_lacks_candidates_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has 17 candidates; its places have 18"):
        read_table(write(tmp_path / "short.json", left_out=1))


@pytest.mark.parametrize("name", STRATEGIES)
def test_every_strategy_searches(table: Table, name: str) -> None:
    row = search(table, name, seed=0, budget=18)
    assert row["strategy"] == name
    assert row["evaluations"] <= row["asks"]
    assert row["best"] == max(table.scores.values()) if row["found"] else row["evaluations"] == 18
    assert row == search(table, name, seed=0, budget=18)


def test_what_comes_again_is_asked_for_and_not_evaluated(table: Table) -> None:
    rows = [search(table, "random", seed, budget=18) for seed in range(10)]
    assert any(row["asks"] > row["evaluations"] for row in rows)


def test_a_budget_that_is_spent_counts_in_full(table: Table) -> None:
    rows = [search(table, "random", seed, budget=2) for seed in range(10)]
    assert {(row["evaluations"], row["found"]) for row in rows} >= {(2, False)}
    assert all(row["best"] < 5 for row in rows if not row["found"])


def test_a_restart_goes_on_from_the_rows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write(tmp_path / "made-up.json")

    def run(*seeds: str) -> list[dict[str, object]]:
        given = ["--table", str(file), "--out", str(tmp_path), "--budgets", "12"]
        chosen = ["--strategies", "random", "ageing evolution", "--seeds", *seeds]
        measure.main(["strategies", *given, *chosen])
        rows: list[dict[str, object]] = json.loads((tmp_path / "strategies.json").read_text())[
            "rows"
        ]
        return rows

    first = run("0")
    assert [(row["strategy"], row["seed"]) for row in first] == [
        ("random", 0),
        ("ageing evolution", 0),
    ]
    assert run("0", "1")[:2] == first
    assert "best 1%, medians" in capsys.readouterr().out
