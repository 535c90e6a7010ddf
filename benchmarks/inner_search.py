"""Seconds of one step of the inner search: K = 1 of maskfront beside a plain transformers loop.

The plain loop does the same step as one would write it with transformers alone: a
BertForSequenceClassification as teacher and one as student, sigmoid masks of heads and FFN neurons
put on by hooks; each step is a forward pass of the teacher, soft cross-entropy, fused AdamW on the
weights, then a batch of alpha data, cross-entropy plus the FLOPs hinge, Adam on alpha. Nothing in
it is slow on purpose: `sdpa`, no dropout, no gradients that nobody reads. Before anything is timed
its logits, losses and gradients are compared with the product's.

Batches are padded to 128 tokens, as such code does by default, or bucketed: of like length, padded
to the longest, and then the plain loop reads the teacher from a cache too. It trains all weights,
or leaves the embeddings frozen as the product does. Model and tweets are the quickstart's, for what
batches of like length save depends on the tweets' lengths; the classifier on top is random.
`--made-up` takes random weights and texts of about these lengths, and needs neither package of
requirements-demo.txt (see `benchmarks.made_up` for what it needs).

    python -m benchmarks.inner_search [--threads 2 | --cpu-time] [--blocks 8] [--steps 3]
        [--device cpu] [--made-up] [--out benchmarks/results]

The variants take turns in blocks of a few steps (30 on a GPU), on the same batches; a block is
timed as a whole, after a step that is not (five on a GPU). On a machine that does other work,
`--cpu-time` takes the processor's time of one thread for the time on the clock. Prints a table
(quartiles over the blocks, ratios within them) and writes
benchmarks/results/inner_search-<device>.json.
"""

from __future__ import annotations

import platform
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
import transformers
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.nn import functional
from transformers import AutoTokenizer, BertForSequenceClassification

from benchmarks import made_up
from benchmarks.harness import parsed, parser_of, write_json
from benchmarks.timing import (
    STEPS,
    WARM_UP,
    Now,
    Stopwatch,
    clock,
    describe,
    kind_of,
    seconds_of,
    until_enough,
)
from objectives.device import Precision, autocast, choose_device, matmul_dtype
from objectives.measures.budget import hinge_loss
from objectives.methods.mask_search import MaskSearch
from objectives.problem import Problem
from objectives.session import Session
from objectives.text.data import Batch, Split
from objectives.text.task import Task
from objectives.training.losses import prediction_loss
from objectives.training.population import Population
from objectives.training.stages import Stage
from objectives.workbench.inputs import read_inputs
from objectives.workbench.teacher import Teacher
from objectives.workbench.workbench import prepare

LENGTH = 128
TARGET, TOLERANCE = 0.5, 0.05
METHOD = MaskSearch(
    precision="float32",
    target_ratio=TARGET,
    tolerance=TOLERANCE,
    stages=(Stage(name="search", epochs=0.1, searches=True, learning_rate=2e-5),),
)
AGREEMENT = 1e-4
PADDED = "plain, padded, embeddings frozen"
BUCKETED = "plain, bucketed, embeddings frozen"
REFERENCES = (PADDED, BUCKETED)


class PaddedSplit(Split):
    """A split whose batches are all as long as its longest allowed sequence."""

    def batch(self, rows: np.ndarray[tuple[int], np.dtype[np.int64]], device: str) -> Batch:
        """The named rows, padded to `max_length`."""
        short = super().batch(rows, device)
        missing = (0, self.max_length - short.input_ids.shape[1])
        return replace(
            short,
            input_ids=functional.pad(short.input_ids, missing, value=self.pad_token_id),
            token_type_ids=functional.pad(short.token_type_ids, missing),
            attention_mask=functional.pad(short.attention_mask, missing, value=False),
        )


