"""Teacher: classifiers, fine-tuned here if necessary, or precomputed answers."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from inspect import signature
from itertools import islice
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from transformers import BertForSequenceClassification, PreTrainedModel, PreTrainedTokenizerBase
from transformers.modeling_outputs import SequenceClassifierOutput

from objectives.cache import atomic_write, content_key, made_anew
from objectives.combining.members import CONFIDENCE
from objectives.device import (
    Precision,
    autocast,
    frozen,
    is_recording,
    matmul_dtype,
    out_of_memory,
    to_device,
)
from objectives.engines.names import Engine
from objectives.errors import (
    Checked,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    ShareBelowOne,
    UserError,
    a_few,
    check_ranges,
    first_line,
)
from objectives.measures.bootstrap import Interval, resampled_metrics
from objectives.measures.number_scale import NumberScale, last_layer
from objectives.metric import Labels, Metric, metric_value
from objectives.session import Session
from objectives.students.bert.adapters import ADAPTERS, as_bert
from objectives.students.bert.exporting import save_model
from objectives.students.bert.pretrained import SEVERAL, Checkpoint, named_outputs, take_outputs
from objectives.text.data import INPUTS, Split
from objectives.text.task import LabelledText
from objectives.training.losses import task_loss
from objectives.training.optimisation import PopulationOptimizer
from objectives.training.recorded import Recordings, Tensors

FINE_TUNING = ("epochs", "batch_size", "learning_rate", "precision")
"""Fields of a `Teacher` about fine-tuning, without those that are `LATER`."""
LATER = {"later": True}
"""Metadata of a field that earlier versions did not have: it enters fingerprints only if it is set,
so that older runs stay the same."""
Loaded = TypeVar("Loaded")
_STEPS = 500
"""Fewest steps of fine-tuning, within 10 epochs."""


@dataclass(frozen=True, kw_only=True)
class Teacher(Checked):
    """Source of the answers that students learn: one of `checkpoint`, `ensemble` and `answers`; and
    how a checkpoint is fine-tuned if it has no classifier yet.

    One that computes what BERT does (`adapters.ADAPTERS`) can be cut and asked for hidden states,
    if students read its tokens. All others only answer: students are cells, or cut from
    `Study.student`, whose tokens and words they have. Ratio 1 is the cost of that student; of cells
    without one the teacher's, of an ensemble that of all its members.

    A checkpoint that holds a classifier is the teacher as it is, and must know the task's labels. A
    label of its own that the task does not have is left out: of each text it says which of the
    task's labels is the likeliest, and its probabilities are those given that it is one of them.
    """

    checkpoint: str | None = None
    """Folder, or name on the hub, of any classifier of texts that transformers has, or of a model
    that it can make one of. Code that comes with it is never run."""
    ensemble: tuple[str, ...] = ()
    """Several such checkpoints, each with its own tokenizer. Their probabilities are averaged; of
    numbers the answers."""
    answers: str | Path | None = None
    """Answers that are there: a column of the data, or a file (.csv, .jsonl, ...) with the task's
    columns of text. A value of the column maps the labels to numbers, or lists these in their order
    (as JSON in a CSV); the file has a column for each label. Hard labels stand in the column, or in
    the file's that is called as the task's. Its cost is not known: reports show that of ratio 1."""
    answers_as: Literal["probabilities", "logits", "labels"] = "probabilities"
    """Kind of the answers; of a task of numbers they are numbers whatever this says."""
    smoothing: ShareBelowOne = 0.1
    """Smoothing of hard labels: this share of the probability is spread evenly over all of them
    (Szegedy et al. 2016). In [0, 1)."""
    epochs: PositiveInt | None = None
    """Passes over the train split, >= 1. None: 3, of few rows up to 10, for 500 steps."""
    batch_size: PositiveInt = 32
    """Sequences in a batch. >= 1."""
    learning_rate: PositiveFloat | None = None
    """Peak of AdamW's rate, > 0: it rises linearly for `warmup`, then falls linearly to 0. None: by
    the width, 5e-5 at 768 (Devlin et al. 2019), 2e-4 at MiniLM's 384 (measured), at most 3e-4 (Turc
    et al. 2019)."""
    warmup: ShareBelowOne = field(default=0.1, metadata=LATER)
    """Share of the steps in which the rate rises. In [0, 1)."""
    precision: Precision = "auto"
    """Precision of the matmuls of the fine-tuning. "auto" is bfloat16 where the device has
    instructions for it, else float32."""
    engine: Engine = field(default="eager", metadata=LATER)
    """Engine in which BERTs answer the rows that students learn from; in torch they answer those
    that judge. onnxruntime-int8 answered four times as many texts a second of an MPNet, on a CPU
    with AVX512-VNNI."""
    trials: NonNegativeInt = field(default=0, metadata=LATER)
    """How often a launch fine-tunes it to find epochs, batch_size, learning_rate and warmup, first
    those that are set here: an Optuna study of its own, "NAME-teacher", which minimises the loss on
    the selection split. 0 takes them as they are."""

    def __post_init__(self) -> None:
        super().__post_init__()
        tunable = self.checkpoint is not None
        wanted = ">= 0, and 0 for an ensemble or for answers"
        check_ranges(self, trials=(tunable or not self.trials, wanted))
        if sum(map(bool, (self.checkpoint, self.ensemble, self.answers))) != 1:
            raise UserError(
                "Teacher: name one of checkpoint (a folder or a name on the hub), ensemble "
                "(several of these) and answers (a column or a file)"
            )

    @property
    def checkpoints(self) -> tuple[str, ...]:
        """Checkpoints that answer; empty if answers are given."""
        return (self.checkpoint,) if self.checkpoint else self.ensemble

    @property
    def models(self) -> tuple[Checkpoint, ...]:
        """Checkpoints, which are read on first use."""
        return tuple(map(Checkpoint, self.checkpoints))

    @property
    def name(self) -> str:
        """Name in messages."""
        return " + ".join(self.checkpoints) or str(self.answers)

    @property
    def fine_tuned(self) -> bool:
        """Whether one of its checkpoints has no classifier and is fine-tuned here."""
        return not all(model.has_classifier for model in self.models)

    def settled(self, rows: int, checkpoint: str) -> "Teacher":
        """Copy with numbers for `epochs` and `learning_rate`, by rows and width if not set."""
        steps = math.ceil(rows / self.batch_size)
        epochs = self.epochs or min(10, max(3, math.ceil(_STEPS / steps)))
        if (rate := self.learning_rate) is None:
            width = getattr(Checkpoint(checkpoint).config, "hidden_size", 768)
            rate = min(3e-4, 5e-5 * (768 / width) ** 2)
        return replace(self, epochs=epochs, learning_rate=rate)

    @property
    def fine_tuning(self) -> dict[str, Any]:
        """Settings of the fine-tuning by field; those that are `LATER` only if set."""
        later = [n for n in ("warmup", "trials") if getattr(self, n) != getattr(Teacher, n)]
        return {name: getattr(self, name) for name in (*FINE_TUNING, *later)}


def load_teacher(
    teacher: Teacher,
    text: LabelledText,
    train: Split | None,
    *,
    session: Session,
    fine_tune: bool = True,
) -> BertForSequenceClassification:
    """Load the teacher as a frozen BERT of the task's labels, fine-tuned, on the device."""
    # Labels bear the names that a fine-tuned checkpoint has for them, if anybody gave it any.
    (checkpoint,) = teacher.models
    if checkpoint.has_classifier:
        return ready(checkpoint, text, session.device)
    assert train is not None, "it is fine-tuned on rows"
    load = partial(load_frozen, device=session.device)
    return fine_tuned(teacher, checkpoint, text, train, load, session=session, fine_tune=fine_tune)


