"""A folder of one model for onnxruntime, which answers as the model does."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from objectives.delivery.deployed import deploy
from objectives.measures.evaluate import predict
from objectives.students.bert.pretrained import Checkpoint
from objectives.text.task import Examples, tokenise
from objectives.workbench.workbench import Workbench
from tests.conftest import planted_rows

pytest.importorskip("onnxruntime", reason="the extra 'onnx' is not installed")


def test_a_file_has_the_name_that_its_engine_reads(
    workbench: Workbench, tiny_bert: str, tmp_path: Path
) -> None:
    tokenizer = Checkpoint(tiny_bert).tokenizer
    deploy(tmp_path / "int8", workbench.problem.teacher, tokenizer, "onnxruntime-int8", 24)
    assert [file.name for file in tmp_path.glob("int8/*.onnx")] == ["model_int8.onnx"]
    [stage] = json.loads((tmp_path / "int8" / "classifier.json").read_text())["stages"]
    assert stage["model"] == "model_int8.onnx"


@pytest.mark.parametrize("side", ["left", pytest.param("right", marks=pytest.mark.slow)])
def test_texts_are_cut_off_on_the_side_of_the_tokenizer(
    side: str, workbench: Workbench, tiny_bert: str, tmp_path: Path
) -> None:
    from objectives.delivery.classify import Classifier

    tokenizer, teacher = Checkpoint(tiny_bert).tokenizer, workbench.problem.teacher
    tokenizer.truncation_side = side
    texts = planted_rows()["text"][:40]
    split = tokenise(Examples([(t,) for t in texts], np.zeros(40, int)), "x", tokenizer, 6)
    assert split.truncated > 20
    deploy(tmp_path / "own", teacher, tokenizer, "onnxruntime", 6)
    own = Classifier(tmp_path / "own").logits(texts)
    np.testing.assert_allclose(own, predict(teacher, split, "cpu").numpy(), atol=1e-4)
