"""A super-net for all trials of a run, trained once on random graphs of the space (single path,
uniform: Guo et al. 2020) by the teacher's answers to the train rows."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any

import torch
from torch import Tensor

from objectives.device import to_device
from objectives.errors import PositiveFloat, PositiveInt, UserError, check_types
from objectives.methods.cells.base.learning import answers_loss, new_cell
from objectives.methods.cells.base.super_net import SuperNet
from objectives.problem import Problem
from objectives.progress import Progress
from objectives.search_method import CurvePoint, not_finite
from objectives.students.cells.genotype import Genotype, check_operations
from objectives.students.cells.graph import Graph
from objectives.students.cells.graph_space import GraphSpace
from objectives.text.data import Batch
from objectives.training.fitting import Shared, train_cells, trainable, trained_once

_FROZEN = "plain.words.0.weight"
"""The teacher's words."""


@dataclass(frozen=True, kw_only=True)
class SharedCells:
    """The training that all trials of a run share, instead of one for each."""

    space: GraphSpace
    """Which graphs there are. The trials of a run are of it."""
    epochs: PositiveFloat = 24
    """Passes over the train split. > 0."""
    learning_rate: PositiveFloat = 3e-3
    """Peak of AdamW's rate, after 10% of warm-up; then it falls linearly to 0. > 0."""
    batch_size: PositiveInt = 32
    """Sequences of a step. >= 1."""

    def __post_init__(self) -> None:
        check_types(self)
        check_operations(self.space.operations)

    def choices(self, cell: Graph) -> dict[str, Any]:
        """The choices of a canonical cell. Raises UserError for one that is not in the space."""
        try:
            return self.space.choices(cell)
        except ValueError as error:
            raise UserError(
                f"the graph is not in the space of the shared weights: {error}; "
                "SharedCells.space must hold the graphs of all trials"
            ) from error

    def canonical(self, choices: Mapping[str, Any]) -> Mapping[str, Any]:
        """The choices of the canonical cell: the spelling in which a cell is trained."""
        if not self.space.edges:
            return choices
        canonical = self.space.choices(self.space.cell(choices).canonical())
        return {**canonical, "cells": choices.get("cells", canonical["cells"])}


def new_net(space: GraphSpace, base: Genotype, problem: Problem, seed: int) -> SuperNet:
    """A new super-net of the sizes of a genotype without operations."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = SuperNet(space, new_cell(base, problem))
    return to_device(net, problem.device)


def shared_net(
    shared: SharedCells, base: Genotype, problem: Problem, progress: Progress, *, seed: int
) -> Shared[SuperNet]:
    """The super-net of a run, of the sizes of a genotype; FloatingPointError for a bad loss."""

    def train(checkpoint: Path) -> tuple[dict[str, Tensor], list[CurvePoint]]:
        net = new_net(shared.space, base, problem, seed)

        def loss(batch: Batch, step: int) -> Tensor:
            drawn = shared.canonical(shared.space.drawn(Random(f"{seed} {step}")))  # as trials' are
            weights = shared.space.one_hot(drawn)
            return answers_loss(net(batch.inputs, weights).logits, batch, problem)

        net.train()
        curve = train_cells(
            problem,
            trainable(net),
            loss,
            epochs=shared.epochs,
            learning_rate=shared.learning_rate,
            batch_size=shared.batch_size,
            seed=seed,
            progress=progress,
            stage="super-net",
            checkpoint=checkpoint,
        )
        if failure := not_finite(0, curve):
            raise FloatingPointError(failure.reason)
        return {name: w for name, w in net.state_dict().items() if name != _FROZEN}, curve

    def load(weights: Mapping[str, Tensor]) -> SuperNet:
        net = new_net(shared.space, base, problem, seed)
        net.load_state_dict(weights, strict=False)  # words are frozen
        net.train(False)
        return net

    ingredients = {**asdict(shared), **base.config(), "seed": seed}
    return trained_once(problem, "super-net", ingredients, "net.safetensors", train, load)
