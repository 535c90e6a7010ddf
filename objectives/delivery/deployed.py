"""Write folders that answer without torch: ONNX files, tokenizers, classifier.json, classify.py."""

import json
import shutil
import time
from collections.abc import Callable, Sequence
from itertools import combinations
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from objectives.delivery.classify import Classifier, WordReader
from objectives.engines.names import Engine
from objectives.engines.onnx_model import check_installed
from objectives.engines.serving import onnx_file
from objectives.errors import UserError
from objectives.students.bert.pretrained import SEVERAL
from objectives.students.cells.cell_classifier import CellForSequenceClassification
from objectives.workbench.inputs import Inputs

Texts = Sequence[str | tuple[str, str]]
StageSettings = dict[str, Any]
"""An entry of classifier.json."""
_ROUNDS = 3


def stage_of(
    folder: Path,
    model: str,
    tokenizer: PreTrainedTokenizerBase,
    max_length: int,
    truncation: str = "head",
    texts: Texts = (),
) -> StageSettings:
    """Entry for the ONNX file `model` in `folder`, or elsewhere by its absolute path. Its tokenizer
    is written to tokenizer.json in the folder, unless it is there already. Ids come from a
    dictionary of words if it supports the tokenizer and is right on all `texts`.

    Raises UserError for a tokenizer that is written in Python alone.
    """
    if not tokenizer.is_fast:
        raise UserError(
            f"{type(tokenizer).__name__} has no tokenizer.json, which classify.py needs; convert "
            "the checkpoint's tokenizer to a fast one"
        )
    file = folder / "tokenizer.json"
    if not file.exists():
        plain = tokenizer.backend_tokenizer
        plain.no_truncation()  # what the last call left: classify.py truncates and pads itself
        plain.no_padding()
        file.write_text(plain.to_str(), encoding="utf-8")
    return {
        "model": model,
        "tokenizer": file.name,
        "pad": tokenizer.pad_token_id,
        "segments": "token_type_ids" in tokenizer("a", "b"),
        "max_length": max_length,
        "truncation": truncation,
        "truncation_side": tokenizer.truncation_side,
        "words": _exact_words(file, max_length, texts),
    }


def _exact_words(file: Path, max_length: int, texts: Texts) -> bool:
    """Whether a dictionary of words gives this tokenizer's ids on all texts that it reads."""
    tokenizer = Tokenizer.from_file(str(file))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    words = WordReader(tokenizer, max_length)
    rows = ((words.read(text), text) for text in texts)
    return words.fits and all(row[0] == tokenizer.encode(text).ids for row, text in rows if row)


