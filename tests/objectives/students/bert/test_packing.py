"""Layers that keep their weight packed answer with what they hold now, however it came there."""

from collections.abc import Callable

import pytest
import torch

from objectives.students.bert.packing import PackedLinear, pack, unpack


def layer(seed: int) -> PackedLinear:
    drawn = torch.Generator().manual_seed(seed)
    made = PackedLinear(6, 4, 8)
    made.codes.copy_(pack(torch.randint(-127, 128, (4, 6), generator=drawn), 8))
    made.scale.copy_(torch.rand(4, 1, generator=drawn) + 0.1)
    return made


CHANGES: dict[str, Callable[[PackedLinear, PackedLinear], object]] = {
    "a checkpoint is loaded": lambda old, new: old.load_state_dict(new.state_dict()),
    "assigned": lambda old, new: old.load_state_dict(new.state_dict(), assign=True),
    "a row of codes is edited": lambda old, new: old.codes[0].copy_(new.codes[0]),
    "the scale is edited": lambda old, new: old.scale.mul_(2),
    "the scale is replaced": lambda old, new: setattr(old, "scale", new.scale),
    "another precision": lambda old, new: old.double(),
}


@pytest.mark.parametrize("inference", [False, True], ids=["usual", "made in inference mode"])
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_a_layer_that_has_answered_takes_new_weights(
    change: Callable[[PackedLinear, PackedLinear], object], inference: bool
) -> None:
    with torch.inference_mode(inference):
        old, new = layer(0), layer(1)
        before = old.weight
        change(old, new)
        expected = unpack(old.codes, 8, 6) * old.scale
        assert torch.equal(old.weight, expected)
        assert before.dtype != expected.dtype or not torch.equal(before, expected)


def test_the_weight_is_made_once() -> None:
    packed = layer(0)
    assert packed.weight is packed.weight


@torch.no_grad()
def test_a_compiled_layer_takes_a_loaded_state() -> None:
    packed, units = layer(0), torch.eye(6)
    compiled = torch.compile(packed, backend="eager", fullgraph=True)
    before = compiled(units), compiled(units)
    packed.load_state_dict(layer(1).state_dict())
    assert torch.equal(before[0], before[1])
    assert torch.equal(compiled(units), layer(1)(units))