class PlainLoop:
    """The search step with transformers and hooks, on one student."""

    def __init__(
        self, problem: Problem, *, cached: bool, frozen: bool, precision: Precision = "float32"
    ):
        """`cached`: read the teacher's logits; `frozen`: leave the embeddings as they are."""
        self.problem, self.cached = problem, cached
        self.dtype = matmul_dtype(precision, problem.device)
        config = problem.student.config
        self.student = BertForSequenceClassification(config).to(problem.device).eval()
        self.student.load_state_dict(problem.student.state_dict())
        self.student.bert.embeddings.requires_grad_(not frozen)
        layers, heads, ffn = (
            config.num_hidden_layers,
            config.num_attention_heads,
            config.intermediate_size,
        )
        self.alpha = {
            "heads": torch.full((layers, heads), 5.0, device=problem.device, requires_grad=True),
            "ffn": torch.full((layers, ffn), 5.0, device=problem.device, requires_grad=True),
        }
        self.masks: dict[str, Tensor] = {}
        for number, layer in enumerate(self.student.bert.encoder.layer):
            layer.attention.output.dense.register_forward_pre_hook(self._mask_heads(number))
            layer.intermediate.register_forward_hook(self._mask_ffn(number))
        head_dim = config.hidden_size // heads
        macs_of_head = 4 * LENGTH * config.hidden_size * head_dim + 2 * LENGTH**2 * head_dim
        self.flops_of_one = {"heads": 2 * macs_of_head, "ffn": 4 * LENGTH * config.hidden_size}
        self.flops_fixed = 2 * config.hidden_size * (config.hidden_size + config.num_labels)
        self.flops_full = self.flops(
            {space: torch.ones_like(value) for space, value in self.alpha.items()}
        )
        weights = [weight for weight in self.student.parameters() if weight.requires_grad]
        self.optimizer = torch.optim.AdamW(weights, lr=2e-5, fused=True)
        self.alpha_optimizer = torch.optim.Adam(self.alpha.values(), lr=0.1)
        self.draw(0)

    def draw(self, seed: int) -> None:
        """Take the next batches from the start of this seed's shuffle."""
        size, device = METHOD.batch_size, self.problem.device
        self.train = self.problem.train.shuffled(size, seed, device)
        self.held_out = self.problem.alpha.shuffled(size, seed, device)

    def step(self) -> None:
        """Weights on a batch of train, alpha on a batch of alpha."""
        self.weight_loss(next(self.train)).backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        gradients = torch.autograd.grad(
            sum(self.alpha_losses(next(self.held_out))), list(self.alpha.values())
        )
        for alpha, gradient in zip(self.alpha.values(), gradients, strict=True):
            alpha.grad = gradient
        self.alpha_optimizer.step()

    def weight_loss(self, batch: Batch) -> Tensor:
        """Soft cross-entropy against the teacher under the masks of the moment."""
        if self.cached:
            taught = self.problem.teacher_logits[batch.rows]
        else:
            with torch.no_grad():
                taught = _logits(self.problem.teacher, batch)
        self.masks = {space: value.detach().sigmoid() for space, value in self.alpha.items()}
        with autocast(self.dtype, self.problem.device):
            learnt = _logits(self.student, batch).float()
        return -(taught.softmax(-1) * learnt.log_softmax(-1)).sum(-1).mean()

    def alpha_losses(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Cross-entropy, and the FLOPs hinge: what alpha learns from."""
        self.masks = {space: value.sigmoid() for space, value in self.alpha.items()}
        with autocast(self.dtype, self.problem.device):
            learnt = _logits(self.student, batch).float()
        task = functional.cross_entropy(learnt, batch.labels)
        expected = self.flops(self.masks)
        actual = self.flops({space: (mask > 0.5).float() for space, mask in self.masks.items()})
        target = TARGET * self.flops_full
        above, below = (
            actual > (1 + TOLERANCE) * target,
            actual < (1 - TOLERANCE) * target,
        )
        return task, (above.float() - below.float()) * expected.log()

    def flops(self, masks: Mapping[str, Tensor]) -> Tensor:
        """Expected FLOPs of the student under the masks."""
        counts = (mask.double().sum() * self.flops_of_one[s] for s, mask in masks.items())
        return sum(counts) + self.flops_fixed

    def _mask_heads(self, layer: int) -> Callable[..., Tensor]:
        def hook(module: nn.Module, args: tuple[Tensor]) -> Tensor:
            mask = self.masks["heads"][layer]
            return (args[0].unflatten(-1, (len(mask), -1)) * mask[:, None]).flatten(-2)

        return hook

    def _mask_ffn(self, layer: int) -> Callable[..., Tensor]:
        def hook(module: nn.Module, args: tuple[Tensor], output: Tensor) -> Tensor:
            return output * self.masks["ffn"][layer]

        return hook


def _logits(model: BertForSequenceClassification, batch: Batch) -> Tensor:
    return model(
        input_ids=batch.input_ids,
        attention_mask=batch.attention_mask.long(),
        token_type_ids=batch.token_type_ids,
    ).logits


@dataclass(frozen=True)
class Variant:
    """One way to take the step, and how to time a block of it."""

    name: str
    run: Callable[[int], float]
    """From a seed to the seconds of a step, the mean of a block."""


def searching(steps: int, rows: int) -> MaskSearch:
    """METHOD, in a search of so many steps on so many rows."""
    stage = replace(METHOD.stages[0], epochs=steps * METHOD.batch_size / rows)
    return replace(METHOD, stages=(stage,))


def product(name: str, problem: Problem, steps: int, warm_up: int, now: Now) -> Variant:
    """The method of the product on one student."""
    method = searching(steps + warm_up, len(problem.train))

    def run(seed: int) -> float:
        watch = Stopwatch("search", steps, warm_up, now)
        until_enough(MaskSearch.search([method], problem, seed=seed, progress=watch))
        return watch.seconds

    return Variant(name, run)


def plain(
    name: str,
    problem: Problem,
    steps: int,
    warm_up: int,
    now: Now,
    *,
    cached: bool,
    frozen: bool,
) -> Variant:
    """The plain loop; its student goes on where the last block ended."""
    loop = PlainLoop(problem, cached=cached, frozen=frozen)

    def run(seed: int) -> float:
        loop.draw(seed)
        return seconds_of(loop.step, steps, warm_up, now)

    return Variant(name, run)


def check_agreement(problem: Problem) -> float:
    """The largest difference between plain loop and product on one batch; asserts it is small.

    Logits, both losses, the gradients of alpha and of the weights, each relative to its largest
    value, at masks between 0 and 1.
    """
    loop = PlainLoop(problem, cached=False, frozen=True)
    generator = torch.Generator().manual_seed(0)
    for value in loop.alpha.values():
        value.data = 1 + torch.randn(value.shape, generator=generator).to(value)  # above the band
    batch = problem.train.batch(np.arange(32), problem.device)
    population = Population.of([problem.student])
    alpha = {space: value.detach()[None].requires_grad_() for space, value in loop.alpha.items()}
    masks = {space: value.sigmoid() for space, value in alpha.items()}

    closed = {space: mask.detach() for space, mask in masks.items()}
    logits = population.logits(batch, closed)
    learnt = prediction_loss(logits, problem.teacher_logits[batch.rows])
    learnt.sum().backward()
    loss = loop.weight_loss(batch)
    loss.backward()
    pairs = {"distillation loss": (loss[None], learnt)}
    pairs["student's logits"] = (_logits(loop.student, batch)[None], logits)
    for name, weight in loop.student.named_parameters():
        if weight.grad is not None and "key.bias" not in name:  # in truth 0, for any batch
            pairs[name] = (weight.grad[None], population.weights[name].grad)

    task = functional.cross_entropy(population.logits(batch, masks)[0], batch.labels)
    expected, actual = (
        problem.budget.cost.expected(m)
        for m in (masks, {s: mask > 0.5 for s, mask in masks.items()})
    )
    target, tolerance = (torch.tensor([n]) for n in (TARGET * problem.budget.full, TOLERANCE))
    hinge = hinge_loss(expected, actual, target.to(expected), tolerance.to(expected))
    losses = loop.alpha_losses(batch)
    pairs |= {"task loss": (losses[0], task), "FLOPs loss": (losses[1][None], hinge)}
    ours = torch.autograd.grad((task + hinge).sum(), list(alpha.values()))
    theirs = torch.autograd.grad(sum(losses), list(loop.alpha.values()))
    for space, own, other in zip(alpha, ours, theirs, strict=True):
        pairs[f"alpha of {space}"] = (other[None], own)

    worst = 0.0
    for name, (plainly, here) in pairs.items():
        difference = ((plainly - here).abs().max() / here.abs().max()).item()
        assert difference < AGREEMENT, f"{name}: plain loop and product differ by {difference:.1e}"
        worst = max(worst, difference)
    return worst


def make_problem(
    folder: Path, device: str, length: int = LENGTH, train: int = 4000, alpha: int = 500
) -> Problem:
    """The quickstart's model and tweets, with a random classifier."""
    from studies._quickstart_data import minilm
    from studies.quickstart import study  # packages of requirements-demo.txt

    checkpoint = folder / "teacher"
    torch.manual_seed(0)
    BertForSequenceClassification.from_pretrained(minilm(), num_labels=3).save_pretrained(
        checkpoint
    )
    AutoTokenizer.from_pretrained(minilm()).save_pretrained(checkpoint)
    roles = {"train": train, "alpha": alpha, "select": 64, "heldout": 64}
    task: Task = replace(study.task, max_length=length, **roles)
    inputs = read_inputs(task, Teacher(checkpoint=str(checkpoint)), seq_len=length)
    return prepare(inputs, session=Session(cache=folder, device=device)).problem


def make_up_problem(
    folder: Path, device: str, length: int = LENGTH, train: int = 4000, alpha: int = 500
) -> Problem:
    """As many rows, about as long, of random words; the model's weights are random."""
    checkpoint = made_up.make_checkpoint(folder / "teacher")
    return made_up.make_problem(checkpoint, length, device, train=train, alpha=alpha, cache=folder)


def padded(problem: Problem) -> Problem:
    """The same problem, its batches padded to LENGTH."""
    train, alpha = (
        PaddedSplit(**{name: getattr(split, name) for name in split.__dataclass_fields__})
        for split in (problem.train, problem.alpha)
    )
    return replace(problem, train=train, alpha=alpha)


def row(name: str, blocks: list[float], seconds: dict[str, list[float]]) -> dict[str, Any]:
    """Quartiles of the seconds of a step, and of the ratios to each reference in the same block."""
    ratios = {
        reference: statistics.quantiles(
            [other / own for own, other in zip(blocks, seconds[reference], strict=True)], n=4
        )
        for reference in REFERENCES
    }
    return {
        "variant": name,
        "seconds_quartiles": statistics.quantiles(blocks, n=4),
        "times_as_fast_as": ratios,
    }


def main() -> None:
    """Time every variant, block after block; print the table, write the JSON."""
    parser = parser_of(__doc__)
    parser.add_argument("--cpu-time", action="store_true")
    parser.add_argument("--blocks", type=int, default=8)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--made-up", action="store_true")
    options = parsed(parser)
    options.device = choose_device(options.device)
    kind = kind_of(options.device)
    if options.cpu_time:
        options.threads = 1
    torch.set_num_threads(options.threads)
    with TemporaryDirectory() as folder:
        make = make_up_problem if options.made_up else make_problem
        bucketed = make(Path(folder), options.device)
    long, steps = padded(bucketed), options.steps or (3 if kind == "cpu" else STEPS[kind])
    difference = max(map(check_agreement, (bucketed, long)))
    print(  # noqa: T201
        "Plain loop and product agree on logits, losses and gradients of one batch, bucketed and "
        f"padded: largest relative difference {difference:.1e} (allowed {AGREEMENT:.0e})."
    )

    times = (steps, WARM_UP[kind], clock(options.device, processor=options.cpu_time))
    on_short, on_long = (bucketed, *times), (long, *times)
    variants = [
        plain("plain, padded, all weights", *on_long, cached=False, frozen=False),
        plain(PADDED, *on_long, cached=False, frozen=True),
        plain("plain, bucketed, all weights", *on_short, cached=True, frozen=False),
        plain(BUCKETED, *on_short, cached=True, frozen=True),
        product("maskfront, padded", *on_long),
        product("maskfront, bucketed", *on_short),
    ]
    seconds: dict[str, list[float]] = {variant.name: [] for variant in variants}
    for block in range(options.blocks):
        first = block % len(variants)  # nobody always comes after the same neighbour
        for variant in variants[first:] + variants[:first]:
            seconds[variant.name].append(variant.run(block))
    rows = [row(name, blocks, seconds) for name, blocks in seconds.items()]
    table = Table(
        "ms a step (quartiles)", "median", "", *(f"times as fast as\n{r}" for r in REFERENCES)
    )
    for entry in rows:
        low, middle, high = (1000 * value for value in entry["seconds_quartiles"])
        table.add_row(
            entry["variant"],
            f"{middle:.0f}",
            f"{low:.0f} .. {high:.0f}",
            *(f"{q[1]:.2f} ({q[0]:.2f} .. {q[2]:.2f})" for q in entry["times_as_fast_as"].values()),
        )
    Console(width=130).print(table)
    document = {
        "device": describe(options.device),
        "threads": options.threads,
        "clock": "processor time" if options.cpu_time else "wall time",
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "python": platform.python_version(),
        "blocks": options.blocks,
        "steps": steps,
        "made_up": options.made_up,
        "batch_size": METHOD.batch_size,
        "mean_tokens": statistics.fmean(map(len, bucketed.train.input_ids)),
        "largest_difference": difference,
        "rows": rows,
    }
    write_json(options.out / f"inner_search-{kind}.json", document)


if __name__ == "__main__":
    main()
