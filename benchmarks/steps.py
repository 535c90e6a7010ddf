"""Seconds of a training step: beside a plain loop, by K, length and size, at BERT-base's size."""

from __future__ import annotations

import argparse
import os
import platform
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import plotly.graph_objects as go
import torch
from plotly.subplots import make_subplots
from torch import Tensor, nn
from torch.nn import functional
from transformers import AutoTokenizer, BertForSequenceClassification

from benchmarks import made_up
from benchmarks.harness import Benchmark, Row
from benchmarks.tasks import search
from maskfront import ElasticSearch, FisherSearch, MaskSearch, Stage, StagedMethod
from objectives.device import Precision, autocast, free_memory, matmul_dtype, out_of_memory
from objectives.measures.evaluate import predict
from objectives.methods.elastic.elastic_search import ELASTIC
from objectives.problem import Problem
from objectives.progress import SilentProgress
from objectives.session import Session
from objectives.text.data import Batch, Split
from objectives.text.task import Task
from objectives.workbench.inputs import read_inputs
from objectives.workbench.teacher import Teacher
from objectives.workbench.workbench import prepare
from reports.figures.theme import AXIS, BLUE, GREY, LAYOUT, VERMILLION
from reports.page.picture import write_picture
from studies._data import minilm, tweets

METHOD = MaskSearch(
    precision="float32",
    target_ratio=0.5,
    tolerance=0.05,
    stages=(Stage(name="search", epochs=0.1, searches=True, learning_rate=2e-5),),
)
RECOVER = Stage(name="recover", epochs=1, learning_rate=3e-4, loss="prediction+hidden")
DISTIL = FisherSearch(tolerance=0.02, stages=(RECOVER,))


class PaddedSplit(Split):
    """A split whose batches are all padded to `max_length`."""

    def batch(self, rows: np.ndarray[tuple[int], np.dtype[np.int64]], device: str) -> Batch:
        """Return the named rows."""
        short = super().batch(rows, device)
        missing = (0, self.max_length - short.input_ids.shape[1])
        return replace(
            short,
            input_ids=functional.pad(short.input_ids, missing, value=self.pad_token_id),
            token_type_ids=functional.pad(short.token_type_ids, missing),
            attention_mask=functional.pad(short.attention_mask, missing, value=False),
        )


