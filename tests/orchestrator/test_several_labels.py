"""Texts with several labels, from a file to a folder that answers them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets import ClassLabel, Dataset, Features, List, Value
from optuna.distributions import FloatDistribution
from sklearn.metrics import accuracy_score, f1_score
from transformers import AutoTokenizer, BertForSequenceClassification, pipeline

from maskfront import (
    Beside,
    CellSearch,
    FisherSearch,
    Mas,
    Stage,
    Study,
    Task,
    Teacher,
    export,
    launch,
)
from objectives.delivery.classify import Classifier
from objectives.errors import UserError
from objectives.measures.bootstrap import resampled_metrics
from objectives.measures.evaluate import divergence
from objectives.metric import metric_value
from objectives.session import Session
from objectives.text.data import Split
from objectives.text.roles import load_text
from objectives.training.losses import prediction_loss, task_loss
from objectives.workbench.inputs import odd_labels, read_inputs
from objectives.workbench.workbench import prepare
from orchestrator.errors import RunError
from orchestrator.identity import definition_of
from reports.figures.cascades import cascades_of
from reports.speed import inputs_of, teacher_of
from tests.conftest import FILLERS, planted_rows

WORDS = {"joy": "happy", "grief": "sad", "toast": "food"}
LABELS = ["food", "happy", "sad"]


def sets_of() -> list[tuple[str, list[str]]]:
    """Texts with up to three markers, and what each stands for."""
    generator, rows = np.random.default_rng(0), dict[str, list[str]]()
    while len(rows) < 400:
        words = [word for word in WORDS if generator.random() < 0.5]
        fillers = generator.choice(FILLERS, size=generator.integers(3, 9)).tolist()
        rows[" ".join(generator.permutation([*words, *fillers]))] = sorted(map(WORDS.get, words))
    return list(rows.items())


def column(form: Callable[[list[str]], Any]) -> Callable[[], Dataset]:
    rows = sets_of()
    texts, labels = [text for text, _ in rows], [form(own) for _, own in rows]
    return lambda: Dataset.from_dict({"text": texts, "label": labels})


def classes_of(numbers: list[int]) -> Dataset:
    """Each text with these numbers of classes."""
    features = Features({"text": Value("string"), "label": List(ClassLabel(names=LABELS))})
    return column(lambda _: numbers)().cast(features)


def columns() -> Dataset:
    rows = sets_of()
    of_each = {name: [int(name in own) for _, own in rows] for name in LABELS}
    return Dataset.from_dict({"text": [text for text, _ in rows], **of_each})


def task(**changes: Any) -> Task:
    sizes = {"max_length": 16, "alpha": 48, "select": 64, "heldout": 64}
    fields = {"name": "several", "data": column(list), "multi_label": True, "metric": "micro_f1"}
    return Task(**{**sizes, **fields, **changes})


def test_labels_are_read_whatever_their_form(tmp_path: Path) -> None:
    lists = load_text(task())
    assert list(lists.label_names) == LABELS
    rows = sets_of()
    known = dict(rows)
    for examples in lists.roles.values():
        assert examples.labels.dtype == np.int8
        for (text,), row in zip(examples.texts, examples.labels, strict=True):
            assert [LABELS[place] for place in np.flatnonzero(row)] == known[text]
    assert any(not own for own in known.values())
    column("; ".join)().to_csv(tmp_path / "own.csv", index=False)
    columns().to_csv(tmp_path / "columns.csv", index=False)
    lines = [{"text": text, "label": own if len(own) > 1 else "".join(own)} for text, own in rows]
    (tmp_path / "mixed.jsonl").write_text("\n".join(map(json.dumps, lines)))
    own = task(separator=";")
    fields = {name: getattr(own, name) for name in ("name", "multi_label", "metric", "separator")}
    fields |= {name: getattr(own, name) for name in ("max_length", "alpha", "select", "heldout")}
    for file, label in (
        ("own.csv", "label"),
        ("mixed.jsonl", "label"),
        ("columns.csv", tuple(LABELS)),
    ):
        others = load_text(Task.from_files(tmp_path / file, label=label, **fields))
        assert others.fingerprint == lists.fingerprint


def test_labels_have_the_order_that_the_user_gave_them() -> None:
    """Lists of answers, and outputs without names, are in it."""
    backwards = LABELS[::-1]
    assert list(load_text(task(data=columns, label=tuple(backwards))).label_names) == backwards
    numbered = column(lambda own: [{"food": 11, "happy": 2, "sad": 1}[name] for name in own])
    assert list(load_text(task(data=numbered)).label_names) == ["1", "2", "11"]


def test_a_list_of_classes_has_their_names() -> None:
    names = ["sad", "happy", "food", "never"]
    features = Features({"text": Value("string"), "label": List(ClassLabel(names=names))})
    rows = column(lambda own: [names.index(name) for name in own])
    read = load_text(task(data=lambda: rows().cast(features)))
    assert list(read.label_names) == names
    known = dict(sets_of())
    for examples in read.roles.values():
        for (text,), row in zip(examples.texts, examples.labels, strict=True):
            assert {names[place] for place in np.flatnonzero(row)} == set(known[text])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"multi_label": False, "metric": "accuracy"}, "has a list in column 'label'.*multi_label"),
        ({"metric": "f1"}, r"with multi_label=True .* must be one of accuracy, micro_f1, macro_f1"),
        ({"multi_label": False}, r"metric 'micro_f1', which together are for texts with several"),
        ({"thresholds": "selection", "metric": "accuracy"}, "the metric 'accuracy' chooses none"),
        ({"thresholds": "best"}, "thresholds is 'best'; it must be one of half, selection"),
        ({"separator": ""}, "separator is ''; it must be one sign or more"),
        ({"data": column(lambda own: ["one"])}, r"has 1 labels \('one'\); with multi_label=True"),
        ({"data": column(lambda own: ["a", "b"])}, "has one label only: a, b"),
        ({"data": columns, "label": ("food", "text")}, "column 'text' has '.*'; the column of a"),
        ({"data": column(lambda own: {"a": 1})}, "has a mapping in column 'label'"),
    ],
)
def test_what_is_no_set_of_labels_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message) as raised:
        load_text(task(**changes))
    assert "\n" not in str(raised.value)


def test_losses_and_measures_are_those_of_independent_labels() -> None:
    generator = torch.Generator().manual_seed(0)
    own, said = torch.randn(2, 30, 4, generator=generator), torch.randn(30, 4, generator=generator)
    labels = (torch.rand(30, 4, generator=generator) < 0.4).to(torch.int8)
    right = torch.where(labels == 1, own.sigmoid(), 1 - own.sigmoid())
    torch.testing.assert_close(task_loss(own, labels), -right.log().sum(-1).mean(-1))
    p, q = said.sigmoid(), own.sigmoid()
    crossed = -(p * q.log() + (1 - p) * (1 - q).log()).sum(-1).mean(-1)
    torch.testing.assert_close(prediction_loss(own, said, several=True), crossed)
    entropy = -(p * p.log() + (1 - p) * (1 - p).log()).sum(-1).mean()
    split = Split("select", [], [], labels.numpy(), 0, 8)
    assert divergence(own[0], said, split) == pytest.approx(float(crossed[0] - entropy), rel=1e-5)
    truth, found = labels.numpy(), split.answers(own[0]).numpy()
    wanted = {
        "accuracy": accuracy_score(truth, found),
        "micro_f1": f1_score(truth, found, average="micro"),
        "macro_f1": f1_score(truth, found, average="macro"),
    }
    drawn = np.random.default_rng(0).integers(30, size=30)
    for metric, value in wanted.items():
        assert metric_value(metric, truth, found) == pytest.approx(value)
        first = metric_value(metric, truth[drawn], found[drawn])
        assert resampled_metrics(metric, truth, found)[0] == pytest.approx(first)


@pytest.fixture(scope="module")
def study(tiny_bert: str) -> Study:
    """A cell and a cut of a teacher that is fine-tuned on several labels."""
    recover = Stage(name="recover", epochs=1, learning_rate=3e-3, loss="prediction+hidden")
    return Study(
        name="several",
        task=task(thresholds="selection"),
        teacher=Teacher(checkpoint=tiny_bert, epochs=6, batch_size=16, learning_rate=3e-3),
        method={
            "cells": CellSearch(
                width=16, operations=("conv3",), epochs=12, batch_size=16, learning_rate=1e-2
            ),
            "cut": FisherSearch(stages=(recover,), batch_size=16),
        },
        space={"cut.target_ratio": FloatDistribution(0.3, 1)},
        first=({"method": "cells"}, {"method": "cut", "cut.target_ratio": 0.6}),
        trials=2,
    )


@pytest.mark.slow
def test_texts_with_several_labels_from_launch_to_answers(study: Study, tmp_path: Path) -> None:
    run = launch(study, out=tmp_path / "run")
    cells, cut = run.finished
    assert run.unpruned.metric > 0.9
    assert min(cells.result.metric, cut.result.metric) > 0.7
    assert cells.result.interval[0] <= cells.result.metric <= cells.result.interval[1]
    assert run.words is not None
    assert run.words.metric > 0.9
    assert cascades_of(run) == []
    page = (run.folder / "report.html").read_text()
    assert "micro_f1" in page
    assert "by\nthose that the other four fifths" in page
    assert run.definition["task.thresholds"] == "selection"
    teacher = teacher_of(run, study, inputs_of(run, study))
    assert teacher.config.thresholds == list(run.unpruned.thresholds.values())
    with pytest.raises(RunError, match="a cascade needs one label a text"):
        run.cascade(tmp_path / "cascade", study)
    for trial in (cells, cut):
        out = tmp_path / f"model-{trial.number}"
        done = export(run, trial.number, out, onnx=True, int8=study)
        card = (out / "README.md").read_text()
        assert "top_k=None,  # a text may have several labels: those above its thresholds" in card
        shares = trial.result.thresholds
        assert list(shares) == LABELS
        assert all(f"{name} {share:.3f}" in card for name, share in shares.items())
        settings = json.loads((out / "config.json").read_text())
        assert settings["thresholds"] == list(shares.values())
        # The numbers are those of the folder: float32 on the selection rows, then held out.
        whole = re.search(r"micro_f1 ([\d.]+) -> .* \(held out ([\d.]+) -> ", done.notes[-2])
        assert whole is not None
        assert [float(own) for own in whole.groups()] == pytest.approx(
            [trial.result.metric, trial.result.heldout_metric], abs=0.02
        )
        rows = load_text(study.task).roles["heldout"]
        found = Classifier(out)([text for (text,) in rows.texts])
        told = np.array([[n in one.label for n in LABELS] for one in found], np.int8)
        assert metric_value("micro_f1", rows.labels, told) == pytest.approx(
            trial.result.heldout_metric, abs=0.05
        )
        texts = ["joy bab toast", "bel fel", "grief gim"]
        answers = Classifier(out)(texts)
        assert json.loads((out / "config.json").read_text())["problem_type"].startswith("multi")
        for text, answer in zip(texts, answers, strict=True):
            above = zip(answer.probabilities.items(), shares.values(), strict=True)
            assert answer.label == [n for (n, share), least in above if share > least]
            wanted = sorted(WORDS[word] for word in text.split() if word in WORDS)
            assert answer.label == wanted
        shell = subprocess.run(
            [sys.executable, out / "classify.py"],
            input="\n".join(texts),
            capture_output=True,
            text=True,
            check=True,
        )
        assert shell.stdout.splitlines() == [", ".join(answer.label) for answer in answers]
    plain = pipeline("text-classification", model=str(tmp_path / "model-1"), top_k=None)
    shares = {one["label"]: one["score"] for one in plain("joy bab toast")[0]}
    other = Classifier(tmp_path / "model-1")(["joy bab toast"])[0].probabilities
    assert shares == pytest.approx(other, abs=2e-2)  # int8


def test_a_classifier_of_several_labels_teaches_without_labels_and_no_single_one(
    tiny_bert: str, planted_task: Task, tmp_path: Path
) -> None:
    names = {"id2label": dict(enumerate(LABELS)), "label2id": {n: i for i, n in enumerate(LABELS)}}
    model = BertForSequenceClassification.from_pretrained(
        tiny_bert, problem_type="multi_label_classification", **names
    )
    model.config.thresholds = [0.1, 0.2]  # those of another task
    model.save_pretrained(tmp_path / "several")
    AutoTokenizer.from_pretrained(tiny_bert).save_pretrained(tmp_path / "several")
    teacher = Teacher(checkpoint=str(tmp_path / "several"))
    bench = prepare(
        read_inputs(task(metric="agreement", data=planted_rows), teacher),
        Session(cache=tmp_path / "cache"),
    )
    assert bench.unpruned.metric == 1
    assert not hasattr(bench.problem.teacher.config, "thresholds")
    said = bench.teacher_answers["select"]
    assert np.array_equal(bench.select.labels, (said > 0).numpy().astype(np.int8))
    with pytest.raises(UserError, match=r"gives a text several labels .*, and the task has one"):
        read_inputs(replace(planted_task, data=planted_rows), teacher)


def test_probabilities_of_several_labels_need_no_sum_of_one(tiny_bert: str, tmp_path: Path) -> None:
    rows = column(list)()
    said = [[0.9 if name in own else 0.2 for name in LABELS] for own in rows["label"]]
    own = task(data=lambda: rows.add_column("said", said))
    backwards = [row[::-1] for row in said]
    of_columns = task(
        data=lambda: columns().add_column("said", backwards), label=tuple(LABELS[::-1])
    )
    right = prepare(
        read_inputs(of_columns, Teacher(answers="said"), student=tiny_bert),
        Session(cache=tmp_path / "columns"),
    )
    assert right.unpruned.metric == 1
    inputs = read_inputs(own, Teacher(answers="said"), student=tiny_bert)
    bench = prepare(inputs, Session(cache=tmp_path))
    shares = bench.problem.alpha_logits.sigmoid()
    wanted = torch.from_numpy(np.where(bench.problem.alpha.labels == 1, 0.9, 0.2)).float()
    torch.testing.assert_close(shares, wanted)
    assert bench.unpruned.metric == 1


def test_a_label_that_no_train_row_has_is_named() -> None:
    text = load_text(task())
    train = text.roles["train"]
    without = replace(train, labels=train.labels * np.array([0, 1, 1], np.int8))
    assert list(odd_labels(text)) == []
    (note,) = odd_labels(replace(text, roles={**text.roles, "train": without}))
    assert note.startswith("label 'food' has no train rows, but other rows (alpha ")


def test_thresholds_and_truncation_decide_a_study_of_each_task(study: Study) -> None:
    other = replace(study.task, name="other", truncation="head+tail")
    both = replace(
        study,
        task=replace(study.task, thresholds="half"),
        method=Mas(),
        space={},
        first=(),
        trials=1,
        beside=(Beside(task=other, teacher=study.teacher),),
    )
    said = definition_of(both, "text", "model", beside={"other": ("text", "model")})
    own = {name: value for name, value in said.items() if "threshold" in name or "trunc" in name}
    assert own == {"beside.other.thresholds": "selection", "beside.other.truncation": "head+tail"}
    assert not [name for name in said if name.endswith("engine")], "as before there was one"
