"""A cascade of a run: a folder that answers without torch, as the numbers of its card say."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from maskfront import Run, RunError, Study, load_run
from objectives.combining.cascade import CascadePair, pairs_of, threefold
from objectives.combining.members import GateRows, Member, at_least
from objectives.delivery import deployed
from objectives.delivery.deployed import answers_to
from objectives.delivery.exported import load_model
from objectives.measures.evaluate import predict
from objectives.workbench.inputs import read_inputs
from orchestrator.command import candidates as candidates_module
from orchestrator.command.candidates import Candidates
from orchestrator.command.cascading import Gate, _chosen
from orchestrator.runs.answers import read_rows
from orchestrator.runs.run_folder import RunFolder
from orchestrator.study_file import load_study
from reports.exporting.deployed_card import Deployed, deployed_card, named
from reports.speed import inputs_of, teacher_of
from tests.launching import run_study

pytest.importorskip("onnxruntime", reason="the extra 'onnx' is not installed")


@pytest.fixture(scope="module")
def study(tiny_study_file: Path) -> Study:
    """The tiny study, with trials of different sizes."""
    first = tuple({"target_ratio": ratio} for ratio in (0.3, 0.6))
    return replace(load_study(tiny_study_file), first=first, trials=2)


@pytest.fixture(scope="module")
def launched(study: Study, tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("cascade") / "run"
    run_study(study, folder)
    return load_run(folder)


def milliseconds(classifiers: Sequence[Any], texts: Sequence[Any], **_: Any) -> Any:
    """As if the last model, the unpruned one, were large: those of the tests all take as long."""
    costs = [*np.linspace(0.1, 0.2, len(classifiers) - 1), 10.0]
    return np.tile(costs, (len(texts), 1))


@pytest.fixture(scope="module")
def done(launched: Run, study: Study, tmp_path_factory: pytest.TempPathFactory) -> Deployed:
    out = tmp_path_factory.mktemp("cascade") / "both"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(deployed, "text_to_label", milliseconds)
        return launched.cascade(out, study, max_ms=5, engine="onnxruntime")


def texts_of(study: Study, role: str) -> list[Any]:
    rows = read_inputs(study.task, study.teacher).text.roles[role].texts
    return [row[0] if len(row) == 1 else row for row in rows]


def classifier_of(folder: Path) -> Any:
    """The class in the folder's own classify.py."""
    spec = importlib.util.spec_from_file_location("classify", folder / "classify.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.Classifier


@pytest.mark.slow
def test_the_folder_says_what_its_card_says(done: Deployed, launched: Run, study: Study) -> None:
    classifier = classifier_of(done.folder)(done.folder)
    texts = texts_of(study, "heldout")
    answers = classifier(texts)
    assert classifier.asked == len(texts)
    assert classifier.deferred / classifier.asked == done.deferred
    said = [classifier.labels.index(answer.label) for answer in answers]
    labels = read_inputs(study.task, study.teacher).text.roles["heldout"].labels
    assert np.mean(said == labels) == pytest.approx(done.heldout_metric)
    card = (done.folder / "README.md").read_text()
    assert f"{100 * done.heldout_agreement:.1f}%" in card
    assert done.speed_up_int8 is None, "one engine was asked for"
    assert f"| {launched.metric_name} | {done.heldout_metric:.4f} |" in card


@pytest.mark.slow
@pytest.mark.parametrize(("threshold", "stage"), [(-100.0, "small"), (100.0, "large")])
def test_at_its_ends_it_is_one_of_the_two(
    done: Deployed, launched: Run, study: Study, threshold: float, stage: str
) -> None:
    classifier = classifier_of(done.folder)(done.folder)
    classifier.stages[0].settings["threshold"] = threshold
    texts = texts_of(study, "heldout")
    found = answers_to(classifier, texts)
    number = done.cascade.stages[0 if stage == "small" else -1].number
    inputs = read_inputs(study.task, study.teacher)
    if number is None:
        return
    model = load_model(RunFolder(launched.folder).model(number))
    np.testing.assert_allclose(found, predict(model, inputs.judging()[1], "cpu"), atol=1e-4)


@pytest.mark.slow
def test_three_models_answer_as_was_computed(launched: Run, study: Study, tmp_path: Path) -> None:
    inputs = inputs_of(launched, study)
    candidates = Candidates(inputs, ("onnxruntime",), tmp_path, print)
    numbers = [trial.number for trial in launched.front[:2]]
    for number in numbers:
        candidates.add_trial(launched, number)
    candidates.add(None, teacher_of(launched, study, inputs), inputs.tokenizer)
    members, rows = candidates.judged(launched, [*numbers, None])
    costs = sorted(member.cost for member in members)
    by_cost = [replace(member, cost=cost) for member, cost in zip(members, costs, strict=True)]
    chosen = next(
        (pair, cascade)
        for pair in threefold(list(pairs_of(by_cost, rows)))
        if len((cascade := pair.at(pair.threshold(0.5))).stages) == 3
    )
    pair, cascade = chosen
    out = candidates.deploy(launched, cascade, rows, tmp_path / "three")
    assert sorted(file.name for file in out.folder.iterdir() if file.is_dir()) == (
        ["large", "middle", "small"]
    )
    wanted = pair.joined(cascade.stages[0].threshold).logits["heldout"]
    found = answers_to(classifier_of(out.folder)(out.folder), texts_of(study, "heldout"))
    np.testing.assert_allclose(found, wanted, atol=1e-4)
    assert out.deferred == cascade.heldout_deferred
    first, second, third = (named(stage.number, stage.engine) for stage in cascade.stages)
    assert out.what().startswith(f"{first}, which defers")
    assert out.what().endswith(f"to {second}, and that one some of them to {third}")
    card = (out.folder / "README.md").read_text()
    assert f"| texts that the first model defers | {100 * out.deferred:.1f}% |" in card


@pytest.mark.slow
def test_a_folder_of_int8_promises_what_check_will_ask(
    launched: Run, study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deployed, "text_to_label", milliseconds)
    kept: dict[str, Any] = {}
    monkeypatch.setattr(
        candidates_module, "write_reference", lambda *_, **given: kept.update(given)
    )
    engine: Any = "onnxruntime-int8"
    out = launched.cascade(tmp_path / "both", study, min_agreement=0.5, engine=engine)
    rows = read_rows(launched)
    assert rows is not None
    found = answers_to(classifier_of(out.folder)(out.folder), texts_of(study, "heldout"))
    agreed = int((found.argmax(-1) == rows.unpruned["heldout"].argmax(-1)).sum())
    assert kept["agreement"] == pytest.approx(float(at_least(agreed, len(found))))


@pytest.mark.slow
def test_it_needs_neither_torch_nor_transformers(done: Deployed) -> None:
    script = (
        "import sys; sys.modules['torch'] = sys.modules['transformers'] = None\n"
        "from classify import Classifier\n"
        "print([answer.label for answer in Classifier()(['one', 'two'])])"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script], cwd=done.folder, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert len(eval(ended.stdout)) == 2


@pytest.mark.slow
def test_it_labels_each_line_in_a_shell(done: Deployed, study: Study) -> None:
    texts = [str(text) for text in texts_of(study, "heldout")[:20]]
    ended = subprocess.run(
        [sys.executable, "classify.py"],
        cwd=done.folder,
        input="".join(f"{text}\n" for text in texts),
        capture_output=True,
        text=True,
        check=True,
    )
    answers = classifier_of(done.folder)(done.folder)(texts)
    assert ended.stdout.splitlines() == [answer.label for answer in answers]


@pytest.mark.slow
def test_threads_share_a_classifier(done: Deployed, study: Study) -> None:
    classifier = classifier_of(done.folder)(done.folder)
    texts = texts_of(study, "heldout")
    alone = classifier(texts)
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda _: classifier(texts), range(8)))
    assert all([a.label for a in own] == [a.label for a in alone] for own in together)
    assert classifier.asked == 9 * len(texts)


