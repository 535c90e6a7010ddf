"""What every method does on a GPU or on the stand-in for one, beside what it does on a CPU.

    LD_PRELOAD=stand_in.so python -m tests.gpu.driver CHECKPOINT MASKED_LM FOLDER
    python -m tests.gpu.driver CHECKPOINT MASKED_LM FOLDER

The second takes the real one, where torch was built for CUDA. CHECKPOINT is the tiny BERT of the
tests, MASKED_LM their tiny model of masked words. Writes FOLDER/found.json, what `Found` has of
each of `METHODS`; FOLDER/sees.json, when it is noticed that the host waits; FOLDER/recorded.json,
recorded steps beside plain ones; FOLDER/run, a whole study; FOLDER/products.json, its matrix
products by type; and FOLDER/numbers, a study of a task of numbers.
"""

from __future__ import annotations

import copy
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from optuna.distributions import FloatDistribution
from rich.console import Console
from torch import Tensor

from maskfront import Study
from objectives.device import on_device, quiet_libraries, to_device
from objectives.knobs import with_knobs
from objectives.measures.budget import Budget
from objectives.measures.evaluate import predict, score
from objectives.measures.latency import Conditions, Latency
from objectives.methods.baselines.group_lasso import GroupLasso
from objectives.methods.baselines.head_importance import HeadImportance
from objectives.methods.baselines.low_rank import LowRank
from objectives.methods.baselines.magnitude_pruning import MagnitudePruning
from objectives.methods.baselines.random_pruning import RandomPruning
from objectives.methods.binary_bert import BinaryBert
from objectives.methods.cells.base.shared_cells import SharedCells
from objectives.methods.cells.cell_search import CellSearch
from objectives.methods.cross_distillation import CrossDistillation
from objectives.methods.elastic.elastic_search import ElasticSearch
from objectives.methods.fisher_pruning import FisherPruning
from objectives.methods.fisher_search import FisherSearch
from objectives.methods.mask_search import PRESETS, MaskSearch
from objectives.methods.mrem import Mrem
from objectives.methods.polish import Polish
from objectives.methods.sandwich import Sandwich
from objectives.methods.ternary_bert import TernaryBert
from objectives.methods.width_search import WidthSearch
from objectives.problem import Problem
from objectives.pruning.staged_method import StagedMethod
from objectives.search_method import SearchResult
from objectives.session import Session
from objectives.students.cells.graph import Node
from objectives.students.cells.graph_space import GraphSpace
from objectives.text.augmentation import Augmentation
from objectives.text.task import Task
from objectives.training.stages import Stage
from objectives.workbench.inputs import read_inputs
from objectives.workbench.teacher import Teacher
from objectives.workbench.workbench import Workbench, prepare
from tests.bert_variants import write_student
from tests.conftest import TINY, graded_rows, planted_rows
from tests.gpu.cuda import Cuda
from tests.gpu.stand_in import StandIn, Wait
from tests.launching import run_study
from tests.objectives.conformance import RecordingProgress, run, training_of
from tests.objectives.methods.test_polish import cut_to, write_trials

SEARCH = Stage(name="search", epochs=0.375, learning_rate=1e-3, loss="prediction", searches=True)
RECOVER = Stage(name="recover", epochs=0.375, learning_rate=1e-3, loss="prediction+hidden")
INTERMEDIATE = replace(RECOVER, loss="intermediate")

SEARCH_INSIDE = replace(SEARCH, name="search, intermediate", loss="intermediate")
BEST = replace(RECOVER, name="best", loss="prediction", start="student", keep="best")
STILL = replace(RECOVER, learning_rate=1e-9, quantised=True)
ELASTIC = ElasticSearch(elastic=replace(RECOVER, name="elastic"), smallest=0.2)
RANKED = {"start": "fisher"}
"""Where all alphas start alike, three steps leave ties, which rounding decides."""

