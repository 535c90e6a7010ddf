"""Cells without operations in numpy: the same logits, without onnxruntime."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import BertConfig, BertForSequenceClassification

from objectives.delivery.deployed import deploy, is_of_words, write_table
from objectives.students.bert.pretrained import Checkpoint
from objectives.students.cells.cell_classifier import CellConfig, CellForSequenceClassification
from tests.conftest import planted_rows

pytest.importorskip("onnxruntime", reason="the extra 'onnx' is not installed")

from objectives.delivery import classify

TEXTS = [str(text) for text in planted_rows()["text"][:40]]
POOLS = ("mean", "max", "min")


def cell(seed: int = 0, **settings: Any) -> CellForSequenceClassification:
    """A cell with random weights, also in its norm."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        sizes = {"vocab_size": 60, "hidden_size": 16, "num_labels": 3}
        model = CellForSequenceClassification(CellConfig(**sizes, **settings))
        for weight in (model.LayerNorm.weight, model.LayerNorm.bias):
            torch.nn.init.normal_(weight)
    model.train(False)
    return model


@given(
    seed=st.integers(0, 99),
    pooling=st.lists(st.sampled_from(POOLS), min_size=1, unique=True),
    bigrams=st.sampled_from([0, 7, 1000]),
    lengths=st.lists(st.integers(1, 30), min_size=1, max_size=8),
)
def test_logits_are_those_of_the_rounded_cell(
    seed: int,
    pooling: list[str],
    bigrams: int,
    lengths: list[int],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    model = cell(seed, pooling=pooling, bigrams=bigrams)
    file = tmp_path_factory.mktemp("table") / "model.npz"
    write_table(model, file)
    table = classify._WordTable(file)
    with torch.no_grad():
        rounded = torch.tensor(table.words)
        assert (rounded - model.types.weight[0] - model.words.weight).abs().max() < 0.05
        model.words.weight.copy_(rounded - model.types.weight[0])
        if model.bigrams is not None:
            model.bigrams.weight.copy_(torch.tensor(table.pairs))
    draw = np.random.default_rng(seed)
    rows = [(draw.integers(0, 60, n).tolist(), draw.integers(0, 2, n).tolist()) for n in lengths]
    with torch.no_grad():
        wanted = [
            model(torch.tensor([ids]), token_type_ids=torch.tensor([segments])).logits[0].numpy()
            for ids, segments in rows
        ]
    np.testing.assert_allclose(table.logits(rows), wanted, atol=1e-4)


def test_other_models_have_no_table() -> None:
    assert is_of_words(cell(bigrams=5))
    assert not is_of_words(cell(operations=("conv3",)))
    assert not is_of_words(cell(operations=("feed_forward",), recurrent=True))
    tiny = BertConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=1, vocab_size=60)
    assert not is_of_words(BertForSequenceClassification(tiny))


@pytest.fixture(scope="module")
def served(tiny_bert: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A folder of one cell for each engine."""
    folders = {}
    for engine in ("onnxruntime", "onnxruntime-int8"):
        folders[engine] = tmp_path_factory.mktemp("words") / engine
        tokenizer = Checkpoint(tiny_bert).tokenizer
        deploy(folders[engine], cell(seed=1), tokenizer, engine, 24)  # type: ignore[arg-type]
    return folders


def test_int8_of_words_is_a_table_that_answers_as_the_cell_does(served: dict[str, Path]) -> None:
    files = sorted(file.name for file in served["onnxruntime-int8"].iterdir())
    assert files == ["classifier.json", "classify.py", "model_int8.npz", "tokenizer.json"]
    pairs = [(TEXTS[0], TEXTS[1]), (TEXTS[2], "")]
    full, table = (classify.Classifier(folder) for folder in served.values())
    for texts in (TEXTS, pairs):
        np.testing.assert_allclose(table.logits(texts), full.logits(texts), atol=0.02)
    labels = [answer.label for answer in table(TEXTS)]
    assert len(set(labels)) > 1
    for batch in (1, 7, 40):
        backwards = table(TEXTS[::-1], batch)
        assert [answer.label for answer in backwards] == labels[::-1]


def test_a_table_needs_no_onnxruntime(served: dict[str, Path]) -> None:
    code = (
        "import sys; sys.modules['onnxruntime'] = None; from classify import Classifier; "
        f"print(*(answer.label for answer in Classifier()({TEXTS!r})))"
    )
    folder = served["onnxruntime-int8"]
    printed = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=True
    ).stdout
    wanted = [str(answer.label) for answer in classify.Classifier(folder)(TEXTS)]
    assert printed.split() == wanted
