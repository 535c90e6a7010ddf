"""Search space of a method with its tuned settings: methods of trials, and refusals."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

from objectives.errors import UserError, did_you_mean
from objectives.knobs import settings, with_knobs
from objectives.problem import NeedsBertError
from objectives.search_method import SearchMethod
from orchestrator.runs.records import METHOD

if TYPE_CHECKING:
    from transformers.configuration_utils import PreTrainedConfig

# Combinations of extreme values that are looked at, to tell what a space allows.
_MOST_CORNERS = 4096
# Choices that come back from a storage as they went in: a tuple would be a list.
_STORED = (bool, int, float, str, type(None))


@dataclass(frozen=True)
class MethodSpace:
    """A method of a study with its own part of the study's space."""

    method: SearchMethod
    space: Mapping[str, BaseDistribution]  # by the paths of the method, without a prefix
    prefix: str  # of its hyperparameters in the study: "cut."; "" where there is but one method
    share: float  # of the training that a trial gets: `Fidelity.epochs`

    def trial_method(self, knobs: Mapping[str, Any]) -> SearchMethod:
        """The method of one trial. Raises UserError for a value out of a field's range."""
        return with_knobs(self.method, knobs).scale_epochs(self.share)

    def check(self) -> None:
        """Raise UserError unless each knob is a field, may have its extremes and has an effect."""
        fields = settings(self.method)
        for name, knob in self.space.items():
            shown = self.prefix + name
            if name not in fields:
                names = sorted(self.prefix + path for path in fields)
                raise UserError(
                    f"Study.space names '{shown}', which is not among "
                    f"{', '.join(names)}{did_you_mean(shown, names)}"
                )
            if not isinstance(knob, BaseDistribution):
                raise UserError(
                    f"Study.space has {shown} = {knob!r}; give an Optuna distribution, such as "
                    "FloatDistribution(0.1, 0.9)"
                )
            if not all(isinstance(value, _STORED) for value in extremes(knob)):
                raise UserError(
                    f"Study.space has {shown} = {knob}; choices must be numbers, strings, True, "
                    "False or None: an Optuna storage cannot keep others"
                )
        methods = self._extreme_methods()
        for name in self.space:
            inactive = [method.inactive().get(name) for method in methods]
            allowed = (self.trial_method(knobs) for knobs in self._corners() if self._allows(knobs))
            if all(inactive) and all(name in method.inactive() for method in allowed):
                raise UserError(
                    f"Study.space has {self.prefix}{name}, which would do nothing: {inactive[0]}"
                )

    def _extreme_methods(self) -> list[SearchMethod]:
        """The method, and copies with extreme values. Raises UserError for one always refused."""
        methods = [self.trial_method({})]
        for name, knob in self.space.items():
            for value in extremes(knob):
                try:
                    methods.append(self.trial_method({name: value}))
                except UserError as error:
                    if not any(self._allows({**others, name: value}) for others in self._corners()):
                        raise UserError(
                            f"Study.space has {self.prefix}{name} = {knob}, but {error}"
                        ) from error
        return methods

    def check_shapes(self, student: PreTrainedConfig, teacher: PreTrainedConfig) -> None:
        """See `Study.check_shapes`."""
        lowest = {name: next(iter(extremes(knob))) for name, knob in self.space.items()}
        tried = [{**lowest, name: v} for name, knob in self.space.items() for v in extremes(knob)]
        for knobs in tried or [lowest]:
            if self._allows(knobs):
                try:
                    self.trial_method(knobs).check_shapes(student, teacher)
                except NeedsBertError as error:
                    raise UserError(f"{type(self.method).__name__}: {error}") from error

    @property
    def least_vocabulary(self) -> float:
        """The smallest share of the word pieces that a trial may keep."""
        knob = self.space.get("vocabulary")
        return float(min(extremes(knob)) if knob else getattr(self.method, "vocabulary", 1))

    def _corners(self) -> Iterator[dict[str, Any]]:
        """All combinations of the knobs' extreme values; a random sample if there are too many."""
        each, draws = [*map(extremes, self.space.values())], random.Random(0)
        corners: Iterable[tuple[Any, ...]] = product(*each)
        if math.prod(map(len, each)) > _MOST_CORNERS:
            corners = (tuple(map(draws.choice, each)) for _ in range(_MOST_CORNERS))
        for values in corners:
            yield dict(zip(self.space, values, strict=True))

    def _allows(self, knobs: Mapping[str, Any]) -> bool:
        try:
            self.trial_method(knobs)
        except UserError:
            return False
        return True


def applies(knob: str, drawn: Mapping[str, Any]) -> bool:
    """Whether a trial that drew these values has this knob; it has none of another method."""
    return METHOD not in drawn or knob == METHOD or knob.startswith(f"{drawn[METHOD]}.")


def extremes(knob: BaseDistribution) -> tuple[Any, ...]:
    """The least and the largest value of a knob, or all of a categorical one."""
    if isinstance(knob, CategoricalDistribution):
        return knob.choices
    assert isinstance(knob, FloatDistribution | IntDistribution), knob
    return (knob.low, knob.high)
