"""What the front's models keep of each layer, in numbers: how many units, and which ones."""

from collections import Counter
from dataclasses import dataclass

from orchestrator.runs.records import RunRecord
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
        return tuple(
            tuple(
                row[layer] / total if layer < len(row) and total else None
                for layer, total in enumerate(self.totals)
            )
            for row in self.counts
        )


def kinds_kept(run: RunRecord) -> list[Kept]:
    """What the front's models keep, by rising cost, of each kind to show: see `sizes.shown`."""
    models = [trial.result.widths for trial in run.front]
    return [
        Kept(unit=in_words(kind), counts=tuple(own.get(kind, ()) for own in models), totals=totals)
        for kind, totals in shown(models, run.unpruned.widths).items()
    ]


@dataclass(frozen=True, kw_only=True)
class Consensus:
    """Which units the models of a front agree on."""

    models: int
    heads: tuple[tuple[float, ...], ...]
    """One row a layer: the share of the models that keep each head."""
    ffn: tuple[tuple[int, int, int], ...]
    """The same for FFN neurons: how many are kept by all models, by some, by none."""


def consensus(run: RunRecord) -> Consensus | None:
    """Read the architectures of the front; None unless there are two that are all there."""
    full = list(zip(run.unpruned.heads_per_layer, run.unpruned.ffn_per_layer, strict=False))
    folder = RunFolder(run.folder)
    kept = [read_layers(folder.trial(trial.number)) for trial in run.front if full]
    if len(kept) < 2 or any(len(model) != len(full) for model in kept):
        return None
    heads, ffn = [], []
    for (all_heads, all_neurons), *models in zip(full, *kept, strict=True):
        having = Counter(head for model in models for head in set(model["heads"]))
        heads.append(tuple(having[head] / len(models) for head in range(all_heads)))
        every = set.intersection(*(set(model["ffn"]) for model in models))
        some = set.union(*(set(model["ffn"]) for model in models))
        ffn.append((len(every), len(some) - len(every), all_neurons - len(some)))
    return Consensus(models=len(kept), heads=tuple(heads), ffn=tuple(ffn))
