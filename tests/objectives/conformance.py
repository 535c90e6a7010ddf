"""What every search method must do. The test of a method derives from it and gives the method."""

import dataclasses
import math
import pickle
import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from objectives.errors import UserError
from objectives.knobs import matches, settings, with_knobs
from objectives.measures.budget import Budget
from objectives.measures.cost import Params
from objectives.measures.evaluate import count_parameters, predict
from objectives.problem import Problem
from objectives.search_method import (
    Outcome,
    SearchFailure,
    SearchMethod,
    SearchResult,
    populations,
)
from objectives.students.bert.architecture import FULL_BITS, BertArchitecture, BertShape
from objectives.students.bert.cutting import widths_of
from objectives.students.bert.linears import matmuls
from objectives.students.bert.pretrained import Classifier
from objectives.training.population import Population
from objectives.training.stage_training import StageTraining
from objectives.training.stages import Loss, Stage

ATOL = 1e-5
"""Two ways to the same logits may differ by this much."""
TRAINED_ATOL = 1e-4
"""The same after training, which adds up what the last digits of each step differ by."""
RECOVER = Stage(name="recover", epochs=0.5, learning_rate=1e-3)
"""A quick stage after the cut."""


def training_of(problem: Problem, loss: Loss = "prediction", *, students: int = 1) -> StageTraining:
    """Students of the problem, all alike, at the start of a stage that searches."""
    population = Population.of([problem.student] * students)
    stage = Stage(name="search", epochs=1, learning_rate=1e-3, loss=loss, searches=True)
    slots, rates = range(students), [0.5 * stage.learning_rate] * students
    return StageTraining(problem, slots, population, stage, rates, None, batch_size=16, seed=0)


class RecordingProgress:
    """A `Progress` that counts."""

    def __init__(self) -> None:
        self.wanted: list[int] = []
        self.taken: list[int] = []
        self.began: list[int] = []
        self.notes: list[str] = []

    @property
    def steps(self) -> int:
        return sum(self.taken)

    def note(self, line: str) -> None:
        self.notes.append(line)

    def begin(self, stage: str, steps: int, done: int = 0) -> None:
        assert stage
        self.wanted.append(steps)
        self.began.append(done)
        self.taken.append(done)

    def advance(self) -> None:
        self.taken[-1] += 1


class KilledError(Exception):
    pass


class KilledAt(RecordingProgress):
    """Ends everything after more steps than so many, counted from the start of the stage."""

    def __init__(self, step: int) -> None:
        super().__init__()
        self.step = step

    def advance(self) -> None:
        super().advance()
        if self.steps > self.step:
            raise KilledError


def run(
    members: Sequence[SearchMethod],
    problem: Problem,
    progress: RecordingProgress | None = None,
) -> list[Outcome]:
    """One search of the members; its outcomes in the order of the slots."""
    outcomes = type(members[0]).search(
        members, problem, seed=3, progress=progress or RecordingProgress()
    )
    return sorted(outcomes, key=lambda outcome: outcome.slot)


def search_alone(method: SearchMethod, problem: Problem) -> SearchResult:
    """The result of a population of one."""
    (outcome,) = run([method], problem)
    assert isinstance(outcome, SearchResult), outcome
    return outcome


def logits_of(result: SearchResult, problem: Problem) -> Tensor:
    """Logits of the cut model on the alpha split."""
    return predict(result.model, problem.alpha, "cpu")


def assert_same(one: Outcome, other: Outcome, problem: Problem) -> None:
    """Equal architectures, and logits that agree to float precision."""
    assert isinstance(one, SearchResult)
    assert isinstance(other, SearchResult)
    assert one.architecture == other.architecture
    torch.testing.assert_close(
        logits_of(one, problem), logits_of(other, problem), atol=TRAINED_ATOL, rtol=0
    )


def counted_flops(model: Classifier, seq_len: int) -> int:
    """FLOPs of one sequence as torch counts them; MATH, because it sees no other attention."""
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        model(input_ids=torch.ones(1, seq_len, dtype=torch.long))
    return counter.get_total_flops()


