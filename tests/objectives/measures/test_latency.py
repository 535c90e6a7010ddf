"""The latency table: between its points as at them, never falling, measured once."""

import copy
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from objectives.cache import content_key
from objectives.engines.names import Engine
from objectives.engines.serving import Served
from objectives.errors import UserError
from objectives.measures import latency
from objectives.measures.budget import discretise
from objectives.measures.latency import Conditions, Latency, load_latency, monotone
from objectives.problem import Problem
from objectives.session import Session
from objectives.students.bert.architecture import (
    BertArchitecture,
    BertShape,
    LayerUnits,
    Widths,
    units_of,
)
from objectives.students.bert.cutting import widths_of
from tests.conftest import TINY
from tests.objectives.conformance import RecordingProgress, random_states
from tests.objectives.hypothesis_strategies import architectures, masks_of

SHAPE = BertShape(layers=3, hidden=8, heads=4, head_dim=2, ffn=10, labels=2)
TABLE = Latency(
    SHAPE,
    Conditions("cpu", 2, 1, 128),
    heads=(0, 1, 4),
    ffn=(0, 4, 10),
    milliseconds=((1.0, 3.0, 3.5), (2.0, 4.0, 5.5), (6.0, 7.0, 11.5)),
    rest=0.5,
)


def time_of(cost: Latency, heads: int, ffn: int) -> float:
    return cost.layer(Widths(heads, 2 * heads, 2 * heads, 8, 8, 8, ffn, 1))


@st.composite
def tables(draw: st.DrawFn) -> Latency:
    """A latency of SHAPE with a table of any times, made monotone."""
    times = draw(st.lists(st.floats(0.01, 10), min_size=9, max_size=9))
    fitted = monotone(np.array(times).reshape(3, 3))
    return replace(TABLE, milliseconds=tuple(tuple(row) for row in fitted.tolist()))


def test_a_point_of_the_grid_has_the_time_that_was_measured_there() -> None:
    for row, heads in zip(TABLE.milliseconds, TABLE.heads, strict=True):
        assert [time_of(TABLE, heads, ffn) for ffn in TABLE.ffn] == list(row)
    assert TABLE.full == 3 * 11.5 + 0.5
    empty = BertArchitecture((LayerUnits((), ()),) * 3)
    assert TABLE.exact(empty) == 3 * 1.0 + 0.5


def test_between_four_points_the_time_is_bilinear() -> None:
    assert time_of(TABLE, 0, 3) == pytest.approx(1 + 3 / 4 * 2)
    assert time_of(TABLE, 3, 10) == pytest.approx(5.5 + 2 / 3 * 6)
    low, high = 4.0 + 1 / 2 * 1.5, 7.0 + 1 / 2 * 4.5
    assert time_of(TABLE, 2, 7) == pytest.approx(low + 1 / 3 * (high - low))


@pytest.mark.parametrize("spaces", [("heads", "ffn"), ("heads",), ("ffn",)], ids="+".join)
@given(data=st.data(), cost=tables())
def test_expected_is_exact_where_every_mask_is_0_or_1(
    data: st.DataObject, cost: Latency, spaces: tuple[str, ...]
) -> None:
    drawn = [data.draw(architectures(SHAPE, spaces)) for _ in range(2)]
    masks = [masks_of(architecture, SHAPE, spaces) for architecture in drawn]
    both = {space: torch.cat([m[space] for m in masks]) for space in spaces}
    expected = cost.expected(both)
    assert expected.dtype == torch.float64
    assert expected.tolist() == pytest.approx([cost.exact(a) for a in drawn], rel=1e-12)


def test_the_gradient_of_an_expected_time_agrees_with_finite_differences() -> None:
    generator = torch.Generator().manual_seed(0)
    heads, ffn = (
        torch.rand(2, 3, *units_of(SHAPE, space), generator=generator, dtype=torch.float64)
        for space in ("heads", "ffn")
    )

    def expected(heads: torch.Tensor, ffn: torch.Tensor) -> torch.Tensor:
        return TABLE.expected({"heads": heads, "ffn": ffn})

    torch.autograd.gradcheck(expected, (heads.requires_grad_(), ffn.requires_grad_()))
    torch.autograd.gradcheck(lambda mask: TABLE.expected({"ffn": mask}), (ffn,))


