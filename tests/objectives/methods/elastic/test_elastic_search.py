"""The elastic search: what it owes as a search method, and what its own settings do."""

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from objectives.knobs import with_knobs
from objectives.measures.evaluate import divergence, predict
from objectives.methods.elastic.elastic_search import ElasticSearch
from objectives.methods.elastic.training import ElasticTraining
from objectives.methods.fisher_search import FisherSearch
from objectives.problem import Problem
from objectives.pruning.slices import Model, uniform
from objectives.search_method import SearchResult
from objectives.students.bert.architecture import BertArchitecture
from objectives.students.bert.cutting import cut
from objectives.text.data import Batch
from objectives.training.stages import Stage
from tests.conftest import TINY, config_of
from tests.objectives.conformance import (
    KilledError,
    OnMpnet,
    PruningConformance,
    RecordingProgress,
    logits_of,
    run,
    search_alone,
)
from tests.objectives.pruning.test_few_bits import far

TRAINING = Stage(name="elastic", epochs=0.5, learning_rate=1e-3, loss="prediction+hidden")
QUICK = ElasticSearch(
    batch_size=16,
    tolerance=0.1,
    elastic=TRAINING,
    smallest=0.2,
    search_steps=6,
    grad_rescale=30.0,  # the tiny model's answers hardly move
    stages=(Stage(name="polish", epochs=0.5, learning_rate=1e-3),),
)


@dataclass(frozen=True, eq=False)
class Forgetful(Problem):
    """A problem that keeps no trained student, so that each search trains its own."""

    def kept(
        self, name: str, ingredients: Mapping[str, object], make: Callable[[Path, Path], object]
    ) -> Path:
        for folder in self.cache.glob(f"{name}-*/"):
            shutil.rmtree(folder)
        return super().cached(name, ingredients, make)

    def once(self, key: object, make: Callable[[], Any]) -> Any:
        of_student = isinstance(key, tuple) and key[0] == "elastic"
        return make() if of_student else super().once(key, make)


@pytest.fixture(scope="class")
def forgetful(problem: Problem, tmp_path_factory: pytest.TempPathFactory) -> Problem:
    given = {field.name: getattr(problem, field.name) for field in fields(problem) if field.init}
    return Forgetful(**{**given, "cache": tmp_path_factory.mktemp("elastic")})


class TestConformance(PruningConformance):
    # Without hidden states, which are kept for all: steps that only a first search takes.
    quick = replace(QUICK, elastic=replace(TRAINING, loss="prediction"))

    @pytest.fixture(scope="class")
    @classmethod
    def problem(cls, forgetful: Problem) -> Problem:
        return forgetful


class TestConformanceOfMpnet(OnMpnet, TestConformance):
    pass


SEARCHED = replace(QUICK, stages=(), tolerance=0.02)
BARE = replace(SEARCHED, search_steps=0)


def test_the_first_trial_trains_and_the_others_only_cut(fresh: Problem) -> None:
    first, second = RecordingProgress(), RecordingProgress()
    run([BARE, replace(BARE, target_ratio=0.3)], fresh, first)
    assert first.steps > 0
    later = replace(fresh)  # of another launch: it remembers nothing
    (outcome,) = run([replace(BARE, target_ratio=0.4)], later, second)
    assert second.steps == 0
    assert outcome.curve  # type: ignore[union-attr]


class KilledAfter(RecordingProgress):
    """Ends everything in the last quarter of a stage."""

    def advance(self) -> None:
        if self.taken[-1] > 0.75 * self.wanted[-1]:
            raise KilledError
        super().advance()


