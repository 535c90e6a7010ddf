"""Notes and the front of a run for optuna-dashboard, beside its own figures.

All of it lies in the Optuna study, so that any dashboard on the storage shows it.
"""

import hashlib
import warnings
from collections.abc import Mapping
from itertools import zip_longest
from typing import Any

import optuna
import plotly.graph_objects as go
from optuna.exceptions import ExperimentalWarning
from optuna_dashboard import save_note, save_plotly_graph_object
from optuna_dashboard._note import (  # its own asks the storage each time
    get_note_from_system_attrs,
    note_ver_key,
    split_body,
)

from orchestrator.optuna_private import set_system_attribute, system_attributes
from orchestrator.runs.records import RunRecord, TrialRecord, load_optuna_study
from orchestrator.runs.results import divergence_texts, divergence_words, markdown
from orchestrator.runs.sizes import in_numbers
from reports.figures.front import front_figure
from reports.overlay import Overlay, overlay
from reports.pareto import ParetoView, answer, percent
from reports.recommended import recommendations

FRONT = "front"
"""Id of the figure in the study."""
_OWN_NOTES = "maskfront:notes"
"""System attribute of the study: digests of the note that `publish` found and of the one that it
wrote. A note with another digest is a reader's."""


def publish(run: RunRecord | Overlay) -> None:
    """Write the notes of the study and of its ended trials, and its front, into the Optuna study.

    None is written over what a reader wrote in its place; a trial's is written once.
    """
    together = overlay(run)
    (run,) = together.runs
    study = load_optuna_study(run.folder)
    attributes = system_attributes(study)
    _write_study_note(study, attributes, _study_note(together.views[0]))
    for trial in run.trials:
        if trial.id is None or attributes.get(note_ver_key(trial.id)):
            continue
        # By `save_note` each would ask the storage for all that the study has.
        if parts := split_body(_trial_note(run, trial), trial.id):
            for name, value in {**parts, note_ver_key(trial.id): 1}.items():
                set_system_attribute(study, name, value)
    with warnings.catch_warnings(action="ignore", category=ExperimentalWarning):
        save_plotly_graph_object(study, _front(together), graph_object_id=FRONT)


def _write_study_note(study: optuna.Study, attributes: Mapping[str, Any], note: str) -> None:
    """Replace the study's note if it is our own, or if there is none."""
    stored = get_note_from_system_attrs(attributes, None)
    digests = [hashlib.sha256(text.encode()).hexdigest() for text in (stored["body"], note)]
    is_ours = stored["version"] == 0 or digests[0] in attributes.get(_OWN_NOTES, ())
    if is_ours and stored["body"] != note:
        # Before the note: of a launch that is killed in between, the old one is still our own.
        set_system_attribute(study, _OWN_NOTES, digests)
        save_note(study, note)


def _front(together: Overlay) -> go.Figure:
    """The front without what only the report's page uses: it is stored in rows of 2 kB."""
    figure = front_figure(together)
    for trace in figure.data:
        if trace.hovertemplate is None:
            trace.customdata = None
        if not trace.name.startswith(("front", "held out")):
            trace.update(hovertext=None, hoverinfo=None)
    figure.update_layout(title="The Pareto front", margin={"t": 50, "l": 70})
    return figure


def _study_note(view: ParetoView) -> str:
    run, unpruned = view.run, view.run.unpruned
    lines = [f"**{markdown(answer(view))}**", ""]
    if rows := recommendations(view):
        worth = [*unpruned.divergences, markdown(run.metric_name), "held out"]
        lines += [
            f"| | trial | {' | '.join(worth)} | {unpruned.cost_name} ratio |",
            "|---" * (3 + len(worth)) + "|",
        ]
        for row in rows:
            result = row.trial.result
            cells = [", ".join(row.reasons), str(row.trial.number), *divergence_texts(result)]
            cells += [f"{result.metric:.4f}", f"{result.heldout_metric:.4f}", percent(result.ratio)]
            lines.append(f"| {' | '.join(cells)} |")
        lines.append("")
    lines += [
        *(markdown(f"{remark}.") for remark in run.remarks),
        f"Objectives: {markdown(run.objective_name)} on the selection split "
        f"({'up' if unpruned.objective == 'metric' else 'down'}) and "
        f"{unpruned.cost_name} in {markdown(unpruned.unit)} (down).",
        "A trial with a constraint above 0 missed its budget or an aim and is not on the front.",
        "`maskfront export` with `--trial N` exports a model; `maskfront report` writes the page.",
    ]
    return "\n".join(lines)


def _trial_note(run: RunRecord, trial: TrialRecord) -> str:
    if trial.state == "failed":
        return f"Failed: {markdown(trial.failure)}"
    if (result := trial.result) is None:
        return ""
    sizes = in_numbers(result.widths, run.unpruned.widths)
    met = "inside" if result.violation <= 0 else "**outside**"
    lines = [
        f"{result.budget_name} ratio {result.reached:.4f}, {met} the band around its target "
        f"{result.target_ratio:.4f} ± {100 * result.tolerance:.3g}%. "
        f"{divergence_words(result)}{markdown(run.metric_name)} {result.metric:.4f}, "
        f"held out {result.heldout_metric:.4f}."
    ]
    if sizes:
        head = ["layer", *sizes]
        lines += ["", f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for number, layer in enumerate(zip_longest(*sizes.values(), fillvalue=""), start=1):
        lines.append(f"| {' | '.join([str(number), *layer])} |")
    return "\n".join(lines)
