"""A teacher is whatever answers: any classifier, several, or answers that are there already."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets import ClassLabel, Dataset, Features
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from objectives.engines.names import Engine
from objectives.errors import UserError
from objectives.metric import Metric
from objectives.session import Session
from objectives.text.augmentation import Augmentation
from objectives.text.task import Task
from objectives.workbench.inputs import read_inputs
from objectives.workbench.teacher import Teacher
from objectives.workbench.workbench import prepare
from tests.any_classifiers import KINDS, write_classifier
from tests.bert_variants import write_student, write_variant
from tests.conftest import planted_rows

NAMES = ["happy", "neutral", "sad"]
TURNED = ["sad", "other", "happy", "neutral"]


@pytest.fixture
def task(planted_task: Task) -> Task:
    return replace(planted_task, train=40, alpha=20, select=40, heldout=40)


def logits_of_transformers(folder: str, texts: list[str]) -> torch.Tensor:
    """One text at a time, so that nothing is padded, in the order of NAMES."""
    model = AutoModelForSequenceClassification.from_pretrained(folder, attn_implementation="eager")
    tokenizer, order = AutoTokenizer.from_pretrained(folder), model.config.label2id
    cut = {"truncation": True, "max_length": 24, "return_tensors": "pt"}
    with torch.no_grad():
        said = [model(**tokenizer(text, **cut)).logits for text in texts]
    return torch.cat(said)[:, [order[name] for name in NAMES]]


@pytest.mark.parametrize("kind", KINDS)
def test_any_classifier_answers_as_in_transformers(kind: str, task: Task, tmp_path: Path) -> None:
    folder = write_classifier(kind, tmp_path / kind, TURNED)
    inputs = read_inputs(task, Teacher(checkpoint=folder))
    answering = inputs.answering(inputs.split("train"), Session(cache=tmp_path / "cache"))
    rows = inputs.text.roles["select"]
    said = answering.answer(inputs.split("select"), rows)
    wanted = logits_of_transformers(folder, [text for (text,) in rows.texts])
    assert wanted.std() > 0.1
    torch.testing.assert_close(said, wanted, rtol=1e-4, atol=1e-4)
    costs = answering.costs(24)
    assert costs["flops@24"] > 2 * 24 * 2 * 16 * 24  # more than its feed-forwards have
    assert (
        costs["params"]
        == AutoModelForSequenceClassification.from_pretrained(folder).num_parameters()
    )


def answers_of(folder: str, task: Task, cache: Path, *texts: str) -> torch.Tensor:
    """Logits of a teacher for the selection rows, after these texts."""
    inputs = read_inputs(task, Teacher(checkpoint=folder))
    rows = inputs.text.roles["select"]
    rows = replace(rows, texts=[*((text,) for text in texts), *rows.texts[len(texts) :]])
    inputs = replace(inputs, text=replace(inputs.text, roles={**inputs.text.roles, "select": rows}))
    answering = inputs.answering(inputs.split("train"), Session(cache=cache))
    return answering.answer(inputs.split("select"), rows)


@pytest.mark.parametrize(
    "engine",
    [
        "bfloat16",
        pytest.param("onnxruntime-int8", marks=[pytest.mark.slow, pytest.mark.timeout(600)]),
    ],
)
@pytest.mark.parametrize("several", [False, True])
def test_an_engine_answers_the_rows_that_teach_alone(
    engine: Engine, several: bool, task: Task, tmp_path: Path
) -> None:
    folder = write_variant("mpnet", tmp_path / "mpnet", NAMES)
    named: dict[str, Any] = {"ensemble": (folder, folder)} if several else {"checkpoint": folder}
    answers = {}
    for asked in ("eager", engine):
        inputs = read_inputs(task, Teacher(**named, engine=asked))
        answering = inputs.answering(inputs.split("train"), Session(cache=tmp_path / "cache"))
        for role in ("train", "select"):
            rows = inputs.text.roles[role]
            answers[asked, role] = answering.answer(inputs.split(role), rows).softmax(-1)
    assert torch.equal(answers["eager", "select"], answers[engine, "select"])
    difference = (answers["eager", "train"] - answers[engine, "train"]).abs().max()
    assert 0 < difference < 0.05
    [written] = (tmp_path / "cache").glob(f"teacher-{engine}-*")
    files = [file.name for file in written.rglob("*.onnx")]
    assert files == ["model_int8.onnx"] * (engine == "onnxruntime-int8")


def test_an_engine_is_for_what_computes_as_bert_does(task: Task, tmp_path: Path) -> None:
    folder = write_classifier("xlnet", tmp_path / "xlnet", NAMES)
    with pytest.raises(UserError, match=r"engine is 'bfloat16'.* is no BERT \('xlnet'\)"):
        read_inputs(task, Teacher(checkpoint=folder, engine="bfloat16"))


def test_a_decoder_finds_the_last_word_by_the_padding_of_its_tokenizer(
    task: Task, tmp_path: Path
) -> None:
    folder = write_classifier("llama", tmp_path / "llama", NAMES)
    expected = answers_of(folder, task, tmp_path / "cache")
    settings = json.loads((tmp_path / "llama" / "config.json").read_text())
    (tmp_path / "llama" / "config.json").write_text(json.dumps(settings | {"pad_token_id": 7}))
    assert torch.equal(answers_of(folder, task, tmp_path / "cache"), expected)


def test_fine_tuning_keeps_the_padding_that_positions_begin_at(task: Task, tmp_path: Path) -> None:
    folder = Path(write_variant("roberta", tmp_path / "roberta"))
    padding = json.loads((folder / "config.json").read_text())["pad_token_id"]
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.pad_token = tokenizer.unk_token
    tokenizer.save_pretrained(folder)
    assert tokenizer.pad_token_id != padding
    inputs = read_inputs(task, Teacher(checkpoint=str(folder), epochs=1))
    inputs.answering(inputs.split("train"), Session(cache=tmp_path / "cache"))
    (saved,) = (tmp_path / "cache").glob("*/config.json")
    assert json.loads(saved.read_text())["pad_token_id"] == padding


def test_texts_of_several_ends_are_answered_one_by_one(task: Task, tmp_path: Path) -> None:
    folder = write_classifier("bart", tmp_path / "bart", NAMES)
    texts = ["joy </s> bab", "grief bel </s> </s> dab"]
    logits = answers_of(folder, task, tmp_path / "cache", *texts)
    wanted = logits_of_transformers(folder, texts)
    torch.testing.assert_close(logits[:2], wanted, rtol=1e-4, atol=1e-4)


def test_a_text_that_a_teacher_cannot_answer_is_named(task: Task, tmp_path: Path) -> None:
    folder = write_classifier("bart", tmp_path / "bart", NAMES)
    file = tmp_path / "bart" / "tokenizer.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "post_processor": None}))
    with pytest.raises(UserError, match=r"\(bart\) cannot answer the text '.*joy.*<eos> token"):
        answers_of(folder, task, tmp_path / "cache", *["joy </s>"] * 39, "bab joy")


def test_an_ensemble_says_the_mean_of_the_probabilities(task: Task, tmp_path: Path) -> None:
    folders = [
        write_classifier("modernbert", tmp_path / "one", TURNED),
        write_classifier("xlnet", tmp_path / "two", NAMES, seed=1),
        write_variant("bert", tmp_path / "three", NAMES),
    ]
    inputs = read_inputs(task, Teacher(ensemble=tuple(folders)))
    answering = inputs.answering(inputs.split("train"), Session(cache=tmp_path / "cache"))
    rows = inputs.text.roles["select"]
    said = answering.answer(inputs.split("select"), rows).softmax(-1)
    texts = [text for (text,) in rows.texts]
    each = [logits_of_transformers(folder, texts).softmax(-1) for folder in folders]
    torch.testing.assert_close(said, torch.stack(each).mean(0), rtol=1e-4, atol=1e-5)
    alone = [
        read_inputs(task, Teacher(checkpoint=one)).answering(
            inputs.split("train"), Session(cache=tmp_path)
        )
        for one in folders
    ]
    assert answering.costs(8) == {
        unit: sum(one.costs(8)[unit] for one in alone) for unit in alone[0].costs(8)
    }


def shares(text: str) -> list[float]:
    """Made-up probabilities of NAMES."""
    powers = np.random.default_rng(len(text)).dirichlet([1, 1, 1])
    return [round(float(share), 3) for share in powers]


def as_rows(answer: Callable[[str], Any]) -> Callable[[], Dataset]:
    """The planted rows, and beside each what is answered."""
    rows = planted_rows()
    return lambda: rows.add_column("said", [answer(text) for text in rows["text"]])


def in_file(folder: Path, form: str) -> str:
    rows = planted_rows()
    columns = {
        name: [shares(text)[place] for text in rows["text"]] for place, name in enumerate(NAMES)
    }
    table = Dataset.from_dict({"id": range(len(rows)), **columns, "text": rows["text"]})
    file = folder / f"answers.{form}"
    table.to_csv(file, index=False) if form == "csv" else table.to_json(file)
    return str(file)


@pytest.mark.parametrize("form", ["list", "mapping", "json", "logits", "csv", "jsonl"])
def test_answers_that_are_there_are_read_whatever_their_form(
    form: str, task: Task, tiny_bert: str, tmp_path: Path
) -> None:
    forms: dict[str, Callable[[str], Any]] = {
        "list": shares,
        "mapping": lambda text: dict(zip(NAMES, shares(text), strict=True)),
        "json": lambda text: json.dumps(
            dict(zip(reversed(NAMES), shares(text)[::-1], strict=True))
        ),
        "logits": lambda text: [float(np.log(share + 1e-9)) + 3 for share in shares(text)],
    }
    kind: Any = "logits" if form == "logits" else "probabilities"
    if form in forms:
        teacher = Teacher(answers="said", answers_as=kind)
        task = replace(task, data=as_rows(forms[form]))
    else:
        teacher = Teacher(answers=in_file(tmp_path, form))
    bench = prepare(read_inputs(task, teacher, student=tiny_bert), Session(cache=tmp_path))
    wanted = torch.tensor([shares(text) for (text,) in bench.texts["select"].texts])
    said = bench.teacher_answers["select"].softmax(-1)
    torch.testing.assert_close(said, wanted, atol=2e-3, rtol=0)
    assert bench.unpruned.divergence == 0
    assert bench.unpruned.cost == bench.problem.budget.full
    assert bench.problem.teacher_logits.shape == (40, 3)


def test_hard_labels_are_smoothed(task: Task, tiny_bert: str, tmp_path: Path) -> None:
    rows = replace(task, data=as_rows(lambda text: " sad "))  # blanks around do not count
    teacher = Teacher(answers="said", answers_as="labels", smoothing=0.3)
    bench = prepare(read_inputs(rows, teacher, student=tiny_bert), Session(cache=tmp_path))
    said = bench.problem.alpha_logits.softmax(-1)
    torch.testing.assert_close(said, torch.tensor([[0.1, 0.1, 0.8]]).expand(20, 3))
    plain = prepare(
        read_inputs(
            replace(task, metric="agreement"),
            Teacher(answers="label", answers_as="labels"),
            student=tiny_bert,
        ),
        Session(cache=tmp_path),
    )
    assert plain.unpruned.metric == 1
    assert np.unique(plain.select.labels).tolist() == [0, 1, 2]


@pytest.mark.parametrize("metric", ["accuracy", "agreement"])
def test_classes_as_answers_have_their_names(
    task: Task, tiny_bert: str, tmp_path: Path, metric: Metric
) -> None:
    names = ["sad", "neutral", "happy"]
    rows = as_rows(lambda text: "sad")()
    rows = rows.add_column("kind", rows["label"]).cast_column("kind", ClassLabel(names=names))
    teacher = Teacher(answers="kind", answers_as="labels")
    inputs = read_inputs(
        replace(task, metric=metric, data=lambda: rows), teacher, student=tiny_bert
    )
    assert list(inputs.text.label_names) == sorted(names)
    assert prepare(inputs, Session(cache=tmp_path)).unpruned.metric == 1


def test_a_class_of_minus_one_is_no_answer(task: Task, tiny_bert: str) -> None:
    classes = {"said": ClassLabel(names=["sad", "happy"])}
    features = Features({**as_rows(lambda text: 0)().features, **classes})
    rows = as_rows(lambda text: -1 if "joy" in text else 0)().cast(features)
    teacher = Teacher(answers="said", answers_as="labels")
    with pytest.raises(UserError, match=r"[1-9]\d* of 140 texts of the task have no answer"):
        read_inputs(replace(task, data=lambda: rows), teacher, student=tiny_bert)


@pytest.mark.parametrize(
    ("answer", "changes", "message"),
    [
        (lambda text: [0.5, 0.5, 0.5], {}, r"no probabilities that sum to 1, such as 0\.5"),
        (lambda text: [50, 25, 25], {}, r"sum 100\); mend them, or set answers_as='logits'"),
        (lambda text: {"glad": 1.0, "sad": 0.0}, {}, "is none to the label 'happy', 'neutral'"),
        (lambda text: [0.5, 0.5], {}, r"has 2 numbers, \[0\.5, 0\.5\]; the task has 3 labels"),
        (lambda text: "no idea", {}, "'no idea' is no list of numbers and no mapping"),
        (lambda text: "glad", {"answers_as": "labels"}, "has the label 'glad', which the task"),
        (lambda text: [float("nan")] * 3, {"answers_as": "logits"}, "has nan or infinite numbers"),
        (lambda text: "sad" if "joy" in text else None, {"answers_as": "labels"}, "have no answer"),
        (shares, {"answers": "sayd"}, "no column 'sayd'; .*did you mean 'said'"),
        (shares, {"answers": "few.csv"}, "2 of 400 texts of the task have no answer, such as '"),
        (shares, {"answers": "other.csv"}, "no column 'neutral'; there are 'text', 'happy', 'sad'"),
    ],
)  # fmt: skip
def test_answers_that_are_none_are_refused_in_one_line(
    answer: Callable[[str], Any],
    changes: dict[str, Any],
    message: str,
    planted_task: Task,
    tiny_bert: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    whole = Dataset.from_csv(in_file(tmp_path, "csv")).remove_columns("id")
    whole.select(range(398)).to_csv("few.csv", index=False)
    whole.select_columns(["text", "happy", "sad"]).to_csv("other.csv", index=False)
    task = replace(planted_task, data=as_rows(answer))
    with pytest.raises(UserError, match=message) as raised:
        read_inputs(task, Teacher(**{"answers": "said", **changes}), student=tiny_bert)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("answer", ["sad", "0.9"])
def test_words_for_probabilities_are_refused_without_labels_too(
    answer: str, planted_task: Task, tiny_bert: str
) -> None:
    task = replace(planted_task, data=as_rows(lambda text: answer), metric="agreement")
    with pytest.raises(UserError, match=r"is no list of numbers .* set answers_as='labels'"):
        read_inputs(task, Teacher(answers="said"), student=tiny_bert)


@pytest.mark.parametrize(
    ("answer", "answers_as"), [([2.3], "logits"), ({"toxic": 2.3}, "logits"), ("sad", "labels")]
)
def test_one_label_which_all_would_agree_with_is_refused(
    answer: object, answers_as: Any, planted_task: Task, tiny_bert: str
) -> None:
    task = replace(planted_task, data=as_rows(lambda text: answer), metric="agreement")
    with pytest.raises(UserError, match=r"has one label only.* give a number for each of two"):
        read_inputs(task, Teacher(answers="said", answers_as=answers_as), student=tiny_bert)


def test_labels_that_look_like_numbers_are_those_of_the_task(tiny_bert: str) -> None:
    signs = {"happy": "+1", "sad": "-1", "neutral": "none"}
    rows = planted_rows().to_dict()
    rows["label"] = [signs[label] for label in rows["label"]]
    task = Task(name="signs", data=lambda: Dataset.from_dict(rows), alpha=20, select=40, heldout=40)
    teacher = Teacher(answers="label", answers_as="labels")
    inputs = read_inputs(replace(task, max_length=24), teacher, student=tiny_bert)
    assert list(inputs.text.label_names) == ["+1", "-1", "none"]


def test_what_cannot_go_with_answers_alone_is_refused(
    task: Task, tiny_bert: str, tiny_masked_lm: str, tmp_path: Path
) -> None:
    given, rows = Teacher(answers="said"), replace(task, data=as_rows(shares))
    with pytest.raises(UserError, match=r"has no tokens; set Study\.student to a BERT"):
        read_inputs(rows, given)
    made = Augmentation(masked_lm=tiny_masked_lm, copies=1)
    with pytest.raises(UserError, match=r"augmentation makes texts that Teacher\.answers has no"):
        read_inputs(rows, given, student=tiny_bert, augmentation=made)
    modern = Teacher(checkpoint=write_classifier("modernbert", tmp_path / "modern", NAMES))
    with pytest.raises(UserError, match=r"no teacher to take layers of: .*is no BERT \('modernb"):
        read_inputs(task, modern, student_layers=(0,))
    inputs = read_inputs(task, modern)
    with pytest.raises(
        UserError, match=r"Study\.cost is 'latency', which is counted beside a BERT"
    ):
        prepare(inputs, Session(cache=tmp_path), cost="latency")
    other = write_classifier("albert", tmp_path / "albert", ["good", "bad", "so-so"])
    with pytest.raises(UserError, match=r"does not know the label\(s\) happy, neutral, sad"):
        read_inputs(task, Teacher(checkpoint=other))


@pytest.mark.parametrize("fields", [{}, {"checkpoint": "a", "answers": "b"}, {"ensemble": ()}])
def test_a_teacher_is_one_of_three(fields: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=r"name one of checkpoint .*, ensemble .* and answers"):
        Teacher(**fields)


@pytest.mark.parametrize("kind", ["bert", "student", "ensemble"])
def test_students_have_the_names_of_the_teacher_where_the_data_has_numbers(
    kind: str, task: Task, tiny_bert: str, tmp_path: Path
) -> None:
    rows = planted_rows()
    numbers = [NAMES.index(label) for label in rows["label"]]
    rows = rows.remove_columns("label").add_column("label", numbers)
    named = write_variant("bert", tmp_path / "named", NAMES)
    other = write_variant("bert", tmp_path / "other", NAMES)
    teacher = Teacher(ensemble=(named, other)) if kind == "ensemble" else Teacher(checkpoint=named)
    student = write_student(tiny_bert, tmp_path / "student") if kind == "student" else None
    inputs = read_inputs(replace(task, data=lambda: rows), teacher, student=student)
    problem = prepare(inputs, Session(cache=tmp_path / "cache")).problem
    ensemble = kind == "ensemble"
    names = problem.words.settings["id2label"] if ensemble else problem.student.config.id2label
    assert [names[place] for place in range(3)] == NAMES


def test_a_student_of_other_tokens_learns_the_answers_of_a_bert(
    task: Task, tiny_bert: str, tmp_path: Path
) -> None:
    roberta = write_variant("roberta", tmp_path / "roberta", NAMES)
    student = write_student(tiny_bert, tmp_path / "student")
    inputs = read_inputs(task, Teacher(checkpoint=roberta), student=student)
    bench = prepare(inputs, Session(cache=tmp_path / "cache"))
    texts = [text for (text,) in bench.texts["heldout"].texts]
    wanted = logits_of_transformers(roberta, texts)
    torch.testing.assert_close(bench.teacher_answers["heldout"], wanted, rtol=1e-4, atol=1e-4)
    words = bench.problem.student.bert.embeddings.word_embeddings.weight
    assert torch.equal(bench.problem.words.embeddings, words)
    assert bench.unpruned.cost > bench.problem.budget.full == bench.flops_full
    with pytest.raises(UserError, match=f"'{roberta}' reads other tokens than the student"):
        _ = bench.problem.teacher.config.hidden_size
