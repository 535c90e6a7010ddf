"""From a trial to a model folder: whole, over nothing, and loaded where maskfront is not."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
import yaml
from huggingface_hub import metadata_load
from optuna.distributions import FloatDistribution
from transformers import AutoModelForSequenceClassification, BertForSequenceClassification, pipeline

from objectives.delivery import exported
from objectives.delivery.classify import Classifier
from objectives.engines import onnx_model
from objectives.engines.onnx_model import open_session, run_session
from objectives.errors import UserError
from objectives.methods.binary_bert import in_halves
from objectives.methods.mask_search import MaskSearch
from objectives.problem import Problem
from objectives.students.bert import BERT
from objectives.students.bert.architecture import BertArchitecture, LayerUnits
from objectives.students.bert.cutting import cut
from objectives.students.bert.pruned_bert import PrunedBertForSequenceClassification
from objectives.students.bert.quantising import quantised
from objectives.text.task import Task
from objectives.workbench.teacher import Teacher
from objectives.workbench.workbench import Workbench
from orchestrator.errors import RunError
from orchestrator.runs.records import RunRecord
from orchestrator.runs.results import markdown
from orchestrator.study import Study
from reports.exporting.card import model_card
from reports.exporting.export import check_free, export
from tests.conftest import TINY
from tests.reports.conftest import launched_from

FILES = {
    "README.md",
    "architecture.json",
    "config.json",
    "model.safetensors",
    "result.json",
    "tokenizer.json",
    "tokenizer_config.json",
}
TEXTS = ["bab joy fel gim", "grief", "toast bab bab", "fel"]
RAGGED = BertArchitecture(
    (
        LayerUnits(
            (0, 2),
            (1, 5, 40),
            query_key=((0, 3, 7), (1, 2, 3)),
            value=((4,), (0,)),
            query_inputs=(0, 9, 31),
        ),
        LayerUnits((), tuple(range(30))),
        LayerUnits((3,), ()),
    )
)
_BITS = RAGGED.with_bits([4, 8, 1], [8, 32, 4], 4)
PACKED = replace(_BITS, layers=(*_BITS.layers[:2], replace(_BITS.layers[2], halves=2)))
EVEN = BertArchitecture((LayerUnits(tuple(range(TINY.heads)), (2, 3, 5, 7)),) * TINY.layers)


@pytest.fixture(scope="module")
def folder(
    problem: Problem, workbench: Workbench, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """Of a run whose trial 4 is packed, whose trial 3 is ragged and whose trial 2 a plain BERT."""
    folder = tmp_path_factory.mktemp("runs") / "tiny"
    for number, units, architecture in ((4, RAGGED, PACKED), (3, RAGGED, RAGGED), (2, EVEN, EVEN)):
        trial = folder / "trials" / f"{number:05d}"
        model = cut(problem.student.state_dict(), problem.student.config, units)
        model = quantised(in_halves(model, architecture), architecture)
        model.save_pretrained(trial / "model")
        workbench.tokenizer.save_pretrained(trial / "model")
        (trial / "architecture.json").write_text(architecture.to_json())
        (trial / "result.json").write_text("{}")
        (trial / "curve.csv").write_text("stage,step\n")
    return folder


@pytest.fixture
def run(folder: Path, make_run: Any, make_trial: Any) -> RunRecord:
    """Trials 2, 3 and 4, which are on the disk."""
    trials = [make_trial(number, 100_000 * number + 200_000, 0.8) for number in (4, 3, 2)]
    record: RunRecord = make_run(trials, folder=folder)
    return record


@pytest.fixture
def own(run: RunRecord, folder: Path, tmp_path: Path) -> RunRecord:
    """The run in a folder that a test may spoil."""
    return replace(run, folder=shutil.copytree(folder, tmp_path / "run"))


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.mark.parametrize("exists", [False, True])
def test_a_ragged_model_comes_with_its_code(run: RunRecord, tmp_path: Path, exists: bool) -> None:
    out = tmp_path / "to" / "my-model"
    if exists:
        out.mkdir(parents=True)
    assert export(run, 3, out).folder == out
    assert names(out) == FILES | {"pruned_bert.py", "packing.py", "position_bias.py"}
    assert (out / "architecture.json").read_text() == RAGGED.to_json()
    assert names(out.parent) == {"my-model"}


def test_an_even_model_is_transformers_own(run: RunRecord, tmp_path: Path) -> None:
    out = export(run, 2, tmp_path / "plain").folder
    assert names(out) == FILES
    config = json.loads((out / "config.json").read_text())
    assert config["model_type"] == "bert"
    assert config["intermediate_size"] == 4
    assert not {"auto_map", "per_layer_config", "head_dim"} & set(config)
    model = AutoModelForSequenceClassification.from_pretrained(out)
    assert type(model) is BertForSequenceClassification


def test_exports_into_an_empty_current_folder(
    run: RunRecord, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    export(run, 2, Path("."))
    assert names(here) == FILES


WITHOUT_MASKFRONT = """
import sys, json
from importlib.util import find_spec
site, plain, ragged, packed, *texts = sys.argv[1:]
sys.path.append(site)
assert not [name for name in ("objectives", "orchestrator", "reports") if find_spec(name)]
import torch, transformers
from transformers import AutoModelForSequenceClassification, AutoTokenizer, pipeline
transformers.utils.logging.set_verbosity_error()
try:
    AutoModelForSequenceClassification.from_pretrained(ragged, trust_remote_code=False)
    sys.exit("it ran code that nobody trusted")
