"""An exported model: its folder read back, its ONNX files scored."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import torch
from safetensors import SafetensorError
from transformers import (
    AutoModelForSequenceClassification,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from objectives.engines.onnx_model import open_session, run_session
from objectives.errors import UserError, first_line
from objectives.measures.evaluate import metric_of, predict_with
from objectives.workbench.inputs import Inputs


def load_model(folder: Path) -> PreTrainedModel:
    """The classifier of an exported folder, in evaluation mode on the CPU; runs no code of it.

    Raises UserError where there is none.
    """
    try:
        with torch.random.fork_rng(devices=[]):
            model: PreTrainedModel = AutoModelForSequenceClassification.from_pretrained(
                folder, use_safetensors=True, trust_remote_code=False, local_files_only=True
            )
    except (OSError, ValueError, SafetensorError) as error:
        reason = first_line(error)
        if folder.is_dir() and not (folder / "config.json").is_file():
            reason = "it has no config.json"
        elif not folder.exists() and isinstance(error, OSError):
            reason = "there is no such folder, and no such model in the hub's cache"
        raise UserError(f"'{folder}': no classifier could be loaded from it ({reason})") from error
    model.train(False)
    return model


def score_onnx(
    file: Path, inputs: Inputs, tokenizer: PreTrainedTokenizerBase | None = None
) -> list[float]:
    """The task's metric of an ONNX file on the selection and the held-out rows of a study's data,
    in the teacher's tokens or in those of the model's own tokenizer."""
    run = partial(run_session, open_session(file))
    splits = inputs.judging(tokenizer)
    return [metric_of(predict_with(run, split), split, inputs.task.metric) for split in splits]
