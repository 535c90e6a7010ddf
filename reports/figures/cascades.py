"""Cascades of a run in the figure of its front."""

import math
from collections.abc import Sequence

import plotly.graph_objects as go

from objectives.combining.cascade import Cascade, cascades, front_of, pairs_of, spread
from objectives.combining.members import GateRows, Member
from orchestrator.runs.answers import read_answers, read_rows
from orchestrator.runs.records import RunRecord
from orchestrator.runs.results import ratio_text
from reports.figures.theme import SKY, lines, plain, run_style
from reports.overlay import Overlay

_MOST = 6  # models of the front that are paired
_WORK = ("FLOPs", "latency", "bit operations")
"""Costs that are paid for each answer; a cascade always pays the others of all its models."""


def cascades_of(run: RunRecord) -> list[Cascade]:
    """Front of a run's cascades, by rising cost. Empty if the run compares divergences or numbers,
    has several labels a text, counts a stored size, or kept no answers."""
    unpruned, judged = run.unpruned, read_rows(run)
    if judged is None or unpruned.cost_name not in _WORK or unpruned.objective != "metric":
        return []
    classes = judged.unpruned["select"].shape[-1]
    if classes < 2 or judged.labels["select"].ndim == 2:
        return []
    answers = {
        trial.number: (trial.result.cost, logits)
        for trial in spread(run.front, _MOST)
        if (logits := read_answers(run, trial.number)) is not None
    }
    rows = GateRows(
        metric=run.definition["task.metric"],  # type: ignore[arg-type]
        labels=judged.labels,
        original={role: logits.argmax(-1) for role, logits in judged.unpruned.items()},
        classes=classes,
    )
    members = [Member(number, cost, logits) for number, (cost, logits) in answers.items()]
    # Of a teacher whose cost is not known, that of ratio 1 is recorded.
    if not unpruned.student_is_new or unpruned.cost != unpruned.cost_full:
        members.append(Member(None, unpruned.cost, judged.unpruned))
    return front_of(cascades(pairs_of(members, rows)))


RATIO_ALONE = "ratio"  # mark of a trace that the page shows only on the axis of the cost ratio


def add_cascades(figure: go.Figure, overlay: Overlay, fronts: Sequence[Sequence[Cascade]]) -> None:
    """Add the front of each run's cascades; `fronts` are in the order of the runs."""
    for index, (run, front) in enumerate(zip(overlay.runs, fronts, strict=True)):
        if not front:
            continue
        full, prefix, hovers = run.unpruned.cost_full, overlay.prefix(index), []
        for cascade in front:
            same = f"{cascade.agreement:.1%}, held out {cascade.heldout_agreement:.1%}"
            cost = f"{run.unpruned.cost_name} ratio {ratio_text(cascade.cost / full)}"
            texts = [
                f"{prefix}cascade: {stages_text(cascade)}",
                f"{run.metric_name} {cascade.metric:.4f}, held out {cascade.heldout_metric:.4f}",
                f"as the unpruned model: {same}",
                f"{cascade.deferred:.1%} deferred, {cost}",
            ]
            hovers.append(lines(texts))
        colour = run_style(index)["color"] if overlay.several else SKY
        marker = {"color": colour, "symbol": "triangle-down-open", "size": 9, "line": {"width": 2}}
        figure.add_scatter(
            x=[cascade.cost / full for cascade in front],
            y=[overlay.height(run, cascade.metric) for cascade in front],
            mode="lines+markers",
            name=plain(f"{prefix}cascades"),
            visible="legendonly" if overlay.several else None,
            meta=RATIO_ALONE,
            line={"shape": "hv", "dash": "dot", "width": 1.5},
            marker=marker,
            hovertext=hovers,
            hoverinfo="text",
        )
        axis, most = figure.layout.xaxis, 1.05 * max(cascade.cost / full for cascade in front)
        low, high = axis.range
        axis.range = [low, max(high, math.log10(most) if axis.type == "log" else most)]


def stages_text(cascade: Cascade) -> str:
    """Models of a cascade: "trial 3 → unpruned"."""
    numbers = [stage.number for stage in cascade.stages]
    return " → ".join("unpruned" if number is None else f"trial {number}" for number in numbers)
