"""The outer loop in figures: hypervolume, importance, knobs."""

import warnings
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from operator import attrgetter
from typing import Any

import numpy as np
import optuna
import plotly.graph_objects as go
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution
from optuna.trial import create_trial
from plotly.subplots import make_subplots

from orchestrator.runs.busy_clock import BusyClock
from orchestrator.runs.records import BUDGET, METHOD, FinishedTrial, RunRecord, pareto_front
from reports.figures import theme
from reports.figures.theme import Panel, Section
from reports.overlay import Overlay

Steps = Sequence[tuple[float, float]]  # rising positions, and the height from each on
FEWEST = 10  # finished trials below which importances and the growth of the front are noise
_SHOWN = 40  # finished trials below which the page's importances might contradict the trials


@dataclass(frozen=True, kw_only=True)
class Hypervolume:
    """Growth of a run's front, as a share of the ideal: the unpruned metric at cost 0."""

    seconds: tuple[float, ...]  # ends of finished trials on the busy clock; empty if not known
    shares: tuple[float, ...]  # of the ideal area that the front covered at each end


def reference_point(worth: float) -> tuple[float, float]:
    """The worst corner (worth, ratio) of the hypervolume: half the unpruned worth at ratio 1; that
    worth less 1 if it is 0 or less, as correlations may be and divergences are."""
    return (worth / 2 if worth > 0 else worth - 1, 1.0)


def hypervolume(run: RunRecord) -> Hypervolume:
    """The hypervolume of worth and ratio after each finished trial."""
    ended = sorted(run.finished, key=attrgetter("end", "number"))
    front, volumes = list[FinishedTrial](), list[float]()
    for trial in ended:
        front = pareto_front([*front, trial])
        steps = [(member.result.ratio, member.result.worth) for member in front]
        volumes.append(share_covered(steps, run.unpruned.worth))
    clock, ends = BusyClock(run.trials), [t.ended for t in ended if t.ended is not None]
    return Hypervolume(seconds=tuple(map(clock, ends)) if clock else (), shares=tuple(volumes))


def share_covered(steps: Steps, unpruned: float) -> float:
    """Area below steps from `reference_point`, as a share of that below the metric `unpruned`."""
    worst, last = reference_point(unpruned)
    return area(steps, worst, last) / ((unpruned - worst) * last)


def area(steps: Steps, worst: float, last: float) -> float:
    """The area under a step curve (ratio, metric), above `worst` and up to the ratio `last`."""
    return sum(
        max(0.0, metric - worst) * max(0.0, min(end, last) - ratio)
        for (ratio, metric), (end, _) in pairwise([*steps, (last, worst)])
    )


def quartiles(histories: Sequence[Steps]) -> tuple[list[float], list[list[float]]]:
    """Every x at which a step curve steps, up to the end of the shortest, and quartiles of all."""
    end = min(history[-1][0] for history in histories)
    steps = sorted({x for history in histories for x, _ in history if x <= end})
    heights = [[_height(history, x) for history in histories] for x in steps]
    return steps, np.quantile(heights, (0.25, 0.5, 0.75), axis=1).tolist()


def _height(steps: Steps, x: float) -> float:
    reached = bisect_right(steps, x, key=lambda step: step[0])
    return steps[reached - 1][1] if reached else 0.0


def importances(run: RunRecord) -> dict[str, dict[str, float]]:
    """Importance of each knob for the best 10% of each objective (PED-ANOVA), summing to 1 for each
    method. Optuna's measure takes low values for good, so objectives to maximise are negated. Empty
    below `FEWEST` finished trials, and if nothing is tuned."""
    groups: dict[str, list[FinishedTrial]] = {}
    for trial in run.finished:
        groups.setdefault(str(trial.knobs.get(METHOD, "")), []).append(trial)
    targets = {
        run.objective_name: lambda trial: -trial.values[0],
        run.unpruned.cost_name: lambda trial: trial.values[1],
    }
    shares: dict[str, dict[str, float]] = {}
    for trials in groups.values():
        tuned = [name for name in run.space if name != METHOD and name in trials[0].knobs]
        if len(trials) < FEWEST or not tuned:
            continue
        study = _study(run, trials)
        # It warns that it takes low values for good: that is what it is given.
        with warnings.catch_warnings(action="ignore", category=UserWarning):
            for name, target in targets.items():
                of_objective = optuna.importance.get_param_importances(
                    study, params=tuned, target=target
                )
                shares.setdefault(name, {}).update(of_objective)
    return shares


def _study(run: RunRecord, trials: Sequence[FinishedTrial]) -> optuna.Study:
    """In-memory study of the finished trials in this order, with values (objective, ratio)."""
    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)  # no line for each study that is made
    try:
        study = optuna.create_study(directions=["maximize", "minimize"])
    finally:
        optuna.logging.set_verbosity(verbosity)
    space = run.space  # read once: it is JSON in the definition
    for trial in trials:
        distributions = {name: space[name] for name in space if name in trial.knobs}
        study.add_trial(
            create_trial(
                values=[trial.result.worth, trial.result.ratio],
                params={name: trial.knobs[name] for name in distributions},
                distributions=distributions,
                constraints={BUDGET: trial.result.violation, **trial.result.aims},
            )
        )
    return study


