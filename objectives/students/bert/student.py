"""Start of the students: the teacher, some layers of it, or another checkpoint."""

from collections.abc import Sequence
from typing import Any

import torch
from transformers import BertForSequenceClassification
from transformers.initialization import no_init_weights

from objectives.device import frozen
from objectives.errors import UserError
from objectives.students.bert.adapters import as_bert
from objectives.students.bert.pretrained import SEVERAL, Checkpoint, take_outputs


def same_tokens(*checkpoints: Checkpoint) -> bool:
    """Whether the checkpoints share a vocabulary, so that each can read the other's tokens."""
    sizes = {checkpoint.config.vocab_size for checkpoint in checkpoints}
    first, *others = (checkpoint.tokenizer.get_vocab() for checkpoint in checkpoints)
    return len(sizes) == 1 and all(vocabulary == first for vocabulary in others)


def load_student(
    checkpoint: Checkpoint,
    label_names: Sequence[str],
    seed: int,
    *,
    called: Sequence[str] = (),
    problem_type: Any = None,
    device: str = "cpu",
) -> BertForSequenceClassification:
    """Load a checkpoint as a frozen classifier of the task's labels, renamed by `called`."""
    # Without a classifier (or a pooler) in it, fresh ones are drawn from the seed.
    fine_tuned = checkpoint.has_classifier
    called = called or label_names
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        student = as_bert(checkpoint.load_classifier(None if fine_tuned else called))
    if fine_tuned:
        order = checkpoint.label_order(label_names, several=problem_type == SEVERAL)
        take_outputs(student, order, called)
    student.config.problem_type = problem_type
    return frozen(student, device)


def check_layers(layers: Sequence[int], count: int) -> None:
    """Raise UserError unless these are layers, ascending, of a teacher with this many."""
    if not layers or list(layers) != sorted({*range(count)} & {*layers}):
        raise UserError(
            f"student_layers is {layers}; it must be ascending layers of the teacher, "
            f"0 to {count - 1}"
        )


def keep_layers(
    teacher: BertForSequenceClassification, layers: Sequence[int]
) -> BertForSequenceClassification:
    """Build a frozen classifier of these layers of the teacher, its embeddings, pooler and head."""
    fields = {**teacher.config.to_dict(), "num_hidden_layers": len(layers)}
    config = type(teacher.config).from_dict(fields)
    with no_init_weights():  # they are loaded below
        student = type(teacher)(config)
    rest = {n: w for n, w in teacher.state_dict().items() if not n.startswith("bert.encoder.")}
    student.load_state_dict(rest, strict=False)
    for target, layer in zip(student.bert.encoder.layer, layers, strict=True):
        target.load_state_dict(teacher.bert.encoder.layer[layer].state_dict())
    return frozen(student, str(teacher.device))
