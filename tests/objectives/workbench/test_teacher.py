"""The teacher: fine-tuned once and kept by content, or taken as it is."""

import errno
import json
from array import array
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from shutil import copytree
from typing import Any

import numpy as np
import pytest
import torch
from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerBase

from objectives import device
from objectives.device import Precision
from objectives.errors import UserError
from objectives.metric import Metric
from objectives.session import Session
from objectives.students.bert.pretrained import Checkpoint
from objectives.text.task import ROLES, Examples, LabelledText
from objectives.workbench.teacher import Teacher, load_teacher, teacher_notes, weak_teacher_note
from objectives.workbench.workbench import Workbench
from tests.conftest import MARKERS
from tests.objectives.conformance import RecordingProgress, random_states

LABELS = sorted(MARKERS.values())

Load = Callable[..., tuple[BertForSequenceClassification, int]]


@pytest.fixture
def load(tiny_bert: str, workbench: Workbench, tmp_path: Path) -> Load:
    """Loads a teacher, by default one epoch of the tiny BERT; also returns the steps it took."""

    whole = workbench.problem.train

    def load_it(
        checkpoint: str = tiny_bert,
        epochs: int = 1,
        seed: int = 0,
        data: str = "data",
        max_length: int = whole.max_length,
        first_token: int = whole.input_ids[0][0],
        notes: list[str] | None = None,
        precision: Precision = "auto",
    ) -> tuple[BertForSequenceClassification, int]:
        progress = RecordingProgress()
        train = replace(
            whole,
            input_ids=[array("i", [first_token, *ids[1:max_length]]) for ids in whole.input_ids],
            token_type_ids=[types[:max_length] for types in whole.token_type_ids],
            max_length=max_length,
        )
        model = load_teacher(
            Teacher(checkpoint=checkpoint, epochs=epochs, learning_rate=1e-3, precision=precision),
            LabelledText({role: Examples([(data,)], whole.labels[:1]) for role in ROLES}, LABELS),
            train,
            session=Session(cache=tmp_path, seed=seed, progress=progress),
        )
        assert progress.taken == progress.wanted
        if notes is not None:
            notes += progress.notes
        return model, progress.steps

    return load_it


def same(one: BertForSequenceClassification, other: BertForSequenceClassification) -> bool:
    weights = other.state_dict()
    return all(torch.equal(value, weights[name]) for name, value in one.state_dict().items())


def relabelled(checkpoint: str, folder: Path, names: list[str]) -> str:
    """A copy of the checkpoint whose classifier has other names for its labels."""
    model = BertForSequenceClassification.from_pretrained(checkpoint)
    model.config.id2label = dict(enumerate(names))
    model.config.label2id = {name: index for index, name in enumerate(names)}
    model.save_pretrained(folder)
    return str(folder)


