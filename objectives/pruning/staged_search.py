"""A population on its way through the stages: search with masks, cut, distil what is left."""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from objectives.device import matmul_dtype
from objectives.problem import Problem
from objectives.progress import Progress
from objectives.pruning.staged_method import StagedMethod
from objectives.search_method import CurvePoint, Outcome, SearchFailure, not_finite
from objectives.students.bert.architecture import BertArchitecture
from objectives.students.bert.cutting import cut
from objectives.students.bert.pretrained import Classifier, is_cut
from objectives.students.bert.pruned_bert import PrunedBertForSequenceClassification
from objectives.students.bert.quantising import quantised, round_embeddings
from objectives.training.population import EMBEDDINGS, Population
from objectives.training.stage_training import BestWeights, Masks, StageTraining, steps_in
from objectives.training.teacher_states import keep_states


class Alpha(Protocol):
    """The architecture variables of K students, and how they learn."""

    from_train: bool
    """Alpha learns from the loss of the weights: the masks that `masks` gives carry its gradient,
    which the weights' backward pass adds up."""

    def masks(self, progress: float) -> Masks:
        """The current masks of the units.

        Args:
            progress: share of the search that is done, in [0, 1].

        Returns:
            Of each space (K, layers, *units_of(shape, space)), from 0 to 1.
        """

    def learn(self, training: StageTraining, masks: Masks, progress: float) -> Mapping[str, Tensor]:
        """Make a step, after the weights made theirs.

        Args:
            training: the stage at work; its `population` holds the K students.
            masks: those of this step.
            progress: share of the search that is done, in [0, 1].

        Returns:
            What was measured on the way, for the learning curve, each (K,).
        """

    def architecture(self, index: int) -> BertArchitecture:
        """The discrete answer of one student.

        Args:
            index: of the student in the population.

        Returns:
            The units that stay.

        Raises:
            FloatingPointError: if alpha is not finite.
        """


class Chosen:
    """An `Alpha` that has nothing to learn, where no stage searches."""

    from_train = False

    def __init__(self, architectures: Sequence[BertArchitecture]):
        self._architectures = architectures

    def masks(self, progress: float) -> Masks:
        raise AssertionError("no stage searches")

    def learn(self, training: StageTraining, masks: Masks, progress: float) -> Mapping[str, Tensor]:
        raise AssertionError("no stage searches")

    def architecture(self, index: int) -> BertArchitecture:
        return self._architectures[index]


Models = dict[int, PrunedBertForSequenceClassification]
Architectures = dict[int, BertArchitecture]
"""Both by the slots of the students."""


def staged_search(
    members: Sequence[StagedMethod],
    problem: Problem,
    alpha: Alpha,
    *,
    seed: int,
    progress: Progress,
    students: Sequence[Classifier] | None = None,
    curves: Sequence[Sequence[CurvePoint]] | None = None,
) -> Iterator[Outcome]:
    """Take all members through the stages of the first.

    Args:
        members: copies of one method that differ in fields of `per_slot` alone.
        problem: what the method works on.
        alpha: the architecture variables of all members.
        seed: of the study.
        progress: what is told of the run.
        students: what each member begins with, uncut, or cut already where no stage searches; by
            default all the student of the problem.
        curves: of a search of each member that is over; the stages that search are left out.

    Yields:
        One outcome for each member.
    """
    members[0].check_shapes(problem.student.config, problem.teacher.config)
    students = students or [problem.student] * len(members)
    run = _Run(members, problem, alpha, seed, progress, students)
    if any(stage.loss in ("prediction+hidden", "hint") for stage in run.stages):
        keep_states(problem, run.dtype, progress)
    if curves is None:
        run.search()
    else:
        run.curves, run.search_steps = [list(curve) for curve in curves], 0
    together = members[0].cut_together
    for group in _groups(run.slots, problem.device) if together else [[s] for s in run.slots]:
        yield from run.finish(group)


def _groups(slots: Sequence[int], device: str) -> list[Sequence[int]]:
    """Slots that train together once cut: on a GPU all; a CPU would only pay for the padding."""
    return [slots] if device.startswith("cuda") else [[slot] for slot in slots]


def _program(units: BertArchitecture) -> tuple[object, ...]:
    return units.order, *(layer.ranks for layer in units.layers)


