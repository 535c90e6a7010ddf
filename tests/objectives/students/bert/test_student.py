"""A student of another checkpoint: what it must share with its teacher, and where it starts."""

from dataclasses import replace
from pathlib import Path
from shutil import copytree

import pytest
import torch
from datasets import Dataset
from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification, BertModel

from objectives.errors import UserError
from objectives.measures.cost import Flops
from objectives.measures.evaluate import predict
from objectives.session import Session
from objectives.students.bert.cutting import shape_of
from objectives.text.task import Task
from objectives.workbench.inputs import Inputs, read_inputs
from objectives.workbench.teacher import Teacher
from objectives.workbench.workbench import Workbench, prepare
from tests.bert_variants import write_student, write_variant
from tests.conftest import MARKERS, TINY, planted_rows
from tests.objectives.conformance import random_states

LABELS = sorted(MARKERS.values())


@pytest.fixture(scope="module")
def teacher(fine_tuned: str) -> Teacher:
    return Teacher(checkpoint=fine_tuned)


def inputs_of(task: Task, teacher: Teacher, student: str) -> Inputs:
    return read_inputs(task, teacher, seq_len=16, student=student)


def prepared(inputs: Inputs, cache: Path, seed: int = 0) -> Workbench:
    return prepare(inputs, session=Session(cache=cache, seed=seed))


def test_the_student_is_ratio_1_and_the_teacher_keeps_its_own_flops(
    tiny_bert: str, teacher: Teacher, planted_task: Task, tmp_path: Path
) -> None:
    student = write_student(tiny_bert, tmp_path / "student")
    inputs = inputs_of(planted_task, teacher, student)
    bench = prepared(inputs, tmp_path)
    problem = bench.problem
    small = shape_of(problem.student.config)
    assert (small.layers, small.hidden, small.heads, small.ffn, small.labels) == (2, 16, 2, 24, 3)
    assert bench.flops.shape == problem.shape == small
    assert [replace(shape_of(c), labels=3) for c in inputs.configs()] == [small, TINY]
    assert problem.budget.full == problem.budget.cost.full == Flops(small, 16).full
    assert bench.unpruned.flops == Flops(TINY, 16).full > problem.budget.full
    assert shape_of(problem.teacher.config) == TINY
    for model in (problem.student, problem.teacher):
        assert not model.training
        assert not any(weight.requires_grad for weight in model.parameters())
    logits = predict(problem.teacher, problem.train, "cpu")
    torch.testing.assert_close(problem.teacher_logits, logits)


def test_the_teacher_of_other_students_is_in_the_problem_too(workbench: Workbench) -> None:
    assert workbench.problem.teacher is workbench.problem.student


def test_a_student_keeps_its_weights_and_no_seed_decides_its_classifier(
    tiny_bert: str, teacher: Teacher, planted_task: Task, tmp_path: Path
) -> None:
    inputs = inputs_of(planted_task, teacher, write_student(tiny_bert, tmp_path / "student"))
    torch.manual_seed(5)
    first = prepared(inputs, tmp_path).problem.student
    torch.manual_seed(6)
    before = random_states()
    again = prepared(inputs, tmp_path).problem.student
    assert random_states() == before
    other = prepared(inputs, tmp_path, seed=1).problem.student
    own = BertModel.from_pretrained(tmp_path / "student").state_dict()
    for name, weight in own.items():
        assert torch.equal(first.bert.state_dict()[name], weight)
    assert torch.equal(first.classifier.weight, again.classifier.weight)
    assert torch.equal(first.classifier.weight, other.classifier.weight)
    assert list(first.config.id2label.values()) == LABELS


@pytest.mark.parametrize(
    ("labels", "order"),
    [(["sad", "happy", "neutral"], [1, 2, 0]), (["sad", "happy", "angry", "neutral"], [1, 3, 0])],
)
def test_a_students_own_classifier_takes_the_tasks_labels_and_their_order(
    tiny_bert: str,
    teacher: Teacher,
    planted_task: Task,
    tmp_path: Path,
    labels: list[str],
    order: list[int],
) -> None:
    student = write_student(tiny_bert, tmp_path / "student", labels)
    loaded = prepared(inputs_of(planted_task, teacher, student), tmp_path).problem.student
    saved = BertForSequenceClassification.from_pretrained(student)
    for name in ("weight", "bias"):
        ordered = getattr(saved.classifier, name)[order]
        assert torch.equal(getattr(loaded.classifier, name), ordered)
    assert list(loaded.config.id2label.values()) == LABELS


