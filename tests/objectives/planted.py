"""A student built by hand, in which few units carry the label."""

import copy
from dataclasses import replace

import torch
from transformers import BertForSequenceClassification

from objectives.measures.evaluate import predict
from objectives.problem import Problem
from objectives.students.bert.architecture import BertArchitecture, LayerUnits
from tests.conftest import MARKERS, SPECIAL, TINY

PLANTED = BertArchitecture(
    (
        LayerUnits(
            heads=(2,),
            ffn=(),
            query_key=((0,),),
            value=((0, 1, 2),),
            query_inputs=(0,),
            key_inputs=(0,),
            value_inputs=(0, 1, 2),
        ),
        LayerUnits(heads=(), ffn=(7, 8, 31)),
        LayerUnits((), ()),
    )
)
"""The units that carry the label. The output weights of all others are zero. The head looks at all
words alike, so that nothing depends on its queries and keys; one of each is the least it can keep.
"""


def holds_the_planted_units(architecture: BertArchitecture) -> bool:
    """Whether every planted head and neuron is still there."""
    return all(
        set(needed.heads) <= set(kept.heads) and set(needed.ffn) <= set(kept.ffn)
        for kept, needed in zip(architecture.layers, PLANTED.layers, strict=True)
    )


def planted_problem(problem: Problem, loudness: float = 20.0) -> Problem:
    """The tiny task with the planted student, which is its own teacher."""
    student = planted_student(problem.student, loudness)
    return replace(
        problem,
        teacher=student,
        student=student,
        teacher_logits=predict(student, problem.train, problem.device),
    )


@torch.no_grad()
def planted_student(
    model: BertForSequenceClassification, loudness: float = 20.0
) -> BertForSequenceClassification:
    """`model` made over: it tells the label, and every planted unit is needed for that.

    `loudness` is what the planted head's output is multiplied by. At 20 a tenth of it is enough
    for the label, and a soft mask may say so: half closed, the head still does all its work.

    A marker is loud in one of the dimensions 0 to 2. The head, which looks at all words alike,
    brings it to the first token; one neuron for each marker turns it into one of the dimensions 3
    to 5, and the classifier reads nothing else.
    """
    student = copy.deepcopy(model)
    for name, weight in student.named_parameters():
        if "LayerNorm.weight" in name:
            weight.fill_(1)
        elif "bias" in name or "output.dense" in name or "position" in name or "type" in name:
            weight.zero_()

    words = student.bert.embeddings.word_embeddings.weight
    words[:, :6] = 0
    words[len(SPECIAL) : len(SPECIAL) + 3] = 10 * torch.eye(3, TINY.hidden)

    attention = student.bert.encoder.layer[0].attention
    first = PLANTED.layers[0].heads[0] * TINY.head_dim
    head = slice(first, first + TINY.head_dim)
    attention.self.query.weight[head] = 0
    attention.self.value.weight[head] = torch.eye(TINY.head_dim, TINY.hidden)
    attention.output.dense.weight[:3, head] = loudness * torch.eye(3, TINY.head_dim)

    feed_forward, neurons = student.bert.encoder.layer[1], list(PLANTED.layers[1].ffn)
    feed_forward.intermediate.dense.weight[neurons] = torch.eye(3, TINY.hidden)
    feed_forward.output.dense.weight[3:6, neurons] = 5 * torch.eye(3)

    student.bert.pooler.dense.weight.copy_(torch.eye(TINY.hidden))
    labels = list(MARKERS.values())
    student.classifier.weight.zero_()
    for index, name in student.config.id2label.items():
        student.classifier.weight[index, 3 + labels.index(name)] = 4
    return student
