"""A problem with what scores its results: prepared once a launch, hidden from the searches."""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import BertForSequenceClassification, PreTrainedModel, PreTrainedTokenizerBase

from objectives.engines.names import BITS, FULL_BITS, Engine
from objectives.engines.serving import make_runnable
from objectives.errors import UserError
from objectives.measures.bits import BitOps, Bytes
from objectives.measures.bootstrap import Worth
from objectives.measures.budget import Budget
from objectives.measures.cost import Cost, CostName, Flops, Params, Units
from objectives.measures.evaluate import (
    Objective,
    divergence,
    less_thresholds,
    metric_with_interval,
    nearness,
    predict,
    predict_with,
    score,
)
from objectives.measures.latency import Latency, load_latency, milliseconds_beside
from objectives.measures.measured import WrongCostError, measured_costs
from objectives.measures.number_scale import NumberScale, last_layer
from objectives.measures.score import Score
from objectives.metric import Metric
from objectives.problem import NoBert, Problem, Words
from objectives.session import Session
from objectives.students.bert.architecture import BertArchitecture, BertShape
from objectives.students.bert.cutting import shape_of
from objectives.students.bert.pretrained import SEVERAL, named_outputs
from objectives.students.bert.student import keep_layers, load_student
from objectives.students.families import family_for
from objectives.students.family import Architecture
from objectives.text.data import Split
from objectives.text.task import ROLES, Examples, tokenise
from objectives.text.vocabulary import Vocabulary
from objectives.training.population import EMBEDDINGS
from objectives.workbench.answering import Answering
from objectives.workbench.fidelity import FULL, Fidelity
from objectives.workbench.inputs import (
    JUDGING,
    Inputs,
    check_tokens,
    features_of,
    notes_on_rows,
    rows_of_students,
)
from objectives.workbench.teacher import check_answers, teacher_notes, weak_teacher_note, words_note
from objectives.workbench.words import answers_of_words, worth_of_words

_OF_ANY: tuple[CostName, ...] = ("flops", "params", "bytes")
"""Costs of any model."""
_LEARNT = 256
"""Train rows on which students are compared with their teacher."""
_SOLVED, _RIDGE = 4096, 1e-3
"""Train rows from which a new student's classifier is solved, and the ridge: the square by which
training is assumed to move a pooled state, which is in [-1, 1]."""


