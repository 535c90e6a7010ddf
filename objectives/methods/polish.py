"""Polish: models of an earlier run are distilled further, cut as they are.

A trial of a study has as much training as all others, so that they can be compared. Whoever takes a
few of its models can spend more on these alone.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar, Self

from objectives.bert_method import WeightBits
from objectives.device import to_device
from objectives.errors import NonNegativeInt, UserError
from objectives.problem import Problem
from objectives.progress import Progress
from objectives.search_method import Outcome, SearchFailure
from objectives.staged_method import Staged
from objectives.students.bert.architecture import SPACES, check_spaces
from objectives.training.stages import RECOVER, Stage
from objectives.weights.alpha import Chosen
from objectives.weights.independent import staged_search
from objectives.weights.inherited import inherited


@dataclass(frozen=True, kw_only=True)
class Polish(Staged, WeightBits):
    """The model of a trial, distilled further. `orchestrator.polish` launches it."""

    per_slot: ClassVar[frozenset[str]] = Staged.per_slot | WeightBits.per_slot | {"trial"}
    with_search: ClassVar[bool] = False

    trials: str = field(compare=False)
    """The folder of the trials of a run."""
    parent: str = ""
    """What decides those trials: another run in their folder makes another study."""
    trial: NonNegativeInt = 0
    """The number of the trial whose model is polished. >= 0."""
    spaces: tuple[str, ...] = ("heads", "ffn")
    """Kinds of units that the run searched: what a cost of units counts."""
    stages: tuple[Stage, ...] = (replace(RECOVER, name="polish", epochs=6),)
    """What it goes through: 6 epochs at 3e-4, logits and hidden states, the best kept."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_spaces(type(self).__name__, self.spaces, SPACES)

    @classmethod
    def search(
        cls, members: Sequence[Self], problem: Problem, *, seed: int, progress: Progress
    ) -> Iterator[Outcome]:
        """Take the model of each member through the stages; one that has none fails alone."""
        found = {}
        for slot, member in enumerate(members):
            try:
                units, model = inherited(Path(member.trials), member.trial)
                member.in_bits(units)  # weights of low rank have none
                found[slot] = units, model
            except UserError as error:
                yield SearchFailure(slot, str(error))
        if not found:
            return
        slots = list(found)
        for outcome in staged_search(
            [members[slot] for slot in slots],
            problem,
            Chosen([architecture for architecture, _ in found.values()]),
            seed=seed,
            progress=progress,
            students=[to_device(model, problem.device) for _, model in found.values()],
        ):
            yield replace(outcome, slot=slots[outcome.slot])