def write_classifier(
    folder: Path,
    stages: Sequence[StageSettings],
    labels: Sequence[str] | None,
    *,
    several: bool = False,
    thresholds: Sequence[float] | None = None,
    pairs: bool | None = None,
) -> None:
    """Write classifier.json and classify.py; `labels` name the outputs, None: it gives a number."""
    for earlier, stage in combinations(stages, 2):
        file, shared = (folder / of_stage["tokenizer"] for of_stage in (stage, earlier))
        if file != shared and file.read_bytes() == shared.read_bytes():
            file.unlink()
            stage["tokenizer"] = earlier["tokenizer"]
    document: StageSettings = {"labels": labels, "several": several, "stages": list(stages)}
    if thresholds:
        document["thresholds"] = thresholds
    if pairs is not None:
        document["pairs"] = pairs
    (folder / "classifier.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    shutil.copyfile(Path(__file__).with_name("classify.py"), folder / "classify.py")


def deploy(
    folder: Path,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    engine: Engine,
    max_length: int,
    files: Path | None = None,
    truncation: str = "head",
    texts: Texts = (),
) -> None:
    """Write a folder of one model in an engine; its ONNX files are in `files`, or written there."""
    check_installed("onnx", "onnxscript", "onnxruntime")
    folder.mkdir(parents=True)
    if engine == "onnxruntime-int8" and is_of_words(model):  # which onnxruntime makes slower
        file = folder / "model_int8.npz"
        write_table(model, file)
    else:
        with TemporaryDirectory() as scratch:
            file = onnx_file(engine, model, files or Path(scratch))
            shutil.copyfile(file, folder / file.name)
    pairs = not isinstance(texts[0], str) if texts else None
    write_single(folder, file.name, model, tokenizer, max_length, truncation, texts, pairs)


def write_single(
    folder: Path,
    file: str,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    max_length: int,
    truncation: str = "head",
    texts: Texts = (),
    pairs: bool | None = None,
) -> None:
    """`write_classifier` for the file of one model (see `stage_of`)."""
    config: Any = model.config
    names = [config.id2label[index] for index in range(len(config.id2label))]
    write_classifier(
        folder,
        [stage_of(folder, file, tokenizer, max_length, truncation, texts)],
        names if len(names) > 1 else None,
        several=config.problem_type == SEVERAL,
        thresholds=getattr(config, "thresholds", None),
        pairs=pairs,
    )


def texts_of(inputs: Inputs, role: str) -> list[str | tuple[str, str]]:
    """Texts of a role as a classifier takes them."""
    return [row[0] if len(row) == 1 else (row[0], row[1]) for row in inputs.text.roles[role].texts]


def answers_to(classifier: Classifier, texts: Texts) -> NDArray[np.float32]:
    """Logits (texts, C), in the batches of an ordinary call."""
    batches = [classifier.logits(texts[start : start + 8]) for start in range(0, len(texts), 8)]
    return np.concatenate(batches).astype(np.float32)


def text_to_label(
    classifiers: Sequence[Classifier],
    texts: Texts,
    *,
    batch: int = 1,
    say: Callable[[str], None] = lambda line: None,
) -> NDArray[np.float64]:
    """Milliseconds (calls, classifiers) from texts to labels, the median of `_ROUNDS`.

    The processor's time of this process, so other processes count little. The classifiers take
    turns of all texts, so that each has the caches to itself, as it has where it serves.
    """
    calls = [texts[start : start + batch] for start in range(0, len(texts), batch)]
    times = np.empty((_ROUNDS, len(calls), len(classifiers)))
    for classifier in classifiers:
        classifier(calls[0], batch)
    for number in range(_ROUNDS):
        say(f"text to label, batch {batch}: round {number + 1} of {_ROUNDS}")
        for column, classifier in enumerate(classifiers):
            for index, call in enumerate(calls):
                start = time.process_time()
                classifier(call, batch)
                times[number, index, column] = 1000 * (time.process_time() - start)
    return np.asarray(np.median(times, axis=0))


def is_of_words(model: PreTrainedModel) -> bool:
    """Whether a model is a cell without operations, which pools its words."""
    return (
        isinstance(model, CellForSequenceClassification)
        and not model.graph.nodes
        and model.join is None
    )


def write_table(model: Any, file: Path) -> None:
    """Write a cell without operations for `classify.py`."""
    first, *_ = model.types.weight
    norm, pooler, classifier = model.LayerNorm, model.pooler, model.classifier
    weights = {
        **_rounded("words", model.words.weight + first),
        **(_rounded("pairs", model.bigrams.weight) if model.bigrams else {}),
        "segments": model.types.weight - first,
        # The norm's own weights are those of the layer behind it.
        "inner": (pooler.weight * norm.weight).T,
        "inner_bias": pooler.bias + pooler.weight @ norm.bias,
        "outer": classifier.weight.T,
        "outer_bias": classifier.bias,
    }
    arrays: dict[str, Any] = {name: weight.numpy(force=True) for name, weight in weights.items()}
    np.savez(file, pooling=model.config.pooling, epsilon=norm.eps, **arrays)


def _rounded(name: str, rows: Tensor) -> dict[str, Tensor]:
    """Rows (V, D) in int8, and a scale for each, (V, 1)."""
    scales = rows.abs().amax(-1, keepdim=True).clamp_min(1e-12) / 127
    return {name: (rows / scales).round().char(), f"{name}_scales": scales}
