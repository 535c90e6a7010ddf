"""Polish: models of an earlier run are distilled further, cut as they are."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar, Self

import torch

from objectives.device import to_device
from objectives.errors import NonNegativeInt, UserError, first_line
from objectives.problem import Problem
from objectives.progress import Progress
from objectives.pruning.staged_method import StagedMethod
from objectives.pruning.staged_search import Chosen, staged_search
from objectives.search_method import Outcome, SearchFailure
from objectives.students.bert.architecture import SPACES, BertArchitecture
from objectives.students.bert.pretrained import Checkpoint
from objectives.students.bert.pruned_bert import PrunedBertForSequenceClassification
from objectives.students.loading import load
from objectives.training.stages import RECOVER, Stage


def inherited(
    trials: Path, number: int
) -> tuple[BertArchitecture, PrunedBertForSequenceClassification]:
    """Read units and model of a trial of a run; UserError if it has none to train on."""
    folder = trials / f"{number:05d}"
    try:
        architecture = BertArchitecture.from_json((folder / "architecture.json").read_text())
        with torch.random.fork_rng(devices=[]):  # making a model draws numbers
            config = Checkpoint(str(folder / "model")).config
            model = load(PrunedBertForSequenceClassification, str(folder / "model"), config)
    except (OSError, ValueError) as error:
        raise UserError(
            f"'{folder}' has no trial's model to polish ({first_line(error)}); "
            "name a trial of this run"
        ) from error
    if architecture.has_bits or architecture.vocabulary is not None:
        raise UserError(
            f"trial {number} has few bits or word pieces of its own, but polishing trains in "
            "float32 on all word pieces; polish a trial without these, or train with "
            "bits: Stage(quantised=True)"
        )
    model.train(False)
    return architecture, model


@dataclass(frozen=True, kw_only=True)
class Polish(StagedMethod):
    """The model of a trial, distilled further. `maskfront.polish` launches it."""

    per_slot: ClassVar[frozenset[str]] = StagedMethod.per_slot | {"trial"}
    searchable: ClassVar[tuple[str, ...]] = SPACES
    with_search: ClassVar[bool] = False
    # It chooses no units, so nothing is asked of its cost.
    target_ratio: ClassVar[float] = 1.0  # type: ignore[misc]
    tolerance: ClassVar[float] = 0.0  # type: ignore[misc]

    trials: str = field(compare=False)
    """The folder of the trials of a run."""
    parent: str = ""
    """Digest of what decides those trials: another run in their folder makes another study."""
    trial: NonNegativeInt = 0
    """The number of the trial whose model is polished. >= 0."""
    spaces: tuple[str, ...] = ("heads", "ffn")
    """Kinds of units that the run searched: what a cost of units counts."""
    stages: tuple[Stage, ...] = (replace(RECOVER, name="polish", epochs=6),)
    """Stages of the training: 6 epochs at 3e-4, logits and hidden states, the best kept."""

    @property
    def keeps_zeros(self) -> bool:
        """Zeros that a sparse method has left stay; other models have none."""
        return True

    def lr_scale(self, problem: Problem, architecture: BertArchitecture | None) -> float:
        """The share of the FLOPs that a student lost, or of single weights if that is more."""
        _, model = inherited(Path(self.trials), self.trial)
        named = model.named_parameters()
        layers = [w for name, w in named if name.startswith("bert.encoder.") and w.ndim == 2]
        zeros = sum(int((weight == 0).sum()) for weight in layers)
        lost = zeros / max(1, sum(weight.numel() for weight in layers))
        return max(super().lr_scale(problem, architecture), lost)

    def _asked(self, problem: Problem, units: BertArchitecture) -> tuple[float, float]:
        return problem.budget.ratio(units), 0.0

    @classmethod
    def search(
        cls, members: Sequence[Self], problem: Problem, *, seed: int, progress: Progress
    ) -> Iterator[Outcome]:
        """Take the model of each member through the stages; one that has none fails alone."""
        loaded = {}
        for slot, member in enumerate(members):
            try:
                units, model = inherited(Path(member.trials), member.trial)
                member.in_bits(units)  # weights of low rank have none
                problem.scale.to_standard(model)
                loaded[slot] = units, model
            except UserError as error:
                yield SearchFailure(slot, str(error))
        if not loaded:
            return
        slots = list(loaded)
        for outcome in staged_search(
            [members[slot] for slot in slots],
            problem,
            Chosen([architecture for architecture, _ in loaded.values()]),
            seed=seed,
            progress=progress,
            students=[to_device(model, problem.device) for _, model in loaded.values()],
        ):
            yield replace(outcome, slot=slots[outcome.slot])
