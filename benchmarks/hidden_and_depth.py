"""Would a student gain by a narrower residual stream, or by fewer layers, at equal FLOPs?

MiniLM-L6 is fine-tuned once. Each arm takes something away that is part of no head and no FFN
neuron, then keeps as many of these as the same FLOPs allow:

    units       nothing: heads and neurons alone, as `FisherSearch` chooses them
    hidden-N    all but N dimensions of the residual stream (after CoFi, Xia et al. 2022)
    layers-...  all layers but these, with their norms

All arms are distilled alike (logits and hidden states, which are compared where student and teacher
both have them), on the same batches. Worth of a dimension is the mean squared gradient of one mask
for it at all norms; each norm of a narrower student is rescaled so that it normalises in the mean
as the whole one does. A layer learns the state that the next one that is kept reads in the teacher.

    OMP_NUM_THREADS=1 python -m benchmarks.hidden_and_depth --cache FOLDER [--ratios 0.13 0.07]
    OMP_NUM_THREADS=1 python -m benchmarks.hidden_and_depth --cache FOLDER --timings

The first writes rows, the second milliseconds of all models of the rows (random weights of their
sizes, one thread, 128 tokens, seconds of the processor, taking turns), both to
benchmarks/results/hidden_and_depth.json; it goes on where it was stopped. KL is the mean divergence
from the teacher's answers on the selection split, in nats.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from rich.console import Console
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.elastic import RATE, workbench
from benchmarks.search_quality import TOLERANCE
from objectives.device import matmul_dtype, quiet_libraries
from objectives.engines.onnx_model import open_session, run_session, write_int8, write_onnx
from objectives.measures.budget import discretise
from objectives.measures.cost import Flops
from objectives.measures.evaluate import metric_of, predict
from objectives.methods.fisher_search import FisherSearch
from objectives.problem import Problem
from objectives.progress import SilentProgress
from objectives.strategies.importance import importance_of_student
from objectives.students.bert.architecture import BertArchitecture
from objectives.students.bert.cutting import cut, shape_of
from objectives.students.bert.pruned_bert import (
    PrunedBertConfig,
    PrunedBertForSequenceClassification,
)
from objectives.students.bert.student import keep_layers
from objectives.text.data import Batch
from objectives.training.losses import hidden_loss, prediction_loss
from objectives.training.optimisation import PopulationOptimizer
from objectives.training.population import Population, Trace
from objectives.training.stages import Stage
from objectives.training.teacher_states import keep_states, teacher_trace
from objectives.workbench.workbench import Workbench

Row = dict[str, Any]

RESULTS = Path(__file__).parent / "results" / "hidden_and_depth.json"
LAYERS = tuple(range(6))
ARMS: dict[str, tuple[int, tuple[int, ...]]] = {
    "units": (384, LAYERS),
    "hidden-256": (256, LAYERS),
    "hidden-192": (192, LAYERS),
    "layers-0134": (384, (0, 1, 3, 4)),
    "layers-0123": (384, (0, 1, 2, 3)),
    "layers-024": (384, (0, 2, 4)),
    "layers-135": (384, (1, 3, 5)),
}
"""Of each arm the dimensions of the residual stream, and the layers."""
BATCH = 32
ROWS_OF_WORTH = 160
SEED = 0


def hidden_axes(name: str, weight: Tensor) -> tuple[int, ...]:
    """The axes of one of a classifier's weights that run over the residual stream."""
    matrix = weight.ndim == 2
    if name.startswith("classifier"):
        return (1,) if matrix else ()
    if name.startswith("bert.pooler"):
        return (0, 1) if matrix else (0,)
    if name.startswith("bert.embeddings"):
        return (1,) if matrix else (0,)
    if "attention.self" in name or "intermediate" in name:
        return (1,) if matrix else ()
    return (0,)


def narrowed(
    model: PrunedBertForSequenceClassification, kept: Tensor
) -> PrunedBertForSequenceClassification:
    """The model with these dimensions of the residual stream alone."""
    config = PrunedBertConfig.from_dict({**model.config.to_dict(), "hidden_size": len(kept)})
    smaller = PrunedBertForSequenceClassification(config)
    state = {}
    for name, weight in model.state_dict().items():
        state[name] = weight
        for axis in hidden_axes(name, weight):
            state[name] = state[name].index_select(axis, kept)
    smaller.load_state_dict(state)
    smaller.train(False)
    return smaller


