"""A classifier and a few texts in, a smaller one for onnxruntime out."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from transformers import AutoModelForSequenceClassification

from objectives.delivery.bench import Bench
from objectives.errors import UserError
from objectives.students.bert.exporting import save_model
from objectives.students.bert.pretrained import load_tokenizer
from objectives.workbench.workbench import Workbench
from orchestrator.command import compressing
from orchestrator.command.compressing import compress
from orchestrator.errors import RunError
from orchestrator.study import Study
from reports.speed import Speed, TimedModel, Worth
from tests.command_line import maskfront
from tests.conftest import planted_rows


@pytest.fixture(scope="module")
def teacher(workbench: Workbench, tiny_bert: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fine-tuned classifier in a folder."""
    folder = tmp_path_factory.mktemp("fine-tuned")
    save_model(workbench.problem.teacher, folder)
    load_tokenizer(tiny_bert).save_pretrained(folder)
    return folder


@pytest.fixture
def texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Sixty texts, a line each, in the folder that the test works in."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(compressing, "RATIOS", (1.0, 0.5))
    file = tmp_path / "texts.txt"
    file.write_text("\n".join(planted_rows()["text"][:60]), encoding="utf-8")
    return file


@pytest.mark.slow
def test_a_classifier_and_a_file_of_lines_become_a_folder(
    teacher: Path, texts: Path, tmp_path: Path
) -> None:
    ran = maskfront(
        "compress", str(teacher), "--data", str(texts), "--out", "small", "--max-length", "24"
    )
    assert ran.returncode == 0, ran.stderr
    assert "times as fast as before; answers" in ran.stdout
    (report,) = tmp_path.glob("runs/small-*/report.html")
    assert f"all sizes: {report.relative_to(tmp_path)}" in ran.stdout
    made = tmp_path / "small"
    assert (made / "onnx" / "model_int8.onnx").is_file()
    AutoModelForSequenceClassification.from_pretrained(made, trust_remote_code=True)
    card = (made / "README.md").read_text(encoding="utf-8")
    assert "agreement in onnxruntime-int8, held-out split" in card
    assert "| rows | 60 rows read; train 29, alpha 1, selection 15, held out 15 |" in card
    text = texts.read_text(encoding="utf-8").splitlines()[0]
    page = report.read_text(encoding="utf-8")
    assert text not in card
    assert text not in page
    assert "onnxruntime-int8" in page

    again = maskfront("compress", str(teacher), "--data", str(texts), "--out", "small")
    assert again.returncode == 2
    assert "'small' exists and is not an empty folder; choose another (--out)" in again.stderr


def test_too_few_texts_and_a_model_without_classes_are_refused(
    teacher: Path, tiny_bert: str, texts: Path, tmp_path: Path
) -> None:
    few = tmp_path / "few.txt"
    few.write_text("one\ntwo\n\nthree\ntwo\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"few.txt' has 3 different texts; compress needs 20 or mo"):
        compress(teacher, few, out="small")
    with pytest.raises(UserError, match=r"has no classifier yet; name a classifier"):
        compress(tiny_bert, texts, out="small", max_length=24)
    assert not (tmp_path / "runs").exists()


def launched(monkeypatch: pytest.MonkeyPatch) -> list[Study]:
    """The studies that `compress` launches from here on; each launch is interrupted."""
    studies: list[Study] = []

    def interrupt(study: Study, **_: object) -> None:
        studies.append(study)
        raise KeyboardInterrupt

    monkeypatch.setattr(compressing, "launch", interrupt)
    return studies


def test_other_settings_and_other_texts_are_another_run(
    teacher: Path, texts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    studies = launched(monkeypatch)

    def name(**settings: Any) -> str:
        with pytest.raises(KeyboardInterrupt):
            compress(teacher, texts, out="small", **{"max_length": 24, **settings})
        return studies[-1].name

    first = name()
    assert first.startswith("small-")
    assert name(max_ms=5, min_agreement=0.9) == first, "the sizes that were tried serve again"
    shorter = name(max_length=16)
    texts.write_text("\n".join(planted_rows()["text"][:70]), encoding="utf-8")
    assert len({first, shorter, name()}) == 3


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
    teacher: Path, texts: Path, monkeypatch: pytest.MonkeyPatch, out: str, name: str
) -> None:
    studies = launched(monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        compress(teacher, texts, out=out, max_length=24)
    assert re.fullmatch(re.escape(name) + "-[0-9a-f]{8}", studies[-1].name)


def test_why_there_is_no_int8_reaches_the_user(
    teacher: Path, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    timed = Bench("unpruned", (), {"onnxruntime-int8": "no such operator: MatMulInteger"}, {})
    run = SimpleNamespace(folder=tmp_path)
    monkeypatch.setattr(compressing, "load_run", lambda _: run)
    monkeypatch.setattr(compressing, "bench_front", lambda *_, **__: timed)
    monkeypatch.setattr(compressing, "read_speeds", lambda _: ())
    for step in ("launch", "keep_speeds", "write_report"):
        monkeypatch.setattr(compressing, step, lambda *_, **__: None)
    with pytest.raises(RunError, match=r"int8 .*\(no such operator: MatMulInteger\); install"):
        compress(teacher, texts, out="small", max_length=24)


def speed(*models: tuple[float, float]) -> Speed:
    """Trials by number, each with its milliseconds and its agreement."""
    timed = {
        number: TimedModel(
            milliseconds=ms,
            slow=ms,
            megabytes=1,
            flops_ratio=1,
            speed_up=1,
            worth=Worth(metric=metric, interval=(0, 1), heldout_metric=0, heldout_interval=(0, 1)),
        )
        for number, (ms, metric) in enumerate(models)
    }
    return Speed(
        engine="onnxruntime-int8",
        bits=8,
        batch=1,
        length=24,
        texts=False,
        device="cpu-1threads",
        reference="unpruned",
        reference_model=timed[0],
        models=timed,
        counted="flops@24",
    )


@pytest.mark.parametrize(
    ("max_ms", "min_agreement", "trial"),
    [
        (None, 0.98, 1),
        (None, 0.9, 2),
        (None, 1.0, 0),  # none: the nearest
        (3.5, 0.98, 2),
        (5.0, 0.0, 0),
        (4.5, 0.0, 1),
    ],
)
def test_the_model_is_taken_that_was_asked_for(
    max_ms: float | None, min_agreement: float, trial: int
) -> None:
    models = speed((5, 0.99), (4, 0.98), (3, 0.95), (2, 0.6))
    assert compressing._chosen(models, max_ms, min_agreement) == trial


def test_of_equals_the_larger_is_taken_and_nothing_slower_than_was_asked_for() -> None:
    assert compressing._chosen(speed((5, 0.9), (4, 0.9), (3, 0.9)), 4.5, 0.98) == 1
    with pytest.raises(RunError, match=r"no model takes 1 ms or less: the fastest takes 2.00 ms;"):
        compressing._chosen(speed((5, 0.9), (2, 0.8)), 1, 0.98)
