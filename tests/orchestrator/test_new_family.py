"""What ARCHITECTURE.md promises of a new family of students: nothing else knows of it, and it goes
the whole way from a launch to an engine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from optuna.distributions import IntDistribution
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from maskfront import launch
from objectives.delivery.bench import bench
from objectives.students import families
from orchestrator.study_file import load_study
from tests.bag_of_words import BAG_OF_WORDS, Bag, BagOfWords


@pytest.mark.slow
def test_a_family_of_one_entry_is_trained_scored_reported_exported_and_timed(
    tiny_study_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(families, "FAMILIES", (*families.FAMILIES, BAG_OF_WORDS))
    BAG_OF_WORDS.register()
    space = {"width": IntDistribution(2, 16)}
    first = ({"width": 4}, {"width": 16})
    tiny = load_study(tiny_study_file)
    study = replace(tiny, method=BagOfWords(), space=space, first=first, trials=2)

    run = launch(study, out=tmp_path / "run")
    assert [trial.result.widths["width"] for trial in run.finished] == [(4,), (16,)]
    assert "width" in (run.folder / "report.html").read_text()

    out = run.export(tmp_path / "model", trial=1, onnx=True).folder
    assert Bag.from_json((out / "architecture.json").read_text()) == Bag(16)
    card = (out / "README.md").read_text()
    assert "A bag of words at" in card
    assert "run `bag_classifier.py` and the modules beside it" in card
    source = Path(__file__).parents[1] / "bag_of_words" / "bag_classifier.py"
    assert (out / "bag_classifier.py").read_text() == source.read_text()
    own = AutoModelForSequenceClassification.from_pretrained(out, trust_remote_code=True).eval()
    tokens = AutoTokenizer.from_pretrained(out)("joy bab", return_tensors="pt")
    assert own(**tokens).logits.shape == (1, 3)

    engines = ("eager", "onnxruntime")
    timed = bench([out], batches=[1], lengths=[8], engines=engines, rounds=1)
    assert not timed.skipped
    assert [timing.flops for timing in timed.timings] == [2 * 16 * 3] * 2


def test_no_two_families_claim_one_kind_of_model() -> None:
    kinds = [kind for family in families.FAMILIES for kind in family.model_types]
    assert len(set(kinds)) == len(kinds)
