"""Stages at work: where weights start, what they learn, which checkpoint stays, who trains with
whom."""

import weakref
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import BertForSequenceClassification

import objectives.pruning.staged_search
from objectives.errors import UserError
from objectives.knobs import with_knobs
from objectives.measures.budget import Budget
from objectives.measures.cost import Flops
from objectives.methods.baselines.random_pruning import RandomPruning
from objectives.methods.fisher_search import FisherSearch
from objectives.methods.mask_search import MaskSearch
from objectives.problem import Problem
from objectives.pruning.staged_method import StagedMethod
from objectives.search_method import SearchFailure, SearchResult, populations
from objectives.students.bert.architecture import BertArchitecture, LayerUnits
from objectives.students.bert.cutting import cut, shape_of
from objectives.students.bert.pretrained import Checkpoint, Classifier
from objectives.students.bert.student import keep_layers, load_student
from objectives.text.data import Batch
from objectives.training.losses import hidden_loss, prediction_loss
from objectives.training.population import Population, Trace
from objectives.training.stage_training import BestWeights, Masks, StageTraining, steps_in
from objectives.training.stages import FOUR_STEPS, Loss, Stage
from tests.bert_variants import write_student
from tests.conftest import TINY, config_of
from tests.objectives.conformance import (
    assert_same,
    logits_of,
    run,
    search_alone,
)

SEARCH = Stage(name="search", epochs=0.5, searches=True, learning_rate=1e-3)
RECOVER = Stage(name="recover", epochs=2, learning_rate=1e-3)
QUICK = MaskSearch(
    batch_size=16, tolerance=0.1, target_ratio=0.3, grad_rescale=0.1, stages=(SEARCH, RECOVER)
)


def losses(result: SearchResult, stage: str) -> list[float]:
    return [float(point["loss"]) for point in result.curve if point["stage"] == stage]


def test_a_stage_that_starts_from_the_student_forgets_what_the_search_taught(
    problem: Problem,
) -> None:
    afresh = replace(RECOVER, start="student", epochs=0.01, learning_rate=1e-9)
    result = search_alone(replace(QUICK, stages=(SEARCH, afresh)), problem)
    model = cut(problem.student.state_dict(), problem.student.config, result.architecture)
    torch.testing.assert_close(
        logits_of(result, problem), logits_of(replace(result, model=model), problem)
    )
    learnt = search_alone(replace(QUICK, stages=(SEARCH,)), problem)
    assert result.architecture == learnt.architecture
    assert not torch.allclose(logits_of(learnt, problem), logits_of(result, problem), atol=0.01)


def test_the_rate_counts_times_the_share_that_is_cut(problem: Problem) -> None:
    still = replace(QUICK, target_ratio=1.0, stages=(replace(SEARCH, learning_rate=0.1),))
    result = search_alone(still, problem)
    untouched = replace(result, model=problem.student)
    torch.testing.assert_close(logits_of(result, problem), logits_of(untouched, problem))


def test_a_student_of_its_own_learns_at_the_full_rate(problem: Problem) -> None:
    fresh = replace(problem, student_is_new=True)
    method = replace(QUICK, target_ratio=1.0, stages=(SEARCH, RECOVER))
    assert losses(search_alone(method, fresh), "recover")
    assert not losses(search_alone(method, problem), "recover")  # it lost nothing


