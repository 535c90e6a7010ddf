"""A smaller pretrained model from raw text."""

from __future__ import annotations

import math
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
import torch
from rich.console import Console
from torch import Tensor
from transformers import AutoModel, AutoTokenizer

from maskfront import FisherSearch, RunError, Stage, Study, UserError, distil
from objectives.training import fitting
from tests.any_classifiers import write_classifier
from tests.bert_variants import write_variant
from tests.conftest import planted_rows
from tests.launching import run_study

QUIET = Console(quiet=True)
QUICK = {"epochs": 4, "learning_rate": 3e-3, "batch_size": 16, "console": QUIET}


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """128 texts, some of them twice, and an empty line."""
    lines = planted_rows()["text"][:128]
    file = tmp_path_factory.mktemp("text") / "text.txt"
    file.write_text("\n".join([*lines, "", *lines[:9]]) + "\n")
    return file


@pytest.fixture(scope="module")
def small(tiny_bert: str, text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The first and the last layer of the tiny BERT, distilled."""
    out = tmp_path_factory.mktemp("small") / "small"
    console = Console(file=StringIO(), width=200)
    assert (
        distil(tiny_bert, text, out, student_layers=(0, 2), **QUICK | {"console": console}) == out
    )
    assert "128 texts; loss " in console.file.getvalue()  # type: ignore[attr-defined]
    return out


def last_states(folder: str | Path, layers: tuple[int, ...] | None = None) -> Tensor:
    """Of texts that no student saw, on all tokens; with `layers` of a model that has only these."""
    model, tokenizer = AutoModel.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    if layers is not None:
        own = [model.encoder.layer[layer] for layer in layers]
        model.encoder.layer = torch.nn.ModuleList(own)
    inputs = tokenizer(planted_rows()["text"][128:256], padding=True, return_tensors="pt")
    with torch.no_grad():
        states = model(**inputs).last_hidden_state
    return states[inputs["attention_mask"].bool()]


def test_it_is_nearer_to_the_teacher_than_its_layers_were(tiny_bert: str, small: Path) -> None:
    wanted = last_states(tiny_bert)
    far = [
        float((states - wanted).square().mean())
        for states in (last_states(tiny_bert, (0, 2)), last_states(small))
    ]
    assert far[1] < 0.5 * far[0]


def test_a_study_starts_from_it(small: Path, study: Study, tmp_path: Path) -> None:
    own = replace(
        study,
        student=str(small),
        method=FisherSearch(tolerance=0.3, stages=(Stage(name="recover", epochs=0.1),)),
        space={"target_ratio": study.space["target_ratio"]},
        trials=1,
    )
    (trial,) = run_study(own, tmp_path / "run").finished
    assert len(trial.result.widths["heads"]) == 2


def test_what_was_cut_off_goes_on_as_if_it_had_not_been(
    tiny_bert: str, text: Path, small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fitting, "_EVERY", 10)
    write = fitting.write_checkpoint

    def killed(*arguments: object) -> None:
        write(*arguments)  # type: ignore[arg-type]
        raise KeyboardInterrupt

    monkeypatch.setattr(fitting, "write_checkpoint", killed)
    out = tmp_path / "new" / "folder" / "out"
    with pytest.raises(KeyboardInterrupt):
        distil(tiny_bert, text, out, student_layers=(0, 2), **QUICK)
    assert not out.exists()
    monkeypatch.setattr(fitting, "write_checkpoint", write)
    torch.rand(3)  # what others draw decides nothing
    began = []
    monkeypatch.setattr(
        "orchestrator.command.distilling._Bar.begin", lambda self, *told: began.append(told)
    )
    monkeypatch.setattr("orchestrator.command.distilling._Bar.advance", lambda self: None)
    distil(tiny_bert, text, out, student_layers=(0, 2), **QUICK)
    assert began == [("distil", 32, 10)]
    torch.testing.assert_close(last_states(out), last_states(small), atol=1e-5, rtol=0)
    assert {path.name for path in out.parent.iterdir()} == {"out"}


def test_what_cannot_work_is_refused(
    tiny_bert: str, text: Path, small: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    for settings, kind, message in (
        ({"student_layers": (2, 0)}, UserError, r"student_layers is \(2, 0\)"),
        ({"student_layers": (0, 3)}, UserError, r"student_layers is \(0, 3\)"),
        ({"student_layers": (0,), "epochs": 0}, RunError, "finite numbers above 0"),
        ({"student_layers": (0,), "learning_rate": math.nan}, RunError, "finite numbers above 0"),
        ({"student_layers": (0,), "epochs": math.inf}, RunError, "finite numbers above 0"),
        ({"student_layers": (0,), "batch_size": 0.5}, RunError, "the last one whole"),
    ):
        with pytest.raises(kind, match=message):
            distil(tiny_bert, text, out, **{"console": QUIET, **settings})
    with pytest.raises(RunError, match="is not an empty folder"):
        distil(tiny_bert, text, small, student_layers=(0, 2), console=QUIET)
    other = write_variant("distilbert", tmp_path / "other")
    with pytest.raises(UserError, match="takes and makes BERTs alone"):
        distil(other, text, out, student_layers=(0, 2), console=QUIET)
    modern = write_classifier("modernbert", tmp_path / "modern", ["a", "b"])
    with pytest.raises(UserError, match=r"its architecture is .* \('modernbert'\)"):
        distil(modern, text, out, student_layers=(0,), console=QUIET)
    table = tmp_path / "table.jsonl"
    table.write_text('{"body": "a text"}\n')
    with pytest.raises(UserError, match=r"table\.jsonl': no column 'text'; there are 'body'"):
        distil(tiny_bert, table, out, student_layers=(0, 2), console=QUIET)
    stray = tmp_path / "table.csv"
    stray.write_text('text;id\n" a;1\nb;2\nc ";3\n')
    with pytest.raises(UserError, match=r"table\.csv': a quote in line 2 reaches to line 4; give"):
        distil(tiny_bert, stray, out, student_layers=(0, 2), delimiter=";", console=QUIET)
    table.write_text('{"text": 7}\n')
    distil(tiny_bert, table, tmp_path / "of-numbers", student_layers=(0,), **QUICK)
    with pytest.raises(UserError, match="lower learning_rate, now 1e"):
        distil(tiny_bert, text, out, student_layers=(0, 2), **QUICK | {"learning_rate": 1e30})
    assert not out.exists()
