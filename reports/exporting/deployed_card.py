"""Scores and model card of a folder that answers without torch."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path

from objectives.combining.cascade import Cascade, cascades, pairs_of, threefold
from objectives.combining.members import GateRows, Member
from orchestrator.runs.records import RunRecord
from orchestrator.terminal import for_shell
from reports.exporting.card import TEMPLATES
from reports.figures.cascades import stages_text
from reports.figures.compressed import ALONE, CASCADE, WRITTEN, CompressChoice, Point, files_below


@dataclass(frozen=True, kw_only=True)
class Deployed:
    """A deployed model or cascade, with scores measured on its folder."""

    folder: Path
    """Its folder."""
    cascade: Cascade
    """Expected scores: costs are milliseconds from text to label, on one thread. A model alone
    defers nothing."""
    milliseconds: float
    """Mean milliseconds of a held-out text, from text to label."""
    slow: float
    """95th percentile of the milliseconds."""
    speed_up: float
    """Speed-up over the unpruned model, in the engine whose answers are compared."""
    speed_up_int8: float | None
    """Speed-up over the unpruned model in int8; None if that was not timed."""
    heldout_agreement: float
    """Share of held-out texts that the folder answers as the unpruned model does."""
    heldout_metric: float
    """Held-out metric of the folder's answers."""
    deferred: float
    """Share of the held-out texts that the first model defers."""

    @property
    def alone(self) -> bool:
        """Whether it is a single model."""
        return len(self.cascade.stages) == 1

    def what(self) -> str:
        """The model, or those of a cascade, in words.

        Returns:
            Such as "the model of trial 3 in onnxruntime".
        """
        first, *others = [named(stage.number, stage.engine) for stage in self.cascade.stages]
        if self.alone:
            return first
        deferring = f"{first}, which defers {self.deferred:.1%} of the texts to {others[0]}"
        return ", and that one some of them to ".join([deferring, *others[1:]])

    def worth(self, metric: str) -> str:
        """Held-out numbers for people.

        Args:
            metric: the name of the task's.

        Returns:
            A line.
        """
        int8 = "" if self.speed_up_int8 is None else f" ({self.speed_up_int8:.1f} times in int8)"
        score = "" if metric == "agreement" else f"{metric} {self.heldout_metric:.4f}; "
        return (
            f"held out, {self.heldout_agreement:.1%} of its answers are the unpruned model's; "
            f"{score}{self.milliseconds:.2f} ms from text to label, "
            f"{self.speed_up:.1f} times as fast as it{int8}"
        )


def named(number: int | None, engine: str = "") -> str:
    """Describe a model of a run, with its engine if given."""
    model = "the unpruned model" if number is None else f"the model of trial {number}"
    return f"{model} in {engine}" if engine else model


def choice_of(
    done: Deployed, metric: str, gate: str, candidates: Sequence[Point]
) -> CompressChoice:
    """Describe the written model, whether it passed the `gate`, and all candidates."""
    # python would take a name that begins with "-" for options.
    shown = f"./{done.folder}" if str(done.folder).startswith("-") else done.folder
    files, folder = files_below(done.folder), for_shell(shown)
    size = sum(file.stat().st_size for file in done.folder.rglob("*") if file.is_file())
    sentences = (
        f"The folder {folder} ({size / 1e6:.1f} MB) holds {done.what()}.",
        f"{done.worth(metric).capitalize()}.",
        gate,
        f"python {folder}/classify.py < lines.txt",
    )
    written = (WRITTEN, done.what(), done.milliseconds, done.heldout_agreement)
    place, points = str(done.folder.absolute()), (*candidates, written)
    return CompressChoice(sentences=sentences, points=points, files=files, folder=place)


def candidate_points(members: Sequence[Member], rows: GateRows) -> Iterator[Point]:
    """Each model alone, then the cascades that agree more than all cheaper ones."""
    for member in members:
        agreement = rows.agreement("heldout", member.logits["heldout"].argmax(-1))
        yield (ALONE, named(member.number, member.engine), member.cost, agreement)
    best, pairs = 0.0, list(pairs_of(members, rows))
    several = cascades([*pairs, *threefold(pairs)])
    for cascade in sorted(several, key=attrgetter("heldout_cost")):
        if 0 < cascade.deferred < 1 and cascade.agreement > best:
            best = cascade.agreement
            name = f"{stages_text(cascade)}, {cascade.deferred:.0%} deferred"
            yield (CASCADE, name, cascade.heldout_cost, cascade.heldout_agreement)


def deployed_card(run: RunRecord, done: Deployed, max_length: int) -> str:
    """Markdown with the hub's front matter."""
    what = done.what()
    return TEMPLATES.get_template("deployed_card.md.j2").render(
        run=run, done=done, what=what[0].upper() + what[1:], max_length=max_length
    )
