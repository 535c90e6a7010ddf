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

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import ClassVar

from objectives.errors import UserError, check_ranges
from objectives.measures.bits import bytes_of
from objectives.measures.evaluate import nearness, predict
from objectives.measures.knapsack import best_within
from objectives.problem import Problem
from objectives.strategies.few_bits import FewBits
from objectives.students.bert.architecture import BertArchitecture
from objectives.students.bert.pruned_bert import PrunedBertForSequenceClassification
from objectives.students.bert.quantising import quantised
from objectives.students.bert.splitting import HALVES, in_halves
from objectives.training.stages import Stage


def _stage(name: str) -> Stage:
    return Stage(
        name=name,
        epochs=3,
        learning_rate=3e-4,
        loss="prediction+hidden",
        quantised=True,
        keep="best",
    )


@dataclass(frozen=True, kw_only=True)
class BinaryBert(FewBits):
    """Half of the student in ternary weights, then each of these as two binary ones."""

    per_slot: ClassVar[frozenset[str]] = FewBits.per_slot | {"split"}
    cut_together: ClassVar[bool] = False

    weight_bits: int | tuple[int, ...] = 1
    """Of each half of a weight in the end; before they are split, and where R is measured, the
    weights are ternary. Always 1."""
    stages: tuple[Stage, ...] = (_stage("ternary"), _stage("binary"))
    """What the weights go through, ternary first."""
    first_binary: str = "binary"
    """The name of the stage before which the weights are split."""
    split: float = 1.0
    """Share of the bytes that splitting all layers adds which may be spent: the layers are split
    that gain most for it, the others have one binary matrix. In [0, 1]."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_ranges(
            self,
            {
                "weight_bits": (self.weight_bits == 1, "1"),
                "split": (0 <= self.split <= 1, "in [0, 1]"),
            },
        )
        names = [stage.name for stage in self.stages]
        if self.first_binary not in names:
            raise UserError(
                f"BinaryBert.first_binary is '{self.first_binary}', which is none of its stages "
                f"({', '.join(names)}); name the one before which weights are split"
            )
        for stage in self.stages[names.index(self.first_binary) :]:
            if stage.start == "student" or not stage.quantised:
                raise UserError(
                    f"stage '{stage.name}': it comes after the weights are split, so that it "
                    "needs quantised=True and start='previous'"
                )

    def in_bits(self, architecture: BertArchitecture) -> BertArchitecture:
        """The same units in ternary weights; those that have bits already as they are."""
        if architecture.has_bits:
            return architecture
        binary = super().in_bits(architecture)
        layers = tuple(replace(layer, weight_bits=2) for layer in binary.layers)
        return replace(binary, layers=layers)

    def entering(
        self,
        stage: Stage,
        model: PrunedBertForSequenceClassification,
        units: BertArchitecture,
        problem: Problem,
    ) -> tuple[PrunedBertForSequenceClassification, BertArchitecture]:
        """In binary weights, halves of ternary ones, from the first binary stage on."""
        if stage.name != self.first_binary:
            return super().entering(stage, model, units, problem)
        halved = self._halved(units, self._chosen(model, units, problem))
        return in_halves(model, halved), halved

    def _halved(self, units: BertArchitecture, split: Collection[int]) -> BertArchitecture:
        """In binary weights, those of some layers in halves."""
        binary = super().in_bits(units)
        layers = tuple(
            replace(layer, halves=HALVES if number in split else None)
            for number, layer in enumerate(binary.layers)
        )
        return replace(binary, layers=layers)

    def _chosen(
        self,
        model: PrunedBertForSequenceClassification,
        units: BertArchitecture,
        problem: Problem,
    ) -> Collection[int]:
        """The layers to split. What they have in common, the pooler's halves and a few bytes of
        the file's header, is paid first."""
        layers = range(len(units.layers))
        if self.split == 1:
            return layers
        taught = predict(problem.teacher, problem.alpha, problem.device)

        def measured(split: Collection[int]) -> tuple[float, int]:
            """How near the teacher the model is with these split, and its bytes."""
            halved = self._halved(units, split)
            found = quantised(in_halves(model, halved), halved)
            near = nearness(found, problem.alpha, taught, "cpu")
            return near, bytes_of(found.state_dict())

        (near, size), (_, least) = measured(layers), measured(())
        without = [measured(set(layers) - {layer}) for layer in layers]
        prices = [size - smaller for _, smaller in without]
        budget = self.split * (size - least) - (size - least - sum(prices))
        return best_within([near - further for further, _ in without], prices, budget)
