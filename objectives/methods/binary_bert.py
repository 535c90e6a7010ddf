"""BinaryBERT (Bai et al. 2021): weights of one bit, from a ternary model of half the width.

Half of the student (the units that move the answer most) is trained in ternary weights. Each of
these is then split into two binary ones that add up to it (`bert/splitting.py`), so that the binary
model begins at the loss of the ternary one, and is trained further. A weight that is split takes
two bits a number and two scales a row: as many bytes as one bit a number in the whole student.

What differs from the paper: units are chosen by Fisher information over the whole model (there the
first half of each layer of a DynaBERT); losses, scales, inputs, embeddings and gradients as in
`ternary_bert.py`. Embeddings do not learn here, so that nothing would be gained by splitting them:
they stay ternary. Which layers are split, where not all are, is chosen by the same knapsack, but
after the ternary training: a layer's gain is how much further from the teacher the model answers on
the alpha split with this layer alone in one binary matrix in place of two. There it is measured
before, and those that are not split are binary all the time.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self

from objectives.bert_method import Bits
from objectives.errors import Share, UserError
from objectives.measures.bits import bytes_of
from objectives.measures.evaluate import nearness
from objectives.measures.knapsack import best_within
from objectives.problem import Problem
from objectives.progress import Progress
from objectives.search_method import Outcome
from objectives.staged_method import Budgeted, Staged
from objectives.strategies.importance import scores_per_cost
from objectives.students.bert.architecture import BertArchitecture
from objectives.students.bert.pruned_bert import PrunedBertForSequenceClassification
from objectives.students.bert.quantising import quantised
from objectives.students.bert.splitting import HALVES, in_halves
from objectives.training.stages import RECOVER, Stage
from objectives.weights.alpha import Chosen
from objectives.weights.independent import staged_search

_TERNARY = replace(RECOVER, name="ternary", quantised=True)


@dataclass(frozen=True, kw_only=True)
class BinaryBert(Budgeted, Staged):
    """Half of the student in ternary weights, then each of these as two binary ones.

    R is measured while the weights are ternary.
    """

    per_slot: ClassVar[frozenset[str]] = Budgeted.per_slot | Staged.per_slot | {"split"}
    with_search: ClassVar[bool] = False
    cut_together: ClassVar[bool] = False

    input_bits: Bits = 8
    """To which what enters a weight is rounded: 32 (not at all), 8 or 4."""
    embedding_bits: int = 2
    """Of the embeddings of words and positions, which are rounded before the training and stay:
    32, 8, 4, 2 or 1."""
    stages: tuple[Stage, ...] = (_TERNARY, replace(_TERNARY, name="binary"))
    """What the weights go through, ternary first: 3 epochs each, as those of TernaryBert."""
    first_binary: str = "binary"
    """The name of the stage before which the weights are split."""
    split: Share = 1.0
    """Share of the bytes that splitting all layers adds which may be spent: the layers are split
    that gain most for it, the others have one binary matrix. In [0, 1]."""

    def __post_init__(self) -> None:
        super().__post_init__()
        names = [stage.name for stage in self.stages]
        if self.first_binary not in names:
            raise UserError(
                f"BinaryBert.first_binary is '{self.first_binary}', which is not one of its "
                f"stages ({', '.join(names)}); name the stage before which weights are split"
            )
        for stage in self.stages[names.index(self.first_binary) :]:
            if stage.start == "student" or not stage.quantised:
                raise UserError(
                    f"stage '{stage.name}': it comes after the weights are split, so it "
                    "needs quantised=True and start='previous'"
                )

    @classmethod
    def search(
        cls, members: Sequence[Self], problem: Problem, *, seed: int, progress: Progress
    ) -> Iterator[Outcome]:
        """Choose each member's units by how far the answer moves without them, per cost; train."""
        scores = scores_per_cost(problem, members[0].spaces, "logits")
        chosen = Chosen([member.within_budget(scores, problem) for member in members])
        return staged_search(members, problem, chosen, seed=seed, progress=progress)

    def in_bits(self, architecture: BertArchitecture) -> BertArchitecture:
        """The same units in ternary weights; those that have bits already as they are."""
        if architecture.has_bits:
            return architecture
        return self._with_weight_bits(architecture, 2)

    def entering(
        self,
        stage: Stage,
        model: PrunedBertForSequenceClassification,
        units: BertArchitecture,
        problem: Problem,
    ) -> tuple[PrunedBertForSequenceClassification, BertArchitecture]:
        """In binary weights, halves of ternary ones, from the first binary stage on."""
        if stage.name == self.first_binary:
            units = self._halved(units, self._chosen(model, units, problem))
            model = in_halves(model, units)
        return model, units

    def _halved(self, units: BertArchitecture, split: Collection[int]) -> BertArchitecture:
        """In binary weights, those of some layers in halves."""
        binary = self._with_weight_bits(units, 1)
        layers = tuple(
            replace(layer, halves=HALVES if number in split else None)
            for number, layer in enumerate(binary.layers)
        )
        return replace(binary, layers=layers)

    def _chosen(
        self, model: PrunedBertForSequenceClassification, units: BertArchitecture, problem: Problem
    ) -> Collection[int]:
        """The layers to split. What they have in common, the pooler's halves and a few bytes of
        the file's header, is paid first."""
        layers = range(len(units.layers))
        if self.split == 1:
            return layers
        taught = problem.alpha_logits.cpu()

        def measured(split: Collection[int]) -> tuple[float, int]:
            """How near the teacher the model is with these split, and its bytes."""
            halved = self._halved(units, split)
            found = quantised(in_halves(model, halved), halved)
            near = nearness(found, problem.alpha, taught, "cpu")
            return near, bytes_of(found.state_dict())

        (near, size), (_, least) = measured(layers), measured(())
        without = [measured(set(layers) - {layer}) for layer in layers]
        costs = [size - smaller for _, smaller in without]
        budget = self.split * (size - least) - (size - least - sum(costs))
        return best_within([near - further for further, _ in without], costs, budget)