@dataclass(frozen=True, eq=False)
class Workbench:
    """A problem, with what scores and saves its results; no search method sees it."""

    problem: Problem
    select: Split
    heldout: Split
    learnt: Split
    """A few rows of `Problem.train`, to measure overfitting."""
    texts: Mapping[str, Examples]
    """Text of "select", "heldout" and "train" (`learnt`), for models of a smaller vocabulary."""
    teacher_answers: Mapping[str, Tensor]
    """Logits (rows, C) of the teacher on these roles, in float32."""
    engine: Engine
    metric: Metric
    tokenizer: PreTrainedTokenizerBase
    unpruned: Score
    """Score of the teacher; its widths are those of the model of ratio 1."""
    unpruned_answers: Mapping[str, Tensor]
    """Logits (rows, C) of the teacher on "select" and "heldout" in the engine."""
    words: Worth | None
    """Scores of tf-idf with a linear model; None if the task has no labels."""
    flops: Flops
    """FLOPs of the student, cut or masked."""
    flops_full: int
    """FLOPs of the model of ratio 1."""
    notes: tuple[str, ...]
    """Notes for the user on rows, labels and teacher."""
    labels: tuple[str, ...] = ()
    """Labels that have thresholds of their own."""
    features: Mapping[str, float] = field(default_factory=dict)
    """Features that describe the task: see `features_of`."""
    beside: Mapping[str, "Workbench"] = field(default_factory=dict)
    """Workbenches of the extra tasks, by name."""

    def answers(self, model: PreTrainedModel, architecture: Architecture) -> dict[str, Tensor]:
        """Logits (rows, C) float32 of the student on "select", "heldout", "train" in the engine."""
        splits, tokenizer = self._splits, self.tokenizer_of(architecture)
        if tokenizer is not self.tokenizer:
            for role, split in splits.items():
                tokens = tokenise(
                    self.texts[role], role, tokenizer, split.max_length, split.truncation
                )
                splits[role] = replace(tokens, labels=split.labels)
        return served_answers(self.engine, model, splits, self.problem.device)

    def score(
        self,
        model: PreTrainedModel,
        architecture: Architecture,
        answers: Mapping[str, Tensor] | None = None,
    ) -> Score:
        """Score a student by its `answers`. Raises WrongCostError if costs are not as predicted."""
        on_cpu = model.device.type == "cpu"  # a GPU computes faster than torch looks shapes up
        measured = measured_costs(model, self.flops.seq_len, meta=on_cpu)
        costs = (self.flops, self.problem.counted.cost)
        predicted = family_for(architecture).predicted(architecture, costs)
        for unit, number in measured.items():
            if number != predicted.get(unit, number):
                raise WrongCostError(
                    f"the model has {number:,} {unit}, but its architecture has "
                    f"{predicted[unit]:,}; a method must return both cut alike"
                )
        return score_of(
            self.answers(model, architecture) if answers is None else answers,
            self.teacher_answers,
            self._splits,
            self.metric,
            self.labels,
            params=measured["params"],
            bytes=measured["bytes"],
            cost=self._cost(model, predicted | measured),
            flops=measured[self.flops.unit],
            widths=architecture.sizes(),
        )

    def _cost(self, model: PreTrainedModel, costs: Mapping[str, float]) -> float:
        """Cost of a model in the unit of the study; timed if nothing predicts it."""
        cost = self.problem.counted.cost
        if isinstance(cost, Latency) and cost.unit not in costs:
            return milliseconds_beside(model, self.problem.student, cost)
        return costs[cost.unit]

    def tokenizer_of(self, architecture: Architecture) -> PreTrainedTokenizerBase:
        """Tokenizer for a model of this architecture."""
        pieces = family_for(architecture).vocabulary(architecture)
        return self.tokenizer if pieces is None else self.problem.vocabulary.tokenizer_of(pieces)

    @property
    def _splits(self) -> dict[str, Split]:
        return {"select": self.select, "heldout": self.heldout, "train": self.learnt}


