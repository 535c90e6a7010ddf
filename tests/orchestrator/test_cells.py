"""A study of students that are no BERT, from launch to a pipeline where maskfront is not."""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from optuna.distributions import CategoricalDistribution

from maskfront import CellSearch, Run, Study, launch
from objectives.delivery.bench import bench
from objectives.delivery.exported import load_model
from objectives.engines.onnx_model import open_session, run_session
from objectives.measures.cost import CostName
from objectives.students.cells import genotype
from objectives.students.cells.genotype import Genotype
from objectives.students.cells.graph import Node
from orchestrator.study_file import load_study

CHOICES = ("conv3", "none")
WITHOUT_MASKFRONT = """
import sys, json
from importlib.util import find_spec
site, folder, text = sys.argv[1:]
sys.path.append(site)
assert not find_spec("objectives")
from transformers import pipeline
classify = pipeline("text-classification", model=folder, device="cpu", trust_remote_code=True)
print(json.dumps(classify(text)))
"""


@pytest.fixture(scope="module")
def study(tiny_study_file: Path) -> Study:
    """A trial for each row of operations, two of which are one model."""
    method = CellSearch(width=16, operations=("conv3", "conv3"), epochs=1, batch_size=16)
    space = {f"operations[{place}]": CategoricalDistribution(CHOICES) for place in range(2)}
    first = tuple(
        {"operations[0]": one, "operations[1]": two} for one in CHOICES for two in CHOICES
    )
    plain = load_study(tiny_study_file)
    return replace(plain, method=method, space=space, first=first, trials=4, population=4)


@pytest.fixture(scope="module")
def run(study: Study, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return launch(study, out=tmp_path_factory.mktemp("cells") / "run")


@pytest.mark.slow
def test_the_front_has_the_genotypes_that_were_asked_for(run: Run) -> None:
    assert len(run.finished) == 4
    for trial in run.finished:
        text = (run.folder / "trials" / f"{trial.number:05d}" / "architecture.json").read_text()
        asked = tuple(trial.knobs[f"operations[{place}]"] for place in range(2))
        assert Genotype.from_json(text) == Genotype(16, asked)
        assert trial.result.reached == trial.result.target_ratio
    assert "conv3" in (run.folder / "report.html").read_text()


@pytest.mark.slow
def test_a_trial_that_spells_a_model_otherwise_is_told_from_the_first(run: Run) -> None:
    (repeat,) = [trial for trial in run.finished if "repeats" in trial.attributes]
    other = next(t for t in run.finished if t.number == repeat.attributes["repeats"])
    assert repeat.result == other.result
    assert sorted(map(str, repeat.knobs.values())) == sorted(map(str, other.knobs.values()))
    folders = [run.folder / "trials" / f"{trial.number:05d}" for trial in (repeat, other)]
    for file in folders[1].rglob("*.*"):
        assert (folders[0] / file.relative_to(folders[1])).samefile(file)


def test_a_repeat_is_not_trained(study: Study, tmp_path: Path) -> None:
    first = ({"operations[0]": "conv3", "operations[1]": "none"},)
    once = replace(study, method=replace(study.method, epochs=0.1), first=first, trials=1)
    launch(once, out=tmp_path / "run", report=False)
    other = ({"operations[0]": "none", "operations[1]": "conv3"},)
    twice = replace(once, first=other, trials=2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CellSearch, "search", None)
        run = launch(twice, out=tmp_path / "run", report=False)
    assert len(run.finished) == 2


@pytest.mark.parametrize("cost", ["bytes", "params", "latency"])
def test_a_study_of_another_cost_has_a_front(study: Study, cost: CostName, tmp_path: Path) -> None:
    quick = replace(study.method, epochs=0.1)
    own = replace(study, method=quick, cost=cost, trials=1, population=1)
    run = launch(own, out=tmp_path / "run", report=False)
    assert run.front[0].result.cost_name == cost
    assert run.front[0].result.reached == run.front[0].result.target_ratio


def answered_without_maskfront(folder: Path, scratch: Path) -> float:
    """The score of a class that a pipeline gives where maskfront is not."""
    done = subprocess.run(
        [
            *(sys.executable, "-I", "-S", "-c", WITHOUT_MASKFRONT),
            *(sysconfig.get_path("purelib"), str(folder), "bab joy fel"),
        ],
        env={"HF_HOME": str(scratch / "hf"), "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (answer,) = json.loads(done.stdout.splitlines()[-1])
    return float(answer["score"])


@pytest.mark.slow
def test_a_model_runs_where_maskfront_is_not(run: Run, tmp_path: Path) -> None:
    trial = run.front[-1].number
    out = run.export(tmp_path / "model", trial=trial).folder
    assert answered_without_maskfront(out, tmp_path) > 0
    assert "import objectives.students.cells" in (out / "README.md").read_text()
    (timing,) = bench([out], batches=[1], lengths=[8], engines=["eager"], rounds=2).timings
    assert timing.flops > 0


@pytest.mark.slow
def test_a_study_names_the_places_of_a_graph(study: Study, tmp_path: Path) -> None:
    nodes = (Node((0,), ("conv3",)), Node((0, 0), ("gated", "identity")))
    places = {
        "nodes[1].inputs[0]": CategoricalDistribution((0, 1)),
        "nodes[1].combination": CategoricalDistribution(("add", "product")),
    }
    asked = {"nodes[1].inputs[0]": 1, "nodes[1].combination": "product"}
    method = CellSearch(width=16, nodes=nodes, epochs=0.1, batch_size=16)
    own = replace(study, method=method, space=places, first=(asked,), trials=1, population=1)
    run = launch(own, out=tmp_path / "run", report=False)
    wanted = Node((0, 1), ("identity", "gated"), "product")
    text = (run.folder / "trials" / "00000" / "architecture.json").read_text()
    assert Genotype.from_json(text).nodes == (nodes[0], wanted)
    out = run.export(tmp_path / "model", trial=0).folder
    assert answered_without_maskfront(out, tmp_path) > 0
    twins = {name: (out / name).read_text() for name in ("graph.py", "operations.py")}
    source = Path(genotype.__file__).parent
    assert twins == {name: (source / name).read_text() for name in twins}


@pytest.mark.slow
def test_a_recurrent_cell_is_exported_with_its_onnx_file(study: Study, tmp_path: Path) -> None:
    nodes = (Node((0,), ("tanh",)), Node((1,), ("relu",)))
    method = CellSearch(width=16, nodes=nodes, epochs=0.1, batch_size=16, recurrent=True)
    places = {"nodes[1].inputs[0]": CategoricalDistribution((0, 1))}
    own = replace(study, method=method, space=places, first=(), trials=1, population=1)
    run = launch(own, out=tmp_path / "run", report=False)
    out = run.export(tmp_path / "model", trial=0, onnx=True).folder
    model, kept = load_model(out), load_model(run.folder / "trials" / "00000" / "model")
    ids = torch.arange(1, 15).view(2, 7)
    given = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "token_type_ids": 0 * ids}
    wanted = kept(**given).logits.detach()
    assert model(**given).logits.equal(wanted)
    torch.testing.assert_close(run_session(open_session(out / "onnx/model.onnx"), given), wanted)
    assert answered_without_maskfront(out, tmp_path) > 0
    found = bench([out], batches=[1], lengths=[8], engines=["onnxruntime-int8"], rounds=1)
    assert not found.skipped