METHODS: dict[str, StagedMethod | CellSearch] = {
    "FisherSearch": FisherSearch(stages=(RECOVER,)),
    "FisherSearch, all spaces": FisherSearch(
        stages=(RECOVER,), spaces=("heads", "ffn", "qk", "v", "input_qkv", "layers")
    ),
    "MaskSearch": MaskSearch(stages=(SEARCH, INTERMEDIATE)),
    "MaskSearch, all spaces": MaskSearch(
        stages=(SEARCH, RECOVER), spaces=("heads", "ffn", "qk", "v", "input_qkv", "layers")
    ),
    "MaskSearch, seed": MaskSearch(stages=(SEARCH_INSIDE, BEST), **PRESETS["seed"] | RANKED),
    "MaskSearch, dap": MaskSearch(stages=(SEARCH, RECOVER), **PRESETS["dap"] | RANKED),
    "MaskSearch, milliseconds": MaskSearch(stages=(SEARCH, RECOVER)),
    "WidthSearch": WidthSearch(stages=(SEARCH, RECOVER), spaces=("heads", "ffn", "layers")),
    "ElasticSearch": ELASTIC,
    "ElasticSearch, heads given": replace(ELASTIC, heads=(2, 1, 3)),
    "ElasticSearch, neurons given": replace(ELASTIC, ffn=(10, 20, 30)),
    # The whole width begins as the teacher, with gradients of rounding alone: next to no steps.
    "ElasticSearch, depths": replace(
        ELASTIC,
        elastic=replace(RECOVER, name="elastic", learning_rate=1e-9),
        shares=(0.5, 1.0),
        depths=(0.67,),
        deepen=replace(RECOVER, name="depth"),
        depth=0.67,
    ),
    "CrossDistillation": CrossDistillation(stages=(RECOVER,), rows=64),
    "FisherPruning": FisherPruning(stages=(RECOVER,)),
    "HeadImportance": HeadImportance(stages=(RECOVER,)),
    "MagnitudePruning": MagnitudePruning(stages=(RECOVER,)),
    "MagnitudePruning, sparse": MagnitudePruning(
        stages=(RECOVER,), criterion="curvature", sparsity=0.2
    ),
    "LowRank": LowRank(stages=(replace(RECOVER, temperature=2.0),)),
    # It begins as the teacher, too: so next to no steps but those of the penalty.
    "GroupLasso": GroupLasso(stages=(replace(SEARCH, learning_rate=1e-9), RECOVER), penalty=1e6),
    "RandomPruning": RandomPruning(stages=(RECOVER,)),
    # Without bits: where a last digit turns a code, two devices part.
    "Mrem": Mrem(
        weight_bits=32, input_bits=32, embedding_bits=32, rows=64, modules=2, steps=3, batch_size=16
    ),
    "Sandwich": Sandwich(stages=(RECOVER,)),
    "Polish": Polish(trials="trials", stages=(RECOVER,)),
    "CellSearch": CellSearch(
        width=16, operations=("conv3", "attention", "max3"), epochs=0.375, learning_rate=1e-3
    ),
    "CellSearch, shared": CellSearch(
        width=16,
        nodes=(Node((0,), ("dynamic3",)), Node((0, 1), ("positions", "identity"), "product")),
        epochs=0.375,
        learning_rate=1e-3,
        shared=SharedCells(
            space=GraphSpace(
                nodes=2,
                operations=("dynamic3", "positions", "identity", "none"),
                combinations=("add", "product"),
            ),
            epochs=0.375,
            learning_rate=1e-3,
        ),
    ),
    # A last digit may turn a code, after which two trainings part: so next to no steps.
    "TernaryBert": TernaryBert(stages=(STILL,), input_bits=32),
    "BinaryBert": BinaryBert(
        stages=(replace(STILL, name="ternary"), replace(STILL, name="binary")), input_bits=32
    ),
}
LOOPS = {
    "Mrem": "members learn one after another",
    "LowRank": "students of unlike ranks are trained one after another",
    "CellSearch": "members learn one after another",
    "CellSearch, shared": "members learn one after another",
    "MaskSearch, seed": "the heads to close are chosen student by student",
    "TernaryBert": "weights are rounded student by student",
    "BinaryBert": "each student is trained alone",
}
"""Methods whose steps ask more of it the more students there are."""
ONE_TRAINING = {
    name: "the student of all is trained once, however many ask"
    for name, method in METHODS.items()
    if isinstance(method, ElasticSearch)
}
"""Methods whose steps do not depend on how many students there are."""
LATENCY = Latency(
    TINY,
    Conditions("stand-in", 1, 1, 24),
    heads=(0, 1, 2, 4),
    ffn=(0, 24, 48),
    milliseconds=((0.0, 1.0, 2.0), (1.0, 2.0, 3.0), (1.5, 2.5, 3.5), (2.5, 3.5, 4.5)),
    rest=0.5,
)
RATIOS = (0.35, 0.6)
TEACHER = Teacher(
    checkpoint="tiny", epochs=6, batch_size=16, learning_rate=3e-3, precision="float32"
)
TASK = Task(name="planted", data=planted_rows, max_length=24, alpha=64, select=48, heldout=48)
NUMBERS = replace(TASK, data=graded_rows, metric="pearson_spearman")


def make_gpu(*, bfloat16: bool) -> StandIn | Cuda:
    """The real one if this torch knows any; it multiplies in bfloat16 or does not."""
    if torch.version.cuda is None:
        return StandIn(bfloat16=bfloat16)
    return Cuda(bfloat16=bfloat16)


