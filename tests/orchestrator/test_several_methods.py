"""Studies of several methods: which one is a knob, and each draws its own knobs alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from maskfront import CellSearch, FisherSearch, RandomPruning, Run, Study, UserError, load_run
from orchestrator.command.launching import launch
from orchestrator.study_file import load_study
from reports.figures.outer_loop import FEWEST, importances
from tests.launching import run_study

METHODS = {
    "cut": RandomPruning(stages=()),
    "cells": CellSearch(width=16, operations=("conv3",), epochs=0.1, batch_size=16),
}
SPACE = {
    "cut.target_ratio": FloatDistribution(0.3, 1),
    "cut.draw": IntDistribution(0, 9),
    "cells.width": CategoricalDistribution([16, 32]),
}


@pytest.fixture(scope="module")
def study(tiny_study_file: Path) -> Study:
    first = ({"method": "cut", "cut.target_ratio": 0.5}, {"method": "cells"})
    plain = load_study(tiny_study_file)
    return replace(plain, method=METHODS, space=SPACE, first=first, trials=4)


@pytest.fixture(scope="module")
def run(study: Study, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return launch(study, out=tmp_path_factory.mktemp("several") / "run")


def test_each_trial_has_the_knobs_of_its_method(run: Run) -> None:
    assert {trial.knobs["method"] for trial in run.finished} == {"cut", "cells"}
    for trial in run.finished:
        own = {name for name in SPACE if name.startswith(f"{trial.knobs['method']}.")}
        assert trial.knobs.keys() == {"method", *own}
    assert run.finished[0].knobs["cut.target_ratio"] == 0.5


def test_both_kinds_stand_on_one_front_and_page(run: Run, tmp_path: Path) -> None:
    frame = run.dataframe()
    assert frame["cells.width"].isna().sum() == (frame["method"] == "cut").sum()
    assert run.definition["method"] == "cut: RandomPruning, cells: CellSearch"
    page = (run.folder / "report.html").read_text()
    assert "cells.width" in page
    for kind in ("cut", "cells"):
        trial = next(one for one in run.finished if one.knobs["method"] == kind)
        assert run.export(tmp_path / kind, trial=trial.number).folder.is_dir()


def test_it_goes_on_where_it_was(run: Run, study: Study) -> None:
    launch(replace(study, trials=5), out=run.folder)
    again = load_run(run.folder)
    assert len(again.finished) == 5
    assert again.finished[:4] == run.finished


@pytest.mark.slow
@pytest.mark.parametrize("sampler", ["tpe", "random", "nsgaii", "gp"])
def test_samplers_draw_conditional_knobs(study: Study, sampler: Any, tmp_path: Path) -> None:
    run_study(replace(study, sampler=sampler, first=(), trials=12), tmp_path / "run")
    run = load_run(tmp_path / "run")
    assert {trial.knobs["method"] for trial in run.finished} == {"cut", "cells"}
    for trial in run.finished:
        assert all(name.startswith(("method", trial.knobs["method"])) for name in trial.knobs)


def test_importances_are_those_of_one_method(run: Run) -> None:
    cut, cells = (
        next(trial for trial in run.finished if trial.knobs["method"] == kind)
        for kind in ("cut", "cells")
    )
    many = [
        replace(
            cut, number=n, knobs={**cut.knobs, "cut.draw": n % 10, "cut.target_ratio": 0.3 + n / 40}
        )
        for n in range(2 * FEWEST)
    ]
    found = importances(replace(run, trials=(*many, replace(cells, number=99))))
    assert found[run.metric_name].keys() == {"cut.draw", "cut.target_ratio"}
    assert sum(found[run.metric_name].values()) == pytest.approx(1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"method": {}}, "or a dict of methods by name"),
        ({"method": {"cut": "FisherSearch"}}, "or a dict of methods by name"),
        ({"method": {"a.b": FisherSearch()}, "space": {}, "first": ()}, "use letters, digits"),
        (
            {"method": {"method": FisherSearch()}, "space": {}, "first": ()},
            "but not the name 'method'",
        ),
        (
            {"space": {"width": IntDistribution(1, 2)}, "first": ()},
            "must begin with the name of a method",
        ),
        (
            {"space": {"cut.width": IntDistribution(1, 2)}, "first": ()},
            "names 'cut.width', which is",
        ),
        ({"first": ({"cut.target_ratio": 0.5},)}, "add the method's name"),
        ({"first": ({"method": "cells", "cut.draw": 1},)}, "names 'cut.draw', which is not among"),
        ({"first": ({"method": "other"},)}, "method = 'other', which"),
        ({"cost": "units"}, "is 'units', which CellSearch cannot count"),
        ({"sampler": None, "trials": 2}, "so no knobs are drawn"),
    ],
)
def test_what_goes_with_none_of_them_is_refused(
    study: Study, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        replace(study, **changes)