def assert_each_matmul_is_counted(
    model: Classifier, architecture: BertArchitecture, shape: BertShape
) -> None:
    """Torch counts in each module the FLOPs and the parameters that `matmuls` lists."""
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        model(input_ids=torch.ones(1, 7, dtype=torch.long))
    counted = {name: sum(ops.values()) for name, ops in counter.get_flop_counts().items()}
    listed = matmuls(architecture, shape, 7)
    assert sum(matmul.flops for matmul in listed) == counted["Global"]
    for matmul in listed:
        if matmul.weight:
            module = f"{type(model).__name__}.{matmul.name}"
            assert matmul.flops == counted.get(module, 0), matmul.name
            weights = model.get_submodule(matmul.name).parameters()
            assert matmul.params == sum(weight.numel() for weight in weights), matmul.name


def random_states() -> dict[str, int]:
    """A digest of each global generator's state."""
    return {
        "torch": hash(torch.get_rng_state().numpy().tobytes()),
        "numpy": hash(str(np.random.get_state())),
        "python": hash(random.getstate()),
    }


FINISHING = ("weight_bits", "input_bits", "vocabulary")


def per_slot_of(method: SearchMethod) -> dict[str, float]:
    """The settings in which the members of a population may differ, and their values."""
    return {
        place: value for place, value in settings(method).items() if matches(place, method.per_slot)
    }


class SearchMethodConformance:
    """Derive from it, or from `PruningConformance`, in tests/objectives/methods/test_NAME.py, and
    give `quick`: the method, with settings of seconds.

    `problem` is the tiny planted task of tests/conftest.py.
    """

    quick: SearchMethod

    @pytest.fixture(scope="class")
    @classmethod
    def method(cls) -> SearchMethod:
        return cls.quick

    @pytest.fixture(scope="class")
    @classmethod
    def population(cls, method: SearchMethod) -> list[SearchMethod]:
        """The method, and two that differ from it in every setting of `per_slot`, all numbers here,
        but for those of finished models: see pruning/test_few_bits.py."""
        tuned = {place: v for place, v in per_slot_of(method).items() if place not in FINISHING}
        return [
            with_knobs(
                method,
                {
                    place: value / factor if "." in place else value * factor
                    for place, value in tuned.items()
                },
            )
            for factor in (1.0, 0.85, 0.7)
        ]

    @pytest.fixture(scope="class")
    @classmethod
    def progress(cls) -> RecordingProgress:
        """What the search of `results` told."""
        return RecordingProgress()

    @pytest.fixture(scope="class")
    @classmethod
    def results(
        cls, population: list[SearchMethod], problem: Problem, progress: RecordingProgress
    ) -> list[SearchResult]:
        """The outcomes of the population, by slot, whose search left everything as it was."""
        student = {name: value.clone() for name, value in problem.student.state_dict().items()}
        teacher_logits, states = problem.teacher_logits.clone(), random_states()
        outcomes = run(population, problem, progress)
        assert random_states() == states
        torch.testing.assert_close(dict(problem.student.state_dict()), student, atol=0, rtol=0)
        assert torch.equal(problem.teacher_logits, teacher_logits)
        failed = [outcome for outcome in outcomes if not isinstance(outcome, SearchResult)]
        assert not failed
        return outcomes  # type: ignore[return-value]

    @pytest.fixture(scope="class")
    @classmethod
    def each_alone(cls, population: list[SearchMethod], problem: Problem) -> list[SearchResult]:
        """The results of as many populations of one."""
        return [search_alone(member, problem) for member in population]

    def test_lies_in_the_module_that_its_test_is_named_for(self, method: SearchMethod) -> None:
        name = type(self).__module__.rpartition(".test_")[2]
        folder, own = type(method).__module__.rsplit(".", 1)
        assert own == name
        assert folder == "objectives.methods" or folder.startswith("objectives.methods.")

    def test_is_a_frozen_keyword_only_dataclass(self, method: SearchMethod) -> None:
        assert "__dataclass_fields__" in vars(type(method))
        assert all(field.kw_only for field in dataclasses.fields(method))
        for field in dataclasses.fields(method):
            with pytest.raises(dataclasses.FrozenInstanceError):
                setattr(method, field.name, None)

    def test_fits_the_tiny_student(self, method: SearchMethod, problem: Problem) -> None:
        method.check_shapes(problem.student.config, problem.teacher.config)

    def test_survives_a_pickle(self, method: SearchMethod) -> None:
        assert pickle.loads(pickle.dumps(method)) == method

    def test_a_knob_that_is_not_a_number_is_refused(self, method: SearchMethod) -> None:
        for place in per_slot_of(method):
            with pytest.raises(UserError, match=place.rpartition(".")[2]):
                with_knobs(method, {place: math.nan})

    def test_members_that_differ_per_slot_are_one_population(
        self, population: list[SearchMethod]
    ) -> None:
        assert len(set(population)) == 3
        assert populations(population) == [[0, 1, 2]]

    def test_yields_one_outcome_for_each_member(self, results: list[SearchResult]) -> None:
        assert [result.slot for result in results] == [0, 1, 2]

    def test_every_point_of_a_curve_names_its_stage_and_step(
        self, results: list[SearchResult]
    ) -> None:
        for result in results:
            assert result.curve
            assert all({"stage", "step"} < set(point) for point in result.curve)

    def test_a_slot_in_a_population_is_the_same_trial_alone_with_the_same_seed(
        self, results: list[SearchResult], each_alone: list[SearchResult], problem: Problem
    ) -> None:
        for result, same in zip(results, each_alone, strict=True):
            assert_same(result, same, problem)

    def test_tells_of_every_step_that_it_announced(
        self, results: list[SearchResult], progress: RecordingProgress
    ) -> None:
        assert results
        assert progress.steps > 0
        assert progress.taken == progress.wanted

    def test_a_loss_that_is_not_finite_is_a_failure_with_its_reason(
        self, population: list[SearchMethod], problem: Problem
    ) -> None:
        poisoned = replace(
            problem, teacher_logits=torch.full_like(problem.teacher_logits, torch.nan)
        )
        outcomes = run(population, poisoned)
        assert [outcome.slot for outcome in outcomes] == [0, 1, 2]
        for outcome in outcomes:
            assert isinstance(outcome, SearchFailure)
            assert "nan" in outcome.reason

    def test_the_selection_split_decides_no_architecture(
        self, method: SearchMethod, each_alone: list[SearchResult], problem: Problem
    ) -> None:
        """It may choose among the checkpoints of one, which all score alike here."""
        blind = replace(problem, select_score=lambda model: 0.0)
        assert search_alone(method, blind).architecture == each_alone[0].architecture


