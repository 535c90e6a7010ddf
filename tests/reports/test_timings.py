"""Times as plain data and as a table: shares and speed-ups are of the reference."""

from __future__ import annotations

import io
from dataclasses import replace

from rich.console import Console
from rich.text import Text

from objectives.delivery.timings import Bench, Timing, with_comparisons
from objectives.engines.names import BITS, Engine
from objectives.measures.bootstrap import Worth
from reports.speed import timings_document, timings_table

CONDITIONS = {"rounds": 5, "device": "cpu", "threads": 2}


def timing(
    model: str, engine: Engine, batch: int, flops: int, median: float, *, texts: bool = False
) -> Timing:
    return Timing(
        model=model,
        engine=engine,
        bits=BITS[engine],
        bytes=BITS[engine] * 10**6,
        batch=batch,
        length=128,
        flops=flops,
        quartiles=(median - 1, median, median + 1),
        slow=median + 2,
        texts=texts,
    )


def bench(
    *timings: Timing, skipped: dict[str, str] | None = None, **conditions: str | int
) -> Bench:
    return Bench("full", with_comparisons(timings, "full"), skipped or {}, conditions)


def test_speed_ups_are_of_the_reference_in_its_fastest_float32_and_in_the_same_engine() -> None:
    timed = bench(
        timing("full", "eager", 1, 100, 30.0),
        timing("a/b/c/d", "eager", 1, 50, 20.0),
        timing("full", "eager", 8, 100, 99),
        timing("full", "onnxruntime", 1, 100, 24.0),
        timing("full", "onnxruntime-int8", 1, 100, 12.0),
        timing("a/b/c/d", "onnxruntime-int8", 1, 50, 8.0),
        skipped={"compile": "no [/compiler]"},
        **CONDITIONS,
    )
    document = timings_document(timed)
    rows = document["timings"]
    assert [row["flops_ratio"] for row in rows] == [1, 0.5, 1, 1, 1, 0.5]
    assert [row["speed_up"] for row in rows] == [24 / 30, 24 / 20, 1, 1, 2, 3]
    assert [row["speed_up_in_engine"] for row in rows] == [1, 1.5, 1, 1, 1, 1.5]
    assert [row["against"] for row in rows] == [
        *("onnxruntime", "onnxruntime", "eager"),
        *["onnxruntime"] * 3,
    ]
    assert rows[1]["quartiles"] == (19, 20, 21)
    assert document["skipped"] == {"compile": "no [/compiler]"}
    table = timings_table(timed)
    assert Text.from_markup(str(table.caption)).plain == (
        "speed-up: times as fast as full in its fastest float32\nno compile: no [/compiler]"
    )
    assert [list(column.cells)[:3] for column in table.columns] == [
        ["[bold]eager\n1 x 128 tokens", "full", "b/c/d"],
        ["", "1.000", "0.500"],
        ["", "32.0", "32.0"],
        ["", "30.00", "20.00"],
        ["", "32.00", "22.00"],
        ["", "0.80", "1.20"],
    ]


def test_times_from_text_to_label_are_compared_with_one_another_alone() -> None:
    shape = {"batch": 1, "flops": 100}
    timed = bench(
        timing("full", "onnxruntime", median=8.0, texts=True, **shape),
        timing("full", "eager", median=3.0, **shape),
        timing("a", "onnxruntime", median=4.0, texts=True, **shape),
        timing("full", "onnxruntime-int8", median=2.0, texts=True, **shape),
        timing("full", "onnxruntime", median=6.0, **shape),
        **CONDITIONS,
    )
    rows = timings_document(timed)["timings"]
    assert [(row["against"], row["speed_up"]) for row in rows] == [
        *(("onnxruntime", 1), ("onnxruntime", 2), ("onnxruntime", 4)),
        *(("eager", 1), ("eager", 0.5)),
    ]
    assert [row["speed_up_in_engine"] for row in rows] == [1, 2, 1, 1, 1]
    table = timings_table(timed)
    assert [cell for cell in table.columns[0].cells if cell.startswith("[bold]")] == [
        "[bold]onnxruntime\n1 x text to label",
        "[bold]onnxruntime-int8\n1 x text to label",
        *("[bold]eager\n1 x 128 tokens", "[bold]onnxruntime\n1 x 128 tokens"),
    ]
    assert str(table.caption).endswith(
        "text to label: the task's own texts and tokenizer, one thread, processor time"
    )


def test_without_float32_speed_ups_are_of_the_fastest_engine_that_was_timed() -> None:
    timed = bench(
        timing("full", "bfloat16", 1, 100, 30.0), timing("full", "onnxruntime-int8", 1, 100, 20)
    )
    rows = timings_document(timed)["timings"]
    assert [(row["against"], row["speed_up"]) for row in rows] == [
        ("onnxruntime-int8", 20 / 30),
        ("onnxruntime-int8", 1),
    ]


def test_what_fewer_bits_are_worth_stands_beside_them() -> None:
    worth = Worth(0.81, (0.8, 0.82), 0.79, (0.78, 0.8))
    int8 = replace(timing("full", "onnxruntime-int8", 1, 100, 20), worth=worth)
    timed = bench(timing("full", "eager", 1, 100, 30), int8, **CONDITIONS)
    assert timings_document(timed)["timings"][1]["worth"]["heldout_metric"] == 0.79
    *_, metric, heldout = timings_table(timed).columns
    assert (metric.header, list(metric.cells)) == ("metric", ["", "", "", "0.8100"])
    assert (heldout.header, list(heldout.cells)) == ("held out", ["", "", "", "0.7900"])


def test_a_narrow_terminal_cuts_no_number_off() -> None:
    name = "experiments/tweets-sentiment-minilm-november/small-at-a-third"
    both = [timing(model, "eager", 1, 100, 1234.56) for model in ("full", name)]
    table = timings_table(bench(*both, **CONDITIONS))
    shown = io.StringIO()
    Console(file=shown, width=80).print(table)
    assert "1234.56" in shown.getvalue()
    assert "…" not in shown.getvalue()