def test_at_a_point_of_the_grid_the_gradient_is_that_of_one_side() -> None:
    """Of the side below, where a search comes to after it closes another unit."""
    masks = torch.ones(1, 3, 10, dtype=torch.float64)
    masks[:, :, 4:] = 0
    (gradient,) = torch.autograd.grad(
        TABLE.expected({"ffn": masks.requires_grad_()}).sum(), [masks]
    )
    assert gradient.unique().tolist() == [(7.0 - 6.0) / 4]


@given(st.lists(st.floats(0, 10), min_size=12, max_size=12))
def test_a_fitted_table_never_falls_and_one_that_never_falls_is_kept(times: list[float]) -> None:
    table = np.array(times).reshape(3, 4)
    fitted = monotone(table)
    for axis in (0, 1):
        assert (np.diff(fitted, axis=axis) >= 0).all()
    assert fitted.min() >= table.min()
    assert fitted.max() <= table.max()
    assert np.array_equal(monotone(fitted), fitted)


@given(tables())
def test_a_layer_is_never_faster_where_a_width_grows(cost: Latency) -> None:
    times = np.array([[time_of(cost, heads, ffn) for ffn in range(11)] for heads in range(5)])
    for axis in (0, 1):
        assert (np.diff(times, axis=axis) >= -1e-12).all()


