"""Runs made by hand, a run in a real storage, and the browser that opens their pages."""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import optuna
import pytest
from optuna.artifacts import upload_artifact
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    distribution_to_json,
)
from optuna.trial import TrialState

from objectives.measures.bootstrap import Worth
from orchestrator.runs.artifacts import LinkingStore
from orchestrator.runs.records import (
    BUDGET,
    DEFINITION,
    FAILURE,
    RESULT,
    SOURCES,
    UNPRUNED,
    VERSIONS,
    FinishedTrial,
    RunRecord,
    State,
    TrialRecord,
    read_run,
)
from orchestrator.runs.results import TrialResult, UnprunedResult
from orchestrator.runs.run_folder import RunFolder
from orchestrator.storage.connect import open_storage
from orchestrator.study import Study
from orchestrator.workers.loop import read_study
from tests.measured import budgeted, measured

MakeTrial: TypeAlias = Callable[..., TrialRecord]
MakeRun: TypeAlias = Callable[..., RunRecord]

FLOPS = 1_000_000
SPACE: dict[str, BaseDistribution] = {
    "flops_weight": FloatDistribution(0.1, 10, log=True),
    "target_ratio": FloatDistribution(0.1, 1, log=True),
    "tolerance": FloatDistribution(0.01, 0.1),
    "mode": CategoricalDistribution(["soft", "hard"]),
}
BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "chrome")
START = 1_795_255_200.0


def widths_of(heads: Sequence[int], ffn: Sequence[int]) -> dict[str, tuple[int, ...]]:
    """Widths of layers that keep so many whole heads, of 8 dimensions, and FFN neurons."""
    inside = tuple(8 * kept for kept in heads)
    inputs = tuple(32 if kept else 0 for kept in heads)
    names = ("query_inputs", "key_inputs", "value_inputs")
    return {
        "heads": tuple(heads),
        "query_key": inside,
        "value": inside,
        **dict.fromkeys(names, inputs),
        "ffn": tuple(ffn),
    }


def _trial(
    number: int,
    flops: int,
    metric: float,
    *,
    target: float | None = None,
    widths: Mapping[str, Sequence[int]] | None = None,
    **changes: Any,
) -> FinishedTrial:
    """A finished trial, in the middle of its budget unless `target` says otherwise."""
    result = budgeted(metric, flops, FLOPS, target)
    result["widths"] = widths_of((1, 4), (0, 16)) if widths is None else widths
    knobs = {"flops_weight": 1 / 3, "mode": "soft"}
    finished: dict[str, Any] = {"state": "finished", "knobs": knobs, "failure": None, **changes}
    return FinishedTrial(number=number, result=TrialResult(**result), **finished)


def with_result(trial: FinishedTrial, **changes: Any) -> FinishedTrial:
    """The trial with other numbers in its result."""
    return replace(trial, result=replace(trial.result, **changes))


def unfinished(trial: TrialRecord, state: State, **changes: Any) -> TrialRecord:
    """The trial as it would be if it had come to no result."""
    return TrialRecord(**{**vars(trial), "state": state, "result": None, **changes})


def launched_from(run: RunRecord, study: Study) -> RunRecord:
    """The run, as if this study had been launched."""
    _, definition = read_study(study, "cpu")
    return replace(run, definition={**run.definition, **definition})


def missing_an_aim(trial: FinishedTrial) -> FinishedTrial:
    """The trial in a study that also asks for more metric."""
    return with_result(trial, aims={"metric >= 0.99": 0.1})


def _run(trials: Sequence[TrialRecord] = (), **changes: Any) -> RunRecord:
    """A run of a teacher with two layers, 4 heads and 32 FFN neurons in each, accuracy 0.9."""
    run = RunRecord(
        name="tiny",
        folder=Path("runs/tiny"),
        metric_name="accuracy",
        unpruned=replace(
            UnprunedResult(**measured(0.9, FLOPS, FLOPS), student_is_new=False),
            widths=widths_of((4, 4), (32, 32)),
            heldout_metric=0.88,
            interval=(0.88, 0.91),
            heldout_interval=(0.86, 0.89),
        ),
        trials=tuple(trials),
        definition={
            "seed": "7",
            "method": "MaskSearch",
            "task.metric": "accuracy",
            "task.max_length": "16",
        },
        versions={"torch": "2.13.0", "device": "cpu"},
        sources={"task": "tweets", "data": "tweets()", "teacher": "hub/bert"},
        notes=("96 rows read", "labels 'B' and 'b' differ in case"),
    )
    return replace(run, **changes)


