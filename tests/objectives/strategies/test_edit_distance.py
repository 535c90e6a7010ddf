"""The Gaussian process over distances, against numpy; what the annealing finds."""

import math
from itertools import product

import numpy as np
import pytest

from objectives.strategies import edit_distance
from objectives.strategies.edit_distance import (
    DistanceSettings,
    EditDistance,
    Embedding,
    Process,
    places_apart,
)
from objectives.strategies.strategy import Candidate

PLACES = {f"p{index}": ("a", "b", "c") for index in range(3)}
ALL: list[Candidate] = [
    dict(zip(PLACES, letters, strict=True)) for letters in product("abc", repeat=3)
]


def value(candidate: Candidate) -> float:
    """1 for each place that is as in the best, bca."""
    return float(sum(candidate[name] == best for name, best in zip(PLACES, "bca", strict=True)))


def embedding(known: list[Candidate] = ALL) -> Embedding:
    return Embedding(known, places_apart, np.random.default_rng(0))


def test_the_number_of_differing_places_is_a_metric() -> None:
    apart = np.array([[places_apart(one, other) for other in ALL] for one in ALL])
    assert (apart == apart.T).all()
    assert ((apart == 0) == np.eye(len(ALL), dtype=bool)).all()
    assert (apart[:, :, None] <= apart[:, None, :] + apart.T[None, :, :]).all()


def test_the_embedding_stretches_no_distance() -> None:
    points = embedding()(ALL)
    assert points.shape == (27, math.ceil(math.log2(27)) * math.ceil(math.log(27)))
    embedded = np.linalg.norm(points[:, None] - points[None], axis=-1)
    apart = np.array([[places_apart(one, other) for other in ALL] for one in ALL])
    assert (embedded <= apart + 1e-9).all()
    assert embedded[apart > 0].min() > 0.1  # and keeps all of them apart
    assert np.corrcoef(embedded.ravel(), apart.ravel())[0, 1] > 0.5


def test_a_candidate_has_the_same_place_whether_it_is_known_or_new() -> None:
    """Auto-Keras' ports measure a new one otherwise than the known ones."""
    place = embedding(ALL[:9])
    np.testing.assert_array_equal(place(ALL[:9])[4], place([ALL[4]])[0])


def test_the_kernel_is_positive_definite() -> None:
    """That of the distances themselves need not be."""
    process = Process(embedding(), ALL, list(map(value, ALL)), 1e-4)
    assert np.linalg.eigvalsh(process.regressor.kernel_(embedding()(ALL))).min() > -1e-9


def test_the_posterior_is_that_of_the_textbook() -> None:
    """Rasmussen & Williams 2006, (2.25) and (2.26)."""
    known, scores = ALL[::3], np.array([value(one) for one in ALL[::3]]) - 1
    place = embedding(known)
    process = Process(place, known, scores.tolist(), 0.01)
    mean, std = process(ALL)
    length = process.regressor.kernel_.length_scale

    def kernel(one: list[Candidate], other: list[Candidate]) -> np.ndarray:
        apart = np.linalg.norm(place(one)[:, None] - place(other)[None], axis=-1)
        return np.exp(-(apart**2) / (2 * length**2))

    gram = kernel(known, known) + 0.01 * np.eye(len(known))
    across = kernel(ALL, known)
    np.testing.assert_allclose(mean, across @ np.linalg.solve(gram, scores), atol=1e-8)
    variance = 1 - (across * np.linalg.solve(gram, across.T).T).sum(1)
    np.testing.assert_allclose(std**2, variance, atol=1e-8)


def test_of_the_lengths_the_likeliest_is_taken() -> None:
    known = ALL[::2]
    process = Process(embedding(known), known, list(map(value, known)), 1e-4)
    taken = process.regressor.log_marginal_likelihood_value_
    for factor in (0.5, 2.0):
        other = process.regressor.log_marginal_likelihood(
            process.regressor.kernel_.theta + math.log(factor)
        )
        assert other < taken


def taught(distance_settings: DistanceSettings, known: list[Candidate]) -> EditDistance:
    strategy = EditDistance(PLACES, 0, distance_settings)
    strategy.learn([(one, value(one)) for one in known])
    return strategy


