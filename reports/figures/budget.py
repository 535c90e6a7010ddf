"""Target ratio against reached ratio, and the knobs that moved it."""

from collections.abc import Sequence
from itertools import starmap

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from orchestrator.runs.records import FinishedTrial, RunRecord
from reports.curves import Curves
from reports.figures import theme
from reports.figures.outer_loop import joined_space, knob_points
from reports.figures.theme import Panel, Section
from reports.overlay import Overlay

_HOVER = "trial %{customdata[1]}<br>asked %{x}, reached %{y}<extra></extra>"
_ASKED = ("target_ratio", "tolerance")  # these set the target, not how hard the search tries
_LeftOpen = Sequence[tuple[FinishedTrial, float]]


def left_open(run: RunRecord, curves: Curves) -> list[tuple[FinishedTrial, float]]:
    """Trials with the ratio that the masks had left open when the search ended, if recorded."""
    with_curve = [(trial, curves[trial.number]) for trial in run.finished if trial.number in curves]
    columns = [(trial, curve.columns.get("open_ratio")) for trial, curve in with_curve]
    return [(trial, values[-1][1]) for trial, values in columns if values]


def budget_section(overlay: Overlay, curves: Sequence[Curves]) -> Section | None:
    """Target against reached ratio, and the masks' open ratio against each knob."""
    finished = [trial for run in overlay.runs for trial in run.finished]
    if not finished:
        return None
    inside = sum(trial.result.violation <= 0 for trial in finished)
    sentences = [f"{inside} of {len(finished)} finished trials are inside their budget."]
    left = [left_open(run, of_run) for run, of_run in zip(overlay.runs, curves, strict=True)]
    points = [point for of_run in left for point in of_run]
    far = [trial for trial, ratio in points if _miss(trial, ratio) > trial.result.tolerance]
    if points:
        sentences.append(
            f"In {len(far)} of {len(points)} trials the masks were still open above the budget "
            "when the search ended: there the ranking of units, not the search, met the budget."
        )
    steering = _knob_panel(overlay, left) if points else None
    panels = filter(None, (_target_panel(overlay, left), steering))
    title = "Did the search meet the budget?"
    return Section("budget", title, tuple(sentences), tuple(panels))


def _miss(trial: FinishedTrial, ratio: float) -> float:
    """Excess of the masks' open ratio over the target, as a share of the target."""
    return ratio / trial.result.target_ratio - 1


def _target_panel(overlay: Overlay, left: Sequence[_LeftOpen]) -> Panel:
    figure = go.Figure()
    finished = [trial.result for run in overlay.runs for trial in run.finished]
    targets = [result.target_ratio for result in finished]
    counted = dict.fromkeys(result.budget_name for result in finished)
    ends = [min(targets) * 0.95, max(targets) * 1.05]
    line = {"color": theme.GREY, "dash": "dot"}
    bars = {"type": "data", "thickness": 1, "width": 3, "color": theme.GREY}
    figure.add_scatter(x=ends, y=ends, mode="lines", name="as asked", line=line, hoverinfo="skip")
    for index, (run, points) in enumerate(zip(overlay.runs, left, strict=True)):
        prefix, style = theme.plain(overlay.prefix(index)), theme.run_style(index)
        results = [trial.result for trial in run.finished]
        band = theme.brief(result.tolerance * result.target_ratio for result in results)
        figure.add_scatter(
            x=theme.brief(result.target_ratio for result in results),
            y=[result.reached for result in results],
            mode="markers",
            name=f"{prefix}cut model",
            marker={**style, "size": 8},
            error_y={**bars, "array": band},
            customdata=[[index, trial.number] for trial in run.finished],
            hovertemplate=_HOVER,
        )
        if points:
            figure.add_scatter(
                x=theme.brief(trial.result.target_ratio for trial, _ in points),
                y=theme.brief(ratio for _, ratio in points),
                mode="markers",
                name=f"{prefix}open masks, before the cut",
                marker={"color": style["color"], "symbol": f"{style['symbol']}-open", "size": 8},
                customdata=[[index, trial.number] for trial, _ in points],
                hovertemplate=_HOVER,
            )
    x_axis = theme.x_axis("target ratio", tickformat=".2~%")
    y_axis = theme.axis("reached ratio", tickformat=".2~%")
    theme.lay_out(figure, height=380, xaxis=x_axis, yaxis=y_axis)
    caption = (
        f"{' or '.join(counted)} of each cut model as a share of the unpruned one's, against the "
        "target. The grey bar is as long as the tolerance: where it does not touch the dotted "
        "line, the trial missed its budget. Hollow marks are the share that the masks left open "
        "at the end of the search, before the units were ranked and cut."
    )
    return Panel("target", "Target and reached", figure, caption)


def _knob_panel(overlay: Overlay, left: Sequence[_LeftOpen]) -> Panel | None:
    spaces = joined_space(overlay)
    knobs = [name for name in spaces if name not in _ASKED]
    knobs += [name for name in _ASKED if name in spaces]
    if not knobs:
        return None
    spacing = theme.spacing(len(knobs))
    figure = make_subplots(rows=1, cols=len(knobs), shared_yaxes=True, horizontal_spacing=spacing)
    for column, knob in enumerate(knobs, start=1):
        for index, of_run in enumerate(left):
            points = [(trial, ratio) for trial, ratio in of_run if knob in trial.knobs]
            trials = [trial for trial, _ in points]
            trace = knob_points(overlay, index, knob, trials, " above target")
            y, marker = theme.brief(starmap(_miss, points)), {**theme.run_style(index), "size": 7}
            shown = overlay.several and column == 1
            figure.add_scatter(**trace, y=y, marker=marker, showlegend=shown, row=1, col=column)
        drawn = [trial for of_run in left for trial, _ in of_run]
        axis = theme.x_axis(knob, **theme.knob_axis(knob, spaces[knob], drawn))
        figure.update_xaxes(axis, row=1, col=column)
        figure.update_xaxes(title_text=theme.in_lines(knob, len(knobs)), row=1, col=column)
    figure.update_yaxes(**theme.AXIS, tickformat="+.2~%")
    figure.update_yaxes(title={"text": "open masks above target"}, row=1, col=1)
    theme.lay_out(figure, height=300, legend=None)
    caption = (
        "How far above the target the search left the masks open, before the cut, against each "
        "knob. At 0% the search met the target by itself."
    )
    return Panel("steering", "How the knobs changed this", figure, caption)