@pytest.fixture
def words_run(mixed_run: RunRecord) -> RunRecord:
    """The mixed run, of which it is known what words alone are worth."""
    words = Worth(
        metric=0.85, interval=(0.83, 0.87), heldout_metric=0.84, heldout_interval=(0.82, 0.86)
    )
    return replace(mixed_run, words=words)


@pytest.fixture(scope="session")
def make_trial() -> MakeTrial:
    """Makes a finished trial from its number, cost in FLOPs (of 1,000,000) and metric."""
    return _trial


@pytest.fixture(scope="session")
def make_run() -> MakeRun:
    """Makes a run from its trials."""
    return _run


@pytest.fixture
def timed_run() -> RunRecord:
    """A run that counts milliseconds, with two models on its front."""
    name = "ms@cpu-2threads-b1-s16"
    unit = {"cost_full": 12.5, "unit": name}
    run = _run([_trial(0, 700_000, 0.89), _trial(1, 400_000, 0.81)])
    trials = [
        with_result(trial, **unit, budget_unit=name, cost=trial.result.ratio * 12.5)
        for trial in run.finished
    ]
    unpruned = replace(run.unpruned, **unit, cost=12.5)
    return replace(run, trials=tuple(trials), unpruned=unpruned)


@pytest.fixture
def mixed_run() -> RunRecord:
    """Two models on the front, one dominated, one outside its budget, one in each other state."""
    unfinished = [
        TrialRecord(number=4, state="failed", knobs={}, result=None, failure="all units closed"),
        TrialRecord(number=5, state="failed", knobs={}, result=None, failure="interrupted"),
        TrialRecord(number=6, state="running", knobs={}, result=None, failure=None),
    ]
    return _run(
        [
            _trial(0, 700_000, 0.89),
            _trial(1, 400_000, 0.81),
            _trial(2, 500_000, 0.80),
            _trial(3, 300_000, 0.95, target=0.2),
            *unfinished,
        ]
    )


def _definition(seed: int) -> dict[str, str]:
    space = {f"space.{name}": distribution_to_json(d) for name, d in SPACE.items()}
    task = {"task.metric": "accuracy", "task.max_length": "16", "task.data": "x"}
    return {"name": "many", "seed": str(seed), "method": "MaskSearch"} | task | space


