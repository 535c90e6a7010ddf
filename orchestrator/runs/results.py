"""Metrics and sizes of a model, and their texts."""

import html
import json
import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Literal

from objectives.errors import Finite, FinitePositive, PositiveInt
from objectives.measures.score import Score

DIVERGENCE = "divergence"  # what people call that objective
_COST_NAMES = {  # by the unit up to the "@"
    "flops": "FLOPs",
    "params": "params",
    "units": "units",
    "ms": "latency",
    "bytes": "bytes",
    "bitops": "bit operations",
}
# Marks of Markdown in the middle of a line.
_MARKS = re.compile(r"[\\`*|~$]|(?<!\w)_|_(?!\w)|\](?=[(\[:])")
_ROUNDING = 1e-9  # a ratio outside its band by less than this is on the edge of it


@dataclass(frozen=True, kw_only=True)
class Measured(Score):
    """Score of a model in a study, with the units and the costs at ratio 1."""

    cost_full: FinitePositive
    """Ratio 1: that of the teacher, or of the unpruned student if it is another checkpoint."""
    unit: str
    """Unit of both costs, such as "flops@128", "params" or "ms@cpu-2threads-b1-s128"."""
    flops_full: PositiveInt
    """FLOPs of the model of ratio 1."""
    flops_unit: str
    """Unit of both FLOPs, such as "flops@128"."""
    objective: Literal["metric", "divergence"] = "metric"
    """Objective beside the cost: `Study.objective`."""
    beside: Mapping[str, float] = field(default_factory=dict)
    """Scores on other tasks and what was forgotten, or of their teachers: "rte accuracy"."""

    def value(self, heldout: bool = False) -> float:
        """The objective on the selection split, or held out: metric (up) or divergence (down)."""
        if self.objective == "metric":
            return self.heldout_metric if heldout else self.metric
        return self.heldout_divergence if heldout else self.divergence

    @property
    def worth(self) -> float:
        """The objective on the selection split, the higher the better."""
        return self.value() if self.objective == "metric" else -self.value()

    @property
    def divergences(self) -> dict[str, float]:
        """Divergences by name where the study compares these; else none."""
        if self.objective == "metric":
            return {}
        return {DIVERGENCE: self.value(), f"{DIVERGENCE} held out": self.value(heldout=True)}

    @property
    def heads_per_layer(self) -> tuple[int, ...]:
        """Heads of each layer; empty if the model is no BERT."""
        return self.widths.get("heads", ())

    @property
    def ffn_per_layer(self) -> tuple[int, ...]:
        """FFN neurons of each layer; empty if the model is no BERT."""
        return self.widths.get("ffn", ())

    @property
    def weight_bits(self) -> int:
        """Bits of the layer with the fewest; 32 if none is quantised."""
        return min(self.widths.get("weight_bits", (32,)))

    @property
    def ratio(self) -> float:
        """Cost relative to the model of ratio 1."""
        return self.cost / self.cost_full

    @property
    def cost_name(self) -> str:
        """Name of the cost, such as "FLOPs"."""
        return _cost_name(self.unit)

    @property
    def sizes(self) -> dict[str, float]:
        """Cost, FLOPs, parameters and bytes by unit; the cost comes first and once."""
        counted = {self.flops_unit: self.flops, "params": self.params, "bytes": self.bytes}
        return {self.unit: self.cost, **counted}


def _cost_name(unit: str) -> str:
    kind = unit.partition("@")[0]
    return _COST_NAMES.get(kind, kind)


LIMITED = ("divergence", "ratio", "flops", "params", "bytes", "ms")
"""Names that `Study.at_most` takes."""


def missed_aims(
    model: Measured, at_least: Mapping[str, float], at_most: Mapping[str, float]
) -> dict[str, float]:
    """`TrialResult.aims` of a model; milliseconds are those of a study that counts them."""
    excesses = {}
    for sign, word, aims in ((-1, ">=", at_least), (1, "<=", at_most)):
        for name, aim in aims.items():
            value = model.cost if name == "ms" else getattr(model, name)
            excesses[f"{name} {word} {aim:g}"] = sign * (value - aim) / (abs(aim) or 1)
    return excesses


def divergence_texts(model: Measured) -> list[str]:
    """`Measured.divergences` for people, to four digits."""
    return [f"{value:.4g}" for value in model.divergences.values()]


def divergence_words(model: Measured) -> str:
    """`Measured.divergences` as the beginning of a line that continues with the metric."""
    texts = zip(model.divergences, divergence_texts(model), strict=True)
    return "".join(f"{name} {text}, " for name, text in texts)


def ratio_text(ratio: float, decimals: int = 3) -> str:
    """Format a ratio of cost with these decimals, below a hundredth with two digits."""
    return f"{ratio:.{decimals}f}" if ratio >= 0.01 else f"{ratio:.2g}"


def size_text(size: float) -> str:
    """Format a size: counts in full, measurements to three decimals."""
    return f"{size:,}" if isinstance(size, int) else f"{size:,.3f}"


def short_size(size: float) -> str:
    """Shorten a size to three digits where it is large: 12.3 k, 4.56 M, 7.89 G."""
    for power, letter in ((9, "G"), (6, "M"), (3, "k")):
        if size >= 10**power:
            digits = 2 - int(math.log10(size / 10**power))
            return f"{size / 10**power:.{max(digits, 0)}f} {letter}"
    return size_text(size)


def markdown(text: object) -> str:
    """Escape text for Markdown and HTML, in one line."""
    return html.escape(_MARKS.sub(r"\\\g<0>", " ".join(str(text).split())), quote=False)


@dataclass(frozen=True, kw_only=True)
class UnprunedResult(Measured):
    """Scores of the teacher, which the students are cut from or only learn from."""

    student_is_new: bool
    """Whether the students are cut from another checkpoint, which then has ratio 1."""

    @property
    def label(self) -> str:
        """Name of the model: "unpruned" if the students are cut from it, else "teacher"."""
        return "teacher" if self.student_is_new else "unpruned"


@dataclass(frozen=True, kw_only=True)
class TrialResult(Measured):
    """Result of a finished trial, measured on the cut model."""

    target_ratio: Finite
    """R; the reached ratio if the method has no target."""
    tolerance: Finite
    """t: the reached ratio should lie in [(1 - t) R, (1 + t) R]."""
    budget_unit: str
    """Unit of the ratio R: that of the cost, or FLOPs if the cost depends on bits."""
    aims: Mapping[str, float] = field(default_factory=dict)
    """Violation of each aim of the study ("metric >= 0.85"), as a share; at most 0 if met."""

    @property
    def missed(self) -> str | None:
        """Reason why the trial is on no front: "outside its budget", or the aims that it misses."""
        if self.violation > 0:
            return "outside its budget"
        missed = [aim for aim, excess in self.aims.items() if excess > 0]
        return f"misses {', '.join(missed)}" if missed else None

    @property
    def budget_name(self) -> str:
        """Name of the cost that R refers to."""
        return _cost_name(self.budget_unit)

    @property
    def reached(self) -> float:
        """Reached ratio, in the cost that R refers to."""
        return self.ratio if self.budget_unit == self.unit else self.flops / self.flops_full

    @property
    def violation(self) -> float:
        """Distance of the reached ratio from the band around R; at most 0 inside."""
        excess = abs(self.reached - self.target_ratio) - self.tolerance * self.target_ratio
        return 0.0 if 0 < excess < _ROUNDING else excess

    def to_json(self) -> str:
        """Encode the result as one line of JSON."""
        return json.dumps(asdict(self))
