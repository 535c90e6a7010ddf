"""Low fidelities: less training for the students, the same yardstick for all."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from datasets import Dataset

from objectives.errors import UserError
from objectives.methods.mask_search import MaskSearch
from objectives.session import Session
from objectives.text.task import Task
from objectives.workbench.fidelity import FULL, Fidelity
from objectives.workbench.inputs import read_inputs, share_of
from objectives.workbench.teacher import Teacher
from objectives.workbench.workbench import Workbench, prepare
from tests.chaos.quick import Quick
from tests.conftest import planted_rows


@pytest.fixture(scope="module")
def benches(
    planted_task: Task, tiny_bert: str, tmp_path_factory: pytest.TempPathFactory
) -> Mapping[str, Workbench]:
    """The tiny task at full and at a low fidelity, with one cache."""
    cache = tmp_path_factory.mktemp("cache")
    inputs = read_inputs(planted_task, Teacher(checkpoint=tiny_bert, epochs=1))
    return {
        name: prepare(inputs, session=Session(cache=cache), fidelity=fidelity)
        for name, fidelity in {"full": FULL, "low": Fidelity(data=0.25, max_length=8)}.items()
    }


def test_students_get_less_and_what_judges_them_is_the_same(
    benches: Mapping[str, Workbench], tmp_path: Path
) -> None:
    full, low = benches["full"], benches["low"]
    assert (len(full.problem.train), len(low.problem.train)) == (240, 60)
    assert len(low.problem.teacher_logits) == 60
    assert len(low.problem.alpha) == len(full.problem.alpha)
    for split in (low.problem.train, low.problem.alpha):
        assert max(map(len, split.input_ids)) == split.max_length == 8
    assert low.unpruned == full.unpruned
    assert low.select.input_ids == full.select.input_ids
    assert low.heldout.input_ids == full.heldout.input_ids
    assert low.problem.budget.cost == full.problem.budget.cost
    for mine, yours in zip(
        low.problem.teacher.parameters(), full.problem.teacher.parameters(), strict=True
    ):
        assert bool((mine == yours).all())


def test_a_text_alone_is_cut_off_before_its_last_token(benches: Mapping[str, Workbench]) -> None:
    full, low = (benches[name].problem.alpha for name in ("full", "low"))
    for whole, cut in zip(full.input_ids, low.input_ids, strict=True):
        assert list(cut) == [*whole[: min(len(whole), 8) - 1], whole[-1]]
    assert np.array_equal(full.labels, low.labels)


@pytest.fixture
def low_pairs(planted_task: Task, tiny_bert: str, tmp_path: Path) -> Workbench:
    """A task of two long sentences a row, for students of 12 tokens."""

    def pairs() -> Dataset:
        rows = planted_rows()
        long = rows.filter(lambda row: len(row["text"].split()) > 12)
        return long.add_column("first", ["bab " * 13] * len(long))

    task = replace(
        planted_task, data=pairs, text=("first", "text"), alpha=20, select=20, heldout=20
    )
    inputs = read_inputs(task, Teacher(checkpoint=tiny_bert, epochs=1))
    return prepare(inputs, session=Session(cache=tmp_path), fidelity=Fidelity(max_length=12))


def test_of_a_pair_both_texts_are_left(low_pairs: Workbench) -> None:
    separator = low_pairs.tokenizer.sep_token_id
    for split in (low_pairs.problem.train, low_pairs.problem.alpha):
        assert split.max_length == 12
        for ids, types in zip(split.input_ids, split.token_type_ids, strict=True):
            assert len(ids) == 12
            first = ids.index(separator)
            assert first in (5, 6)
            assert ids[-1] == separator
            assert list(types) == [0] * (first + 1) + [1] * (11 - first)


def test_a_share_is_a_draw_of_the_seed_in_order() -> None:
    less, other, again = (share_of(240, 0.5, seed) for seed in (1, 2, 1))
    assert len(less) == len(set(less.tolist())) == 120
    assert (np.diff(less) > 0).all()
    assert np.array_equal(less, again)
    assert not np.array_equal(less, other)


def test_epochs_are_multiplied() -> None:
    method = MaskSearch()
    fewer = method.scale_epochs(0.5)
    assert [stage.epochs for stage in fewer.stages] == [s.epochs / 2 for s in method.stages]
    assert replace(fewer, stages=method.stages) == method
    assert method.scale_epochs(1) == method
    assert Quick().scale_epochs(1) == Quick()
    with pytest.raises(UserError, match="Quick trains nothing"):
        Quick().scale_epochs(0.5)


@pytest.mark.parametrize("wrong", [{"data": 0}, {"data": 1.5}, {"epochs": 0}, {"max_length": 3}])
def test_a_fidelity_out_of_range_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(UserError, match=f"Fidelity.{next(iter(wrong))} is"):
        Fidelity(**wrong)  # type: ignore[arg-type]
