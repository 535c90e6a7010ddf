"""Cell search: a student of a few operations, trained from nothing on what the teacher says."""

# A trial is one genotype: `Study.space` names its places ("operations[0]", "nodes[2].inputs[1]",
# "width"), and the outer study's sampler is the strategy. What the student has of the teacher is
# the embeddings of its words, frozen, and a map of these that learns; in the end both are one
# table, so that the map costs nothing (AdaBERT, Chen et al. 2020, takes the embeddings, too).

from array import array
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import torch
from torch import Tensor, nn
from transformers.configuration_utils import PreTrainedConfig

from objectives.cache import kernel_lock
from objectives.device import to_device
from objectives.errors import NonNegativeInt, UserError, check_ranges
from objectives.methods.cells.base.learning import CellMethod, finished, new_cell, taught_loss
from objectives.methods.cells.base.shared_cells import SharedCells, shared_net
from objectives.problem import Problem
from objectives.progress import Progress
from objectives.search_method import CurvePoint, Outcome, SearchFailure, SearchResult, not_finite
from objectives.session import Session
from objectives.students.cells.cell_classifier import CellForSequenceClassification
from objectives.students.cells.genotype import Genotype, check_position_wise
from objectives.students.cells.graph import Node
from objectives.text.data import Batch, Split, no_labels
from objectives.training.teacher_states import keep_states, kept_logits

# More train rows: copies with some words drawn again, for students that learn from answers.
#
# Unigram noise (Xie et al. 2017, "Data Noising as Smoothing in Neural Network Language Models"):
# a token becomes one that is drawn from all tokens of train. The teacher answers the copies, as
# in Tang et al. 2019 ("Distilling Task-Specific Knowledge from BERT into Simple Neural
# Networks"), so that they need not make sense.

_DRAWN = 0.3
"""Chance of a token to be drawn again."""


def with_noised(problem: Problem, copies: int, seed: int, progress: Progress) -> Problem:
    """The problem with copies of each train row after these rows, and the teacher's answers."""
    if not copies:
        return problem

    def more() -> Problem:
        train = problem.train
        split = noised(train, copies, seed, {*problem.vocabulary.tokenizer.all_special_ids})
        session = Session(cache=problem.cache, device=problem.device, progress=progress)
        role, engine = "noised rows", problem.teacher_engine
        problem.cache.mkdir(parents=True, exist_ok=True)
        with kernel_lock(problem.cache / "noised.lock"):  # one worker asks, the others wait
            logits = kept_logits(problem.teacher, split, session=session, role=role, engine=engine)
        ids, types = train.input_ids + split.input_ids, train.token_type_ids + split.token_type_ids
        labels = np.concatenate([train.labels, split.answered(logits).labels])
        both = replace(train, input_ids=ids, token_type_ids=types, labels=labels)
        answers = torch.cat([problem.teacher_logits, logits.to(problem.device)])
        return replace(problem, train=both, teacher_logits=answers)

    return problem.once(("noised", copies, seed), more)


def noised(split: Split, copies: int, seed: int, special: Set[int]) -> Split:
    """So many copies of each row of the split, without labels; tokens that are `special` stay."""
    generator = np.random.default_rng(seed)
    tokens = np.concatenate(split.input_ids)
    is_word = ~np.isin(tokens, list(special))
    ends = np.cumsum(split.lengths)[:-1]
    rows: list[array[int]] = []
    for _ in range(copies):
        drawn = is_word & (generator.random(len(tokens)) < _DRAWN)
        copy = tokens.copy()
        copy[drawn] = generator.choice(tokens[is_word], drawn.sum())
        rows += [array("i", row.tolist()) for row in np.split(copy, ends)]
    types, labels = split.token_type_ids * copies, no_labels(len(rows), split.labels)
    return replace(split, input_ids=rows, token_type_ids=types, labels=labels)