def fine_tuned(
    teacher: Teacher,
    checkpoint: Checkpoint,
    text: LabelledText,
    train: Split,
    load: Callable[[str], Loaded],
    *,
    session: Session,
    fine_tune: bool = True,
    make: Callable[[], PreTrainedModel] | None = None,
) -> Loaded:
    """`load` the folder of a checkpoint fine-tuned on train. Raises UserError if it is lost."""
    # Fine-tuning runs once: the result lies in the cache, named by all that decides it. Text
    # without a role does not; nor does the device where `precision` is "auto", as a run that goes
    # on on another one has one teacher. `make` fine-tunes in another way. Without `fine_tune`, and
    # of a teacher with `trials` without `make`, only what a launch left there counts.
    label_names, teacher = text.label_names, teacher.settled(len(train), checkpoint.name)
    ingredients = {
        **teacher.fine_tuning,
        "checkpoint": checkpoint.fingerprint,
        "data": text.fingerprint_of_roles,
        "tokens": train.fingerprint,
        "max_length": train.max_length,
        "labels": list(label_names),
        "seed": session.seed,
    }
    left = not fine_tune or (teacher.trials > 0 and make is None)
    precisions = [matmul_dtype(teacher.precision, session.device)]
    if left or teacher.precision == "auto":
        precisions += torch.bfloat16, torch.float32
    keys = (content_key({**ingredients, "precision": str(dtype)}) for dtype in precisions)
    folders = [session.cache / key for key in keys]
    folder = next((candidate for candidate in folders if candidate.is_dir()), folders[0])
    if left and not folder.is_dir():
        raise UserError(
            f"'{session.cache}' does not hold the teacher that was fine-tuned from "
            f"'{checkpoint.name}'; launch the study again with the same number of trials to "
            "fine-tune it again, or restore the folder from a copy"
        )
    if folder.is_dir():
        try:
            return load(str(folder))
        except (OSError, ValueError) as error:
            if left:
                raise
            session.progress.note(made_anew(folder, first_line(error)))
    model = make() if make else trained(teacher, checkpoint, label_names, train, session)
    with atomic_write(folder) as unfinished:
        save_model(model, unfinished)
        checkpoint.tokenizer.save_pretrained(unfinished)
    return load(str(folder))


