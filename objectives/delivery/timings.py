"""Records of models' milliseconds in engines. Imports no torch, for reports."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from objectives.engines.names import Engine
from objectives.errors import FinitePositive, PositiveInt
from objectives.measures.bootstrap import Worth


@dataclass(frozen=True, kw_only=True)
class Timing:
    """Times of a model in an engine: forward passes of token ids, or calls from text to label."""

    model: str
    """Folder of the model, or name of the reference."""
    engine: Engine
    bits: PositiveInt
    """Bits of the weights in this engine."""
    bytes: PositiveInt
    """Bytes that the engine loads."""
    batch: PositiveInt
    length: PositiveInt
    """Tokens in each sequence of a batch, without padding; for texts the rounded mean."""
    flops: PositiveInt
    """FLOPs of one sequence of this length."""
    quartiles: tuple[FinitePositive, FinitePositive, FinitePositive]
    """Milliseconds of one pass or call: the first quartile, the median, the third."""
    slow: FinitePositive
    """95th percentile of the milliseconds."""
    texts: bool = False
    """Whether calls from text to label were timed, on the task's texts and with the tokenizer; such
    times are only compared with one another."""
    flops_ratio: FinitePositive = 1.0
    """FLOPs relative to the reference."""
    against: str = ""
    """The float32 engine in which the reference is fastest."""
    speed_up: FinitePositive = 1.0
    """Speed-up over the reference in the engine `against`."""
    speed_up_in_engine: FinitePositive = 1.0
    """Speed-up over the reference in the same engine."""
    worth: Worth | None = None
    """Scores on the study's data; None where the model was not scored in this engine: with the
    run's own bits the scores are those of its trial."""
    trial: int | None = None
    """Number of the model's trial in a run."""

    @property
    def milliseconds(self) -> float:
        """Median milliseconds."""
        return self.quartiles[1]

    @property
    def megabytes(self) -> float:
        """10^6 bytes that the engine loads."""
        return self.bytes / 1e6

    @property
    def text(self) -> str:
        """Milliseconds, for people."""
        return f"{self.milliseconds:.2f} ms (95% within {self.slow:.2f})"


@dataclass(frozen=True)
class Bench:
    """All timings of one process."""

    reference: str
    """Model to which speed-ups refer."""
    timings: tuple[Timing, ...]
    """Timings, those of texts first."""
    skipped: Mapping[str, str]
    """Reasons of engines that did not run, by engine."""
    conditions: Mapping[str, str | int]


def with_comparisons(timings: Iterable[Timing], reference: str) -> tuple[Timing, ...]:
    """Fill in the comparisons with the reference on the same shape, those of texts first."""
    timings = sorted(timings, key=lambda timing: not timing.texts)
    rows = []
    for timing in timings:
        shape = timing.texts, timing.batch, timing.length
        rivals = {
            other.engine: other
            for other in timings
            if other.model == reference and (other.texts, other.batch, other.length) == shape
        }
        # A user who named no float32 engine gets the fastest of those that are there.
        fastest = min(rivals.values(), key=lambda rival: (rival.bits != 32, rival.milliseconds))
        same = rivals[timing.engine]
        rows.append(
            replace(
                timing,
                flops_ratio=timing.flops / same.flops,
                against=fastest.engine,
                speed_up=fastest.milliseconds / timing.milliseconds,
                speed_up_in_engine=same.milliseconds / timing.milliseconds,
            )
        )
    return tuple(rows)