@dataclass(frozen=True, kw_only=True)
class CellSearch(CellMethod):
    """Students of convolutions, attention, gates and poolings, for ratios below a tenth."""

    operations: tuple[str, ...] = ("conv5", "conv5")
    """Operations of the blocks, in their order: names in `students.cells.operations.OPERATIONS`, or
    "none", where there is no block. A knob "operations[0]" is one of them."""
    nodes: tuple[Node, ...] = ()
    """In place of a row of blocks any graph: each node does an operation on each of its inputs, 0,
    the words, or nodes before it, from 1; what nobody reads goes to the classifier. Knobs are
    "nodes[2].operations[0]", "nodes[2].inputs[0]" and "nodes[2].combination"."""
    pooling: tuple[str, ...] = ("mean", "max")
    """Pooling over tokens that the classifier reads: some of "mean", "max" and "min"."""
    bigrams: int = 0
    """Rows of a table, added to the words, of hashed pairs of neighbours. No FLOPs. 0: none."""
    recurrent: bool = False
    """Apply the blocks or the graph token by token, to a gated mean of the token and the last
    output. All operations must then be in `operations.POSITION_WISE`, "identity" or "none"."""
    epochs: float = 8
    """Passes over the train split. > 0, or 0 with `shared`."""
    noised: NonNegativeInt = 0
    """Copies of each train row with 30% of its tokens drawn again, which the teacher, a BERT,
    answers and a pass reads, too: for topics and moods; for grammar they do harm. >= 0."""
    hidden_weight: float = 0.0
    """Weight of the hidden states beside the logits: each block learns, through a map of its own,
    what the teacher's layer at its depth says. 1 helps four blocks, two hardly. >= 0; 0 where
    the cell is recurrent."""
    shared: SharedCells | None = None
    """A super-net trained once for all trials of a run: a trial takes its weights from there, as
    they are (`epochs=0`) or to train them further. None: a training for each trial."""

    def __post_init__(self) -> None:
        super().__post_init__()
        alone = self.shared is None
        check_ranges(
            self,
            epochs=(self.epochs > 0 or (self.epochs == 0 and not alone), "> 0, or 0 if shared"),
            hidden_weight=(
                self.hidden_weight == 0 if self.recurrent else self.hidden_weight >= 0,
                "0 where the cell is recurrent" if self.recurrent else ">= 0",
            ),
        )
        graph = self.genotype.graph
        if self.shared is not None:
            space = self.shared.space
            if (space.inputs, space.cells, space.output) != (1, (1,), "unread") or not space.edges:
                raise UserError(
                    "CellSearch.shared.space: a trial is one cell with one input, and its output "
                    "is 'unread'; leave inputs, cells and output out, and set edges"
                )
            if self.recurrent:
                check_position_wise(space.operations)
            self.shared.choices(graph)

    @property
    def genotype(self) -> Genotype:
        """The genotype of its fields."""
        names = () if self.nodes else self.operations
        return Genotype(self.width, names, self.nodes, self.pooling, self.bigrams, self.recurrent)

    def canonical(self) -> Self:
        """The genotype's own spelling of the graph."""
        cell = self.genotype
        return replace(self, operations=cell.operations, nodes=cell.nodes, pooling=cell.pooling)

    def inactive(self) -> dict[str, str]:
        blocks = [f"operations[{number}]" for number in range(len(self.operations))]
        inactive = dict.fromkeys(blocks, "nodes are given") if self.nodes else {}
        if not self.epochs:
            of_training = ("learning_rate", "batch_size", "hidden_weight")
            inactive |= dict.fromkeys(of_training, "epochs is 0")
        return inactive

    def scale_epochs(self, share: float) -> Self:
        shared = self.shared and replace(self.shared, epochs=self.shared.epochs * share)
        return replace(self, epochs=self.epochs * share, shared=shared)

    def check_shapes(self, student: PreTrainedConfig, teacher: PreTrainedConfig) -> None:
        """Hidden states and answers to new rows are those of a BERT."""
        super().check_shapes(student, teacher)
        if self.hidden_weight or self.noised:
            _ = teacher.hidden_size

    @classmethod
    def search(
        cls, members: Sequence[Self], problem: Problem, *, seed: int, progress: Progress
    ) -> Iterator[Outcome]:
        """Train the student of each member in turn, from nothing or from what the run shares."""
        method, taken = members[0], None
        problem = with_noised(problem, method.noised, seed, progress)
        if method.shared is not None:
            try:
                base = replace(method.genotype, operations=(), nodes=())
                taken = shared_net(method.shared, base, problem, progress, seed=seed)
            except FloatingPointError as error:
                yield from (SearchFailure(slot, str(error)) for slot in range(len(members)))
                return
        for slot, member in enumerate(members):
            genotype = member.genotype
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed)
                if taken is None or member.shared is None:
                    student = new_cell(genotype, problem)
                else:
                    student = taken.model.extract(member.shared.choices(genotype.graph))
                nodes = genotype.graph.nodes if member.hidden_weight else ()
                fits = nn.ModuleList(
                    nn.Linear(genotype.width, problem.teacher.config.hidden_size) for _ in nodes
                )
            fits = to_device(fits, problem.device)
            curve = list(taken.curve) if taken else []
            if member.epochs:
                curve += member._learnt(student, fits, problem, seed, progress)
            model = finished(student)
            yield not_finite(slot, curve) or SearchResult(slot, genotype, model, curve)

    def _learnt(
        self,
        student: CellForSequenceClassification,
        fits: nn.ModuleList,
        problem: Problem,
        seed: int,
        progress: Progress,
    ) -> list[CurvePoint]:
        if self.hidden_weight:
            keep_states(problem, torch.float32, progress)

        def loss(batch: Batch, _: int) -> Tensor:
            answer = student(**batch.inputs, output_hidden_states=True)
            return taught_loss(answer, student.graph, batch, problem, fits, self.hidden_weight)

        student.train()
        both = nn.ModuleList([student, fits])
        return self._train(problem, both, loss, self.epochs, "learn", seed, progress)
