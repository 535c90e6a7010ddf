"""A study that begins with what earlier runs found."""

from __future__ import annotations

import math
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from rich.console import Console

from maskfront import Study
from objectives.methods.fisher_search import FisherSearch
from objectives.training.stages import Stage
from orchestrator.errors import RunError
from orchestrator.runs.records import RunRecord, load_optuna_study, read_run
from orchestrator.study_file import load_study
from orchestrator.workers import warm_start
from orchestrator.workers.loop import LaunchOptions
from orchestrator.workers.warm_start import WARM_START, clipped, distances
from orchestrator.workers.worker_pool import launch_workers
from tests.launching import run_study

SPACE: dict[str, BaseDistribution] = {
    "target_ratio": FloatDistribution(0.3, 0.9),
    "batch_size": IntDistribution(12, 20),
    "squares": CategoricalDistribution(("logits", "loss")),
}


@pytest.fixture(scope="module")
def study(tiny_study_file: Path) -> Study:
    """Trials of a tenth of a second."""
    return replace(
        load_study(tiny_study_file),
        method=FisherSearch(tolerance=0.3, stages=(Stage(name="recover", epochs=0.1),)),
        space=SPACE,
        first=(),
        trials=6,
        population=2,
    )


@pytest.fixture(scope="module")
def earlier(study: Study, tmp_path_factory: pytest.TempPathFactory) -> RunRecord:
    """A finished run whose front is more than one trial."""
    folder = tmp_path_factory.mktemp("earlier") / "run"
    run = run_study(replace(study, name="earlier", sampler="random"), folder)
    assert len(run.front) > 1
    return run


def begun(folder: Path) -> list[tuple[str | None, dict[str, object]]]:
    """Sources and knobs of all trials."""
    trials = [t for t in load_optuna_study(folder).get_trials(deepcopy=False)]
    return [
        (t.user_attrs.get(WARM_START), {**t.system_attrs.get("fixed_params", {}), **t.params})
        for t in trials
    ]


@pytest.mark.slow
def test_it_begins_with_ends_and_front(study: Study, earlier: RunRecord, tmp_path: Path) -> None:
    warm = replace(study, warm_start=(earlier.folder,), trials=8)
    run = run_study(warm, tmp_path / "run")
    sources = [trial.attributes.get(WARM_START) for trial in run.trials]
    front = [f"earlier trial {trial.number}" for trial in earlier.front][:4]
    assert sources[: 2 + len(front)] == ["high target_ratio", "low target_ratio", *front]
    assert [trial.knobs["target_ratio"] for trial in run.trials[:2]] == [0.9, 0.3]
    assert [t.knobs for t in run.trials[2 : 2 + len(front)]] == [
        trial.knobs for trial in earlier.front[:4]
    ]
    assert {state for state in sources[2 + len(front) :]} <= {None}


@pytest.mark.slow
def test_it_is_enqueued_once_though_killed_resumed_or_served_by_several(
    study: Study, earlier: RunRecord, tmp_path: Path
) -> None:
    """Nor is the other run looked at again: it may be gone by then."""
    other = tmp_path / "other"
    shutil.copytree(earlier.folder, other)
    warm = replace(study, warm_start=(other,))
    run_study(warm, tmp_path / "run", trials=2)
    before = begun(tmp_path / "run")
    assert len(before) == 3  # the ends, and half of what was wanted
    shutil.rmtree(other)
    console = Console(quiet=True)
    options = LaunchOptions(workers=2, trials=5, out=tmp_path / "run", device="cpu")
    launch_workers(warm, options, console=console)
    after = begun(tmp_path / "run")
    named = [source for source, _ in after if source is not None]
    assert len(named) == len(set(named)) == len(before)


def test_knobs_out_of_range_are_moved_to_the_edge(
    study: Study, earlier: RunRecord, tmp_path: Path
) -> None:
    narrow = {**SPACE, "target_ratio": FloatDistribution(0.55, 0.6)}
    warm = replace(study, space=narrow, warm_start=(earlier.folder,))
    run = run_study(warm, tmp_path / "run", trials=4)
    moved = 0
    for trial, other in zip(run.trials[2:4], earlier.front[:2], strict=True):
        assert trial.knobs["target_ratio"] == min(max(other.knobs["target_ratio"], 0.55), 0.6)
        assert trial.knobs["batch_size"] == other.knobs["batch_size"]
        moved += trial.knobs != other.knobs
    assert moved