def _drawn(number: int, generator: np.random.Generator) -> TrialRecord:
    """A finished trial with knobs, intervals and times: more FLOPs are better, with noise."""
    knobs = {
        "flops_weight": float(10 ** generator.uniform(-1, 1)),
        "target_ratio": float(10 ** generator.uniform(-1, 0)),
        "tolerance": float(generator.uniform(0.01, 0.1)),
        "mode": str(generator.choice(["soft", "hard"])),
    }
    missed = 1.3 if generator.random() < 0.1 else 1.0
    flops = min(FLOPS, int(knobs["target_ratio"] * missed * FLOPS))
    ratio = flops / FLOPS
    metric = float(0.88 * (1 - math.exp(-7 * ratio)) + generator.normal(0, 0.005))
    heads, ffn = round(4 * ratio), round(32 * ratio)
    more = min(4, heads + 1)
    widths = widths_of((heads, more), (ffn, ffn // 2)) | {"query_key": (4 * heads, 4 * more)}
    started = START + 50 * (number // 4)
    ended = started + 40 + 3 * (number % 4)
    target, times = knobs["target_ratio"], {"started": started, "ended": ended}
    trial = _trial(number, flops, metric, target=target, widths=widths, knobs=knobs, **times)
    return with_result(trial, tolerance=knobs["tolerance"])


def many_run(trials: int, seed: int = 0, **changes: Any) -> RunRecord:
    """A run of drawn trials, every 50th of which has failed."""
    generator = np.random.default_rng(seed)
    rows = [_drawn(number, generator) for number in range(trials)]
    rows = [
        unfinished(row, "failed", failure="loss is not finite") if row.number % 50 == 49 else row
        for row in rows
    ]
    run = _run(rows, name="many", definition=_definition(seed))
    return replace(run, **changes)


@pytest.fixture(scope="session")
def make_many() -> Callable[..., RunRecord]:
    """Makes a run of so many drawn trials."""
    return many_run


def write_trial_files(folder: Path, result: TrialResult) -> list[Path]:
    """What a trial leaves, without its weights; returns the files for the dashboard."""
    folder.mkdir(parents=True)
    layers = [
        {"heads": list(range(heads)), "ffn": list(range(ffn))}
        for heads, ffn in zip(result.heads_per_layer, result.ffn_per_layer, strict=True)
    ]
    document = {"format": "maskfront-architecture-1", "layers": layers}
    (folder / "architecture.json").write_text(json.dumps(document))
    (folder / "result.json").write_text(result.to_json())
    soft = min(1.0, result.ratio + 0.02)
    rows = [f"search,{step},{1 / (step + 1)},{soft}" for step in range(40)]
    rows += [f"recover,{step},{0.5 / (step + 1)}," for step in range(40)]
    (folder / "curve.csv").write_text("\n".join(["stage,step,loss,open_ratio", *rows]) + "\n")
    (folder / "page.html").write_text("<script>fetch('/api/studies')</script>")
    return [folder / name for name in ("architecture.json", "curve.csv", "page.html")]


@pytest.fixture(scope="session")
def stored_run(tmp_path_factory: pytest.TempPathFactory) -> RunRecord:
    """40 trials in a real storage, told as a launch tells them, with their files."""
    folder = RunFolder(tmp_path_factory.mktemp("runs") / "many")
    store_run(folder, many_run(40))
    return read_run(folder.path)


def store_run(folder: RunFolder, run: RunRecord) -> None:
    """Write a run made by hand into a storage of its own."""
    folder.artifacts.mkdir(parents=True)
    study = optuna.create_study(
        storage=open_storage(folder.storage),
        study_name=run.name,
        directions=["maximize", "minimize"],
        sampler=optuna.samplers.RandomSampler(seed=0),
    )
    study.set_user_attr(DEFINITION, run.definition)
    study.set_user_attr(VERSIONS, run.versions)
    study.set_user_attr(SOURCES, run.sources)
    study.set_user_attr(UNPRUNED, asdict(run.unpruned))
    for row in run.trials:
        study.enqueue_trial(row.knobs)
        trial = study.ask(dict(SPACE))
        if row.result is None:
            trial.set_user_attr(FAILURE, row.failure)
            study.tell(trial, state=TrialState.FAIL)
            continue
        store = LinkingStore(folder.artifacts)
        for file in write_trial_files(folder.trial(row.number), row.result):
            upload_artifact(artifact_store=store, file_path=str(file), study_or_trial=trial)
        trial.set_constraint(BUDGET, row.result.violation)
        trial.set_user_attr(RESULT, asdict(row.result))
        study.tell(trial, [row.result.metric, float(row.result.cost)])


class Tab:
    """A page of the browser, and all that it said and asked for."""

    def __init__(self, context: Any) -> None:
        self.page = context.new_page()
        self.page.set_default_timeout(120_000)  # a busy machine is no failure
        self.seen: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda message: self.seen.append(f"console: {message.text}"))
        self.page.on("pageerror", lambda error: self.seen.append(f"error: {error}"))
        self.page.on("request", lambda request: self.requests.append(request.url))

    def open_report(self, path: Path, hash_: str = "") -> Any:
        """Open a report from the disk and wait until its front is drawn."""
        self.page.goto(path.as_uri() + hash_)
        self.page.wait_for_selector("#front[data-drawn]", state="attached", timeout=180_000)
        return self.page

    def open_whole(self, path: Path) -> Any:
        """Open a report from the disk and wait until all its figures are drawn."""
        self.open_report(path)
        self.page.wait_for_selector("body[data-ready]", state="attached", timeout=180_000)
        return self.page


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Headless Chromium."""
    sync_api = pytest.importorskip(
        "playwright.sync_api", reason="NOT TESTED: no playwright; pip install 'maskfront[test]'"
    )
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        pytest.skip(f"NOT TESTED: the page in a real browser; found none of {', '.join(BROWSERS)}")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def open_tab(browser: Any) -> Iterator[Callable[..., Tab]]:
    """Opens a tab without a network; "dark" opens one of a reader who likes it dark."""
    contexts = []

    def open_one(scheme: str = "light", offline: bool = True, width: int = 1200) -> Tab:
        context = browser.new_context(
            offline=offline, color_scheme=scheme, viewport={"width": width, "height": 900}
        )
        contexts.append(context)
        return Tab(context)

    yield open_one
    for context in contexts:
        context.close()


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Where screenshots go: a folder that the environment names, or the test's own."""
    folder = Path(os.environ.get("MASKFRONT_SCREENSHOTS", tmp_path))
    folder.mkdir(parents=True, exist_ok=True)
    return folder
