"""What a Study refuses when it is defined."""

from __future__ import annotations

from dataclasses import replace

import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from objectives.errors import UserError
from orchestrator import Study


@pytest.mark.parametrize(
    ("knob", "value"),
    [
        (FloatDistribution(0.3, 1, log=True), 0.2),
        (FloatDistribution(0.3, 1, log=True), -1.0),
        (FloatDistribution(0, 1), float("nan")),
        (FloatDistribution(0, 1), "large"),
        (FloatDistribution(0, 1), None),
        (FloatDistribution(0, 1, step=0.25), 0.3),
        (IntDistribution(1, 8), 1.5),
        (CategoricalDistribution(["soft", "hard"]), "sotf"),
    ],
)
def test_first_knobs_lie_in_the_space(study: Study, knob: FloatDistribution, value: object) -> None:
    with pytest.raises(UserError, match=r"Study\.first has target_ratio = .* does not hold; give"):
        replace(study, space={"target_ratio": knob}, first=({"target_ratio": value},))


@pytest.mark.parametrize(
    ("knob", "value"),
    [
        (FloatDistribution(0, 1), 1),
        (IntDistribution(1, 8), 8),
        (CategoricalDistribution([None, "hard"]), None),
    ],
)
def test_the_ends_of_the_space_lie_in_it(
    study: Study, knob: FloatDistribution, value: object
) -> None:
    first = ({"target_ratio": value},)
    assert replace(study, space={"target_ratio": knob}, first=first).first == first
