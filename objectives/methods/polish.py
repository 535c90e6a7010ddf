"""Polish: models of an earlier run are distilled further, cut as they are.

A trial of a study has as much training as all others, so that they can be compared. Whoever takes a
few of its models can spend more on these alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar, Self

import torch
from safetensors import SafetensorError

from objectives.device import to_device
from objectives.errors import UserError, check_ranges, first_line
from objectives.problem import Problem
from objectives.progress import Progress
from objectives.search_method import Outcome
from objectives.staged_method import StagedMethod
from objectives.strategies.one_shot import Chosen
from objectives.students.bert.architecture import BertArchitecture
from objectives.students.bert.pruned_bert import PrunedBertForSequenceClassification
from objectives.training.stages import Stage
from objectives.weights.independent import staged_search


@dataclass(frozen=True, kw_only=True)
class Polish(StagedMethod):
    """The model of a trial, distilled further. `orchestrator.polish` launches it."""

    per_slot: ClassVar[frozenset[str]] = StagedMethod.per_slot | {"trial"}
    with_search: ClassVar[bool] = False

    trials: str = field(compare=False)
    """The folder of the trials of a run."""
    parent: str = ""
    """What decides those trials: another run in their folder makes another study."""
    trial: int = 0
    """The number of the trial whose model is polished. >= 0."""
    stages: tuple[Stage, ...] = (
        Stage(name="polish", epochs=6, learning_rate=3e-4, loss="prediction+hidden", keep="best"),
    )
    """What it goes through."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_ranges(self, {"trial": (self.trial >= 0, ">= 0")})

    def idle(self) -> Mapping[str, str]:
        """A model keeps the size that it has."""
        return dict.fromkeys(("target_ratio", "tolerance"), "a model that is polished is cut")

    @classmethod
    def search(
        cls, members: Sequence[Self], problem: Problem, *, seed: int, progress: Progress
    ) -> Iterator[Outcome]:
        """Take the model of each member through the stages."""
        found = [member._read() for member in members]
        architectures = [architecture for architecture, _ in found]
        sized = [
            replace(member, target_ratio=problem.cost.exact(architecture) / problem.cost_full)
            for member, architecture in zip(members, architectures, strict=True)
        ]
        yield from staged_search(
            sized,
            problem,
            Chosen(architectures),
            seed=seed,
            progress=progress,
            students=[to_device(model, problem.device) for _, model in found],
        )

    def _read(self) -> tuple[BertArchitecture, PrunedBertForSequenceClassification]:
        """What a run keeps of trial 7: 00007/architecture.json and 00007/model/."""
        folder = Path(self.trials, f"{self.trial:05d}")
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
                f"trial {self.trial} has few bits or word pieces of its own, and what is polished "
                "is trained in float32 on all pieces; polish a trial without these, or train with "
                "bits: Stage(quantised=True)"
            )
        model.train(False)
        return architecture, model
