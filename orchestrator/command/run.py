"""`Run`: the result of a launch, read from its folder, with everything a user does with it."""

from __future__ import annotations

from dataclasses import fields
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from objectives.errors import spelled
from objectives.metric import Metric
from orchestrator.errors import RunError
from orchestrator.runs.answers import OwnMetric, other_values
from orchestrator.runs.records import FinishedTrial, RunRecord, load_optuna_study, read_run
from orchestrator.runs.results import Measured, divergence_texts, ratio_text, short_size
from orchestrator.runs.run_folder import RunFolder
from orchestrator.terminal import visible

if TYPE_CHECKING:
    import optuna
    import pandas as pd
    from rich.table import Table

    from objectives.engines.names import Engine
    from orchestrator.study import Study
    from reports.exporting.deployed_card import Deployed
    from reports.exporting.export import Exported

_WIDE = 200  # of a line that nobody breaks


class Run(RunRecord):
    """Snapshot of a run: its trials, its front, and what can be made of them.

    A notebook shows it as the table of its front, and so does `print`.
    """

    @property
    def optuna_study(self) -> optuna.Study:
        """The run's Optuna study, as its storage has it now. Raises RunError if that is gone."""
        return load_optuna_study(self.folder)

    @spelled
    def dataframe(self, *, metric: Metric | OwnMetric | None = None) -> pd.DataFrame:
        """All trials that were started, one a row, by number.

        Args:
            metric: another metric than the study's, by its name or as a function of labels and
                answers, indices of classes: the kept answers are judged anew, nothing is trained.

        Returns:
            Columns: number, state, one for each knob, metric (on the selection split),
            heldout_metric, divergence (from the teacher, on the selection split),
            heldout_divergence, train_divergence (on rows that it learnt from), cost (in the unit of
            the study), ratio, flops, params, seconds, feasible (it met its budget and the aims of
            the study) and front (no other beats it). What a trial does not have is missing (NaN).

        Raises:
            RunError: for another metric where the run kept no answers, or if they are no classes.
        """
        import pandas as pd

        judged = {} if metric is None else other_values(self, metric)
        front = {trial.number for trial in self.front}
        worth = ("metric", "heldout_metric", "divergence", "heldout_divergence", "train_divergence")
        columns = (*worth, "cost", "ratio", "flops", "params")
        roles = {} if metric is None else {"metric": "select", "heldout_metric": "heldout"}
        rows = [
            {
                "number": trial.number,
                "state": trial.state,
                **{name: trial.knobs.get(name) for name in self.space},
                **{name: getattr(trial.result, name, None) for name in columns},
                **{name: judged.get(trial.number, {}).get(r) for name, r in roles.items()},
                "seconds": trial.seconds,
                "feasible": trial.feasible,
                "front": trial.number in front,
            }
            for trial in self.trials
        ]
        return pd.DataFrame(rows)

    @spelled
    def best(
        self,
        *,
        max_ratio: float | None = None,
        min_metric: float | None = None,
        max_ms: float | None = None,
        knee: bool = False,
    ) -> FinishedTrial:
        """The trial of the front that is chosen in at most one way; by default the recommended one.

        Args:
            max_ratio: the best model whose share of the unpruned cost is at most this.
            min_metric: the cheapest model whose metric on the selection split is at least this.
            max_ms: the best model that takes at most this many ms a text, of a study that counts
                latency or a run that `maskfront bench` timed.
            knee: the model where the front bends most.

        Returns:
            The trial; its numbers are in `result`.

        Raises:
            RunError: for several ways, and where nothing on the front gets there.
        """
        from reports.choice import choose

        number = choose(self, max_ratio=max_ratio, min_metric=min_metric, max_ms=max_ms, knee=knee)
        return next(trial for trial in self.finished if trial.number == number)

    @spelled
    def export(
        self,
        out: str | Path,
        *,
        trial: int | None = None,
        max_ratio: float | None = None,
        min_metric: float | None = None,
        max_ms: float | None = None,
        knee: bool = False,
        onnx: bool = False,
        int8: Study | None = None,
        int4: Study | None = None,
    ) -> Exported:
        """Write the model of one trial, by default the recommended one, to a folder that
        transformers loads anywhere.

        Args:
            out: the folder to make; it must not hold anything yet.
            trial: the number of a finished trial, if the model is chosen by that.
            max_ratio: the best model on the front with at most this cost ratio.
            min_metric: the cheapest model on the front with this metric or more.
            max_ms: the best model on the front that takes at most this many ms a text, of a study
                that counts latency or a run that `maskfront bench` timed.
            knee: the model at the knee, where the front bends most.
            onnx: an ONNX file too, checked against torch.
            int8: the study of this run, for an ONNX file in int8 that is measured on its data.
            int4: the same for one in 4 bits, which is smaller and slower.

        Returns:
            The folder, and what there is to tell of it.

        Raises:
            RunError: if no model is chosen so, or if the folder is taken.
            UserError: if ONNX is not available.
        """
        from reports.choice import choose
        from reports.exporting.export import export

        ways = {"max_ratio": max_ratio, "min_metric": min_metric, "max_ms": max_ms}
        number = choose(self, trial=trial, knee=knee, **ways)
        return export(self, number, out, onnx=onnx, int8=int8, int4=int4)

    @spelled
    def cascade(
        self,
        out: str | Path,
        study: Study,
        *,
        min_agreement: float | None = None,
        min_metric: float | None = None,
        max_ms: float | None = None,
        engine: Engine | None = None,
    ) -> Deployed:
        """Write several models as one, to be run without torch: each is asked where the one before
        it is unsure.

        Args:
            out: the folder to make; it must not hold anything yet.
            study: what the run was launched from: its texts are timed, its unpruned model is a
                candidate.
            min_agreement: the fastest that answers this share of the texts as the unpruned model
                does, with 95% confidence by the selection rows; 0.99 if no aim is named.
            min_metric: the fastest whose metric is at least this, with the same confidence.
            max_ms: the one that agrees most among those that take at most this many ms per text.
            engine: "onnxruntime", "onnxruntime-int8" or "onnxruntime-int4" for all; by default
                each model has the faster one of float32 and int8, and agreement is with the
                unpruned one in float32.

        Returns:
            The folder, and what its own answers to the held-out rows are worth.

        Raises:
            RunError: for two aims, if the folder is taken, if the run compares numbers, if no
                cascade meets the aim (it says what comes nearest), and if one model is enough.
            UserError: without the extra "onnx", and if the fine-tuned teacher is gone.
        """
        from orchestrator.command.cascading import cascade

        aims = {"min_agreement": min_agreement, "min_metric": min_metric, "max_ms": max_ms}
        return cascade(self, study, out, aims, engine)

    def report(self, out: str | Path | None = None) -> Path:
        """Write the HTML page, or the front alone to a name that ends in .svg, .png or .pdf.

        Args:
            out: the file; report.html of the run folder by default.

        Returns:
            The file.
        """
        from reports.page.page import write_report
        from reports.page.picture import front_image

        target = RunFolder(self.folder).report if out is None else Path(out)
        write = write_report if target.suffix == ".html" else front_image
        return write([self], target)

    def dashboard(self, port: int = 8080) -> None:
        """Serve optuna-dashboard on this run, to this machine alone, until Ctrl-C.

        Args:
            port: the port; 0 takes a free one.
        """
        from orchestrator.dashboard.server import serve

        serve(self.folder, port)

    def __str__(self) -> str:
        from rich.console import Console

        console = Console(width=_WIDE, color_system=None)
        with console.capture() as shown:
            console.print(front_table(self))
        return shown.get().rstrip()

    def __repr__(self) -> str:
        return (
            f"<Run '{self.name}' in '{self.folder}': {len(self.finished)} trials finished, "
            f"{len(self.front)} on the front>"
        )

    def _repr_html_(self) -> str:
        title, columns, rows = front_rows(self)

        def line(kind: str, texts: tuple[str, ...]) -> str:
            return f"<tr>{''.join(f'<{kind}>{escape(text)}</{kind}>' for text in texts)}</tr>"

        return (
            f"<table><caption>{escape(title)}</caption><thead>{line('th', columns)}</thead>"
            f"<tbody>{''.join(line('td', row) for row in rows)}</tbody></table>"
        )