class OnMpnet:
    """The conformance of a method with an MPNet as its teacher."""

    @pytest.fixture(scope="class")
    @classmethod
    def problem(cls, mpnet_problem: Problem) -> Problem:
        return mpnet_problem


class PruningConformance(SearchMethodConformance):
    """What methods must do besides that cut a BERT to a budget."""

    def test_an_architecture_fits_the_student_and_survives_json(
        self, results: list[SearchResult], problem: Problem
    ) -> None:
        for result in results:
            architecture, none = result.architecture, [FULL_BITS] * problem.shape.layers
            architecture.with_bits(none, none, FULL_BITS).check(problem.shape)
            assert BertArchitecture.from_json(architecture.to_json()) == architecture

    def test_a_model_is_cut_to_its_architecture(
        self, results: list[SearchResult], problem: Problem
    ) -> None:
        for result in results:
            assert widths_of(result.model.config) == result.architecture.widths(problem.shape)
            flops = counted_flops(result.model, problem.seq_len)
            assert flops == problem.budget.cost.exact(result.architecture) < problem.budget.full

    def test_meets_the_budget(self, results: list[SearchResult], problem: Problem) -> None:
        for result in results:
            ratio = problem.budget.ratio(result.architecture)
            assert abs(ratio - result.target_ratio) <= result.tolerance * result.target_ratio

    def test_meets_a_budget_in_parameters(self, method: SearchMethod, problem: Problem) -> None:
        embeddings = sum(p.numel() for p in problem.student.bert.embeddings.parameters())
        cost = Params(problem.shape, embeddings, 0)
        result = search_alone(method, replace(problem, budget=Budget(cost, cost.full)))
        ratio = count_parameters(result.model) / count_parameters(problem.student)
        assert abs(ratio - result.target_ratio) <= result.tolerance * result.target_ratio