@pytest.mark.slow
def test_the_nearest_run_comes_first(study: Study, earlier: RunRecord, tmp_path: Path) -> None:
    """Another tolerance makes it farther, another seed or name does not."""
    far = replace(study, name="far", method=replace(study.method, tolerance=0.25))  # type: ignore[call-arg]
    run_study(far, tmp_path / "far")
    warm = replace(study, warm_start=(tmp_path / "far", earlier.folder), seed=11)
    run_study(warm, tmp_path / "run")
    sources = [source for source, _ in begun(tmp_path / "run")][2:5]
    nearest = [f"earlier trial {trial.number}" for trial in earlier.front][:3]
    assert sources[: len(nearest)] == nearest
    assert all(str(source).startswith("far") for source in sources[len(nearest) :])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("space", "message"),
    [
        (
            {name: SPACE[name] for name in ("target_ratio", "batch_size")},
            "tuned batch_size, squares, target_ratio; this study tunes batch_size, target_ratio; ",
        ),
        (
            {**SPACE, "squares": CategoricalDistribution(("loss",))},
            r"drew squares from Categorical.*, which is not in Categorical",
        ),
        (
            {**SPACE, "batch_size": CategoricalDistribution((2, 4))},
            r"drew batch_size from IntDistribution.*, which is not in Categorical",
        ),
    ],
)
def test_runs_of_other_knobs_are_refused_before_anything_is_written(
    study: Study,
    earlier: RunRecord,
    tmp_path: Path,
    space: dict[str, BaseDistribution],
    message: str,
) -> None:
    warm = replace(study, space=space, warm_start=(earlier.folder,))
    with pytest.raises(RunError, match=message):
        run_study(warm, tmp_path / "run")
    assert not (tmp_path / "run" / "artifacts").exists()
    run_study(replace(warm, warm_start=()), tmp_path / "run", trials=1)


def test_what_is_no_run_or_of_another_method_is_refused(
    study: Study, earlier: RunRecord, tmp_path: Path, tiny_study_file: Path
) -> None:
    with pytest.raises(RunError, match=r"nowhere' is not a run folder"):
        run_study(replace(study, warm_start=("nowhere",)), tmp_path / "run")
    masks = replace(load_study(tiny_study_file), warm_start=(earlier.folder,))
    with pytest.raises(RunError, match="used FisherSearch, but this study uses MaskSearch"):
        run_study(masks, tmp_path / "run")
    assert read_run(earlier.folder).front == earlier.front


@given(st.floats(-10, 10), st.integers(-4, 4), st.integers(1, 9), st.sampled_from([None, 0.25]))
def test_a_clipped_value_is_one_that_the_knob_holds(
    value: float, quarters: int, width: int, step: float | None
) -> None:
    low = quarters / 4
    knob = FloatDistribution(low, low + width, step=step)
    near = clipped(value, knob)
    assert knob._contains(near)
    assert abs(near - min(max(value, knob.low), knob.high)) <= (step or 0) / 2 + 1e-9
    whole = IntDistribution(-3, -3 + 2 * width, step=2)
    assert whole._contains(clipped(round(value), whole))


_FEATURES = st.fixed_dictionaries({name: st.integers(-9, 9).map(float) for name in "abc"})


def test_distances_are_sums_of_shares_of_what_each_feature_spans() -> None:
    own = {"rows": 8.0, "classes": 2.0, "teacher": 0.5}
    others = [
        {"rows": 8.0, "classes": 4.0, "teacher": 0.5},
        {},
        {"rows": 10.0, "classes": 3.0, "teacher": 0.5},
        dict(own),
    ]
    assert distances(own, others) == [1.0, math.inf, 1.5, 0.0]


@given(_FEATURES, st.lists(_FEATURES, max_size=5), st.sampled_from("abc"), st.integers(1, 4))
def test_the_unit_of_a_feature_decides_no_distance(
    own: dict[str, float], others: list[dict[str, float]], name: str, factor: int
) -> None:
    scaled = [{**task, name: 2**factor * task[name] + 1} for task in (own, *others)]
    assert distances(scaled[0], scaled[1:]) == pytest.approx(distances(own, others))


def test_the_fronts_of_the_nearest_tasks_come_first(
    study: Study, earlier: RunRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of equally near ones the most similar study's, then as they are named; a run that says
    nothing of its task comes last."""
    own = {"rows": 5.0, "teacher": 0.9}
    tasks = {
        "unknown": {},
        "far": {"rows": 9.0, "teacher": 0.5},
        "near": {"rows": 5.0, "teacher": 0.8},
        "another": {"rows": 5.0, "teacher": 0.8},
        "alike": {"rows": 5.0, "teacher": 0.8},
    }
    runs = {
        name: replace(
            earlier,
            name=name,
            features=features,
            definition={**earlier.definition, "seq_len": "16" if name == "alike" else name},
        )
        for name, features in tasks.items()
    }
    monkeypatch.setattr(warm_start, "read_run", runs.get)
    warm = replace(study, warm_start=tuple(tasks), trials=99)
    definition = {**earlier.definition, "seq_len": "16"}
    found = [name.split(" trial")[0] for name, _ in warm_start.warm_start(warm, definition, own)]
    assert list(dict.fromkeys(found))[2:] == ["alike", "near", "another", "far", "unknown"]


def test_a_run_records_what_tells_its_task_from_others(earlier: RunRecord) -> None:
    assert earlier.features == pytest.approx(
        {
            "rows": math.log(128),
            "length": earlier.features["length"],
            "classes": 3.0,
            "entropy": math.log(3),
            "teacher": earlier.unpruned.metric,
        },
        rel=0.01,
    )
    assert 3 < math.exp(earlier.features["length"]) < 16
