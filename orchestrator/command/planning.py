"""Plan of `compress`: rows by role, cuts at once, then further training that the minutes allow."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import count, takewhile
from typing import Any, Self

from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

from objectives.combining.gate import vouching
from objectives.combining.members import enough
from objectives.device import choose_device, share_of_int8, share_of_training
from objectives.measures.evaluate import predict
from objectives.methods.cells.cell_search import CellSearch
from objectives.methods.cross_distillation import CrossDistillation
from objectives.methods.fisher_search import FisherSearch
from objectives.search_method import SearchMethod
from objectives.students.bert.adapters import as_bert
from objectives.students.bert.pretrained import Checkpoint
from objectives.text.task import Examples, tokenise
from objectives.training.stages import Stage
from orchestrator.runs.records import METHOD, FinishedTrial, RunRecord

Knobs = Mapping[str, Any]

_SOLVED_ON = 256  # rows that the weights of a cut model are solved on
METHODS: Mapping[str, SearchMethod] = {
    "cut": CrossDistillation(rows=_SOLVED_ON),
    "cells": CellSearch(operations=("conv5", "none")),
    # Layers that are a quarter as wide answer more like the model than a quarter of its layers.
    "distilled": FisherSearch(
        tolerance=0.01,
        stages=(Stage(name="recover", epochs=1, learning_rate=6e-4, loss="prediction+hidden"),),
    ),
}
METHODS_OF_STUDENT: Mapping[str, SearchMethod] = {
    "cells": METHODS["cells"],
    "distilled": FisherSearch(
        stages=(Stage(name="recover", epochs=1, learning_rate=1e-4, loss="prediction"),),
    ),
}
"""Methods of a call that names a student: it learns the answers, whole, instead of cuts."""
_EPOCHS = FloatDistribution(1e-3, 1e6, log=True)
SPACE: Mapping[str, BaseDistribution] = {
    "cut.target_ratio": FloatDistribution(0.05, 1),
    "cells.operations[0]": CategoricalDistribution(("none", "conv5")),
    "cells.operations[1]": CategoricalDistribution(("none", "conv5")),
    "cells.epochs": _EPOCHS,
    "cells.noised": IntDistribution(0, 3),
    "cells.width": CategoricalDistribution((128, 256)),
    "distilled.target_ratio": FloatDistribution(0.05, 1),
    "distilled.stages.recover.epochs": _EPOCHS,
}
# Copies of texts are made of the tokens of the student, which the model may not read.
SPACE_OF_STUDENT = {name: drawn for name, drawn in SPACE.items() if not name.startswith("cut.")} | {
    "cells.noised": IntDistribution(0, 0)
}

_ROUNDS = 8  # times at most that the unpruned model is timed; the first one warms it up
_TIMING = 5.0  # seconds after which it is not timed again: a large model takes long
_BATCH = 32
_ALIKE = 16  # texts of a pass that is timed
_TRIED = 200  # steps of the cell by which the machine's speed is told
_WHOLE = 4000  # steps after which a cell hardly gains any more
_FEWEST = 300  # fewest steps of a cell
_PASSES = 4  # times as long as an answer a step of training takes, forwards and backwards
_FEWEST_OF_CUT = 500  # fewest steps of a distilled cut
_ENOUGH = 1000  # texts from which on cells are trained
_NEARLY = 0.7  # share of the training with which a model counts as trained
# Share of the seconds that are planned: a machine may be slower later than it was at first.
_PLANNED = 0.8
_DISTILLED = 0.25
# Times as long as a cell of one block, 128 wide: of words alone, of two blocks, 256 wide.
_WORDS, _SECOND_BLOCK, _WIDE = 0.4, 1.5, 4
_NOISED = 3  # rows more for each text, for a cell that learns from such rows, too
ROUNDS = 4  # most plans of a call: each has better measurements of how long training takes here


@dataclass(frozen=True)
class AnswerTimes:
    """Seconds to answer one text, in batches on the device that trains."""

    teacher: float
    teaching: float  # of the teacher in the engine in which it answers train rows
    student: float | None = None  # of the checkpoint that `student` names, if any
    training: float = 1.0  # share of these seconds, of float32, that a pass of a training takes


@dataclass(frozen=True)
class RoleSizes:
    """Number of rows of each role."""

    train: int
    alpha: int
    select: int
    heldout: int
    unlabelled: int | None = None  # further rows that students learn from, if others have labels

    @classmethod
    def of(cls, texts: int, labels: int = 1) -> Self:
        """Split texts into roles; each role needs a row of each label."""
        # Of few texts half choose, as a gate needs about a hundred. Of many 4,000: a gate of 0.95
        # then takes 0.957 of the rows that vouch, and luck moves what it gives by 0.004.
        select = min(max(3 * texts // 10, min(texts // 2, 250)), 4000)
        heldout = min(texts // 5, 2000)
        alpha = max(labels, min(texts // 20, 500))
        return cls(texts - select - heldout - alpha, alpha, select, heldout)

    @property
    def taught(self) -> int:
        """Number of rows that students learn from."""
        return self.train + (self.unlabelled or 0)

    @property
    def judgeable(self) -> int:
        """Number of texts that may have any role."""
        return self.train + self.alpha + self.select + self.heldout

    @property
    def texts(self) -> int:
        """Number of all texts."""
        return self.judgeable + (self.unlabelled or 0)

    @property
    def many(self) -> bool:
        """Whether there are enough texts for cells, and for a teacher in int8 to pay."""
        return self.texts >= _ENOUGH

    @property
    def vouching(self) -> int:
        """Number of rows that decide whether a gate is passed."""
        return vouching(self.select)


def answer_times(
    model: str, student: str | None, some: Examples, max_length: int, *, in_int8: bool
) -> AnswerTimes:
    """Time the models on the device that trains. Raises UserError for one that is no classifier."""
    device = choose_device("auto")
    named = [model, student] if student else [model]
    teacher, *others = (_seconds_of_an_answer(name, some, max_length, device) for name in named)
    teaching = teacher * (share_of_int8() if in_int8 else 1.0)
    return AnswerTimes(teacher, teaching, next(iter(others), None), share_of_training(device))


def _seconds_of_an_answer(model: str, some: Examples, max_length: int, device: str) -> float:
    """Time one text of a model in batches on the device, at its fastest."""
    checkpoint = Checkpoint(model)
    checkpoint.bert_config()  # refuses what cannot be cut
    checkpoint.check_classifier()
    tokenizer = checkpoint.tokenizer
    split = tokenise(some, "some", tokenizer, max_length)
    checkpoint.check_token(tokenizer, split.last_token)
    classifier = as_bert(checkpoint.load_classifier())
    order = split.longest_first()
    # Texts of like length, as in passes over many; 64 of all lengths take a third more.
    parts = [split.at(order[start : start + _ALIKE]) for start in range(0, len(order), _ALIKE)]
    taken: list[float] = []
    while len(taken) < 2 or (len(taken) < _ROUNDS and sum(taken) < _TIMING):
        began = time.monotonic()
        for part in parts:
            predict(classifier, part, device)
        taken.append(time.monotonic() - began)
    return min(taken) / len(split)


def affordable(
    texts: int, unlabelled: int, seconds: float, speed: AnswerTimes, labels: int = 1
) -> RoleSizes:
    """Roles of the texts that the teacher answers in these seconds: of all, or of 1,000, 1,500,
    2,000, 3,000, 4,000 and so on, so that two calls on one machine take the same. Likewise those
    `unlabelled` that it answers besides."""

    def takes(number: int) -> float:
        train = RoleSizes.of(number).train
        return (number - train) * speed.teacher + train * speed.teaching

    number = _most(texts, seconds, takes)
    more, left = 0, seconds - takes(number)
    if unlabelled and number == texts and 1000 * speed.teaching <= left:
        more = _most(unlabelled, left, lambda rows: rows * speed.teaching)
    return replace(RoleSizes.of(number, labels), unlabelled=more or None)


def _most(number: int, seconds: float, takes: Callable[[int], float]) -> int:
    """The number, or the largest power of two, times 1,000 or 1,500, that takes these seconds at
    most; 1,000 if none does."""
    if takes(number) <= seconds:
        return number
    steps = (step << power for power in count() for step in (1000, 1500))
    fitting = takewhile(lambda step: takes(step) <= seconds, steps)
    return min(number, max((1000, *fitting)))


def more_texts(reached: float, share: float, texts: int) -> int | None:
    """Number of further texts with which such a model would pass; None if no number would do."""
    for more in (int(texts * 1.1**power) for power in range(1, 60)):
        rows = RoleSizes.of(more).vouching
        needed = enough(share, rows)
        if needed is not None and needed <= reached * rows:
            return more - texts
    return None


def at_once(sizes: RoleSizes, student: bool = False) -> list[Knobs]:
    """Cuts without training; and where there are enough texts for cells one that is hardly trained,
    which tells how fast this machine is. Of few texts a `student` that is named learns at once."""
    train = sizes.taught
    if not sizes.many:
        if student:
            return [_distilled(1.0, _FEWEST_OF_CUT, train)]
        return [_cut(ratio) for ratio in (0.8, 0.65, 0.5)]
    return [_cell(1, _TRIED, train), *([] if student else [_cut(0.65)])]


@dataclass
class _Plan:
    """Trials that a run lacks, as many as the seconds allow."""

    run: RunRecord
    left: float  # seconds that no trial of the plan takes
    knobs: list[Knobs] = field(default_factory=list)

    def want(self, knobs: Knobs, takes: float) -> None:
        """Add a trial that takes these seconds, if there is time for it and it is new."""
        if takes <= self.left and knobs not in self.knobs and not _had(self.run, knobs):
            self.knobs.append(knobs)
            self.left -= takes


def afterwards(run: RunRecord, sizes: RoleSizes, seconds: float, speed: AnswerTimes) -> list[Knobs]:
    """Plan trials after those of `at_once` for this many seconds, the most valuable first."""
    step = _seconds_of_a_step(run, sizes.taught)
    if step is None:
        return []
    plan = _Plan(run, _PLANNED * seconds)
    if not any(trial.knobs.get(METHOD) == "distilled" for trial in run.finished):
        _want_student(plan, sizes.taught, speed, plan.left / 2)
    _want_cells(plan, sizes.taught, speed, step)
    if not plan.knobs:
        _want_student(plan, sizes.taught, speed, plan.left)
    return plan.knobs


def _want_student(plan: _Plan, train: int, speed: AnswerTimes, seconds: float) -> None:
    """Want the student that is named, trained for as long as these seconds allow."""
    if speed.student is None:
        return
    epochs = "distilled.stages.recover.epochs"
    measured = (
        trial.seconds / (trial.knobs[epochs] * train / _BATCH)
        for trial in plan.run.finished
        if epochs in trial.knobs and trial.seconds  # 0 where a clock was set back
    )
    step = min(measured, default=_PASSES * _BATCH * speed.student * speed.training)
    steps = int(min(_WHOLE, seconds / step))
    if steps >= _FEWEST:
        plan.want(_distilled(1.0, steps, train), steps * step)


def _want_cells(plan: _Plan, train: int, speed: AnswerTimes, step: float) -> None:
    """Want cells, and a distilled cut if no student is named; a step of a cell takes so long."""
    steps = int(min(_WHOLE, plan.left / step))
    if steps < _FEWEST:
        return
    of_cell, of_words = steps * step, _WORDS * steps * step
    plain = _cell(1, steps, train)
    plan.want(plain, of_cell)
    plan.want(_cell(0, steps, train), of_words)
    if speed.student is None:
        _want_cut(plan, train, speed)
    made = [copies for trial in plan.run.finished if (copies := trial.knobs.get("cells.noised"))]
    of_copy = train * speed.teaching  # its answers, once for a run
    copies = made[0] if made else int(min(_NOISED, max(0.0, plan.left - of_cell) / of_copy))
    if speed.student is not None:
        copies = 0
    of_copies = 0.0 if made else copies * of_copy
    noised = _cell(1, steps, train, copies)
    plan.want(noised, of_cell + of_copies)
    plan.want(_cell(0, steps, train, copies), of_words + (noised not in plan.knobs) * of_copies)
    if (alone := _had(plan.run, plain)) and (more := _had(plan.run, noised)):
        pays = more.result.worth > alone.result.worth
        plan.want(_cell(2, steps, train, copies * pays), _SECOND_BLOCK * of_cell)
        steps = int(min(2 * _WHOLE, plan.left / (_WIDE * step)))
        if steps >= _WHOLE and speed.student is None:  # a named student has the time instead
            plan.want(_cell(1, steps, train, copies * pays, 256), steps * _WIDE * step)


def _want_cut(plan: _Plan, train: int, speed: AnswerTimes) -> None:
    """Want a distilled cut of the teacher, whose states of all rows are kept first."""
    of_teacher = speed.teacher * speed.training
    step, of_states = _PASSES * _BATCH * of_teacher * _DISTILLED, 1.5 * of_teacher * train
    steps = int(min(_WHOLE / 2, (plan.left - of_states) / step))
    if steps >= _FEWEST_OF_CUT:
        plan.want(_distilled(_DISTILLED, steps, train), steps * step + of_states)


def advice(run: RunRecord, sizes: RoleSizes) -> list[str]:
    """Say what more texts or more minutes would bring."""
    if not sizes.many:
        return [
            f"with {_ENOUGH:,} texts or more (these are {sizes.texts:,}) compress also trains "
            "small classifiers on your model's answers, which are several times as fast"
        ]
    steps = max((_steps(trial.knobs, sizes.taught) for trial in run.finished), default=0)
    if steps < 0.8 * _WHOLE:
        return [
            f"with more minutes the small classifiers would train for {_WHOLE:,} steps; now they "
            f"had {steps:,.0f} at most"
        ]
    return []


def _cut(ratio: float) -> Knobs:
    return {METHOD: "cut", "cut.target_ratio": ratio}


def _cell(blocks: int, steps: int, train: int, noised: int = 0, width: int = 128) -> Knobs:
    return {
        METHOD: "cells",
        "cells.operations[0]": "conv5" if blocks else "none",
        "cells.operations[1]": "conv5" if blocks == 2 else "none",
        "cells.noised": noised,
        "cells.width": width,
        "cells.epochs": steps * _BATCH / (train * (1 + noised)),
    }


def _distilled(ratio: float, steps: int, train: int) -> Knobs:
    return {
        METHOD: "distilled",
        "distilled.target_ratio": ratio,
        "distilled.stages.recover.epochs": steps * _BATCH / train,
    }


def _steps(knobs: Knobs, train: int) -> float:
    """Number of training steps of a cell, 0 of another model."""
    rows = train * (1 + int(knobs.get("cells.noised", 0)))
    return float(knobs.get("cells.epochs", 0)) * rows / _BATCH


def _seconds_of_a_step(run: RunRecord, train: int) -> float | None:
    """Seconds of a step of the plain cell, 128 wide, that trained longest on the texts alone."""
    plain = {name: value for name, value in _cell(1, 1, train).items() if name != "cells.epochs"}
    taken = [
        (_steps(trial.knobs, train), trial.seconds)
        for trial in run.finished
        if plain.items() <= trial.knobs.items() and trial.seconds
    ]
    if not taken:
        return None
    steps, seconds = max(taken)
    return seconds / steps


def _had(run: RunRecord, knobs: Knobs) -> FinishedTrial | None:
    """The first finished trial that was the same, and trained nearly as long."""
    trained = {name: value for name, value in knobs.items() if name.endswith("epochs")}
    for trial in run.finished:
        alike = trial.knobs.keys() == knobs.keys() and {**trial.knobs, **trained} == knobs
        if alike and all(trial.knobs[name] >= _NEARLY * value for name, value in trained.items()):
            return trial
    return None