@pytest.mark.slow
def test_the_card_of_pairs_asks_for_pairs(done: Deployed, launched: Run) -> None:
    card = deployed_card(launched, done, 16)
    assert 'Classifier()(["one text", "another text"])' in card
    assert card.endswith("Then choose it again on current texts. `maskfront check` tests it.\n")
    pairs = replace(launched, sources={**launched.sources, "text pair": "b"})
    card = deployed_card(pairs, done, 16)
    assert 'Classifier()([("the first text", "the second")])' in card
    assert card.endswith("Then choose it again on current texts.\n"), "check reads no pairs"


@pytest.mark.slow
def test_one_tokenizer_is_written_once(done: Deployed) -> None:
    stages = json.loads((done.folder / "classifier.json").read_text())["stages"]
    assert {stage["tokenizer"] for stage in stages} == {"small/tokenizer.json"}
    assert not (done.folder / "large" / "tokenizer.json").exists()


@pytest.mark.parametrize(
    ("aims", "message"),
    [
        ({"min_agreement": 0.9, "max_ms": 1.0}, "name only one gate"),
        ({"min_agreement": 1.5}, "1.5 cannot be a gate: it is not a share"),
        ({"engine": "eager"}, "a cascade runs in onnxruntime, not in 'eager'"),
    ],
)
def test_what_makes_no_cascade_is_refused(
    launched: Run, study: Study, tmp_path: Path, aims: dict[str, Any], message: str
) -> None:
    with pytest.raises(RunError, match=message):
        launched.cascade(tmp_path / "out", study, **aims)
    assert not (tmp_path / "out").exists()


