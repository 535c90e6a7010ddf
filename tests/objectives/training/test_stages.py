"""Stages as data: what is refused, and the source's four steps."""

from typing import Any

import pytest

from objectives.errors import UserError
from objectives.training.stages import FOUR_STEPS, Stage, check_order


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("epochs", 0),
        ("epochs", "3"),
        ("learning_rate", -1e-4),
        ("temperature", 0),
        ("schedule", "cosine"),
        ("loss", "hidden"),
        ("start", "general"),
        ("keep", "first"),
    ],
)
def test_a_value_out_of_range_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(UserError, match=rf"Stage\.{field} is {value!r}; it must be"):
        Stage(**{"name": "x", "epochs": 1.0, field: value})


def test_no_checkpoint_is_chosen_while_the_search_goes_on() -> None:
    with pytest.raises(UserError, match="after the search"):
        Stage(name="x", epochs=1, searches=True, keep="best")


def test_the_four_steps_are_those_of_the_source_but_for_the_checkpoint_of_the_second() -> None:
    check_order(FOUR_STEPS)
    assert [(s.loss, s.searches, s.start, s.schedule) for s in FOUR_STEPS] == [
        ("intermediate", True, "previous", "constant"),
        ("prediction", True, "previous", "linear"),
        ("intermediate", False, "student", "constant"),
        ("prediction", False, "previous", "linear"),
    ]
    assert {(stage.epochs, stage.learning_rate) for stage in FOUR_STEPS} == {(10, 5e-5)}
    assert [stage.keep for stage in FOUR_STEPS] == ["last", "last", "last", "best"]