def test_fine_tuning_takes_its_epochs_and_names_labels(load: Load, workbench: Workbench) -> None:
    model, steps = load(epochs=2)
    assert steps == 2 * -(-len(workbench.problem.train) // 32)
    assert model.config.id2label == dict(enumerate(LABELS))
    assert not model.training
    assert not any(weight.requires_grad for weight in model.parameters())


@pytest.mark.parametrize(
    ("width", "rate"), [(768, 5e-5), (384, 2e-4), (1024, 5e-5 * 0.75**2), (128, 3e-4)]
)
def test_a_narrow_teacher_learns_at_a_higher_rate(tmp_path: Path, width: int, rate: float) -> None:
    BertConfig(hidden_size=width, num_attention_heads=4).save_pretrained(tmp_path)
    settled = Teacher(checkpoint=str(tmp_path)).settled(10_000, str(tmp_path))
    assert settled.learning_rate == pytest.approx(rate)
    asked = Teacher(checkpoint=str(tmp_path), learning_rate=1e-3, epochs=1)
    assert asked.settled(10_000, str(tmp_path)) == asked


@pytest.mark.parametrize(("rows", "epochs"), [(500, 10), (3000, 6), (4000, 4), (100_000, 3)])
def test_few_rows_are_passed_over_more_often(tiny_bert: str, rows: int, epochs: int) -> None:
    assert Teacher(checkpoint=tiny_bert).settled(rows, tiny_bert).epochs == epochs


def test_the_second_time_nothing_is_trained(load: Load) -> None:
    first, steps = load()
    again, no_steps = load()
    assert steps > 0
    assert no_steps == 0
    assert same(first, again)


@pytest.mark.parametrize("half", [True, False])
def test_a_run_that_goes_on_on_another_device_has_one_teacher(
    load: Load, half: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device, "multiplies_bfloat16", lambda _: half)
    first, _ = load()
    monkeypatch.setattr(device, "multiplies_bfloat16", lambda _: not half)
    again, steps = load()
    assert steps == 0
    assert same(first, again)
    other: Precision = "float32" if half else "bfloat16"
    assert load(precision=other)[1] > 0, "what is asked for is made"


def test_a_checkpoint_moved_is_the_same_teacher(load: Load, tiny_bert: str, tmp_path: Path) -> None:
    load()
    moved = copytree(tiny_bert, tmp_path / "elsewhere")
    assert load(checkpoint=str(moved))[1] == 0


def test_whatever_decides_a_teacher_makes_another(load: Load) -> None:
    first, _ = load()
    changes: list[dict[str, Any]] = [
        {"seed": 1},
        {"epochs": 2},
        {"data": "other data"},
        {"max_length": 12},
        {"first_token": 0},
    ]
    for change in changes:
        model, steps = load(**change)
        assert steps > 0, change
        assert change == {"data": "other data"} or not same(first, model), change


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_a_teacher_cut_short_is_fine_tuned_anew(load: Load, tmp_path: Path, name: str) -> None:
    first, steps = load()
    (folder,) = tmp_path.iterdir()
    whole = (folder / name).read_bytes()
    for length in (0, 60, len(whole) // 2, None):
        (folder / name).unlink()  # what was loaded is mapped from it
        if length is not None:
            (folder / name).write_bytes(whole[:length])
        notes: list[str] = []
        again, more = load(notes=notes)
        assert more == steps
        assert same(first, again)
        (note,) = notes
        assert note.startswith(f"'{folder}' is damaged (")
        assert note.endswith("), and is made anew")
        assert (folder / name).read_bytes() == whole
    notes = []
    assert load(notes=notes)[1] == 0
    assert notes == []


def test_fine_tuning_is_seeded_and_leaves_random_state_alone(load: Load, tmp_path: Path) -> None:
    before = random_states()
    first, _ = load()
    assert random_states() == before
    for teacher in list(tmp_path.iterdir()):
        teacher.rename(tmp_path / "kept-aside")
    torch.rand(1)
    again, steps = load()
    assert steps > 0
    assert same(first, again)


def test_an_interrupted_fine_tuning_leaves_nothing_behind(
    load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(self: RecordingProgress) -> set[int]:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(RecordingProgress, "advance", interrupt)
        with pytest.raises(KeyboardInterrupt):
            load()
    assert list(tmp_path.iterdir()) == []
    assert load()[1] > 0


def test_a_disk_that_refuses_the_teacher_keeps_nothing_half_written(
    load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(
            PreTrainedTokenizerBase, "save_pretrained", refuse
        )  # comes after the weights
        with pytest.raises(OSError, match="No space left"):
            load()
    assert list(tmp_path.iterdir()) == []


def test_a_fine_tuned_checkpoint_is_the_teacher_as_it_is(
    load: Load, fine_tuned: str, workbench: Workbench, tmp_path: Path
) -> None:
    model, steps = load(checkpoint=fine_tuned)
    assert steps == 0
    assert same(model, workbench.problem.student)
    assert list(tmp_path.iterdir()) == []


def test_settings_of_a_fine_tuned_teacher_do_nothing(fine_tuned: str, tiny_bert: str) -> None:
    asked = {"epochs": 2, "learning_rate": 1e-4}
    (note,) = teacher_notes(Teacher(checkpoint=fine_tuned, **asked), LABELS)
    assert note.endswith("Teacher.epochs, Teacher.learning_rate does nothing")
    (note,) = teacher_notes(Teacher(checkpoint=fine_tuned, smoothing=0.3), LABELS)
    assert note == "Teacher.smoothing does nothing: it is for labels as answers that are given"
    assert [*teacher_notes(Teacher(checkpoint=fine_tuned), LABELS)] == []
    assert [*teacher_notes(Teacher(checkpoint=tiny_bert, **asked), LABELS)] == []


@pytest.mark.parametrize(
    ("metric", "counts", "constant"),
    [
        ("accuracy", [30, 60, 10], 0.6),
        ("mcc", [30, 60, 10], 0.0),
        ("f1", [30, 60, 10], (2 * 60 / 160) / 3),
        ("f1", [80, 20], 2 * 20 / 120),  # that of class 1: to answer it always is the best
    ],
)
def test_a_teacher_that_may_be_no_better_than_one_answer_is_noted(
    tiny_bert: str, fine_tuned: str, metric: Metric, counts: list[int], constant: float
) -> None:
    labels, classes = np.repeat(np.arange(len(counts)), counts), len(counts)

    def note(checkpoint: str, surely: float) -> str | None:
        teacher = Teacher(checkpoint=checkpoint, epochs=3)
        return weak_teacher_note(teacher, metric, 0.95, (surely, 0.97), labels, classes)

    assert (
        f"is 0.9500 (95% interval from {constant:.4f}), and one answer for all rows has "
        f"{constant:.4f}; take"
    ) in str(note(fine_tuned, constant))
    assert "Teacher.epochs, now 3" in str(note(tiny_bert, constant - 0.1))
    assert note(fine_tuned, constant + 0.001) is None


UNNAMED = ["LABEL_0", "LABEL_1", "LABEL_2"]
NUMBERS = ["0", "1", "2"]


@pytest.mark.parametrize(
    ("outputs", "labels", "order"),
    [
        pytest.param(LABELS, LABELS, [0, 1, 2], id="by name"),
        pytest.param(["sad", "happy", "neutral"], LABELS, [1, 2, 0], id="by name, turned"),
        pytest.param(["sad", "happy", "neutral"], ["sad", "happy"], [0, 1], id="some of them"),
        pytest.param([" sad", "happy ", "neutral"], LABELS, [1, 2, 0], id="but for blanks"),
        pytest.param(LABELS, NUMBERS, [0, 1, 2], id="by the numbers of the outputs"),
        pytest.param(["2", "0", "1"], NUMBERS, [1, 2, 0], id="by name, though these are numbers"),
        pytest.param(UNNAMED, LABELS, [0, 1, 2], id="by index where nobody named the outputs"),
    ],
)
def test_labels_are_matched(
    fine_tuned: str, tmp_path: Path, outputs: list[str], labels: list[str], order: list[int]
) -> None:
    assert Checkpoint(relabelled(fine_tuned, tmp_path, outputs)).label_order(labels) == order


TWINS = r"the outputs 0 to 2, each otherwise; it names '[ab]'$"
RENAME = "rename those of the data, or id2label in its config"


@pytest.mark.parametrize(
    ("outputs", "labels", "message"),
    [
        (
            LABELS,
            ["angry", "happy"],
            r"label\(s\) angry of the task; it knows happy, neutral, sad",
        ),
        (UNNAMED, ["happy", "sad"], "it knows LABEL_0, LABEL_1, LABEL_2"),
        # By index all match, or none.
        (UNNAMED, ["LABEL_1", "LABEL_2", "LABEL_3"], r"does not know the label\(s\) LABEL_3 of"),
        (["1", "2", "3"], NUMBERS, r"does not know the label\(s\) 0 of the task"),
        (LABELS, ["1", "2", "3"], RENAME),
        (LABELS, ["0", "1"], RENAME),
        (["a", "a", "b"], ["a", "b"], TWINS),
        (["a", "a", "b"], NUMBERS, TWINS),
        (["a", "b", "b "], LABELS, TWINS),
    ],
)
def test_labels_that_do_not_match_are_refused(
    fine_tuned: str, tmp_path: Path, outputs: list[str], labels: list[str], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        Checkpoint(relabelled(fine_tuned, tmp_path, outputs)).label_order(labels)


def test_unnamed_outputs_get_the_labels_names(load: Load, fine_tuned: str, tmp_path: Path) -> None:
    unnamed = relabelled(fine_tuned, tmp_path / "unnamed", UNNAMED)
    model, _ = load(checkpoint=unnamed)
    assert model.config.id2label == dict(enumerate(LABELS))
    (note,) = teacher_notes(Teacher(checkpoint=unnamed), LABELS)
    assert "by position: LABEL_0 is happy, LABEL_1 is neutral, LABEL_2 is sad; if that is" in note
    assert [*teacher_notes(Teacher(checkpoint=unnamed), NUMBERS)] == []


def test_outputs_that_are_not_numbered_from_0_are_refused(fine_tuned: str, tmp_path: Path) -> None:
    shifted = relabelled(fine_tuned, tmp_path, LABELS)
    config = tmp_path / "config.json"
    names = dict(enumerate(LABELS, start=1))
    config.write_text(json.dumps(json.loads(config.read_text()) | {"id2label": names}))
    with pytest.raises(UserError, match=r"0 to 2, each otherwise; it names '1', '2', '3'$"):
        Checkpoint(shifted).label_order(LABELS)


def test_a_teacher_of_several_labels_at_once_is_refused(fine_tuned: str, tmp_path: Path) -> None:
    model = BertForSequenceClassification.from_pretrained(fine_tuned)
    model.config.problem_type = "multi_label_classification"
    model.save_pretrained(tmp_path)
    with pytest.raises(UserError, match="it gives a text several labels"):
        Checkpoint(str(tmp_path)).label_order(LABELS)


@pytest.mark.parametrize("field", ["epochs", "batch_size", "learning_rate"])
def test_words_for_numbers_are_refused(field: str) -> None:
    with pytest.raises(UserError, match=rf"Teacher\.{field} is '3'; it must be a (whole )?number"):
        Teacher(**{"checkpoint": "bert", field: "3"})  # type: ignore[arg-type]
