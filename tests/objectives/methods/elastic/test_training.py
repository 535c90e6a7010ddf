"""One training for all sizes: a slice is a mask is a cut, and what the gradients add up to."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from objectives.methods.elastic.training import ElasticTraining, rows_of
from objectives.problem import Problem
from objectives.progress import SilentProgress
from objectives.pruning.importance import importance_of_student
from objectives.pruning.slices import Model, Order, layers_at, row_masks, smaller
from objectives.students.bert.architecture import BertArchitecture
from objectives.students.bert.cutting import cut
from objectives.students.bert.quantising import quantised
from objectives.text.data import Batch
from objectives.training.losses import prediction_loss
from objectives.training.optimisation import Schedule
from objectives.training.population import Population
from objectives.training.stage_training import StageTraining
from objectives.training.stages import Loss, Stage
from tests.conftest import TINY
from tests.objectives.conformance import KilledAt, KilledError, RecordingProgress

ATOL = 1e-5
COUNTS = (
    ((4, 48), (4, 48), (4, 48)),
    ((3, 20), (1, 48), (2, 1)),
    ((2, 9), None, (4, 30)),
    ((0, 5), (4, 0), (1, 17)),
    ((1, 1), (0, 0), (0, 0)),
)
"""Heads and neurons of each layer of the tiny model, None of one that is dropped; of models from
whole to next to nothing."""


def stage(loss: Loss = "prediction+hidden", learning_rate: float = 1e-3) -> Stage:
    return Stage(name="elastic", epochs=1, learning_rate=learning_rate, loss=loss)


@pytest.fixture(scope="module")
def order(problem: Problem) -> Order:
    return Order.by_scores(TINY, importance_of_student(problem, ("heads", "ffn"), "logits"))


Counts = Sequence[tuple[int, int] | None]


def first_units(order: Order, counts: Counts) -> BertArchitecture:
    """The architecture that keeps so many heads and neurons of each layer, the first in order."""
    masks: dict[str, list[list[bool]]] = {"heads": [], "ffn": []}
    for layer, (heads, neurons) in enumerate(own or (0, 0) for own in counts):
        for space, units, kept in (("heads", order.heads, heads), ("ffn", order.ffn, neurons)):
            first = set(units[layer, :kept].tolist())
            masks[space].append([unit in first for unit in range(units.shape[1])])
    layers = [[own is not None] for own in counts]
    return BertArchitecture.from_masks(TINY, {**masks, "layers": layers})


def model_of(order: Order, counts: Counts) -> Model:
    return first_units(order, counts).widths(TINY)


def training_of(
    problem: Problem,
    order: Order,
    models: Sequence[Model],
    own: Stage,
    sizes: int = 1,
    bits: Sequence[int] = (),
) -> ElasticTraining:
    settings = {"sizes": sizes, "batch_size": 16, "seed": 0, "dtype": torch.float32, "bits": bits}
    return ElasticTraining(problem, order, models, own, **settings)


@pytest.fixture
def batch(problem: Problem) -> Batch:
    return next(problem.train.shuffled(16, 0, "cpu"))


def test_an_order_changes_no_answer_and_can_be_undone(
    problem: Problem, order: Order, batch: Batch
) -> None:
    state = problem.student.state_dict()
    ordered = order.applied(state)
    assert not ordered["bert.encoder.layer.0.output.dense.weight"].equal(
        state["bert.encoder.layer.0.output.dense.weight"]
    )
    back = order.reverse.applied(ordered)
    assert all(back[name].equal(weight) for name, weight in state.items())
    training = training_of(problem, order, [model_of(order, COUNTS[0])], stage())
    plain = Population.of([problem.student]).logits(batch)
    torch.testing.assert_close(training.population.logits(batch), plain, atol=ATOL, rtol=0)


@pytest.mark.parametrize("counts", COUNTS, ids=str)
def test_a_slice_is_a_mask_is_a_cut(
    problem: Problem, order: Order, batch: Batch, counts: Counts
) -> None:
    architecture = first_units(order, counts)
    population = training_of(problem, order, [], stage()).population
    model = architecture.widths(TINY)
    small = cut(problem.student.state_dict(), problem.student.config, architecture)
    wanted = Population.of([small]).logits(batch)
    whole = model_of(order, COUNTS[0])
    masks = row_masks([whole, model], whole, 16, "cpu")
    of_rows = population.logits(batch, row_masks=masks)[:, 1::2]
    torch.testing.assert_close(of_rows, wanted[:, 1::2], atol=ATOL, rtol=0)
    found = smaller(population, model).logits(batch)
    torch.testing.assert_close(found, wanted, atol=ATOL, rtol=0)


@pytest.mark.parametrize("counts", COUNTS, ids=str)
@pytest.mark.parametrize("bits", [8, 2])
def test_what_is_trained_in_few_bits_is_the_cut_model_in_these(
    problem: Problem, order: Order, batch: Batch, counts: Counts, bits: int
) -> None:
    """Each row has a scale of its own units alone; embeddings and inputs are rounded, too."""
    units = first_units(order, counts)
    training = training_of(problem, order, [], stage(), bits=(32, bits))
    found = training.sized(units.widths(TINY), bits).logits(batch)[0].detach()
    small = cut(problem.student.state_dict(), problem.student.config, units)
    packed = quantised(small, units.with_bits([bits] * 3, [8] * 3, bits))
    with torch.no_grad():
        apart = (found - packed(**batch.inputs).logits).abs()
        assert apart.median() < ATOL  # where a last digit turns a code, two ways part
        assert apart.max() < 0.1
        assert not found.allclose(small(**batch.inputs).logits, atol=10 * ATOL)


def test_bits_are_drawn_equally_often_and_all_weights_learn_through_them(
    problem: Problem, order: Order, batch: Batch
) -> None:
    models = [model_of(order, counts) for counts in COUNTS[:3]]
    training = training_of(problem, order, models, stage(), sizes=3, bits=(32, 8, 2))
    drawn = torch.tensor([training.draw_bits() for _ in range(400)])
    for few in (32, 8, 2):
        assert (drawn == few).float().mean(0).sub(1 / 3).abs().max() < 0.1
    whole, few = [], []
    for bits, found in (([32] * 3, whole), ([2, 32, 8], few)):
        found.append(training.gradients(batch, models, bits))
        found.append(gradients(training))
    assert (whole[0][1] - few[0][1]).abs() < ATOL
    assert abs(whole[0][0] - few[0][0]) > 0.01
    for name, gradient in few[1].items():
        assert gradient.any()
        assert not gradient.allclose(whole[1][name])


def gradients(training: ElasticTraining) -> dict[str, Tensor]:
    weights = training.population.weights
    found = {
        name: torch.zeros_like(weight) if weight.grad is None else weight.grad.clone()
        for name, weight in weights.items()
    }
    for weight in weights.values():
        weight.grad = None
    return found


def test_the_layers_at_a_depth_are_dynaberts() -> None:
    assert layers_at(0.5, 12) == [0, 2, 4, 6, 8, 10]
    assert layers_at(0.75, 12) == [0, 1, 2, 4, 5, 6, 8, 9, 10]
    assert layers_at(1.0, 12) == list(range(12))
    assert [layers_at(0.5, layers) for layers in (1, 3, 6)] == [[], [0, 2], [0, 2, 4]]


def test_who_learns_a_depth_is_taught_by_the_student_before_it_at_its_width(
    problem: Problem, order: Order, batch: Batch
) -> None:
    """At first a model of all layers has nothing to learn; sliced or masked is the same."""
    wide, narrow = (model_of(order, counts) for counts in (COUNTS[0], ((2, 24),) * 3))
    shallow = model_of(order, ((2, 24), None, (2, 24)))
    taught_by = {shallow: narrow, narrow: narrow, wide: wide}
    training = ElasticTraining(
        problem,
        order,
        [*taught_by],
        stage(),
        sizes=3,
        batch_size=16,
        seed=0,
        dtype=torch.float32,
        taught_by=taught_by,
    )
    before = smaller(training.population, narrow).logits(batch).detach()
    taught = training._teacher_masks(batch, [shallow])
    own, teacher, wanted = training._taught(batch, taught)
    torch.testing.assert_close(wanted, before[0], atol=ATOL, rtol=0)
    assert own is not None
    assert teacher is not None
    losses = training.gradients(batch, [*taught_by])
    sliced_gradients = gradients(training)
    training.masked_losses(training.masked(batch, [*taught_by]), 3).mean().backward()
    for name, gradient in gradients(training).items():
        torch.testing.assert_close(gradient, sliced_gradients[name], atol=ATOL, rtol=0)
    for turn, model in enumerate((narrow, wide), start=1):
        said = smaller(training.population, model).logits(rows_of(batch, turn, 3))[0].softmax(-1)
        assert losses[turn].item() == pytest.approx(
            -(said * said.log()).sum(-1).mean().item(), abs=1e-4
        )


@pytest.mark.parametrize("loss", ["prediction", "prediction+hidden"])
def test_the_gradient_of_a_step_is_the_mean_of_those_of_its_sizes_sliced_or_masked(
    problem: Problem, order: Order, batch: Batch, loss: Loss
) -> None:
    models = [model_of(order, counts) for counts in COUNTS[:3]]
    training = training_of(problem, order, [*models[1:], models[0]], stage(loss))
    alone = []
    for turn, model in enumerate(models):
        training.gradients(rows_of(batch, turn, len(models)), [model])
        alone.append(gradients(training))
    losses = training.gradients(batch, models)
    together = gradients(training)
    masked = training.masked_losses(training.masked(batch, models), 3)
    masked.mean().backward()
    fused = gradients(training)
    torch.testing.assert_close(masked.detach(), losses, atol=ATOL, rtol=0)
    for name, gradient in together.items():
        wanted = torch.stack([own[name] for own in alone]).mean(0)
        torch.testing.assert_close(gradient, wanted, atol=ATOL, rtol=0)
        torch.testing.assert_close(gradient, fused[name], atol=ATOL, rtol=0)


def test_hidden_states_count_as_much_as_the_stage_says(
    problem: Problem, order: Order, batch: Batch
) -> None:
    model = model_of(order, COUNTS[1])

    def loss(own: Stage) -> float:
        return training_of(problem, order, [model], own).gradients(batch, [model]).item()

    alone, none = (loss(own) for own in (stage("prediction"), replace(stage(), hidden_weight=0)))
    assert none == pytest.approx(alone, abs=ATOL)
    one, four = (loss(replace(stage(), hidden_weight=weight)) for weight in (1.0, 4.0))
    assert four - none == pytest.approx(4 * (one - none), rel=1e-4)
    assert one > none + 0.01
    soft = replace(stage(), hidden_weight=0, temperature=3.0)
    said = smaller(training_of(problem, order, [model], soft).population, model).logits(batch)
    by_hand = prediction_loss(said, problem.teacher_logits[batch.rows], torch.full((1,), 3.0))
    assert loss(soft) == pytest.approx(by_hand.item(), rel=1e-4)
    assert abs(loss(soft) - none) > 0.01


def test_a_last_batch_of_few_rows_has_fewer_sizes(problem: Problem, order: Order) -> None:
    models = [model_of(order, counts) for counts in COUNTS[:3]]
    training = training_of(problem, order, models, stage())
    two = problem.train.batch(np.array([3, 5]), "cpu")
    losses = training.gradients(two, models)
    assert losses.shape == (2,)
    assert losses.isfinite().all()


def test_the_whole_size_alone_is_plain_distillation(
    problem: Problem, order: Order, tmp_path: Path
) -> None:
    own = stage()
    training = training_of(problem, order, [model_of(order, COUNTS[0])], own)
    training.run(SilentProgress(), tmp_path / "checkpoint")
    population = Population.of([problem.student])
    plain = StageTraining(
        problem, [0], population, own, [own.learning_rate], None, batch_size=16, seed=0
    )
    for batch in plain.batches(0, SilentProgress()):
        plain.step(batch, {})
    batch = next(problem.alpha.in_order(16, "cpu"))
    wanted = plain.population.logits(batch)
    assert not wanted.allclose(Population.of([problem.student]).logits(batch), atol=1e-2)
    # Sums in another order: by seed they lie 0.001 to 0.004 apart, after moves of 0.02 to 0.1.
    torch.testing.assert_close(training.population.logits(batch), wanted, atol=5e-3, rtol=0)


@pytest.mark.parametrize(("schedule", "bits"), [("linear", (32, 4, 2)), ("constant", ())])
def test_after_a_kill_it_goes_on_from_the_last_pass_to_the_same_weights(
    problem: Problem, order: Order, tmp_path: Path, schedule: Schedule, bits: Sequence[int]
) -> None:
    own = replace(stage(learning_rate=3e-3), epochs=2.5, schedule=schedule)
    models = [model_of(order, counts) for counts in reversed(COUNTS)]

    def trained(progress: RecordingProgress, checkpoint: Path) -> ElasticTraining:
        training = training_of(problem, order, models, own, sizes=3, bits=bits)
        training.run(progress, checkpoint)
        return training

    wanted = trained(RecordingProgress(), tmp_path / "other")
    a_pass, checkpoint = wanted.training.steps * 2 // 5, tmp_path / "begun" / "checkpoint"
    for killed_at, done in ((a_pass - 1, 0), (2 * a_pass - 1, 0), (2 * a_pass + 1, a_pass)):
        progress = KilledAt(killed_at)
        with pytest.raises(KilledError):
            trained(progress, checkpoint)
        assert progress.began == [done]
    progress = RecordingProgress()
    found = trained(progress, checkpoint)
    assert progress.began == [2 * a_pass]
    assert progress.taken == progress.wanted == [wanted.training.steps]
    assert found.training.curves() == wanted.training.curves()
    assert all(found.state()[name].equal(weight) for name, weight in wanted.state().items())


def test_a_damaged_checkpoint_is_no_checkpoint(
    problem: Problem, order: Order, tmp_path: Path
) -> None:
    models, checkpoint = [model_of(order, COUNTS[0])], tmp_path / "checkpoint"
    training_of(problem, order, models, stage()).run(SilentProgress(), checkpoint)
    whole = checkpoint.read_bytes()
    for damaged in (whole[: len(whole) // 2], b"", b"{}"):
        checkpoint.write_bytes(damaged)
        progress = RecordingProgress()
        training_of(problem, order, models, stage()).run(progress, checkpoint)
        assert progress.began == [0]
        (note,) = progress.notes
        assert "checkpoint' is damaged (" in note
        assert checkpoint.read_bytes() == whole


def test_each_step_has_a_size_of_each_part_of_the_range(problem: Problem, order: Order) -> None:
    models = [replace_ffn(order, number) for number in range(1, 49)]
    training = training_of(problem, order, models, stage(), sizes=3)
    drawn = [[model[0].ffn for model in training.draw()] for _ in range(200)]
    for small, middle, large in drawn:
        assert 1 <= small <= 16 < middle <= 32 < large <= 48
    assert len({tuple(sizes) for sizes in drawn}) > 150


def replace_ffn(order: Order, neurons: int) -> Model:
    return tuple(layer._replace(ffn=neurons) for layer in model_of(order, COUNTS[0]))
