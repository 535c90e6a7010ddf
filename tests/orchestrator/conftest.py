"""A study of seconds: a tiny BERT and a tiny task, in a file as a user would write it."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
from transformers import AutoTokenizer, BertForSequenceClassification

from orchestrator.study import Study
from orchestrator.study_file import load_study

_STUDY = """
    '''Does the tiny BERT get smaller?'''

    from optuna.distributions import FloatDistribution

    from objectives.methods.mask_search import MaskSearch
    from objectives.training.stages import Stage
    from objectives.text.task import Task
    from objectives.workbench.teacher import Teacher
    from maskfront import Study

    study = Study(
        name="tiny",
        task=Task(
            name="tiny", data={data!r}, max_length=16, train=128, alpha=48, select=64, heldout=64
        ),
        teacher=Teacher(checkpoint={checkpoint!r}, epochs=1, learning_rate=1e-3),
        method=MaskSearch(
            batch_size=16,
            stages=(
                Stage(name="search", epochs={epochs}, searches=True),
                Stage(name="recover", epochs=1),
            ),
        ),
        space={{
            "flops_weight": FloatDistribution(0.1, 10, log=True),
            "target_ratio": FloatDistribution(0.3, 1, log=True),
            "tolerance": FloatDistribution(0.05, 0.2, log=True),
            "grad_rescale": FloatDistribution(0.03, 0.3, log=True),
        }},
        first=({{"target_ratio": 0.5}},),
        trials=4,
        population=2,
        seed=3,
    )
"""

WriteStudy = Callable[..., Path]


@pytest.fixture(scope="session")
def tiny_classifier(tmp_path_factory: pytest.TempPathFactory, tiny_bert: str) -> Path:
    """A BERT that was fine-tuned on labels that are not the tiny task's."""
    folder = tmp_path_factory.mktemp("classifier")
    names = {0: "yes", 1: "no", 2: "maybe"}
    labels = {"id2label": names, "label2id": {name: index for index, name in names.items()}}
    BertForSequenceClassification.from_pretrained(tiny_bert, **labels).save_pretrained(folder)
    AutoTokenizer.from_pretrained(tiny_bert).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def tiny_study_file(
    tmp_path_factory: pytest.TempPathFactory, tiny_data: Path, tiny_bert: str
) -> Path:
    """The tiny study, as a file."""
    path = tmp_path_factory.mktemp("studies") / "study.py"
    path.write_text(_text(tiny_data, tiny_bert, epochs=1))
    return path


@pytest.fixture
def write_study(tmp_path: Path, tiny_data: Path, tiny_bert: str) -> WriteStudy:
    """Writes the tiny study to a file, with pieces of its text replaced, and returns its path."""

    def write(*replacements: tuple[str, str], epochs: float = 1) -> Path:
        text = _text(tiny_data, tiny_bert, epochs)
        for old, new in replacements:
            assert old in text, old
            text = text.replace(old, new)
        path = tmp_path / "study.py"
        path.write_text(text)
        return path

    return write


@pytest.fixture
def study(write_study: WriteStudy) -> Study:
    """The tiny study, read from its file."""
    return load_study(write_study())


def _text(data: Path, checkpoint: str, epochs: float) -> str:
    return textwrap.dedent(_STUDY).format(data=str(data), checkpoint=checkpoint, epochs=epochs)