class Watched(RecordingProgress):
    """What a step asks of the device, and where the host waits for it."""

    def __init__(self, gpu: StandIn | Cuda) -> None:
        super().__init__()
        self.gpu = gpu
        self.waits: set[Wait] = set()
        self.operations: list[int] = []
        self.trains = True

    def begin(self, stage: str, steps: int, done: int = 0) -> None:
        super().begin(stage, steps, done)
        self.trains = stage != "choose units"  # each student's alone, before any step
        self._forget()

    def advance(self) -> None:
        if self.taken[-1] and self.trains:  # the first step also makes what the others go on with
            self.waits.update(self.gpu.waits)
            self.operations.append(self.gpu.operations)
        self._forget()
        super().advance()

    def _forget(self) -> None:
        self.gpu.waits.clear()
        self.gpu.operations = 0


@dataclass(frozen=True)
class Found:
    """Of one method, with the `RATIOS`."""

    same_architectures: bool
    """On the GPU, together and alone, and on the CPU."""
    from_alone: float
    """How far the logits of a student of them all lie from those of the same one alone."""
    from_cpu: float
    """And from those of the same one on the CPU."""
    waits: list[Wait]
    """In the steps, all but the first of a stage."""
    operations: list[int]
    """Of each of these steps."""
    operations_of_twice: list[int]
    """The same for twice as many students of the same sizes; nothing where that says nothing."""


def on_gpu(bench: Workbench) -> Problem:
    """The same problem on the device."""
    problem = bench.problem
    teacher, student = (
        to_device(copy.deepcopy(model), "cuda") for model in (problem.teacher, problem.student)
    )
    return replace(
        problem,
        device="cuda",
        teacher=teacher,
        student=student,
        teacher_logits=problem.teacher_logits.to("cuda"),
        alpha_logits=problem.alpha_logits.to("cuda"),
        select_score=partial(score, split=bench.select, metric=bench.metric, device="cuda"),
    )


def examine(
    method: StagedMethod | CellSearch, bench: Workbench, gpu: StandIn | Cuda, *, twice: bool
) -> Found:
    """Search on both devices; compare."""
    members: list[CellSearch] | list[Polish] | list[StagedMethod]
    if isinstance(method, CellSearch):
        members = [replace(method, learning_rate=method.learning_rate * ratio) for ratio in RATIOS]
    elif isinstance(method, Polish):
        members = [replace(method, trial=number) for number in range(len(RATIOS))]
    else:
        members = [with_knobs(method, {"target_ratio": ratio}) for ratio in RATIOS]
    with gpu.plugged_in():
        problem = on_gpu(bench)
        watched, watched_twice = Watched(gpu), Watched(gpu)
        together = run(members, problem, watched)
        if twice:
            run(members * 2, problem, watched_twice)
        (alone,) = run(members[:1], problem)
    on_cpu = run(members, bench.problem)
    logits = partial(logits_on_cpu, bench=bench, gpu=gpu)
    return Found(
        same_architectures=architectures(together) == architectures(on_cpu)
        and architectures([alone]) == architectures(together)[:1],
        from_alone=distance(logits(together[:1]), logits([alone])),
        from_cpu=distance(logits(together), logits(on_cpu)),
        waits=sorted(watched.waits),
        operations=watched.operations,
        operations_of_twice=watched_twice.operations,
    )


def architectures(outcomes: Sequence[Any]) -> list[Any]:
    """Of all; every one has to be a result."""
    assert all(isinstance(outcome, SearchResult) for outcome in outcomes), outcomes
    return [outcome.architecture for outcome in outcomes]


def logits_on_cpu(outcomes: Sequence[Any], bench: Workbench, gpu: StandIn | Cuda) -> list[Tensor]:
    """What each model says of the alpha split, after it came back from the device."""
    with gpu.plugged_in():
        return [predict(outcome.model, bench.problem.alpha, "cpu") for outcome in outcomes]


def distance(some: Sequence[Tensor], others: Sequence[Tensor]) -> float:
    """The largest difference."""
    return float(torch.stack([a - b for a, b in zip(some, others, strict=True)]).abs().max())


def what_it_sees(gpu: StandIn | Cuda) -> dict[str, int]:
    """1 if the device says that the host waits, for each of these; 0 if not, -1 if it refuses."""
    there, here = torch.ones(3, device="cuda"), torch.ones(3)
    does: dict[str, Callable[[], object]] = {
        "compute": lambda: (there * 2).sum(),
        "read a value": lambda: there.sum().item(),
        "bring it back": lambda: there.cpu(),
        "send": lambda: here.to("cuda"),
        "send without waiting": lambda: here.to("cuda", non_blocking=True),
        "send from pinned memory": lambda: on_device(here, "cuda"),
        "choose by truth": lambda: there[there > 0],
        "choose by places on the host": lambda: there[torch.tensor([0, 2])],
        "add a number": lambda: there + torch.tensor(1.0),
        "add a tensor of the host": lambda: there + here,
        "choose of the host": lambda: here[torch.tensor([0, 2], device="cuda")],
        "put into the host": lambda: here.index_put_((torch.tensor([0]),), there[:1]),
        "draw with a generator of the host": lambda: there.normal_(generator=torch.Generator()),
    }
    seen = {}
    for what, work in does.items():
        gpu.waits.clear()
        try:
            work()
            seen[what] = int(bool(gpu.waits))
        except RuntimeError:
            seen[what] = -1
    return seen


