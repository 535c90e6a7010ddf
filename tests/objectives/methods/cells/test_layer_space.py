"""Layers place by place: what is legal, which places act, what one change of a position does."""

from collections import Counter
from random import Random
from typing import Any

import pytest

from objectives.methods.cells.auto_bert_zero import Layers, LayerSpace
from objectives.students.cells.formulas import parts_of
from objectives.students.cells.graph import IDENTITY
from tests.objectives.students.cells.known_formulas import FORMULAS

SPACE = LayerSpace(layers=1, positions=5)


def spelt(*functions: tuple[Any, ...]) -> dict[str, Any]:
    """Choices of a layer of attention: of each position the function and its operands."""
    choices: dict[str, Any] = {"layers[0].kind": "attention"}
    for number, (function, *operands) in enumerate(functions):
        choices[f"layers[0].positions[{number}].function"] = function
        for place, operand in enumerate(operands):
            choices[f"layers[0].positions[{number}].inputs[{place}]"] = operand
    return choices


Q, K, V, P = range(4)
ATTENTION = spelt(
    ("transpose", K), ("matmul", Q, 4), ("scale", 5), ("softmax", 6), ("matmul", 7, V)
)


def formula_of(choices: dict[str, Any], space: LayerSpace = SPACE) -> str | None:
    layers = space.read(choices)
    return layers and layers.operations[0]


def test_standard_attention_needs_five_positions() -> None:
    assert SPACE.read(ATTENTION) == Layers((FORMULAS["attention"],), ATTENTION)
    kernel = {"layers[0].kind": "convolution", "layers[0].kernel": 15}
    assert SPACE.read({**ATTENTION, **kernel}) == Layers(("light15",), kernel)


def test_all_published_formulas_are_in_the_space() -> None:
    two = spelt(
        *(("neg", K), ("logsigmoid", 4), ("neg", 5), ("transpose", 6), ("matmul", Q, 7)),
        *(("scale", 8), ("softmax", 9), ("add", K, Q), ("matmul", 10, 11)),
    )
    twelve = spelt(
        *(("scale", K), ("add", 4, V), ("transpose", 5), ("matmul", Q, 6), ("scale", 7)),
        *(("softmax", 8), ("matmul", 9, V)),
    )
    for name, choices, positions in (("layer 2", two, 9), ("layer 12", twelve, 7)):
        space = LayerSpace(layers=1, positions=positions)
        assert formula_of(choices, space) == FORMULAS[name]


def test_one_change_deletes_inserts_or_replaces_and_all_other_positions_stay() -> None:
    place = "layers[0].positions[2].function"
    deleted = {**ATTENTION, place: IDENTITY}
    assert formula_of(deleted) == "matmul(softmax(matmul(Q,transpose(K))),V)"
    assert SPACE.read(deleted) == Layers((formula_of(deleted) or "",), deleted), "all places act"
    assert formula_of({**deleted, place: "scale"}) == FORMULAS["attention"]
    replaced = {**ATTENTION, place: "softsign"}
    assert formula_of(replaced) == "matmul(softmax(softsign(matmul(Q,transpose(K)))),V)"


@pytest.mark.parametrize(
    ("place", "choice"),
    [
        ("positions[0].function", IDENTITY),  # Q K has no value
        ("positions[4].function", "scale"),  # n x n is no result
        ("positions[4].function", "cosine"),  # rows of n beside rows of d
        ("positions[3].inputs[0]", K),  # (n x d)(n x d)
    ],
)
def test_illegal_shapes_are_rejected(place: str, choice: Any) -> None:
    changed = {**ATTENTION, f"layers[0].{place}": choice, "layers[0].positions[2].inputs[1]": Q}
    assert SPACE.read(changed) is None


def test_less_than_two_inputs_are_rejected() -> None:
    last = "layers[0].positions[4]"
    alone = {**ATTENTION, f"{last}.function": "neg", f"{last}.inputs[0]": V}
    assert SPACE.read(alone) is None
    both = {**alone, f"{last}.function": "add", f"{last}.inputs[1]": P}
    layers = SPACE.read(both)
    assert layers is not None
    assert layers.operations == ("add(P,V)",)
    assert set(layers.choices) == {
        "layers[0].kind",
        *(f"{last}.{own}" for own in ("function", "inputs[0]", "inputs[1]")),
    }, "the other positions do not act"


def test_draws_are_legal_and_of_all_kinds() -> None:
    space, random = LayerSpace(layers=3, positions=6), Random(0)
    found = [space.drawn(random) for _ in range(100)]
    functions: Counter[str] = Counter()
    for layers in found:
        assert len(layers.operations) == 3
        assert space.read(layers.choices) == layers, "what does not act is not read"
        for name in layers.operations:
            parts = parts_of(name) if "(" in name else {}
            functions.update(part.function for part in parts.values())
            functions[name if name.startswith("light") else "formula"] += 1
    wanted = {*space.guided["layers[0].positions[0].function"], *"QKVP"} - {IDENTITY}
    assert 120 < functions["formula"] < 180, "both kinds are as likely"
    assert {*functions} == wanted | {"formula", *(f"light{k}" for k in (3, 5, 7, 9, 15, 31, 65))}
