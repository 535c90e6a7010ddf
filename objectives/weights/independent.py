"""A population on its way through the stages: search with masks, cut, distil what is left.

How alpha learns is not known here: see `alpha.py`.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from objectives.device import matmul_dtype, to_device
from objectives.problem import Problem
from objectives.progress import Progress
from objectives.search_method import CurvePoint, Outcome, SearchFailure
from objectives.staged_method import Staged
from objectives.students.bert.architecture import BertArchitecture
from objectives.students.bert.cutting import cut
from objectives.students.bert.pretrained import Classifier, is_cut
from objectives.students.bert.pruned_bert import PrunedBertForSequenceClassification
from objectives.students.bert.quantising import quantised, round_embeddings
from objectives.training.population import EMBEDDINGS, Population
from objectives.training.stage_training import BestWeights, Masks, StageTraining, steps_in
from objectives.training.teacher_states import keep_states
from objectives.weights.alpha import Alpha


def staged_search(
    members: Sequence[Staged],
    problem: Problem,
    alpha: Alpha,
    *,
    seed: int,
    progress: Progress,
    students: Sequence[Classifier] | None = None,
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

    Yields:
        One outcome for each member.
    """
    members[0].check_shapes(problem.student.config, problem.teacher.config)
    students = students or [problem.student] * len(members)
    run = _Run(members, problem, alpha, seed, progress, students)
    if any(stage.loss == "prediction+hidden" for stage in run.stages):
        keep_states(problem, run.dtype, progress)
    run.search()
    together = members[0].cut_together
    for group in _groups(run.slots, problem.device) if together else [[s] for s in run.slots]:
        yield from run.finish(group)


def not_finite(slot: int, curve: Sequence[CurvePoint]) -> SearchFailure | None:
    """What is told of a student one of whose losses is not finite."""
    for point in curve:
        if not math.isfinite(float(point["loss"])):
            return SearchFailure(
                slot,
                f"the loss is {point['loss']} at step {point['step']} of stage {point['stage']}",
            )
    return None


def _groups(slots: Sequence[int], device: str) -> list[Sequence[int]]:
    """The slots that train together once they are cut.

    A GPU trains all as one program; a CPU gains nothing by that and would pay for the padding.
    """
    return [slots] if device.startswith("cuda") else [[slot] for slot in slots]


