"""The tiny model and the tiny task that the tests share: no network, a second to make."""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
from collections.abc import Iterator

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from datasets import Dataset
from hypothesis import HealthCheck, settings
from transformers import BertConfig, BertForMaskedLM, BertModel, BertTokenizer, PreTrainedModel

from objectives import device
from objectives.device import quiet_libraries
from objectives.problem import Problem
from objectives.session import Session
from objectives.students.bert.architecture import BertShape
from objectives.text.task import Task
from objectives.workbench.inputs import read_inputs
from objectives.workbench.teacher import Teacher
from objectives.workbench.workbench import Workbench, prepare
from orchestrator.storage.urls import HOST

if TYPE_CHECKING:
    from tests.servers import MariaDb, Postgres

pytest.register_assert_rewrite("tests.objectives.conformance")
# A tiny matmul costs less than waking a second thread: here, and in the processes that tests start.
torch.set_num_threads(1)
os.environ.setdefault("OMP_NUM_THREADS", "1")
quiet_libraries()
# A runner in the background (nohup, &) ignores Ctrl-C, and so would what the tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_configure(config: pytest.Config) -> None:
    """A property sees fewer examples where slow tests are left out."""
    settings.register_profile(
        "maskfront",
        deadline=None,
        derandomize=True,
        max_examples=5 if config.option.markexpr == "not slow" else 30,
        suppress_health_check=[HealthCheck.too_slow],  # a busy machine is no defect
    )
    settings.load_profile("maskfront")


TINY = BertShape(layers=3, hidden=32, heads=4, head_dim=8, ffn=48, labels=3)
"""The shape of the tiny model."""


def config_of(shape: BertShape) -> BertConfig:
    """The configuration of a classifier of this shape."""
    return BertConfig(
        num_hidden_layers=shape.layers,
        hidden_size=shape.hidden,
        num_attention_heads=shape.heads,
        intermediate_size=shape.ffn,
        num_labels=shape.labels,
    )


MARKERS = {"joy": "happy", "grief": "sad", "toast": "neutral"}
"""The word of a text that decides its label."""
GRADES = {"happy": 5.0, "neutral": 2.5, "sad": 0.0}
"""What the labels are worth in a task of numbers."""
FILLERS = [first + second for first in "bdfgklmn" for second in ("ab", "el", "im", "og", "ur")]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


PIECES = ["ti", "##dal", "##de", "##s", "##ab", "the", "7", ".", ","]
"""What the vocabulary of the tiny masked LM has besides: "tidal" and "tides" are two pieces."""


def planted_rows() -> Dataset:
    """400 distinct texts of 3 to 20 words, one of which is a marker and decides the label."""
    generator = np.random.default_rng(0)
    words = list(MARKERS)
    rows: dict[str, str] = {}
    while len(rows) < 400:
        text = generator.choice(FILLERS, size=generator.integers(2, 20)).tolist()
        marker = words[len(rows) % len(words)]
        text.insert(generator.integers(len(text) + 1), marker)
        rows[" ".join(text)] = MARKERS[marker]
    return Dataset.from_dict({"text": list(rows), "label": list(rows.values())})


def graded_rows() -> Dataset:
    """The same texts, and a number for each label."""
    rows = planted_rows().to_dict()
    return Dataset.from_dict({**rows, "label": [GRADES[name] for name in rows["label"]]})


IDLE = {"auto_map", "problem_type"}
"""Settings that change nothing of a forward pass."""


@pytest.fixture(scope="session", autouse=True)
def equal_models_are_traced_once() -> Iterator[None]:
    """Tracing a model for ONNX takes torch seconds, however small it is."""
    trace, programs = torch.onnx.export, dict[str, Any]()

    def traced(model: PreTrainedModel, **asked: Any) -> Any:
        fields = model.config.to_dict().items()
        acting = {name: value for name, value in fields if value is not None and name not in IDLE}
        digest = hashlib.sha256(f"{type(model)} {acting}".encode())
        for tensor in model.state_dict().values():
            digest.update(tensor.numpy().tobytes())
        key = digest.hexdigest()
        if key not in programs:
            programs[key] = trace(model, **asked)
        return programs[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.onnx, "export", traced)
        yield


