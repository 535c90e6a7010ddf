"""What the models of a run's front are worth in milliseconds: measured by `bench`, kept, read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.errors import RunError
from orchestrator.runs.damage import damaged_files
from orchestrator.runs.records import RunRecord, UnprunedResult
from orchestrator.runs.run_folder import RunFolder, write_file_whole
from reports.choice import model_folder
from reports.timings import timings_document

if TYPE_CHECKING:
    from objectives.delivery.bench import Bench

_FORMAT = "maskfront-bench-1"


@dataclass(frozen=True, kw_only=True)
class TimedModel:
    """One model under the conditions of a `Speed`."""

    milliseconds: float
    """Median of one forward pass."""
    flops_ratio: float
    """FLOPs as a share of the reference's, at the length that was timed."""
    speed_up: float
    """How many times as fast as the reference."""


@dataclass(frozen=True, kw_only=True)
class Speed:
    """The front's models in one engine on one shape of batch, on one device."""

    engine: str
    batch: int
    length: int
    """Tokens of each of the `batch` sequences."""
    device: str
    """With its threads, such as "cpu-2threads"."""
    reference: str
    """What speed-ups are against: "unpruned", or the folder of another model."""
    reference_milliseconds: float
    models: Mapping[int, TimedModel]
    """By the numbers of their trials."""

    @property
    def unit(self) -> str:
        """Of the milliseconds; two units are never compared."""
        return f"ms@{self.engine}-{self.device}-b{self.batch}-s{self.length}"

    def milliseconds_of(self, unpruned: UnprunedResult) -> float | None:
        """Of the model that a run calls unpruned; None if another was timed, or if the students are
        cut from a model that is not the teacher."""
        cut_from = self.reference == "unpruned" and not unpruned.student_is_new
        return self.reference_milliseconds if cut_from else None


def bench_front(run: RunRecord, **settings: Any) -> Bench:
    """Time the models of a run's front.

    Args:
        run: the run.
        **settings: those of `objectives.bench`, but for the folders and the layers of the twin.

    Returns:
        Milliseconds, beside those of the unpruned model.

    Raises:
        RunError: if the front is empty, or if a model of it is gone or damaged.
        UserError: where no engine runs, or for a length that the models do not take.
    """
    folders = [_whole_model(run, row.number) for row in run.front]
    if not folders:
        raise RunError(f"'{run.folder}' has no model on its front yet; there is nothing to time")

    from objectives.delivery.bench import bench  # torch, which a report does without

    layers = len(run.unpruned.heads_per_layer)
    return bench(folders, unpruned_layers=layers, **settings)


def _whole_model(run: RunRecord, trial: int) -> Path:
    model = model_folder(run, trial)
    damaged = damaged_files(model.parent, model.rglob("*"))
    if damaged:
        raise RunError(
            f"'{model.parent}': trial {trial} is damaged: {'; '.join(damaged)}; put the file back "
            "from a copy, or name the folders of the other models"
        )
    return model


def keep_speeds(run: RunRecord, timed: Bench) -> Path:
    """Keep milliseconds in the run folder, over those of before: reports and model cards show them.

    Args:
        run: the run.
        timed: what `bench_front` found.

    Returns:
        The file.

    Raises:
        RunError: if the disk refuses.
    """
    document = timings_document(timed)
    trials = {str(model_folder(run, row.number)): row.number for row in run.front}
    for row in document["timings"]:
        row["trial"] = trials.get(row["model"])
    text = json.dumps({"format": _FORMAT, **document}, indent=1)
    file = RunFolder(run.folder).bench
    try:
        write_file_whole(file, text + "\n")
    except OSError as error:
        raise RunError(
            f"'{file}' could not be written ({error.strerror}): these times are not kept, and no "
            "report shows them"
        ) from error
    return file


def read_speeds(run: RunRecord) -> tuple[Speed, ...]:
    """What `keep_speeds` kept last; empty if it was never called.

    Raises RunError if its file cannot be read.
    """
    path = RunFolder(run.folder).bench
    if not path.is_file():
        return ()
    try:
        return _speeds(json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, KeyError, TypeError) as error:
        raise RunError(
            f"'{path}' is damaged ({type(error).__name__}: {error}); delete it, or write it anew: "
            f"maskfront bench {run.folder}"
        ) from error


def _speeds(document: Mapping[str, Any]) -> tuple[Speed, ...]:
    if document["format"] != _FORMAT:
        raise ValueError(f"its format is {document['format']}, not {_FORMAT}")
    rows: dict[tuple[str, int, int], list[Mapping[str, Any]]] = {}
    for row in document["timings"]:
        rows.setdefault((row["engine"], row["batch"], row["length"]), []).append(row)
    reference, conditions = document["reference"], document["conditions"]
    return tuple(
        Speed(
            engine=engine,
            batch=batch,
            length=length,
            device=_device(engine, conditions),
            reference=reference,
            reference_milliseconds={row["model"]: row["median"] for row in own}[reference],
            models={
                row["trial"]: TimedModel(
                    milliseconds=row["median"],
                    flops_ratio=row["flops_ratio"],
                    speed_up=row["speed_up"],
                )
                for row in own
                if row["trial"] is not None
            },
        )
        for (engine, batch, length), own in rows.items()
    )


def _device(engine: str, conditions: Mapping[str, Any]) -> str:
    """onnxruntime runs on the CPU wherever torch does."""
    device = "cpu" if engine == "onnxruntime" else str(conditions["device"]).replace(" ", "-")
    return f"cpu-{conditions['threads']}threads" if device == "cpu" else device