@torch.no_grad()
def rescale(
    whole: PrunedBertForSequenceClassification,
    smaller: PrunedBertForSequenceClassification,
    kept: Tensor,
    batch: Batch,
) -> None:
    """Let each norm of the smaller model normalise in the mean as that of the whole one does."""
    entering: dict[str, Tensor] = {}
    norms = {name: norm for name, norm in whole.named_modules() if isinstance(norm, nn.LayerNorm)}
    hooks = [
        norm.register_forward_pre_hook(lambda _, args, name=name: entering.update({name: args[0]}))
        for name, norm in norms.items()
    ]
    whole(batch.input_ids, batch.attention_mask, batch.token_type_ids)
    for hook in hooks:
        hook.remove()
    for name, hidden_BSD in entering.items():
        all_TD = hidden_BSD[batch.attention_mask.bool()]
        own_TD, norm = all_TD[:, kept], smaller.get_submodule(name)
        assert isinstance(norm, nn.LayerNorm)
        deviation = all_TD.std(-1, unbiased=False)
        norm.bias.add_(norm.weight * ((own_TD.mean(-1) - all_TD.mean(-1)) / deviation).mean())
        norm.weight.mul_((own_TD.std(-1, unbiased=False) / deviation).mean())


def worth_of_dimensions(problem: Problem) -> Tensor:
    """Mean squared gradient of the answers at a mask on each dimension, (D,)."""
    teacher = problem.teacher
    size, total = teacher.config.hidden_size, torch.zeros(teacher.config.hidden_size)
    for number, batch in enumerate(problem.alpha.in_order(BATCH, "cpu")):
        if number * BATCH >= ROWS_OF_WORTH:
            break
        masks = torch.ones(len(batch.rows), 1, size, requires_grad=True)
        hooks = [
            norm.register_forward_hook(lambda _, __, hidden, masks=masks: hidden * masks)
            for norm in teacher.modules()
            if isinstance(norm, nn.LayerNorm)
        ]
        logits = teacher(batch.input_ids, batch.attention_mask, batch.token_type_ids).logits
        for hook in hooks:
            hook.remove()
        # Of one logit less their mean, another for each sequence in turn.
        centred = logits - logits.mean(-1, keepdim=True)
        chosen = centred.gather(-1, (batch.rows % logits.shape[-1])[:, None]).sum()
        (gradient,) = torch.autograd.grad(chosen, masks)
        total += gradient.square().sum((0, 1))
    return total


def units_of_arm(
    problem: Problem, worth: Mapping[str, Tensor], hidden: int, layers: Sequence[int], ratio: float
) -> BertArchitecture:
    """The heads and neurons of highest worth per FLOP at this ratio of the teacher's FLOPs."""
    whole = shape_of(problem.teacher.config)
    cost = Flops(replace(whole, hidden=hidden, layers=len(layers)), problem.seq_len)
    price, power = cost.of_one_unit(), FisherSearch.flops_weight
    scores = {
        space: value[list(layers)].double() / price[space] ** power
        for space, value in worth.items()
    }
    target = ratio * Flops(whole, problem.seq_len).full
    return discretise(scores, cost, target=target, tolerance=TOLERANCE, threshold=math.inf)


def distil(
    problem: Problem,
    model: PrunedBertForSequenceClassification,
    kept: Tensor,
    layers: Sequence[int],
    epochs: float,
    rate: float,
) -> float:
    """Train the model; the seconds of the processor that it took."""
    stage, last = Stage(name="recover", epochs=epochs), problem.teacher.config.num_hidden_layers
    learns = [0, *layers[1:], last]
    dtype = matmul_dtype("auto", "cpu")
    population = Population.of([model], dtype)
    steps = math.ceil(epochs * len(problem.train) / BATCH)
    optimizer = PopulationOptimizer(population.weights, torch.tensor([rate]), steps, stage.schedule)
    batches = problem.train.shuffled(BATCH, SEED, "cpu")
    started = time.process_time()
    for _ in range(steps):
        batch, trace = next(batches), Trace()
        logits = population.logits(batch, None, trace)
        states = teacher_trace(problem, batch, dtype, with_scores=False).hidden
        wanted = Trace(hidden=[states[layer].index_select(-1, kept) for layer in learns])
        answers = prediction_loss(logits, problem.teacher_logits[batch.rows])
        inside = hidden_loss(trace, wanted, batch.attention_mask, {})
        (answers + stage.hidden_weight * inside).sum().backward()
        optimizer.step()
    model.load_state_dict(population.slot(0))
    return time.process_time() - started


def measured(bench: Workbench, model: PrunedBertForSequenceClassification) -> Row:
    """What the model is worth."""
    answers = {role: predict(model, getattr(bench, role), "cpu") for role in ("select", "heldout")}
    divergence = functional.kl_div(
        answers["select"].log_softmax(-1),
        bench.teacher_answers["select"].log_softmax(-1),
        reduction="batchmean",
        log_target=True,
    )
    worths = {
        role: metric_of(logits, getattr(bench, role), bench.metric)
        for role, logits in answers.items()
    }
    return {"kl": float(divergence), **worths}


