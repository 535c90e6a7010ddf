"""The conformance matrix: each combination ends with a model that is read back, or is refused.

`make test` runs one study of each method. `make test-all` runs those in which each method meets
every cost, precision and kind of answers (of the searches for a cell, which differ in what they
choose alone, one is enough), and some on the stand-in for a GPU, where tests/gpu has every other
method. `make matrix` runs all of them on the CPU and one of each method on the stand-in, with
MATRIX=pairs those in which each method meets every pair.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer

from objectives.pruning.staged_method import StagedMethod
from objectives.workbench.workbench import Workbench
from tests.bert_variants import write_variant
from tests.conftest import MARKERS
from tests.gpu.stand_in import library
from tests.matrix.combinations import (
    METHODS,
    Combination,
    Models,
    combinations,
    diagonal,
    pairs,
    run_whole,
    shares_a_base,
    values,
)

WHOLE = "MATRIX" in os.environ
REAL = torch.version.cuda is not None
DIAGONAL = diagonal("cpu")
CUTS = [one for one in DIAGONAL if issubclass(METHODS[one.method], StagedMethod)]
WANTED = {"all": combinations, "pairs": pairs}.get(os.environ.get("MATRIX", ""), values)()
OTHERS = [
    one
    for one in WANTED
    if one.device == "cpu" and one not in DIAGONAL and (WHOLE or not shares_a_base(one.method))
]
ON_GPU = diagonal("cuda")[:: 1 if WHOLE else 4]


@pytest.fixture(scope="session")
def models(
    tiny_bert: str, workbench: Workbench, tmp_path_factory: pytest.TempPathFactory
) -> Models:
    """The checkpoints of the matrix."""
    folder = tmp_path_factory.mktemp("classifier")
    workbench.problem.teacher.save_pretrained(folder)
    AutoTokenizer.from_pretrained(tiny_bert).save_pretrained(folder)
    return Models(pretrained=tiny_bert, classifier=str(folder))


@pytest.fixture(scope="session")
def mpnets(tmp_path_factory: pytest.TempPathFactory) -> Models:
    """The same of MPNet."""
    folder = tmp_path_factory.mktemp("mpnet")
    labels = sorted(MARKERS.values())
    return Models(
        pretrained=write_variant("mpnet", folder / "pretrained"),
        classifier=write_variant("mpnet", folder / "classifier", labels),
    )


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a worker of the tests runs its combinations, which share a cache."""
    return tmp_path_factory.mktemp("matrix")


@pytest.mark.parametrize("one", DIAGONAL, ids=lambda one: one.name)
def test_one_combination_of_each_method(one: Combination, models: Models, folder: Path) -> None:
    run_whole(one, models, folder)


@pytest.mark.slow
@pytest.mark.parametrize("one", CUTS, ids=lambda one: one.name)
def test_one_combination_of_each_method_that_cuts_with_an_mpnet(
    one: Combination, mpnets: Models, tmp_path: Path
) -> None:
    run_whole(one, mpnets, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("one", OTHERS, ids=lambda one: one.name)
def test_the_others(one: Combination, models: Models, folder: Path) -> None:
    run_whole(one, models, folder)


@pytest.fixture(scope="session")
def preload(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What the environment of a process on the GPU has besides."""
    if REAL and not torch.cuda.is_available():
        pytest.skip("this torch was built for CUDA and finds no GPU")
    if not REAL and shutil.which("g++") is None:
        pytest.skip("no C++ compiler here, which the stand-in for a GPU needs: apt-get install g++")
    return {} if REAL else {"LD_PRELOAD": str(library(tmp_path_factory.mktemp("stand-in")))}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_on_a_gpu(models: Models, preload: dict[str, str], tmp_path: Path) -> None:
    """In one process: each takes seconds to begin."""
    names = [one.name for one in ON_GPU]
    subprocess.run(
        [
            *(sys.executable, "-m", "tests.matrix.driver"),
            *(models.pretrained, models.classifier, str(tmp_path), *names),
        ],
        cwd=Path(__file__).parents[2],
        env={**os.environ, **preload},
        check=True,
    )
    found = json.loads((tmp_path / "found.json").read_text())
    assert {name: what for name, what in found.items() if what} == {}
    assert list(found) == names
