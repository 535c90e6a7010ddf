"""Soft choices: weights over the choices of each place, which follow gradients.

The weights go into a super-net, whose loss has a gradient with respect to alpha, their logits:"""

#     softmax  over the choices of a place: DARTS (Liu et al. 2019). Places that are named together
#              share one softmax, as all (predecessor, operation) pairs that enter a node do in
#              I-DARTS (Jiang et al. 2019).
#     gumbel   one-hot, the largest of alpha + Gumbel noise; backward as the softmax of these over
#              the temperature (straight through): GDAS (Dong & Yang 2019), AdaBERT (2020).
#
# The feedback is gradients instead of scores: `learn` takes one step of Adam against them. The
# first order takes them at the present weights of the super-net, the second after a step of these,
# as `SoftSearch` has it. `propose` gives the candidate of the largest weights, and then draws.

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from objectives.errors import Checked, NonNegativeFloat, PositiveFloat, UserError
from objectives.strategies.strategy import Candidate, Places, Strategy

_START = 1e-3  # standard deviation of alpha at the start, as DARTS has it


@dataclass(frozen=True, kw_only=True)
class SoftSettings(Checked):
    """Settings of `SoftChoices`; the defaults are those of DARTS."""

    kind: Literal["softmax", "gumbel"] = "softmax"
    """Weighted sums of all choices, or one choice drawn at a time."""
    together: tuple[tuple[str, ...], ...] = ()
    """Places whose choices share one softmax, and of which one choice in all is drawn."""
    temperature: tuple[PositiveFloat, PositiveFloat] = (1.0, 1.0)
    """Temperature at the start and at the end of the search. > 0."""
    schedule: Literal["exponential", "linear"] = "exponential"
    """Schedule of the temperature from one to the other."""
    learning_rate: PositiveFloat = 3e-4
    """Learning rate of Adam. > 0."""
    weight_decay: NonNegativeFloat = 1e-3
    """Factor of alpha that is added to the gradient (L2). >= 0."""


ADABERT = SoftSettings(kind="gumbel", temperature=(1.0, 0.2), learning_rate=1e-4)
"""Chen et al. 2020, as the official code has it."""
GDAS = SoftSettings(kind="gumbel", temperature=(10.0, 0.1), schedule="linear")
"""Dong & Yang 2019."""

ChoiceGradients = Mapping[str, Tensor]
"""Gradients of each place, of the shape of its alpha: (choices,)."""


class SoftChoices(Strategy[ChoiceGradients]):
    """Alpha of each place, the weights computed from it, and its optimiser."""

    def __init__(self, places: Places, seed: int, settings: SoftSettings = SoftSettings()):
        super().__init__(places, seed)
        named = [name for group in settings.together for name in group]
        if len(set(named)) < len(named) or not set(named) <= set(places):
            raise UserError(
                f"SoftSettings.together has {settings.together!r}; name places, each only once"
            )
        self._settings = settings
        alone = [(name,) for name in self.places if name not in named]
        self._groups = [*settings.together, *alone]
        draws = {name: self._rng.standard_normal(len(c)) for name, c in self.places.items()}
        self.alpha = {
            name: torch.from_numpy(_START * drawn).float().requires_grad_()
            for name, drawn in draws.items()
        }
        """Logits of each place, (choices,)."""
        rate, decay = settings.learning_rate, settings.weight_decay
        self._optimizer = torch.optim.Adam(
            self.alpha.values(), lr=rate, betas=(0.5, 0.999), weight_decay=decay
        )

    def temperature(self, progress: float) -> float:
        """Temperature at this share of the search, in [0, 1]."""
        start, end = self._settings.temperature
        if self._settings.schedule == "linear":
            return start + (end - start) * progress
        return float(start * (end / start) ** progress)

    def weights(self, progress: float = 0.0) -> dict[str, Tensor]:
        """Weights of each place's choices, (choices,), differentiable; "gumbel" draws them anew."""
        weights: dict[str, Tensor] = {}
        for group in self._groups:
            logits = torch.cat([self.alpha[name] for name in group])
            if self._settings.kind == "gumbel":
                logits = logits + torch.from_numpy(self._rng.gumbel(size=len(logits))).float()
            soft = (logits / self.temperature(progress)).softmax(-1)
            if self._settings.kind == "gumbel":
                soft = one_hot(soft.argmax(-1), len(soft)) + (soft - soft.detach())
            sizes = [len(self.places[name]) for name in group]
            weights.update(zip(group, soft.split(sizes), strict=True))
        return {name: weights[name] for name in self.places}

    def learn(self, feedback: ChoiceGradients) -> None:
        """Take a step of Adam against gradients of a loss; a place without one stays as it is."""
        for name, alpha in self.alpha.items():
            alpha.grad = feedback[name].detach().clone() if name in feedback else None
        self._optimizer.step()

    @torch.no_grad()
    def propose(self, k: int) -> list[Candidate]:
        """Propose the largest weight of each place, then k - 1 draws by the softmax of each."""
        probabilities = {name: a.double().softmax(-1).numpy() for name, a in self.alpha.items()}
        candidates: list[Candidate] = [
            {name: c[int(probabilities[name].argmax())] for name, c in self.places.items()}
        ]
        while len(candidates) < k:
            drawn = {n: int(self._rng.choice(len(p), p=p)) for n, p in probabilities.items()}
            candidates.append({name: c[drawn[name]] for name, c in self.places.items()})
        return candidates[:k]
