"""Weights of few bits: trained, reconstructed after training, or drawn in an elastic training."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from benchmarks.harness import Row
from benchmarks.pruning import AsTrained
from benchmarks.tasks import Training, measure
from maskfront import BinaryBert, FisherSearch, Mrem, Stage, TernaryBert
from objectives.methods.elastic.elastic_search import ELASTIC
from objectives.pruning.staged_method import StagedMethod
from objectives.search_method import SearchMethod
from objectives.training.stages import Loss
from objectives.workbench.workbench import Workbench


def stages(kind: str, epochs: float, *, two: bool) -> tuple[Stage, ...]:
    """Return training with quantised weights: all losses at once, or in two stages."""
    losses: tuple[Loss, ...] = ("intermediate", "prediction") if two else ("prediction+hidden",)
    return tuple(
        Stage(
            name=f"{kind} {loss}",
            epochs=epochs / len(losses),
            learning_rate=3e-4,
            loss=loss,
            quantised=True,
        )
        for loss in losses
    )


def few_bits(arm: str, epochs: float) -> StagedMethod:
    """Return the method of an arm of `FewBits`."""
    kind, two = arm.removesuffix(", two stages"), arm.endswith("two stages")
    if kind.startswith("rounded"):
        return TernaryBert(weight_bits=int(kind[-1]), stages=())
    if kind.startswith("split"):
        # Half of the epochs train ternary weights, then layers are split into binary ones.
        first, then = (stages(part, epochs / 2, two=two) for part in ("ternary", "binary"))
        share = 0.5 if kind == "split half" else 1.0
        return BinaryBert(stages=first + then, first_binary=then[0].name, split=share)
    if kind == "scratch":  # one bit from the start
        return TernaryBert(weight_bits=1, stages=stages("binary", epochs, two=two))
    if arm == "ternary, attention":
        # The paper's: Q, K, V and the attention in 8 bits too, its three losses added up.
        [paper] = stages("ternary", epochs, two=False)
        paper = replace(paper, loss="prediction+intermediate", hidden_weight=1)
        return TernaryBert(attention_bits=8, stages=(paper,))
    # "half ternary" is what "split" begins with, trained for all epochs.
    ratio = 0.5 if kind == "half ternary" else 1.0
    return TernaryBert(target_ratio=ratio, stages=stages("ternary", epochs, two=two))


class FewBits(Training):
    """What do weights of two bits and one cost: learnt, split, or rounded at the end?

    Embeddings have 2 bits, inputs 8 or 4. Arms take equal epochs.
    """

    name = "few_bits"
    seeds = (0,)
    grid = {
        "input_bits": (8, 4),
        "epochs": (1.0,),
        "arm": (
            *("rounded 2", "rounded 1", "ternary", "scratch", "split", "half ternary"),
            *("ternary, two stages", "split, two stages", "split half", "ternary, attention"),
        ),
    }
    kept = ("kl", "select", "heldout", "bytes", "processor_seconds")
    groups = ("task", "arm", "input_bits", "epochs")
    means = {
        **{"kl": ".4f", "select": ".4f", "heldout": ".4f"},
        **{"bytes": ".0f", "processor_seconds": ".0f"},
    }

    def prepare(self, key: Row) -> Workbench:
        """Make what is made once a run, so that no arm's seconds have it."""
        bench = super().prepare(key)
        measure(bench, few_bits("half ternary", 0.01), 0)
        return bench

    def key(self, key: Row, bench: Workbench) -> Row:
        """Return the key; what is rounded has no epochs."""
        rounded = key["arm"].startswith("rounded")
        return {name: value for name, value in key.items() if name != "epochs" or not rounded}

    def method(self, key: Row, bench: Workbench) -> SearchMethod:
        """Return the method of an arm, with inputs of these bits."""
        return replace(few_bits(key["arm"], key.get("epochs", 0)), input_bits=key["input_bits"])


class PostTraining(Training):
    """What are few bits after training worth: rounded, reconstructed, or trained with the bits?

    W-E-A are the bits of weights, embeddings and of what enters the weights; nothing is cut.
    """

    name = "post_training"
    grid = {
        "bits": ("8-8-8", "4-4-8", "2-2-8", "2-2-4"),
        "arm": ("nearest", "matrices", "REM", "MREM-S", "MREM-P", "QAT"),
    }
    kept = ("kl", "heldout_kl", "select", "heldout", "processor_seconds", "bytes")
    groups = ("task", "bits", "arm", "rows")
    means = {
        **{"kl": ".4f", "select": ".4f", "heldout": ".4f"},
        **{"bytes": ".0f", "processor_seconds": ".1f"},
    }

    def method(self, key: Row, bench: Workbench) -> StagedMethod:
        """Return the method of an arm."""
        weights, embeddings, inputs = map(int, key["bits"].split("-"))
        settings: dict[str, Any] = {
            "target_ratio": 1.0,
            "weight_bits": weights,
            "embedding_bits": embeddings,
            "input_bits": inputs,
        }
        match key["arm"]:
            case "matrices":  # the paper's REM: one weight matrix after another
                return Mrem(**settings, each="matrix")
            case "REM":  # a module for each layer
                layers = bench.problem.shape.layers
                return Mrem(**settings, modules=layers, teacher_forcing=0.0)
            case "MREM-S":  # four modules, one after another
                return Mrem(**settings, teacher_forcing=0.0)
            case "MREM-P":  # four modules at the same time, with teacher forcing
                return Mrem(**settings, parallel=True)
        learn = stages("learn", 2, two=False) if key["arm"] == "QAT" else ()
        return FisherSearch(**settings, stages=learn)

    def rows(self, key: Row, bench: Workbench) -> list[Row]:
        """Run the trial; name the number of rows that the method learns from."""
        method, train = self.method(key, bench), len(bench.problem.train)
        learns = train if getattr(method, "stages", ()) else 0
        rows = min(method.rows, train) if isinstance(method, Mrem) else learns
        return [{**row, "rows": rows} for row in super().rows(key, bench)]


class ElasticBits(Training):
    """Does one elastic training serve all bits, if bits are drawn in it (MatQuant)?

    Students are cut as trained, and have so many bits of weights and embeddings.
    """

    name = "elastic_bits"
    seeds = (0,)
    grid = {
        "epochs": (10.0,),
        "trained_bits": ("32", "32 8 4 2"),
        "ratio": (0.5, 0.3, 0.1),
        "bits": (32, 8, 4, 2),
    }
    kept = ("kl", "select", "heldout")
    groups = ("task", "epochs", "ratio", "bits", "trained_bits")
    means = dict.fromkeys((*kept, "teacher_heldout"), ".4f")

    def method(self, key: Row, bench: Workbench) -> SearchMethod:
        """Return a cut from the elastic student of these epochs and bits."""
        drawn = tuple(map(int, key["trained_bits"].split()))
        return AsTrained(
            tolerance=0.01,
            input_bits=8,
            elastic=replace(ELASTIC, epochs=key["epochs"]),
            trained_bits=drawn if len(drawn) > 1 else (),
            target_ratio=key["ratio"],
            weight_bits=key["bits"],
            embedding_bits=key["bits"],
        )
