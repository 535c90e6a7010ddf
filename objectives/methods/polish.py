"""Polish: models of an earlier run are distilled further, cut as they are.

A trial of a study has as much training as all others, so that they can be compared. Whoever takes a
few of its models can spend more on these alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar, Self

import torch
from safetensors import SafetensorError

from objectives.bert_method import WeightBits
from objectives.device import to_device
from objectives.errors import UserError, check_ranges, first_line
from objectives.problem import Problem
from objectives.progress import Progress
from objectives.search_method import Outcome
from objectives.staged_method import Staged
from objectives.students.bert.architecture import SPACES, BertArchitecture, check_spaces
from objectives.students.bert.pruned_bert import PrunedBertForSequenceClassification
from objectives.training.stages import RECOVER, Stage
from objectives.weights.alpha import Chosen
from objectives.weights.independent import staged_search


@dataclass(frozen=True, kw_only=True)
class Polish(Staged, WeightBits):
    """The model of a trial, distilled further. `orchestrator.polish` launches it."""

    per_slot: ClassVar[frozenset[str]] = Staged.per_slot | WeightBits.per_slot | {"trial"}
    with_search: ClassVar[bool] = False

    trials: str = field(compare=False)
    """The folder of the trials of a run."""
    parent: str = ""
    """What decides those trials: another run in their folder makes another study."""
    trial: int = 0
    """The number of the trial whose model is polished. >= 0."""
    spaces: tuple[str, ...] = ("heads", "ffn")
    """Kinds of units that the run searched: what a cost of units counts."""
    stages: tuple[Stage, ...] = (replace(RECOVER, name="polish", epochs=6),)
    """What it goes through: 6 epochs at 3e-4, logits and hidden states, the best kept."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_ranges(self, {"trial": (self.trial >= 0, ">= 0")})
        check_spaces(type(self).__name__, self.spaces, SPACES)

    @classmethod
    def search(
        cls, members: Sequence[Self], problem: Problem, *, seed: int, progress: Progress
    ) -> Iterator[Outcome]:
        """Take the model of each member through the stages."""
        found = [inherited(Path(member.trials), member.trial) for member in members]
        chosen = Chosen([architecture for architecture, _ in found])
        students = [to_device(model, problem.device) for _, model in found]
        return staged_search(
            members, problem, chosen, seed=seed, progress=progress, students=students
        )


def inherited(
    trials: Path, number: int
) -> tuple[BertArchitecture, PrunedBertForSequenceClassification]:
    """What the folder of a run's trials has of trial 7: 00007/architecture.json and 00007/model/,
    the model on the CPU, in evaluation mode.

    Raises UserError if there is no such trial, or one that cannot be trained on.
    """
    folder = trials / f"{number:05d}"
    try:
        architecture = BertArchitecture.from_json((folder / "architecture.json").read_text())
        with torch.random.fork_rng(devices=[]):  # making a model draws numbers
            model = PrunedBertForSequenceClassification.from_pretrained(
                folder / "model", use_safetensors=True, local_files_only=True
            )
    except (OSError, ValueError, SafetensorError) as error:
        raise UserError(
            f"'{folder}' has no model of a trial to polish ({first_line(error)}); "
            "trials of other runs have numbers of their own"
        ) from error
    if architecture.has_bits or architecture.vocabulary is not None:
        raise UserError(
            f"trial {number} has few bits or word pieces of its own, and what is polished "
            "is trained in float32 on all pieces; polish a trial without these, or train with "
            "bits: Stage(quantised=True)"
        )
    model.train(False)
    return architecture, model