def ready(checkpoint: Checkpoint, text: LabelledText, device: str) -> BertForSequenceClassification:
    """`load_teacher` for a checkpoint with a classifier."""
    label_names = text.label_names
    order = checkpoint.label_order(label_names, several=text.several)
    names = named_outputs([checkpoint], label_names, several=text.several)
    model = load_frozen(checkpoint.name, device)
    take_outputs(model, order, names)
    if text.several:
        model.config.problem_type = SEVERAL
    return model


def check_answers(teacher: Teacher, logits: Tensor, texts: Sequence[tuple[str, ...]]) -> None:
    """Raise UserError if a logit (rows, C) of the teacher is nan or infinite."""
    wrong = (~logits.isfinite().all(-1)).nonzero().flatten().tolist()
    if not wrong:
        return
    remedy = "repair its checkpoint"
    if teacher.fine_tuned:
        rate = _now("learning_rate", teacher.learning_rate)
        remedy = f"fine-tune it at a lower learning rate ({rate}), or repair the checkpoint"
    raise UserError(
        f"teacher '{teacher.name}': its answers to {len(wrong):,} of {len(logits):,} texts are not "
        f"finite (nan or infinite), such as to {a_few(texts[wrong[0]])}; {remedy}"
    )


def _now(name: str, value: float | None) -> str:
    """A setting of the teacher and its value; each member of an ensemble may have its own."""
    return f"Teacher.{name}, now {'chosen by itself' if value is None else f'{value:g}'}"


