"""What a task of many rows takes to load, of time and memory: a CSV of made-up texts.

    python -m benchmarks.many_rows [--rows 100000 1000000 10000000] [--train 80000]

Each file is made, loaded with `Task.from_files` in a process of its own, and deleted. Seconds are
those of the processor, which other work on the machine hardly lengthens. "memory" is the most that
the process itself held (RssAnon of /proc, so Linux only) beyond what it held after its imports;
pages of the mapped file are the system's to drop and are not counted. The file, and the Arrow file
that `datasets` makes of it, take about twice its size of TMPDIR. Prints a table and writes
benchmarks/results/many_rows.json.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

_TOGETHER = 100_000
_LABELS = ("negative", "neutral", "positive")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, nargs="+", default=[100_000, 1_000_000, 10_000_000])
    parser.add_argument("--train", type=int, default=80_000, help="rows that are trained on")
    parser.add_argument("--load", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.load:
        sys.stdout.write(json.dumps(_load(arguments.load, arguments.train)))
        return
    results = []
    sys.stdout.write(f"{'rows':>12} {'MB':>8} {'seconds':>8} {'memory MB':>10}\n")
    for rows in arguments.rows:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "rows.csv"
            _write(file, rows)
            command = [sys.executable, "-m", "benchmarks.many_rows", "--load", str(file)]
            done = subprocess.run(
                [*command, "--train", str(arguments.train)], check=True, capture_output=True
            )
            result = {"rows": rows, "megabytes": file.stat().st_size / 1e6}
            result |= json.loads(done.stdout)
        results.append(result)
        sys.stdout.write(
            f"{rows:12,} {result['megabytes']:8.0f} {result['seconds']:8.1f} "
            f"{result['memory']:10.0f}\n"
        )
    target = Path(__file__).parent / "results" / "many_rows.json"
    target.write_text(json.dumps({"train": arguments.train, "results": results}, indent=1) + "\n")


def _write(file: Path, rows: int) -> None:
    """Distinct texts of 14 words, some 70 bytes a row."""
    generator = np.random.default_rng(0)
    words = np.array([a + b + c for a in "bdfgklmnprst" for b in "aeiou" for c in "bdgklmnprst"])
    with file.open("w") as lines:
        lines.write("text,label\n")
        for start in range(0, rows, _TOGETHER):
            count = min(_TOGETHER, rows - start)
            texts = words[generator.integers(len(words), size=(count, 14))].tolist()
            labels = generator.integers(len(_LABELS), size=count)
            for text, label in zip(texts, labels, strict=True):
                lines.write(f"{' '.join(text)},{_LABELS[label]}\n")


def _load(file: Path, train: int) -> dict[str, float]:
    from objectives.device import quiet_libraries
    from objectives.text.roles import load
    from objectives.text.task import Task

    quiet_libraries()
    task = Task.from_files(file, name="many", train=train)
    before = peak = _held()
    done = threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.wait(0.02):
            peak = max(peak, _held())

    watcher = threading.Thread(target=watch)
    watcher.start()
    start = time.process_time()
    text = load(task)
    assert len(text.fingerprint) == 16
    seconds = time.process_time() - start
    done.set()
    watcher.join()
    assert len(text.roles["train"].texts) == train
    return {"seconds": seconds, "memory": peak - before}


def _held() -> float:
    """Anonymous memory of this process, in megabytes."""
    status = Path("/proc/self/status").read_text()
    (line,) = (line for line in status.splitlines() if line.startswith("RssAnon"))
    return int(line.split()[1]) / 1e3


if __name__ == "__main__":
    main()
