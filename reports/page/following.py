"""Keep the page and the dashboard of a running launch up to date."""

import hashlib
import time
import warnings
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib import import_module
from itertools import zip_longest
from pathlib import Path
from typing import Any

import optuna
import plotly.graph_objects as go
from optuna.exceptions import ExperimentalWarning

from orchestrator.optuna_private import set_system_attribute, system_attributes
from orchestrator.runs.records import RunRecord, TrialRecord, load_optuna_study, read_run
from orchestrator.runs.results import divergence_texts, divergence_words, markdown
from orchestrator.runs.run_folder import RunFolder
from orchestrator.runs.sizes import in_numbers
from orchestrator.terminal import for_shell, say_to_stderr
from reports.figures.front import front_figure
from reports.overlay import Overlay, overlay
from reports.page.page import write_report
from reports.pareto import ParetoView, percent
from reports.recommended import answer, certainty, recommendations

FRONT = "front"  # id of the figure in the Optuna study
_OWN_NOTES = "maskfront:notes"
"""System attribute of the study: digests of the note that `publish` found and of the one that it
wrote. A note with another digest is a reader's."""


def publish(run: RunRecord | Overlay) -> None:
    """Write notes and front into the Optuna study; notes of readers, and of trials, stay."""
    # Here, as its scikit-learn takes a second to load; workers need not wait for it. In a thread:
    # Optuna keeps the error of a package that it lacks, and with it all frames of who loads it. A
    # worker's have the teacher's hidden states.
    with ThreadPoolExecutor(1) as loader:
        loader.submit(import_module, "optuna_dashboard").result()
    from optuna_dashboard import save_plotly_graph_object
    from optuna_dashboard._note import note_ver_key, split_body

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
    """Replace the study's note if maskfront wrote it, or if there is none."""
    from optuna_dashboard import save_note
    from optuna_dashboard._note import get_note_from_system_attrs

    stored = get_note_from_system_attrs(attributes, None)
    digests = [hashlib.sha256(text.encode()).hexdigest() for text in (stored["body"], note)]
    is_ours = stored["version"] == 0 or digests[0] in attributes.get(_OWN_NOTES, ())
    if is_ours and stored["body"] != note:
        # Before the note: of a launch that is killed in between, the old one is still our own.
        set_system_attribute(study, _OWN_NOTES, digests)
        save_note(study, note)


def _front(together: Overlay) -> go.Figure:
    """Front without data that only the report needs, as it is stored in rows of 2 kB."""
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
    lines = [f"**{markdown(answer(view))}** {certainty(view)}", ""]
    if rows := recommendations(view):
        worth = [*unpruned.divergences, markdown(run.metric_name), "held out"]
        lines.append(f"| | trial | {' | '.join(worth)} | {unpruned.cost_name} ratio |")
        lines.append("|---" * (3 + len(worth)) + "|")
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


_SHARE = 0.05
"""Share of the launch's time for writing, above which a write is skipped. Each write is complete;
at thousands of trials that takes seconds in which the worker does not train."""


class Following:
    """Callback of a launch that writes page, notes and front, and skips some calls. At the end of a
    launch nothing is raised: a failed write is noted."""

    def __init__(
        self,
        command: str,
        source: str,
        study_file: str | None = None,
        clock: Callable[[], float] = time.monotonic,
        note: Callable[[str], object] = say_to_stderr,
    ):
        """`command` launched the run, `source` defines its study, in `study_file` if in any."""
        self._launched = command, source, study_file
        self._clock, self._note = clock, note
        self._began, self._spent = clock(), 0.0
        self._folder: Path | None = None

    def __call__(self, run: RunRecord) -> None:
        """Write the current run, or leave that to a later call."""
        now = self._clock()
        if self._spent > _SHARE * (now - self._began):
            return
        self._folder = run.folder
        try:
            self._write(run, live=True)
        finally:
            self._spent += self._clock() - now

    def end(self, run: RunRecord) -> None:
        """Write the finished run."""
        try:
            self._write(run, live=False)
        except Exception as error:
            self._note(
                f"the report could not be written ({type(error).__name__}: {error}); the run is "
                f"complete: maskfront report {for_shell(run.folder)} writes it again"
            )

    def cut_short(self) -> None:
        """Write the run after an interrupt or an error, if a page calls it running."""
        if self._folder is not None:
            with suppress(Exception):  # another error has ended the launch
                self._write(read_run(self._folder), live=False)

    def _write(self, run: RunRecord, live: bool) -> None:
        folder = RunFolder(run.folder)
        folder.write_launch(*self._launched)
        together = overlay(run)
        write_report(together, folder.report, live)
        publish(together)
