"""From a point of the front to a model folder that can be moved anywhere, and to the hub."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from objectives.cache import atomic_write
from orchestrator.errors import RunError
from orchestrator.runs.reading import damages
from orchestrator.runs.records import RunRecord
from orchestrator.runs.run_folder import BESIDE, MODEL
from orchestrator.storage.retry import reason_of
from reports.exporting.card import model_card
from reports.model_folders import model_folder
from reports.speed import inputs_of

if TYPE_CHECKING:
    from objectives.workbench.inputs import Inputs
    from orchestrator.study import Study

_MOST_THRESHOLDS = 12  # most that a card lists


@dataclass(frozen=True)
class Exported:
    """A written folder, with notes on it."""

    folder: Path
    """Folder of the model."""
    notes: tuple[str, ...]
    """A line if the model is outside its budget, and one for each checked ONNX file."""


def export(
    run: RunRecord,
    trial: int,
    out: str | Path,
    *,
    onnx: bool = False,
    int8: Study | None = None,
    int4: Study | None = None,
    notes: Sequence[str] = (),
) -> Exported:
    """Write a finished trial's model to `out`, to be loaded where maskfront is not installed.

    The folder holds model.safetensors, config.json, the tokenizer, a model card README.md,
    architecture.json, result.json, and its classes unless transformers has one for it; and below
    beside/ the models of other tasks. It is written whole or not at all, and over nothing.

    Args:
        run: the run that the trial is of.
        trial: the number of a finished trial.
        out: the folder to make; it must not hold anything yet.
        onnx: add onnx/model.onnx, checked against torch.
        int8: the run's own study, to add onnx/model_int8.onnx too, and what that loses on the
            study's selection and held-out splits.
        int4: the same for onnx/model_int4.onnx, whose weights and embeddings have 4 bits.
        notes: more lines for the card.

    Returns:
        The folder, and what there is to tell of it.

    Raises:
        RunError: if the trial has no model or a damaged file, if `out` already holds something, or
            if `int8` or `int4` is another study.
        UserError: if ONNX is not available.
    """
    out = Path(out)
    model = model_folder(run, trial)
    if damaged := damages(model.parent):
        raise RunError(
            f"'{model.parent}': trial {trial} is damaged: {'; '.join(damaged)}; export another "
            "trial, or put the file back from a copy"
        )
    check_free(out)

    from objectives.delivery.exported import write_model  # torch, which a front does without

    studies = {"int8": int8, "int4": int4}
    inputs = {name: inputs_of(run, study) for name, study in studies.items() if study is not None}
    row = next(row for row in run.finished if row.number == trial)
    with new_folder(out) as unfinished:
        family, plain = write_model(model, unfinished)
        for name in ("architecture.json", "result.json"):
            file = model.parent / name
            # A model may be a link, to where there is more room; but what is shared with it must
            # not be a file of the user's own.
            if file.is_symlink():
                raise RunError(f"'{file}' is a link; put the file itself there")
            shutil.copyfile(file, unfinished / name)
        notes = [*notes]
        for task in sorted((model.parent / BESIDE).glob("*")):
            (folder := unfinished / BESIDE / task.name).mkdir(parents=True)
            write_model(task / MODEL, folder)
            notes.append(f"{folder.relative_to(unfinished)}: the model of task {task.name}")
        result = row.result
        if result.violation <= 0 and result.missed is not None:
            notes.append(f"{result.missed}, so it is not on the front")
        elif not row.feasible:
            notes.append(
                f"outside its budget, so it is not on the front: {result.budget_name} ratio "
                f"{result.reached:.4f}, target {result.target_ratio:.4f}, give or take "
                f"{result.tolerance:.1%} of it"
            )
        if shares := result.thresholds:
            each = ", ".join(f"{name} {share:.3f}" for name, share in shares.items())
            if len(shares) > _MOST_THRESHOLDS:
                low, *_, high = sorted(shares.values())
                each = f"{len(shares)} from {low:.3f} to {high:.3f}"
            notes.append(
                "thresholds in config.json, chosen on the selection split, which classify.py "
                f"of an ONNX export has and a pipeline leaves to you: {each}"
            )
        if onnx or inputs:
            notes += _write_onnx(run, unfinished, inputs)
        card = model_card(run, row, family, plain=plain, notes=notes)
        (unfinished / "README.md").write_text(card, encoding="utf-8")
    return Exported(out, tuple(notes))


def check_free(out: Path) -> None:
    """Raise RunError if `out` already holds something, or if no folder can become it."""
    if out.parts[:1] == ("~",):
        raise RunError(f"'{out}' begins with ~, which only a shell reads; write the path", "out")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise RunError(f"'{out}' exists and is not an empty folder; choose another", "out")
    place = out.resolve()
    if place.is_mount() and place != Path.cwd():  # whose files are moved into it
        raise RunError(f"'{out}' is a mount point; name a folder in it", "out")
    above = next(folder for folder in place.parents if folder.exists())
    if not above.is_dir() or not os.access(above, os.W_OK | os.X_OK):
        raise RunError(f"'{out}' cannot be made in '{above}'; choose another", "out")


@contextmanager
def new_folder(out: Path, *, replace: bool = False) -> Iterator[Path]:
    """Folder that becomes `out` at the end, or vanishes on an error; RunError if `out` is taken."""
    try:  # "." has no name of its own to write beside
        with atomic_write(out.resolve(), replace=replace) as unfinished:
            unfinished.mkdir(parents=True)
            yield unfinished
    except OSError:
        if not replace:
            check_free(out)
        raise


def _write_onnx(run: RunRecord, folder: Path, inputs: Mapping[str, Inputs]) -> list[str]:
    """Write ONNX in float32 and in the given bits; returns a note on the loss of each."""
    from objectives.delivery.deployed import write_single
    from objectives.delivery.exported import load_model, score_onnx
    from objectives.engines.onnx_model import write_int4, write_int8, write_onnx
    from objectives.students.bert.pretrained import Checkpoint
    from objectives.students.bert.quantising import rounds_inputs

    (folder / "onnx").mkdir()
    full = folder / "onnx" / "model.onnx"
    model = load_model(folder)
    difference = write_onnx(model, full)
    notes = [
        f"{full.relative_to(folder)}: {full.stat().st_size / 1e6:.1f} MB; its logits differ from "
        f"torch's by {difference:.0e} at most, on random inputs of several shapes"
        + ", because ONNX does not round what enters the weights"
        * rounds_inputs(model)
    ]
    writers = {"int8": (write_int8, "dynamically quantised"), "int4": (write_int4, "in blocks")}
    tokenizer = Checkpoint(str(folder)).tokenizer
    for name, rows in inputs.items():
        write, how = writers[name]
        small = full.with_name(f"model_{name}.onnx")
        write(full, small)
        more = rows, tokenizer, getattr(model.config, "thresholds", None)
        scored = zip(*(score_onnx(file, *more) for file in (full, small)), strict=True)
        metrics = [" -> ".join(f"{metric:.4f}" for metric in of_split) for of_split in scored]
        notes.append(
            f"{small.relative_to(folder)}: {small.stat().st_size / 1e6:.1f} MB, {how}; "
            f"{run.definition['task.metric']} {metrics[0]} (held out {metrics[1]})"
        )
    if tokenizer.is_fast:
        file = "onnx/model_int8.onnx" if "int8" in inputs else "onnx/model.onnx"
        longest = int(run.definition["task.max_length"])
        truncation = run.definition.get("task.truncation", "head")
        pairs = "text pair" in run.sources
        write_single(folder, file, model, tokenizer, longest, truncation, pairs=pairs)
        notes.append(f"classify.py: answers texts by {file}, with onnxruntime and tokenizers alone")
    return notes


def check_push(repo: str) -> None:
    """Raise RunError for an invalid name or without a token, before anything is sent."""
    from huggingface_hub import get_token
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

    try:
        validate_repo_id(repo)
    except HFValidationError as error:
        raise RunError(f"'{repo}' is not the name of a repository: {error}") from error
    if get_token() is None:
        raise RunError(
            f"'{repo}': there is no token for the Hugging Face hub; "
            "log in with `hf auth login`, or set HF_TOKEN"
        )


def push(folder: Path, repo: str) -> str:
    """Upload the folder to a model repository, which is made, private, if it is not there yet.

    Args:
        folder: of an exported model; it stays as it is.
        repo: name of the repository on the hub.

    Returns:
        The address of the commit.

    Raises:
        RunError: where the hub refuses or is not reached.
    """
    from huggingface_hub import HfApi

    check_push(repo)
    api = HfApi()
    try:
        made = api.create_repo(repo, private=True, exist_ok=True)  # knows whose a bare name is
        commit = api.upload_folder(repo_id=made.repo_id, folder_path=folder)
    except (OSError, ValueError) as error:  # the hub's errors, and those of the network
        reason = reason_of(error)
        raise RunError(f"'{folder}' is written, but not pushed to '{repo}' ({reason})") from error
    return str(commit.commit_url)
