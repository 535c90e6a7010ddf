"""Settings of a method by path, as a study's space names them."""

from dataclasses import replace

import pytest

from objectives.errors import UserError
from objectives.knobs import matches, settings, with_knobs
from objectives.methods.cells.cell_search import CellSearch
from objectives.methods.mask_search import MaskSearch
from objectives.search_method import populations
from objectives.students.cells.graph import Node

METHOD = MaskSearch()


def test_a_path_names_a_field_a_field_of_a_stage_or_an_entry_of_a_tuple() -> None:
    paths = settings(METHOD)
    assert paths["target_ratio"] == METHOD.target_ratio
    assert paths["stages.recover.learning_rate"] == METHOD.stages[1].learning_rate
    assert paths["temperature[1]"] == METHOD.temperature[1]
    assert "stages" not in paths
    assert "temperature" not in paths


def test_other_values_at_some_paths_leave_the_others_alone() -> None:
    search, recover = METHOD.stages
    changed = with_knobs(
        METHOD, {"target_ratio": 0.3, "stages.recover.learning_rate": 2e-4, "temperature[1]": 0.2}
    )
    assert changed == replace(
        METHOD,
        target_ratio=0.3,
        stages=(search, replace(recover, learning_rate=2e-4)),
        temperature=(METHOD.temperature[0], 0.2),
    )
    assert with_knobs(METHOD, {}) == METHOD
    assert with_knobs(METHOD, settings(changed)) == changed


def test_what_has_no_name_in_a_tuple_is_numbered() -> None:
    method = CellSearch(nodes=(Node((0,), ("conv3",)), Node((0, 1), ("gated", "identity"))))
    paths = settings(method)
    assert paths["nodes[1].inputs[1]"] == 1
    assert paths["nodes[0].combination"] == "add"
    changed = with_knobs(method, {"nodes[1].operations[0]": "conv5", "nodes[1].inputs[1]": 0})
    assert changed.nodes == (method.nodes[0], Node((0, 0), ("conv5", "identity")))


def test_a_value_out_of_range_is_refused_where_it_stands() -> None:
    with pytest.raises(UserError, match=r"^Stage\.learning_rate is -1; it must be > 0$"):
        with_knobs(METHOD, {"stages.recover.learning_rate": -1})


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("target_ration", "target_ratio"),
        ("stages.recovery.learning_rate", "stages.recover.learning_rate"),
        ("temperature[2]", "temperature[1]"),
    ],
)
def test_a_place_that_is_none_is_told_with_the_one_that_was_meant(path: str, meant: str) -> None:
    with pytest.raises(UserError) as raised:
        with_knobs(METHOD, {path: 1.0})
    said = f"MaskSearch has no setting '{path}'; did you mean '{meant}'?"
    assert str(raised.value) == said


def test_a_star_stands_for_any_stage() -> None:
    assert matches("stages.search, intermediate.learning_rate", {"stages.*.learning_rate"})
    assert not matches("stages.search.epochs", {"stages.*.learning_rate"})


def test_learning_rates_fuse_and_lengths_of_stages_do_not() -> None:
    rate, epochs = "stages.recover.learning_rate", "stages.recover.epochs"
    members = [
        METHOD,
        with_knobs(METHOD, {rate: 3e-4}),
        with_knobs(METHOD, {epochs: 2.0}),
        with_knobs(METHOD, {rate: 3e-4, epochs: 2.0}),
    ]
    assert populations(members) == [[0, 1], [2, 3]]
