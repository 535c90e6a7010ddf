"""Times as plain data and as a table: shares and speed-ups are of the reference."""

from __future__ import annotations

from objectives.delivery.bench import Bench, Timing
from reports.timings import timings_document, timings_table


def test_speed_up_and_ratio_are_of_the_reference_in_the_same_engine_and_shape() -> None:
    def timing(model: str, batch: int, flops: int, median: float) -> Timing:
        return Timing(model, "eager", batch, 128, flops, (median - 1, median, median + 1))

    timed = Bench(
        "full",
        (timing("full", 1, 100, 30.0), timing("a/b/c/d", 1, 50, 20.0), timing("full", 8, 100, 99)),
        {"compile": "no compiler"},
        {"rounds": 5, "device": "cpu", "threads": 2},
    )
    document = timings_document(timed)
    assert [(row["flops_ratio"], row["speed_up"]) for row in document["timings"]] == [
        (1, 1),
        (0.5, 1.5),
        (1, 1),
    ]
    assert document["timings"][1]["quartiles"] == [19, 20, 21]
    assert document["skipped"] == {"compile": "no compiler"}
    table = timings_table(timed)
    assert table.caption == "no compile: no compiler"
    assert [list(column.cells)[:3] for column in table.columns] == [
        ["[bold]eager, 1 x 128", "full", "b/c/d"],
        ["", "1.000", "0.500"],
        ["", "30.0", "20.0"],
        ["", "29.0 - 31.0", "19.0 - 21.0"],
        ["", "1.00", "1.50"],
    ]