@pytest.mark.parametrize("beta", [0.0, 2.576, 50.0])
def test_it_proposes_the_largest_bound_among_what_is_unknown(beta: float) -> None:
    """The annealing meets all 27: what it takes is the best of them."""
    settings = DistanceSettings(beta=beta, initial=5, neighbours=50)
    known = ALL[:20]
    strategy = taught(settings, known)
    before = strategy._rng.bit_generator.state
    (found,) = strategy.propose(1)
    strategy._rng.bit_generator.state = before
    raw = np.array([value(one) for one in known])
    scores = ((raw - raw.mean()) / raw.std()).tolist()
    process = Process(Embedding(known, places_apart, strategy._rng), known, scores, settings.noise)
    unknown = [one for one in ALL if one not in known]
    mean, std = process(unknown)
    assert found == unknown[int((mean + settings.beta * std).argmax())]
    assert int((mean + 50 * std).argmax()) != int(mean.argmax())


@pytest.mark.parametrize(
    ("luck", "expanded"), [(1 - 1e-12, [0.0, 1.0, 2.0, 3.0]), (0.0, [0.0, 1.0, 2.0, 3.0, 2.0])]
)
def test_the_annealing_always_goes_on_from_what_is_better(
    monkeypatch: pytest.MonkeyPatch, luck: float, expanded: list[float]
) -> None:
    """Even with the worst luck, with which it goes on from nothing worse; with the best, from
    all."""

    class Lucky:
        def __init__(self, generator: np.random.Generator):
            self.integers = generator.integers

        def random(self) -> float:
            return luck

    gone_on: list[Candidate] = []
    changed = EditDistance._changed

    def seen(self: EditDistance, candidate: Candidate, among: list[str]) -> Candidate:
        gone_on.append(candidate)
        return changed(self, candidate, among)

    monkeypatch.setattr(EditDistance, "_changed", seen)
    monkeypatch.setattr(EditDistance, "_bound", lambda _, __, fresh: [*map(value, fresh)])
    strategy = EditDistance(PLACES, 0, DistanceSettings(neighbours=50))
    strategy._rng = Lucky(strategy._rng)  # type: ignore[assignment]
    start = dict(zip(PLACES, "aab", strict=True))
    assert value(strategy._annealed(Process.__new__(Process), [start], [value(start)])) == 3
    assert [value(one) for one in gone_on[::50]][: len(expanded)] == expanded
    assert (len(gone_on) == 50 * len(expanded)) == (luck > 0)


def test_candidates_proposed_together_differ_and_are_new() -> None:
    strategy = taught(DistanceSettings(initial=5, cooling=0.5), ALL[:12])
    found = strategy.propose(6)
    assert len({tuple(one.values()) for one in found}) == 6
    assert not any(one in ALL[:12] for one in found)


def test_what_was_just_proposed_counts_as_scored_by_its_mean(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[tuple[Process, list[Candidate], list[float]]] = []

    class Recorded(Process):
        def __init__(
            self, place: Embedding, known: list[Candidate], scores: list[float], noise: float
        ):
            super().__init__(place, known, scores, noise)
            made.append((self, list(known), list(scores)))

    monkeypatch.setattr(edit_distance, "Process", Recorded)
    found = taught(DistanceSettings(initial=5, cooling=0.5), ALL[:12]).propose(2)
    (first, _, before), (_, known, after) = made
    assert known[12:] == found[:1]
    assert after == [*before, pytest.approx(float(first(found[:1])[0][0]))]


def test_a_space_that_is_used_up_does_not_hold_it() -> None:
    strategy = taught(DistanceSettings(initial=5, cooling=0.3), ALL)
    assert strategy.propose(2)[0] in ALL


def test_scores_of_one_candidate_are_averaged() -> None:
    once, twice = (EditDistance(PLACES, 0, DistanceSettings(initial=2)) for _ in range(2))
    once.learn([(ALL[0], 2.0), (ALL[13], 1.0)])
    twice.learn([(ALL[0], 1.0), (ALL[13], 1.0), (ALL[0], 3.0)])
    assert once.propose(3) == twice.propose(3)


def test_the_distance_may_be_another() -> None:
    """With only the first place counted, what the others are teaches nothing."""

    def first(one: Candidate, other: Candidate) -> float:
        return float(one["p0"] != other["p0"])

    strategy = EditDistance(PLACES, 0, DistanceSettings(initial=2, beta=0.0), first)
    strategy.learn([(one, float(one["p0"] == "c")) for one in ALL[::4]])
    assert strategy.propose(1)[0]["p0"] == "c"


@pytest.mark.parametrize("flat", [0.0, 3.5])
def test_equal_scores_do_no_harm(flat: float) -> None:
    strategy = EditDistance(PLACES, 0, DistanceSettings(initial=2))
    strategy.learn([(one, flat) for one in ALL[:4]])
    assert strategy.propose(1)[0] not in ALL[:4]
