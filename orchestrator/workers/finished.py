"""Finished trials by what decided them: an equal one is told from its result, not trained again."""

from collections.abc import Sequence

import optuna
from optuna.trial import TrialState

from objectives.search_method import SearchMethod
from orchestrator.optuna_private import all_trials
from orchestrator.runs.damage import damages
from orchestrator.runs.records import FinishedTrial, trial_record
from orchestrator.runs.run_folder import MODEL, RunFolder
from orchestrator.study import Study

NumberedMethod = tuple[int, SearchMethod]  # a trial's number and its method


class Finished:
    """The finished trials of a study, by the canonical spelling of their methods: all else that
    decides a result (data, teacher, seed) is the study's."""

    def __init__(self, study: Study, outer: optuna.Study, folder: RunFolder):
        self._study, self._outer, self._folder = study, outer, folder
        self._read: set[int] = set()
        self._numbers: dict[SearchMethod, list[int]] = {}

    def new_and_repeats(
        self, members: Sequence[NumberedMethod]
    ) -> tuple[list[NumberedMethod], list[NumberedMethod]]:
        """Split members into those to search and those with a twin, finished or among the
        others."""
        self._read_finished()
        new: dict[SearchMethod, NumberedMethod] = {}
        repeats = []
        for number, method in members:
            canonical = method.canonical()
            if canonical in new or canonical in self._numbers:
                repeats.append((number, method))
            else:
                new[canonical] = (number, method)
        return list(new.values()), repeats

    def twin_of(self, method: SearchMethod) -> FinishedTrial | None:
        """A finished trial of an equal method, whose files are whole."""
        self._read_finished()
        for number in self._numbers.get(method.canonical(), ()):
            record = trial_record(all_trials(self._outer)[number])
            folder = self._folder.trial(number)
            intact = (folder / MODEL).is_dir() and not damages(folder)
            if isinstance(record, FinishedTrial) and intact:
                return record
        return None

    def _read_finished(self) -> None:
        """Note the trials that have finished since the last look, each once."""
        for trial in self._outer.get_trials(deepcopy=False, states=(TrialState.COMPLETE,)):
            if trial.number not in self._read:
                self._read.add(trial.number)
                canonical = self._study.trial_method(trial.params).canonical()
                self._numbers.setdefault(canonical, []).append(trial.number)
