"""The weights of trials of another run, as that run keeps them."""

from pathlib import Path

import torch

from objectives.errors import UserError, first_line
from objectives.students.bert.architecture import BertArchitecture
from objectives.students.bert.pretrained import Checkpoint
from objectives.students.bert.pruned_bert import PrunedBertForSequenceClassification
from objectives.students.loading import load


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
