"""Definition of a study: a method, the knobs to tune, a task, a teacher, and a budget."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from optuna.distributions import BaseDistribution, CategoricalDistribution

from objectives.engines.names import Engine
from objectives.errors import (
    Checked,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    UserError,
    check_ranges,
    check_types,
    did_you_mean,
)
from objectives.measures.cost import CostName, check_priced
from objectives.measures.evaluate import Objective
from objectives.measures.latency import Latency
from objectives.search_method import SearchMethod
from objectives.text.augmentation import Augmentation
from objectives.text.task import Task
from objectives.workbench.fidelity import FULL, Fidelity
from objectives.workbench.inputs import Beside
from objectives.workbench.teacher import Teacher
from orchestrator.method_space import MethodSpace, applies, extremes
from orchestrator.optuna_private import holds
from orchestrator.runs.records import METHOD
from orchestrator.runs.results import LIMITED
from orchestrator.sampler import SamplerFactory, SamplerName

if TYPE_CHECKING:
    from transformers.configuration_utils import PreTrainedConfig

PopulationSize = PositiveInt | Literal["auto"]
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True, kw_only=True)
class Study(Checked):
    """Definition of a study. A study is never edited after its first trial: make a new one.

    A trial is the method with other values at some paths, the knobs drawn from `space`.
    """

    name: str
    """Letters, digits, '-', '_' and '.', first a letter or digit: it names the Optuna study and the
    run folder."""
    task: Task
    """Where the labelled text is."""
    teacher: Teacher
    """The classifier that the students learn from."""
    beside: tuple[Beside, ...] = ()
    """Other tasks, for methods that learn several (`Mas`, `Cas`). Trials are compared by `task`;
    what each is worth on the others is recorded with it, and their models lie beside its own."""
    method: SearchMethod | Mapping[str, SearchMethod]
    """How a student is found, with the settings of all trials but those in `space`. Several, each
    by a name, share one front: a trial draws the knob "method", one of the names, and then the
    knobs of that method alone (combined algorithm selection and hyperparameter optimisation,
    Thornton et al. 2013)."""
    space: Mapping[str, BaseDistribution]
    """Settings of the method, each with the Optuna distribution that it is drawn from: its fields
    ("target_ratio"), those of its stages ("stages.recover.learning_rate"), entries of its tuples
    ("temperature[0]"). Of several methods with their names in front ("cut.target_ratio")."""
    first: tuple[Mapping[str, Any], ...] = ()
    """Knobs of the first trials; those that one leaves out are drawn. Of several methods each names
    its "method"."""
    warm_start: tuple[str | Path, ...] = ()
    """Folders of earlier runs with the same method and knobs, of this task or others. The first
    trials, after `first`, take the largest and the smallest target ratio and the knobs of those
    runs' fronts, the most similar task's first: by rows, length, classes, their entropy and the
    teacher's metric."""
    student_layers: tuple[int, ...] | None = None
    """Layers of the teacher that the student starts with, such as (0, 2, 4); None keeps all."""
    student: str | None = None
    """A checkpoint that the student starts with instead, folder or name on the hub: a BERT of any
    depth and width, which learns the teacher's answers alone if it reads other tokens. Ratio 1 is
    then this student, unpruned."""
    cost: CostName = "flops"
    """Cost that is minimised beside the metric, and in which budgets and ratios are counted:
    "flops"; "params", embeddings included; "units" of the method's spaces; "latency", milliseconds
    on the device of the launch, for the spaces heads, ffn and layers; "bytes" of the file of the
    model's weights; or "bitops", FLOPs times bits. The last two count bits, which a budget does
    not: with them `target_ratio` is a share of the FLOPs. FLOPs, parameters and bytes are recorded
    in any case."""
    engine: Engine = "eager"
    """Engine that serves the models, and which the cost "latency" times: torch as it is,
    "bfloat16", "compile"; on the CPU "onnxruntime" or "onnxruntime-int8", with the extra "onnx".
    Where it has fewer than 32 bits models are scored in it too. `weight_bits` change no
    milliseconds."""
    latency_batch: PositiveInt = 1
    """Sequences in the forward pass that the cost "latency" times."""
    objective: Objective = "metric"
    """Objective by which students are compared, beside the cost: the task's "metric", or the
    "divergence" of their answers from the teacher's, which is minimised. It takes no labels, and
    tells students apart whose metrics are equal but for luck: KL(teacher || student) in nats, the
    mean over the rows of the selection split; where labels are numbers, the mean squared
    difference. The metric is measured and reported in any case."""
    at_least: Mapping[str, float] = field(default_factory=dict)
    """Aims that a model of the front meets, such as {"metric": 0.85} on the selection split. A
    trial that misses one is on no front, and samplers know by how far (Optuna's constraints)."""
    at_most: Mapping[str, float] = field(default_factory=dict)
    """Upper bounds on members of the front, by name: "ratio", "flops", "params", "bytes",
    "divergence"; and "ms", where these are what the study counts."""
    seq_len: PositiveInt | None = None
    """Length, in tokens, at which FLOPs and latency are taken; None takes the task's max_length."""
    augmentation: Augmentation | None = None
    """More train rows for the students, not for the teacher; an epoch is a pass over all."""
    fidelity: Fidelity = FULL
    """How much of the full training each trial gets: less is cheaper, and is on no front with more.
    Begin a full study with what a cheap one found by `warm_start`."""
    sampler: SamplerName | SamplerFactory | None = "tpe"
    """Sampler of the knobs: Optuna's "tpe", "gp", "nsgaii" or "random"; a class of samplers, such
    as `QMCSampler`; or a function from a seed to a sampler, such as `lambda seed:
    QMCSampler(scramble=True, seed=seed)`. None draws nothing: the trials are those of `first`, and
    one that failed is tried again by the next launch. It decides no result, and so may change from
    launch to launch."""
    trials: PositiveInt = 12
    """Trials wanted. Launching again continues up to this number."""
    patience: PositiveInt | None = None
    """Finished trials, >= 1, in a row after which a launch stops if the hypervolume of the front
    has not grown with them, whichever worker ran them; None never stops for that. The volume is
    counted from the unpruned model's cost and a metric of 0 (of a divergence from infinity). The
    next launch counts again from 0, and so takes as many trials again at least."""
    trial_timeout: PositiveFloat | None = None
    """Seconds, > 0, that the search of a trial may take, or of a population, whose trials share
    them; None sets no limit. What takes longer fails after the step that it is at, and the study
    goes on. What is made once for a run counts for the trial that makes it."""
    population: PopulationSize = "auto"
    """Trials that train together as one program; fewer if memory does not hold so many. "auto": on
    a GPU trials / (4 x workers), at most 32, so that the sampler sees results at least four times;
    on a CPU, which gains little by more, 1."""
    seed: NonNegativeInt = 0
    """Seeds data order, teacher, augmentation and sampler."""

    def __post_init__(self) -> None:
        self._check_parts()
        self._check_settings()
        self._check_objectives()
        self._check_aims()
        self._check_space()
        self._check_first()

    def _check_parts(self) -> None:
        if not isinstance(self.teacher, Teacher):
            raise UserError(
                f"Study.teacher is {self.teacher!r}; give a Teacher(checkpoint=...) with a folder "
                "or a name on the hub"
            )
        methods = self.methods.values()
        if not methods or not all(isinstance(method, SearchMethod) for method in methods):
            raise UserError(
                f"Study.method is {self.method!r}; give one method, such as FisherSearch(), "
                "or a dict of methods by name"
            )
        if not isinstance(self.space, Mapping):
            raise UserError(
                f"Study.space is {self.space!r}; it must be a dict of knobs: "
                "{'target_ratio': FloatDistribution(0.1, 0.9)}"
            )
        check_types(self)

    def _check_settings(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise UserError(
                f"Study.name is {self.name!r}; use letters, digits, '-', '_' and '.', "
                "and begin with a letter or digit"
            )
        self._check_beside()
        if self.student is not None and self.student_layers is not None:
            raise UserError(
                "Study.student and Study.student_layers are both set; a student is either a "
                "checkpoint of its own or some layers of the teacher"
            )
        samplers = get_args(SamplerName)
        good = callable(self.sampler) or self.sampler in (None, *samplers)
        each = f"one of {', '.join(samplers)}, a function from a seed to a sampler, or None"
        small = (self.seed < 2**32, "below 2**32")  # as numpy takes
        check_ranges(self, sampler=(good, each), seed=small)

    def _check_beside(self) -> None:
        """Refuse extra tasks with equal names, or if no method learns them."""
        names = [extra.task.name for extra in self.beside]
        for name in names:
            if not _NAME.fullmatch(name) or [self.task.name, *names].count(name) > 1:
                raise UserError(
                    f"Study.beside has a task named '{name}'; give each a name of its own, of "
                    "letters, digits, '-', '_' and '.', that begins with a letter or digit"
                )
        for method in self.methods.values():
            kind = type(method).__name__
            if self.beside and not method.learns_beside:
                raise UserError(f"Study.beside names tasks, but {kind} learns one; leave them out")
            if method.learns_beside and not self.beside:
                raise UserError(f"{kind} learns several tasks; name the others in Study.beside")

    def _check_first(self) -> None:
        """Refuse first trials with other knobs; without a sampler they are all trials."""
        distributions = self.knobs
        for knobs in self.first:
            if self._several and METHOD not in knobs:
                raise UserError(f"Study.first holds {knobs!r}; add the method's name as 'method'")
            for name, value in knobs.items():
                if name not in distributions or not applies(name, knobs):
                    names = sorted(path for path in distributions if applies(path, knobs))
                    raise UserError(
                        f"Study.first names '{name}', which is not among "
                        f"{', '.join(names)}{did_you_mean(name, names)}"
                    )
                if not holds(distributions[name], value):
                    raise UserError(
                        f"Study.first has {name} = {value!r}, which is outside "
                        f"{distributions[name]}; change the value, or the range in Study.space"
                    )
        lacking = any(
            {name for name in distributions if applies(name, knobs)} - knobs.keys()
            for knobs in self.first
        )
        if self.sampler is None and (lacking or self.trials > len(self.first)):
            raise UserError(
                f"Study.sampler is None, so no knobs are drawn: give all knobs of all "
                f"{self.trials} trials in Study.first, or set a sampler"
            )
        if self.sampler is None and self.warm_start:
            raise UserError(
                "Study.sampler is None, so the trials are those of Study.first; leave warm_start "
                "out, or set a sampler"
            )

    def _check_space(self) -> None:
        """Refuse knobs that belong to no method, and check each method's part of the space."""
        for name in self.methods if self._several else ():
            if not re.fullmatch(r"[A-Za-z0-9_-]+", name) or name == METHOD:
                raise UserError(
                    f"Study.method names '{name}'; use letters, digits, '-' and '_', but not "
                    f"the name '{METHOD}'"
                )
        if not self._several and METHOD in self.space:
            raise UserError(
                f"Study.space names '{METHOD}', which chooses among several methods; rename the "
                "field"
            )
        for path in self.space if self._several else ():
            if path.partition(".")[0] not in self.methods:
                raise UserError(
                    f"Study.space names '{path}', which must begin with the name of a "
                    f"method: {', '.join(f'{name}.' for name in self.methods)}"
                )
        for part in self._parts.values():
            part.check()

    def check_shapes(self, student: PreTrainedConfig, teacher: PreTrainedConfig) -> None:
        """Raise UserError for settings that a trial may get and that do not go with these sizes:
        each knob at its extremes, the others at their lowest."""
        for part in self._parts.values():
            part.check_shapes(student, teacher)

    @property
    def least_vocabulary(self) -> float:
        """The smallest share of the word pieces that a trial may keep."""
        return min(part.least_vocabulary for part in self._parts.values())

    @property
    def _several(self) -> bool:
        return isinstance(self.method, Mapping)

    @property
    def methods(self) -> Mapping[str, SearchMethod]:
        """Methods by name; a single method has the empty name."""
        return self.method if isinstance(self.method, Mapping) else {"": self.method}

    @property
    def method_name(self) -> str:
        """Names for records: "FisherSearch"; "cut: FisherSearch, cells: CellSearch"."""
        names = ((name, type(method).__name__) for name, method in self.methods.items())
        return ", ".join(f"{name}: {kind}" if name else kind for name, kind in names)

    @property
    def spaces(self) -> tuple[str, ...]:
        """Kinds of units that the methods may search; empty if no method prunes."""
        kinds: list[str] = []
        for part in self._parts.values():
            kinds += getattr(part.method, "spaces", ())
            drawn = (knob for name, knob in part.space.items() if name.startswith("spaces["))
            kinds += (space for knob in drawn for space in extremes(knob))
        return tuple(dict.fromkeys(kinds))

    @property
    def knobs(self) -> dict[str, BaseDistribution]:
        """Distributions of all that is drawn, in this order; of several methods which one first."""
        which = {METHOD: CategoricalDistribution(tuple(self.methods))} if self._several else {}
        return {**which, **self.space}

    @property
    def _parts(self) -> dict[str, MethodSpace]:
        share = self.fidelity.epochs
        return {
            name: MethodSpace(method, _of_method(name, self.space), name and f"{name}.", share)
            for name, method in self.methods.items()
        }

    def at_once(self, device: str, workers: int = 1) -> int:
        """Number of trials that a worker trains together, if its device's memory holds them."""
        if self.population != "auto":
            return self.population
        return min(max(1, self.trials // (4 * workers)), 32) if device.startswith("cuda") else 1

    def _check_objectives(self) -> None:
        for method in self.methods.values():
            if self.cost not in method.costs:
                raise UserError(
                    f"Study.cost is {self.cost!r}, which {type(method).__name__} cannot count; it "
                    f"counts {', '.join(sorted(method.costs))}"
                )
        for name in ("engine", "latency_batch"):
            if self.cost != "latency" and getattr(self, name) != getattr(Study, name):
                raise UserError(
                    f"Study.{name} is {getattr(self, name)!r}, which only matters for latency, but "
                    f"Study.cost is {self.cost!r}; leave {name} out, or set cost='latency'"
                )
        if self.cost == "latency":
            check_priced("Study.cost 'latency'", Latency.priced, self.spaces)

    def _check_aims(self) -> None:
        bounds = {"at_least": (self.at_least, ("metric",)), "at_most": (self.at_most, LIMITED)}
        for where, (aims, names) in bounds.items():
            for name in aims:
                if name not in names:
                    raise UserError(
                        f"Study.{where} names '{name}', which is not among {', '.join(names)}"
                    )
                if name == "ms" and self.cost != "latency":
                    raise UserError("Study.at_most names 'ms', which only cost='latency' measures")

    def trial_method(self, knobs: Mapping[str, Any]) -> SearchMethod:
        """The method of a trial with these knobs. Raises UserError for a value out of range."""
        name = knobs[METHOD] if self._several else ""
        return self._parts[name].trial_method(_of_method(name, knobs))


def _of_method(name: str, knobs: Mapping[str, Any]) -> dict[str, Any]:
    """Knobs of one of several methods, by the method's paths; the empty name has all."""
    prefix = f"{name}."
    chosen = ((path, v) for path, v in knobs.items() if not name or path.startswith(prefix))
    return {path.removeprefix(prefix): value for path, value in chosen}
