"""Low rank: the best factors, the best ranks, and a model that costs what its architecture says."""

from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
import torch
from torch import Tensor

from objectives.delivery.exported import load_model
from objectives.engines.onnx_model import open_session, run_session, write_onnx
from objectives.errors import UserError
from objectives.measures.bits import BitOps, Bytes, bytes_of
from objectives.measures.budget import Budget
from objectives.measures.cost import Flops
from objectives.measures.latency import Conditions, Latency
from objectives.measures.measured import measured_costs
from objectives.methods.baselines.low_rank import (
    LowRank,
    Place,
    Spectrum,
    factored,
    ranks_within,
    spectra,
    with_ranks,
)
from objectives.methods.polish import Polish
from objectives.problem import Problem
from objectives.pruning.importance import directions
from objectives.search_method import SearchFailure, SearchResult
from objectives.students.bert import BERT
from objectives.students.bert.architecture import BertArchitecture
from objectives.students.bert.cutting import cut
from objectives.students.bert.exporting import plain_bert
from objectives.students.bert.linears import LINEARS, matmuls
from objectives.training.stages import Stage
from tests.conftest import TINY
from tests.objectives.conformance import (
    OnMpnet,
    PruningConformance,
    assert_each_matmul_is_counted,
    logits_of,
    run,
    search_alone,
)
from tests.objectives.methods.test_polish import write_trials

RECOVER = Stage(name="recover", epochs=0.5, learning_rate=1e-3, loss="prediction+hidden")
QUICK = LowRank(target_ratio=0.8, batch_size=16, stages=(RECOVER,))
BARE = replace(QUICK, stages=())
FULL = BertArchitecture.full(TINY)
SOME = with_ranks(FULL, {(0, 0): 3, (0, 4): 9, (1, 3): 1, (2, 5): 12})


class TestConformance(PruningConformance):
    quick = QUICK

    def test_an_architecture_fits_the_student_and_survives_json(
        self, results: list[SearchResult], problem: Problem
    ) -> None:
        """No unit leaves."""
        for result in results:
            assert isinstance(result.architecture, BertArchitecture)
            assert with_ranks(result.architecture, {}) == FULL
            assert BertArchitecture.from_json(result.architecture.to_json()) == result.architecture


@pytest.mark.slow
class TestConformanceOfMpnet(OnMpnet, TestConformance):
    pass