def test_what_was_cut_off_goes_on_and_leaves_nothing(fresh: Problem, tmp_path: Path) -> None:
    training = replace(TRAINING, epochs=2, loss="prediction")
    method = replace(BARE, elastic=training)
    with pytest.raises(KilledError):
        run([method], fresh, KilledAfter())
    again = replace(fresh)  # of another launch
    progress = RecordingProgress()
    (found,) = run([method], again, progress)
    assert progress.began == [progress.wanted[0] // 2]
    assert not list(fresh.cache.glob(".*"))
    wanted = search_alone(method, replace(fresh, cache=tmp_path / "other"))
    assert isinstance(found, SearchResult)
    assert found.curve == wanted.curve
    assert logits_of(found, fresh).equal(logits_of(wanted, fresh))


@pytest.mark.slow
def test_training_at_all_sizes_beats_cutting_alone(fresh: Problem) -> None:
    long = replace(TRAINING, epochs=6)
    longer = replace(BARE, elastic=long, target_ratio=0.3, tolerance=0.0)
    trained = search_alone(longer, fresh)
    once = FisherSearch(target_ratio=0.3, tolerance=0.1, stages=())
    cut_only = search_alone(once, fresh)
    assert trained.architecture == cut_only.architecture

    answers = predict(fresh.teacher, fresh.alpha, "cpu")
    near, far_off = (
        divergence(logits_of(found, fresh), answers, fresh.alpha) for found in (trained, cut_only)
    )
    assert near < 0.5 * far_off


def test_models_of_few_bits_come_nearer_where_the_training_draws_their_bits(
    fresh: Problem, tmp_path: Path
) -> None:
    few = {"target_ratio": 0.5, "weight_bits": 2, "embedding_bits": 2, "input_bits": 8}
    longer = replace(BARE, elastic=replace(TRAINING, epochs=4), **few)
    rounded, trained = (
        far(search_alone(replace(longer, trained_bits=bits), fresh), fresh)
        for bits in ((), (32, 2))
    )
    assert trained < 0.7 * rounded
    progress = RecordingProgress()
    run([replace(longer, trained_bits=(32, 2), weight_bits=32)], fresh, progress)
    assert progress.steps == 0


@pytest.mark.parametrize(
    "knobs",
    [{"target_ratio": 0.3}, {"flops_weight": 3.0}, {"grad_rescale": 100.0}, {"tolerance": 0.3}],
    ids=list,
)
def test_a_knob_changes_the_architecture_and_trains_nothing_anew(
    fresh: Problem, knobs: dict[str, Any]
) -> None:
    one = search_alone(SEARCHED, fresh)
    progress = RecordingProgress()
    (other,) = run([replace(SEARCHED, **knobs)], fresh, progress)
    assert progress.wanted == [SEARCHED.search_steps]
    assert one.architecture != other.architecture  # type: ignore[union-attr]


def test_without_steps_the_units_of_highest_score_fill_the_budget(fresh: Problem) -> None:
    once = FisherSearch(target_ratio=BARE.target_ratio, cost_power=BARE.cost_power, stages=())
    assert search_alone(BARE, fresh).architecture == search_alone(once, fresh).architecture
    assert set(BARE.inactive()) - set(SEARCHED.inactive()) == {"flops_weight", "grad_rescale"}


def test_a_search_says_where_its_masks_were(fresh: Problem) -> None:
    found = search_alone(SEARCHED, fresh)
    steps = [point for point in found.curve if point["stage"] == "search"]
    assert [point["step"] for point in steps] == [*range(SEARCHED.search_steps)]
    begun, ended = steps[0]["open_ratio"], fresh.budget.ratio(found.architecture)
    assert begun == pytest.approx(0.5, rel=SEARCHED.tolerance)
    assert ended == pytest.approx(0.5, rel=SEARCHED.tolerance)


def test_a_trial_keeps_the_units_of_a_layer_in_the_order_of_the_training(fresh: Problem) -> None:
    large = search_alone(replace(BARE, target_ratio=0.7), fresh).architecture
    small = search_alone(replace(SEARCHED, target_ratio=0.3), fresh).architecture
    for less, more in zip(small.layers, large.layers, strict=True):  # type: ignore[attr-defined]
        for space in ("heads", "ffn"):
            own, other = set(getattr(less, space)), set(getattr(more, space))
            assert own <= other or other <= own


def test_given_widths_are_the_first_units_of_the_training_and_its_size(fresh: Problem) -> None:
    heads, ffn = (4, 0, 2), (7, 48, 0)
    given = replace(SEARCHED, heads=heads, ffn=ffn, tolerance=0.0)
    found = search_alone(given, fresh)
    assert isinstance(found.architecture, BertArchitecture)
    assert found.architecture.heads_per_layer == heads
    assert found.architecture.ffn_per_layer == ffn
    assert found.target_ratio == fresh.budget.ratio(found.architecture)
    by_worth = search_alone(replace(BARE, target_ratio=0.4), fresh).architecture
    for own, other in zip(found.architecture.layers, by_worth.layers, strict=True):  # type: ignore[attr-defined]
        for space in ("heads", "ffn"):
            one, two = set(getattr(own, space)), set(getattr(other, space))
            assert one <= two or two <= one
    assert set(given.inactive()) - set(SEARCHED.inactive()) == {
        "target_ratio",
        "tolerance",
        "search_steps",
        "flops_weight",
        "grad_rescale",
    }


def test_widths_of_one_space_leave_the_budget_to_the_other(fresh: Problem) -> None:
    method = replace(SEARCHED, heads=(1, 2, 3), target_ratio=0.6)
    found = search_alone(method, fresh)
    assert isinstance(found.architecture, BertArchitecture)
    assert found.architecture.heads_per_layer == (1, 2, 3)
    assert fresh.budget.ratio(found.architecture) == pytest.approx(0.6, rel=0.1)
    assert found.target_ratio == 0.6
    assert method.inactive() == SEARCHED.inactive()


def test_a_width_of_a_layer_is_a_knob() -> None:
    whole = replace(BARE, heads=(4,) * 3, ffn=(48,) * 3)
    assert with_knobs(whole, {"heads[1]": 0, "ffn[2]": 7}).heads == (4, 0, 4)
    tiny = config_of(TINY)
    whole.check_shapes(tiny, tiny)


def test_dynaberts_widths_are_rounded_shares_of_every_layer(fresh: Problem) -> None:
    method, shape = ElasticSearch.dynabert(), fresh.budget.cost.shape
    models = uniform((0.1, *method.shares), method.spaces, shape)
    widths = [{(layer.heads, layer.ffn) for layer in model} for model in models]
    assert widths == [{(0, 5)}, {(1, 12)}, {(2, 24)}, {(3, 36)}, {(4, 48)}]
    assert {layer.heads for layer in uniform((0.5,), ("ffn",), shape)[0]} == {4}


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Sequence[Model]]:
    """The sizes of each step of the trainings that follow."""
    found: list[Sequence[Model]] = []
    step = ElasticTraining.step

    def noting(training: ElasticTraining, batch: Batch, models: Sequence[Model], *of: Any) -> None:
        found.append(models)
        step(training, batch, models, *of)

    monkeypatch.setattr(ElasticTraining, "step", noting)
    return found