@given(
    cost=tables(),
    ratio=st.floats(0.3, 1),
    tolerance=st.floats(0, 0.3),
    seed=st.integers(0, 2**16),
)
def test_a_cut_ends_and_meets_the_band_that_no_unit_steps_over(
    cost: Latency, ratio: float, tolerance: float, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    scores = {
        space: torch.rand(3, *units_of(SHAPE, space), generator=generator)
        for space in ("heads", "ffn")
    }
    target = ratio * cost.full
    found = cost.exact(
        discretise(scores, cost, target=target, tolerance=tolerance, threshold=torch.inf)
    )
    times = np.array([[time_of(cost, heads, ffn) for ffn in range(11)] for heads in range(5)])
    largest = max(np.diff(times, axis=axis).max() for axis in (0, 1))
    nothing = 3 * times[0, 0] + cost.rest
    assume(nothing <= target)
    assert found <= (1 + tolerance) * target * (1 + 1e-9)
    assume(largest < tolerance * target)
    assert found >= (1 - tolerance) * target * (1 - 1e-9)


def test_a_unit_costs_its_share_of_what_all_of_its_kind_cost() -> None:
    prices = TABLE.of_one_unit()
    assert prices == {
        "heads": pytest.approx((11.5 - 3.5) / 4),
        "ffn": pytest.approx((11.5 - 6.0) / 10),
        "layers": pytest.approx(11.5),
    }


def test_units_without_a_price_are_refused_by_name() -> None:
    masks = {"ffn": torch.ones(1, 3, 10), "qk": torch.ones(1, 3, 4, 2)}
    with pytest.raises(UserError, match=r"ms@cpu-2threads-b1-s128 has no cost .* of qk, only"):
        TABLE.expected(masks)
    layer = LayerUnits((0,), (1,), value_inputs=(0, 1))
    with pytest.raises(UserError, match="has no cost for units of input"):
        TABLE.exact(BertArchitecture((layer,) * 3))


def test_a_table_is_measured_once(problem: Problem, tmp_path: Path) -> None:
    before, progress = random_states(), RecordingProgress()
    first = load(problem, tmp_path, progress)
    assert random_states() == before
    assert progress.steps > 0
    assert progress.taken == progress.wanted
    assert first.unit == "ms@cpu-1threads-b1-s16"
    assert (first.heads, first.ffn) == ((0, 1, 2, 3, 4), (0, 1, 12, 24, 36, 48))
    assert first.fixed > 0
    whole, none = first.milliseconds[-1][-1], first.milliseconds[0][0]
    assert whole > none > 0

    again = RecordingProgress()
    assert load(problem, tmp_path, again) == first
    assert again.steps == 0
    (file,) = tmp_path.iterdir()
    assert json.loads(file.read_text())["torch"] == torch.__version__


def test_a_damaged_table_is_measured_anew(problem: Problem, tmp_path: Path) -> None:
    load(problem, tmp_path, RecordingProgress())
    (file,) = tmp_path.iterdir()
    whole = file.read_bytes()
    for damaged in (b"", whole[: len(whole) // 2], b"{}", bytes(len(whole))):
        file.write_bytes(damaged)
        progress = RecordingProgress()
        load(problem, tmp_path, progress)
        assert progress.steps > 0
        (note,) = progress.notes
        assert note.startswith(f"'{file}' is damaged (")
        assert json.loads(file.read_text())["table"]


def test_what_a_time_depends_on_has_a_table_of_its_own(problem: Problem, tmp_path: Path) -> None:
    load(problem, tmp_path, RecordingProgress())
    other = load_latency(
        problem.student,
        batch=2,
        seq_len=16,
        session=Session(cache=tmp_path),
    )
    assert other.unit == "ms@cpu-1threads-b2-s16"
    assert len(list(tmp_path.iterdir())) == 2

    progress, shorter = RecordingProgress(), copy.deepcopy(problem)
    shorter.student.config.num_hidden_layers = 2
    assert load(shorter, tmp_path, progress).shape == replace(TINY, layers=2)
    assert progress.steps == 0  # a layer costs the same however many there are


def test_in_another_engine_a_layer_is_told_from_what_whole_models_take(
    problem: Problem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where time is a sum over layers, of heads and of neurons, the table is that sum."""

    def layer(heads: int, ffn: int) -> float:
        return 0.25 + 0.5 * heads + 0.01 * ffn**1.5

    def serve(engine: Engine, models: dict[str, Any], *_: object) -> list[Served]:
        asked.append(engine)
        return [Served(model, 0) for model in models.values()]  # type: ignore[arg-type]

    def in_turns(engine: Engine, runs: Any, *_: object) -> Any:
        sums = [
            sum(layer(width.heads, width.ffn) for width in widths_of(model.config))
            for model in runs
        ]
        return 3.0 + np.array(sums)[None] + np.array([[-1.0], [0.0], [7.0]])  # median: as it is

    asked: list[str] = []
    monkeypatch.setattr(latency, "make_runnable", serve)
    monkeypatch.setattr(latency, "in_turns", in_turns)
    progress = RecordingProgress()
    cost = load(problem, tmp_path, progress, "onnxruntime-int8")
    assert set(asked) == {"onnxruntime-int8"}
    assert cost.unit == "ms@onnxruntime-int8-cpu-1threads-b1-s16"
    assert cost.fixed == pytest.approx(3.0)
    assert cost.milliseconds == tuple(
        tuple(pytest.approx(layer(heads, ffn)) for ffn in cost.ffn) for heads in cost.heads
    )
    (file,) = tmp_path.iterdir()
    known = json.loads(file.read_text())
    assert (known["engine"], known["onnxruntime"]) == ("onnxruntime-int8", onnxruntime.__version__)
    other = load(problem, tmp_path, progress, "onnxruntime")
    assert other.unit == "ms@onnxruntime-cpu-1threads-b1-s16"
    assert len(list(tmp_path.iterdir())) == 2


def test_a_table_of_before_there_were_engines_is_still_found(
    problem: Problem, tmp_path: Path
) -> None:
    """It was named by these ingredients and no others."""
    load(problem, tmp_path, RecordingProgress())
    (file,) = tmp_path.iterdir()
    named = {name: value for name, value in json.loads(file.read_text()).items() if name != "table"}
    assert sorted(named) == [
        *("activation", "attention", "batch", "device", "ffn", "head_dim", "heads", "hidden"),
        *("labels", "layers", "seq_len", "threads", "torch"),
    ]
    assert file.name == f"latency-{content_key(named)}.json"


def test_bfloat16_is_timed_in_whole_models(problem: Problem, tmp_path: Path) -> None:
    before, progress = random_states(), RecordingProgress()
    cost = load(problem, tmp_path, progress, "bfloat16")
    assert random_states() == before
    assert progress.taken == progress.wanted
    assert cost.unit == "ms@bfloat16-cpu-1threads-b1-s16"
    assert cost.full > cost.fixed > 0


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_what_a_layer_takes_in_onnxruntime_is_measured(
    problem: Problem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(latency, "_grid", lambda size: [0, size])  # each model takes seconds
    monkeypatch.setattr(latency, "_LAYERS", 2)
    cost = load(problem, tmp_path, RecordingProgress(), "onnxruntime-int8")
    assert cost.unit == "ms@onnxruntime-int8-cpu-1threads-b1-s16"
    whole, none = cost.milliseconds[-1][-1], cost.milliseconds[0][0]
    assert whole > none >= 0
    assert cost.full > cost.fixed > 0


def load(
    problem: Problem, cache: Path, progress: RecordingProgress, engine: Engine = "eager"
) -> Latency:
    session = Session(cache=cache, progress=progress)
    return load_latency(problem.student, batch=1, seq_len=16, session=session, engine=engine)
