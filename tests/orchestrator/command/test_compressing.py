"""A classifier and a file of texts in, a folder that answers as before out, or one clear line."""

from __future__ import annotations

import json
import math
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from transformers import AutoModelForSequenceClassification, pipeline

from objectives.combining.members import CascadeStage, GateRows, Member
from objectives.delivery.checking import check
from objectives.delivery.classify import Classifier
from objectives.errors import MaskfrontError, UserError
from objectives.students.bert.pretrained import Checkpoint
from objectives.text.roles import load_text
from orchestrator.command import compressing, planning
from orchestrator.command.candidates import Candidates
from orchestrator.command.cli import main
from orchestrator.command.compressing import compress
from orchestrator.command.run import load_run
from orchestrator.errors import RunError
from orchestrator.study import Study
from orchestrator.terminal import SaysOnce, say
from reports.speed import read_speeds
from tests.conftest import planted_rows


@pytest.fixture(scope="module")
def teacher(fine_tuned: str) -> Path:
    """A fine-tuned classifier in a folder."""
    return Path(fine_tuned)


@pytest.fixture
def texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Sixty texts, a line each, in the folder that the test works in."""
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "texts.txt"
    file.write_text("\n".join(planted_rows()["text"][:60]), encoding="utf-8")
    return file


@pytest.fixture
def slow_teacher(monkeypatch: pytest.MonkeyPatch) -> None:
    """A teacher this small is as fast as its students, so it gets a millisecond more."""
    timed = Candidates._fastest

    def slower(*of: Any) -> list[Any]:
        return [(number, engine, ms + (number is None)) for number, engine, ms in timed(*of)]

    monkeypatch.setattr(Candidates, "_fastest", slower)


@pytest.mark.slow
@pytest.mark.usefixtures("slow_teacher")
def test_a_classifier_and_a_file_of_lines_become_a_folder(
    teacher: Path,
    texts: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(planning, "at_once", lambda *_: [planning._cut(0.5)])
    asked = f"compress {teacher} --data {texts} --max-length 24 --out small --take-nearest"
    with pytest.raises(SystemExit) as ended:
        main(asked.split())
    assert ended.value.code == 0
    said = capsys.readouterr().out
    assert "  It is the nearest, and does not pass the gate that it answers 95.0%" in said
    assert "with 1,000 texts or more (these are 60)" in said
    (report,) = tmp_path.glob("runs/small-*/report.html")
    assert str(report.relative_to(tmp_path)) in said
    made = tmp_path / "small"
    [stage] = json.loads((made / "classifier.json").read_text())["stages"]
    assert (made / stage["model"]).is_file()
    text = texts.read_text(encoding="utf-8").splitlines()[0]
    assert text not in (made / "README.md").read_text(encoding="utf-8")
    page = report.read_text(encoding="utf-8")
    assert text not in page
    sentences = (
        "The folder small (",
        "It is the nearest, and does not pass the gate that it answers 95.0%",
    )
    places = [page.index(sentence) for sentence in (*sentences, "Where to start")]
    assert places == sorted(places), "what was written comes first"

    trials = len(load_run(report.parent).trials)
    (made / "mine").touch()
    with pytest.raises(RunError, match="'small' exists and is not an empty folder"):
        compress(teacher, texts, out="small", max_length=24, take_nearest=True)
    (made / "mine").unlink()
    settings = (made / "classifier.json").read_text()
    (made / "classifier.json").write_text(settings.replace("{", "{ ", 1))
    with pytest.raises(RunError, match="'small' exists and is not an empty folder"):
        compress(teacher, texts, out="small", max_length=24, take_nearest=True)
    (made / "classifier.json").write_text(settings)
    card = (made / "README.md").stat().st_ino
    # A machine that is slower the second time would use fewer texts, and begin another run.
    monkeypatch.delattr(planning, "answer_times")
    compress(teacher, texts, out="small", max_length=24, take_nearest=True)
    assert (made / "README.md").stat().st_ino != card, "the same call replaces what it wrote"
    shutil.rmtree(made)
    with pytest.raises(RunError, match=r"no model takes 1e-05 ms or less"):
        compress(teacher, texts, out="small", max_length=24, max_ms=1e-5)
    assert len(load_run(report.parent).trials) == trials, "the same call goes on"
    assert not made.exists()
    assert "The folder small (" not in report.read_text(encoding="utf-8"), "it is gone"

    compress(teacher, texts, out="small", max_length=24, minutes=1e-3, take_nearest=True)
    timed = read_speeds(load_run(report.parent))[0].models
    assert len(timed) == 1, "a model that was trained is judged, though the time is up"
    assert check("small", texts, model=teacher).texts == 60


@pytest.mark.slow
@pytest.mark.usefixtures("slow_teacher")
def test_with_labels_and_many_texts_cells_are_trained(
    teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(planning, "_ENOUGH", 300)
    monkeypatch.setattr(planning, "_TRIED", 5)
    monkeypatch.setattr(planning, "_FEWEST", 10)
    monkeypatch.setattr(planning, "_WHOLE", 60)
    rows = planted_rows()
    table = tmp_path / "table.csv"
    lines = zip(rows["text"], rows["label"], strict=True)
    table.write_text("text;label\n" + "".join(f'"{text}";{label}\n' for text, label in lines))
    own = {"delimiter": ";", "encoding": "latin-1", "max_length": 24}
    monkeypatch.setattr(planning, "affordable", lambda texts, *_: planning.RoleSizes.of(texts - 20))
    own["say"] = (lines_said := list[str]()).append
    found = compress(teacher, table, out="small", minutes=3, min_metric_kept=0.5, **own)
    texts = len(set(rows["text"]))
    assert lines_said[0].startswith(f"{texts - 20:,} of the {texts:,} texts are used: your model")
    assert found.advice == (lines_said[0],)
    kinds = {trial.knobs["method"] for trial in found.run.finished}
    assert kinds >= {"cut", "cells"}
    first = {trial.knobs.get("cells.operations[0]") for trial in found.run.finished}
    assert first >= {"none", "conv5"}, "also a cell of words alone"
    assert found.passed
    assert found.run.metric_name == "accuracy"
    assert found.deployed.heldout_metric > 0.5
    if found.deployed.alone and found.deployed.cascade.stages[0].number is not None:
        AutoModelForSequenceClassification.from_pretrained(
            tmp_path / "small", trust_remote_code=True
        )


@pytest.mark.slow
@pytest.mark.usefixtures("slow_teacher")
def test_a_model_and_a_table_in_memory_give_the_run_of_their_files(
    teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(planning, "at_once", lambda *_: [planning._cut(0.5)])
    model = AutoModelForSequenceClassification.from_pretrained(teacher)
    table = planted_rows().to_pandas().iloc[:120]
    gate = {"metric": "macro_f1", "min_metric_kept": 0.5, "take_nearest": True, "max_length": 24}
    memory = compress((model, Checkpoint(str(teacher)).tokenizer), table, out="small", **gate)
    assert memory.run.metric_name == "macro_f1"
    [saved] = (path for path in (tmp_path / "runs" / "models").iterdir() if path.is_dir())
    table.to_csv("table.csv", index=False)
    shutil.rmtree("small")
    files = compress(saved.relative_to(tmp_path), "table.csv", out="small", **gate)
    assert files.run.folder == memory.run.folder


def test_rows_without_a_label_teach_and_many_labels_get_rows(teacher: Path, tmp_path: Path) -> None:
    rows, labels = planted_rows()["text"][:256], 16
    table = tmp_path / "table.csv"
    lines = [f'"{text}",{n % labels if n % 7 else ""}\n' for n, text in enumerate(rows)]
    table.write_text("text,label\n" + "".join(lines))
    study, used, *_ = compressing._study(
        str(teacher),
        None,
        table,
        {"text": "text"},
        {"label": "label", "metric": "accuracy"},
        tmp_path / "small",
        24,
        60,
        print,
    )
    text = load_text(study.task)
    sizes = {role: len(own.labels) for role, own in text.roles.items()}
    assert used.judgeable == sum(sizes.values()) == 256 - 37
    assert used.unlabelled == len(text.unlabelled) == 37
    assert sizes["alpha"] == labels > used.judgeable // 20


@pytest.mark.parametrize(
    ("lines", "settings", "said"),
    [
        ([], {}, "texts.txt' is empty"),
        (
            ["one", "two", "", "three", "two"],
            {},
            "has 3 different texts; compress needs 20 or more",
        ),
        (["all the same"] * 50, {}, "has 1 different texts; compress needs 20 or more"),
        (None, {"minutes": 0}, r"0 minutes are too few; allow at least one (minutes=...)"),
        (None, {"minutes": math.nan}, "nan minutes are too few"),
        (None, {"min_agreement": 1.0}, "1 cannot be a gate: no number of texts can prove that"),
        (None, {"min_metric_kept": -1}, "-1 cannot be a gate: it is not a share; give one"),
        (None, {"max_ms": 0}, "0 ms are too few"),
        (None, {"metric": "f2"}, "no metric 'f2'; choose one of accuracy, macro_f1, mcc, f1"),
        (None, {"metric": "mcc"}, "'mcc' is counted by no gate; name the share to keep"),
        (None, {"max_ms": 1, "min_agreement": 0.9}, "name only one gate (min_agreement=..., "),
        (None, {"min_metric_kept": 0.9}, "texts.txt': no column 'label'; there are 'text'"),
        (None, {}, "60 texts are too few to say with 95% confidence that any model passes this"),
        (
            None,
            {},
            "(0.95); give about 128 more texts, or more minutes if these limit them, ask for",
        ),
        (None, {"min_agreement": 0.9999}, "(0.9999); give more texts, or more minutes if"),
        (None, {"max_length": 4096}, "max_length is 4096; "),
        (None, {"out": "taken"}, "'taken' exists and is not an empty folder"),
        (None, {"out": "."}, "'.' is the folder at work, in which runs/ is made; name another"),
    ],
)
def test_what_cannot_be_is_one_line_and_nothing_is_written(
    teacher: Path,
    texts: Path,
    tmp_path: Path,
    lines: list[str] | None,
    settings: Mapping[str, Any],
    said: str,
) -> None:
    if lines is not None:
        texts.write_text("\n".join(lines), encoding="utf-8")
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "mine").touch()
    with pytest.raises(MaskfrontError, match=re.escape(said)) as error:
        compress(teacher, texts, **{"out": "small", "max_length": 24, **settings})
    assert "\n" not in str(error.value)
    assert not (tmp_path / "runs").exists()
    assert not (tmp_path / "small").exists()


def test_too_few_texts_for_the_labels_are_one_line(teacher: Path, tmp_path: Path) -> None:
    table = tmp_path / "table.csv"
    texts = planted_rows()["text"][:40]
    table.write_text("text,label\n" + "".join(f"{t},{n % 16}\n" for n, t in enumerate(texts)))
    with pytest.raises(UserError, match=r"has 40 texts with one of 16 labels; give about 112 or"):
        compress(teacher, table, out=tmp_path / "small", max_length=24, min_metric_kept=0.9)


def test_the_data_may_be_a_folder_and_a_wrong_name_is_said(
    teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "train.csv").write_text("text\n" + "".join(f"text {n}\n" for n in range(60)))
    with pytest.raises(RunError, match="60 texts are too few to say"):
        compress(teacher, folder, out="small", max_length=24)
    with pytest.raises(UserError, match="'absent'"):
        compress(teacher, "absent", out="small", max_length=24)


def test_what_is_no_classifier_is_refused(tiny_bert: str, texts: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"has no classifier yet; use a fine-tuned"):
        compress(tiny_bert, texts, out="small", max_length=24)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("turned", [1, pytest.param(0, marks=pytest.mark.slow)])
def test_a_model_that_is_no_better_than_one_answer_is_refused(
    teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, turned: int
) -> None:
    """Labels that mean other outputs; with them as they are it goes on."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Candidates, "add", lambda *_: None)
    monkeypatch.setattr(Candidates, "seconds_of_an_answer", lambda *_: 0.001)
    monkeypatch.setattr(planning, "at_once", lambda *_: [planning._cut(0.5)])
    monkeypatch.setattr(planning, "afterwards", lambda *_: pytest.fail("it goes on"))
    rows = planted_rows().to_dict()
    names = sorted(set(rows["label"]))
    table = tmp_path / "table.csv"
    table.write_text(
        "text,label\n"
        + "".join(
            f"{text},{names[(names.index(label) + turned) % 3]}\n"
            for text, label in zip(rows["text"], rows["label"], strict=True)
        )
    )
    with pytest.raises((UserError, pytest.fail.Exception)) as error:
        compress(teacher, table, out="small", max_length=24, min_metric_kept=0.5)
    if not turned:
        assert str(error.value) == "it goes on"
        return
    few = "'happy', 'neutral', 'sad'"
    assert re.search(
        r"its accuracy on the labels is 0\.\d+, and one answer for all has 0\.3\d+: most likely .* "
        rf"\(labels {few}; outputs {few}\), .* \(label=\.\.\., min_agreement=\.\.\.\)$",
        str(error.value),
    )
    assert "\n" not in str(error.value)


