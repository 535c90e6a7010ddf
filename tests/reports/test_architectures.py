"""What the front's models keep: counts against the unpruned layers, and what they agree on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.runs.records import FinishedTrial, RunRecord
from orchestrator.runs.run_folder import RunFolder
from reports.figures.architectures import (
    architecture_section,
    architectures_figure,
    consensus,
    kinds_kept,
)
from reports.overlay import overlay
from reports.page.following import _trial_note
from reports.page.page import write_report
from tests.reports.conftest import widths_of, write_trial_files


@pytest.fixture
def two_of(make_trial: Any) -> Callable[..., list[FinishedTrial]]:
    """Makes two models of a front, of these widths."""
    sizes = ((500_000, 0.8), (600_000, 0.9))

    def trials(*widths: Mapping[str, Sequence[int]]) -> list[FinishedTrial]:
        return [make_trial(n, *sizes[n], widths=own) for n, own in enumerate(widths)]

    return trials


def test_architectures_are_shares_of_the_unpruned_layers(mixed_run: RunRecord) -> None:
    heads, ffn = kinds = kinds_kept(mixed_run)
    assert heads.shares == ((0.25, 1.0), (0.25, 1.0))
    assert ffn.shares == ((0.0, 0.5), (0.0, 0.5))
    drawn_heads, drawn_ffn = architectures_figure(mixed_run, kinds).data
    assert list(drawn_heads.y) == ["40% (trial 1)", "70% (trial 0)"]
    assert drawn_heads.hovertext[0][0] == "40% (trial 1)<br>layer 1: 1 of 4 heads"
    assert drawn_ffn.hovertext[1][1] == "70% (trial 0)<br>layer 2: 16 of 32 FFN neurons"


def test_a_student_with_fewer_layers_leaves_cells_empty(make_run: Any, make_trial: Any) -> None:
    run = make_run([make_trial(0, 500_000, 0.8, widths=widths_of((2,), (8,)))])
    kinds = kinds_kept(run)
    assert [kept.shares for kept in kinds] == [((0.5, None),), ((0.25, None),)]
    assert list(architectures_figure(run, kinds).data[0].text[0]) == [2, ""]


def test_layers_that_are_gone_are_shown_as_such(make_run: Any, make_trial: Any) -> None:
    shallow = {**widths_of((2, 0), (8, 0)), "layers": (1, 0)}
    *_, last = kinds_kept(make_run([make_trial(0, 500_000, 0.8, widths=shallow)]))
    assert last.unit == "the layer itself"
    assert last.shares == ((1.0, 0.0),)


def test_models_that_are_no_bert_have_kinds_of_their_own(make_run: Any, two_of: Any) -> None:
    """Where no model of the front has an operation there is nothing to have a share of."""
    cells = ({"conv5": (16, 0)}, {"conv5": (32, 0), "gated": (0, 32)})
    conv5, gated = kinds_kept(make_run(two_of(*cells)))
    assert conv5.shares == ((0.5, None), (1.0, None))
    assert gated.shares == ((None, None), (None, 1.0))


def test_widths_are_drawn_where_more_is_gone_than_heads(make_run: Any, make_trial: Any) -> None:
    """The unpruned model has 8 dimensions a head; trial 0 keeps 1 and 4 heads."""

    def kinds(**changed: tuple[int, ...]) -> list[str]:
        widths = {**widths_of((1, 4), (0, 16)), **changed}
        run = make_run([make_trial(0, 500_000, 0.8, widths=widths)])
        return [kept.unit for kept in kinds_kept(run)][2:]

    assert kinds() == []
    assert kinds(query_key=(8, 20)) == ["query and key dimensions"]
    assert kinds(query_inputs=(32, 30)) == ["inputs of Q"]


def test_sizes_of_a_model_that_is_no_bert_are_drawn(make_run: Any, two_of: Any) -> None:
    kinds = ({"gates": (3, 4), "cells": (1, 0)}, {"gates": (8, 2), "cells": (2, 2)})
    trials = two_of(*kinds)
    run = make_run(trials)
    run = replace(run, unpruned=replace(run.unpruned, widths={"gates": (8, 8)}))
    gates, cells = kinds_kept(run)
    assert (gates.unit, gates.totals, gates.counts) == ("gates", (8, 8), ((3, 4), (8, 2)))
    assert (cells.unit, cells.totals) == ("cells", (2, 2)), "the most that a model has"
    assert consensus(run) is None
    section = architecture_section(overlay([run]))
    assert section is not None
    assert [panel.name for panel in section.panels] == ["architectures"]
    assert "| layer | gates | cells |\n|---|---|---|\n| 1 | 3 of 8 |" in _trial_note(run, trials[0])


def test_a_front_without_layers_has_a_report(make_run: Any, two_of: Any, tmp_path: Path) -> None:
    """A cell whose blocks are all "none"; its neighbour on the front, if any, may have some."""
    empty, cell = two_of({}, {"conv5": (8,)})
    run = make_run([empty], folder=tmp_path)
    assert architecture_section(overlay([run])) is None
    write_report(run, tmp_path / "report.html")
    assert _trial_note(run, empty).endswith("held out 0.7900.")
    (panel,) = architecture_section(overlay([make_run([empty, cell])])).panels
    assert [list(row) for row in panel.figure.data[0].text] == [[""], [8]]


def test_models_agree_on_units_of_all(make_run: Any, two_of: Any, tmp_path: Path) -> None:
    trials = two_of(widths_of((1, 4), (0, 16)), widths_of((2, 3), (10, 32)))
    run = make_run(trials, folder=tmp_path)
    assert consensus(run) is None, "their files are not there"
    for trial in trials:
        write_trial_files(RunFolder(tmp_path).trial(trial.number), trial.result)
    agreed = consensus(run)
    assert agreed is not None
    assert agreed.heads == ((1.0, 0.5, 0.0, 0.0), (1.0, 1.0, 1.0, 0.5))
    assert agreed.ffn == ((0, 10, 22), (16, 16, 0))
    section = architecture_section(overlay([run]))
    assert section is not None
    assert section.sentences == (
        "4 of 8 heads (layer.head: 1.1, 2.1, 2.2, 2.3) and 16 of 64 FFN neurons are in all 2 "
        "models of the front; 2 heads and 22 neurons are in none.",
    )
