"""A morph answers as the cell it comes from, and learns."""

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from objectives.methods.cells.auto_keras import SILENT, Growth, Morph, inherit, larger, morphs
from objectives.students.cells.cell_classifier import CellConfig, CellForSequenceClassification
from objectives.students.cells.genotype import Genotype
from objectives.students.cells.graph import IDENTITY, Node
from objectives.students.cells.operations import OPERATIONS, POSITION_WISE
from tests.objectives.conformance import ATOL

EVERY = {"pooling": ("mean", "max", "min"), "bigrams": 7}
BRANCHED = Genotype(
    16,
    nodes=(
        Node((0,), ("conv3",)),
        Node((0, 1), (IDENTITY, "attention")),
        Node((1, 2), ("mean3", IDENTITY)),
    ),
)


def model(cell: Genotype, seed: int = 0) -> CellForSequenceClassification:
    """Random weights, none of them 0, in evaluation mode."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        config = CellConfig(vocab_size=30, num_labels=3, **cell.config())
        made = CellForSequenceClassification(config)
        for weight in made.parameters():
            weight.data += 0.1 * torch.randn_like(weight)
    made.train(False)
    return made


def answers(of: CellForSequenceClassification) -> Tensor:
    """Of two texts, one of which has padding."""
    ids = torch.arange(1, 19).view(2, 9)
    mask = torch.ones_like(ids)
    mask[1, 5:] = 0
    logits: Tensor = of(ids, attention_mask=mask).logits
    return logits


def child_of(
    parent: CellForSequenceClassification, cell: Genotype, morph: Morph
) -> CellForSequenceClassification:
    child = model(larger(cell, morph), seed=1)
    with torch.random.fork_rng():
        torch.manual_seed(2)
        inherit(child, parent, morph)
    return child


def gap(cell: Genotype, morph: Morph) -> float:
    """By how much the answers differ after a morph."""
    parent = model(cell)
    child = child_of(parent, cell, morph)
    return (answers(child) - answers(parent)).abs().max().item()


def of_kind(cell: Genotype, *names: str) -> tuple[Sequence[Growth], Sequence[Growth]]:
    """Those that make it deeper, and the skips."""
    found = [own for kind in morphs(cell, names, 9, cell.width) for own in kind if own]
    deep = [own for own in found if len(own.graph.nodes) > len(cell.graph.nodes)]
    return deep, [own for own in found if own not in deep]


def learns(cell: Genotype, growth: Growth) -> bool:
    """Whether every block has a gradient, the new one too."""
    child = child_of(model(cell), cell, growth)
    answers(child)[:, 0].sum().backward()  # type: ignore[no-untyped-call]
    return all(
        any(w.grad is not None and bool(w.grad.abs().max() > 0) for w in block.parameters())
        for block in child.blocks
    )


@pytest.mark.parametrize("name", SILENT)
@pytest.mark.parametrize("kind", [0, 1], ids=["deeper", "skip"])
def test_a_larger_cell_answers_as_before_and_learns(kind: int, name: str) -> None:
    recurrent = name in POSITION_WISE
    cell = Genotype(16, ("gated", "relu" if recurrent else "conv3"), recurrent=recurrent)
    growth = of_kind(cell, name)[kind][0]
    assert gap(cell, growth) < ATOL
    assert learns(cell, growth)


def test_each_morph_of_a_branched_cell_answers_as_before() -> None:
    deep, skips = of_kind(BRANCHED, "gated")
    assert (len(deep), len(skips)) == (4, 1)
    for growth in (*deep, *skips):
        assert gap(BRANCHED, growth) < ATOL


@pytest.mark.parametrize("name", [name for name in OPERATIONS if name != "positions"])
def test_a_wider_cell_answers_as_before(name: str) -> None:
    assert gap(Genotype(32, (name,), **EVERY), None) < ATOL  # type: ignore[arg-type]
    if name in POSITION_WISE:
        assert gap(Genotype(16, (name,), recurrent=True), None) < ATOL


def test_what_has_no_morph_would_answer_otherwise() -> None:
    """A sigmoid of nothing is a half; the positions of a wider cell have other frequencies."""
    recurrent = Genotype(16, recurrent=True)
    assert gap(recurrent, of_kind(recurrent, "sigmoid")[0][0]) > 100 * ATOL
    moving = Genotype(16, ("positions",))
    assert gap(moving, None) > 100 * ATOL
    assert [None] not in morphs(moving, ["conv3"], 9, 64)
    assert [None] in morphs(Genotype(16), ["conv3"], 9, 64)


def test_the_two_of_a_unit_learn_apart() -> None:
    cell = Genotype(16, ("gated",))
    child = child_of(model(cell), cell, None)
    answers(child)[:, 0].sum().backward()  # type: ignore[no-untyped-call]
    gradient = child.get_parameter("types.weight").grad
    assert gradient is not None
    one, other = gradient[0].chunk(2)
    assert (one - other).abs().min() > 0


@given(st.lists(st.integers(0, 10_000), max_size=3))
def test_morphs_of_morphs_answer_as_the_first(dice: list[int]) -> None:
    cell = Genotype(16)
    first = child = model(cell)
    for number in dice:
        kinds = morphs(cell, ("conv3", "attention4", "max3"), nodes=3, widest=64)
        kind = kinds[number % len(kinds)]
        morph = kind[number % len(kind)]
        child, cell = child_of(child, cell, morph), larger(cell, morph)
    assert (answers(child) - answers(first)).abs().max().item() < ATOL


def test_a_chain_of_two_has_these_morphs() -> None:
    cell = Genotype(16, ("conv3", "gated"))
    deep, skips = of_kind(cell, "max3")
    assert [larger(cell, growth).operations for growth in deep] == [
        ("max3", "conv3", "gated"),
        ("conv3", "max3", "gated"),
        ("conv3", "gated", "max3"),
    ]
    (skip,) = skips
    assert skip.graph.nodes[1].edges[-1] == (0, "max3")
    assert morphs(cell, ["max3"], nodes=2, widest=31) == [[skip]]
    assert morphs(cell, ["max3"], nodes=2, widest=32) == [[skip], [None]]