def prepare(
    inputs: Inputs,
    session: Session,
    *,
    cost: CostName = "flops",
    engine: Engine = "eager",
    latency_batch: int = 1,
    objective: Objective = "metric",
    spaces: tuple[str, ...] = (),
    fidelity: Fidelity = FULL,
) -> Workbench:
    """Tokenise, fine-tune the teacher if it needs it, score it, and load the student."""
    # Augmented and unlabelled rows come after the teacher: it learns from the labelled rows alone,
    # and from all whatever the `fidelity`. `cost` is what the study counts, "latency" by passes of
    # `latency_batch` sequences in the `engine`; `objective` is what it compares students by,
    # `spaces` the kinds of units that "units" counts. Of other tasks FLOPs count.
    beside = {
        name: prepare(extra, session, engine=engine, objective=objective, fidelity=fidelity)
        for name, extra in inputs.beside.items()
    }
    notes: list[str] = []

    def note(*lines: str | None) -> None:
        for line in filter(None, lines):
            session.progress.note(line)
            notes.append(line)

    task, text, teacher = inputs.task, inputs.text, inputs.teacher
    splits = {role: inputs.split(role) for role in ROLES}
    check_tokens(inputs, splits.values())
    note(*inputs.notes, *notes_on_rows(inputs, splits), *teacher_notes(teacher, text.label_names))
    answering = inputs.answering(splits["train"], session)
    bert = answering.bert
    answers = {
        role: answering.answer(splits[role], text.roles[role]) for role in (*JUDGING, "alpha")
    }
    if not task.labelled:
        splits |= {role: splits[role].answered(logits) for role, logits in answers.items()}
    labelled = splits["train"]
    train, rows, alpha = rows_of_students(inputs, splits, fidelity, session)
    student = _student(inputs, bert, session)
    sizes, counted, flops = _costs(
        inputs, answering, student, session, cost, engine, latency_batch, spaces
    )
    if inputs.only_answers and inputs.start is not None and sizes["cost"] == counted.full:
        note(
            f"the cost of the teacher is not known, as '{teacher.name}' {inputs.only_answers}: "
            "reports show that of ratio 1"
        )
    start = bert or student
    judging = {role: splits[role] for role in JUDGING}
    served = {role: answers[role] for role in JUDGING}
    if BITS[engine] != FULL_BITS and bert is not None:
        served = served_answers(engine, bert, judging, session.device)
    labels = tuple(text.label_names) if task.own_thresholds else ()
    for role, logits in {**answers, **served}.items():
        check_answers(teacher, logits, text.roles[role].texts)
    unpruned = score_of(served, answers, judging, task.metric, labels, **sizes)
    if inputs.student_layers is not None:
        note(
            f"students of layers {inputs.student_layers} begin at a ratio of "
            f"{counted.cost.full / counted.full:.3g}: a larger target_ratio keeps all of them"
        )
    select, of_unpruned = splits["select"], (task.metric, unpruned.metric, unpruned.interval)
    note(weak_teacher_note(teacher, *of_unpruned, select.labels, len(text.label_names)))
    words = None
    if task.labelled:
        of_words = answers_of_words(task, text, session)
        judged = less_thresholds(served, select, task.metric)[0] if labels else served
        note(words_note(teacher, task.metric, select, judged["select"], of_words["select"]))
        words = worth_of_words(task, text, of_words)
    teacher_logits = answering.answer(train, rows)
    check_answers(teacher, teacher_logits, rows.texts)
    train = train.answered(teacher_logits)
    if student is not None and inputs.start and not inputs.start.has_classifier:
        _solve_classifier(student, train, teacher_logits, session.device)
    some = np.random.default_rng(0).permutation(len(train))[:_LEARNT]
    learnt = Examples([rows.texts[row] for row in some], train.labels[some])
    worth = (
        partial(score, metric=task.metric, own_thresholds=bool(labels))
        if objective == "metric"
        else partial(nearness, teacher=answers["select"])
    )
    problem = Problem(
        teacher=bert or inputs.no_teacher,  # type: ignore[arg-type]
        student=student or inputs.no_student,  # type: ignore[arg-type]
        train=train,
        teacher_logits=teacher_logits.to(session.device),
        alpha=alpha,
        alpha_logits=answers["alpha"].to(session.device),
        words=answering.words() if start is None else Words.of(start),
        flops_full=flops.full,
        budget=flops if counted.cost.counts_bits else counted,
        counted=counted,
        student_is_new=inputs.student is not None,
        student_layers=inputs.student_layers,
        select_score=partial(worth, split=select, device=session.device),
        vocabulary=Vocabulary(inputs.tokenizer, train),
        device=session.device,
        cache=session.cache,
        teacher_engine=teacher.engine,
        seq_len=inputs.seq_len,
        beside=tuple(extra.problem for extra in beside.values()),
    )
    return Workbench(
        problem=_of_standard_numbers(problem) if train.regression else problem,
        select=select,
        heldout=splits["heldout"],
        learnt=train.at(some),
        texts={**{role: text.roles[role] for role in JUDGING}, "train": learnt},
        teacher_answers={**{r: answers[r] for r in JUDGING}, "train": teacher_logits[some]},
        engine=engine,
        metric=task.metric,
        tokenizer=inputs.tokenizer,
        unpruned=unpruned,
        unpruned_answers=served,
        words=words,
        flops=Flops(counted.cost.shape, inputs.seq_len),
        flops_full=int(flops.full),
        labels=labels,
        notes=(*notes, *(f"{name}: {line}" for name, b in beside.items() for line in b.notes)),
        features=features_of(labelled, select, unpruned.metric),
        beside=beside,
    )