class _Run:
    """One population at work."""

    def __init__(
        self,
        members: Sequence[Staged],
        problem: Problem,
        alpha: Alpha,
        seed: int,
        progress: Progress,
        students: Sequence[Classifier],
    ):
        self.members, self.problem, self.alpha = members, problem, alpha
        self.progress, self.students = progress, students
        self.stages = members[0].stages
        self.training = partial(StageTraining, problem, batch_size=members[0].batch_size, seed=seed)
        self.search_steps = sum(self.steps(stage.epochs) for stage in self.stages if stage.searches)
        self.dtype = matmul_dtype(members[0].precision, problem.device)
        self.slots = range(len(members))
        self.population: Population
        """Of those that search; let go when the last of them is cut."""
        self.curves: list[list[CurvePoint]] = [[] for _ in members]

    def search(self) -> None:
        """Train weights and alpha of all students through the stages that search."""
        stages = [stage for stage in self.stages if stage.searches]
        done = 0
        for number, stage in enumerate(stages):
            if stage.start == "student" or number == 0:
                self.population = Population.of(self.students, self.dtype)
            rates = [self._rate(slot, number, None) for slot in self.slots]
            training = self.training(self.slots, self.population, stage, rates, None)
            for batch in training.batches(number, self.progress):
                progress, done = done / self.search_steps, done + 1
                masks = self.alpha.masks(progress)
                own = masks if self.alpha.from_train else _detached(masks)
                loss = training.step(batch, own)
                training.measured.append(
                    {"loss": loss, **self.alpha.learn(training, masks, progress)}
                )
                self.progress.advance()
            self._note(training)

    def _note(self, training: StageTraining) -> None:
        """Keep the curves of a stage."""
        for slot, curve in training.curves().items():
            self.curves[slot].extend(curve)

    def finish(self, slots: Sequence[int]) -> Iterator[Outcome]:
        """Discretise, cut and distil these students, as one population."""
        going: list[int] = []
        architectures: dict[int, BertArchitecture] = {}
        for slot in slots:
            failure = not_finite(slot, self.curves[slot])
            if failure:
                yield failure
            else:
                try:
                    architectures[slot] = self.alpha.architecture(slot)
                    going.append(slot)
                except FloatingPointError as error:
                    yield SearchFailure(slot, str(error))
        if not going:
            return
        models = self._distil(self._cut_out(slots, going, architectures), architectures)
        for slot in going:
            failure = not_finite(slot, self.curves[slot])
            if failure:
                yield failure
            elif not _all_finite(models[slot].parameters()):
                yield SearchFailure(slot, "its weights are nan or infinite after the last stage")
            else:
                _own_embeddings(models[slot])
                member, units, curve = self.members[slot], architectures[slot], self.curves[slot]
                yield member.result(slot, self.problem, models[slot], units, curve)

    def _distil(
        self,
        models: dict[int, PrunedBertForSequenceClassification],
        architectures: dict[int, BertArchitecture],
    ) -> dict[int, PrunedBertForSequenceClassification]:
        """Take cut models through the stages after the search. Their architectures change where a
        method changes its models on the way."""
        if not any(
            self._rate(slot, number, architectures[slot])
            for slot in models
            for number, stage in enumerate(self.stages)
            if not stage.searches
        ):
            return models
        for number, stage in enumerate(self.stages):
            if stage.searches:
                continue
            if stage.start == "student":
                states = {slot: self.students[slot].state_dict() for slot in models}
                models = self._cut(states, architectures)
            for slot, model in models.items():
                models[slot], architectures[slot] = self.members[slot].entering(
                    stage, model, architectures[slot], self.problem
                )
            self._recover(number, models, architectures)
        return models

    def _cut_out(
        self,
        slots: Sequence[int],
        going: Sequence[int],
        architectures: Mapping[int, BertArchitecture],
    ) -> dict[int, PrunedBertForSequenceClassification]:
        """The models of those of a group that go on; after the last group nobody is left uncut."""
        models = self._cut({slot: self._searched(slot) for slot in going}, architectures)
        if self.search_steps and self.slots[-1] in slots:
            del self.population
        return models

    def _searched(self, slot: int) -> Mapping[str, Tensor]:
        """The weights of a student as the search leaves them."""
        if not self.search_steps:
            return self.students[slot].state_dict()
        return self.population.slot(slot)

    def _recover(
        self,
        number: int,
        models: Mapping[int, PrunedBertForSequenceClassification],
        architectures: Mapping[int, BertArchitecture],
    ) -> None:
        """Train cut models in one stage."""
        stage = self.stages[number]
        learned = {
            slot: self.members[slot].in_bits(units) if stage.quantised else units
            for slot, units in architectures.items()
        }
        training = self._training_of(number, models, learned)
        best = None
        if stage.keep == "best":
            best = BestWeights(
                models,
                lambda slot, model: self.problem.select_score(quantised(model, learned[slot])),
            )
        for step, batch in enumerate(training.batches(number, self.progress), start=1):
            training.measured.append({"loss": training.step(batch, {})})
            self.progress.advance()
            if best and (step == training.steps or step % self.steps(1) == 0):
                best.take(training)
        self._note(training)
        for slot in training.slots:
            models[slot].load_state_dict(training.state(slot))
        if best:
            best.restore()

    def _training_of(
        self,
        number: int,
        models: Mapping[int, PrunedBertForSequenceClassification],
        architectures: Mapping[int, BertArchitecture],
    ) -> StageTraining:
        """The stage of this number, of cut models whose weights learn with these bits."""
        for slot, model in models.items():
            round_embeddings(model, architectures[slot].embedding_bits)
        own = [architectures[slot] for slot in models]
        population = Population.of(list(models.values()), self.dtype)
        return self.training(
            list(models),
            replace(population, rounding=tuple(own)),
            self.stages[number],
            [self._rate(slot, number, architectures[slot]) for slot in models],
            own,
        )

    def _rate(self, slot: int, stage: int, architecture: BertArchitecture | None) -> float:
        """The peak of a student's learning rate in the stage of this number."""
        member = self.members[slot]
        own = member.stages[stage]
        share = 1.0 if own.quantised else member.rate_share(self.problem, architecture)
        return own.learning_rate * share

    def _cut(
        self,
        states: Mapping[int, Mapping[str, Tensor]],
        architectures: Mapping[int, BertArchitecture],
    ) -> dict[int, PrunedBertForSequenceClassification]:
        """By slot. Their embeddings, which are frozen, lie in the memory of the students'."""
        config, device = self.problem.student.config, self.problem.device
        models = {}
        for slot, state in states.items():
            student = self.students[slot]
            if is_cut(student):
                model = copy.deepcopy(student)
            else:
                model = to_device(cut(state, config, architectures[slot]), device)
            for name, weight in model.named_parameters():
                if name.startswith(EMBEDDINGS):
                    weight.data = state[name]
            models[slot] = model
        return models

    def steps(self, epochs: float) -> int:
        """Steps in so many passes over the train split."""
        return steps_in(epochs, self.problem, self.members[0].batch_size)


def _own_embeddings(model: PrunedBertForSequenceClassification) -> None:
    """A result shares nothing: whoever trains it on changes nobody else."""
    for name, weight in model.named_parameters():
        if name.startswith(EMBEDDINGS):
            weight.data = weight.data.clone()


def _detached(masks: Masks) -> Masks:
    return {space: mask.detach() for space, mask in masks.items()}


def _all_finite(weights: Iterable[Tensor]) -> bool:
    return bool(torch.stack([weight.isfinite().all() for weight in weights]).all())
