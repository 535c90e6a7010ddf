"""README's table and figure are of the same rows, its ratios divide (`benchmarks.readme`)."""

from __future__ import annotations

import re

import pytest

from benchmarks.readme import PICTURE, labels, rivals, seeds_of, table
from tests.docs.blocks import ROOT

README = (ROOT / "README.md").read_text()


def test_the_table_and_the_figure_are_of_the_same_rows() -> None:
    found = rivals()
    assert table(found) in README
    drawn = re.findall(r"<(?:tspan|text)[^>]*>([^<]+)", PICTURE.read_text())
    assert [line for lines in labels(found).values() for line in lines if line not in drawn] == []
    assert any(seeds_of(found) in line for line in drawn)
    (below,) = (part for part in README.split("\n\n") if "unseen tweets" in part)
    assert seeds_of(found).removeprefix("mean of ") in below.lower()


def test_the_speeds_are_ratios_of_the_milliseconds_beside_them() -> None:
    cells = [line.split(" | ") for line in README.splitlines() if re.search(r"\| [\d.]+%", line)]
    milliseconds, speeds = ([float(row[column]) for row in cells] for column in (1, 2))
    int8 = milliseconds[1]
    assert speeds == pytest.approx([int8 / value for value in milliseconds], abs=0.06, rel=0.01)
