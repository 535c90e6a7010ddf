"""What is a head worth alone, and how sharp is the loss in each module of a fine-tuned model?

Michel et al. (2019): the metric with one head removed, for every head; and with all heads of one
layer but one removed, for the best of that layer. Beside them, of attention and FFN of each layer,
the largest eigenvalue of the Hessian of the task's loss with respect to its weights, by power
iteration on Hessian-vector products: what rounding a module may cost (Bai et al. 2021).

    python -m benchmarks.ablations --task tweets --cache FOLDER [--glue FOLDER] [--steps 20]

The metric is that on the selection split; the Hessian that of the alpha split. Writes
benchmarks/results/ablations.json.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks.harness import Rows, parsed, parser_of, print_table
from benchmarks.tasks import workbench
from objectives.measures.evaluate import predictions_of
from objectives.metric import metric_value
from objectives.students.bert.linears import LINEARS
from objectives.text.data import Split
from objectives.training.losses import sequence_losses
from objectives.training.population import Population
from objectives.workbench.workbench import Workbench

_BATCH_SIZE = 64


def main() -> None:
    """Measure, print two tables."""
    parser = parser_of(__doc__, tasks=("tweets", "sst2", "cola"), cache=True)
    parser.add_argument("--steps", type=int, default=20, help="of the power iteration")
    asked = parsed(parser)
    rows = Rows(asked.out / "ablations.json")
    rows.rows = [row for row in rows.rows if row["task"] != asked.task]
    bench = workbench(asked.task, asked.glue, asked.cache)
    shape, whole = bench.problem.shape, bench.unpruned.metric
    metrics = ablated(bench)
    population, alpha = Population.of([bench.problem.teacher]), bench.problem.alpha
    for layer in range(shape.layers):
        removed = [metrics[layer, head, "removed"] - whole for head in range(shape.heads)]
        alone = [metrics[layer, head, "alone"] - whole for head in range(shape.heads)]
        sharp = {
            module: largest_eigenvalue(*hessian(population, alpha, layer, module), asked.steps)
            for module in ("attention", "ffn")
        }
        own = {"removed": removed, "alone": alone, "sharpness": sharp}
        rows.add({"task": asked.task, "layer": layer, "metric": whole, **own})
    own = [row for row in rows.rows if row["task"] == asked.task]
    print_table(
        f"{asked.task}: change of the metric ({whole:.4f}), and the largest eigenvalue of H",
        ["layer", *(f"-{head + 1}" for head in range(shape.heads)), "best alone", "H att", "H ffn"],
        [
            [
                row["layer"] + 1,
                *(f"{change:+.4f}" for change in row["removed"]),
                f"{max(row['alone']):+.4f}",
                *(f"{value:.3g}" for value in row["sharpness"].values()),
            ]
            for row in own
        ],
    )


@torch.no_grad()
def ablated(bench: Workbench) -> dict[tuple[int, int, str], float]:
    """The metric for each layer and head with that head "removed", or "alone" in its layer."""
    shape, select = bench.problem.shape, bench.select
    population = Population.of([bench.problem.teacher])
    cases = [
        (layer, head, kind)
        for layer in range(shape.layers)
        for head in range(shape.heads)
        for kind in ("removed", "alone")
    ]
    found = {}
    for layer, head, kind in cases:
        mask = torch.ones(1, shape.layers, shape.heads)
        if kind == "alone":
            mask[0, layer] = 0
        mask[0, layer, head] = kind == "alone"
        logits = torch.empty(len(select), shape.labels)
        for batch in select.in_order(_BATCH_SIZE, "cpu"):
            logits[batch.rows] = population.logits(batch, {"heads": mask})[0]
        answers = predictions_of(logits, select)
        found[layer, head, kind] = metric_value(
            bench.metric, select.labels, answers, classes=shape.labels
        )
    return found


def hessian(
    population: Population, split: Split, layer: int, module: str
) -> tuple[Callable[[Sequence[Tensor]], list[Tensor]], list[Tensor]]:
    """H v of the mean loss, for v of the shapes of the weights of the "attention" or the "ffn" of a
    layer; and these weights."""
    inside = [linear for linear in LINEARS if linear.name.startswith("attention")]
    linears = inside if module == "attention" else [one for one in LINEARS if one not in inside]
    weights = [
        population.weights[f"bert.encoder.layer.{layer}.{one.name}.weight"] for one in linears
    ]

    def product(vector: Sequence[Tensor]) -> list[Tensor]:
        total = [torch.zeros_like(weight) for weight in weights]
        for batch in split.in_order(_BATCH_SIZE, "cpu"):
            with sdpa_kernel(SDPBackend.MATH):  # the others have no second derivative
                loss = sequence_losses(population.logits(batch), batch.labels).sum() / len(split)
                slopes = torch.autograd.grad(loss, weights, create_graph=True)
                along = sum((s * v).sum() for s, v in zip(slopes, vector, strict=True))
                assert isinstance(along, Tensor)
                for own, part in zip(total, torch.autograd.grad(along, weights), strict=True):
                    own += part
        return total

    return product, weights


def largest_eigenvalue(
    product: Callable[[Sequence[Tensor]], list[Tensor]], like: Sequence[Tensor], steps: int
) -> float:
    """Of a symmetric matrix the eigenvalue of the largest absolute value, by power iteration: the
    Rayleigh quotient after so many products."""
    generator = torch.Generator().manual_seed(0)
    vector = [torch.randn(one.shape, generator=generator).to(one) for one in like]
    value = 0.0
    for _ in range(steps):
        length = sum(float(part.square().sum()) for part in vector) ** 0.5
        vector = [part / length for part in vector]
        found = product(vector)
        value = sum(float((a * b).sum()) for a, b in zip(vector, found, strict=True))
        vector = [part.detach() for part in found]
    return value


if __name__ == "__main__":
    main()
