"""A problem, and what scores its results: prepared once a launch, hidden from the searches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

from torch import Tensor
from transformers import BertForSequenceClassification, PreTrainedModel, PreTrainedTokenizerBase

from objectives.engines.names import BITS, FULL_BITS, Engine
from objectives.measures.bits import BitOps, Bytes, bytes_of
from objectives.measures.budget import Budget
from objectives.measures.cost import Cost, CostName, Flops, Params, Units
from objectives.measures.evaluate import (
    EVALUATION_BATCH,
    Objective,
    count_parameters,
    nearness,
    predict,
    score,
)
from objectives.measures.latency import load_latency
from objectives.measures.measured import WrongCostError, measured_costs
from objectives.metric import Metric
from objectives.problem import Problem
from objectives.session import Session
from objectives.students.bert.architecture import BertArchitecture
from objectives.students.bert.cutting import shape_of
from objectives.students.bert.student import keep_layers, load_student
from objectives.students.families import family_for
from objectives.students.family import Architecture
from objectives.text.data import Split
from objectives.text.task import ROLES, Examples, tokenise
from objectives.text.vocabulary import Vocabulary
from objectives.training.population import EMBEDDINGS
from objectives.training.teacher_states import kept_logits
from objectives.workbench.fidelity import FULL, Fidelity
from objectives.workbench.inputs import JUDGING, Inputs, check_tokens
from objectives.workbench.rows import notes_on_rows, rows_of_students
from objectives.workbench.scoring import Score, answers_of, score_of
from objectives.workbench.teacher import (
    check_answers,
    load_teacher,
    teacher_notes,
    weak_teacher_note,
)


@dataclass(frozen=True, eq=False)
class Workbench:
    """A problem, and what scores and saves its results: no search method sees this."""

    problem: Problem
    select: Split
    heldout: Split
    texts: Mapping[str, Examples]
    """The text of "select" and "heldout", for models of a smaller vocabulary."""
    teacher_answers: Mapping[str, Tensor]
    """Logits (rows, C) of the teacher on "select" and "heldout", in float32."""
    engine: Engine
    metric: Metric
    tokenizer: PreTrainedTokenizerBase
    unpruned: Score
    """Of the teacher; its widths are those of the model of ratio 1."""
    unpruned_answers: Mapping[str, Tensor]
    """Logits (rows, C) of the teacher on "select" and "heldout" in the engine."""
    flops: Flops
    """Of the student, cut or masked."""
    flops_full: int
    """FLOPs of the model of ratio 1."""
    notes: tuple[str, ...]
    """What a user should know of rows, labels and teacher."""

    def answers(self, model: PreTrainedModel, architecture: Architecture) -> dict[str, Tensor]:
        """Logits (rows, C) float32 of the student on "select" and "heldout", in the engine."""
        return answers_of(self.engine, model, self._judging(architecture), self.problem.device)

    def score(
        self,
        model: PreTrainedModel,
        architecture: Architecture,
        answers: Mapping[str, Tensor] | None = None,
    ) -> Score:
        """What the student `model` is worth by its `answers`, and what it costs. Raises
        WrongCostError if that is not what a search predicts of its architecture."""
        measured = measured_costs(model, self.flops.seq_len)
        costs = (self.flops, self.problem.counted.cost)
        predicted = family_for(architecture).predicted(architecture, costs)
        for unit, number in measured.items():
            if number != predicted.get(unit, number):
                raise WrongCostError(
                    f"the model has {number:,} {unit}, its architecture {predicted[unit]:,}; a "
                    "method cuts the model that it returns to the architecture beside it"
                )
        return score_of(
            self.answers(model, architecture) if answers is None else answers,
            self.teacher_answers,
            {"select": self.select, "heldout": self.heldout},
            self.metric,
            params=measured["params"],
            bytes=measured["bytes"],
            cost=(predicted | measured)[self.problem.counted.cost.unit],
            flops=measured[self.flops.unit],
            widths=architecture.sizes(),
        )

    def tokenizer_of(self, architecture: Architecture) -> PreTrainedTokenizerBase:
        """The tokenizer that goes with a model of this architecture."""
        pieces = family_for(architecture).vocabulary(architecture)
        return self.tokenizer if pieces is None else self.problem.vocabulary.tokenizer_of(pieces)

    def _judging(self, architecture: Architecture) -> dict[str, Split]:
        """The selection and the held-out split in the tokens of such a model."""
        splits = {"select": self.select, "heldout": self.heldout}
        tokenizer = self.tokenizer_of(architecture)
        if tokenizer is not self.tokenizer:
            for role, split in splits.items():
                tokens = tokenise(self.texts[role], role, tokenizer, split.max_length)
                splits[role] = replace(tokens, labels=split.labels)
        return splits


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
    """Tokenise, fine-tune the teacher if it needs it, score it, and load the student.

    Augmented and unlabelled rows come after the teacher: it learns from the labelled rows alone,
    and from all whatever the `fidelity`. `cost` is what the study counts, "latency" by passes of
    `latency_batch` sequences in the `engine`; `objective` is what it compares students by, `spaces`
    the kinds of units that its methods search: "units" counts those.
    """
    device, progress, seq_len = session.device, session.progress, inputs.seq_len
    metric, label_names = inputs.task.metric, inputs.text.label_names
    splits = {role: inputs.split(role) for role in ROLES}
    check_tokens(inputs, splits.values())
    notes = [*notes_on_rows(inputs, splits), *teacher_notes(inputs.teacher, label_names)]
    for note in notes:
        progress.note(note)
    teacher = load_teacher(inputs.teacher, inputs.text, splits["train"], session=session)
    batches = sum(-(-len(splits[role]) // EVALUATION_BATCH) for role in JUDGING)
    progress.begin("score the teacher", batches)
    answers = {role: predict(teacher, splits[role], device, progress) for role in JUDGING}
    if not inputs.task.labelled:
        said = answers | {"alpha": predict(teacher, splits["alpha"], device)}
        splits |= {role: splits[role].answered(logits) for role, logits in said.items()}
    judging, select = {role: splits[role] for role in JUDGING}, splits["select"]
    train, alpha = rows_of_students(inputs, splits, fidelity, session)
    student = teacher
    if inputs.student is not None:
        student = load_student(inputs.student, teacher, label_names, session.seed)
    elif inputs.student_layers is not None:
        student = keep_layers(teacher, inputs.student_layers)
    cost_of_teacher, cost_of_student = (
        load_latency(model, batch=latency_batch, seq_len=seq_len, engine=engine, session=session)
        if cost == "latency"
        else _cost(cost, model, seq_len, spaces)
        for model in (teacher, student)
    )
    cost_of_unpruned = cost_of_teacher if inputs.student is None else cost_of_student
    counted = Budget(cost_of_student, cost_of_unpruned.full)
    flops_of_student = Flops(cost_of_student.shape, seq_len)
    flops = Budget(flops_of_student, Flops(cost_of_unpruned.shape, seq_len).full)
    served = answers
    if BITS[engine] != FULL_BITS:
        served = answers_of(engine, teacher, judging, device)
    unpruned = score_of(
        served,
        answers,
        judging,
        metric,
        params=count_parameters(teacher),
        bytes=bytes_of(teacher.state_dict()),
        cost=cost_of_teacher.full,
        flops=int(Flops(cost_of_teacher.shape, seq_len).full),
        widths=BertArchitecture.full(cost_of_unpruned.shape).sizes(),
    )
    check_answers(inputs.teacher, unpruned.metric, unpruned.heldout_metric)
    weak = weak_teacher_note(
        inputs.teacher, metric, unpruned.metric, unpruned.interval, select.labels, len(label_names)
    )
    if weak:
        progress.note(weak)
        notes.append(weak)
    teacher_logits = kept_logits(teacher, train, session=session)
    check_answers(inputs.teacher, teacher_logits)
    select_score = partial(nearness, split=select, teacher=answers["select"], device=device)
    if objective == "metric":
        select_score = partial(score, split=select, metric=metric, device=device)
    train = train.answered(teacher_logits)
    return Workbench(
        problem=Problem(
            teacher=teacher,
            student=student,
            train=train,
            teacher_logits=teacher_logits.to(device),
            alpha=alpha,
            budget=flops if cost_of_student.counts_bits else counted,
            counted=counted,
            student_is_new=inputs.student is not None,
            student_layers=inputs.student_layers,
            select_score=select_score,
            vocabulary=Vocabulary(inputs.tokenizer, train),
            device=device,
            cache=session.cache,
            seq_len=seq_len,
        ),
        select=select,
        heldout=splits["heldout"],
        texts={role: inputs.text.roles[role] for role in JUDGING},
        teacher_answers=answers,
        engine=engine,
        metric=metric,
        tokenizer=inputs.tokenizer,
        unpruned=unpruned,
        unpruned_answers=served,
        flops=flops_of_student,
        flops_full=int(flops.full),
        notes=tuple(notes),
    )


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
