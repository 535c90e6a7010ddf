"""The bi-branch super-net: candidates are plain models; kernels are taken and written back."""

import pytest
import torch
from torch import Tensor

from objectives.methods.cells.auto_bert_zero import BiBranchNet, operations_of
from objectives.students.cells.cell_classifier import CellConfig, CellForSequenceClassification
from tests.objectives.students.cells.known_formulas import FORMULAS

LAYERS = (FORMULAS["layer 12"], "light9")
KERNEL = "blocks.3.operation.kernels_HK"


@pytest.fixture
def net() -> BiBranchNet:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = CellConfig(vocab_size=50, hidden_size=32, num_labels=3)
        net = BiBranchNet(2, CellForSequenceClassification(config), 24)
        for weight in net.parameters():  # kernels begin as zeros
            weight.data += 0.1 * torch.randn_like(weight)
    return net


def largest(net: BiBranchNet) -> Tensor:
    """The kernel of the second layer, (2 heads, 65)."""
    return net.get_parameter("blocks.3.light.operation.kernels_HK").detach()


def inputs() -> dict[str, Tensor]:
    ids = torch.arange(1, 19).view(2, 9)
    mask = torch.ones_like(ids)
    mask[1, 5:] = 0
    return {"input_ids": ids, "attention_mask": mask}


def copied(net: BiBranchNet) -> dict[str, Tensor]:
    return {name: weight.clone() for name, weight in net.state_dict().items()}


def changed(net: BiBranchNet, before: dict[str, Tensor]) -> set[str]:
    return {name for name, weight in net.state_dict().items() if not weight.equal(before[name])}


def test_a_candidate_answers_as_the_plain_model_that_is_extracted(net: BiBranchNet) -> None:
    candidate, plain = net.take(LAYERS), net.extract(LAYERS)
    assert tuple(plain.config.operations) == operations_of(LAYERS)
    found, wanted = candidate(inputs()), plain(**inputs(), output_hidden_states=True)
    torch.testing.assert_close(found.logits, wanted.logits)
    torch.testing.assert_close(found.hidden_states, wanted.hidden_states)
    assert all(not w.is_meta and w.requires_grad for w in plain.parameters())
    states = zip(found.hidden_states[1:], candidate.fits(), strict=True)
    assert [fit(state).shape[-1] for state, fit in states] == [24] * 5


def test_all_formulas_share_their_linear_maps(net: BiBranchNet) -> None:
    one, other = (net.extract((FORMULAS[name], "light3")) for name in ("attention", "layer 2"))
    own, others = (model.blocks[1].operation for model in (one, other))
    assert own.maps["Q"].weight.equal(others.maps["Q"].weight)
    assert [*own.maps], [*others.maps] == (["Q", "K", "V"], ["Q", "K"])
    assert own.out.weight.equal(others.out.weight)


@pytest.mark.parametrize("kernel", [3, 9, 31])
def test_identity_matrices_give_the_middle_of_the_largest_kernel(
    kernel: int, net: BiBranchNet
) -> None:
    matrix = net.transforms[3].get_parameter(str(kernel))
    layers = (LAYERS[0], f"light{kernel}")
    middle = largest(net)[:, 32 - kernel // 2 : 33 + kernel // 2]
    torch.testing.assert_close(net.extract(layers).get_parameter(KERNEL), middle @ matrix)
    matrix.data = torch.eye(kernel)
    assert net.extract(layers).get_parameter(KERNEL).equal(middle)


def test_the_largest_kernel_is_taken_as_it_is(net: BiBranchNet) -> None:
    layers = (LAYERS[0], "light65")
    assert net.extract(layers).get_parameter(KERNEL).equal(largest(net))
    assert not [name for name in net.path(layers) if name.endswith("transform")]


def test_writing_back_touches_only_what_a_candidate_uses(net: BiBranchNet) -> None:
    before, candidate = copied(net), net.take(LAYERS)
    with torch.no_grad():
        for weight in candidate.weights.values():
            weight += 1
    assert changed(net, before) == set(), "a candidate has copies"
    net.write_back(candidate)
    own = {f"blocks.1.formula.operation.{name}" for name in ("maps.Q", "maps.K", "maps.V", "out")}
    found = changed(net, before)
    assert {name for name in found if name.startswith("blocks.1.formula.operation")} == {
        f"{name}.{kind}" for name in own for kind in ("weight", "bias")
    }
    assert not [name for name in found if "blocks.1.light" in name or "blocks.3.formula" in name]
    assert {name for name in found if name.startswith("transforms")} == {"transforms.3.9"}
    kernel = (largest(net) - before["blocks.3.light.operation.kernels_HK"]).round()
    assert kernel[:, 28:37].eq(1).all()
    assert kernel[:, :28].eq(0).all()
    assert kernel[:, 37:].eq(0).all()


def test_a_smaller_kernel_and_its_matrix_have_gradients(net: BiBranchNet) -> None:
    candidate = net.take(LAYERS)
    candidate(inputs()).logits.square().sum().backward()
    unused = {"fits", "blocks.0.LayerNorm"}  # positions are what they are whatever stands there
    for name, weight in candidate.weights.items():
        if not name.startswith(tuple(unused)):
            assert weight.grad is not None, name
            assert weight.grad.abs().sum() > 0, name
    assert {KERNEL, f"{KERNEL}.transform"} <= set(candidate.weights)
