"""`check` on samples of texts: alarms, and answers that the original model was asked for."""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import fmean, median

import numpy as np

from benchmarks.harness import Benchmark, Row
from maskfront import check


class Check(Benchmark[list[str]]):
    """How often does `check` raise an alarm, by source and number of texts?

    A source is a file with a text a line that the folder was not made on. `alarms`: shares of the
    samples whose texts count as changed; `holds`, `does_not`: verdicts with the original model,
    and `asked` the median of its answers.
    """

    name = "check"
    tasks = ()
    seeds = ()
    cache = False
    grid = {"samples": (20,), "texts": (100, 300, 3000)}
    groups = ("source", "texts")
    means = {"alarms": ".2f", "holds": ".2f", "does_not": ".2f", "asked": ".0f"}

    @classmethod
    def parser(cls) -> argparse.ArgumentParser:
        """Return the options, with the folder and a source."""
        parser = super().parser()
        parser.add_argument("--folder", type=Path, required=True, help="what compress wrote")
        parser.add_argument("--model", type=Path, required=True, help="the original classifier")
        parser.add_argument("--source", type=Path, required=True, help="file of texts, one a line")
        return parser

    def prepare(self, key: Row) -> list[str]:
        """Read the source."""
        return self.asked.source.read_text(encoding="utf-8").splitlines()  # type: ignore[no-any-return]

    def key(self, key: Row, lines: list[str]) -> Row:
        """Return the key, with the source."""
        return {"source": self.asked.source.stem, **key}

    def rows(self, key: Row, lines: list[str]) -> list[Row]:
        """Draw samples without replacement, and check each."""
        if key["texts"] > len(lines):
            return []
        found = []
        for seed in range(key["samples"]):
            drawn = np.random.default_rng(seed).choice(len(lines), key["texts"], replace=False)
            file = self.scratch / "sample.txt"
            file.write_text("\n".join(lines[row] for row in drawn), encoding="utf-8")
            found.append(check(self.asked.folder, file, model=self.asked.model))
        return [
            {
                "alarms": fmean(one.changed for one in found),
                "holds": fmean(one.holds is True for one in found),
                "does_not": fmean(one.holds is False for one in found),
                "asked": median(one.asked for one in found),
            }
        ]