def _of_standard_numbers(problem: Problem) -> Problem:
    """The problem of a regression with models, answers and labels of standard numbers."""
    scale = NumberScale.of(problem.teacher_logits.cpu().numpy())
    models = copy.deepcopy((problem.teacher, problem.student))  # at once: they may be the same
    heads = {last_layer(model) for model in models if not isinstance(model, NoBert)}
    for head in filter(None, heads):
        scale.to_standard(head)

    def select_score(model: PreTrainedModel) -> float:
        with scale.restored(model):
            return problem.select_score(model)

    train, alpha = (
        replace(split, labels=scale.standard(split.labels))
        for split in (problem.train, problem.alpha)
    )
    return replace(
        problem,
        teacher=models[0],
        student=models[1],
        train=train,
        teacher_logits=scale.standard(problem.teacher_logits),
        alpha=alpha,
        alpha_logits=scale.standard(problem.alpha_logits),
        select_score=select_score,
        scale=scale,
    )


def served_answers(
    engine: Engine, model: PreTrainedModel, splits: Mapping[str, Split], device: str
) -> dict[str, Tensor]:
    """Logits (rows, C) of each split as an engine gives them; those of float32 are torch's."""
    if BITS[engine] == FULL_BITS:
        return {role: predict(model, split, device) for role, split in splits.items()}
    with TemporaryDirectory() as scratch:
        threads = torch.get_num_threads()
        (served,) = make_runnable(engine, {scratch: model}, Path(scratch), threads, device)
        return {role: predict_with(served.run, split) for role, split in splits.items()}


def score_of(
    answers: Mapping[str, Tensor],
    teacher: Mapping[str, Tensor],
    splits: Mapping[str, Split],
    metric: Metric,
    labels: Sequence[str],
    **sizes: Any,
) -> Score:
    """Score answers beside the teacher's, both logits (rows, C) by role, "train" if it is there."""
    # `labels` are those that have thresholds of their own, `sizes` are fields of a `Score`.
    judged, thresholds = answers, list[float]()
    if labels:
        judged, thresholds = less_thresholds(answers, splits["select"], metric)
    select, heldout = (metric_with_interval(judged[role], splits[role], metric) for role in JUDGING)
    far = {role: divergence(answers[role], teacher[role], splits[role]) for role in splits}
    sizes["thresholds"] = dict(zip(labels, thresholds, strict=True))
    sizes["train_divergence"] = far.get("train")
    return Score(*select, *heldout, far["select"], far["heldout"], **sizes)


@torch.no_grad()
def _solve_classifier(
    student: BertForSequenceClassification, train: Split, logits: Tensor, device: str
) -> None:
    """Solve a new classifier for the teacher's logits, as alpha learns through it at once."""
    rows = np.random.default_rng(0).permutation(len(train))[:_SOLVED]
    pooled = predict_with(
        lambda inputs: student.bert(**inputs).pooler_output, train.at(rows), device
    ).double()
    wanted, middle = logits[rows].double().cpu(), pooled.mean(0)
    centred = pooled - middle
    # Pooled states may vary by little (MiniLM's: 0.002). Weights that are large enough to tell them
    # apart magnify whatever training does to them, and AdamW's steps never make them small again.
    ridge = _RIDGE * len(pooled) * torch.eye(pooled.shape[1])
    weight = torch.linalg.solve(centred.T @ centred + ridge, centred.T @ (wanted - wanted.mean(0)))
    student.classifier.weight.copy_(weight.T)
    student.classifier.bias.copy_(wanted.mean(0) - middle @ weight)


def _student(
    inputs: Inputs, bert: BertForSequenceClassification | None, session: Session
) -> BertForSequenceClassification | None:
    if inputs.start is not None:
        labels, several = inputs.text.label_names, inputs.text.several
        return load_student(
            inputs.start,
            labels,
            session.seed,
            called=named_outputs(inputs.teacher.models, labels, several=several),
            problem_type=SEVERAL if several else bert and bert.config.problem_type,
            device=session.device,
        )
    if inputs.student_layers is not None and bert is not None:
        return keep_layers(bert, inputs.student_layers)
    return bert


