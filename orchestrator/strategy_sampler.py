"""A strategy over places as the sampler of a study, each knob being a place.

    Study(..., sampler=lambda seed: StrategySampler(Evolution, space, seed))

makes such a strategy at each launch and lets it learn all finished trials, in the order in which
they finished, by scores, the higher the better. With one objective a score is the value, its sign
changed where that is minimised. With several it is the rank of the trial's front (non-dominated
sorting, Deb et al. 2002): 1 for the first front, 0 for the last; trials that violate a constraint
come behind all others, in the order of their violation. Where a new trial moves others to another
front, a new strategy is made, and learns all of them by their new scores.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.samplers import BaseSampler
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from objectives.errors import UserError
from objectives.strategies.strategy import Candidate, Choice, Places, Scored, Strategy
from orchestrator.optuna_private import non_domination_ranks


class StrategySampler(BaseSampler):
    """Sampler that draws the categorical knobs of a trial as a strategy proposes them."""

    def __init__(
        self,
        make: Callable[[Places, int], Strategy[Scored]],
        space: Mapping[str, BaseDistribution],
        seed: int,
    ):
        """Make the sampler of one launch.

        Args:
            make: a strategy over these places, with this seed: a class of
                `objectives.strategies`, or a function where its settings are others.
            space: that of the study.
            seed: of the launch.

        Raises:
            UserError: for a knob that is not categorical.
        """
        self._space, self._places = dict(space), dict[str, tuple[Choice, ...]]()
        for name, knob in space.items():
            if not isinstance(knob, CategoricalDistribution):
                raise UserError(
                    f"StrategySampler has {name} = {knob}; a strategy over places needs "
                    "categorical knobs: give a CategoricalDistribution, or use another sampler"
                )
            self._places[name] = knob.choices
        self._make, self._seeds = make, np.random.default_rng(seed)
        self._anew()

    def infer_relative_search_space(
        self, study: optuna.Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        """Return the whole space, from the first trial on."""
        return self._space

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Learn the finished trials, and propose knobs that no running or failed trial has."""
        # Many workers ask one after the other; a strategy may propose the same until it learns.
        self._learn(study)
        others = (TrialState.RUNNING, TrialState.FAIL)
        taken = [t.params for t in study.get_trials(deepcopy=False, states=others)]
        taken = [params for params in taken if params.keys() >= self._places.keys()]
        for k in (1, len(taken) + 1):
            proposed = self._strategy.propose(k)
            free = [candidate for candidate in proposed if candidate not in taken]
            if free:
                break
        return dict((free or proposed)[0])

    def sample_independent(
        self,
        study: optuna.Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> NoReturn:
        """Refuse a knob outside the space: raises UserError."""
        raise UserError(
            f"StrategySampler has no place for {param_name}; give it the space of the study, which "
            "must have one method"
        )

    def _anew(self) -> None:
        self._strategy = self._make(self._places, int(self._seeds.integers(2**31)))
        self._learned: list[tuple[Candidate, float]] = []

    def _learn(self, study: optuna.Study) -> None:
        finished = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
        trials = [trial for trial in finished if trial.params.keys() >= self._places.keys()]
        trials.sort(key=lambda trial: (trial.datetime_complete, trial.number))
        candidates: list[Candidate] = [
            {name: trial.params[name] for name in self._places} for trial in trials
        ]
        scored = list(zip(candidates, _scores(study, trials), strict=True))
        if scored[: len(self._learned)] != self._learned:
            self._anew()
        self._strategy.learn(scored[len(self._learned) :])
        self._learned = scored


def _scores(study: optuna.Study, trials: Sequence[FrozenTrial]) -> list[float]:
    """Scores (trials,) as the module's docstring defines them."""
    signs = [1 if way == StudyDirection.MAXIMIZE else -1 for way in study.directions]
    values = np.array([trial.values for trial in trials]).reshape(-1, len(signs)) * signs
    if len(signs) == 1:
        return values[:, 0].tolist()  # type: ignore[no-any-return]
    violations = [sum(max(0.0, v) for v in trial.constraints.values()) for trial in trials]
    ranks = non_domination_ranks(-values, np.array(violations))
    return (1 - ranks / max(1, ranks.max(initial=0))).tolist()  # type: ignore[no-any-return]
