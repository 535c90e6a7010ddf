"""What tells a population which units stay: architecture variables that learn, or a choice made."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from torch import Tensor

from objectives.students.bert.architecture import BertArchitecture
from objectives.training.stage_training import Masks, StageTraining


class Alpha(Protocol):
    """The architecture variables of K students, and how they learn."""

    from_train: bool
    """Alpha learns from the loss of the weights: the masks that `masks` gives carry its gradient,
    which the weights' backward pass adds up."""

    def masks(self, progress: float) -> Masks:
        """What multiplies the units at the moment.

        Args:
            progress: share of the search that is done, in [0, 1].

        Returns:
            Of each space (K, layers, *units_of(shape, space)), from 0 to 1.
        """

    def learn(self, training: StageTraining, masks: Masks, progress: float) -> Mapping[str, Tensor]:
        """Make a step, after the weights made theirs.

        Args:
            training: the stage at work; its `population` holds the K students.
            masks: those of this step.
            progress: share of the search that is done, in [0, 1].

        Returns:
            What was measured on the way, for the learning curve, each (K,).
        """

    def architecture(self, place: int) -> BertArchitecture:
        """The discrete answer of one student.

        Args:
            place: of the student in the population.

        Returns:
            The units that stay.

        Raises:
            FloatingPointError: if alpha is not finite.
        """


class Chosen:
    """An `Alpha` that has nothing to learn, where no stage searches."""

    from_train = False

    def __init__(self, architectures: Sequence[BertArchitecture]):
        self._architectures = architectures

    def masks(self, progress: float) -> Masks:
        raise AssertionError("no stage searches")

    def learn(self, training: StageTraining, masks: Masks, progress: float) -> Mapping[str, Tensor]:
        raise AssertionError("no stage searches")

    def architecture(self, place: int) -> BertArchitecture:
        return self._architectures[place]
