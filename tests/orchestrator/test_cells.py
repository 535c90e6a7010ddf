"""A study of students that are no BERT, from launch to a pipeline where maskfront is not."""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
from dataclasses import replace
from pathlib import Path

import pytest
from optuna.distributions import CategoricalDistribution

from maskfront import CellSearch, Run, launch
from objectives.delivery.bench import bench
from objectives.students.cells.genotype import Genotype
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
def run(tiny_study_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A trial for each genotype."""
    method = CellSearch(width=16, operations=("conv3", "conv3"), epochs=1, batch_size=16)
    space = {f"operations[{place}]": CategoricalDistribution(CHOICES) for place in range(2)}
    first = tuple(
        {"operations[0]": one, "operations[1]": two} for one in CHOICES for two in CHOICES
    )
    study = replace(load_study(tiny_study_file), method=method, space=space, first=first, trials=4)
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
def test_a_model_runs_where_maskfront_is_not(run: Run, tmp_path: Path) -> None:
    trial = run.front[-1].number
    out = run.export(tmp_path / "model", trial=trial).folder
    done = subprocess.run(
        [
            *(sys.executable, "-I", "-S", "-c", WITHOUT_MASKFRONT),
            *(sysconfig.get_path("purelib"), str(out), "bab joy fel"),
        ],
        env={"HF_HOME": str(tmp_path / "hf"), "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (answer,) = json.loads(done.stdout.splitlines()[-1])
    assert answer["score"] > 0
    assert "import objectives.students.cells" in (out / "README.md").read_text()
    (timing,) = bench([out], batches=[1], lengths=[8], engines=["eager"], rounds=2).timings
    assert timing.flops > 0
