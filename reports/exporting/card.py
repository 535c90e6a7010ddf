"""Model card of an exported model: its architecture, scores and sources."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from orchestrator.runs.records import FinishedTrial, RunRecord
from orchestrator.runs.results import divergence_texts, markdown, size_text
from orchestrator.runs.sizes import in_words, shown
from reports.speed import compared, read_speeds

if TYPE_CHECKING:
    from objectives.students.family import Family


def _shown(value: object) -> object:
    """Escape a value for a template, unless it is Markup; floats have four digits."""
    if isinstance(value, Markup):
        return value
    return markdown(f"{value:.4g}" if isinstance(value, float) else value)


STRICT: dict[str, Any] = {"undefined": StrictUndefined, "trim_blocks": True, "lstrip_blocks": True}
TEMPLATES = Environment(
    loader=FileSystemLoader(Path(__file__).parent),
    autoescape=False,  # Markdown
    finalize=_shown,
    keep_trailing_newline=True,
    **STRICT,
)


def model_card(
    run: RunRecord, trial: FinishedTrial, family: Family, *, plain: bool, notes: Sequence[str]
) -> str:
    """Markdown with the hub's front matter; `plain` if transformers has a class for the model."""
    from huggingface_hub import ModelCardData

    result, unpruned = trial.result, run.unpruned
    package, _, file = family.model.__module__.rpartition(".")
    base = "student" if "student" in run.sources else "teacher"
    license_ = run.sources.get(f"{base} license")
    several = license_ is not None and ", " in license_  # of an ensemble
    front_matter = ModelCardData(
        license="other" if several else license_,
        license_name=license_ if several else None,
        library_name="transformers",
        pipeline_tag="text-classification",
        tags=["maskfront", *family.tags],
    )
    metrics = {
        f"{run.metric_name}, selection split": (result.metric, unpruned.metric),
        f"{run.metric_name}, held-out split": (result.heldout_metric, unpruned.heldout_metric),
    }
    teachers = unpruned.beside
    beside = {
        what: (f"{worth:.4f}", f"{teachers[what]:.4f}" if what in teachers else "")
        for what, worth in result.beside.items()
    }
    sizes = {unit: (size, unpruned.sizes[unit]) for unit, size in result.sizes.items()}
    versions = ("maskfront", "torch", "transformers", "optuna")
    return TEMPLATES.get_template("card.md.j2").render(
        front_matter=Markup(front_matter.to_yaml()),
        run=run,
        trial=trial,
        result=result,
        unpruned=unpruned,
        plain=plain,
        family=family,
        package=package,
        file=file,
        percent=f"{100 * result.ratio:.2g}" if result.ratio < 0.1 else f"{100 * result.ratio:.1f}",
        notes=notes,
        rows=[note for note in run.notes if " rows read" in note],
        numbers=[
            *zip(unpruned.divergences, *map(divergence_texts, (result, unpruned)), strict=True),
            *((what, *(f"{number:.4f}" for number in pair)) for what, pair in metrics.items()),
            *((what, *texts) for what, texts in beside.items()),
            *((what, *map(size_text, pair)) for what, pair in sizes.items()),
            *_served(run, trial.number),
        ],
        base=base,
        license=license_,
        made={
            "search method": run.definition["method"],
            "target": f"{result.budget_name} ratio {result.target_ratio:.4g}, "
            f"give or take {result.tolerance:.1%} of it",
            **trial.knobs,
            **{
                f"{in_words(kind)} in each layer": ", ".join(map(str, result.widths[kind]))
                for kind in shown([result.widths], run.unpruned.widths)
            },
            "versions": ", ".join(f"{v} {run.versions[v]}" for v in versions if v in run.versions),
        },
    )


def _served(run: RunRecord, trial: int) -> list[tuple[str, ...]]:
    """Rows with the model's times, then its megabytes and scores in each engine."""
    times, engines = [], {}
    speeds = [speed for speed in read_speeds(run) if trial in speed.models]
    shown = compared(speeds)
    for speed in speeds:
        model, unpruned = speed.models[trial], speed.timed(None, run.unpruned)
        pair = [timed for timed in (model, unpruned) if timed is not None]
        what = f"text to label, {speed.unit}" if speed.texts else speed.unit
        faster = speed in shown and unpruned is not None
        fast = f", {model.speed_up:.2f} times as fast" if faster else ""
        times.append((f"{what}{fast}", *(size_text(timed.milliseconds) for timed in pair)))
        if speed.texts:
            times.append((f"{what}, 95th percentile", *(size_text(t.slow) for t in pair)))
        engines[f"MB in {speed.engine}"] = [f"{timed.megabytes:.1f}" for timed in pair]
        worths = [timed.worth for timed in pair if timed.worth is not None]
        if worths:
            name = f"{run.definition['task.metric']} in {speed.engine}"
            engines[f"{name}, selection split"] = [f"{w.metric:.4f}" for w in worths]
            engines[f"{name}, held-out split"] = [f"{w.heldout_metric:.4f}" for w in worths]
    rows = (*times, *((what, *texts) for what, texts in engines.items()))
    return [(*row, "")[:3] for row in rows]  # "": what the unpruned model would have there
