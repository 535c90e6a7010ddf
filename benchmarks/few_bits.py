"""Weights of two bits and of one: learnt, split, or rounded at the end, at equal epochs.

MiniLM-L6 is fine-tuned on a task once. Each arm makes a model of few bits from it, with inputs of 8
bits, then of 4; embeddings have 2 in all:

- `rounded 2`, `rounded 1`: the teacher, rounded, and not trained.
- `ternary`: `TernaryBert`. `ternary, two stages`: the same epochs, first on attention scores and
  hidden states, then on the logits, as the paper has it. `ternary, attention`: Q, K, V and the
  attention in 8 bits too, and all three losses at once, as the paper adds them up.
- `split`: `BinaryBert`, half of its epochs ternary and half binary. `split, two stages` likewise.
  `split half`: the layers are split that gain most for half of the bytes.
- `scratch`: the whole model in weights of one bit from the start, by the training of `ternary`.
- `half ternary`: what `split` begins with, trained for all epochs and not split.

    OMP_NUM_THREADS=1 python -m benchmarks.few_bits --cache FOLDER [--task sst2 --glue FOLDER]
        [--seeds 0 1 2] [--epochs 1] [--arms ternary split ...] [--input-bits 8 4]

Without `--glue` the task is that of the quickstart, "tweets". Writes
benchmarks/results/few_bits.json row by row and goes on where it was stopped; prints the means of
the rows there. KL is the mean divergence from the teacher's answers on the selection split, in
nats; seconds are those of the processor; bytes those of model.safetensors. Seeds change the order
of the batches.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product

from benchmarks.harness import Rows, parsed, parser_of, print_means
from benchmarks.tasks import kept, measure, teacher_row, workbench
from maskfront import BinaryBert, Stage, TernaryBert
from objectives.pruning.staged_method import StagedMethod
from objectives.training.stages import Loss

KEPT = ("kl", "select", "heldout", "bytes", "processor_seconds")
EPOCHS = {"tweets": 1.0, "sst2": 0.5, "cola": 1.0}
RATES = {"ternary": 3e-4, "binary": 3e-4}
ARMS = (
    *("rounded 2", "rounded 1", "ternary", "scratch", "split", "half ternary"),
    *("ternary, two stages", "split, two stages", "split half", "ternary, attention"),
)


def stages(kind: str, epochs: float, *, two: bool) -> tuple[Stage, ...]:
    """Training with weights of this kind for so many epochs, all at once or in two stages."""
    losses: tuple[Loss, ...] = ("intermediate", "prediction") if two else ("prediction+hidden",)
    return tuple(
        Stage(
            name=f"{kind} {loss}",
            epochs=epochs / len(losses),
            learning_rate=RATES[kind],
            loss=loss,
            quantised=True,
        )
        for loss in losses
    )


def method(arm: str, epochs: float) -> StagedMethod:
    """The method of an arm."""
    kind, two = arm.removesuffix(", two stages"), arm.endswith("two stages")
    if kind.startswith("rounded"):
        return TernaryBert(weight_bits=int(kind[-1]), stages=())
    if kind.startswith("split"):
        first, then = (stages(own, epochs / 2, two=two) for own in ("ternary", "binary"))
        share = 0.5 if kind == "split half" else 1.0
        return BinaryBert(stages=first + then, first_binary=then[0].name, split=share)
    if kind == "scratch":
        return TernaryBert(weight_bits=1, stages=stages("binary", epochs, two=two))
    if arm == "ternary, attention":
        [paper] = stages("ternary", epochs, two=False)
        paper = replace(paper, loss="prediction+intermediate", hidden_weight=1)
        return TernaryBert(attention_bits=8, stages=(paper,))
    ratio = 0.5 if kind == "half ternary" else 1.0
    return TernaryBert(target_ratio=ratio, stages=stages("ternary", epochs, two=two))


def main() -> None:
    """Run, or go on, and print the table."""
    parser = parser_of(__doc__, tasks=tuple(EPOCHS), seeds=(0,), cache=True, device=True)
    parser.add_argument("--epochs", type=float, help="of all stages of an arm together")
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    parser.add_argument("--input-bits", nargs="+", type=int, choices=[8, 4], default=[8, 4])
    asked = parsed(parser)
    epochs = asked.epochs or EPOCHS[asked.task]
    rows = Rows(asked.out / "few_bits.json", asked.device)
    bench = workbench(asked.task, asked.glue, asked.cache, device=asked.device)
    teacher = {**teacher_row(bench), "teacher_bytes": bench.unpruned.bytes}
    measure(bench, method("half ternary", 0.01), 0)  # what is made once is nobody's time
    for seed, bits, arm in product(asked.seeds, asked.input_bits, asked.arms):
        key = {"task": asked.task, "seed": seed, "arm": arm, "input_bits": bits}
        key |= {} if arm.startswith("rounded") else {"epochs": epochs}
        if not rows.has(key):
            found = measure(bench, replace(method(arm, epochs), input_bits=bits), seed)
            rows.add({**key, **kept(found, *KEPT), **teacher})
    print_means(
        "weights of few bits",
        rows.rows,
        ("task", "arm", "input_bits", "epochs"),
        {name: ".0f" if name in ("bytes", "processor_seconds") else ".4f" for name in KEPT},
    )


if __name__ == "__main__":
    main()
