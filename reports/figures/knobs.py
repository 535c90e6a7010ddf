"""The knobs against what came out."""

from collections.abc import Sequence
from itertools import chain
from typing import Any

from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution
from plotly.subplots import make_subplots

from orchestrator.runs.records import FinishedTrial
from reports.figures import theme
from reports.figures.theme import Panel
from reports.overlay import Overlay


def knob_panel(overlay: Overlay) -> Panel | None:
    """Each knob against each objective, if the runs tune anything."""
    spaces = joined_space(overlay)
    if not spaces:
        return None
    figure = make_subplots(
        rows=2,
        cols=len(spaces),
        shared_xaxes=True,
        shared_yaxes=True,
        horizontal_spacing=theme.spacing(len(spaces)),
        vertical_spacing=0.06,
    )
    for column, (knob, distribution) in enumerate(spaces.items(), start=1):
        for place, run in enumerate(overlay.runs):
            known = [trial for trial in run.finished if knob in trial.knobs]
            heights = [overlay.height(run, trial.result.value()) for trial in known]
            ratios = [trial.result.ratio for trial in known]
            opacity = [1 if trial.feasible else 0.35 for trial in known]
            for row, values in enumerate((heights, ratios), start=1):
                figure.add_scatter(
                    **knob_points(overlay, place, knob, known),
                    y=theme.brief(values),
                    marker={**theme.run_style(place), "size": 6, "opacity": opacity},
                    showlegend=overlay.several and column == row == 1,
                    row=row,
                    col=column,
                )
        figure.update_xaxes(theme.AXIS | theme.knob_axis(distribution), col=column)
        figure.update_xaxes(theme.x_axis(knob), row=2, col=column)
    figure.update_yaxes(theme.AXIS)
    figure.update_yaxes(title={"text": theme.plain(overlay.objective_name)}, row=1, col=1)
    if overlay.by_divergence:
        figure.update_yaxes(theme.DIVERGENCE_AXIS, row=1)
    ratio = {"text": f"{overlay.cost_name} ratio"}
    figure.update_yaxes(title=ratio, tickformat=".0%", row=2, col=1)
    theme.lay_out(figure, height=460, legend=None)
    return Panel(
        name="slices",
        title="Each knob against each objective",
        figure=figure,
        caption="Every finished trial; faint ones miss their budget or an aim.",
    )


def joined_space(overlay: Overlay) -> dict[str, BaseDistribution]:
    """The knobs of all runs, each with what holds its values in all of them."""
    named: dict[str, list[BaseDistribution]] = {}
    for run in overlay.runs:
        for name, distribution in run.space.items():
            named.setdefault(name, []).append(distribution)
    joined = {name: _joined(distributions) for name, distributions in named.items()}
    return {name: distribution for name, distribution in joined.items() if distribution}


def _joined(distributions: Sequence[BaseDistribution]) -> BaseDistribution | None:
    """What holds the values of all, logarithmic if all are; None for numbers beside words."""
    choices = [d.choices for d in distributions if isinstance(d, CategoricalDistribution)]
    if len(choices) == len(distributions):
        return CategoricalDistribution(list(dict.fromkeys(chain(*choices))))
    if choices:
        return None
    numbers: list[Any] = list(distributions)
    low, high = min(d.low for d in numbers), max(d.high for d in numbers)
    return FloatDistribution(low, high, log=all(d.log for d in numbers))


def knob_points(
    overlay: Overlay, place: int, knob: str, trials: Sequence[FinishedTrial], unit: str = ""
) -> dict[str, Any]:
    """A trace without heights: trials of the run at this place, by a knob."""
    hover = f"trial %{{customdata[1]}}<br>{theme.plain(knob)} %{{x}}<br>%{{y}}{unit}<extra></extra>"
    return {
        "x": theme.brief(trial.knobs[knob] for trial in trials),
        "mode": "markers",
        "name": theme.plain(overlay.names[place]),
        "customdata": [[place, trial.number] for trial in trials],
        "hovertemplate": hover,
    }