def knob_panel(overlay: Overlay) -> Panel | None:
    """Plot each knob against each objective; None if the runs tune nothing."""
    spaces = joined_space(overlay)
    if not spaces:
        return None
    gaps = {"horizontal_spacing": theme.spacing(len(spaces)), "vertical_spacing": 0.06}
    figure = make_subplots(rows=2, cols=len(spaces), shared_xaxes=True, shared_yaxes=True, **gaps)
    for column, (knob, distribution) in enumerate(spaces.items(), start=1):
        for index, run in enumerate(overlay.runs):
            trials = [trial for trial in run.finished if knob in trial.knobs]
            heights = [overlay.height(run, trial.result.value()) for trial in trials]
            ratios = [trial.result.ratio for trial in trials]
            opacity = [1 if trial.feasible else 0.35 for trial in trials]
            trace = knob_points(overlay, index, knob, trials)
            trace["marker"] = {**theme.run_style(index), "size": 6, "opacity": opacity}
            for row, values in enumerate((heights, ratios), start=1):
                y, shown = theme.brief(values), overlay.several and column == row == 1
                figure.add_scatter(**trace, y=y, showlegend=shown, row=row, col=column)
        drawn = chain.from_iterable(run.finished for run in overlay.runs)
        figure.update_xaxes(theme.AXIS | theme.knob_axis(knob, distribution, drawn), col=column)
        figure.update_xaxes(theme.x_axis(knob), row=2, col=column)
        figure.update_xaxes(title_text=theme.in_lines(knob, len(spaces)), row=2, col=column)
    figure.update_yaxes(theme.AXIS)
    figure.update_yaxes(title={"text": theme.plain(overlay.objective_name)}, row=1, col=1)
    if overlay.by_divergence:
        figure.update_yaxes(theme.DIVERGENCE_AXIS, row=1)
    ratio = {"text": f"{overlay.cost_name} ratio"}
    figure.update_yaxes(title=ratio, tickformat=".0%", row=2, col=1)
    theme.lay_out(figure, height=460, legend=None)
    caption = "Every finished trial; faint ones miss their budget or an aim."
    return Panel("slices", "Each knob against each objective", figure, caption)


def joined_space(overlay: Overlay) -> dict[str, BaseDistribution]:
    """Knobs of finished trials, each with a distribution that holds its values in all runs."""
    named: dict[str, list[BaseDistribution]] = {}
    drawn = {name for run in overlay.runs for trial in run.finished for name in trial.knobs}
    for run in overlay.runs:
        for name, distribution in run.space.items():
            named.setdefault(name, []).append(distribution)
    joined = {name: _joined(distributions) for name, distributions in named.items()}
    return {name: space for name, space in joined.items() if space and name in drawn}


def _joined(distributions: Sequence[BaseDistribution]) -> BaseDistribution | None:
    """Union of distributions, logarithmic if all are; None for numbers beside categories."""
    choices = [d.choices for d in distributions if isinstance(d, CategoricalDistribution)]
    if len(choices) == len(distributions):
        return CategoricalDistribution(list(dict.fromkeys(chain(*choices))))
    if choices:
        return None
    numbers: list[Any] = list(distributions)
    low, high = min(d.low for d in numbers), max(d.high for d in numbers)
    return FloatDistribution(low, high, log=all(d.log for d in numbers))


def knob_points(
    overlay: Overlay, index: int, knob: str, trials: Sequence[FinishedTrial], unit: str = ""
) -> dict[str, Any]:
    """Trace without heights: trials of the run of this index, by a knob."""
    hover = f"trial %{{customdata[1]}}<br>{theme.plain(knob)} %{{x}}<br>%{{y}}{unit}<extra></extra>"
    return {
        "x": theme.brief(str(v) if v is None else v for v in (t.knobs[knob] for t in trials)),
        "mode": "markers",
        "name": theme.plain(overlay.names[index]),
        "customdata": [[index, trial.number] for trial in trials],
        "hovertemplate": hover,
    }


def outer_section(overlay: Overlay) -> Section | None:
    """Section on the outer loop; None before the first trial has finished."""
    if not any(run.finished for run in overlay.runs):
        return None
    histories = [hypervolume(run) for run in overlay.runs]
    sentences = []
    for name, history in zip(overlay.names, histories, strict=True):
        if len(history.shares) >= FEWEST and history.shares[-1] > 0:
            final = history.shares[-1]
            good = next(n for n, share in enumerate(history.shares, 1) if share >= 0.99 * final)
            prefix = f"{name}: the" if overlay.several else "The"
            sentences.append(
                f"{prefix} front covers {final:.1%} of the ideal. "
                f"It had 99% of that after {good} of {len(history.shares)} finished trials."
            )
    grown = _hypervolume_panels(overlay, histories) if sentences else []
    panels = (*grown, *filter(None, (_importance_panel(overlay), knob_panel(overlay))))
    title = "How the outer loop went"
    return Section("outer", title, tuple(sentences), panels) if panels else None


