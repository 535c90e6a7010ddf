"""Every study loads, is named after its file, and asks a question."""

from __future__ import annotations

from pathlib import Path

import pytest

import studies
from objectives.task import Task, load
from orchestrator.study_file import load_study

FILES = sorted(
    path for path in Path(studies.__file__).parent.glob("*.py") if path.name != "__init__.py"
)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_study_loads_and_bears_its_files_name(path: Path) -> None:
    study = load_study(path)
    assert study.name == path.stem.replace("_", "-")
    opening = path.read_text(encoding="utf-8").splitlines()[0]
    assert opening.startswith('"""')
    assert opening.endswith('?"""')


def test_the_quickstart_has_three_sentiments_in_four_disjoint_roles() -> None:
    task = load_study(Path(studies.__file__).parent / "quickstart.py").task
    assert isinstance(task, Task)
    text = load(task)
    assert list(text.label_names) == ["negative", "neutral", "positive"]
    assert {role: len(examples.texts) for role, examples in text.roles.items()} == {
        "train": task.train,
        "alpha": task.alpha,
        "select": task.select,
        "heldout": task.heldout,
    }
    everything = [row for examples in text.roles.values() for row in examples.texts]
    assert len(set(everything)) == len(everything)
