"""`cascade`: models of a run in one folder, each asked where the one before it is unsure.

The models are timed from text to label on the run's own texts; the cheapest cascade that meets
the aim is written and measured again."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from objectives.combining.cascade import Cascade, CascadePair, pairs_of, spread
from objectives.combining.gate import cheapest_agreeing, cheapest_keeping, most_agreeing_within
from objectives.engines.names import Engine
from orchestrator.command.candidates import Candidates
from orchestrator.errors import RunError
from orchestrator.runs.records import RunRecord
from orchestrator.study import Study
from reports.exporting.deployed_card import Deployed, named
from reports.exporting.export import check_free
from reports.model_folders import kept_front
from reports.speed import inputs_of, teacher_of

FASTER: tuple[Engine, ...] = ("onnxruntime", "onnxruntime-int8")
"""Engines to choose from: each model takes the faster one."""
_AGREEMENT = 0.99  # aim where none is named
_MOST = 8  # models that are tried


def cascade(
    run: RunRecord,
    study: Study,
    out: str | Path,
    aims: Mapping[str, float | None],
    engine: Engine | None,
    say: Callable[[str], None] = lambda line: None,
) -> Deployed:
    """See `Run.cascade`; `aims` are its arguments by name, `say` prints progress."""
    _check_aims(aims)
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
        models = kept_front(run, say)
        front = spread(models, _MOST)
        for trial in front:
            candidates.add_trial(run, trial.number)
        candidates.add(None, unpruned, inputs.tokenizer)
        members, rows = candidates.judged(run, [*(trial.number for trial in front), None])
        chosen = _chosen(run, list(pairs_of(members, rows)), aims)
        return candidates.deploy(run, chosen, rows, out, _agreement(aims))


def _check_aims(aims: Mapping[str, float | None]) -> None:
    if sum(aim is not None for aim in aims.values()) > 1:
        raise RunError("name only one aim", *aims)
    for name, aim in aims.items():
        if aim is not None and name != "max_ms" and not 0 < aim <= 1:
            raise RunError(f"{aim:g} is not a share above 0 and at most 1", name)


def _agreement(aims: Mapping[str, float | None]) -> float | None:
    """Agreement to reach; None if the aim is another."""
    others = (aims["max_ms"], aims["min_metric"])
    return None if any(others) else aims["min_agreement"] or _AGREEMENT


def _chosen(
    run: RunRecord, pairs: Sequence[CascadePair], aims: Mapping[str, float | None]
) -> Cascade:
    """Choose the cheapest cascade that meets the aim. Raises RunError if none does, or none is
    needed."""
    if (most := aims["max_ms"]) is not None:
        name, aim, cascade = (
            "max_ms",
            f"takes at most {most:g} ms",
            most_agreeing_within(pairs, most),
        )
        fastest = min((pair.small.cost for pair in pairs), default=np.nan)
        nearest = f"the fastest model alone takes {fastest:.2f} ms"
    elif (metric := aims["min_metric"]) is not None:
        name, cascade = "min_metric", cheapest_keeping(pairs, metric)
        aim = f"has {run.metric_name} >= {metric:g} with 95% confidence"
        nearest = f"the unpruned model has {run.unpruned.metric:.4f} on the selection split"
    else:
        name, share = "min_agreement", _agreement(aims) or _AGREEMENT
        cascade = cheapest_agreeing(pairs, share)
        aim = f"answers {share:.1%} of all texts as the unpruned model does, with 95% confidence"
        nearest = "the selection split has too few rows to say so; ask for less"
    if cascade is None:
        raise RunError(f"'{run.folder}': no cascade {aim}: {nearest}", name)
    unpruned_costs = [pair.large.cost for pair in pairs if pair.large.number is None]
    first, *others = cascade.stages
    alone = first.number is None and not others  # the unpruned one in another engine
    if alone or cascade.cost >= max(unpruned_costs, default=np.inf):
        raise RunError(
            f"'{run.folder}': no cascade that {aim} is faster than the unpruned model alone, which "
            f"takes {cascade.cost if alone else max(unpruned_costs):.2f} ms; ask for less",
            name,
        )
    if not others:
        raise RunError(
            f"'{run.folder}': no cascade is needed: {named(first.number, first.engine)} "
            f"alone {aim}, in {cascade.cost:.2f} ms; export it with ONNX",
            name,
        )
    return cascade