@pytest.fixture(scope="session", autouse=True)
def same_arithmetic_everywhere() -> Iterator[None]:
    """precision="auto" is float32 in this process, whatever the machine multiplies fast."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(device, "multiplies_bfloat16", lambda device: False)
        yield


@pytest.fixture(scope="session")
def tiny_bert(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Folder of a pretrained BERT of shape TINY, without classifier.

    Its weights are ten times BERT's, so that every unit moves the logits; the markers are loud, as
    if it had met them before.
    """
    folder = tmp_path_factory.mktemp("checkpoint") / "tiny-bert"
    vocabulary = [*SPECIAL, *MARKERS, *FILLERS]
    tokenizer = BertTokenizer(vocab={word: index for index, word in enumerate(vocabulary)})
    config = BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=TINY.hidden,
        num_hidden_layers=TINY.layers,
        num_attention_heads=TINY.heads,
        intermediate_size=TINY.ffn,
        max_position_embeddings=64,
        initializer_range=0.2,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = BertModel(config)
        with torch.no_grad():
            markers = slice(len(SPECIAL), len(SPECIAL) + len(MARKERS))
            model.embeddings.word_embeddings.weight[markers] *= 4
        model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="session")
def tiny_masked_lm(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Folder of a BERT with a head for masked words, 24 tokens long; its weights are random."""
    folder = tmp_path_factory.mktemp("checkpoint") / "tiny-masked-lm"
    vocabulary = [*SPECIAL, *MARKERS, *FILLERS, *PIECES]
    config = BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=24,
        max_position_embeddings=24,
        initializer_range=0.5,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        BertForMaskedLM(config).save_pretrained(folder)
    tokenizer = BertTokenizer(vocab={word: index for index, word in enumerate(vocabulary)})
    tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="session")
def planted_task() -> Task:
    """240 rows of train, 64 of alpha, 48 of select, 48 of heldout; three labels."""
    return Task(name="planted", data=planted_rows, max_length=24, alpha=64, select=48, heldout=48)


@pytest.fixture(scope="session")
def tiny_data(tmp_path_factory: pytest.TempPathFactory, planted_task: Task) -> Path:
    """The tiny task as a folder that `datasets.load_dataset` reads."""
    folder = tmp_path_factory.mktemp("tiny-data")
    assert callable(planted_task.data)
    planted_task.data().to_csv(folder / "train.csv", index=False)
    return folder


@pytest.fixture(scope="session")
def workbench(
    tiny_bert: str, planted_task: Task, tmp_path_factory: pytest.TempPathFactory
) -> Workbench:
    """The tiny task with a teacher that was fine-tuned on it, ready for a search on the CPU."""
    teacher = Teacher(checkpoint=tiny_bert, epochs=6, batch_size=16, learning_rate=3e-3)
    inputs = read_inputs(planted_task, teacher)
    cache = tmp_path_factory.mktemp("teacher")
    return prepare(inputs, session=Session(cache=cache))


@pytest.fixture(scope="session")
def fine_tuned(workbench: Workbench, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Folder of the workbench's teacher, a classifier of the planted task, with its tokenizer."""
    folder = tmp_path_factory.mktemp("checkpoint") / "fine-tuned"
    workbench.problem.teacher.save_pretrained(folder)
    workbench.tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="session")
def problem(workbench: Workbench) -> Problem:
    """What a search method gets of the workbench."""
    return workbench.problem


@pytest.fixture(scope="session")
def mpnet_problem(planted_task: Task, tmp_path_factory: pytest.TempPathFactory) -> Problem:
    """The tiny task, and an MPNet of shape TINY as its teacher."""
    from tests.bert_variants import write_variant

    folder = tmp_path_factory.mktemp("mpnet")
    checkpoint = write_variant("mpnet", folder / "model", sorted(MARKERS.values()))
    inputs = read_inputs(planted_task, Teacher(checkpoint=checkpoint))
    return prepare(inputs, session=Session(cache=folder)).problem


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """A real PostgreSQL."""
    from tests.servers import Postgres

    server = Postgres()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(HOST, server.socket)
        yield server
    server.stop()


@pytest.fixture(scope="session")
def mariadb() -> Iterator[MariaDb]:
    """A real MariaDB, where Debian's mariadb-server-core is installed."""
    if shutil.which("mariadbd") is None:
        pytest.skip("no MariaDB here: apt-get install mariadb-server-core")
    from tests.servers import MariaDb

    server = MariaDb()
    yield server
    server.stop()
