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
from objectives.problem import Problem
from objectives.session import Session
from objectives.students.bert.architecture import BertArchitecture
from objectives.students.bert.cutting import shape_of
from objectives.students.bert.student import keep_layers, load_student
from objectives.students.families import family_for
from objectives.students.family import Architecture
from objectives.text.data import Split
from objectives.text.task import Examples, Metric, tokenise
from objectives.text.vocabulary import Vocabulary
from objectives.training.population import EMBEDDINGS
from objectives.training.teacher_states import kept_logits
from objectives.workbench.fidelity import FULL, Fidelity
from objectives.workbench.inputs import JUDGING, Inputs
from objectives.workbench.rows import notes_on_rows, rows_of_roles, rows_of_students
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
    """What models are served with, and so scored with."""
    metric: Metric
    tokenizer: PreTrainedTokenizerBase
    unpruned: Score
    """Of the teacher; its widths are those of the model of ratio 1."""
    flops: Flops
    """Of the student, cut or masked."""
    flops_full: int
    """FLOPs of the model of ratio 1."""
    notes: tuple[str, ...]
    """What a user should know of rows, labels and teacher."""

    def score(self, model: PreTrainedModel, architecture: Architecture) -> Score:
        """Metric and divergence on the selection and the held-out split, and the size of the
        student `model`.

        Raises WrongCostError if the model does not cost what a search predicts of its architecture.
        """
        measured = measured_costs(model, self.flops.seq_len)
        costs = (self.flops, self.problem.counted.cost)
        predicted = family_for(architecture).predicted(architecture, costs)
        for unit, number in measured.items():
            if number != predicted.get(unit, number):
                raise WrongCostError(
                    f"the model has {number:,} {unit}, its architecture {predicted[unit]:,}; a "
                    "method cuts the model that it returns to the architecture beside it"
                )
        splits = self._judging(architecture)
        return score_of(
            answers_of(self.engine, model, splits, self.problem.device),
            self.teacher_answers,
            splits,
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
        if tokenizer is self.tokenizer:
            return splits
        return {
            role: replace(
                tokenise(self.texts[role], role, tokenizer, split.max_length), labels=split.labels
            )
            for role, split in splits.items()
        }


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
    device, progress = session.device, session.progress
    splits = rows_of_roles(inputs)
    notes = [
        *notes_on_rows(inputs, splits),
        *teacher_notes(inputs.teacher, inputs.text.label_names),
    ]
    for note in notes:
        progress.note(note)
    teacher = load_teacher(inputs.teacher, inputs.text, splits["train"], session=session)
    answers = _answers_of_teacher(teacher, splits, session)
    if not inputs.task.labelled:
        said = answers | {"alpha": predict(teacher, splits["alpha"], device)}
        splits |= {role: splits[role].answered(logits) for role, logits in said.items()}
    judging = {role: splits[role] for role in JUDGING}
    train, alpha = rows_of_students(inputs, splits, fidelity, session)
    student = _student(inputs, teacher, session.seed)
    cost_of_teacher, cost_of_student = (
        load_latency(
            model,
            batch=latency_batch,
            seq_len=inputs.seq_len,
            engine=engine,
            session=session,
        )
        if cost == "latency"
        else _cost(cost, model, inputs.seq_len, spaces)
        for model in (teacher, student)
    )
    cost_of_unpruned = cost_of_teacher if inputs.student is None else cost_of_student

    def flops_of(own: Cost) -> Flops:
        return Flops(own.shape, inputs.seq_len)

    counted = Budget(cost_of_student, cost_of_unpruned.full)
    flops = Budget(flops_of(cost_of_student), flops_of(cost_of_unpruned).full)
    unpruned = _score_teacher(
        inputs,
        teacher,
        answers,
        judging,
        engine,
        device,
        cost=cost_of_teacher.full,
        flops=int(flops_of(cost_of_teacher).full),
        widths=BertArchitecture.full(cost_of_unpruned.shape).sizes(),
    )
    weak = weak_teacher_note(
        inputs.teacher,
        inputs.task.metric,
        unpruned.metric,
        unpruned.interval,
        splits["select"].labels,
        len(inputs.text.label_names),
    )
    if weak:
        progress.note(weak)
        notes.append(weak)
    teacher_logits = kept_logits(teacher, train, session=session)
    check_answers(inputs.teacher, teacher_logits)
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
            select_score=partial(
                score, split=splits["select"], metric=inputs.task.metric, device=device
            )
            if objective == "metric"
            else partial(
                nearness, split=splits["select"], teacher=answers["select"], device=device
            ),
            vocabulary=Vocabulary(inputs.tokenizer, train),
            device=device,
            cache=session.cache,
            seq_len=inputs.seq_len,
        ),
        select=splits["select"],
        heldout=splits["heldout"],
        texts={role: inputs.text.roles[role] for role in JUDGING},
        teacher_answers=answers,
        engine=engine,
        metric=inputs.task.metric,
        tokenizer=inputs.tokenizer,
        unpruned=unpruned,
        flops=flops_of(cost_of_student),
        flops_full=int(flops.full),
        notes=tuple(notes),
    )


def _answers_of_teacher(
    teacher: BertForSequenceClassification, splits: Mapping[str, Split], session: Session
) -> dict[str, Tensor]:
    """Its logits (rows, C) of "select" and "heldout"."""
    batches = sum(-(-len(splits[role]) // EVALUATION_BATCH) for role in JUDGING)
    session.progress.begin("score the teacher", batches)
    return {
        role: predict(teacher, splits[role], session.device, session.progress) for role in JUDGING
    }


def _score_teacher(
    inputs: Inputs,
    teacher: BertForSequenceClassification,
    answers: Mapping[str, Tensor],
    splits: Mapping[str, Split],
    engine: Engine,
    device: str,
    *,
    cost: float,
    flops: int,
    widths: Mapping[str, tuple[int, ...]],
) -> Score:
    """What it is worth in the engine that will serve. Raises UserError for answers that are nan or
    infinite."""
    served = answers
    if BITS[engine] != FULL_BITS:
        served = answers_of(engine, teacher, splits, device)
    unpruned = score_of(
        served,
        answers,
        splits,
        inputs.task.metric,
        params=count_parameters(teacher),
        bytes=bytes_of(teacher.state_dict()),
        cost=cost,
        flops=flops,
        widths=widths,
    )
    check_answers(inputs.teacher, unpruned.metric, unpruned.heldout_metric)
    return unpruned


def _cost(
    name: CostName,
    model: BertForSequenceClassification,
    seq_len: int,
    spaces: tuple[str, ...],
) -> Cost:
    """What is counted of `model`, cut or masked."""
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


def _student(
    inputs: Inputs, teacher: BertForSequenceClassification, seed: int
) -> BertForSequenceClassification:
    if inputs.student is not None:
        return load_student(inputs.student, teacher, inputs.text.label_names, seed)
    if inputs.student_layers is not None:
        return keep_layers(teacher, inputs.student_layers)
    return teacher