except ValueError:
    pass
for folder, trust in ((plain, False), (ragged, True), (packed, True)):
    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    model = AutoModelForSequenceClassification.from_pretrained(folder, trust_remote_code=trust)
    with torch.no_grad():
        logits = model(**tokenizer(texts, padding=True, return_tensors="pt")).logits
    classify = pipeline(
        "text-classification", model=folder, device="cpu", trust_remote_code=trust
    )
    answers = classify(texts, top_k=None, function_to_apply="none", batch_size=2)
    scores = [{answer["label"]: answer["score"] for answer in text} for text in answers]
    print(json.dumps([logits.tolist(), scores]))
"""


@pytest.mark.slow
def test_without_maskfront_it_gives_the_same_logits(
    run: RunRecord, folder: Path, workbench: Workbench, tmp_path: Path
) -> None:
    """In a Python that has the packages but, without their .pth files, nothing editable."""
    moved = []
    for trial in (2, 3, 4):
        out = export(run, trial, tmp_path / "model").folder
        moved.append(out.rename(tmp_path / f"moved {trial}"))
    done = subprocess.run(
        [
            *(sys.executable, "-I", "-S", "-c", WITHOUT_MASKFRONT),
            *(sysconfig.get_path("purelib"), *map(str, moved), *TEXTS),
        ],
        env={"HF_HOME": str(tmp_path / "hf"), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    inputs = workbench.tokenizer(TEXTS, padding=True, return_tensors="pt")
    for trial, line in zip((2, 3, 4), done.stdout.splitlines(), strict=True):
        logits, scores = json.loads(line)
        model = PrunedBertForSequenceClassification.from_pretrained(
            folder / "trials" / f"{trial:05d}" / "model"
        )
        with torch.no_grad():
            expected = model(**inputs).logits
        torch.testing.assert_close(torch.tensor(logits), expected, atol=1e-5, rtol=0)
        by_label = [[text[name] for name in model.config.label2id] for text in scores]
        torch.testing.assert_close(torch.tensor(by_label), expected, atol=1e-5, rtol=0)


def test_with_maskfront_it_needs_no_flag(run: RunRecord, tmp_path: Path) -> None:
    out = export(run, 3, tmp_path / "model").folder
    for trust in ({}, {"trust_remote_code": True}):
        model = AutoModelForSequenceClassification.from_pretrained(out, **trust)
        assert type(model) is PrunedBertForSequenceClassification
    classify = pipeline("text-classification", model=str(out), device="cpu")
    assert {answer["label"] for answer in classify(TEXTS)} <= set(model.config.label2id)


def test_the_card_says_what_it_is_and_was_made_from(run: RunRecord, tmp_path: Path) -> None:
    named = {"task": "a|b\nc", "data": "tweets()", "teacher": "hub/bert"}
    licensed = {**named, "teacher license": "apache-2.0"}
    out = export(replace(run, sources=licensed), 3, tmp_path / "model").folder
    card = (out / "README.md").read_text(encoding="utf-8")
    metadata = metadata_load(out / "README.md")
    assert metadata is not None
    assert metadata["license"] == "apache-2.0"
    assert metadata["pipeline_tag"] == "text-classification"
    for line in (
        "A BERT classifier at 50.0% of the FLOPs of the model that it was cut from",
        "`import objectives.students.bert` replaces the flag",
        "    trust_remote_code=True,\n    truncation=True,\n    max_length=16,\n)\n",
        'classify("a text")',
        "| accuracy, selection split | 0.8000 | 0.9000 |",
        "| accuracy, held-out split | 0.7900 | 0.8800 |",
        "| flops@16 | 500,000 | 1,000,000 |",
        "| params | 50,000 | 100,000 |",
        "| task | a\\|b c |",
        "| teacher license | apache-2.0 |",
        "| flops_weight | 0.3333 |",
        "| mode | soft |",
        "| heads in each layer | 1, 4 |",
    ):
        assert line in card
    plain = model_card(
        replace(run, sources=named), run.trials[0], BERT, plain=True, notes=["a note"]
    )
    assert "trust_remote_code" not in plain
    paired = replace(run, sources={**named, "text pair": "b"})
    card = model_card(paired, run.trials[0], BERT, plain=True, notes=[])
    assert 'classify({"text": "the first text", "text_pair": "the second"})' in card
    ensemble = replace(run, sources={**named, "teacher license": "apache-2.0, mit"})
    card = model_card(ensemble, run.trials[0], BERT, plain=True, notes=[])
    assert "license: other\nlicense_name: apache-2.0, mit\n" in card
    assert "license:" not in plain
    assert "The license of the teacher is unknown" in plain
    assert "\n- a note\n\n" in plain


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("<script>alert(1)</script>", "&lt;script&gt;alert(1)&lt;/script&gt;"),
        ("$a$", r"\$a\$"),
        ("| a | b", r"\| a \| b"),
        ("`rm` *all* ~~x~~ _now_", r"\`rm\` \*all\* \~\~x\~\~ \_now\_"),
        ("![a](http://b) [c]: d", r"![a\](http://b) [c\]: d"),
        ("a\n\n# b\r\u2028---\n", "a # b ---"),
        ("a\\", "a\\\\"),
        ("spaces[0] flops_weight = 5 & -0.5", "spaces[0] flops_weight = 5 &amp; -0.5"),
    ],
)
def test_no_name_is_taken_for_markdown_or_html(run: RunRecord, name: str, shown: str) -> None:
    trial = run.trials[0]
    named = {**run.sources, "task": name, "teacher license": name}
    knobs = {"mode": name}
    card = model_card(
        replace(run, name=name, sources=named, notes=(f"4 rows read; {name}",)),
        replace(trial, knobs=knobs),
        BERT,
        plain=True,
        notes=[name],
    )
    front, body = card.split("\n---\n", 1)
    assert yaml.safe_load(front.removeprefix("---"))["license"] == name
    for line in (
        f"# {shown}, trial 4",
        f"- {shown}",
        f"| task | {shown} |",
        f"| rows | 4 rows read; {shown} |",
        f"| mode | {shown} |",
    ):
        assert f"\n{line}\n" in body


def test_a_model_outside_its_budget_is_said_to_be(
    run: RunRecord, tmp_path: Path, make_trial: Any
) -> None:
    missed = replace(run, trials=(make_trial(3, 500_000, 0.8, target=0.2),))
    exported = export(missed, 3, tmp_path / "model")
    (note,) = exported.notes
    assert note == (
        "outside its budget, so it is not on the front: FLOPs ratio 0.5000, target 0.2000, "
        "give or take 5.0% of it"
    )
    assert f"- {note}\n" in (tmp_path / "model" / "README.md").read_text(encoding="utf-8")
    assert export(run, 3, tmp_path / "other").notes == ()


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("model", RunError, r"00003.*is gone"),
        ("model/model.safetensors", RunError, r"00003.*is gone"),
        ("model/tokenizer.json", UserError, "no tokenizer"),
        ("result.json", RunError, r"trial 3 is damaged: result\.json is gone; export another"),
    ],
)
def test_what_a_trial_lacks_is_named_and_nothing_is_left(
    own: RunRecord, tmp_path: Path, name: str, error: type[Exception], message: str
) -> None:
    path = own.folder / "trials" / "00003" / name
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    with pytest.raises(error, match=message):
        export(own, 3, tmp_path / "to" / "my-model")
    assert not list(tmp_path.glob("to/*"))


@pytest.mark.parametrize(
    "name", ["architecture.json", "result.json", "model/model.safetensors", "model/tokenizer.json"]
)
def test_a_damaged_trial_is_named(name: str, own: RunRecord, tmp_path: Path) -> None:
    file = own.folder / "trials" / "00003" / name
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    with pytest.raises(RunError, match=rf"00003': trial 3 is damaged: {name} is .*; export anothe"):
        export(own, 3, tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_never_overwrites(run: RunRecord, tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "thesis.txt").write_text("mine")
    for out in (folder, folder / "thesis.txt"):
        with pytest.raises(RunError, match="exists and is not an empty folder"):
            export(run, 3, out)
    assert names(folder) == {"thesis.txt"}
    assert (folder / "thesis.txt").read_text() == "mine"


def test_a_folder_that_cannot_be_made_is_refused_at_once(
    run: RunRecord, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("mine")
    monkeypatch.setattr(Path, "is_mount", lambda path: path.name == "mounted")
    monkeypatch.setattr(os, "access", lambda path, mode: path.name != "locked")
    for name in ("mounted", "locked"):
        (tmp_path / name).mkdir()
    for out, message in (
        (Path("~/model"), "begins with ~, which only a shell reads"),
        (tmp_path / "file" / "model", r"cannot be made in '.*file'"),
        (tmp_path / "locked" / "model", r"cannot be made in '.*locked'"),
        (tmp_path / "mounted", "is a mount point; name a folder in it"),
    ):
        with pytest.raises(RunError, match=message):
            check_free(out)


@pytest.mark.parametrize("place", ["there", "here", "beside"])
def test_what_comes_into_the_folder_meanwhile_stays(
    run: RunRecord, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    out = tmp_path / "mine"
    if place != "beside":
        out.mkdir()
    if place == "here":
        monkeypatch.chdir(out)
    write_model = exported.write_model

    def meanwhile(source: Path, unfinished: Path) -> Any:
        out.mkdir(exist_ok=True)
        (out / "config.json").write_text("mine")
        return write_model(source, unfinished)

    monkeypatch.setattr(exported, "write_model", meanwhile)
    with pytest.raises(RunError, match="exists and is not an empty folder; choose another"):
        export(run, 3, "." if place == "here" else out)
    assert {file.name: file.read_text() for file in out.iterdir()} == {"config.json": "mine"}
    assert names(tmp_path) == {"mine"}


def test_of_two_exports_at_once_the_first_to_end_has_the_folder(
    run: RunRecord, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, write_model = tmp_path / "mine", exported.write_model

    def meanwhile(source: Path, unfinished: Path) -> Any:
        monkeypatch.setattr(exported, "write_model", write_model)
        written = write_model(source, unfinished)
        assert export(run, 2, out).folder == out
        return written

    monkeypatch.setattr(exported, "write_model", meanwhile)
    with pytest.raises(RunError, match="exists and is not an empty folder"):
        export(run, 3, out)
    assert names(out) == FILES
    assert (out / "architecture.json").read_text() == EVEN.to_json()
    assert names(tmp_path) == {"mine"}


@pytest.fixture
def study(planted_task: Task, tiny_bert: str) -> Study:
    return Study(
        name="tiny",
        task=planted_task,
        teacher=Teacher(checkpoint=tiny_bert),
        method=MaskSearch(),
        space={"target_ratio": FloatDistribution(0.1, 1)},
    )


@pytest.mark.slow
def test_onnx_gives_torchs_logits_and_few_bits_say_what_they_lose(
    run: RunRecord, study: Study, planted_task: Task, workbench: Workbench, tmp_path: Path
) -> None:
    run = launched_from(run, study)
    exported = export(run, 3, tmp_path / "model", onnx=True, int8=study, int4=study)
    out = exported.folder
    files = ["model.onnx", "model_int8.onnx", "model_int4.onnx"]
    assert names(out / "onnx") == set(files)
    large, small, smaller = (onnx.load(out / "onnx" / file) for file in files)
    assert small.ByteSize() < large.ByteSize()
    kinds = {node.op_type for node in smaller.graph.node}
    assert {"MatMulNBits", "GatherBlockQuantized"} <= kinds
    inputs = workbench.tokenizer(TEXTS, padding=True, return_tensors="pt")
    model = AutoModelForSequenceClassification.from_pretrained(out)
    with torch.no_grad():
        expected = model(**inputs).logits
    logits = run_session(open_session(out / "onnx" / "model.onnx", 1), inputs)
    torch.testing.assert_close(logits, expected, atol=1e-4, rtol=0)
    nodes = {node.op_type for node in onnx.load(out / "onnx" / "model.onnx").graph.node}
    assert "Sum" in nodes
    assert "IsNaN" not in nodes
    of_onnx, *of_few, of_classify = exported.notes
    assert of_classify.startswith("classify.py: answers texts by onnx/model_int8.onnx")
    answers = Classifier(out)(TEXTS)
    assert {answer.label for answer in answers} <= set(model.config.label2id)
    score = workbench.score(model, RAGGED)
    assert of_onnx.startswith("onnx/model.onnx: ")
    for file, note in zip(files[1:], of_few, strict=True):
        assert note.startswith(f"onnx/{file}: ")
        assert f"accuracy {score.metric:.4f} -> " in note
        assert f"(held out {score.heldout_metric:.4f} -> " in note
    card = (out / "README.md").read_text(encoding="utf-8")
    assert all(f"- {markdown(note)}\n" in card for note in exported.notes)


def test_int8_is_measured_on_the_runs_data(run: RunRecord, study: Study, tmp_path: Path) -> None:
    run = replace(run, definition={**run.definition, "task.data": "another"})
    with pytest.raises(RunError, match="study 'tiny' does not have the data of the run"):
        export(run, 3, tmp_path / "model", int8=study)
    assert names(tmp_path) == set()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "changed", "message"),
    [
        (
            "run_session",
            lambda *given: run_session(*given) + 0.01,
            r"different logits: they differ by 1\.0e-02 at batch 1, length 2",
        ),
        (
            "find_spec",
            lambda name: None,
            r"^onnx, onnxscript, onnxruntime are not installed; .* pip install .* '\.\[onnx\]'$",
        ),
    ],
)
def test_without_a_good_onnx_file_nothing_is_written(
    run: RunRecord,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    changed: Callable[..., Any],
    message: str,
) -> None:
    monkeypatch.setattr(onnx_model, name, changed)
    with pytest.raises(UserError, match=message):
        export(run, 2, tmp_path / "model", onnx=True)
    assert names(tmp_path) == set()