class PlainLoop:
    """The search step with transformers and hooks, on one student.

    Nothing in it is slow on purpose; a test compares it with the product.
    """

    def __init__(
        self, problem: Problem, *, cached: bool, frozen: bool, precision: Precision = "float32"
    ):
        """Read the teacher's logits if `cached`; leave the embeddings as they are if `frozen`."""
        self.problem, self.cached = problem, cached
        self.dtype = matmul_dtype(precision, problem.device)
        config = problem.student.config
        self.student = BertForSequenceClassification(config).to(problem.device).eval()
        self.student.load_state_dict(problem.student.state_dict())
        self.student.bert.embeddings.requires_grad_(not frozen)
        heads, ffn = config.num_attention_heads, config.intermediate_size
        self.alpha = {
            space: torch.full(
                (config.num_hidden_layers, size), 5.0, device=problem.device, requires_grad=True
            )
            for space, size in {"heads": heads, "ffn": ffn}.items()
        }
        self.masks: dict[str, Tensor] = {}
        for number, layer in enumerate(self.student.bert.encoder.layer):
            layer.attention.output.dense.register_forward_pre_hook(self._mask_heads(number))
            layer.intermediate.register_forward_hook(self._mask_ffn(number))
        length, head_dim = problem.seq_len, config.hidden_size // heads
        macs_of_head = 4 * length * config.hidden_size * head_dim + 2 * length**2 * head_dim
        self.flops_of_one = {"heads": 2 * macs_of_head, "ffn": 4 * length * config.hidden_size}
        self.flops_fixed = 2 * config.hidden_size * (config.hidden_size + config.num_labels)
        self.flops_full = self.flops(
            {space: torch.ones_like(value) for space, value in self.alpha.items()}
        )
        weights = [weight for weight in self.student.parameters() if weight.requires_grad]
        self.optimizer = torch.optim.AdamW(weights, lr=2e-5, fused=True)
        self.alpha_optimizer = torch.optim.Adam(self.alpha.values(), lr=0.1)
        self.draw(0)

    def draw(self, seed: int) -> None:
        """Start this seed's shuffle."""
        size, device = METHOD.batch_size, self.problem.device
        self.train = self.problem.train.shuffled(size, seed, device)
        self.held_out = self.problem.alpha.shuffled(size, seed, device)

    def step(self) -> None:
        """Train weights on a batch of train, alpha on a batch of alpha."""
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
        """Return soft cross-entropy against the teacher under the current masks."""
        if self.cached:
            taught = self.problem.teacher_logits[batch.rows]
        else:
            with torch.no_grad():
                taught = logits_of(self.problem.teacher, batch)
        self.masks = {space: value.detach().sigmoid() for space, value in self.alpha.items()}
        with autocast(self.dtype, self.problem.device):
            learnt = logits_of(self.student, batch).float()
        return -(taught.softmax(-1) * learnt.log_softmax(-1)).sum(-1).mean()

    def alpha_losses(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return cross-entropy and the FLOPs hinge, which alpha learns from."""
        self.masks = {space: value.sigmoid() for space, value in self.alpha.items()}
        with autocast(self.dtype, self.problem.device):
            learnt = logits_of(self.student, batch).float()
        task = functional.cross_entropy(learnt, batch.labels)
        expected = self.flops(self.masks)
        actual = self.flops({space: (mask > 0.5).float() for space, mask in self.masks.items()})
        target = METHOD.target_ratio * self.flops_full
        above = actual > (1 + METHOD.tolerance) * target
        below = actual < (1 - METHOD.tolerance) * target
        return task, (above.float() - below.float()) * expected.log()

    def flops(self, masks: Mapping[str, Tensor]) -> Tensor:
        """Return expected FLOPs of the student under the masks."""
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


def logits_of(model: BertForSequenceClassification, batch: Batch) -> Tensor:
    """Run a model of transformers."""
    return model(
        input_ids=batch.input_ids,
        attention_mask=batch.attention_mask.long(),
        token_type_ids=batch.token_type_ids,
    ).logits


class EnoughError(Exception):
    """Raised to end a search once its steps are timed."""


class Stopwatch(SilentProgress):
    """A `Progress` that times steps of one stage, then ends the search.

    Looks at the clock wait for the device; between two the host runs ahead, as in a real trial.
    """

    def __init__(self, stage: str, steps: int, warm_up: int, now: Callable[[], float]):
        self.stage, self.now = stage, now
        self.first, self.last = warm_up, warm_up + steps
        self.at_work = False
        self.taken = 0
        self.times: list[float] = []

    def seconds_of(self, search: Iterable[object]) -> float:
        """Run a search until its steps are timed; return the seconds of one."""
        with suppress(EnoughError):
            for _ in search:
                pass
        assert self.taken == self.last, f"{self.taken} steps, not {self.last}"
        return (self.times[1] - self.times[0]) / (self.last - self.first)

    def begin(self, stage: str, steps: int, done: int = 0) -> None:
        """Notice whether this is the stage."""
        self.at_work = stage == self.stage

    def advance(self) -> None:
        """Look at the clock before the first of the timed steps and after the last."""
        if not self.at_work:
            return
        self.taken += 1
        if self.taken in (self.first, self.last):
            self.times.append(self.now())
        if self.taken == self.last:
            raise EnoughError


def seconds_of(
    step: Callable[[], None], steps: int, warm_up: int, now: Callable[[], float]
) -> float:
    """Return the seconds of one step."""
    for _ in range(warm_up):
        step()
    started = now()
    for _ in range(steps):
        step()
    return (now() - started) / steps


class Steps(Benchmark[Problem]):
    """How long is a step? A seed is a round in which all take turns.

    On one thread of a CPU seconds are those of the processor. `--made-up` takes random weights and
    texts as long as tweets: a searching step costs the same, one after the cut somewhat more.
    """

    cache = False
    tasks = ()
    flags = {"made-up": "random weights and texts: needs no package of requirements-demo.txt"}
    prepared_by: Sequence[str] = ("tokens",)
    rows_of_train = 320
    average = staticmethod(median)
    picture = ""

    @classmethod
    def parser(cls) -> argparse.ArgumentParser:
        """Return the options, with the number of timed steps."""
        parser = super().parser()
        parser.add_argument("--steps", type=int, help="4, on a GPU 30")
        return parser

    def prepare(self, key: Row) -> Problem:
        """Make MiniLM-L6 and texts; batches are padded to `tokens`."""
        asked, length = self.asked, key["tokens"]
        rows = {"train": self.rows_of_train, "alpha": self.rows_of_train}
        folder = self.scratch / str(key["tokens"])
        if asked.made_up:
            checkpoint = made_up.make_checkpoint(folder / "teacher")
            problem = made_up.make_problem(checkpoint, length, asked.device, **rows, cache=folder)
        else:
            torch.manual_seed(0)
            model = BertForSequenceClassification.from_pretrained(minilm(), num_labels=3)
            for part in (model, AutoTokenizer.from_pretrained(minilm())):
                part.save_pretrained(folder / "teacher")
            sizes: dict[str, Any] = {**rows, "select": 64, "heldout": 64, "max_length": length}
            task = Task(name="tweets", data=tweets, label="sentiment", **sizes)
            teacher = Teacher(checkpoint=str(folder / "teacher"))
            inputs = read_inputs(task, teacher, seq_len=length)
            problem = prepare(inputs, session=Session(cache=folder, device=asked.device)).problem
        return problem

    def key(self, key: Row, problem: Problem) -> Row:
        """Return the key, with the processor and its threads."""
        return {**key, "processor": describe(self.asked.device), "threads": self.asked.threads}

    def now(self) -> float:
        """Return the time, once the device has done its work."""
        if torch.device(self.asked.device).type == "cuda":
            torch.cuda.synchronize(self.asked.device)
            return time.perf_counter()
        return time.process_time() if self.asked.threads == 1 else time.perf_counter()

    @property
    def counts(self) -> tuple[int, int]:
        """Numbers of steps that warm up, and that are timed."""
        on_gpu = torch.device(self.asked.device).type == "cuda"
        return (5, self.asked.steps or 30) if on_gpu else (1, self.asked.steps or 4)

    def seconds_of_search(
        self, members: Sequence[StagedMethod], problem: Problem, seed: int
    ) -> float:
        """Time a step of the last stage of a population."""
        warm_up, steps = self.counts
        method = members[0]
        epochs = (steps + warm_up) * method.batch_size / len(problem.train)
        last = replace(method.stages[-1], epochs=epochs)
        stages = (*method.stages[:-1], last)
        members = [replace(member, stages=stages) for member in members]
        watch = Stopwatch(last.name, steps, warm_up, self.now)
        search = type(method).search(members, problem, seed=seed, progress=watch)
        return watch.seconds_of(search)


class InnerSearch(Steps):
    """How long is a step of `MaskSearch` beside a plain transformers loop?

    Batches are padded to 128 tokens, as such code does by default, or bucketed: of like length, and
    then the plain loop reads the teacher from a cache, too. It trains all weights, or leaves the
    embeddings frozen as the product does.
    """

    name = "inner_search"
    seeds = tuple(range(8))
    rows_of_train = 4000
    grid = {
        "variant": (
            *("plain, padded, all weights", "plain, padded, embeddings frozen"),
            *("plain, bucketed, all weights", "plain, bucketed, embeddings frozen"),
            *("maskfront, padded", "maskfront, bucketed"),
        ),
        "tokens": (128,),
    }
    groups = ("processor", "threads", "variant")
    means = {"seconds": ".4f"}

    def rows(self, key: Row, problem: Problem) -> list[Row]:
        """Time one block of steps."""
        kind, batches, *weights = key["variant"].split(", ")
        bucketed = batches == "bucketed"
        problem = problem if bucketed else padded(problem)
        if kind == "maskfront":
            return [{"seconds": self.seconds_of_search([METHOD], problem, key["seed"])}]
        loop = PlainLoop(problem, cached=bucketed, frozen=weights != ["all weights"])
        loop.draw(key["seed"])
        warm_up, steps = self.counts
        return [{"seconds": seconds_of(loop.step, steps, warm_up, self.now)}]


class Populations(Steps):
    """How many trials an hour do K students make as one program? K of 0 is a plain loop.

    A trial is 804 steps of `MaskSearch`, three epochs of CoLA, in bfloat16 if the device is fast at
    it. The plain loop has the teacher's answers in a cache, and its embeddings frozen.
    """

    name = "population"
    grid = {"k": (0, 1, 2, 4, 8), "tokens": (32,)}
    groups = ("processor", "threads", "variant", "k", "tokens")
    means = {"seconds_per_step": ".4f", "trials_per_hour": ".1f", "gib": ".1f"}
    steps_of_a_trial = 804

    def key(self, key: Row, problem: Problem) -> Row:
        """Return the key, with the variant."""
        variant = "maskfront" if key["k"] else "plain loop"
        return super().key({**key, "k": key["k"] or 1, "variant": variant}, problem)

    def rows(self, key: Row, problem: Problem) -> list[Row]:
        """Time a population, whose ratios differ, or the loop; or say that memory is too small."""
        device, students = self.asked.device, key["k"]
        bfloat16 = matmul_dtype("auto", device) == torch.bfloat16
        precision: Precision = "bfloat16" if bfloat16 else "float32"
        on_gpu = torch.device(device).type == "cuda"
        free_memory()
        if on_gpu:
            torch.cuda.reset_peak_memory_stats(device)
        problem = padded(problem)
        try:
            if key["variant"] == "maskfront":
                ratios = (0.3 + 0.4 * slot / students for slot in range(students))
                method = replace(METHOD, precision=precision)
                members = [replace(method, target_ratio=ratio) for ratio in ratios]
                seconds = self.seconds_of_search(members, problem, key["seed"])
            else:
                loop = PlainLoop(problem, cached=True, frozen=True, precision=precision)
                warm_up, steps = self.counts
                seconds = seconds_of(loop.step, steps, warm_up, self.now)
        except Exception as error:
            if not out_of_memory(error):
                raise
            return [{"failed": "out of memory"}]
        trials = students * 3600 / (seconds * self.steps_of_a_trial)
        peak = torch.cuda.max_memory_allocated(device) / 2**30 if on_gpu else 0.0
        return [{"seconds_per_step": seconds, "trials_per_hour": trials, "gib": peak}]

    def show(self, rows: list[Row]) -> None:
        """Print what found memory."""
        super().show([row for row in rows if "failed" not in row])


class StepCost(Steps):
    """What does a step cost a trial: against K, the length of the batch, and the student's size?

    A searching step is that of `MaskSearch`, K students as one program; after the cut one student
    distils. The floor is three forward passes a batch if the device did nothing but matmuls, at the
    rate of a large one. `--picture FILE` draws the rows of this processor.
    """

    name = "step_cost"
    grid = {
        "k": (1, 2, 4, 8),
        "tokens": (16, 32, 64, 128),
        "ratio": (0.99, 0.5, 0.25, 0.1, 0.05),
    }
    groups = ("processor", "panel", "searching", "k", "tokens", "ratio")
    means = {"ms_a_student": ".1f", "floor_ms": ".1f"}

    @classmethod
    def parser(cls) -> argparse.ArgumentParser:
        """Return the options, with the file of the picture."""
        parser = super().parser()
        parser.add_argument("--picture", type=Path, help="such as docs/step-cost.svg")
        return parser

    def keys(self) -> Iterable[Row]:
        """Vary one field at a time; the others are 1 student, 32 tokens, half of the FLOPs."""
        asked, usual = self.asked, {"searching": True, "k": 1, "tokens": 32, "ratio": 0.5}
        for seed in asked.seeds:
            for k in asked.k:
                yield {"seed": seed, "panel": "k", **usual, "k": k}
            for searching in (True, False):
                for tokens in asked.tokens:
                    varied = {"searching": searching, "tokens": tokens}
                    yield {"seed": seed, "panel": "tokens", **usual, **varied}
            for ratio in asked.ratio:
                yield {"seed": seed, "panel": "ratio", **usual, "searching": False, "ratio": ratio}

    def rows(self, key: Row, problem: Problem) -> list[Row]:
        """Time a step, and compute its floor."""
        searching, k = key["searching"], key["k"]
        members: list[StagedMethod] = [replace(DISTIL, target_ratio=key["ratio"])]
        if searching:
            stage = replace(RECOVER, name="search", searches=True, loss="prediction")
            members = [MaskSearch(stages=(stage,))] * k
        free_memory()
        seconds = self.seconds_of_search(members, padded(problem), key["seed"])
        # Three forward passes of each batch; a searching step has two batches, of a whole model.
        passes = 3 * DISTIL.batch_size * (2 if searching else key["ratio"])
        floor = passes * problem.budget.full / matmul_rate(self.asked.device, self.now)
        return [{"ms_a_student": 1000 * seconds / k, "floor_ms": 1000 * floor}]

    def show(self, rows: list[Row]) -> None:
        """Print medians; draw those of this processor."""
        super().show(rows)
        if self.asked.picture:
            measured = [row for row in rows if row["processor"] == describe(self.asked.device)]
            write_picture(figure(measured), self.asked.picture)


def matmul_rate(device: str, now: Callable[[], float]) -> float:
    """Return FLOP/s of a large matmul, in the dtype that a search takes."""
    side, dtype = (2048 if device == "cpu" else 8192), matmul_dtype("auto", device)
    left, right = (torch.randn(side, side, device=device, dtype=dtype) for _ in range(2))
    seconds = min(seconds_of(lambda: torch.mm(left, right), 1, 1, now) for _ in range(5))
    return 2 * side**3 / seconds


def figure(rows: list[dict[str, Any]]) -> go.Figure:
    """Draw milliseconds a student, and the floor: a panel for each field that is varied."""
    titles = {"k": "students at once (K)", "tokens": "tokens a sequence", "ratio": "FLOPs ratio"}
    drawn = make_subplots(cols=3, horizontal_spacing=0.08, shared_yaxes=True)
    for column, (panel, title) in enumerate(titles.items(), start=1):
        for searching, colour in ((True, BLUE), (False, VERMILLION)):
            line_rows = [r for r in rows if r["panel"] == panel and r["searching"] is searching]
            name = "searching" if searching else "after the cut"
            for key, label, line in (
                ("ms_a_student", name, {"color": colour, "width": 2}),
                ("floor_ms", "matmuls alone", {"color": GREY, "width": 1, "dash": "dot"}),
            ):
                drawn.add_scatter(
                    x=[row[panel] for row in line_rows],
                    y=[row[key] for row in line_rows],
                    name=label,
                    legendgroup=label,
                    # Each label once: this panel has them all.
                    showlegend=panel == "tokens" and (searching or label == name),
                    mode="lines+markers" if key == "ms_a_student" else "lines",
                    line=line,
                    row=1,
                    col=column,
                )
        ticks = sorted({row[panel] for row in rows if row["panel"] == panel})
        drawn.update_xaxes(
            {
                **AXIS,
                "type": "log",
                "title": title,
                "tickangle": 0,
                "tickvals": ticks,
                "ticktext": ticks,
            },
            row=1,
            col=column,
        )
    drawn.update_yaxes({**AXIS, "type": "log", "dtick": 1})
    drawn.update_yaxes(title="ms a step and student", row=1, col=1)
    return drawn.update_layout(
        **LAYOUT,
        width=900,
        height=380,
        margin={"t": 50, "r": 20},
        legend={"orientation": "h", "y": 1.15},
    )


class BertBase(Steps):
    """What does a study take at BERT-base's size: a random model, 12 layers, 768 wide?

    Parts are a step of the elastic training (three sizes of 32 rows), one of a model that trains
    alone at a quarter of the FLOPs, and a row of the teacher's answers and of a score.
    """

    name = "bert_base"
    seeds = (0,)
    grid = {
        "part": ("elastic step", "lone step", "a row of the teacher", "a row of a quarter"),
        "tokens": (128,),
    }
    groups = ("processor", "threads", "tokens", "part")
    means = {"seconds": ".4f"}

    def prepare(self, key: Row) -> Problem:
        """Make a model; every text has the length."""
        folder, length = self.scratch / str(key["tokens"]), key["tokens"]
        sizes = {"hidden_size": 768, "num_hidden_layers": 12, "intermediate_size": 3072}
        return made_up.make_problem(
            *(made_up.make_checkpoint(folder / "model", **sizes), length, self.asked.device),
            train=384,
            alpha=64,
            lengths=(length, length),
            cache=folder / "cache",
        )

    def rows(self, key: Row, problem: Problem) -> list[Row]:
        """Time one part."""
        part, alone = key["part"], replace(DISTIL, target_ratio=0.25)
        if part == "lone step":
            return [{"seconds": self.seconds_of_search([alone], problem, key["seed"])}]
        if part == "elastic step":
            warm_up, steps = self.counts
            method = ElasticSearch(search_steps=0, elastic=replace(ELASTIC, epochs=100))
            watch = Stopwatch("elastic", steps, warm_up, self.now)
            search_of = ElasticSearch.search([method], problem, seed=0, progress=watch)
            return [{"seconds": watch.seconds_of(search_of)}]
        model = problem.teacher
        if part == "a row of a quarter":
            model = search(replace(alone, stages=()), problem, 0).model
        rows = problem.alpha
        once = lambda: predict(model, rows, self.asked.device)  # noqa: E731
        return [{"seconds": seconds_of(once, 1, 1, self.now) / len(rows)}]


def padded(problem: Problem) -> Problem:
    """Return the problem with all batches padded to its longest text."""
    train, alpha = (
        PaddedSplit(**{name: getattr(split, name) for name in split.__dataclass_fields__})
        for split in (problem.train, problem.alpha)
    )
    return replace(problem, train=train, alpha=alpha)


def describe(device: str) -> str:
    """Return the name of the processor that computes."""
    if torch.device(device).type == "cuda":
        return torch.cuda.get_device_name(device)
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    return f"{(names or [platform.processor()])[0]}, {os.cpu_count()} cores"