def teacher_notes(teacher: Teacher, label_names: Sequence[str]) -> Iterator[str]:
    """Notes for the user on checkpoints with a classifier, and on given answers."""
    for checkpoint in (model for model in teacher.models if model.has_classifier):
        outputs = checkpoint.outputs
        numbered = [f"LABEL_{name}" for name in label_names]
        if len(label_names) > 1 and not (set(label_names) <= set(outputs) or outputs == numbered):
            pairs = ", ".join(f"{a} is {b}" for a, b in zip(outputs, label_names, strict=True))
            yield (
                f"the labels of the teacher '{checkpoint.name}' are matched by position: {pairs}; "
                "if that is wrong, name them in its config.json (id2label)"
            )
    inactive = [n for n, value in teacher.fine_tuning.items() if value != getattr(Teacher, n)]
    if inactive and not teacher.fine_tuned:
        why = "has a classifier and is not fine-tuned" if teacher.checkpoints else "is no model"
        yield f"the teacher '{teacher.name}' {why}: " + (
            f"{', '.join(f'Teacher.{name}' for name in inactive)} does nothing"
        )
    if not teacher.answers and teacher.answers_as != Teacher.answers_as:
        yield "Teacher.answers_as does nothing: it is for answers that are given"
    hard = teacher.answers and teacher.answers_as == "labels"
    if not hard and teacher.smoothing != Teacher.smoothing:
        yield "Teacher.smoothing does nothing: it is for labels as answers that are given"


def constant_metric(metric: Metric, labels: Labels, classes: int) -> float:
    """Metric of the best constant answer."""
    if labels.ndim == 1 and metric not in ("accuracy", "f1", "macro_f1"):
        return 0.0  # of a correlation
    likely = (0, 1) if labels.ndim == 2 else {int(np.bincount(labels).argmax()), 1}
    answers = (np.full_like(labels, answer) for answer in likely)
    return max(metric_value(metric, labels, answer, classes=classes) for answer in answers)


def weak_teacher_note(
    teacher: Teacher, metric: Metric, value: float, interval: Interval, labels: Labels, classes: int
) -> str | None:
    """Note on a teacher whose metric on the selection split is maybe no better than a constant."""
    constant = constant_metric(metric, labels, classes)
    if interval[0] > constant:
        return None
    remedy = "take another one"
    if teacher.fine_tuned:
        remedy = f"fine-tune it longer ({_now('epochs', teacher.epochs)})"
    return (
        f"the teacher may have learnt nothing: its {metric} on the selection split is {value:.4f} "
        f"(95% interval from {interval[0]:.4f}), and one answer for all rows has {constant:.4f}; "
        f"{remedy}, before students learn from it"
    )


def words_note(
    teacher: Teacher, metric: Metric, select: Split, logits: Tensor, words: Labels
) -> str | None:
    """Note on a teacher not clearly better, by a paired bootstrap, than a linear model on words."""
    labels, classes, both = select.labels, logits.shape[-1], (select.answers(logits).numpy(), words)
    value, linear = (metric_value(metric, labels, answers, classes=classes) for answers in both)
    gained, without = (resampled_metrics(metric, labels, answers, classes) for answers in both)
    if value == 1 or np.quantile(gained - without, 1 - CONFIDENCE) > 0:
        return None
    epochs, rate, cut_off = "", "", ""
    if select.truncated:
        cut_off = (
            f", on more of each text (max_length, now {select.max_length}, cuts off "
            f"{select.truncated:,} of {len(select):,}; the linear model reads all)"
        )
    if teacher.fine_tuned:
        epochs = f" ({_now('epochs', teacher.epochs)})"
        finds = "; Teacher.trials finds one" if teacher.checkpoint else ""
        rate = f" ({_now('learning_rate', teacher.learning_rate)}{finds})"
    return (
        f"the teacher is not clearly better than words alone: its {metric} on the selection split "
        f"is {value:.4f}, that of a linear model on tf-idf {linear:.4f}; fine-tune it "
        f"longer{epochs}, at another rate{rate}{cut_off} or on more rows (Task.train), or take "
        "another checkpoint, before students learn from it"
    )


def load_frozen(folder: str, device: str) -> BertForSequenceClassification:
    """Load a checkpoint as a BERT in evaluation mode; without a classifier it gets a random one."""
    with torch.random.fork_rng(devices=[]):  # making a model draws numbers, even to overwrite them
        return frozen(as_bert(Checkpoint(folder).load_classifier()), device)


