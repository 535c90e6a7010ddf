"""Labels that look wrong and may be meant are told of; all others are not."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from objectives.text.task import ROLES, Examples, LabelledText
from objectives.workbench.inputs import odd_labels


def labelled(names: Sequence[str], dtype: Any = np.int64, **roles: Sequence[float]) -> LabelledText:
    """Roles of these labels; one that is not given has each label once."""
    return LabelledText(
        {
            role: Examples([], np.array(roles.get(role, range(len(names))), dtype=dtype))
            for role in ROLES
        },
        names,
    )


def test_labels_that_differ_in_blanks_or_case_alone_are_named_together() -> None:
    (line,) = odd_labels(labelled(["No", "maybe", "no", "no ", "not sure", "notsure"]))
    assert line == (
        "labels that differ only in blanks or case are separate classes: 'No' and 'no' and "
        "'no ', 'not sure' and 'notsure'; write them alike if they mean the same"
    )


def test_of_many_that_differ_so_three_are_named() -> None:
    (line,) = odd_labels(labelled([name for letter in "abcde" for name in (letter, letter + " ")]))
    assert "'c' and 'c ' and 2 more such; write" in line


def test_a_label_that_no_row_of_train_has_is_named_with_the_rows_that_have_it() -> None:
    (line,) = odd_labels(
        labelled(
            ["mixed", "no", "yes"],
            train=[1, 2],
            alpha=[1, 2],
            select=[0, 1, 2],
            heldout=[0, 0, 1, 2],
        )
    )
    assert line == (
        "label 'mixed' has no train rows, but other rows (select 1, heldout 2): leave these out, "
        "correct their labels, or add train rows"
    )


def test_of_many_labels_that_train_lacks_three_are_named() -> None:
    (line,) = odd_labels(labelled(list("abcdef"), train=[0], alpha=[0], select=[0]))
    assert line.startswith(
        "labels 'b', 'c', 'd' and 2 more have no train rows, but other rows (heldout 5): "
    )


def test_a_label_that_no_row_has_and_numbers_are_not_odd() -> None:
    nowhere = {role: [0, 1] for role in ROLES}
    assert list(odd_labels(labelled(["no", "yes", "never"], **nowhere))) == []
    assert list(odd_labels(labelled(["grade"], np.float32, train=[0.5, 2], heldout=[3]))) == []


def test_labels_that_no_judging_row_has_are_named_in_one_line() -> None:
    (line,) = odd_labels(labelled(list("abcdef"), select=[0, 1], heldout=[0, 1, 3, 4, 5]))
    assert line == (
        "labels of so few rows that no metric can judge them: no selection row has 'c', 'd', 'e' "
        "and 1 more, no held-out row has 'c'"
    )


@pytest.mark.parametrize(
    ("ids", "shown"),
    [
        (["1", "2", "3"], "0 to 2 ('1', '2', '3'): each is a class, and output 0 stands for 1;"),
        (["-1", "0", "1", "2"], "0 to 3 ('-1', '0', '1' and 1 more): each is a class, and output"),
        (["0", "2"], "0 to 1 ('0', '2'): "),
    ],
)
def test_ids_that_are_not_those_of_outputs_are_named(ids: list[str], shown: str) -> None:
    (line,) = odd_labels(labelled(ids))
    assert line.startswith(f"the labels are ids other than {shown}")


def test_ids_of_outputs_and_words_are_not_odd() -> None:
    for names in (["0", "1", "2"], ["1 star", "2 stars"], ["2.5", "x"], ["1", "no"]):
        assert list(odd_labels(labelled(names))) == []