def launch_in_bfloat16(checkpoint: str, folder: Path) -> None:
    """A whole study on the device, in bfloat16: teacher, students, scores and files."""
    study = Study(
        name="gpu",
        task=TASK,
        teacher=replace(TEACHER, checkpoint=checkpoint, precision="auto"),
        method=FisherSearch(stages=(RECOVER,), precision="auto"),
        space={"target_ratio": FloatDistribution(0.3, 0.7)},
        trials=4,
        population=2,
    )
    gpu = make_gpu(bfloat16=True)
    with gpu.plugged_in():
        run_study(study, out=folder / "run", device="cuda", console=Console(quiet=True))
    products = {str(dtype): count for dtype, count in gpu.products.items()}
    (folder / "products.json").write_text(json.dumps(products))


def launch_with_numbers(checkpoint: str, masked_lm: str, folder: Path) -> None:
    """A study of a task of numbers, with more train rows and a student narrower than its teacher,
    so that hidden states are fitted."""
    study = Study(
        name="numbers",
        task=NUMBERS,
        teacher=replace(TEACHER, checkpoint=checkpoint),
        student=write_student(checkpoint, folder / "student", layers=TINY.layers),
        method=MaskSearch(stages=(SEARCH, RECOVER)),
        space={"target_ratio": FloatDistribution(0.3, 0.7)},
        augmentation=Augmentation(masked_lm=masked_lm, copies=1),
        trials=2,
        population=2,
    )
    with make_gpu(bfloat16=False).plugged_in():
        run_study(study, out=folder / "numbers", device="cuda", console=Console(quiet=True))


def recorded_beside_plain(problem: Problem) -> dict[str, float]:
    """Two trainings alike, one with recording off: how far their losses part at most, and how many
    recordings were made."""
    losses, recordings = [], 0
    for is_built in (torch.backends.cuda.is_built(), False):
        with patch("torch.backends.cuda.is_built", return_value=is_built):
            training = training_of(problem, "prediction+hidden", students=2)
        batches = training.batches(0, RecordingProgress())
        losses.append(torch.stack([training.step(batch, {}) for batch in batches]).cpu())
        recordings += len(training.recorded_steps)
    return {"apart": (losses[0] - losses[1]).abs().max().item(), "recordings": recordings}


def main() -> None:
    """Examine the methods that are named; or every method, and launch two studies."""
    quiet_libraries()
    checkpoint, masked_lm, folder, *named = sys.argv[1:]
    drive(checkpoint, masked_lm, Path(folder), named)


def drive(checkpoint: str, masked_lm: str, folder: Path, named: Sequence[str]) -> None:
    """Write what was found into the folder."""
    inputs = read_inputs(TASK, replace(TEACHER, checkpoint=checkpoint))
    cache = folder / "cache"
    bench = prepare(inputs, session=Session(cache=cache))
    gpu = make_gpu(bfloat16=False)
    timed = replace(bench.problem, budget=Budget(LATENCY, LATENCY.full))
    benches = {"MaskSearch, milliseconds": replace(bench, problem=timed)}
    results = [cut_to(ratio, bench.problem) for ratio in RATIOS]
    trials = write_trials(folder / "trials", results)
    found, failed = {}, []
    for name in named or METHODS:
        try:
            own = METHODS[name]
            if isinstance(own, StagedMethod):
                own = with_knobs(own, {"precision": "float32"})
            if isinstance(own, Polish):
                own = replace(own, trials=trials)
            twice = name not in LOOPS | ONE_TRAINING
            found[name] = asdict(examine(own, benches.get(name, bench), gpu, twice=twice))
        except Exception as error:  # time on a GPU may be short: told when all had their turn
            error.add_note(f"(method {name})")
            failed.append(error)
    (folder / "found.json").write_text(json.dumps(found))
    with gpu.plugged_in():
        (folder / "sees.json").write_text(json.dumps(what_it_sees(gpu)))
        (folder / "recorded.json").write_text(json.dumps(recorded_beside_plain(on_gpu(bench))))
    if not named:
        launch_in_bfloat16(checkpoint, folder)
        launch_with_numbers(checkpoint, masked_lm, folder)
    if failed:
        raise ExceptionGroup("some methods fail on this device", failed)


if __name__ == "__main__":
    main()