@pytest.mark.parametrize("keep", ["best", "last"])
def test_the_best_checkpoint_is_that_of_the_selection_split(
    problem: Problem, keep: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A metric that likes the first epoch best; every epoch's model is shown to it once."""
    seen: list[Tensor] = []

    def metric(model: Classifier) -> float:
        seen.append(model.classifier.weight.detach().clone())
        return -float(len(seen))

    judged = replace(problem, select_score=metric)
    stage = replace(RECOVER, keep=keep, epochs=3)
    result = search_alone(replace(QUICK, stages=(SEARCH, stage)), judged)
    assert len(seen) == (3 if keep == "best" else 0)
    if seen:
        assert torch.equal(result.model.classifier.weight, seen[0])
        assert not torch.equal(seen[0], seen[-1])


def test_students_that_were_cut_train_together_as_they_do_alone(
    problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU: one population of different architectures, at different rates."""
    members = [replace(QUICK, target_ratio=ratio) for ratio in (0.2, 0.4, 0.7)]
    alone = [search_alone(member, problem) for member in members]
    fuse_as_a_gpu_does(monkeypatch)
    for one, other in zip(alone, run(members, problem), strict=True):
        assert_same(one, other, problem)


def fuse_as_a_gpu_does(monkeypatch: pytest.MonkeyPatch) -> None:
    fused = partial(objectives.pruning.staged_search._groups, device="cuda")
    monkeypatch.setattr(
        objectives.pruning.staged_search, "_groups", lambda slots, device: fused(slots)
    )


@pytest.mark.parametrize("fused", [False, True], ids=["one by one", "together"])
@pytest.mark.parametrize(
    "method", [QUICK, MaskSearch(batch_size=16, tolerance=0.1)], ids=["fisher", "mask"]
)
def test_nothing_of_the_uncut_students_is_left_when_the_last_are_distilled(
    problem: Problem, monkeypatch: pytest.MonkeyPatch, method: StagedMethod, fused: bool
) -> None:
    if fused:
        fuse_as_a_gpu_does(monkeypatch)
    uncut: list[weakref.ref[Tensor]] = []
    alive: list[bool] = []
    step = StageTraining.step

    def watched(self: StageTraining, batch: Batch, masks: Masks) -> Tensor:
        if self.stage.searches:
            uncut[:] = [weakref.ref(weight) for weight in self.population.weights.values()]
        else:
            alive.append(any(weight() is not None for weight in uncut))
        return step(self, batch, masks)

    monkeypatch.setattr(StageTraining, "step", watched)
    members = [replace(method, target_ratio=r, stages=(SEARCH, RECOVER)) for r in (0.3, 0.5)]
    run(members, problem)
    assert not alive[-1]
    assert alive[0] is not fused


def test_cut_students_share_their_embeddings_until_they_are_results(
    problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    def places(model: Classifier) -> set[int]:
        return {weight.data_ptr() for weight in model.get_submodule("bert.embeddings").parameters()}

    seen: set[int] = set()
    take = BestWeights.take

    def watched(self: BestWeights, training: StageTraining) -> None:
        take(self, training)
        seen.update(*map(places, self.models.values()))

    fuse_as_a_gpu_does(monkeypatch)
    monkeypatch.setattr(BestWeights, "take", watched)
    best = replace(QUICK, stages=(SEARCH, replace(RECOVER, keep="best")))
    results = run([replace(best, target_ratio=ratio) for ratio in (0.3, 0.5)], problem)
    assert seen == places(problem.student)

    models = [result.model for result in results if isinstance(result, SearchResult)]
    own = [problem.student, *models]
    assert len(set().union(*map(places, own))) == 3 * len(places(problem.student))
    for model in models:
        for name, weight in problem.student.bert.embeddings.state_dict().items():
            assert torch.equal(model.state_dict()[f"bert.embeddings.{name}"], weight)


@pytest.mark.parametrize(
    ("epochs", "batch_size", "steps"),
    [(1, 16, 15), (2 / 3, 32, 5), (0.1 * 3, 8, 9), (0.5, 7, 18), (3, 239, 4), (1e-9, 16, 1)],
)
def test_steps_are_rounded_up_but_for_the_last_digits_of_a_float(
    problem: Problem, epochs: float, batch_size: int, steps: int
) -> None:
    assert len(problem.train) == 240
    assert steps_in(epochs, problem, batch_size) == steps


def test_an_alpha_that_is_not_finite_fails_its_own_student_alone(problem: Problem) -> None:
    """A FLOPs weight that overflows float32 spoils one alpha."""
    members = [
        MaskSearch(batch_size=16, tolerance=0.1, flops_weight=weight, stages=(SEARCH, RECOVER))
        for weight in (1e39, 1.0)
    ]
    spoilt, sound = run(members, problem)
    assert isinstance(spoilt, SearchFailure)
    assert isinstance(sound, SearchResult)


@pytest.fixture(scope="module")
def shallow(problem: Problem) -> Problem:
    """The same task with one layer of the teacher as the student."""
    student = keep_layers(problem.teacher, (1,))
    cost = replace(problem.budget.cost, shape=replace(problem.shape, layers=1))
    return replace(problem, student=student, budget=Budget(cost, cost.full), student_is_new=True)


@pytest.mark.parametrize("method", [QUICK, MaskSearch.preset("seed", batch_size=16, tolerance=0.1)])
def test_the_four_steps_run_and_each_learns(shallow: Problem, method: MaskSearch) -> None:
    stages = tuple(replace(stage, epochs=2, learning_rate=2e-3) for stage in FOUR_STEPS)
    result = search_alone(replace(method, stages=stages, target_ratio=0.6), shallow)
    for stage in stages:
        own = losses(result, stage.name)
        assert len(own) == 30
        assert sum(own[-5:]) < sum(own[:5]), stage.name


def test_hidden_states_are_learnt_beside_the_logits(problem: Problem) -> None:
    def recovered(loss: Loss) -> tuple[float, float]:
        stages = (Stage(name="recover", epochs=4, learning_rate=1e-3, loss=loss),)
        once = FisherSearch(batch_size=16, tolerance=0.1, stages=stages)
        model = search_alone(once, problem).model
        batch = problem.train.batch(np.arange(32), "cpu")
        student, teacher = Trace(), Trace()
        with torch.no_grad():
            logits = Population.of([model]).logits(batch, trace=student)
            wanted = Population.of([problem.teacher]).logits(batch, trace=teacher)
        return (
            prediction_loss(logits, wanted[0]).item(),
            hidden_loss(student, teacher, batch.attention_mask, {}).item(),
        )

    answers, inside = zip(recovered("prediction"), recovered("prediction+hidden"), strict=True)
    assert inside[1] < inside[0] / 2
    assert answers[1] < answers[0] + 0.05


@pytest.mark.parametrize("loss", ["intermediate", "prediction+hidden"])
def test_what_cut_students_learn_inside_is_counted_by_hand(problem: Problem, loss: Loss) -> None:
    """Attention scores, each head's from the teacher's that it was, and hidden states; or logits
    and ten times the hidden states. Two students that were cut differently, one population."""
    architectures = [
        BertArchitecture(
            (LayerUnits((1, 3), (0, 9)), LayerUnits((), (5,)), LayerUnits((0, 2, 3), ()))
        ),
        BertArchitecture(
            (LayerUnits((2,), (7,)), LayerUnits((1, 3), (4, 5)), LayerUnits((), (1,)))
        ),
    ]
    teacher = problem.teacher
    models = [cut(teacher.state_dict(), teacher.config, found) for found in architectures]
    stage = replace(RECOVER, loss=loss)
    population = Population.of(models)
    training = StageTraining(
        problem, [0, 1], population, stage, [0.5, 0.5], architectures, batch_size=16, seed=0
    )
    batch = next(problem.train.shuffled(16, 0, "cpu"))
    assert not batch.attention_mask.all()
    with torch.no_grad():
        found = training.loss(population, batch, {})
        expected = [
            inside_by_hand(model, architecture, teacher, batch, loss)
            for model, architecture in zip(models, architectures, strict=True)
        ]
    assert found.tolist() == pytest.approx(expected, rel=2e-3)


def inside_by_hand(
    model: Classifier,
    architecture: BertArchitecture,
    teacher: BertForSequenceClassification,
    batch: Batch,
    loss: Loss,
) -> float:
    """The loss of one cut student, from its own modules, one head at a time."""
    own, theirs = (
        bert(batch.input_ids, batch.attention_mask, output_hidden_states=True)
        for bert in (model, teacher)
    )
    seen = batch.attention_mask.float()
    pairs = seen[:, :, None] * seen[:, None, :]

    def scores(bert: Classifier, states: Tensor, layer: int, head: int) -> Tensor:
        columns = slice(head * TINY.head_dim, (head + 1) * TINY.head_dim)
        attention = f"bert.encoder.layer.{layer}.attention.self"
        query, key = (
            bert.get_submodule(f"{attention}.{name}")(states)[..., columns]
            for name in ("query", "key")
        )
        return query @ key.mT / TINY.head_dim**0.5

    in_hidden = in_scores = torch.zeros(())
    for layer, units in enumerate(architecture.layers):
        apart = (own.hidden_states[layer + 1] - theirs.hidden_states[layer + 1]).square().mean(-1)
        in_hidden = in_hidden + (apart * seen).sum() / seen.sum()
        for place, head in enumerate(units.heads):
            apart = (
                scores(model, own.hidden_states[layer], layer, place)
                - scores(teacher, theirs.hidden_states[layer], layer, head)
            ).square()
            in_scores = in_scores + (apart * pairs).sum() / pairs.sum() / len(units.heads)
    if loss == "intermediate":
        return (in_scores + in_hidden).item()
    wanted = theirs.logits.softmax(-1)
    return (10 * in_hidden - (wanted * own.logits.log_softmax(-1)).sum(-1).mean()).item()


@pytest.mark.parametrize("loss", ["intermediate", "prediction+hidden"])
def test_two_layers_of_three_learn_inside(problem: Problem, loss: Loss) -> None:
    two_of_three = replace(problem, student=keep_layers(problem.teacher, (0, 2)))
    cost = Flops(replace(TINY, layers=2), problem.seq_len)
    stages = (replace(SEARCH, loss=loss),)
    (result,) = run(
        [replace(QUICK, stages=stages)],
        replace(two_of_three, budget=replace(two_of_three.budget, cost=cost)),
    )
    assert isinstance(result, SearchResult)
    assert len(result.architecture.layers) == 2


@pytest.mark.parametrize("loss", ["intermediate", "prediction+hidden"])
def test_a_student_that_is_deeper_than_its_teacher_learns_answers_alone(
    problem: Problem, loss: Loss
) -> None:
    shallow = replace(problem, teacher=keep_layers(problem.teacher, (0, 2)))
    stages = (replace(SEARCH, loss=loss),)
    with pytest.raises(UserError, match=r"student has 3 layers, more than the teacher's 2"):
        run([replace(QUICK, stages=stages)], shallow)


def test_a_student_that_is_deeper_and_thinner_learns_by_a_hint(
    problem: Problem, tiny_bert: str, tmp_path: Path
) -> None:
    """FitNets: nothing above the middle layer moves, and what is there comes nearer."""
    names = [str(n) for n in range(TINY.labels)]
    folder = write_student(tiny_bert, tmp_path, names, layers=5)
    student = load_student(Checkpoint(folder), names, 0)
    fitted = replace(problem, student=student, student_is_new=True)
    hint = Stage(name="hint", epochs=4, learning_rate=3e-3, loss="hint")
    method = RandomPruning(target_ratio=1.0, batch_size=16, stages=(hint,))
    budget = Budget(Flops(shape_of(student.config), 8), Flops(shape_of(student.config), 8).full)
    found = search_alone(method, replace(fitted, budget=budget))
    course = [float(point["loss"]) for point in found.curve]
    assert sum(course[-10:]) < 0.8 * sum(course[:10])
    before, after = student.state_dict(), found.model.state_dict()
    moved = {name for name, weight in after.items() if not torch.equal(weight, before[name])}
    assert {int(name.split(".")[3]) for name in moved} == {0, 1, 2}
    FisherSearch(stages=(hint, replace(hint, name="said", loss="prediction"))).check_shapes(
        student.config, problem.teacher.config
    )


@pytest.mark.parametrize(("setting", "value"), [("temperature", 4.0), ("learning_rate", 3e-3)])
def test_a_setting_of_a_stage_is_each_students_own_and_fuses(
    problem: Problem, setting: str, value: float
) -> None:
    """A student beside another is what it is alone, and the other learns something else."""
    plain = replace(QUICK, target_ratio=0.5)
    other = with_knobs(plain, {f"stages.{plain.stages[-1].name}.{setting}": value})
    assert populations([plain, other]) == [[0, 1]]
    together = run([plain, other], problem)
    assert not logits_of(together[0], problem).allclose(logits_of(together[1], problem), atol=1e-4)
    for member, outcome in zip((plain, other), together, strict=True):
        assert_same(outcome, search_alone(member, problem), problem)


def test_heads_that_do_not_map_onto_one_another_are_refused() -> None:
    fewer, tiny = config_of(replace(TINY, heads=2, head_dim=16)), config_of(TINY)
    replace(QUICK, stages=(replace(SEARCH, loss="prediction+hidden"),)).check_shapes(fewer, tiny)
    stages = (SEARCH, replace(RECOVER, loss="intermediate"))
    with pytest.raises(UserError, match="the student has 2 a layer, the teacher 4"):
        replace(QUICK, stages=stages).check_shapes(fewer, tiny)