def rows_of(bench: Workbench, options: argparse.Namespace, known: Sequence[Row]) -> Iterator[Row]:
    """Those that are not known, one after the other."""
    problem = bench.problem
    keep_states(problem, matmul_dtype("auto", "cpu"), SilentProgress())
    worth = importance_of_student(problem, ("heads", "ffn"), "logits")
    dimensions = worth_of_dimensions(problem)
    batch = next(iter(problem.alpha.in_order(4 * BATCH, "cpu")))
    for ratio in options.ratios:
        for arm in options.arms:
            key = {"task": options.task, "arm": arm, "ratio": ratio, "epochs": options.epochs}
            if any(key.items() <= row.items() for row in known):
                continue
            hidden, layers = ARMS[arm]
            units = units_of_arm(problem, worth, hidden, layers, ratio)
            student = keep_layers(problem.teacher, layers)
            model = cut(student.state_dict(), student.config, units)
            kept = dimensions.topk(hidden).indices.sort().values
            if hidden < len(dimensions):
                whole, model = model, narrowed(model, kept)
                rescale(whole, model, kept, batch)
            rate = RATE * (1 - ratio)
            seconds = distil(problem, model, kept, layers, options.epochs, rate)
            sizes = {"heads": units.heads_per_layer, "ffn": units.ffn_per_layer}
            yield {**key, **sizes, **measured(bench, model), "seconds": seconds}


def of_sizes(row: Row) -> PrunedBertForSequenceClassification:
    """A MiniLM of random weights that is as wide and as deep as the model of a row."""
    hidden, layers = ARMS[row["arm"]]
    own = {
        number: {"num_attention_heads": heads, "intermediate_size": ffn}
        for number, (heads, ffn) in enumerate(zip(row["heads"], row["ffn"], strict=True))
    }
    config = PrunedBertConfig.from_dict(
        {"hidden_size": hidden, "num_hidden_layers": len(layers), "head_dim": 32}
        | {"per_layer_config": own, "num_labels": 3}
    )
    return PrunedBertForSequenceClassification(config)


def timings_of(rows: Sequence[Row], rounds: int) -> list[Row]:
    """Milliseconds of a forward pass of the models of these rows, which take turns."""
    found: list[Row] = []
    with TemporaryDirectory() as folder:
        sessions = {}
        for number, row in enumerate(rows):
            files = [Path(folder) / f"{number}-{engine}.onnx" for engine in ("float32", "int8")]
            write_onnx(of_sizes(row).eval(), files[0])
            write_int8(*files)
            for file, engine in zip(files, ("float32", "int8"), strict=True):
                sessions[number, engine] = open_session(file, 1), file.stat().st_size
        for batch in (1, 8):
            ids = torch.randint(1000, 30_000, (batch, 128))
            inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
            inputs["token_type_ids"] = torch.zeros_like(ids)
            times: dict[tuple[int, str], list[float]] = {key: [] for key in sessions}
            for _ in range(rounds + 1):
                for key, (session, _) in sessions.items():
                    started = time.process_time()
                    run_session(session, inputs)
                    times[key].append(time.process_time() - started)
            for (number, engine), taken in times.items():
                own = {name: rows[number][name] for name in ("arm", "ratio")}
                milliseconds = 1000 * statistics.median(taken[1:])
                size = {"bytes": sessions[number, engine][1]}
                found.append(own | {"engine": engine, "batch": batch, "ms": milliseconds} | size)
    return found


def main() -> None:
    """Run, or go on, and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--task", default="tweets", choices=["tweets", "sst2", "cola", "rte"])
    parser.add_argument("--glue", help="folder of nyu-mll/glue, for its tasks")
    parser.add_argument("--cache", type=Path, required=True, help="folder for teachers and states")
    parser.add_argument("--ratios", nargs="+", type=float, default=[0.13, 0.07])
    parser.add_argument("--arms", nargs="+", default=list(ARMS), choices=ARMS)
    parser.add_argument("--epochs", type=float, default=3.0)
    parser.add_argument("--timings", action="store_true", help="time the models of the rows")
    parser.add_argument("--rounds", type=int, default=25)
    options, console = parser.parse_args(), Console()
    quiet_libraries()
    torch.set_num_threads(1)
    document: dict[str, Any] = {"rows": [], "timings": []}
    if RESULTS.exists():
        document = json.loads(RESULTS.read_text())
    if options.timings:
        document["timings"] = timings_of(document["rows"], options.rounds)
        RESULTS.write_text(json.dumps(document, indent=1) + "\n")
        for timing in document["timings"]:
            console.print(timing)
        return
    bench = workbench(options.task, options.glue, options.cache)
    for row in rows_of(bench, options, tuple(document["rows"])):
        document["rows"].append(row)
        RESULTS.write_text(json.dumps(document, indent=1) + "\n")
        console.print(row)


if __name__ == "__main__":
    main()
