"""Formulas of attention against numpy; shapes, spellings, padding, cost and export."""

from random import Random

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from objectives.errors import UserError
from objectives.measures.measured import measured_flops
from objectives.methods.cells.auto_bert_zero import LayerSpace
from objectives.students.cells.formulas import (
    INPUTS,
    OPERANDS,
    Formula,
    Part,
    _value,
    applied,
    formula_shape,
    parts_of,
)
from objectives.students.cells.genotype import Genotype
from objectives.students.cells.graph import Graph, Node
from tests.objectives.students.cells.known_formulas import EVERY, FORMULAS
from tests.objectives.students.cells.test_cell_classifier import cell

Array = NDArray[np.float64]
TOKENS, WIDTH, HEAD = 7, 32, 16


def soft(x: Array) -> Array:
    raised = np.exp(x - x.max(-1, keepdims=True))
    return raised / raised.sum(-1, keepdims=True)


def by_hand(name: str, q: Array, k: Array, v: Array) -> Array:
    """As the paper prints them."""
    root = np.sqrt(HEAD)
    if name == "attention":
        return soft(q @ k.T / root) @ v
    if name == "layer 2":
        return soft(q @ np.log(1 + np.exp(k)).T / root) @ (k + q)
    return soft(q @ (k / root + v).T / root) @ v


def plain(text: str, given: dict[str, Array]) -> Array:
    """The value of a formula of one head, without padding: a second evaluator."""
    values: dict[str, Array] = {}
    for name, (function, operands, _) in parts_of(text).items():
        x, y = (values[operands[n]] if operands else given[name] for n in (0, -1))
        unit = [m / np.linalg.norm(m, axis=-1, keepdims=True) for m in (x, y)]
        values[name] = {
            **dict.fromkeys(INPUTS, lambda x=x: x),
            "neg": lambda x=x: -x,
            "transpose": lambda x=x: x.T,
            "scale": lambda x=x: x / 4,
            "softmax": lambda x=x: soft(x),
            "logsigmoid": lambda x=x: -np.log1p(np.exp(-x)),
            "softsign": lambda x=x: x / (1 + abs(x)),
            "add": lambda x=x, y=y: x + y,
            "matmul": lambda x=x, y=y: x @ y,
            "cosine": lambda unit=unit: unit[0] @ unit[1].T,
            "euclidean": lambda x=x, y=y: np.linalg.norm(x[:, None] - y[None], axis=-1),
        }[function]()
    return values[name]


def evaluated(text: str, tokens: int = TOKENS) -> tuple[Array, dict[str, Array]]:
    """What the module gives before its last map, (heads, n, d), and the inputs of each head."""
    torch.manual_seed(0)
    own = Formula(WIDTH, text).double()
    own.out = torch.nn.Identity()  # type: ignore[assignment]
    hidden = torch.randn(1, tokens, WIDTH, dtype=torch.double)
    with torch.no_grad():
        found = own(hidden, torch.ones(1, tokens, 1, dtype=torch.double))
        mapped = {name: linear(hidden) for name, linear in own.maps.items()}
    heads = {
        name: value[0].unflatten(-1, (-1, HEAD)).transpose(0, 1).numpy()
        for name, value in {**mapped, "": found}.items()
    }
    return heads.pop(""), heads


