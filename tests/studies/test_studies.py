"""Every study loads, is named after its file, and asks a question."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from transformers import AutoTokenizer, BertConfig, BertModel

import studies
from objectives.methods.mask_search import MaskSearch
from objectives.roles import load
from objectives.stages import Stage
from objectives.task import Task
from orchestrator import launch
from orchestrator.study_file import load_study
from studies import seed_table
from tests.glue_shaped import write_glue

FOLDER = Path(studies.__file__).parent
FILES = sorted(path for path in FOLDER.glob("*.py") if not path.name.startswith("_"))
GLUE = ("cola", "rte", "sst2")


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_study_loads_and_bears_its_files_name(path: Path) -> None:
    study = load_study(path)
    assert f"{study.name}-".startswith(path.stem.replace("_", "-") + "-")
    opening = path.read_text(encoding="utf-8").splitlines()[0]
    assert opening.startswith('"""')
    assert opening.endswith('?"""')


def test_the_quickstart_has_three_sentiments_in_four_disjoint_roles() -> None:
    task = load_study(FOLDER / "quickstart.py").task
    assert isinstance(task, Task)
    text = load(task)
    assert list(text.label_names) == ["negative", "neutral", "positive"]
    assert {role: len(examples.texts) for role, examples in text.roles.items()} == {
        "train": task.train,
        "alpha": task.alpha,
        "select": task.select,
        "heldout": task.heldout,
    }
    everything = [row for examples in text.roles.values() for row in examples.texts]
    assert len(set(everything)) == len(everything)


@pytest.mark.parametrize("task", GLUE)
def test_a_glue_study_offers_both_tinyberts_of_the_hub(
    task: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("MASKFRONT_MODELS", "MASKFRONT_GLUE"):
        monkeypatch.delenv(variable, raising=False)
    small, large = (load_study(FOLDER / f"{task}.py", name) for name in ("study", "study_6x768"))
    assert (small.name, large.name) == (f"{task}-4x312", f"{task}-6x768")
    assert small.student == "huawei-noah/TinyBERT_General_4L_312D"
    assert large.student == "huawei-noah/TinyBERT_General_6L_768D"
    assert replace(small, name=large.name, student=large.student) == large
    assert (small.task.subset, small.task.data) == (task, "nyu-mll/glue")
    teacher = small.teacher
    assert (teacher.checkpoint, teacher.epochs) == ("bert-base-uncased", 10)
    assert (teacher.batch_size, teacher.learning_rate) == (32, 5e-5)


@pytest.fixture
def local(tmp_path: Path, tiny_bert: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """GLUE and the checkpoints as folders, tiny; the student narrower and shallower."""
    models = tmp_path / "models"
    for name, sizes in {
        "bert-base-uncased": {},
        "huawei-noah/TinyBERT_General_4L_312D": {
            "num_hidden_layers": 1,
            "hidden_size": 16,
            "num_attention_heads": 4,
            "intermediate_size": 24,
        },
    }.items():
        fields: dict[str, Any] = dict(sizes)
        with torch.random.fork_rng():
            torch.manual_seed(0)
            model = BertModel(BertConfig.from_pretrained(tiny_bert, **fields))
        model.save_pretrained(models / name)
        AutoTokenizer.from_pretrained(tiny_bert).save_pretrained(models / name)
    monkeypatch.setenv("MASKFRONT_MODELS", str(models))
    monkeypatch.setenv("MASKFRONT_GLUE", write_glue(tmp_path, train=700, validation=40))
    return tmp_path


def test_a_glue_study_runs_on_local_folders(local: Path) -> None:
    study = load_study(FOLDER / "rte.py")
    method = study.method
    assert isinstance(method, MaskSearch)
    once = tuple(replace(stage, epochs=1) for stage in method.stages)
    assert all(isinstance(stage, Stage) for stage in once)
    quick = replace(
        study,
        task=replace(study.task, max_length=32),
        teacher=replace(study.teacher, epochs=1),
        method=replace(method, stages=once),
        first=({"target_ratio": 0.6, "tolerance": 0.1},),
    )
    run = launch(quick, trials=1, population=1, out=local / "run", device="cpu")
    (trial,) = run.trials
    assert trial.state == "finished"
    assert trial.result is not None
    assert trial.result.flops < trial.result.flops_full == run.unpruned.flops_full
    assert trial.feasible
    assert run.unpruned.label == "teacher"
    assert run.unpruned.ratio > 4
    assert run.unpruned.heads_per_layer == (4,)
    assert run.unpruned.ffn_per_layer == (24,)
    assert run.definition["student"] != "None"
    assert run.definition["student_layers"] == "None"


def test_the_table_of_the_source_is_rerun_row_by_row(local: Path) -> None:
    study = seed_table.table_study("rte")
    method = study.method
    assert isinstance(method, MaskSearch)
    quick = replace(
        study,
        task=replace(study.task, max_length=32),
        teacher=replace(study.teacher, epochs=1),
        method=replace(method, stages=tuple(replace(s, epochs=0.2) for s in method.stages)),
    )
    run = launch(quick, out=local / "run", device="cpu")
    assert [trial.knobs for trial in run.trials] == [row.knobs for row in seed_table.rows_of("rte")]
    assert all(trial.feasible for trial in run.trials)
    assert run.unpruned.unit == "units@input_qkv"
    printed = StringIO()
    Console(file=printed, width=120).print(seed_table.table("rte", run))
    text = printed.getvalue()
    for row, trial in zip(seed_table.rows_of("rte"), run.trials, strict=True):
        assert trial.result is not None
        assert f"{row.score:.3f}" in text
        assert f"{trial.result.ratio:.3f}" in text