def _hypervolume_panels(overlay: Overlay, histories: list[Hypervolume]) -> list[Panel]:
    by_trials = [[(float(n), y) for n, y in enumerate(h.shares, 1)] for h in histories]
    by_seconds = [list(zip(h.seconds, h.shares, strict=False)) for h in histories]
    worths = [run.unpruned.worth for run in overlay.runs]
    corners = [reference_point(worth)[0] for worth in worths]
    half, less = "half the unpruned model's", "the unpruned model's less 1"
    how = ": " + " or ".join(dict.fromkeys(half if worth > 0 else less for worth in worths))
    if overlay.by_divergence:
        corners, how = list(map(abs, corners)), ""
    worst = ", ".join(dict.fromkeys(f"{corner:.4g}" for corner in corners))
    caption = (
        "The area between the front and the reference point (ratio 1, "
        f"{overlay.runs[0].objective_name} {worst}{how}), as a share of what a model as good as "
        "the unpruned one would cover at no cost. Better models may cover more than 100%."
    )
    if any(len(indices) > 1 for indices in overlay.groups.values()):
        caption += " A band is the quartiles over seeds."
    figure = _staircases(overlay, by_trials, "finished trials")
    panels = [Panel("hypervolume-trials", "Hypervolume over trials", figure, caption)]
    if any(by_seconds):
        caption = "The same over time; time between launches is left out."
        figure = _staircases(overlay, by_seconds, "seconds in which trials ran")
        panels.append(Panel("hypervolume-seconds", "Hypervolume over seconds", figure, caption))
    return panels


def _staircases(
    overlay: Overlay, histories: list[list[tuple[float, float]]], title: str
) -> go.Figure:
    figure = go.Figure()
    for name, indices in overlay.groups.items():
        grown = [index for index in indices if histories[index]]
        band = len(grown) > 1
        for index in grown:
            ends, shares = zip(*histories[index], strict=True)
            line = {**theme.run_line(index), "shape": "hv", "width": 1 if band else 2}
            label, opacity = theme.plain(overlay.names[index]), 0.5 if band else 1
            figure.add_scatter(
                x=ends, y=shares, name=label, mode="lines", line=line, opacity=opacity
            )
        if band:
            x, (low, middle, high) = quartiles([histories[index] for index in grown])
            edge = {"x": x, "mode": "lines", "hoverinfo": "skip", "showlegend": False}
            flat = {"shape": "hv", "width": 0}
            figure.add_scatter(y=low, name="lower quartile", line=flat, **edge)
            figure.add_scatter(
                y=high, name="upper quartile", line=flat, fill="tonexty", opacity=0.3, **edge
            )
            line = {"shape": "hv", "width": 3, "color": theme.run_style(indices[0])["color"]}
            label = theme.plain(f"median of {name}")
            figure.add_scatter(x=x, y=middle, mode="lines", name=label, line=line)
    x_axis = theme.x_axis(title, rangemode="tozero")
    y_axis = theme.axis("share of the ideal", tickformat=".0%")
    theme.lay_out(figure, height=320, showlegend=overlay.several, xaxis=x_axis, yaxis=y_axis)
    return figure


def _importance_panel(overlay: Overlay) -> Panel | None:
    figure = go.Figure()
    for index, run in enumerate(overlay.runs):
        if len(run.finished) < _SHOWN:
            continue
        prefix, colour = overlay.prefix(index), theme.run_style(index)["color"]
        for objective, values in importances(run).items():
            cost = objective == run.unpruned.cost_name
            low = cost or overlay.by_divergence
            name = theme.plain(f"{prefix}{'low' if low else 'high'} {objective}")
            shade = theme.ORANGE if cost and not overlay.several else colour
            marker = {"color": shade, "pattern": {"shape": "/" if cost else ""}}
            knobs, shares = [theme.plain(knob) for knob in values], list(values.values())
            figure.add_bar(y=knobs, x=shares, orientation="h", name=name, marker=marker)
    if not figure.data:
        return None
    height = 140 + 26 * max(len(trace.y) for trace in figure.data) * len(figure.data)
    x_axis, y_axis = theme.axis("importance", tickformat=".0%"), {**theme.AXIS, "type": "category"}
    theme.lay_out(figure, height=height, xaxis=x_axis, yaxis=y_axis)
    caption = (
        "Optuna's PED-ANOVA: how much each knob decides whether a trial is among the best 10% of "
        "an objective; the bars of one objective and method sum to 100%."
    )
    return Panel("importance", "Which knob mattered", figure, caption)
