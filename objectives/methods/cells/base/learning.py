"""Training of cells: settings, new weights with a model's words, losses on a teacher's answers."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers.modeling_outputs import SequenceClassifierOutput

from objectives.device import to_device
from objectives.errors import PositiveFloat, PositiveInt
from objectives.problem import Problem
from objectives.progress import Progress
from objectives.search_method import CurvePoint, SearchMethod
from objectives.students.cells.cell_classifier import CellConfig, CellForSequenceClassification
from objectives.students.cells.genotype import Genotype
from objectives.students.cells.graph import Graph
from objectives.text.data import Batch
from objectives.training.fitting import train_cells, trainable
from objectives.training.losses import prediction_loss, teaching_layer
from objectives.training.teacher_states import teacher_trace


@dataclass(frozen=True, kw_only=True)
class CellMethod(SearchMethod):
    """Base of the methods whose students are cells."""

    per_slot: ClassVar[frozenset[str]] = frozenset({"learning_rate"})

    width: int = 128
    """D, dimensions of the hidden states: a multiple of 16."""
    learning_rate: PositiveFloat = 3e-3
    """Peak of AdamW's rate in each training, after 10% of warm-up; then linear to 0. > 0."""
    batch_size: PositiveInt = 32
    """Sequences of a step. >= 1."""

    def _train(
        self,
        problem: Problem,
        module: nn.Module,
        loss: Callable[[Batch, int], Tensor],
        epochs: float,
        stage: str,
        seed: int,
        progress: Progress,
    ) -> list[CurvePoint]:
        """Train the weights of a module at the rate and batch size of the method."""
        return train_cells(
            problem,
            trainable(module),
            loss,
            epochs=epochs,
            learning_rate=self.learning_rate,
            batch_size=self.batch_size,
            seed=seed,
            progress=progress,
            stage=stage,
        )


def new_cell(genotype: Genotype, problem: Problem) -> CellForSequenceClassification:
    """A new student: the problem's words, frozen, and a map, first their principal components."""
    words = problem.words.embeddings
    config = CellConfig(vocab_size=len(words), **problem.words.settings, **genotype.config())
    student = CellForSequenceClassification(config)
    fewer = nn.Linear(words.shape[1], genotype.width, bias=False)
    nn.init.zeros_(fewer.weight)
    nn.init.zeros_(student.types.weight)
    if student.bigrams is not None:
        nn.init.zeros_(student.bigrams.weight)
    words = words.cpu()
    centred = words - words.mean(0)
    values, vectors = torch.linalg.eigh(centred.T @ centred / len(words))
    # Scaled so that what they give of a word has a mean square of 1 in the largest.
    components = (vectors.T.flip(0) / values[-1].sqrt())[: genotype.width]
    with torch.no_grad():
        fewer.weight[: len(components)] = components
    student.words = nn.Sequential(nn.Embedding.from_pretrained(words, freeze=True), fewer)
    return to_device(student, problem.device)


@torch.no_grad()
def finished(student: CellForSequenceClassification) -> CellForSequenceClassification:
    """The student in evaluation mode, its words and their map as one table, which costs less."""
    words, fewer = student.words.children()
    student.words = nn.Embedding.from_pretrained(fewer(words.weight), freeze=False)
    student.train(False)
    return student


def answers_loss(logits_BC: Tensor, batch: Batch, problem: Problem) -> Tensor:
    """The loss of logits against the teacher's of a batch of train: a scalar."""
    wanted_BC, several = problem.teacher_logits[batch.rows], problem.train.several
    return prediction_loss(logits_BC[None], wanted_BC, several=several).sum()


def loss_of(student: nn.Module, problem: Problem) -> Callable[[Batch, int], Tensor]:
    """`answers_loss` of a student on a batch, for `train_cells`."""
    return lambda batch, _: answers_loss(student(**batch.inputs).logits, batch, problem)


def taught_loss(
    answer: SequenceClassifierOutput,
    graph: Graph,
    batch: Batch,
    problem: Problem,
    fits: Iterable[Callable[[Tensor], Tensor]],
    hidden_weight: float,
) -> Tensor:
    """`answers_loss` plus `hidden_weight` times the mean squared errors of each node: a scalar."""
    # What each node gives, mapped by its `fit`, is to be the normed hidden states of the teacher's
    # layer at its depth.
    assert answer.logits is not None  # as transformers types it
    assert answer.hidden_states is not None
    total = answers_loss(answer.logits, batch, problem)
    if not hidden_weight:
        return total
    teacher = teacher_trace(problem, batch, torch.float32, with_scores=False)
    layers, depths = len(teacher.hidden) - 1, graph.depths
    share_BS = batch.attention_mask / batch.attention_mask.sum()
    for state, fit in enumerate(fits, start=1):
        wanted_BSE = teacher.hidden[teaching_layer(depths[state], max(depths), layers)][0]
        wanted_BSE = functional.layer_norm(wanted_BSE, wanted_BSE.shape[-1:])
        errors_BS = (fit(answer.hidden_states[state]) - wanted_BSE).square().mean(-1)
        total = total + hidden_weight * (errors_BS * share_BS).sum()
    return total