def test_a_student_of_unnamed_labels_goes_by_index(
    tiny_bert: str, teacher: Teacher, planted_task: Task, tmp_path: Path
) -> None:
    names = [f"LABEL_{output}" for output in range(3)]
    student = write_student(tiny_bert, tmp_path / "student", names)
    loaded = prepared(inputs_of(planted_task, teacher, student), tmp_path).problem.student
    saved = BertForSequenceClassification.from_pretrained(student)
    assert torch.equal(loaded.classifier.weight, saved.classifier.weight)
    assert list(loaded.config.id2label.values()) == LABELS


def test_a_classifier_of_other_labels_is_refused(
    tiny_bert: str, teacher: Teacher, planted_task: Task, tmp_path: Path
) -> None:
    for labels, message in (
        (["happy", "sad"], r"does not know the label\(s\) neutral of the task; it knows happy, s"),
        (["happy", "sad", "angry"], r"does not know the label\(s\) neutral"),
    ):
        student = write_student(tiny_bert, tmp_path / labels[-1], labels)
        with pytest.raises(UserError, match=message):
            inputs_of(planted_task, teacher, student)


def test_another_vocabulary_learns_answers_alone(
    tiny_bert: str, teacher: Teacher, planted_task: Task, tmp_path: Path
) -> None:
    larger = tmp_path / "larger"
    config = BertConfig.from_pretrained(tiny_bert, vocab_size=50)
    BertModel(config).save_pretrained(larger)
    AutoTokenizer.from_pretrained(tiny_bert).save_pretrained(larger)
    other = copytree(tiny_bert, tmp_path / "other")
    text = (other / "tokenizer.json").read_text()
    assert '"joy"' in text
    (other / "tokenizer.json").write_text(text.replace('"joy"', '"woe"'))
    same = copytree(tiny_bert, tmp_path / "same")
    for folder, why in ((same, ""), (larger, "reads other"), (other, "reads other")):
        inputs = inputs_of(planted_task, teacher, str(folder))
        assert inputs.only_answers.startswith(why)
        assert bool(inputs.only_answers) == bool(why)


def test_a_checkpoint_that_does_not_tell_the_texts_of_a_pair_apart_is_refused(
    tiny_bert: str, teacher: Teacher, planted_task: Task, tmp_path: Path
) -> None:
    def pairs() -> Dataset:
        rows = planted_rows()
        return rows.add_column("second", ["bab"] * len(rows))

    of_two = replace(planted_task, data=pairs, text=("text", "second"))
    one_type = copytree(tiny_bert, tmp_path / "one-type")
    BertModel(BertConfig.from_pretrained(tiny_bert, type_vocab_size=1)).save_pretrained(one_type)
    message = (
        "one-type': its type_vocab_size is 1, but for pairs of texts the tokenizer uses .*type 1"
    )
    with pytest.raises(UserError, match=message):
        inputs_of(of_two, teacher, str(one_type))
    alone = Teacher(checkpoint=str(one_type))
    with pytest.raises(UserError, match=message):
        read_inputs(of_two, alone)
    assert inputs_of(planted_task, alone, str(one_type)).tokenizer is not None
    without_types = write_variant("roberta", tmp_path / "roberta")
    assert read_inputs(of_two, Teacher(checkpoint=without_types)).tokenizer is not None


def test_a_student_that_is_not_there_or_reads_less_is_refused(
    tiny_bert: str, teacher: Teacher, planted_task: Task, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=r"^model 'nowhere': no such folder"):
        inputs_of(planted_task, teacher, "nowhere")
    short = tmp_path / "short"
    BertModel(BertConfig.from_pretrained(tiny_bert, max_position_embeddings=20)).save_pretrained(
        short
    )
    with pytest.raises(UserError, match=r"task\.max_length is 24; '.*short' takes 1 to 20 tokens"):
        inputs_of(planted_task, teacher, str(short))


def test_a_student_counts_by_the_content_of_its_weights(
    tiny_bert: str, teacher: Teacher, planted_task: Task, tmp_path: Path
) -> None:
    student = write_student(tiny_bert, tmp_path / "student")
    moved = str(copytree(student, tmp_path / "moved"))
    one, same, none = (
        read_inputs(planted_task, teacher, seq_len=16, student=s).student_fingerprint
        for s in (student, moved, None)
    )
    assert one == same
    assert one is not None
    assert none is None
