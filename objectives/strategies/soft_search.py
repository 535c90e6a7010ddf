"""Base of the searches by gradient: alpha descends while the super-net learns (Liu et al. 2019).

Before each step of the weights on a batch of train, alpha takes one on a batch of alpha: down the
gradient of the task's loss plus lambda times the FLOPs hinge at what the derived cell is expected
to have. The second order takes that gradient at the weights after one step of gradient descent, as
`bilevel.py` has it, at a rate that falls linearly from `learning_rate` to 0.
"""

import abc
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor
from torch.func import functional_call

from objectives.errors import PositiveFloat, check_ranges
from objectives.problem import Problem
from objectives.progress import Progress
from objectives.strategies.aimed_search import Aimed
from objectives.strategies.bilevel import Tensors, unrolled_gradients
from objectives.strategies.places.derivation import EdgeWeights
from objectives.strategies.places.soft_choices import SoftChoices, SoftSettings
from objectives.strategies.super_net_search import Chosen, SuperNetSearch
from objectives.students.cells.genotype import Genotype
from objectives.students.cells.graph import IDENTITY, NONE
from objectives.text.data import Batch
from objectives.training.losses import task_loss
from objectives.weights.cells import answers_loss, steps_of, trainable
from objectives.weights.super_nets.super_net import SuperNet


@dataclass(frozen=True, kw_only=True)
class SoftSearch(Aimed, SuperNetSearch):
    """Base: a subclass says which weights of alpha add up to one, and which cell is derived."""

    usual: ClassVar[tuple[str, ...]] = (
        *(NONE, "max3", "mean3", IDENTITY),
        *("separable3", "separable5", "atrous3", "atrous5"),
    )
    usual_recurrent: ClassVar[tuple[str, ...]] = (NONE, *Aimed.usual_recurrent)

    grad_rescale: PositiveFloat = 3e-3
    """kappa: step size of alpha's Adam. A factor on its gradient would cancel. > 0."""
    order: Literal[1, 2] = 1
    """1: alpha's gradient at the present weights. 2: after a step of descent of theirs, slower."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_ranges(
            self, operations=(bool({*self.names} - {NONE}), f"one or more beside '{NONE}'")
        )

    @property
    def together(self) -> tuple[tuple[str, ...], ...]:
        """Places whose choices share one softmax; the others have one each."""
        return ()

    @abc.abstractmethod
    def derived(self, weights: EdgeWeights) -> Genotype:
        """The cell of some weights.

        Args:
            weights: of each of `space.all_places`, in the order of its choices.

        Returns:
            The genotype.
        """

    def _steps_on(self, step: int) -> Collection[str] | None:
        """The places whose alpha learns at a step, which count from 1; None: all."""
        return None

    def chosen(self, net: SuperNet, problem: Problem, seed: int, progress: Progress) -> Chosen:
        """By the largest weights, after a search by gradient."""
        settings = SoftSettings(together=self.together, learning_rate=self.grad_rescale)
        soft = SoftChoices(self.space.places, seed, settings)
        steps = steps_of(problem, self.search_epochs, self.batch_size)
        batches = problem.alpha.shuffled(self.batch_size, seed, problem.device)

        def loss(batch: Batch, step: int) -> Tensor:
            rate = self.learning_rate * (1 - (step - 1) / steps) if self.order == 2 else 0.0
            gradients = self._gradients(net, soft, batch, next(batches), problem, rate)
            wanted = self._steps_on(step)
            soft.learn({n: g for n, g in gradients.items() if wanted is None or n in wanted})
            fixed = {place: weights.detach() for place, weights in soft.weights().items()}
            return answers_loss(net(batch.inputs, fixed).logits, batch, problem)

        curve = self._train(problem, net, loss, self.search_epochs, "search", seed, progress)
        numbers = {place: own.tolist() for place, own in soft.weights().items()}
        return Chosen(self.derived(self.space.weights(numbers)), curve)

    def _gradients(
        self,
        net: SuperNet,
        soft: SoftChoices,
        train: Batch,
        alpha: Batch,
        problem: Problem,
        rate: float,
    ) -> Mapping[str, Tensor]:
        numbers = soft.weights()

        def logits(weights: Tensors, batch: Batch) -> Tensor:
            said = functional_call(net, dict(weights), (batch.inputs, numbers))
            logits_BC: Tensor = said.logits
            return logits_BC

        def of_train(weights: Tensors, _: Tensors) -> Tensor:
            return answers_loss(logits(weights, train), train, problem)

        def of_alpha(weights: Tensors, _: Tensors) -> Tensor:
            answers = task_loss(logits(weights, alpha)[None], alpha.labels).sum()
            return answers + self._flops_loss(net, numbers, problem).to(answers.device)

        gradients, _ = unrolled_gradients(trainable(net), soft.alpha, of_train, of_alpha, rate)
        return gradients