def load_run(folder: str | Path) -> Run:
    """Read a run folder, finished or running.

    Args:
        folder: the run folder, such as "runs/quickstart".

    Returns:
        The run as it stands.

    Raises:
        RunError: if no run lies there, or if its first trial has not begun.
    """
    return run_of(read_run(folder))


def run_of(record: RunRecord) -> Run:
    """Wrap a record as a `Run`."""
    return Run(**{field.name: getattr(record, field.name) for field in fields(record)})


def run_in(folder: Path) -> Run | None:
    """Read a run; None if there is none, or if it ended before its first trial."""
    try:
        return load_run(folder)
    except RunError:
        return None


def front_rows(run: RunRecord) -> tuple[str, tuple[str, ...], list[tuple[str, ...]]]:
    """The front as text: title, columns, rows by rising cost, of the unpruned model and tf-idf."""
    unpruned = run.unpruned
    title = f"{run.name}: {run.objective_name} against {unpruned.cost_name}"
    ratio = f"{unpruned.cost_name} ratio"
    worth = (*unpruned.divergences, run.metric_name, "held out")
    columns = ("trial", *worth, ratio, *unpruned.sizes)
    rows = [(str(trial.number), *_cells(trial.result)) for trial in run.front]
    rows.append((unpruned.label, *_cells(unpruned)))
    if run.words is not None:
        worth = (f"{run.words.metric:.4f}", f"{run.words.heldout_metric:.4f}")
        cells = (*[""] * len(unpruned.divergences), *worth)
        rows.append(("tf-idf", *cells, *[""] * (len(columns) - len(cells) - 1)))
    return title, columns, rows


def front_table(run: RunRecord) -> Table:
    """`front_rows` as a table with a line below the front."""
    from rich.table import Table
    from rich.text import Text

    title, columns, rows = front_rows(run)
    table = Table(title=Text(visible(title)))
    for column in columns:
        # Where a terminal is narrow: a number that lost its last digits would be another one.
        table.add_column(Text(visible(column)), justify="right", overflow="fold")
    for index, row in enumerate(rows):
        if index == len(run.front):
            table.add_section()
        table.add_row(*row)
    return table


def _cells(model: Measured) -> tuple[str, ...]:
    numbers = (f"{model.metric:.4f}", f"{model.heldout_metric:.4f}", ratio_text(model.ratio))
    return (*divergence_texts(model), *numbers, *map(short_size, model.sizes.values()))
