"""What all trials of a study share: what a method sees, and what it never does."""

import copy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from shutil import copytree
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset
from transformers import (
    AutoModelForSequenceClassification,
    BertConfig,
    BertForSequenceClassification,
)

from objectives.engines.names import Engine
from objectives.engines.serving import make_runnable
from objectives.errors import UserError
from objectives.measures.budget import Budget
from objectives.measures.cost import CostName, Flops, Params
from objectives.measures.evaluate import (
    count_parameters,
    divergence,
    metric_of,
    predict,
    predict_with,
)
from objectives.measures.measured import WrongCostError
from objectives.measures.score import Score
from objectives.methods.baselines.random_pruning import RandomPruning
from objectives.session import Session
from objectives.students.bert.architecture import BertArchitecture, LayerUnits
from objectives.students.bert.cutting import cut, shape_of
from objectives.students.bert.pretrained import Checkpoint, take_outputs
from objectives.text.data import Split
from objectives.text.roles import load_text
from objectives.text.task import Task, tokenise
from objectives.training import teacher_states
from objectives.workbench import workbench as scoring
from objectives.workbench.fidelity import Fidelity
from objectives.workbench.inputs import read_inputs
from objectives.workbench.teacher import Teacher
from objectives.workbench.workbench import Workbench, prepare
from tests.conftest import MARKERS, TINY, graded_rows, planted_rows
from tests.objectives.conformance import RecordingProgress, random_states, search_alone

LABELS = sorted(MARKERS.values())


def judged(score: Score) -> Score:
    """Without the rows that a student learns from: the teacher's own score has no such number."""
    return replace(score, train_divergence=None)


