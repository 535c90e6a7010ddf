"""`cascade`: models of a run in one folder, each asked where the one before it is unsure."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from objectives.combining.cascade import Cascade, CascadePair, pairs_of, spread
from objectives.combining.gate import cheapest_agreeing, cheapest_keeping, most_agreeing_within
from objectives.engines.names import BITS, FULL_BITS, Engine
from objectives.measures.evaluate import predict
from orchestrator.command.candidates import Candidates
from orchestrator.errors import RunError
from orchestrator.runs.records import RunRecord
from orchestrator.study import Study
from reports.exporting.deployed_card import Deployed, named
from reports.exporting.export import check_free
from reports.model_folders import kept_front
from reports.speed import inputs_of, teacher_of

FASTER: tuple[Engine, ...] = ("onnxruntime", "onnxruntime-int8")  # each model takes the faster
_AGREEMENT = 0.99  # gate if none is named
_MOST = 8  # models that are tried


@dataclass(frozen=True)
class Gate:
    """Condition that the written model or cascade must meet."""

    name: str  # the argument that sets it: min_agreement, min_metric, min_metric_kept or max_ms
    aim: float
    metric: str

    @classmethod
    def of(cls, metric: str, agreement: float, aims: Mapping[str, float | None]) -> "Gate":
        """Make the gate from the caller's arguments; RunError if it is invalid, or for several."""
        given = {name: aim for name, aim in aims.items() if aim is not None}
        if len(given) > 1:
            raise RunError("name only one gate", *aims)
        [(name, aim)] = (given or {"min_agreement": agreement}).items()
        if name == "max_ms" and not aim > 0:
            raise RunError(f"{aim:g} ms are too few", name)
        if name != "max_ms" and not 0 < aim < 1:
            why = "no number of texts can prove that" if aim == 1 else "it is not a share"
            raise RunError(f"{aim:g} cannot be a gate: {why}; give one above 0 and below 1", name)
        return cls(name, aim, metric)

    def best(self, pairs: Sequence[CascadePair], most_ms: float = math.inf) -> Cascade | None:
        """Choose the cheapest cascade that passes; for max_ms, the most agreeing within it and
        `most_ms`. None if none passes."""
        match self.name:
            case "max_ms":
                return most_agreeing_within(pairs, min(self.aim, most_ms))
            case "min_metric":
                return cheapest_keeping(pairs, self.aim)
            case "min_metric_kept":
                return cheapest_keeping(pairs, 0.0, self.aim)
            case _:
                return cheapest_agreeing(pairs, self.aim)

    def text(self) -> str:
        """Describe what passes, without the confidence."""
        share = f"{self.aim:.1%}" if round(self.aim, 3) == self.aim else f"{100 * self.aim:.6g}%"
        return {
            "min_agreement": f"answers {share} of all texts as the unpruned model does",
            "min_metric": f"has {self.metric} >= {self.aim:g}",
            "min_metric_kept": f"keeps {share} of the {self.metric}",
            "max_ms": f"takes at most {self.aim:g} ms",
        }[self.name]


def cascade(
    run: RunRecord,
    study: Study,
    out: str | Path,
    aims: Mapping[str, float | None],
    engine: Engine | None,
    say: Callable[[str], None] = lambda line: None,
) -> Deployed:
    """See `Run.cascade`; `aims` are its arguments by name, `say` prints progress."""
    gate = Gate.of(run.metric_name, _AGREEMENT, aims)
    if run.definition["task.metric"] == "pearson_spearman":
        raise RunError("a cascade needs a classifier; this run's models predict numbers")
    if study.task.multi_label:
        raise RunError("a cascade needs one label a text; this run's texts have several")
    if engine is not None and not engine.startswith("onnxruntime"):
        raise RunError(f"a cascade runs in onnxruntime, not in '{engine}'", "engine")
    if not run.front:
        raise RunError(f"'{run.folder}' has no model on its front yet")
    out = Path(out)
    check_free(out)
    inputs = inputs_of(run, study)
    unpruned = teacher_of(run, study, inputs)  # refused before anything is written
    with TemporaryDirectory() as scratch:
        engines = FASTER if engine is None else (engine,)
        candidates = Candidates(inputs, engines, Path(scratch), say)
        front = spread(kept_front(run, say), _MOST)
        for trial in front:
            candidates.add_trial(run, trial.number)
        candidates.add(None, unpruned, inputs.tokenizer)
        members, rows = candidates.judged(run, [*(trial.number for trial in front), None])
        chosen = _chosen(run, list(pairs_of(members, rows)), gate)
        if BITS[engines[0]] != FULL_BITS:  # the gate read int8's answers; `check` asks in float32
            original = predict(unpruned, inputs.split("heldout"), "cpu").argmax(-1).numpy()
            return candidates.deploy(run, chosen, rows, out, original=original)
        # The gate read the rows by which the study chose its trials: of many some were lucky there.
        return candidates.deploy(run, chosen, rows, out)


def _chosen(run: RunRecord, pairs: Sequence[CascadePair], gate: Gate) -> Cascade:
    """Choose the cheapest cascade that passes. Raises RunError if none does, or none is needed."""
    unpruned_costs = [pair.large.cost for pair in pairs if pair.large.number is None]
    # Whatever the limit, a cascade that is slower than the unpruned model alone is no gain.
    cascade = gate.best(pairs, 0.999 * min(unpruned_costs, default=math.inf))
    aim = gate.text()
    if gate.name != "max_ms":
        aim += " with 95% confidence"
    if cascade is None:
        fastest = min((pair.small.cost for pair in pairs), default=np.nan)
        nearest = {
            "max_ms": f"the fastest model alone takes {fastest:.2f} ms",
            "min_metric": f"the unpruned model has {run.unpruned.metric:.4f} on selection",
            "min_agreement": "the selection split has too few rows to prove it; ask for less",
        }[gate.name]
        raise RunError(f"'{run.folder}': no cascade {aim}: {nearest}", gate.name)
    first, *others = cascade.stages
    alone = first.number is None and not others  # the unpruned one in another engine
    if alone or cascade.cost >= max(unpruned_costs, default=np.inf):
        raise RunError(
            f"'{run.folder}': no cascade that {aim} is faster than the unpruned model alone, which "
            f"takes {cascade.cost if alone else max(unpruned_costs):.2f} ms; ask for less",
            gate.name,
        )
    if not others:
        raise RunError(
            f"'{run.folder}': no cascade is needed: {named(first.number, first.engine)} "
            f"alone {aim}, in {cascade.cost:.2f} ms; export it with ONNX",
            gate.name,
        )
    return cascade