def test_dynaberts_trials_are_its_widths_at_their_cost(
    fresh: Problem, drawn: list[Sequence[Model]]
) -> None:
    stage = replace(ElasticSearch.dynabert().elastic, epochs=0.5)
    method = ElasticSearch.dynabert(elastic=stage, depths=(), batch_size=16, tolerance=0.0)
    masks = {"heads": [[True, True, False, False]] * 3, "ffn": [[True] * 24 + [False] * 24] * 3}
    half = fresh.budget.cost.exact(BertArchitecture.from_masks(fresh.budget.cost.shape, masks))
    found = search_alone(replace(method, target_ratio=half / fresh.budget.full), fresh)
    assert isinstance(found.architecture, BertArchitecture)
    assert found.architecture.heads_per_layer == (2, 2, 2)
    assert found.architecture.ffn_per_layer == (24, 24, 24)
    all_widths = uniform(method.shares, method.spaces, fresh.budget.cost.shape)
    assert drawn
    assert all(models == all_widths for models in drawn)
    assert "flops_weight" in method.inactive()


def test_a_wider_dynabert_is_no_worse(fresh: Problem) -> None:
    """Of one training: in right answers on alpha, but for a standard error of theirs, and in the
    loss from the teacher's answers. The narrowest has no head, and sees no word; those between have
    learnt."""
    method = ElasticSearch.dynabert(
        elastic=replace(TRAINING, epochs=3),
        **{"shares": (0.1, 0.25, 0.5, 0.75, 1.0), "depths": (), "batch_size": 16, "tolerance": 0.0},
    )
    shape = fresh.budget.cost.shape
    right, apart, untrained = [], list[float](), list[float]()
    for model in uniform(method.shares, method.spaces, shape):
        masks = {
            space: [[unit < getattr(layer, space) for unit in range(units)] for layer in model]
            for space, units in (("heads", shape.heads), ("ffn", shape.ffn))
        }
        ratio = fresh.budget.ratio(BertArchitecture.from_masks(shape, masks))
        found = search_alone(replace(method, target_ratio=ratio), fresh)
        assert found.architecture.widths(shape) == model  # type: ignore[attr-defined]
        answers = logits_of(found, fresh)
        right.append(float((answers.argmax(-1).numpy() == fresh.alpha.labels).mean()))
        apart.append(far(found, fresh))
        units = cut(fresh.student.state_dict(), fresh.student.config, found.architecture)  # type: ignore[arg-type]
        untrained.append(far(replace(found, model=units), fresh))
    noise = 0.5 / len(fresh.alpha) ** 0.5
    assert all(wide >= narrow - noise for narrow, wide in pairwise(right)), right
    assert right[0] < 0.6 < 0.9 < right[-1]
    assert apart == sorted(apart, reverse=True)
    assert all(near < before for near, before in zip(apart[1:4], untrained[1:4], strict=True))


def test_dynaberts_depths_are_trained_at_each_width_after_the_widths(
    fresh: Problem, drawn: list[Sequence[Model]]
) -> None:
    whole = ElasticSearch.dynabert(batch_size=16, tolerance=0.05).scale_epochs(0.02)
    assert (whole.elastic.epochs, whole.deepen.epochs) == (0.06, 0.06)
    shape = fresh.budget.cost.shape
    widths = uniform(whole.shares, whole.spaces, shape)
    found = search_alone(replace(whole, depth=0.5, target_ratio=0.4), fresh)
    assert isinstance(found.architecture, BertArchitecture)
    assert [layer.dropped for layer in found.architecture.layers] == [None, True, None]
    assert abs(fresh.budget.ratio(found.architecture) - 0.4) <= 0.05 * 0.4
    first, _, last = found.architecture.widths(shape)
    assert abs(first.heads - last.heads) + abs(first.ffn - last.ffn) <= 2
    half, most = (uniform(whole.shares, whole.spaces, shape, depth) for depth in (0.5, 0.75))
    assert drawn == [widths, [*half, *most, *widths]]
    assert {point["stage"] for point in found.curve} == {"elastic", "depth"}
    drawn.clear()
    other = search_alone(replace(whole, target_ratio=0.9), replace(fresh))
    assert not any(layer.dropped for layer in other.architecture.layers)  # type: ignore[attr-defined]
    assert not drawn