@pytest.mark.parametrize("name", FORMULAS)
def test_the_published_formulas_are_what_the_paper_prints(name: str) -> None:
    found, given = evaluated(FORMULAS[name])
    for head, own in enumerate(found):
        wanted = by_hand(name, *(given.get(one, [None, None])[head] for one in "QKV"))
        np.testing.assert_allclose(own, wanted, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", EVERY)
def test_a_formula_equals_a_second_evaluator(name: str) -> None:
    found, given = evaluated(EVERY[name])
    for head, own in enumerate(found):
        wanted = plain(EVERY[name], {one: value[head] for one, value in given.items()})
        np.testing.assert_allclose(own, wanted, rtol=2e-3, atol=2e-3)  # distances are smoothed


def test_standard_attention_is_the_operation_of_that_name() -> None:
    formula, own = (cell(name, width=WIDTH) for name in (FORMULAS["attention"], "attention"))
    maps = [formula.blocks[0].operation.maps[name] for name in "QKV"]
    one = own.blocks[0].operation
    for kind in ("weight", "bias"):
        joined = torch.cat([getattr(linear, kind) for linear in maps])
        getattr(one.query_key_value, kind).data = joined.detach()
        getattr(one.out, kind).data = getattr(formula.blocks[0].operation.out, kind).detach()
    hidden, mask = torch.randn(2, 9, WIDTH), torch.ones(2, 9, 1)
    mask[1, 4:] = 0
    found, wanted = formula.blocks[0](hidden, mask), own.blocks[0](hidden, mask)
    torch.testing.assert_close(found, wanted)


def drawn(count: int, positions: int = 6) -> list[str]:
    space, random = LayerSpace(layers=1, positions=positions), Random(0)
    found: dict[str, None] = {}
    while len(found) < count:
        (name,) = space.drawn(random).operations
        found |= {name: None} if "(" in name else {}
    return list(found)


def test_shapes_agree_with_execution_on_random_graphs() -> None:
    """n is not d, so that a wrong side would show: of 10,000 parts torch says the same shape or
    the same refusal as `parts_of`."""
    random, seen = Random(0), 0
    sides = {"n": TOKENS, "d": HEAD}
    while seen < 10_000:
        known: dict[str, tuple[str, torch.Tensor]] = {
            name: ("nd", torch.ones(1, 1, TOKENS, HEAD)) for name in INPUTS
        }
        for _ in range(8):
            function = random.choice(list(OPERANDS))
            names = [random.choice(list(known)) for _ in range(OPERANDS[function])]
            said = formula_shape(function, [known[name][0] for name in names])
            seen += 1
            try:
                value = _value(function, [known[name][1] for name in names], None)
            except RuntimeError:
                assert said is None, (function, names)
                continue
            assert said is not None, (function, names)
            assert value.shape[2:] == tuple(sides[side] for side in said)
            known[applied(function, *names)] = said, value


def test_padding_reaches_no_token_of_a_random_formula() -> None:
    """Whatever stands there: other hidden states change nothing, to the last digit. What is legal
    gives n x d."""
    hidden, mask = torch.randn(1, 6, 16), torch.ones(1, 6, 1)
    mask[0, 4:] = 0
    other = hidden.clone()
    other[0, 4:] += 5
    with torch.no_grad():
        for text in drawn(100):
            own = Formula(16, text)
            found = own(hidden, mask)
            assert found.shape == hidden.shape, text
            assert found[0, :4].equal(own(other, mask)[0, :4]), text


def matmuls(parts: dict[str, Part]) -> int:
    """Multiplications of a formula for a text, its linear maps among them."""
    sides, heads = {"n": TOKENS, "d": HEAD}, WIDTH // HEAD
    total = TOKENS * WIDTH**2
    for function, operands, shape in parts.values():
        if not operands:
            total += TOKENS * WIDTH**2
        elif function in ("matmul", "cosine", "euclidean"):
            inner = sides[parts[operands[0]].shape[1]]
            total += heads * sides[shape[0]] * inner * sides[shape[1]]
    return total


@pytest.mark.parametrize("text", [*EVERY.values(), *drawn(10)])
def test_a_formula_costs_what_its_matmuls_do(text: str) -> None:
    without = measured_flops(cell(width=WIDTH), TOKENS)
    found = measured_flops(cell(text, width=WIDTH), TOKENS) - without
    assert found == 2 * matmuls(parts_of(text))


def test_what_stands_there_twice_is_computed_once() -> None:
    scores = "matmul(Q,transpose(K))"
    text = f"matmul(add({scores},softmax({scores})),V)"
    assert len(parts_of(text)) == 8


def test_a_genotype_of_formulas_survives_json() -> None:
    nodes = (Node((0,), (FORMULAS["attention"],)), Node((0, 1), ("light9", FORMULAS["layer 2"])))
    for one in (Genotype(16, tuple(FORMULAS.values())), Genotype(16, nodes=nodes)):
        assert Genotype.from_json(one.to_json()) == one
    assert one.graph == Graph(nodes).canonical()
    assert one.sizes() == {"formula": (16, 0, 16), "light9": (0, 16, 0)}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("matmul(Q,K)", "there is no matmul of nd and nd"),
        ("euclidean(Q,K)", "it gives nn, and must give nd"),
        ("add(V,K)", r"write it as 'add\(K,V\)'"),
        ("neg(neg(add(K,V)))", r"write it as 'add\(K,V\)'"),
        ("add(K, V)", r"write it as 'add\(K,V\)'"),
        ("softplus(add(K,V))", r"'softplus\(add\(K, V\)\)' is neither an input"),
        ("add(K)", r"'add\(K\)' is neither an input"),
        ("add(K,X)", "'X' is neither an input"),
        ("add(K,V", "it cannot be read"),
        ("add(K," + "-" * 1_900 + "1)", "it cannot be read"),
        ("neg(" * 300 + "K" + ")" * 300, "it cannot be read"),
        ("add(K,V)" + "[0]" * 600, "(it cannot be read|is neither an input)"),
        ("add(K," * 1_000, "it has 6,000 characters"),
    ],
)
def test_what_is_no_formula_is_refused(text: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        Genotype(16, (text,))
