"""ENAS' controller: an LSTM that chooses place after place, and learns by REINFORCE.

Pham et al. 2018, in the version of Pasunuru & Bansal 2019: at each place a linear layer of its own
makes logits of the LSTM's state, and the choice is drawn from their softmax and embedded as the
next input. Of each scored candidate the loss is"""

#     - log p(candidate) (score - baseline) - entropy_weight x entropy of the choices,
#
# where the baseline is a moving average of the scores. It takes up a score before that is compared
# with it, so that the first one teaches nothing. The probability is that of the present policy,
# also where the candidate was drawn from an earlier one.

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from objectives.errors import Checked, NonNegativeFloat, PositiveFloat, PositiveInt, ShareBelowOne
from objectives.strategies.strategy import Candidate, Places, Scored, Strategy

_SPREAD = 0.1  # weights start in (-0.1, 0.1)


@dataclass(frozen=True, kw_only=True)
class ControllerSettings(Checked):
    """The defaults are those of the paper's code."""

    hidden: PositiveInt = 100
    """Width of the LSTM. >= 1."""
    learning_rate: PositiveFloat = 3.5e-4
    """Learning rate of Adam. > 0. For some hundred scores in all rather 1e-2."""
    baseline_decay: ShareBelowOne = 0.95
    """Share of the old baseline in the new one, in [0, 1)."""
    entropy_weight: NonNegativeFloat = 1e-4
    """>= 0."""


class Policy(nn.Module):
    """Probabilities of the choices at each place, given those at the places before."""

    def __init__(self, places: Places, hidden: int, generator: torch.Generator):
        super().__init__()
        self._kinds = list(dict.fromkeys(places.values()))
        self._kind_of = [self._kinds.index(choices) for choices in places.values()]
        self.cell = nn.LSTMCell(hidden, hidden)
        self.decoders = nn.ModuleList(nn.Linear(hidden, len(c)) for c in places.values())
        self.embeddings = nn.ModuleList(nn.Embedding(len(kind), hidden) for kind in self._kinds)
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                parameter.uniform_(-_SPREAD, _SPREAD, generator=generator)
                if name.startswith("decoders") and name.endswith("bias"):
                    parameter.zero_()

    def walk(
        self, count: int, choose: Callable[[int, Tensor], Tensor]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Indices_NP that `choose(place, log_probs_NC)` took, log_probs_N and entropies_N."""
        # The last two are sums over the places. What `choose` gives is (N,) int64.
        hidden_NH = cell_NH = input_NH = torch.zeros(count, self.cell.hidden_size)
        taken, log_probs_N, entropies_N = [], torch.zeros(count), torch.zeros(count)
        for place, (decoder, kind) in enumerate(zip(self.decoders, self._kind_of, strict=True)):
            hidden_NH, cell_NH = self.cell(input_NH, (hidden_NH, cell_NH))
            log_probs_NC = decoder(hidden_NH).log_softmax(-1)
            index_N = choose(place, log_probs_NC)
            taken.append(index_N)
            log_probs_N = log_probs_N + log_probs_NC.gather(1, index_N[:, None])[:, 0]
            entropies_N = entropies_N - (log_probs_NC.exp() * log_probs_NC).sum(-1)
            input_NH = self.embeddings[kind](index_N)
        return torch.stack(taken, 1), log_probs_N, entropies_N


class Controller(Strategy[Scored]):
    """Draws candidates from the policy; each score that it learns is one step of Adam."""

    def __init__(
        self, places: Places, seed: int, settings: ControllerSettings = ControllerSettings()
    ):
        super().__init__(places, seed)
        self._settings = settings
        generator = torch.Generator().manual_seed(int(self._rng.integers(2**31)))
        with torch.random.fork_rng(devices=[]):  # what torch draws first is drawn again
            policy = Policy(self.places, settings.hidden, generator)
        self.policy = policy
        """Policy that candidates are drawn from."""
        self.baseline: float | None = None
        """Moving average of the scores; None before the first."""
        self._optimizer = torch.optim.Adam(self.policy.parameters(), lr=settings.learning_rate)

    @torch.no_grad()
    def propose(self, k: int) -> list[Candidate]:
        uniform_NP = torch.from_numpy(self._rng.random((k, len(self.places))))

        def draw(place: int, log_probs_NC: Tensor) -> Tensor:
            below_NC = log_probs_NC.double().exp().cumsum(-1)[:, :-1]
            return (below_NC <= uniform_NP[:, place, None]).sum(-1)

        indices_NP, _, _ = self.policy.walk(k, draw)
        places, rows = self.places.items(), indices_NP.tolist()
        return [{name: c[i] for (name, c), i in zip(places, row, strict=True)} for row in rows]

    def learn(self, feedback: Scored) -> None:
        for candidate, score in feedback:
            decay = self._settings.baseline_decay
            old = score if self.baseline is None else self.baseline
            self.baseline = decay * old + (1 - decay) * score
            log_probs_N, entropies_N = self.log_probs([candidate])
            loss = -log_probs_N * (score - self.baseline)
            self._optimizer.zero_grad()
            (loss - self._settings.entropy_weight * entropies_N).sum().backward()
            self._optimizer.step()

    def log_probs(self, candidates: list[Candidate]) -> tuple[Tensor, Tensor]:
        """Log probabilities of N candidates, (N,), and entropies, summed over the places, (N,)."""
        indices_NP = torch.tensor(
            [[c.index(chosen[name]) for name, c in self.places.items()] for chosen in candidates]
        )
        _, log_probs_N, entropies_N = self.policy.walk(
            len(candidates), lambda place, _: indices_NP[:, place]
        )
        return log_probs_N, entropies_N
