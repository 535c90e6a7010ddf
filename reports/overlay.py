"""Several runs on one page: their names, which are seeds of one study, and shared axes."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

from orchestrator.errors import RunError
from orchestrator.runs.records import RunRecord
from reports.model_folders import check_run
from reports.pareto import ParetoView, pareto_view
from reports.recommended import wide


@dataclass(frozen=True)
class Overlay:
    """A run, or several on the same axes."""

    runs: tuple[RunRecord, ...]
    names: tuple[str, ...]  # of the runs on the page; no two are alike

    @cached_property
    def views(self) -> tuple[ParetoView, ...]:
        """Pareto views of the runs, computed once."""
        return tuple(map(pareto_view, self.runs))

    @property
    def several(self) -> bool:
        """Whether there is more than one run, so that each must be named."""
        return len(self.runs) > 1

    def prefix(self, index: int) -> str:
        """Prefix that names a run if there are several."""
        return f"{self.names[index]}: " if self.several else ""

    @property
    def relative(self) -> bool:
        """Whether metrics are shares of the unpruned one: runs of two tasks share no axis."""
        tasks = {(run.metric_name, run.definition.get("task.data")) for run in self.runs}
        return len(tasks) > 1 and not self.by_divergence

    @property
    def metrics(self) -> str:
        """Names of the runs' metrics."""
        return " / ".join(dict.fromkeys(run.metric_name for run in self.runs))

    @property
    def metric_name(self) -> str:
        """Title of the axis of metrics."""
        return f"{self.metrics}, share of the unpruned model's" if self.relative else self.metrics

    @property
    def by_divergence(self) -> bool:
        """Whether all runs compare their models by the divergence from the teacher."""
        return self.runs[0].unpruned.objective == "divergence"

    @property
    def objective_name(self) -> str:
        """Title of the objective's axis."""
        return self.runs[0].objective_name if self.by_divergence else self.metric_name

    @property
    def cost_name(self) -> str:
        """Cost that all runs count, such as "FLOPs"."""
        return self.runs[0].unpruned.cost_name

    @property
    def units(self) -> tuple[str, ...]:
        """Units in which the sizes of all runs are known, for absolute axes."""
        first, *others = (tuple(run.unpruned.sizes) for run in self.runs)
        return tuple(unit for unit in first if all(unit in other for other in others))

    @property
    def wide(self) -> bool:
        """Whether an axis of costs is logarithmic: see `reports.recommended.wide`."""
        drawn = [run.unpruned.ratio for run in self.runs if run.unpruned.ratio <= 1]
        return wide([*drawn, *(trial.result.ratio for run in self.runs for trial in run.finished)])

    def height(self, run: RunRecord, value: float, *, heldout: bool = False) -> float:
        """Objective of the run, on the selection split or `heldout`, as the axis shows it."""
        if not self.relative:
            return value
        unpruned = run.unpruned.metric
        if heldout and run.unpruned.heldout_metric > 0:
            unpruned = run.unpruned.heldout_metric
        return value / unpruned

    @property
    def groups(self) -> dict[str, list[int]]:
        """Indices of the runs that differ in their seed alone, by a name for the group."""
        by_study: dict[tuple[tuple[str, str], ...], list[int]] = {}
        for index, run in enumerate(self.runs):
            shared = [item for item in run.definition.items() if item[0] not in ("seed", "name")]
            by_study.setdefault(tuple(sorted(shared)), []).append(index)
        groups = dict[str, list[int]]()
        for indices in by_study.values():
            name, others = self.names[indices[0]], len(indices) - 1
            if len({self.runs[index].definition.get("seed") for index in indices}) <= others:
                # Of one seed: they differ in what no definition holds, such as the sampler.
                groups |= {self.names[index]: [index] for index in indices}
                continue
            if others:
                name += f" and {others} more seed{'s' if others > 1 else ''}"
            groups[name] = indices
        return groups


Runs: TypeAlias = RunRecord | Sequence[RunRecord] | Overlay


def overlay(runs: Runs) -> Overlay:
    """Combine runs for a page. Raises RunError if they count or compare different things."""
    if isinstance(runs, Overlay):
        return runs
    runs = runs if isinstance(runs, Sequence) and not isinstance(runs, str) else [runs]
    for run in runs:
        check_run(run)
    unpruned = [run.unpruned for run in runs]
    shared: dict[str, tuple[str, Sequence[str]]] = {
        "costs": ("count", [model.cost_name for model in unpruned]),
        "objectives": ("compare models by", [model.objective for model in unpruned]),
    }
    if {model.cost_name for model in unpruned} <= {"latency", "units"}:
        shared["units"] = ("count", [model.unit for model in unpruned])
    for what, (verb, named) in shared.items():
        if len(different := dict.fromkeys(named)) > 1:
            raise RunError(
                f"the runs {verb} {' and '.join(different)}; two {what} cannot share an axis: "
                "make a report of each"
            )
    reduced = (", ".join(f"{n} {value}" for n, value in run.fidelity.items()) for run in runs)
    fidelities = dict.fromkeys(text or "full" for text in reduced)
    if len(fidelities) > 1:
        raise RunError(
            f"the runs have different fidelities ({'; '.join(fidelities)}), so their results "
            "cannot share a front: make a report of each"
        )
    counts = Counter(run.name for run in runs)
    names = [run.name if counts[run.name] == 1 else f"{run.name} ({run.folder})" for run in runs]
    before = [names[:index].count(name) for index, name in enumerate(names)]
    names = [f"{name} {n + 1}" if n else name for name, n in zip(names, before, strict=True)]
    together = Overlay(tuple(runs), tuple(names))
    if together.relative and any(model.metric <= 0 for model in unpruned):
        raise RunError(
            "the runs have different tasks, and there are no shares of an unpruned metric of 0 or "
            "less: make a report of each"
        )
    return together