def _costs(
    inputs: Inputs,
    answering: Answering,
    student: BertForSequenceClassification | None,
    session: Session,
    cost: CostName,
    engine: Engine,
    batch: int,
    spaces: tuple[str, ...],
) -> tuple[dict[str, Any], Budget, Budget]:
    """Costs of the teacher for a `Score`, and budgets of the student: the study's, and of FLOPs."""
    # Costs of a teacher that are not known are those of ratio 1, whose widths they are.
    seq_len, bert = inputs.seq_len, answering.bert
    costs: dict[str, float] = dict(answering.costs(seq_len))

    def cost_of(model: BertForSequenceClassification) -> Cost:
        if cost != "latency":
            return _cost(cost, model, seq_len, spaces)
        return load_latency(model, batch=batch, seq_len=seq_len, engine=engine, session=session)

    widths: Mapping[str, tuple[int, ...]] = {}
    if student is None:
        counted, flops = _whole(inputs, cost, costs)
    else:
        of_student, of_bert = cost_of(student), None if bert is None else cost_of(bert)
        if of_bert is not None:
            costs[of_bert.unit] = of_bert.full
        of_unpruned = of_student if inputs.student is not None or of_bert is None else of_bert
        widths = BertArchitecture.full(of_unpruned.shape).sizes()
        counted = Budget(of_student, of_unpruned.full)
        flops = Budget(Flops(of_student.shape, seq_len), Flops(of_unpruned.shape, seq_len).full)
        costs = costs or dict(measured_costs(student, seq_len))
        costs.setdefault(counted.cost.unit, counted.full)
    of_teacher = {
        "cost": costs[counted.cost.unit],
        "flops": costs[flops.cost.unit],
        "params": costs["params"],
        "bytes": costs["bytes"],
        "widths": widths,
    }
    return of_teacher, counted, flops


def check_cost(inputs: Inputs, cost: CostName) -> None:
    """Raise UserError for a cost that is counted beside a BERT, if there is none."""
    if inputs.only_answers and inputs.start is None and cost not in _OF_ANY:
        raise UserError(
            f"Study.cost is {cost!r}, which is counted beside a BERT, but the teacher "
            f"'{inputs.teacher.name}' {inputs.only_answers}; set Study.student to one, or count "
            f"{', '.join(_OF_ANY)}"
        )


def _whole(inputs: Inputs, cost: CostName, known: Mapping[str, float]) -> tuple[Budget, Budget]:
    """Budgets if nothing is cut: ratio 1 is the teacher's cost. Raises UserError for others."""
    check_cost(inputs, cost)
    labels = len(inputs.text.label_names)
    nothing = BertShape(layers=0, hidden=0, heads=0, head_dim=0, ffn=0, labels=labels)
    flops = Flops(nothing, inputs.seq_len)
    params, in_bytes = Params(nothing, 0, 0), Bytes(nothing, {})
    costs: dict[str, Cost] = {"flops": flops, "params": params, "bytes": in_bytes}
    counted = costs[cost]
    return Budget(counted, known[counted.unit]), Budget(flops, known[flops.unit])


def _cost(
    name: CostName, model: BertForSequenceClassification, seq_len: int, spaces: tuple[str, ...]
) -> Cost:
    shape = shape_of(model.config)
    if name == "params":
        embeddings = sum(weight.numel() for weight in model.bert.embeddings.parameters())
        return Params(shape, embeddings, model.config.vocab_size)
    if name == "bytes":
        state = model.state_dict().items()
        return Bytes(shape, {n: tuple(w.shape) for n, w in state if n.startswith(EMBEDDINGS)})
    if name == "bitops":
        return BitOps(shape, seq_len)
    if name == "units":
        return Units(shape, spaces)
    return Flops(shape, seq_len)
