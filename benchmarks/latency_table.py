"""How far off the table of a study of milliseconds is: predicted against measured, whole models.

Measures the table of `Study(cost="latency")` of the quickstart's MiniLM in some engines, then times
the unpruned model and others whose layers keep numbers of heads and neurons drawn by lot, all
taking turns, and compares.

    python -m benchmarks.latency_table [--engines onnxruntime-int8] [--threads 1] [--processor]

Prints a table and writes benchmarks/results/latency_table-cpu.json. With --processor the clock is
that of the process, for a machine that does other work too; it wants one thread.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from benchmarks.harness import parsed, parser_of, write_json
from objectives.engines import timing
from objectives.engines.names import ENGINES, check_engines
from objectives.engines.serving import serve
from objectives.measures.latency import load_latency
from objectives.session import Session
from objectives.students.bert.adapters import as_bert
from objectives.students.bert.architecture import BertArchitecture, BertShape, LayerUnits
from objectives.students.bert.cutting import cut, shape_of
from objectives.students.bert.pretrained import Checkpoint
from studies._quickstart_data import minilm

SHARES = (0.9, 0.7, 0.5, 0.35, 0.25, 0.15, 0.1, 0.05)
"""Of the heads and neurons that a model keeps, about."""


def drawn(shape: BertShape, share: float, dice: random.Random) -> BertArchitecture:
    """Layers that keep from nothing to twice this share."""

    def units(size: int) -> tuple[int, ...]:
        return tuple(range(round(size * min(1.0, dice.uniform(0, 2 * share)))))

    return BertArchitecture(
        tuple(LayerUnits(units(shape.heads), units(shape.ffn)) for _ in range(shape.layers))
    )


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--engines", nargs="+", default=[e for e in ENGINES if e != "compile"])
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--processor", action="store_true")
    options = parsed(parser)
    if options.processor:
        clock: Callable[[], float] = time.process_time
        vars(timing)["time"] = SimpleNamespace(perf_counter=clock)
    model = as_bert(Checkpoint(minilm()).load_classifier(["bad", "good", "neither"])).eval()
    shape, dice = shape_of(model.config), random.Random(0)
    wanted = [BertArchitecture.full(shape), *(drawn(shape, share, dice) for share in SHARES)]
    models = [cut(model.state_dict(), model.config, architecture) for architecture in wanted]
    rows: list[dict[str, Any]] = []
    table = Table("engine", "batch", "predicted ms", "measured ms", "off by", "of the gain")
    with TemporaryDirectory() as scratch:
        (Path(scratch) / "cache").mkdir()
        for engine in check_engines(options.engines):
            named = {f"{scratch}/{number}": one for number, one in enumerate(models)}
            runs = [one.run for one in serve(engine, named, Path(scratch), options.threads, "cpu")]
            for batch in options.batches:
                cost = load_latency(
                    model,
                    batch=batch,
                    seq_len=options.length,
                    engine=engine,
                    session=Session(cache=Path(scratch) / "cache"),
                )
                inputs = timing.tokens(model.config.vocab_size, batch, options.length)
                times = timing.in_turns(engine, runs, inputs, options.rounds, "cpu")
                measured = np.median(times, axis=0).tolist()
                for architecture, found in zip(wanted, measured, strict=True):
                    told = cost.exact(architecture)
                    gain = (told / cost.full) / (found / measured[0]) - 1
                    rows.append(
                        {
                            "engine": engine,
                            "batch": batch,
                            "length": options.length,
                            "predicted": told,
                            "measured": found,
                            "off": told / found - 1,
                            "off_as_share_of_unpruned": gain,
                        }
                    )
                    table.add_row(
                        engine,
                        str(batch),
                        f"{told:.2f}",
                        f"{found:.2f}",
                        f"{told / found - 1:+.1%}",
                        f"{gain:+.1%}",
                    )
    Console(width=110).print(table)
    conditions = {
        "threads": options.threads,
        "rounds": options.rounds,
        "clock": "processor" if options.processor else "wall",
        "torch": torch.__version__,
    }
    document = {**conditions, "rows": rows}
    write_json(options.out / "latency_table-cpu.json", document)


if __name__ == "__main__":
    main()
