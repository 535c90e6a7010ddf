"""Does a student gain from general distillation (TinyBERT's first phase), or from a hint (FitNets)?

Three layers of MiniLM-L6 learn its hidden states and attention scores on all text here, the tweets
of the quickstart and the sentences of GLUE, without a label. Then students of a task distil from a
MiniLM-L6 that was fine-tuned on it:

    layers      start with three layers of the fine-tuned teacher
    pretrained  start with the same layers of the pretrained model
    general     start with what general distillation made of these
    thin        start new, twice as deep as MiniLM-L6 and half as wide, and learn the logits
    thin, hint  the same, after a hint from the teacher's middle layer for half of the steps

    OMP_NUM_THREADS=1 python -m benchmarks.general --cache FOLDER [--task cola --glue FOLDER]
        [--passes 1] [--steps 150 600] [--seeds 0 1 2] [--starts thin "thin, hint"]

KL is the divergence from the teacher's answers on the selection split, in nats. Writes
benchmarks/results/general.json row by row and goes on where it was stopped.
"""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import torch
from datasets import load_dataset
from transformers import AutoTokenizer, BertConfig, BertModel

from benchmarks.harness import Rows, parsed, parser_of, print_means
from benchmarks.tasks import RATE, kept, measure, task_of, teacher_for, teacher_row
from maskfront import RandomPruning, Stage, distil
from objectives.session import Session
from objectives.training.stages import Loss
from objectives.workbench.inputs import read_inputs
from objectives.workbench.workbench import prepare
from studies._quickstart_data import minilm, tweets

LAYERS = (0, 2, 4)
THIN: dict[str, Any] = {"num_hidden_layers": 12, "hidden_size": 192, "intermediate_size": 768}
STARTS = ("layers", "pretrained", "general", "thin", "thin, hint")
BATCH = 32
COLUMNS = {
    "sst2": ("sentence",),
    "cola": ("sentence",),
    "rte": ("sentence1", "sentence2"),
}


def all_text(glue: str | None) -> list[str]:
    """Every text of the train splits here, in one order."""
    lines = list(tweets()["text"])
    for name, columns in COLUMNS.items() if glue else ():
        rows = load_dataset(f"{glue}/{name}", split="train")
        lines += [line for column in columns for line in rows[column]]
    return [" ".join(line.split()) for line in lines]


def general(cache: Path, glue: str | None, passes: float) -> str:
    """The folder of the student, made once; with 0 passes it is where general distillation begins,
    but for a step at a rate of next to nothing."""
    folder = cache / f"general-{'glue-' if glue else ''}{passes:g}"
    if not folder.is_dir():
        text = cache / "all_text.txt"
        text.write_text("\n".join(all_text(glue)) + "\n", encoding="utf-8")
        distil(
            minilm(),
            text,
            folder,
            student_layers=LAYERS,
            epochs=passes or 1e-9,
            learning_rate=RATE if passes else 1e-12,
        )
    return str(folder)


def thin(cache: Path) -> str:
    """The folder of a new BERT with MiniLM's vocabulary and 6 heads of 32 dimensions a layer."""
    folder = cache / "thin"
    if not folder.is_dir():
        torch.manual_seed(0)
        config = BertConfig.from_pretrained(minilm(), **THIN, num_attention_heads=6)
        BertModel(config).save_pretrained(folder)
        AutoTokenizer.from_pretrained(minilm()).save_pretrained(folder)
    return str(folder)


def begun(start: str, cache: Path, glue: str | None, passes: float) -> dict[str, Any]:
    """What a student of this name begins with, as arguments of `read_inputs`."""
    match start:
        case "layers":
            return {"student_layers": LAYERS}
        case "pretrained":
            return {"student": general(cache, glue, 0)}
        case "general":
            return {"student": general(cache, glue, passes)}
    return {"student": thin(cache)}


def stages(start: str, steps: int, rows: int) -> tuple[Stage, ...]:
    """So many steps in all, by the losses that such a student can learn."""
    losses: tuple[Loss, ...] = ("prediction+hidden",)
    if start.startswith("thin"):
        losses = ("hint", "prediction") if start.endswith("hint") else ("prediction",)
    epochs = steps * BATCH / rows / len(losses)
    return tuple(
        Stage(name=f"learn {loss}", epochs=epochs, learning_rate=RATE, loss=loss) for loss in losses
    )


def main() -> None:
    """Measure what is missing, print the table."""
    parser = parser_of(__doc__, tasks=("tweets", "sst2", "cola", "rte"), seeds=(0,), cache=True)
    parser.set_defaults(threads=1)
    parser.add_argument("--passes", type=float, default=1, help="of general distillation")
    parser.add_argument("--steps", nargs="+", type=int, default=[150, 600])
    parser.add_argument("--starts", nargs="+", choices=STARTS, default=STARTS)
    asked = parsed(parser)
    rows = Rows(asked.out / "general.json")
    about = {"task": asked.task, "passes": asked.passes}
    for start in asked.starts:
        of_start = begun(start, asked.cache, asked.glue, asked.passes)
        inputs = read_inputs(task_of(asked.task, asked.glue), teacher_for(asked.task), **of_start)
        bench = prepare(inputs, Session(cache=asked.cache))
        for seed, steps in product(asked.seeds, asked.steps):
            key = {**about, "start": start, "seed": seed, "steps": steps}
            if rows.has(key):
                continue
            learn = stages(start, steps, len(bench.problem.train))
            whole = RandomPruning(target_ratio=1.0, batch_size=BATCH, stages=learn)
            found = measure(bench, whole, seed)
            worth = kept(found, "kl", "heldout_kl", "select", "heldout", "processor_seconds")
            rows.add({**key, **teacher_row(bench), **worth})
    print_means(
        "general distillation before the task's own",
        [row for row in rows.rows if about.items() <= row.items()],
        ("task", "steps", "start"),
        {"kl": ".4f", "heldout_kl": ".4f", "select": ".4f", "heldout": ".4f"},
    )


if __name__ == "__main__":
    main()
