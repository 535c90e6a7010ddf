"""What the recurrent cells of a super-net read: see `students.cells.operations.READS`."""

import copy
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from objectives.students.cells.cell_classifier import CellBlock, CellForSequenceClassification
from objectives.students.cells.graph import IDENTITY, NONE
from objectives.students.cells.graph_space import GraphSpace
from objectives.weights.super_nets.mixing import Number, weighed


class SharedReads(nn.Module):
    """The weights of each operation at each place of `GraphSpace.reads`."""

    def __init__(self, space: GraphSpace, width: int):
        super().__init__()
        self.places = [place for place in space.all_places if place.startswith("reads[")]
        """Their names; none where cells read the token and the state as they are."""
        self.blocks = nn.ModuleDict(
            {
                f"{place}-{name}": CellBlock(width, name)
                for place, _ in enumerate(self.places)
                for name in space.reads
                if name not in (NONE, IDENTITY)
            }
        )

    def reader(
        self, names: Sequence[Sequence[tuple[str, Number]]]
    ) -> Callable[[int, Tensor, Tensor], Tensor]:
        """What `recurrence.over_tokens` reads by, where each place has numbers over names."""

        def done(place: int, name: str, state_B1D: Tensor, mask_B11: Tensor) -> Tensor:
            if name in (NONE, IDENTITY):
                return state_B1D if name == IDENTITY else torch.ones_like(state_B1D)
            own: Tensor = self.blocks[f"{place}-{name}"](state_B1D, mask_B11)
            return own

        return lambda place, state_B1D, mask_B11: weighed(
            (done(place, name, state_B1D, mask_B11), number) for name, number in names[place]
        )

    def copied_to(self, model: CellForSequenceClassification) -> None:
        """Give a model that has one operation at each place the weights of these."""
        for place, name in enumerate(model.config.reads):
            if name not in (NONE, IDENTITY):
                model.reads[place] = copy.deepcopy(self.blocks[f"{place}-{name}"])
