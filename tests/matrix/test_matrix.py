"""The conformance matrix: each combination ends with a model that is read back, or is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from transformers import AutoTokenizer

from objectives.workbench.workbench import Workbench
from tests.matrix.combinations import Combination, Models, combinations, diagonal, run_whole

DIAGONAL = diagonal("cpu")
OTHERS = [one for one in combinations() if one.device == "cpu" and one not in DIAGONAL]


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
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a worker of the tests runs its combinations, which share a cache."""
    return tmp_path_factory.mktemp("matrix")


@pytest.mark.parametrize("one", DIAGONAL, ids=lambda one: one.name)
def test_one_combination_of_each_method(one: Combination, models: Models, folder: Path) -> None:
    run_whole(one, models, folder)


@pytest.mark.slow
@pytest.mark.parametrize("one", OTHERS, ids=lambda one: one.name)
def test_all_others(one: Combination, models: Models, folder: Path) -> None:
    run_whole(one, models, folder)
