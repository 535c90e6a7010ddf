"""What the front's models keep of each layer, in numbers: how many units, and which ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from orchestrator.runs.records import RunRecord, TrialRecord
from orchestrator.runs.run_folder import RunFolder
from orchestrator.runs.sizes import in_words, shown
from orchestrator.runs.trial_files import read_layers


@dataclass(frozen=True, kw_only=True)
class Kept:
    """Units of one kind that the front's models keep, one row a model, one column a layer."""

    unit: str
    counts: tuple[tuple[int, ...], ...]
    """A student may have fewer layers than the unpruned model: its row is then shorter."""
    totals: tuple[int, ...]
    """Of the unpruned model, one a layer."""

    @property
    def shares(self) -> tuple[tuple[float | None, ...], ...]:
        """Kept units as a share of the layer's; None where there is no such layer."""
        layers = len(self.totals)
        return tuple(
            tuple(
                row[layer] / self.totals[layer] if layer < len(row) and self.totals[layer] else None
                for layer in range(layers)
            )
            for row in self.counts
        )


@dataclass(frozen=True, kw_only=True)
class ArchitecturesView:
    """The front's models by rising cost."""

    trials: tuple[int, ...]
    ratios: tuple[float, ...]
    kinds: tuple[Kept, ...]
    """Those to show of any model: see `sizes.shown`."""


def architectures_view(run: RunRecord) -> ArchitecturesView:
    """Take how much each model of the front keeps."""
    results = [trial.result for trial in run.front]
    kinds = shown([result.widths for result in results], run.unpruned.widths)
    return ArchitecturesView(
        trials=tuple(trial.number for trial in run.front),
        ratios=tuple(result.ratio for result in results),
        kinds=tuple(
            Kept(
                unit=in_words(kind),
                counts=tuple(result.widths.get(kind, ()) for result in results),
                totals=totals,
            )
            for kind, totals in kinds.items()
        ),
    )


@dataclass(frozen=True, kw_only=True)
class Consensus:
    """Which units the models of a front agree on."""

    models: int
    heads: tuple[tuple[float, ...], ...]
    """One row a layer: the share of the models that keep each head."""
    ffn_always: tuple[int, ...]
    """FFN neurons of each layer that every model keeps."""
    ffn_sometimes: tuple[int, ...]
    ffn_never: tuple[int, ...]


def consensus(run: RunRecord) -> Consensus | None:
    """Read the architectures of the front; None unless there are two that are all there."""
    layers = len(run.unpruned.heads_per_layer)
    kept = [_kept_units(run, trial) for trial in run.front if layers]
    if len(kept) < 2 or any(len(model) != layers for model in kept):
        return None
    heads, always, sometimes, never = [], [], [], []
    for layer in range(layers):
        models = [model[layer] for model in kept]
        heads.append(
            tuple(
                sum(head in model["heads"] for model in models) / len(models)
                for head in range(run.unpruned.heads_per_layer[layer])
            )
        )
        every = set.intersection(*(model["ffn"] for model in models))
        some = set.union(*(model["ffn"] for model in models))
        always.append(len(every))
        sometimes.append(len(some) - len(every))
        never.append(run.unpruned.ffn_per_layer[layer] - len(some))
    return Consensus(
        models=len(kept),
        heads=tuple(heads),
        ffn_always=tuple(always),
        ffn_sometimes=tuple(sometimes),
        ffn_never=tuple(never),
    )


def _kept_units(run: RunRecord, trial: TrialRecord) -> Sequence[Mapping[str, set[int]]]:
    layers = read_layers(RunFolder(run.folder).trial(trial.number))
    return [{name: set(layer[name]) for name in ("heads", "ffn")} for layer in layers]
