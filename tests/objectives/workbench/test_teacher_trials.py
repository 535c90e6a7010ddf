"""A teacher tried before any student: at several lengths of its texts, with several settings."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from datasets import Dataset
from sklearn.metrics import log_loss, mean_squared_error
from transformers import PreTrainedModel

from maskfront import Task, Teacher, lengths
from objectives.delivery.classify import Classifier
from objectives.delivery.deployed import answers_to, write_single
from objectives.delivery.exported import load_model
from objectives.errors import UserError
from objectives.measures.evaluate import metric_of, predict
from objectives.session import Session
from objectives.students.bert.pretrained import Checkpoint
from objectives.text.task import Examples, tokenise
from objectives.workbench.inputs import Inputs, read_inputs
from objectives.workbench.teacher_trials import FineTune, tune
from objectives.workbench.workbench import prepare
from tests.any_classifiers import KINDS, write_classifier
from tests.conftest import graded_rows, planted_rows
from tests.orchestrator.test_several_labels import task as several_task


def pairs() -> object:
    return planted_rows().map(lambda row: {"other": row["text"]})


@pytest.mark.parametrize("length", [8, 11, 16])
def test_a_long_text_keeps_a_quarter_of_the_room_for_its_head(
    tiny_bert: str, tmp_path: Path, length: int
) -> None:
    rows = Examples([(text,) for text in planted_rows()["text"]], np.zeros(400, int))
    for folder in (tiny_bert, write_classifier("xlnet", tmp_path / "xlnet")):
        tokenizer = Checkpoint(folder).tokenizer
        whole = tokenise(rows, "select", tokenizer, 512)
        split = tokenise(rows, "select", tokenizer, length, "head+tail")
        assert 0 < split.truncated < 400
        first, last = length // 4, length - length // 4
        for mine, all_of_it in (
            (split.input_ids, whole.input_ids),
            (split.token_type_ids, whole.token_type_ids),
        ):
            for own, text in zip(mine, all_of_it, strict=True):
                cut = [*text[:first], *text[-last:]]
                assert list(own) == (cut if len(text) > length else list(text))


def test_a_teacher_is_told_at_each_length_and_way(fine_tuned: str, planted_task: Task) -> None:
    teacher = Teacher(checkpoint=fine_tuned)
    rows = list(lengths(planted_task, teacher, (8, 24, 900), device="cpu"))
    ways = [(row.max_length, row.truncation) for row in rows]
    assert ways == [(24, "head"), (8, "head"), (8, "head+tail")]
    whole, *cut = rows
    assert whole.cut_off == 0
    assert {row.cut_off for row in cut} == {cut[0].cut_off}
    assert cut[0].cut_off > 0.5
    for row in rows:
        own = replace(planted_task, max_length=row.max_length, truncation=row.truncation)
        inputs = read_inputs(own, teacher)
        select = inputs.split("select")
        model = load_model(Path(fine_tuned))
        logits = predict(model, select, "cpu")
        assert row.tokens == select.lengths.mean() <= row.max_length
        assert row.metric == metric_of(logits, select, "accuracy")
        assert row.interval[0] <= row.metric <= row.interval[1]
        assert row.seconds > 0
    assert whole.metric > cut[0].metric
    agreeing = list(lengths(replace(planted_task, metric="agreement"), teacher, (24, 8)))
    assert agreeing[0].metric == 1
    assert agreeing[1].metric < 1


def test_two_texts_and_several_labels_and_no_classifier(tiny_bert: str, planted_task: Task) -> None:
    teacher = Teacher(checkpoint=tiny_bert, epochs=1, trials=2)
    both = replace(planted_task, data=pairs, text=("text", "other"))
    assert [row.truncation for row in lengths(both, teacher, (16,), device="cpu")] == ["head"]
    short = lengths(planted_task, teacher, (7,), device="cpu")
    assert [(row.max_length, row.truncation) for row in short] == [(7, "head")]
    several = several_task(thresholds="selection")
    assert 0 <= next(lengths(several, teacher, (16,), device="cpu")).metric <= 1
    with pytest.raises(UserError, match=r"Teacher\.answers has no tokens"):
        next(lengths(planted_task, Teacher(answers="said")))
    with pytest.raises(UserError, match=r"max_length is 900; .* takes 1 to"):
        next(lengths(planted_task, teacher, (900,)))
    wanted = "truncation is 'head[+]tail'; it must be head, or of one text head[+]tail with max_len"
    for wrong in ({"text": ("text", "other")}, {"max_length": 7}):
        with pytest.raises(UserError, match=wanted):
            replace(planted_task, truncation="head+tail", **wrong)


@pytest.mark.slow
def test_onnx_reads_head_and_tail_too(fine_tuned: str, planted_task: Task, tmp_path: Path) -> None:
    from objectives.engines.onnx_model import write_onnx

    task = replace(planted_task, max_length=9, truncation="head+tail")
    inputs = read_inputs(task, Teacher(checkpoint=fine_tuned))
    model = load_model(Path(fine_tuned))
    write_onnx(model, tmp_path / "model.onnx")
    shown = task.max_length, task.truncation
    write_single(tmp_path, "model.onnx", model, inputs.tokenizer, *shown)
    served = Classifier(tmp_path)
    assert json.loads((tmp_path / "classifier.json").read_text())["stages"][0]["max_length"] == 9
    select = inputs.split("select")
    assert select.truncated
    said = answers_to(served, [text for (text,) in inputs.text.roles["select"].texts])
    torch.testing.assert_close(
        torch.from_numpy(said), predict(model, select, "cpu"), rtol=1e-3, atol=1e-4
    )
    bench = prepare(inputs, Session(cache=tmp_path / "cache"))
    assert bench.problem.train.truncation == bench.heldout.truncation == "head+tail"


SMALL = {"train": 64, "alpha": 16, "select": 48, "heldout": 48}


def of_several_labels() -> Dataset:
    """The planted rows; each has its own label or its own and another."""
    rows = planted_rows().to_dict()
    both = zip(rows["text"], rows["label"], strict=True)
    labels = [sorted({own, "sad"} if "bab" in text else {own}) for text, own in both]
    return Dataset.from_dict({"text": rows["text"], "label": labels})


def mean_loss(task: Task, logits: np.ndarray, labels: np.ndarray) -> float:
    """By scikit-learn."""
    if task.metric == "pearson_spearman":
        return float(mean_squared_error(labels, logits[:, 0]))
    if task.multi_label:
        chances = 1 / (1 + np.exp(-logits.astype(np.float64)))
        return sum(log_loss(own, chance) for own, chance in zip(labels.T, chances.T, strict=True))
    exp = np.exp(logits.astype(np.float64))
    return float(log_loss(labels, exp / exp.sum(1, keepdims=True), labels=[0, 1, 2]))


@pytest.mark.parametrize("kind", ["classes", "numbers", "several labels", "xlnet"])
def test_the_kept_teacher_is_that_of_its_settings_and_its_loss_that_of_its_answers(
    kind: str, planted_task: Task, tiny_bert: str, tmp_path: Path
) -> None:
    task, checkpoint = replace(planted_task, **SMALL), tiny_bert
    if kind == "numbers":
        task = replace(task, data=graded_rows, metric="pearson_spearman")
    if kind == "several labels":
        task = replace(task, data=of_several_labels, metric="micro_f1", multi_label=True)
    if kind in KINDS:
        checkpoint = write_classifier(kind, tmp_path / kind)
    plain = Teacher(checkpoint=checkpoint, epochs=2, batch_size=16, learning_rate=1e-3, warmup=0.3)
    heard: dict[int, float] = {}

    def choose(fine_tune: FineTune) -> PreTrainedModel:
        settings = {"epochs": 2, "learning_rate": 1e-3, "batch_size": 16, "warmup": 0.3}
        model, loss = fine_tune(settings, heard.__setitem__)
        assert loss == heard[2]
        return model

    def answers(inputs: Inputs, *, fine_tune: bool) -> torch.Tensor:
        given = inputs.split("train"), Session(cache=tmp_path)
        select = inputs.split("select")
        answering = inputs.answering(*given, fine_tune=fine_tune)
        return answering.answer(select, inputs.text.roles["select"])

    tuned = read_inputs(task, Teacher(checkpoint=checkpoint, trials=3))
    tune(tuned, Session(cache=tmp_path), choose)
    tune(tuned, Session(cache=tmp_path), lambda _: pytest.fail("it is there already"))
    assert sorted(heard) == [1, 2]
    kept = answers(tuned, fine_tune=False)
    assert torch.equal(kept, answers(read_inputs(task, plain), fine_tune=True))
    wanted = mean_loss(task, kept.numpy(), tuned.split("select").labels)
    assert heard[2] == pytest.approx(wanted, rel=1e-4)