def unpruned_twice(first: float, second: float) -> list[CascadePair]:
    """The unpruned model in two engines."""
    own = dict.fromkeys(("select", "heldout"), np.tile([4.0, 0.0], (600, 1)).astype(np.float32))
    members = [Member(None, first, own, "onnxruntime"), Member(None, second, own, "other")]
    said = {role: logits.argmax(-1) for role, logits in own.items()}
    rows = GateRows(metric="accuracy", labels=said, original=said, classes=2)
    return list(pairs_of(members, rows))


def pairs_costing(small: float, whole: float, wrong: int) -> list[CascadePair]:
    """A model that answers so many of 600 rows otherwise than the unpruned one, beside that."""
    right = np.tile([4.0, 0.0], (600, 1)).astype(np.float32)
    own = right.copy()
    own[:wrong] = [0.0, 0.1]
    members = [
        Member(7, small, dict.fromkeys(("select", "heldout"), own)),
        Member(None, whole, dict.fromkeys(("select", "heldout"), right)),
    ]
    said = dict.fromkeys(("select", "heldout"), right.argmax(-1))
    rows = GateRows(metric="accuracy", labels=said, original=said, classes=2)
    return list(pairs_of(members, rows))


def test_a_limit_above_the_unpruned_models_time_is_met_by_a_cascade(launched: Run) -> None:
    found = _chosen(
        launched, pairs_costing(1, 10, wrong=90), Gate.of("accuracy", 0.99, {"max_ms": 50})
    )
    assert [stage.number for stage in found.stages] == [7, None]
    assert found.agreement == 1


@pytest.mark.parametrize(
    ("pairs", "aim", "message"),
    [
        (
            pairs_costing(1, 10, wrong=1),
            {"min_agreement": 0.9},
            r"trial 7 alone answers 90\.0% .* in 1\.00 ms; export it with ONNX",
        ),
        (
            pairs_costing(9.5, 10, wrong=300),
            {"min_agreement": 0.9},
            r"is faster than the unpruned model alone, which takes 10\.00 ms; ask for less",
        ),
        (
            unpruned_twice(4, 9),
            {"min_agreement": 0.9},
            r"is faster than the unpruned model alone, which takes 4\.00 ms; ask for less",
        ),
        (
            pairs_costing(1, 10, wrong=1),
            {"max_ms": 0.5},
            r"takes at most 0\.5 ms: the fastest model alone takes 1\.00 ms",
        ),
        (pairs_costing(1, 10, wrong=1), {"min_agreement": 0.999}, "has too few rows to prove it"),
        (pairs_costing(1, 10, wrong=1), {"min_metric": 0.9999}, "has accuracy >= 0.9999 with 95%"),
    ],
)
def test_where_there_is_no_cascade_it_is_said_why(
    launched: Run, pairs: list[CascadePair], aim: dict[str, float], message: str
) -> None:
    with pytest.raises(RunError, match=message):
        _chosen(launched, pairs, Gate.of("accuracy", 0.99, aim))