def random_case(seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """A weight (6, 9), 40 vectors that enter it, and A of these."""
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(6, 9, generator=generator, dtype=torch.float64)
    scale = torch.logspace(-2, 1, 9, dtype=torch.float64)
    entering = torch.randn(40, 9, generator=generator, dtype=torch.float64) * scale
    return weight, entering, entering.T @ entering


def test_the_error_is_that_of_eckart_and_young_and_no_other_factors_have_less() -> None:
    weight, entering, second = random_case(0)
    spectrum = Spectrum.of(weight, second)
    plain = torch.linalg.svd(weight)
    for rank in range(1, 6):
        reduce, expand = (factor.double() for factor in spectrum.factors(rank))
        assert (reduce.shape, expand.shape) == ((rank, 9), (6, rank))
        error = ((weight - expand @ reduce) @ entering.T).square().sum() / 6
        torch.testing.assert_close(spectrum.errors()[rank], error, rtol=1e-4, atol=1e-6)
        unwhitened = plain.U[:, :rank] * plain.S[:rank] @ plain.Vh[:rank]
        assert error < ((weight - unwhitened) @ entering.T).square().sum() / 6
        # Least squares of either factor with the other fixed finds nothing better.
        given = entering @ reduce.T
        better = torch.linalg.lstsq(given, entering @ weight.T).solution.T
        torch.testing.assert_close(better, expand, rtol=1e-3, atol=1e-4)
        lengths = reduce.norm(dim=1), expand.norm(dim=0)
        torch.testing.assert_close(*lengths, rtol=1e-4, atol=1e-6)
    assert spectrum.errors()[6] == 0
    nothing = Spectrum.of(torch.zeros_like(weight), second)
    assert all(factor.isfinite().all() for factor in nothing.factors(2))


def test_what_enters_is_weighted_by_what_comes_of_it(problem: Problem) -> None:
    """A of the values of layer 2, written out: padding has no gradient."""
    student = problem.student
    layer = student.bert.encoder.layer[1].attention.self.value
    kept: list[tuple[Tensor, Tensor]] = []
    hook = layer.register_forward_hook(
        lambda _, inputs, output: kept.append((inputs[0], output.requires_grad_()))
    )
    total = torch.zeros(TINY.hidden, TINY.hidden, dtype=torch.float64)
    for batch in problem.alpha.in_order(len(problem.alpha), "cpu"):
        logits = student(**batch.inputs).logits
        value = (logits * directions(batch.rows, TINY.labels)).sum()
        (gradient,) = torch.autograd.grad(value, kept[-1][1])
        assert not gradient[~batch.attention_mask].any()
        for x, g in zip(kept[-1][0].flatten(0, 1), gradient.flatten(0, 1), strict=True):
            total += (g.square().sum() * torch.outer(x, x)).double()
    hook.remove()
    total += 0.01 * total.diagonal().mean() * torch.eye(TINY.hidden)
    expected = Spectrum.of(layer.weight.detach(), total)
    torch.testing.assert_close(spectra(problem)[1, 2].values, expected.values, rtol=1e-3, atol=1e-6)


def test_the_ranks_are_those_of_least_error_per_number() -> None:
    """Two small weights, all pairs of ranks: none within the same cost has less error."""
    shape = replace(TINY, layers=1)
    found: dict[Place, Spectrum] = {}
    for seed, place in enumerate((1, 4)):
        generator = torch.Generator().manual_seed(seed)
        size = (TINY.hidden, TINY.hidden) if place == 1 else (TINY.ffn, TINY.hidden)
        weight = torch.randn(*size, generator=generator)
        weight *= torch.logspace(0, -3, TINY.hidden)
        found[0, place] = Spectrum.of(weight, torch.eye(TINY.hidden))
    cost = Flops(shape, 8)
    choices = {at: [0, *range(1, own.right.shape[1])] for at, own in found.items()}

    def error(architecture: BertArchitecture) -> float:
        ranks = {at: architecture.layers[0].rank(at[1]) for at in found}
        return sum(float(found[at].errors()[rank]) for at, rank in ranks.items() if rank)

    every = [
        with_ranks(BertArchitecture.full(shape), dict(zip(choices, ranks, strict=True)))
        for ranks in product(*choices.values())
    ]
    costs, errors = [cost.exact(one) for one in every], [error(one) for one in every]
    for share in (0.95, 0.9, 0.8, 0.7):
        target = share * cost.full
        own = ranks_within(found, cost, target)
        assert 0 <= target - cost.exact(own) < 2 * 8 * (TINY.ffn + TINY.hidden)
        best = min(e for e, c in zip(errors, costs, strict=True) if c <= cost.exact(own))
        assert error(own) <= best * 1.05 + 1e-9


def test_what_saves_nothing_stays_whole(problem: Problem) -> None:
    for target_ratio in (0.9, 0.6, 0.4):
        architecture = search_alone(replace(BARE, target_ratio=target_ratio), problem).architecture
        assert isinstance(architecture, BertArchitecture)
        for matmul in matmuls(architecture, TINY, 1):
            if matmul.rank:
                assert matmul.numbers < matmul.outputs * matmul.inputs
    assert search_alone(replace(BARE, target_ratio=1.0), problem).architecture == FULL


def test_every_cost_is_what_is_counted_on_the_model(problem: Problem) -> None:
    model = factored(problem.student, SOME, spectra(problem))
    embeddings = {
        name: tuple(weight.shape)
        for name, weight in model.state_dict().items()
        if name.startswith("bert.embeddings.")
    }
    predicted = BERT.predicted(SOME, (Flops(TINY, 7), Bytes(TINY, embeddings)))
    measured = measured_costs(model, 7)
    assert predicted == {unit: measured[unit] for unit in predicted}
    assert BitOps(TINY, 7).exact(SOME) == measured["flops@7"]
    assert_each_matmul_is_counted(model, SOME, TINY)
    assert bytes_of(model.state_dict()) < bytes_of(problem.student.state_dict())


def test_a_search_in_bytes_ends_at_a_share_of_the_flops(problem: Problem) -> None:
    found = [
        search_alone(replace(BARE, target_ratio=0.7, embedding_bits=bits), problem)
        for bits in (32, 8)
    ]
    assert found[0].architecture == replace(found[1].architecture, embedding_bits=None)
    difference = logits_of(found[0], problem) - logits_of(found[1], problem)
    assert 0 < difference.abs().max() < 0.5


def test_it_is_nearer_than_what_is_cut_at_random_and_training_brings_it_nearer(
    problem: Problem,
) -> None:
    whole = logits_of(search_alone(replace(BARE, target_ratio=1.0), problem), problem)

    def error(model: torch.nn.Module) -> float:
        result = search_alone(BARE, problem)
        return float((logits_of(replace(result, model=model), problem) - whole).square().mean())

    bare = search_alone(BARE, problem)
    plain = {
        at: Spectrum.of(
            problem.student.get_parameter(
                f"bert.encoder.layer.{at[0]}.{LINEARS[at[1]].name}.weight"
            ).detach(),
            torch.eye(spectrum.right.shape[1]),
        )
        for at, spectrum in spectra(problem).items()
    }
    assert error(bare.model) < error(factored(problem.student, bare.architecture, plain))
    learn = replace(RECOVER, epochs=4, learning_rate=3e-3)
    assert error(search_alone(replace(QUICK, stages=(learn,)), problem).model) < error(bare.model)


@pytest.mark.slow
def test_a_model_folder_and_an_onnx_file_answer_alike(problem: Problem, tmp_path: Path) -> None:
    model = search_alone(BARE, problem).model
    assert plain_bert(model) is None
    model.save_pretrained(tmp_path)
    again = load_model(tmp_path)
    inputs = {
        "input_ids": torch.arange(8).view(1, 8),
        "attention_mask": torch.ones(1, 8, dtype=torch.long),
        "token_type_ids": torch.zeros(1, 8, dtype=torch.long),
    }
    with torch.no_grad():
        expected = model(**inputs).logits
        torch.testing.assert_close(again(**inputs).logits, expected)
    write_onnx(model, tmp_path / "model.onnx")
    answers = run_session(open_session(tmp_path / "model.onnx", 1), inputs)
    torch.testing.assert_close(answers, expected, atol=1e-4, rtol=1e-4)


def test_what_does_not_go_together_is_refused(problem: Problem) -> None:
    with pytest.raises(UserError, match="weights of low rank have no bits"):
        SOME.with_bits([8] * 3, [32] * 3, 32)
    with pytest.raises(UserError, match="cutting keeps weights as they are"):
        cut(problem.student.state_dict(), problem.student.config, SOME)
    conditions, none = Conditions("cpu", 1, 1, 7), ((0.0, 0.0), (0.0, 0.0))
    latency = Latency(TINY, conditions, (0, 4), (0, 48), none, 0.0)
    with pytest.raises(UserError, match="no cost for units of low rank"):
        latency.exact(SOME)
    assert {"tolerance", "input_bits"} == QUICK.inactive().keys()
    assert BARE.inactive().keys() == {*QUICK.inactive(), "batch_size", "precision"}


def test_ranks_are_told_by_layer(problem: Problem) -> None:
    assert SOME.sizes()["ranks"] == (12, 1, 12)
    budget = Budget(Flops(TINY, 7), Flops(TINY, 7).full)
    assert budget.ratio(SOME) < 1
    assert BertArchitecture.from_json(SOME.to_json()) == SOME


def test_trials_of_unlike_ranks_are_polished_side_by_side_but_not_in_few_bits(
    problem: Problem, tmp_path: Path
) -> None:
    results = [search_alone(replace(BARE, target_ratio=ratio), problem) for ratio in (0.8, 0.6)]
    trials = write_trials(tmp_path, results)
    polish = Polish(trials=trials, batch_size=16, stages=(RECOVER,))
    for outcome in run([polish, replace(polish, trial=1)], problem):
        assert isinstance(outcome, SearchResult)
        assert any(".reduce." in name for name in outcome.model.state_dict())
    (failed,) = run([replace(polish, weight_bits=8)], problem)
    assert isinstance(failed, SearchFailure)
    assert "weights of low rank have no bits" in failed.reason