class Reading(nn.Module):
    """Wrapper of a classifier that accepts BERT's inputs and passes on those that it reads."""

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase):
        super().__init__()
        self.model, self.config = model, model.config
        parameters = signature(model.forward).parameters
        self.names = [n for n in INPUTS if n in parameters and n in tokenizer.model_input_names]
        self.tokenizer = tokenizer
        for config in (self.config, self.config.get_text_config()):
            config.pad_token_id = tokenizer.pad_token_id  # by which a decoder finds the last token

    def forward(self, return_dict: bool = True, **inputs: Tensor) -> Any:
        """Call the classifier. Raises UserError for a text that it cannot answer alone."""
        tensors = {name: inputs[name].long() for name in self.names}  # XLNet's mask is of numbers
        try:
            return self.model(**tensors, return_dict=return_dict)
        except Exception as error:
            if out_of_memory(error) or isinstance(error, torch.AcceleratorError) or is_recording():
                raise
            if len(tensors["input_ids"]) > 1:  # BART takes no texts of one and of two ends together
                rows = zip(*(tensor.split(1) for tensor in tensors.values()), strict=True)
                alone = [self(**dict(zip(tensors, row, strict=True))).logits for row in rows]
                return SequenceClassifierOutput(logits=torch.cat(alone))
            text = str(self.tokenizer.decode(tensors["input_ids"][0], skip_special_tokens=True))
            raise UserError(
                f"the teacher ({self.config.model_type}) cannot answer the text "
                f"{a_few([text])} ({first_line(error)}); mend it, or leave it out of the data"
            ) from error


def trained(
    teacher: Teacher,
    checkpoint: Checkpoint,
    label_names: Sequence[str],
    train: Split,
    session: Session,
    judge: Callable[[Reading], None] | None = None,
) -> PreTrainedModel:
    """Fine-tune every weight of transformers' own model of the checkpoint on the labels, with its
    dropout. The teacher is settled. `judge` gets it after each epoch, in evaluation mode."""
    assert teacher.epochs is not None
    assert teacher.learning_rate is not None
    seed, device, progress = session.seed, session.device, session.progress
    cuda = [device] if device.startswith("cuda") else []
    with torch.random.fork_rng(devices=cuda):  # the classifier's start and the dropout are seeded
        torch.manual_seed(seed)
        problem_type = "regression" if train.regression else None
        if train.several:
            problem_type = SEVERAL
        model = checkpoint.load_classifier(label_names, problem_type)
        scale = NumberScale()
        if train.regression and last_layer(model) is not None:  # which starts near 0
            scale = NumberScale.of(train.labels)
            train = replace(train, labels=scale.standard(train.labels))
        padding = model.config.pad_token_id  # saved as it was: RoBERTa's positions begin there
        reading = to_device(Reading(model, checkpoint.tokenizer), device).train()
        dtype = matmul_dtype(teacher.precision, device)
        an_epoch = -(-len(train) // teacher.batch_size)
        steps = teacher.epochs * an_epoch
        weights, rates = dict(model.named_parameters()), [teacher.learning_rate]
        optimizer = PopulationOptimizer(weights, rates, steps, "linear", warmup=teacher.warmup)
        # Others may draw numbers on the host, to leave out layers, say: a recording repeats them.
        records = model.config.model_type in ADAPTERS
        recorded_steps = Recordings(device if records else "cpu", optimizer.drop_gradients)

        def made(inputs: Tensors) -> Tensors:
            with autocast(dtype, device):
                logits = reading(**{name: inputs[name] for name in INPUTS}).logits.float()
            return optimizer.learn(task_loss(logits[None], inputs["labels"]))

        progress.begin("fine-tune the teacher", steps)
        batches = islice(train.shuffled(teacher.batch_size, seed, device), steps)
        for step, batch in enumerate(batches, 1):
            optimizer.set_rate()
            recorded_steps.call(made, {**batch.inputs, "labels": batch.labels})
            progress.advance()
            if judge is not None and step % an_epoch == 0:
                with scale.restored(model):
                    judge(reading.eval())
                reading.train()
    scale.from_standard(model)
    model.config.pad_token_id = padding
    return model