class _Run:
    def __init__(
        self,
        members: Sequence[StagedMethod],
        problem: Problem,
        alpha: Alpha,
        seed: int,
        progress: Progress,
        students: Sequence[Classifier],
    ):
        self.members, self.problem, self.alpha = members, problem, alpha
        self.progress, self.students = progress, students
        self.stages = members[0].stages
        batch_size = members[0].batch_size
        self.training = partial(StageTraining, problem, batch_size=batch_size, seed=seed)
        self.search_steps = sum(
            steps_in(stage.epochs, problem, batch_size) for stage in self.stages if stage.searches
        )
        self.dtype = matmul_dtype(members[0].precision, problem.device)
        self.slots = range(len(members))
        self.population: Population
        """Population of the students that search; let go when the last of them is cut."""
        self.curves: list[list[CurvePoint]] = [[] for _ in members]

    def search(self) -> None:
        done = 0
        for number, stage in enumerate(self.stages):
            if not stage.searches:
                return
            if stage.start == "student" or number == 0:
                self.population = Population.of(self.students, self.dtype)
            rates = [self._rate(slot, number, None) for slot in self.slots]
            softer = [self.members[slot].stages[number].temperature for slot in self.slots]
            training = self.training(
                self.slots, self.population, stage, rates, None, temperatures=softer
            )
            for batch in training.batches(number, self.progress):
                progress, done = done / self.search_steps, done + 1
                masks = self.alpha.masks(progress)
                given = masks
                if not self.alpha.from_train:
                    given = {space: mask.detach() for space, mask in masks.items()}
                loss = training.step(batch, given)
                measured = self.alpha.learn(training, masks, progress)
                training.measured.append({"loss": loss, **measured})
                self.progress.advance()
            self._note(training)

    def _note(self, training: StageTraining) -> None:
        for slot, curve in training.curves().items():
            self.curves[slot].extend(curve)

    def finish(self, slots: Sequence[int]) -> Iterator[Outcome]:
        architectures: Architectures = {}
        for slot in slots:
            if failure := not_finite(slot, self.curves[slot]):
                yield failure
                continue
            try:
                architectures[slot] = self.alpha.architecture(slot)
            except FloatingPointError as error:
                yield SearchFailure(slot, str(error))
        models = self._cut(
            architectures, self.population.slot if self.search_steps else self._begun_with
        )
        if self.search_steps and self.slots[-1] in slots:
            del self.population
        # Those of one order of sublayers and of equal ranks together: they are one program.
        for program in dict.fromkeys(map(_program, architectures.values())):
            alike = {slot: u for slot, u in architectures.items() if _program(u) == program}
            of_program = {slot: models.pop(slot) for slot in alike}
            for slot, model in self._distil(of_program, alike).items():
                yield self._outcome(slot, model, alike[slot])

    def _outcome(
        self, slot: int, model: PrunedBertForSequenceClassification, units: BertArchitecture
    ) -> Outcome:
        curve = self.curves[slot]
        if failure := not_finite(slot, curve):
            return failure
        # The host waits for the device once.
        if not torch.stack([weight.isfinite().all() for weight in model.parameters()]).all():
            return SearchFailure(slot, "its weights are nan or infinite after the last stage")
        for weight in _embeddings(model).values():  # further training changes no other
            weight.data = weight.data.clone()
        return self.members[slot].result(slot, self.problem, model, units, curve)

    def _distil(self, models: Models, architectures: Architectures) -> Models:
        """Take cut models through the stages after the search, which may change architectures."""
        stages = [(n, stage) for n, stage in enumerate(self.stages) if not stage.searches]
        if not any(self._rate(slot, n, architectures[slot]) for slot in models for n, _ in stages):
            return models
        for number, stage in stages:
            if stage.start == "student":
                models = self._cut(architectures, self._begun_with)
            for slot, model in models.items():
                models[slot], architectures[slot] = self.members[slot].entering(
                    stage, model, architectures[slot], self.problem
                )
            self._recover(number, models, architectures)
        return models

    def _recover(self, number: int, models: Models, architectures: Architectures) -> None:
        """Train cut models in one stage, their weights with the bits in which they learn."""
        stage = self.stages[number]
        learned = architectures
        if stage.quantised:
            learned = {s: self.members[s].in_bits(units) for s, units in architectures.items()}
        for slot, model in models.items():
            round_embeddings(model, learned[slot].embedding_bits)
        population = Population.of(list(models.values()), self.dtype)
        if self.members[0].keeps_zeros:
            population.hold_zeros()
        training = self.training(
            list(models),
            replace(population, rounding=tuple(learned.values())),
            stage,
            [self._rate(slot, number, units) for slot, units in learned.items()],
            list(learned.values()),
            temperatures=[self.members[slot].stages[number].temperature for slot in models],
        )
        best, an_epoch = None, steps_in(1, self.problem, training.batch_size)
        if stage.keep == "best":
            best = BestWeights(
                models,
                lambda slot, model: self.problem.select_score(quantised(model, learned[slot])),
            )
        for step, batch in enumerate(training.batches(number, self.progress), start=1):
            training.measured.append({"loss": training.step(batch, {})})
            self.progress.advance()
            if best and (step == training.steps or step % an_epoch == 0):
                best.take(training)
        self._note(training)
        for slot in training.slots:
            models[slot].load_state_dict(training.state(slot))
        if best:
            best.restore()

    def _rate(self, slot: int, stage: int, architecture: BertArchitecture | None) -> float:
        """The peak of a student's learning rate in the stage of this number."""
        member, of_stage = self.members[slot], self.members[slot].stages[stage]
        share = 1.0 if of_stage.quantised else member.lr_scale(self.problem, architecture)
        return of_stage.learning_rate * share

    def _begun_with(self, slot: int) -> dict[str, Tensor]:
        return self.students[slot].state_dict()

    def _cut(self, chosen: Architectures, state_of: Callable[[int], dict[str, Tensor]]) -> Models:
        """Cut each student to its architecture; the embeddings, which are frozen, stay shared."""
        models, config = {}, self.problem.student.config
        for slot, units in chosen.items():
            student, state = self.students[slot], state_of(slot)
            model = copy.deepcopy(student) if is_cut(student) else cut(state, config, units)
            for name, weight in _embeddings(model).items():
                weight.data = state[name]
            models[slot] = model
        return models


def _embeddings(model: PrunedBertForSequenceClassification) -> dict[str, Tensor]:
    return {name: w for name, w in model.named_parameters() if name.startswith(EMBEDDINGS)}
