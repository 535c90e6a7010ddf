"""The bi-branch super-net of AutoBERT-Zero (Gao et al. 2022): each layer has an attention, whose
linear maps all formulas share, and a light convolution of the largest kernel.

A smaller kernel is the middle of the largest, times a square matrix of its own, which begins as the
identity. A candidate trains a copy of the weights that it uses; what it changed is written back.
"""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from string import digits

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional
from transformers.modeling_outputs import SequenceClassifierOutput

from objectives.students.cells.cell_classifier import (
    CellBlock,
    CellConfig,
    CellForSequenceClassification,
)
from objectives.students.cells.formulas import is_formula
from objectives.students.cells.operations import LIGHT_KERNELS

_TRANSFORM = ".transform"
_ALL_INPUTS = "add(add(K,P),add(Q,V))"


def operations_of(layers: Sequence[str]) -> tuple[str, ...]:
    """The blocks of a model of these layers: positions first, a feed-forward after each layer."""
    return ("positions", *chain.from_iterable((layer, "feed_forward") for layer in layers))


def _kind(operation: str) -> str:
    return "formula" if is_formula(operation) else operation.rstrip(digits)


class BiBranchNet(nn.Module):
    """All models of some layers."""

    def __init__(self, layers: int, plain: CellForSequenceClassification, teacher_size: int):
        """`plain` is a model without blocks: words, classifier and sizes are its own."""
        super().__init__()
        self.plain, width = plain, plain.config.hidden_size
        wholes = [(_ALL_INPUTS, f"light{LIGHT_KERNELS[-1]}")] * layers
        every = [
            ("positions",),
            *chain.from_iterable((branches, ("feed_forward",)) for branches in wholes),
        ]
        self.blocks = nn.ModuleList(
            nn.ModuleDict({_kind(name): CellBlock(width, name) for name in names})
            for names in every
        )
        self.transforms = nn.ModuleList(
            nn.ParameterDict({str(kernel): torch.eye(kernel) for kernel in LIGHT_KERNELS[:-1]})
            for _ in every
        )
        self.fits = nn.ModuleList(nn.Linear(width, teacher_size) for _ in every)
        """Linear maps from the state behind each block to the teacher's."""

    def model(self, layers: Sequence[str]) -> CellForSequenceClassification:
        """The plain model of some layers, without its blocks' weights; the rest is not copied."""
        config = {**self.plain.config.to_dict(), "operations": operations_of(layers)}
        with torch.device("meta"):
            model = CellForSequenceClassification(CellConfig.from_dict(config))
        for name, child in self.plain.named_children():
            if name not in ("blocks", "reads"):
                setattr(model, name, child)
        return model

    def path(self, layers: Sequence[str]) -> dict[str, Tensor]:
        """The weights that some layers use, as views: the model's by its names, `transforms`,
        `fits`."""
        model, names = self.model(layers), operations_of(layers)
        views: dict[str, Tensor] = {
            f"fits.{name}": weight for name, weight in self.fits.named_parameters()
        }
        for name, weight in model.named_parameters():
            if not name.startswith("blocks."):
                views |= {name: weight} if weight.requires_grad else {}
                continue
            _, number, parameter = name.split(".", 2)
            kind = _kind(names[int(number)])
            views[name] = largest = self.get_parameter(f"blocks.{number}.{kind}.{parameter}")
            if weight.shape != largest.shape:
                taps = weight.shape[-1]
                views[name] = largest.narrow(-1, (largest.shape[-1] - taps) // 2, taps)
                views[name + _TRANSFORM] = self.get_parameter(f"transforms.{number}.{taps}")
        return views

    def take(self, layers: Sequence[str]) -> "Student":
        """Some layers with copies of the weights that they use."""
        copies = {
            n: view.detach().clone().requires_grad_() for n, view in self.path(layers).items()
        }
        return Student(tuple(layers), self.model(layers), copies)

    @torch.no_grad()
    def write_back(self, candidate: "Student") -> None:
        """Take over its weights."""
        for name, view in self.path(candidate.layers).items():
            view.copy_(candidate.weights[name])

    @torch.no_grad()
    def extract(self, layers: Sequence[str]) -> CellForSequenceClassification:
        """The plain model of some layers with copies of their weights."""
        candidate = self.take(layers)
        model = copy.deepcopy(candidate.model)
        model.load_state_dict(candidate.of_model(), strict=False, assign=True)
        model.train(False)
        return model


@dataclass(frozen=True, eq=False)
class Student:
    """Layers with weights of their own."""

    layers: tuple[str, ...]
    model: CellForSequenceClassification
    weights: Mapping[str, Tensor]
    """See `BiBranchNet.path`."""

    def __call__(self, inputs: Mapping[str, Tensor]) -> SequenceClassifierOutput:
        """Run the model; the answer has its hidden states."""
        kwargs = {**inputs, "output_hidden_states": True}
        answer: SequenceClassifierOutput = functional_call(
            self.model, self.of_model(), kwargs=kwargs
        )
        return answer

    def of_model(self) -> dict[str, Tensor]:
        """The weights of the model by its names, kernels transformed."""
        weights = self.weights
        return {
            name: weight @ weights[name + _TRANSFORM] if name + _TRANSFORM in weights else weight
            for name, weight in weights.items()
            if not name.startswith("fits.") and not name.endswith(_TRANSFORM)
        }

    def fits(self) -> Iterator[Callable[[Tensor], Tensor]]:
        """Maps of the state behind each block to the teacher's."""
        for number in range(len(self.model.blocks)):
            weight, bias = (self.weights[f"fits.{number}.{kind}"] for kind in ("weight", "bias"))
            yield partial(functional.linear, weight=weight, bias=bias)
