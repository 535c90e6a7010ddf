"""What does a student gain from several teachers? Cells of an ensemble, of its members, of labels.

MiniLM-L6 is fine-tuned on the tweets with three seeds. Cells of two convolutions, all with its
tokens and words, take the same steps and learn from

    member 0, 1, 2    the answers of one
    ensemble          the mean of their probabilities
    labels            the annotators' labels alone, as those of an LLM would be: `smoothing` of 0.1
    labels, hard      and of 0

    OMP_NUM_THREADS=1 python -m benchmarks.ensemble --cache FOLDER [--text] [--steps 4000]
        [--seeds 0 1 2] [--device cuda]

With `--text` all read 12,880 rows more (those of `labels` with their labels). KL is the divergence
from the answers that were learnt, in nats. Writes benchmarks/results/ensemble.json row by row and
goes on where it was stopped.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.harness import Rows, parsed, parser_of, print_means
from benchmarks.tasks import kept, measure, task_of, teacher_for, teacher_row
from maskfront import CellSearch, Teacher
from objectives.session import Session
from objectives.students.bert.exporting import save_model, save_tokenizer
from objectives.workbench.inputs import read_inputs
from objectives.workbench.workbench import prepare
from studies._quickstart_data import minilm

BATCH = 32
KEPT = ("kl", "select", "heldout")


def member(cache: Path, seed: int, device: str) -> str:
    """The folder of a MiniLM that was fine-tuned with the seed, made once."""
    folder = cache / f"member-{seed}"
    if not folder.is_dir():
        inputs = read_inputs(task_of("tweets", None), teacher_for("tweets"))
        bench = prepare(inputs, Session(cache=cache, seed=seed, device=device))
        save_model(bench.problem.teacher, folder)
        save_tokenizer(inputs.tokenizer, folder)
    return str(folder)


def main() -> None:
    """Run, or go on, and print the table."""
    parser = parser_of(__doc__, seeds=(0, 1, 2), cache=True, device=True)
    parser.add_argument("--text", action="store_true", help="rows beyond train, too")
    parser.add_argument("--steps", type=int, default=4000)
    asked = parsed(parser)
    rows = Rows(asked.out / "ensemble.json", asked.device)
    members = tuple(member(asked.cache, seed, asked.device) for seed in range(3))
    labels: dict[str, Any] = {"answers": "sentiment", "answers_as": "labels"}
    teachers = {
        **{f"member {number}": Teacher(checkpoint=one) for number, one in enumerate(members)},
        "ensemble": Teacher(ensemble=members),
        "labels": Teacher(**labels),
        "labels, hard": Teacher(**labels, smoothing=0.0),
    }
    task = task_of("tweets", None)
    if asked.text:
        task = replace(task, unlabelled_split=task.split)
    for arm, teacher in teachers.items():
        inputs = read_inputs(task, teacher, student=minilm())
        bench = prepare(inputs, Session(cache=asked.cache, device=asked.device))
        there = len(bench.problem.train)
        for seed in asked.seeds:
            key = {"arm": arm, "rows": there, "steps": asked.steps, "seed": seed}
            if not rows.has(key):
                method = CellSearch(epochs=asked.steps * BATCH / there)
                found = measure(bench, method, seed)
                rows.add({**key, **teacher_row(bench), **kept(found, *KEPT)})
    print_means(
        "cells of an ensemble, of its members, of labels",
        rows.rows,
        ("rows", "steps", "arm"),
        dict.fromkeys((*KEPT, "teacher_heldout"), ".4f"),
    )


if __name__ == "__main__":
    main()
