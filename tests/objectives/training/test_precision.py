"""Students that train in bfloat16: the same students but for the last digits."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from objectives import device
from objectives.device import matmul_dtype, multiplies_bfloat16
from objectives.methods.mask_search import MaskSearch
from objectives.methods.width_search import WidthSearch
from objectives.problem import Problem
from objectives.students.bert.adapters import as_bert
from objectives.students.bert.architecture import units_of
from objectives.students.bert.pretrained import Checkpoint
from objectives.text.data import Batch
from objectives.training.population import Population, Trace
from objectives.training.stages import Loss, Stage
from tests.bert_variants import write_variant
from tests.conftest import TINY
from tests.objectives.conformance import search_alone
from tests.objectives.hypothesis_strategies import EACH_COMBINATION

ROUNDING = 2**-8
"""How far apart two neighbours in bfloat16 are, as a share of them."""


@pytest.fixture(scope="module")
def batch(problem: Problem) -> Batch:
    return problem.train.batch(np.arange(32), "cpu")


def gradients(
    problem: Problem, batch: Batch, spaces: tuple[str, ...], dtype: torch.dtype
) -> tuple[Tensor, dict[str, Tensor]]:
    """Logits of two students at half-open masks, and what masks and weights learn from a loss."""
    population = Population.of([problem.student] * 2, dtype)
    masks = {
        space: torch.full((2, TINY.layers, *units_of(TINY, space)), 0.7, requires_grad=True)
        for space in spaces
    }
    logits = population.logits(batch, masks)
    names = ("bert.encoder.layer.0.intermediate.dense.weight", "classifier.bias")
    learned = {**masks, **{name: population.weights[name] for name in names}}
    found = torch.autograd.grad(logits.square().mean(), list(learned.values()))
    return logits.detach(), dict(zip(learned, found, strict=True))


@pytest.mark.parametrize("spaces", EACH_COMBINATION, ids="+".join)
def test_logits_and_gradients_differ_by_rounding_alone(
    problem: Problem, batch: Batch, spaces: tuple[str, ...]
) -> None:
    exact, exact_gradients = gradients(problem, batch, spaces, torch.float32)
    logits, rounded = gradients(problem, batch, spaces, torch.bfloat16)
    assert logits.dtype == torch.float32
    assert not torch.equal(logits, exact), "nothing was rounded: it ran in float32"
    assert (logits - exact).norm() < 4 * ROUNDING * exact.norm()
    for name, gradient in rounded.items():
        assert gradient.dtype == torch.float32
        wanted = exact_gradients[name]
        assert (gradient - wanted).norm() < 16 * ROUNDING * wanted.norm(), name


@pytest.mark.parametrize("kind", ["bert", "electra", "mpnet"])
@pytest.mark.parametrize("students", [1, 2])
def test_a_trace_is_float32(batch: Batch, tmp_path: Path, kind: str, students: int) -> None:
    """ELECTRA's embeddings end in a matmul."""
    model = as_bert(Checkpoint(write_variant(kind, tmp_path / kind, ["a", "b"])).load_classifier())
    ids = batch.input_ids.clamp(max=model.config.vocab_size - 1)
    trace = Trace()
    population = Population.of([model] * students, torch.bfloat16)
    population.logits(replace(batch, input_ids=ids), trace=trace)
    kept = [*trace.hidden, *trace.scores]
    assert {tensor.dtype for tensor in kept if tensor is not None} == {torch.float32}


@pytest.mark.slow
@pytest.mark.parametrize("loss", ["prediction", "prediction+hidden", "intermediate"])
@pytest.mark.parametrize("method", [MaskSearch(), WidthSearch()])
def test_a_search_ends_where_it_would_in_float32(
    problem: Problem, method: MaskSearch | WidthSearch, loss: Loss
) -> None:
    """Not the same units at every tie, but the same student for all that a trial is judged by."""
    stages = (
        Stage(name="search", epochs=0.3, searches=True, learning_rate=1e-3, loss=loss),
        Stage(name="recover", epochs=0.5, learning_rate=1e-3, loss=loss),
    )
    quick = replace(method, batch_size=16, tolerance=0.1, stages=stages)
    curves = []
    for precision in ("float32", "bfloat16"):
        result = search_alone(replace(quick, precision=precision), problem)  # type: ignore[arg-type]
        dtypes = {value.dtype for value in result.model.state_dict().values()}
        assert dtypes <= {torch.float32, torch.int64}
        recovery = [point for point in result.curve if point["stage"] == "recover"]
        curves.append(torch.tensor([float(point["loss"]) for point in recovery]))
    torch.testing.assert_close(curves[1], curves[0], rtol=0.2, atol=0.01)


@pytest.mark.parametrize("device", ["cpu", "cuda", "mps"])
def test_a_precision_by_name_is_kept(device: str) -> None:
    assert matmul_dtype("float32", device) == torch.float32
    assert matmul_dtype("bfloat16", device) == torch.bfloat16


@pytest.mark.parametrize(
    ("capabilities", "fast"),
    [
        ({"avx512_bf16": True}, True),
        ({"amx_bf16": True}, True),
        ({"avx2": True}, False),
        ({}, False),
    ],
)
def test_auto_asks_the_processor(
    capabilities: dict[str, bool], fast: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device.torch.cpu, "get_capabilities", lambda: capabilities)
    assert multiplies_bfloat16("cpu") is fast
    assert not multiplies_bfloat16("mps")
