"""The tables of the source report: what trains together, and what is told of it."""

from __future__ import annotations

from dataclasses import replace
from statistics import fmean

import pytest

from benchmarks.seed_table import GATES, SPACES, TARGETS, WHOLE, members_of, print_tables, rows_of
from maskfront import FOUR_STEPS
from objectives.measures.budget import Budget
from objectives.measures.cost import Units
from objectives.search_method import populations
from objectives.workbench.workbench import Workbench


@pytest.mark.parametrize("space", SPACES)
def test_the_targets_of_a_space_train_together(space: str) -> None:
    members = members_of(space, FOUR_STEPS)
    wanted = TARGETS[space == "heads" :]
    assert [m.target_ratio if m.flops_weight else None for m in members] == [*wanted]
    assert populations(members) == [[*range(len(wanted))]]


@pytest.mark.parametrize("space", ["input_qkv", GATES])
def test_a_row_tells_what_is_kept_in_each_layer(
    workbench: Workbench, space: str, capsys: pytest.CaptureFixture[str]
) -> None:
    problem = workbench.problem
    units = Units(problem.shape, (space.partition(",")[0],))
    counted = Budget(units, units.full)
    bench = replace(workbench, problem=replace(problem, budget=counted, counted=counted))
    free, half, *_ = rows = list(rows_of(bench, space, (2, 1), 0))
    assert [row["target"] for row in rows] == [*TARGETS]
    assert (free["reached"], free["open"], free["flops"]) == (1, 1, 1)  # two steps close nothing
    for row, target in zip(rows[1:], TARGETS[1:], strict=True):
        assert row["reached"] == pytest.approx(target, rel=0.05)
        assert fmean(row["per_layer"]) == pytest.approx(row["reached"], abs=1e-3)
    assert 0.5 < half["flops"] < 1
    [whole] = rows_of(bench, WHOLE, (2, 1), 0)
    assert whole["reached"] == whole["flops"] == 1
    keys = {"task": "cola", "seed": 0}
    print_tables([{**keys, "space": space, **row} for row in rows])
    printed = capsys.readouterr().out
    assert f"{half['heldout']:.3f}" in printed
    assert ("0.654" in printed) == (space == "input_qkv")  # what the report found for a half