@pytest.fixture
def name_of(teacher: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """The name of the study that `compress` would launch."""
    studies: list[Study] = []

    def interrupt(study: Study, **_: object) -> None:
        studies.append(study)
        raise KeyboardInterrupt

    monkeypatch.setattr(compressing, "launch", interrupt)
    monkeypatch.setattr(Candidates, "add", lambda *_: None)
    monkeypatch.setattr(Candidates, "seconds_of_an_answer", lambda *_: 0.001)

    def name(texts: Path, **settings: Any) -> str:
        with pytest.raises(KeyboardInterrupt):
            compress(
                teacher,
                texts,
                **{"out": "small", "take_nearest": True, "max_length": 24, **settings},
            )
        return studies.pop().name

    return name


def test_other_settings_or_texts_are_another_run(texts: Path, name_of: Callable[..., str]) -> None:
    first = name_of(texts)
    assert first.startswith("small-")
    again = name_of(texts, min_agreement=0.9, minutes=3)
    assert again == first, "what was tried serves again"
    shorter = name_of(texts, max_length=16)
    texts.write_text("\n".join(planted_rows()["text"][:70]), encoding="utf-8")
    assert len({first, shorter, name_of(texts)}) == 3


@pytest.mark.parametrize(
    ("out", "name"),
    [
        ("my small model", "my-small-model"),
        ("small (2).v1", "small-2-.v1"),
        ("_small", "small"),
        ("模型", "model"),
    ],
)
def test_the_run_has_a_name_whatever_signs_the_folder_has(
    texts: Path, name_of: Callable[..., str], out: str, name: str
) -> None:
    assert re.fullmatch(re.escape(name) + "-[0-9a-f]{8}", name_of(texts, out=out))


def test_texts_of_100_000_characters_are_cut_off(texts: Path, name_of: Callable[..., str]) -> None:
    long = texts.read_text(encoding="utf-8") + "\n" + "word " * 20_000
    texts.write_text(long, encoding="utf-8")
    assert name_of(texts)


@pytest.mark.parametrize("texts", [20, 200, 999, 1000, 16_000, 1_000_000])
def test_every_text_has_one_role(texts: int) -> None:
    sizes = planning.RoleSizes.of(texts)
    assert sizes.train + sizes.alpha + sizes.select + sizes.heldout == texts
    assert min(sizes.train, sizes.alpha, sizes.select, sizes.heldout) >= 1
    assert sizes.select <= 4000


def test_more_texts_than_can_be_answered_are_left_out() -> None:
    speed = planning.AnswerTimes(teacher=1.0, teaching=1.0)

    def used(texts: int, unlabelled: int, seconds: float) -> tuple[int, int | None]:
        sizes = planning.affordable(texts, unlabelled, seconds, speed)
        return sizes.judgeable, sizes.unlabelled

    assert used(900, 0, 1000) == (900, None)
    assert used(90_000, 0, 9000) == (8000, None)
    assert used(90_000, 0, 9100) == (8000, None), "the next call takes the same"
    assert used(90_000, 5000, 10) == (1000, None)
    assert used(900, 70, 2000) == (900, 70)
    assert used(900, 50_000, 5000) == (900, 4000), "as many without a label as there is time for"
    assert used(900, 50_000, 1000) == (900, None)
    speed = replace(speed, teaching=0.25)
    assert used(90_000, 0, 9000) == (16_000, None), "6,500 judge, 9,500 teach"


def finished(knobs: Mapping[str, Any], seconds: float, worth: float = 0.0) -> Any:
    """A trial as the plan sees it."""
    return SimpleNamespace(knobs=dict(knobs), seconds=seconds, result=SimpleNamespace(worth=worth))


def run_of(*trials: Any) -> Any:
    """A run as the plan sees it."""
    return SimpleNamespace(finished=trials)


def test_the_plan_is_as_long_as_the_minutes() -> None:
    sizes = planning.RoleSizes.of(10_000)
    train = sizes.train
    tried, cut = planning.at_once(sizes)
    assert (tried["method"], cut["method"]) == ("cells", "cut")
    begun = finished(tried, seconds=20)  # a tenth of a second a step

    def plan(seconds: float, *had: Any) -> list[tuple[str, int, float]]:
        found = planning.afterwards(
            run_of(begun, *had), sizes, seconds, planning.AnswerTimes(0.002, 0.002)
        )
        return [
            (
                "words" if one.get("cells.operations[0]") == "none" else str(one["method"]),
                copies := int(one.get("cells.noised", 0)),
                round(epochs * train * (1 + copies) / 32),
            )
            for one in found
            for epochs in (value for name, value in one.items() if name.endswith("epochs"))
        ]

    cell, distilled, noised = ("cells", 0, 4000), ("distilled", 0, 2000), ("cells", 3, 4000)
    words, noised_words = ("words", 0, 4000), ("words", 3, 4000)
    assert plan(10) == []
    assert plan(50) == [("cells", 0, 400)]
    longer = {**tried, "cells.epochs": 1.2 * tried["cells.epochs"]}
    unknown = finished(longer, seconds=0.0)  # a clock was set back
    assert plan(50, unknown) == [("cells", 0, 400)]
    assert plan(800) == [cell, words, ("distilled", 0, 1039)], "the teacher's own pass is 13.5 s"
    assert plan(5000) == [cell, words, distilled, noised, noised_words]

    def advised(*had: Any) -> str:
        return " ".join(planning.advice(run_of(begun, *had), sizes))

    first = planning.afterwards(run_of(begun), sizes, 5000, planning.AnswerTimes(0.002, 0.002))
    had = [finished(one, 400) for one in first]
    assert "with more minutes" in advised()
    assert advised(*had) == ""
    assert plan(520, *had[:3]) == [("cells", 1, 4000)], "there is time for one copy of each text"
    assert plan(520, *had[:3], had[4]) == [noised], "which are there now"
    wide = ("cells", 0, 8000)
    assert plan(5000, *had) == [cell, wide], "larger cells learn as the small one does best"
    assert plan(3000, *had) == [cell, ("cells", 0, 4500)]
    assert plan(2000, *had) == [cell], "a wide one for fewer steps would be no better"
    had[3] = finished(first[3], 400, worth=1.0)
    assert plan(5000, *had) == [noised, ("cells", 3, 8000)]
    larger = planning.afterwards(
        run_of(begun, *had), sizes, 5000, planning.AnswerTimes(0.002, 0.002)
    )
    assert [one["cells.operations[1]"] for one in larger] == ["conv5", "none"]
    assert [one["cells.width"] for one in larger] == [128, 256]
    had += [finished(one, 600) for one in larger]
    assert plan(5000, *had) == [], "what was done is not done again"
    few = planning.advice(run_of(begun), planning.RoleSizes.of(200))
    assert "with 1,000 texts or more (these are 200)" in " ".join(few)


def test_a_student_that_is_named_is_trained_whole_in_place_of_cuts() -> None:
    sizes = planning.RoleSizes.of(10_000)
    rows = sizes.train
    [tried] = planning.at_once(sizes, True)
    assert tried["method"] == "cells"
    begun, speed = finished(tried, seconds=20), planning.AnswerTimes(0.1, 0.1, student=0.001)
    plan = planning.afterwards(run_of(begun), sizes, 1000, speed)
    assert [knobs["method"] for knobs in plan] == ["distilled", "cells"]
    assert plan[0]["distilled.target_ratio"] == 1
    steps = plan[0]["distilled.stages.recover.epochs"] * rows / 32
    assert steps == pytest.approx(3125), "400 s, though the model would take 900 for a pass"
    short, _ = planning.afterwards(run_of(begun), sizes, 110, speed)
    steps = short["distilled.stages.recover.epochs"] * rows / 32
    assert steps == pytest.approx(343, abs=1), "half of the time; a cell has the rest"
    had = [finished(knobs, 50) for knobs in planning.afterwards(run_of(begun), sizes, 110, speed)]
    trained = [finished(planning._cell(blocks, 4000, rows), 400) for blocks in range(3)]
    run = run_of(begun, *had, *trained)
    [longer] = planning.afterwards(run, sizes, 200, speed)
    steps = longer["distilled.stages.recover.epochs"] * rows / 32
    assert steps == pytest.approx(343 * 160 / 50, abs=4), "all of the time, as fast as it was"
    assert planning.afterwards(run, sizes, 60, speed) == [], "it had nearly as many"
    [few] = planning.at_once(planning.RoleSizes.of(200), True)
    assert few["method"] == "distilled"


@pytest.mark.slow
@pytest.mark.usefixtures("slow_teacher")
@pytest.mark.parametrize("texts", [60, 300])
def test_a_smaller_checkpoint_of_other_tokens_learns_the_answers(
    teacher: Path, tiny_masked_lm: str, texts: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(planning, "_ENOUGH", 300)
    monkeypatch.setattr(planning, "_TRIED", 5)
    monkeypatch.setattr(planning, "_FEWEST", 10)
    monkeypatch.setattr(planning, "_FEWEST_OF_CUT", 20)
    monkeypatch.setattr(planning, "_WHOLE", 40)
    rows = planted_rows()["text"][:texts]
    made = compress(
        teacher,
        rows,
        out="small",
        student=tiny_masked_lm,
        max_length=24,
        minutes=3,
        take_nearest=True,
    )
    kinds = {trial.knobs["method"] for trial in made.run.finished}
    assert kinds == ({"distilled"} if texts == 60 else {"cells", "distilled"})
    asked = planted_rows()["text"][-40:]
    before = pipeline("text-classification", str(teacher))(asked)
    answers = zip(Classifier(tmp_path / "small")(asked), before, strict=True)
    alike = np.mean([now.label == was["label"] for now, was in answers])
    if texts == 300:  # of 60 it learns nothing in 20 steps
        assert made.deployed.heldout_agreement > 0.9
        assert alike > 0.9, "each model reads its own tokens"


def judged(wrong: Sequence[int], rows: int = 600) -> tuple[list[Member], GateRows]:
    """Models of trials that answer some rows otherwise than the unpruned one, surely; their costs
    rise. The unpruned model in int8, which has two wrong and is unsure there, and in float32."""
    whole = np.tile([4.0, 0.0], (rows, 1))

    def answers(mistakes: int, size: float) -> dict[str, Any]:
        own = whole.copy()
        own[7 * np.arange(mistakes) % rows] = [0.0, size]  # a third of them where rows choose
        return {"select": own, "heldout": own}

    members = [Member(n, 1.0 + n, answers(own, 4.0), "onnxruntime") for n, own in enumerate(wrong)]
    members += [
        Member(None, 8.0, answers(2, 0.1), "onnxruntime-int8"),
        Member(None, 12.0, answers(0, 4.0), "onnxruntime"),
    ]
    said = {role: whole.argmax(-1) for role in ("select", "heldout")}
    return members, GateRows(metric="agreement", labels=said, original=said, classes=2)


def chosen(wrong: Sequence[int], rows: int = 600, *, nearest: bool = False, **aims: float) -> Any:
    members, judges = judged(wrong, rows)
    gate = compressing._gate("accuracy", aims)
    return compressing._chosen(members, judges, gate, planning.RoleSizes.of(2 * rows), nearest)


def test_the_cheapest_that_passes_is_taken() -> None:
    found, passed = chosen([100, 6, 2])
    assert (found.stages, passed) == ((CascadeStage(1, "onnxruntime"),), True)
    found, _ = chosen([100, 60, 2], min_metric_kept=0.98)
    assert found.stages[0].number == 2
    found, _ = chosen([100, 6, 2], max_ms=2.5)
    assert found.stages[0].number == 1


def test_int8_is_taken_where_nothing_smaller_passes() -> None:
    found, passed = chosen([100, 90])
    assert passed
    assert found.stages == (CascadeStage(None, "onnxruntime-int8"),)
    assert found.cost < 8.5


def test_where_nothing_passes_that_is_said_and_the_nearest_is_there() -> None:
    with pytest.raises(
        RunError, match=r"on 26 texts; the nearest, .*int8.*more texts, or more min"
    ):
        chosen([10], rows=40, min_agreement=0.9)
    found, passed = chosen([10], rows=40, nearest=True)
    assert (found.stages, passed) == ((CascadeStage(None, "onnxruntime-int8"),), False)
    with pytest.raises(RunError, match=r"no model takes 0.5 ms or less: the fastest takes 1.00 ms"):
        chosen([10], max_ms=0.5)


def test_texts_that_a_metric_lacks_are_counted() -> None:
    members, judges = judged([0], rows=300)
    rare = {role: (np.arange(300) < 9).astype(np.int64) for role in ("select", "heldout")}
    answers = {role: 4.0 * np.eye(2)[own] for role, own in rare.items()}
    members = [replace(member, logits=answers) for member in members]
    rows = replace(judges, metric="f1", labels=rare, original=rare)
    gate = compressing._gate("f1", {"min_metric_kept": 0.95})
    with pytest.raises(RunError, match=r"on 166 texts; about [\d,]+ more texts, or more minutes"):
        compressing._check_metric(rows, gate, planning.RoleSizes.of(600), take_nearest=False)
    compressing._check_metric(rows, gate, planning.RoleSizes.of(600), take_nearest=True)
    with pytest.raises(RunError, match=r"reaches 100\.0%: ask for less, or take the nearest"):
        compressing._chosen(members, rows, gate, planning.RoleSizes.of(600), take_nearest=False)


def test_rounds_do_not_repeat_what_they_say(capsys: pytest.CaptureFixture[str]) -> None:
    console = SaysOnce()
    for line in ("2,000 rows read", "trial 0", "  learn: 4 steps") * 2:
        say(console, line)
    assert capsys.readouterr().out.splitlines() == [
        *("2,000 rows read", "trial 0", "  learn: 4 steps"),
        "  learn: 4 steps",
    ]