@pytest.fixture(scope="module")
def checkpoint(workbench: Workbench, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The workbench's teacher in a folder, the names of its labels in another order."""
    folder = tmp_path_factory.mktemp("teacher")
    model, turned = copy.deepcopy(workbench.problem.student), [2, 0, 1]
    model.load_state_dict(
        {
            name: weight[turned] if name.startswith("classifier") else weight
            for name, weight in model.state_dict().items()
        }
    )
    names = [model.config.id2label[index] for index in turned]
    model.config.id2label = dict(enumerate(names))
    model.config.label2id = {name: index for index, name in enumerate(names)}
    model.save_pretrained(folder)
    workbench.tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.fixture
def prepared(checkpoint: str, planted_task: Task, tmp_path: Path) -> Workbench:
    """A workbench whose student keeps the first and the last layer of the teacher."""
    inputs = read_inputs(
        planted_task, Teacher(checkpoint=checkpoint), student_layers=(0, 2), seq_len=16
    )
    return prepare(inputs, session=Session(cache=tmp_path))


def test_students_of_some_layers_are_said_to_begin_below_the_teacher(prepared: Workbench) -> None:
    said = "students of layers (0, 2) begin at a ratio of 0.66"
    assert any(note.startswith(said) for note in prepared.notes), prepared.notes


def test_students_of_some_layers_meet_a_target_above_what_they_are(prepared: Workbench) -> None:
    """R is 1 by default in methods of few bits, which cut nothing."""
    found = search_alone(RandomPruning(target_ratio=1.0, stages=()), prepared.problem)
    assert isinstance(found.architecture, BertArchitecture)
    assert found.target_ratio == prepared.problem.budget.ratio(found.architecture) < 0.67


def test_a_method_sees_no_rows_but_those_of_train_and_alpha(workbench: Workbench) -> None:
    seen = [value for value in vars(workbench.problem).values() if isinstance(value, Split)]
    assert [split.role for split in seen] == ["train", "alpha"]
    assert not any(value is workbench for value in vars(workbench.problem).values())


def test_the_roles_of_a_workbench_share_no_row(workbench: Workbench) -> None:
    splits = (workbench.problem.train, workbench.problem.alpha, workbench.select, workbench.heldout)
    rows = [{tuple(ids) for ids in split.input_ids} for split in splits]
    assert [split.role for split in splits] == ["train", "alpha", "select", "heldout"]
    assert sum(map(len, rows)) == len(set().union(*rows)) == 400


def test_the_teacher_answers_each_row_once_for_all_launches(
    checkpoint: str, planted_task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answers(**changes: Any) -> torch.Tensor:
        nonlocal progress
        progress = RecordingProgress()
        inputs = read_inputs(replace(planted_task, **changes), Teacher(checkpoint=checkpoint))
        bench = prepare(inputs, session=Session(cache=tmp_path, progress=progress))
        return bench.problem.teacher_logits

    progress = RecordingProgress()
    first = answers()
    assert progress.taken == progress.wanted == [1, 1, 1, 4], "48, 48, 64 and 240 rows by 64"
    written = {file: file.stat().st_mtime_ns for file in tmp_path.glob("teacher-logits-*.npy")}
    assert len(written) == 4
    assert torch.equal(answers(), first)
    assert progress.taken == progress.wanted == []
    assert {file: file.stat().st_mtime_ns for file in written} == written
    answers(max_length=8)
    assert len(list(tmp_path.glob("teacher-logits-*.npy"))) == 8

    def again(*_: object) -> torch.Tensor:
        pytest.fail("computed again")

    monkeypatch.setattr(teacher_states, "predict", again)
    assert torch.equal(answers(), first)


def test_the_teachers_answers_are_never_half_trusted(workbench: Workbench, tmp_path: Path) -> None:
    teacher, train = workbench.problem.teacher, workbench.problem.train

    def answers() -> tuple[torch.Tensor, RecordingProgress]:
        progress = RecordingProgress()
        session = Session(cache=tmp_path, progress=progress)
        return teacher_states.kept_logits(teacher, train, session=session), progress

    first, _ = answers()
    (file,) = tmp_path.iterdir()
    whole = file.read_bytes()
    fewer_rows = whole.replace(b"(240, 3)", b"(239, 3)")
    for damaged in (b"", whole[:5], whole[:60], whole[:-4], bytes(len(whole)), fewer_rows):
        file.write_bytes(damaged)
        again, progress = answers()
        assert torch.equal(again, first)
        assert progress.taken == progress.wanted == [4]
        (note,) = progress.notes
        assert note.startswith(f"'{file}' is damaged (")
        assert note.endswith("), and is made anew")
        assert file.read_bytes() == whole
    assert answers()[1].notes == []


def test_a_mended_config_is_another_teacher_with_answers_of_its_own(
    checkpoint: str, planted_task: Task, tmp_path: Path
) -> None:
    inputs, answers = [], []
    mended = copytree(checkpoint, tmp_path / "mended")
    BertConfig.from_pretrained(mended, num_attention_heads=8).save_pretrained(mended)
    for folder in (checkpoint, str(mended)):
        inputs.append(read_inputs(planted_task, Teacher(checkpoint=folder)))
        bench = prepare(inputs[-1], session=Session(cache=tmp_path))
        answers.append(bench.problem.teacher_logits)
        torch.testing.assert_close(
            answers[-1], predict(bench.problem.teacher, bench.problem.train, "cpu")
        )
    assert (answers[0] - answers[1]).abs().max() > 0.01
    assert inputs[0].checkpoint_fingerprint != inputs[1].checkpoint_fingerprint


def test_a_student_of_all_layers_scores_as_the_unpruned_model(workbench: Workbench) -> None:
    problem = workbench.problem
    assert workbench.flops.shape == problem.shape == TINY
    assert workbench.unpruned.flops == problem.budget.full == Flops(TINY, 24).full
    assert (
        judged(workbench.score(problem.student, BertArchitecture.full(TINY))) == workbench.unpruned
    )


def test_a_model_that_costs_another_than_its_architecture_is_refused(workbench: Workbench) -> None:
    problem = workbench.problem
    less = BertArchitecture((LayerUnits((0,), (1, 2)),) * TINY.layers)
    flops = [Flops(TINY, 24).exact(found) for found in (BertArchitecture.full(TINY), less)]
    message = f"the model has {flops[0]:,} flops@24, but its architecture has {flops[1]:,};"
    with pytest.raises(WrongCostError, match=message):
        workbench.score(problem.student, less)
    small = cut(problem.student.state_dict(), problem.student.config, less)
    assert workbench.score(small, less).flops == flops[1]
    small.classifier.register_parameter("scale", torch.nn.Parameter(torch.ones(7)))
    embeddings = sum(weight.numel() for weight in problem.student.bert.embeddings.parameters())
    in_params = replace(problem, counted=Budget(Params(TINY, embeddings, 0), 1.0))
    params = count_parameters(small)
    with pytest.raises(
        WrongCostError, match=f"{params:,} params, but its architecture has {params - 7:,};"
    ):
        replace(workbench, problem=in_params).score(small, less)


def test_a_student_keeps_the_layers_it_is_told(prepared: Workbench, workbench: Workbench) -> None:
    student, teacher = prepared.problem.student, workbench.problem.student
    assert student.config.num_hidden_layers == 2
    for place, layer in enumerate((0, 2)):
        own = student.bert.encoder.layer[place].state_dict()
        for name, weight in teacher.bert.encoder.layer[layer].state_dict().items():
            assert torch.equal(own[name], weight)
    assert not student.training


def test_a_token_that_the_model_has_no_embedding_of_is_named(
    tiny_bert: str, planted_task: Task, tmp_path: Path
) -> None:
    folder = str(copytree(tiny_bert, tmp_path / "grown"))
    tokenizer = Checkpoint(folder).tokenizer
    tokenizer.add_tokens(["nowhere"])
    tokenizer.save_pretrained(folder)
    size = BertConfig.from_pretrained(folder).vocab_size
    teacher = Teacher(checkpoint=folder, epochs=1)
    inputs = read_inputs(planted_task, teacher)
    assert len(inputs.tokenizer) == size + 1
    prepare(inputs, session=Session(cache=tmp_path / "a"))

    for role, rows in inputs.text.roles.items():
        text = ("joy nowhere bab",)
        odd = replace(rows, texts=[*rows.texts[:-1], text])
        roles = {**inputs.text.roles, role: odd}
        other = replace(inputs, text=replace(inputs.text, roles=roles))
        with pytest.raises(
            UserError, match=rf"vocab_size is {size}, but .* 'nowhere' the number {size}; call mod"
        ):
            prepare(other, session=Session(cache=tmp_path / "b"))
    assert not (tmp_path / "b").exists(), "before the teacher is fine-tuned"


@pytest.mark.parametrize("role", ["train", "select", "heldout"])
def test_a_teacher_whose_answers_are_not_finite_is_refused(
    checkpoint: str, planted_task: Task, tmp_path: Path, role: str
) -> None:
    broken = str(copytree(checkpoint, tmp_path / "broken"))
    model = BertForSequenceClassification.from_pretrained(checkpoint)
    masked = Checkpoint(broken).tokenizer.mask_token_id
    model.bert.embeddings.word_embeddings.weight.data[masked] = torch.nan
    model.save_pretrained(broken)
    inputs = read_inputs(planted_task, Teacher(checkpoint=broken))
    prepare(inputs, session=Session(cache=tmp_path))

    rows = inputs.text.roles[role]
    odd = replace(rows, texts=[*rows.texts[:-1], ("joy [MASK]",)])
    text = replace(inputs.text, roles={**inputs.text.roles, role: odd})
    with pytest.raises(UserError, match=r"to 1 of \d+ texts.*'joy \[MASK\]'; repair its ch"):
        prepare(replace(inputs, text=text), session=Session(cache=tmp_path))


def test_a_teacher_that_diverged_in_its_fine_tuning_is_refused(
    tiny_bert: str, planted_task: Task, tmp_path: Path
) -> None:
    inputs = read_inputs(planted_task, Teacher(checkpoint=tiny_bert, epochs=1, learning_rate=1e30))
    with pytest.raises(UserError, match=r"lower learning rate \(Teacher.learning_rate, now 1e\+30"):
        prepare(inputs, session=Session(cache=tmp_path))


def test_ratio_1_is_the_teacher_and_not_the_shorter_student(prepared: Workbench) -> None:
    assert len(prepared.unpruned.widths["heads"]) == TINY.layers
    assert prepared.problem.budget.full == prepared.unpruned.flops == Flops(TINY, 16).full
    assert prepared.problem.budget.cost == Flops(replace(TINY, layers=2), 16)


def test_a_teacher_of_turned_labels_scores_alike(prepared: Workbench, workbench: Workbench) -> None:
    assert prepared.unpruned.metric == workbench.unpruned.metric > 0.9
    assert prepared.unpruned.heldout_metric == workbench.unpruned.heldout_metric


def with_outputs(workbench: Workbench, folder: Path, names: list[str]) -> str:
    """The workbench's teacher in a folder, its classifier anew: a poor one, of these outputs.

    It takes many a happy text for a sad one, or for neutral if that is an output.
    """
    model = copy.deepcopy(workbench.problem.teacher)
    known = list(model.config.id2label.values())
    take_outputs(model, [known.index(name) for name in names], names)
    bias = {"happy": 0.0, "neutral": 6.0, "sad": 5.4}
    model.classifier.bias.data += torch.tensor([bias[name] for name in names])
    model.save_pretrained(folder)
    workbench.tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.mark.parametrize(
    "outputs", [["happy", "sad"], ["sad", "happy"], ["sad", "neutral", "happy"]], ids="-".join
)
def test_f1_is_that_of_the_tasks_class_1_whatever_the_outputs_of_the_teacher(
    workbench: Workbench, planted_task: Task, tmp_path: Path, outputs: list[str]
) -> None:
    def of_two() -> Dataset:
        return planted_rows().filter(lambda row: row["label"] != "neutral")

    task = replace(planted_task, data=of_two, metric="f1")
    teacher = Teacher(checkpoint=with_outputs(workbench, tmp_path / "teacher", outputs))
    inputs = read_inputs(task, teacher)
    bench = prepare(inputs, session=Session(cache=tmp_path))
    problem, whole = bench.problem, BertArchitecture.full(replace(TINY, labels=2))
    assert problem.teacher_logits.shape == (len(problem.train), 2)
    assert problem.shape.labels == 2

    said = predict(problem.teacher, bench.select, "cpu").argmax(-1).numpy()
    sad = bench.select.labels == 1
    true_positives = (said[sad] == 1).sum()
    f1 = 2 * true_positives / (sad.sum() + (said == 1).sum())
    assert 0.5 < f1 < 0.95
    assert bench.unpruned.metric == pytest.approx(f1)

    model = cut(problem.student.state_dict(), problem.student.config, whole)
    model.save_pretrained(tmp_path / "cut")
    saved = AutoModelForSequenceClassification.from_pretrained(tmp_path / "cut")
    assert saved.config.id2label == {0: "happy", 1: "sad"}
    assert saved.config.label2id == {"happy": 0, "sad": 1}
    assert judged(bench.score(saved, whole)) == bench.unpruned


def test_a_teachers_own_names_stay_where_the_tasks_labels_are_numbers(
    workbench: Workbench, planted_task: Task, tmp_path: Path
) -> None:
    def in_numbers() -> Dataset:
        rows = planted_rows().to_dict()
        return Dataset.from_dict({**rows, "label": [LABELS.index(n) for n in rows["label"]]})

    teacher = Teacher(checkpoint=with_outputs(workbench, tmp_path / "teacher", LABELS))
    inputs = read_inputs(replace(planted_task, data=in_numbers), teacher)
    assert inputs.text.label_names == ["0", "1", "2"]
    progress = RecordingProgress()
    bench = prepare(inputs, session=Session(cache=tmp_path, progress=progress))
    _, note, *_ = progress.notes
    assert "matched by position: happy is 0, neutral is 1, sad is 2" in note
    assert list(bench.problem.student.config.id2label.values()) == LABELS


def test_a_new_students_classifier_is_the_least_squares_of_the_teachers_logits(
    workbench: Workbench, planted_task: Task, tiny_bert: str, tmp_path: Path
) -> None:
    teacher = Teacher(checkpoint=with_outputs(workbench, tmp_path / "teacher", LABELS))
    inputs = read_inputs(planted_task, teacher, student=tiny_bert)
    problem = prepare(inputs, session=Session(cache=tmp_path)).problem
    wanted, answers = problem.teacher_logits, predict(problem.student, problem.train, "cpu")
    residuals = wanted - answers
    assert residuals.mean(0).abs().max() < 1e-4
    assert residuals.square().sum() < 0.99 * (wanted - wanted.mean(0)).square().sum()
    pooled = predict_with(
        lambda batch: problem.student.bert(**batch).pooler_output, problem.train, "cpu"
    )
    centred = pooled - pooled.mean(0)
    covariance = (centred.T @ residuals).norm() / (centred.norm() * residuals.norm())
    assert covariance < 0.01  # nothing that is linear in the states is left


def test_pooled_states_that_hardly_differ_get_no_weights_that_training_would_magnify(
    workbench: Workbench, planted_task: Task, tiny_bert: str, tmp_path: Path
) -> None:
    flat = BertForSequenceClassification.from_pretrained(tiny_bert)
    flat.bert.pooler.dense.weight.data *= 0.001
    flat.bert.save_pretrained(tmp_path / "flat")
    workbench.tokenizer.save_pretrained(tmp_path / "flat")
    teacher = Teacher(checkpoint=with_outputs(workbench, tmp_path / "teacher", LABELS))
    inputs = read_inputs(planted_task, teacher, student=str(tmp_path / "flat"))
    problem = prepare(inputs, session=Session(cache=tmp_path)).problem
    assert problem.student.classifier.weight.abs().max() < 1


def test_a_teacher_that_says_the_same_of_all_rows_is_told_and_remembered(
    workbench: Workbench, planted_task: Task, tmp_path: Path
) -> None:
    model = copy.deepcopy(workbench.problem.student)
    model.classifier.weight.data.zero_()
    model.save_pretrained(tmp_path / "same")
    workbench.tokenizer.save_pretrained(tmp_path / "same")
    inputs = read_inputs(planted_task, Teacher(checkpoint=str(tmp_path / "same")))
    progress = RecordingProgress()
    bench = prepare(inputs, session=Session(cache=tmp_path, progress=progress))
    assert list(bench.notes) == progress.notes
    assert "may have learnt nothing" in bench.notes[-2]


def test_preparing_leaves_global_random_state_alone(
    checkpoint: str, planted_task: Task, tmp_path: Path
) -> None:
    inputs = read_inputs(planted_task, Teacher(checkpoint=checkpoint), student_layers=(0, 2))
    before = random_states()
    prepare(inputs, session=Session(cache=tmp_path))
    assert random_states() == before


def test_rows_read_texts_cut_off_and_odd_labels_are_told_before_anything_is_trained(
    tiny_bert: str, planted_task: Task, tmp_path: Path
) -> None:
    class Told(RecordingProgress):
        def begin(self, stage: str, steps: int, done: int = 0) -> None:
            raise InterruptedError(stage)

    def notes(max_length: int, data: Callable[[], Dataset] = planted_rows) -> list[str]:
        task, progress = replace(planted_task, max_length=max_length, data=data), Told()
        inputs = read_inputs(task, Teacher(checkpoint=tiny_bert))
        with pytest.raises(InterruptedError):
            prepare(inputs, session=Session(cache=tmp_path, progress=progress))
        return progress.notes

    text = load_text(planted_task)
    counts = {
        role: sum(len(row.split()) + 2 > 12 for (row,) in text.roles[role].texts)
        for role in ("train", "alpha", "select", "heldout")
    }
    assert min(counts.values()) > 0
    read, note = notes(12)
    assert read == "400 rows read; train 240, alpha 64, selection 48, held out 48"
    assert note == (
        "texts longer than 12 tokens (max_length) are cut off: "
        f"train {counts['train']} of 240, alpha {counts['alpha']} of 64, "
        f"select {counts['select']} of 48, heldout {counts['heldout']} of 48"
    )
    assert notes(24) == [read]

    def shouted() -> Dataset:
        rows = planted_rows().to_dict()
        louder = [label.upper() for label in rows["label"][:100]]
        return Dataset.from_dict({**rows, "label": [*louder, *rows["label"][100:]]})

    assert "'HAPPY' and 'happy'" in notes(24, shouted)[1]


@pytest.fixture
def graded_task(planted_task: Task) -> Task:
    """The planted task with a grade for each label: regression."""
    return replace(planted_task, data=graded_rows, metric="pearson_spearman")


def test_numbers_are_learnt_from_task_to_score(
    tiny_bert: str, graded_task: Task, tmp_path: Path
) -> None:
    teacher = Teacher(checkpoint=tiny_bert, epochs=6, batch_size=16, learning_rate=3e-3)
    inputs = read_inputs(graded_task, teacher, student_layers=(0, 1, 2))
    bench = prepare(inputs, session=Session(cache=tmp_path))
    assert bench.unpruned.metric > 0.9
    assert bench.unpruned.heldout_metric > 0.9
    problem = bench.problem
    assert problem.teacher_logits.shape == (240, 1)
    assert bench.unpruned.flops == problem.budget.full == Flops(replace(TINY, labels=1), 24).full
    assert problem.train.batch(np.arange(3), "cpu").labels.dtype == torch.float32
    for model in (problem.teacher, problem.student):
        assert (model.config.num_labels, model.config.problem_type) == (1, "regression")

    whole = BertArchitecture.full(problem.shape)
    model = cut(problem.student.state_dict(), problem.student.config, whole)
    assert problem.select_score(model) == pytest.approx(bench.unpruned.metric)
    problem.scale.from_standard(model)
    score = bench.score(model, whole)
    assert score.divergence == pytest.approx(0, abs=1e-9)
    assert score.metric == pytest.approx(bench.unpruned.metric)
    model.save_pretrained(tmp_path / "cut")
    saved = AutoModelForSequenceClassification.from_pretrained(tmp_path / "cut")
    assert bench.score(saved, whole) == score
    with torch.no_grad():
        saved.classifier.bias += 0.5
    shifted = bench.score(saved, whole)
    assert shifted.divergence == pytest.approx(0.25, rel=1e-4), "a squared difference"
    assert shifted.metric == pytest.approx(bench.unpruned.metric), "a correlation knows no shift"


def test_the_unit_of_numbers_changes_nothing(
    tiny_bert: str, graded_task: Task, tmp_path: Path
) -> None:
    """A new last layer starts near 0: it would never reach years or prices."""

    def years() -> Dataset:
        rows = graded_rows().to_dict()
        return Dataset.from_dict({**rows, "label": [2000 + 64 * grade for grade in rows["label"]]})

    teacher = Teacher(checkpoint=tiny_bert, epochs=6, batch_size=16, learning_rate=3e-3)
    benches = [
        prepare(read_inputs(task, teacher), session=Session(cache=tmp_path))
        for task in (graded_task, replace(graded_task, data=years))
    ]
    grades, in_years = (bench.teacher_answers["select"] for bench in benches)
    torch.testing.assert_close(in_years, 2000 + 64 * grades, atol=0.5, rtol=0)
    first, second = (bench.problem for bench in benches)
    assert second.scale.deviation == 64 * first.scale.deviation
    for name in ("teacher_logits", "alpha_logits"):
        torch.testing.assert_close(getattr(first, name), getattr(second, name), atol=0.01, rtol=0)
    answers = predict(second.student, second.alpha, "cpu")
    torch.testing.assert_close(answers, second.alpha_logits, atol=1e-3, rtol=0)
    assert abs(second.train.labels.mean()) < 0.1


def test_the_divergence_is_measured_of_the_answers_that_are_scored(
    checkpoint: str, planted_task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One forward pass a split and a model, and none more of the teacher."""
    passes: list[Split] = []

    def counted(model: Any, split: Split, *rest: Any) -> torch.Tensor:
        passes.append(split)
        return predict(model, split, *rest)

    for module in (teacher_states, scoring):
        monkeypatch.setattr(module, "predict", counted)
    inputs = read_inputs(planted_task, Teacher(checkpoint=checkpoint))
    bench = prepare(inputs, session=Session(cache=tmp_path), objective="divergence")
    assert (bench.unpruned.divergence, bench.unpruned.heldout_divergence) == (0, 0)
    half = BertArchitecture((LayerUnits((0, 1), tuple(range(24))),) * TINY.layers)
    problem = bench.problem
    model = cut(problem.student.state_dict(), problem.student.config, half)
    score = bench.score(model, half)
    scored = [bench.select, bench.heldout, bench.learnt]
    assert (passes[:2], passes[4:]) == (scored[:2], scored), "between them alpha and train"
    names = ("divergence", "heldout_divergence", "train_divergence")
    found = dict(zip(names, scored, strict=True))
    for name, split in found.items():
        logits = [predict(one, split, "cpu") for one in (model, problem.teacher)]
        assert getattr(score, name) == pytest.approx(divergence(*logits, split), rel=1e-4)
    assert score.divergence != score.heldout_divergence
    assert problem.select_score(model) == pytest.approx(-score.divergence, rel=1e-4)
    assert bench.problem.select_score(problem.teacher) == 0


def test_a_teacher_of_numbers_fits_a_task_of_numbers_whatever_its_output_is_called(
    tiny_bert: str, checkpoint: str, graded_task: Task, planted_task: Task, tmp_path: Path
) -> None:
    names = {"id2label": {0: "similarity"}, "label2id": {"similarity": 0}}
    with torch.random.fork_rng():
        BertForSequenceClassification.from_pretrained(tiny_bert, **names).save_pretrained(tmp_path)
    Checkpoint(tiny_bert).tokenizer.save_pretrained(tmp_path)
    one, three = Teacher(checkpoint=str(tmp_path)), Teacher(checkpoint=checkpoint)
    inputs = read_inputs(graded_task, one)
    bench = prepare(inputs, session=Session(cache=tmp_path))
    assert bench.problem.teacher.config.id2label == {0: "similarity"}
    assert bench.problem.teacher_logits.shape == (240, 1)
    with pytest.raises(
        UserError, match=r"classifier has 3 outputs \(sad, happy, neutral\); a task"
    ):
        read_inputs(graded_task, three)
    with pytest.raises(UserError, match="it knows similarity"):
        read_inputs(planted_task, one)


@pytest.mark.parametrize("layers", [None, (1,)])
def test_the_shapes_are_known_before_anything_is_trained(
    tiny_bert: str, planted_task: Task, layers: tuple[int, ...] | None
) -> None:
    inputs = read_inputs(planted_task, Teacher(checkpoint=tiny_bert), student_layers=layers)
    student, teacher = (replace(shape_of(c), labels=TINY.labels) for c in inputs.configs())
    assert (student, teacher) == (replace(TINY, layers=1 if layers else 3), TINY)


LAYERS = "must be ascending layers of the teacher, 0 to 2"


@pytest.mark.parametrize(
    ("task", "settings", "message"),
    [
        *(
            ({}, {"student_layers": layers}, LAYERS)
            for layers in ((), (0, 3), (-1, 0), (1, 0), (1, 1))
        ),
        ({"max_length": 65}, {}, "task.max_length is 65; .* takes 1 to 64 tokens"),
        ({}, {"seq_len": 65}, "seq_len is 65; .* takes 1 to 64 tokens"),
        ({}, {"seq_len": -1}, "seq_len is -1"),
        ({}, {"seq_len": 0}, "seq_len is 0"),
        (
            {"metric": "agreement"},
            {},
            r"agreement.*has no classifier yet; use a fine-tuned c",
        ),
    ],
)
def test_what_does_not_go_with_the_teacher_is_refused(
    tiny_bert: str,
    planted_task: Task,
    task: dict[str, Any],
    settings: dict[str, Any],
    message: str,
) -> None:
    with pytest.raises(UserError, match=message):
        read_inputs(replace(planted_task, **task), Teacher(checkpoint=tiny_bert), **settings)


def test_without_labels_each_member_of_an_ensemble_has_a_classifier(
    fine_tuned: str, tiny_bert: str, planted_task: Task
) -> None:
    teacher = Teacher(ensemble=(fine_tuned, tiny_bert))
    with pytest.raises(UserError, match=r"'.*tiny.*' has no classifier yet"):
        read_inputs(replace(planted_task, metric="agreement"), teacher)


@pytest.mark.parametrize("cost", ["flops", "params", "units"])
def test_ratio_1_is_that_of_the_teacher_in_what_the_study_counts(
    checkpoint: str, planted_task: Task, tmp_path: Path, cost: CostName
) -> None:
    inputs = read_inputs(
        planted_task, Teacher(checkpoint=checkpoint), student_layers=(0, 2), seq_len=16
    )
    bench = prepare(inputs, session=Session(cache=tmp_path), cost=cost, spaces=("heads", "ffn"))
    problem, whole = bench.problem, BertArchitecture.full(replace(TINY, layers=2))
    full = {
        "flops": ("flops@16", bench.unpruned.flops),
        "params": ("params", count_parameters(problem.teacher)),
        "units": ("units@heads+ffn", 3 * (TINY.heads + TINY.ffn)),
    }
    assert (problem.budget.cost.unit, problem.budget.full) == full[cost]
    assert bench.unpruned.cost == problem.budget.full
    score = bench.score(problem.student, whole)
    assert score.params == count_parameters(problem.student)
    assert score.flops == Flops(replace(TINY, layers=2), 16).full < bench.flops_full
    assert score.cost == {"flops": score.flops, "params": score.params, "units": 2 * 52}[cost]


@pytest.mark.parametrize(
    "engine",
    [
        "bfloat16",
        pytest.param("onnxruntime-int8", marks=[pytest.mark.slow, pytest.mark.timeout(600)]),
    ],
)
def test_a_model_is_scored_in_the_engine_that_will_serve_it(
    workbench: Workbench, tmp_path: Path, engine: Engine
) -> None:
    architecture = BertArchitecture((LayerUnits((0, 2), tuple(range(9))),) * TINY.layers)
    student = workbench.problem.student
    model = cut(student.state_dict(), student.config, architecture)
    found = replace(workbench, engine=engine).score(model, architecture)
    (served,) = make_runnable(engine, {str(tmp_path): model}, tmp_path, 1, "cpu")
    answers = predict_with(served.run, workbench.select)
    assert not torch.equal(answers, predict(model, workbench.select, "cpu"))
    assert found.divergence == pytest.approx(
        divergence(answers, workbench.teacher_answers["select"], workbench.select)
    )
    assert found.metric == metric_of(answers, workbench.select, workbench.metric)


def test_a_study_of_milliseconds_has_the_unpruned_model_in_its_engine_too(
    checkpoint: str, planted_task: Task, tmp_path: Path
) -> None:
    inputs = read_inputs(planted_task, Teacher(checkpoint=checkpoint), seq_len=16)
    bench = prepare(
        inputs, session=Session(cache=tmp_path), cost="latency", engine="bfloat16", latency_batch=2
    )
    assert bench.problem.counted.cost.unit == "ms@bfloat16-cpu-1threads-b2-s16"
    assert bench.unpruned.cost == bench.problem.counted.full > 0
    assert 0 < bench.unpruned.divergence < 0.01, "of bfloat16 from float32"
    answers = predict(bench.problem.teacher, bench.select, "cpu")
    torch.testing.assert_close(bench.teacher_answers["select"], answers)


def test_students_learn_from_text_without_labels_and_the_teacher_does_not(
    tiny_bert: str, planted_task: Task, tmp_path: Path
) -> None:
    labelled = replace(planted_task, train=100)
    benches, steps = [], []
    for task in (labelled, replace(labelled, unlabelled_split="train")):
        progress = RecordingProgress()
        session = Session(cache=tmp_path, progress=progress)
        benches.append(prepare(read_inputs(task, Teacher(checkpoint=tiny_bert)), session))
        steps.append(progress.wanted)
    alone, more = (bench.problem for bench in benches)
    assert (len(alone.train), len(more.train)) == (100, 240)
    assert more.train.input_ids[:100] == alone.train.input_ids
    assert more.train.labels[:100].tolist() == alone.train.labels.tolist()
    assert more.train.labels[100:].tolist() == more.teacher_logits[100:].argmax(-1).tolist()
    assert torch.equal(more.teacher_logits, predict(more.teacher, more.train, "cpu"))
    fine_tuning, judging, answers_of_100, answers_of_240 = 40, [1, 1, 1], 2, 4
    assert steps == [[fine_tuning, *judging, answers_of_100], [answers_of_240]]
    assert alone.fingerprint != more.fingerprint
    for mine, theirs in zip(alone.teacher.parameters(), more.teacher.parameters(), strict=True):
        assert torch.equal(mine, theirs)
    assert benches[0].unpruned == benches[1].unpruned
    assert "unlabelled 140" in benches[1].notes[0]


def test_the_rows_on_which_overfitting_shows_are_any_that_students_learn_from(
    checkpoint: str, planted_task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their tokens, their text and what the teacher says of them, cut as the fidelity says."""
    monkeypatch.setattr("objectives.workbench.workbench._LEARNT", 80)
    task = replace(planted_task, train=100, unlabelled_split="train")
    inputs, short = read_inputs(task, Teacher(checkpoint=checkpoint)), Fidelity(max_length=8)
    bench, again = (prepare(inputs, Session(cache=tmp_path), fidelity=short) for _ in range(2))
    learnt, train = bench.learnt, {tuple(row) for row in bench.problem.train.input_ids}
    assert learnt.input_ids == again.learnt.input_ids
    assert {tuple(row) for row in learnt.input_ids} < train
    assert (
        len(learnt)
        == 80
        > sum(row in bench.problem.train.input_ids[:100] for row in learnt.input_ids)
    )
    read = tokenise(bench.texts["train"], "train", bench.tokenizer, learnt.max_length)
    assert read.input_ids == learnt.input_ids
    said = predict(bench.problem.teacher, learnt, "cpu")
    torch.testing.assert_close(bench.teacher_answers["train"], said)


def test_text_without_labels_has_the_numbers_that_the_teacher_says(
    tiny_bert: str, graded_task: Task, tmp_path: Path
) -> None:
    """-1 is a number like others, and no mark of a row without one."""

    def rows() -> Dataset:
        table = graded_rows()
        return table.map(lambda row: {"label": row["label"] - 1})

    task = replace(graded_task, data=rows, train=100, unlabelled_split="train")
    bench = prepare(read_inputs(task, Teacher(checkpoint=tiny_bert)), Session(cache=tmp_path))
    train, said = bench.problem.train, bench.problem.teacher_logits[:, 0]
    assert train.labels.dtype == np.float32
    scale = bench.problem.scale
    labels = train.labels * scale.deviation + scale.mean
    assert set(labels[:100].round(4).tolist()) == {-1, 1.5, 4}
    assert train.labels[100:].tolist() == said[100:].tolist()


def test_agreement_is_with_the_teacher_and_takes_no_labels(checkpoint: str, tmp_path: Path) -> None:
    """A model is worth the rows on which it answers what the teacher does."""
    rows = planted_rows().remove_columns("label")
    sizes = {"alpha": 64, "select": 48, "heldout": 48}
    task = Task(name="texts", data=lambda: rows, metric="agreement", max_length=24, **sizes)
    inputs = read_inputs(task, Teacher(checkpoint=checkpoint))
    bench = prepare(inputs, Session(cache=tmp_path))
    assert (bench.unpruned.metric, bench.unpruned.heldout_metric) == (1, 1)
    teacher = bench.problem.teacher
    for split in (bench.problem.train, bench.problem.alpha, bench.select, bench.heldout):
        said = predict(teacher, split, "cpu").argmax(-1)
        assert split.labels.tolist() == said.tolist()
        assert len(set(split.labels.tolist())) == 3

    architecture = BertArchitecture((LayerUnits((), ()),) * TINY.layers)
    model = cut(teacher.state_dict(), teacher.config, architecture)
    answers = predict(model, bench.heldout, "cpu").argmax(-1)
    agreed = (answers.numpy() == bench.heldout.labels).mean()
    assert bench.score(model, architecture).heldout_metric == pytest.approx(agreed)
    assert agreed < 1
    for split, own in zip(inputs.judging(), (bench.select, bench.heldout), strict=True):
        assert split.labels.tolist() == own.labels.tolist()
