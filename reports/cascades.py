"""The cascades of a run's front, reckoned from the answers that its trials kept."""

from objectives.combining.cascade import Cascade, cascades, front_of, pairs_of
from objectives.combining.members import Member, Rows
from orchestrator.runs.answers import read_answers, read_rows
from orchestrator.runs.records import RunRecord

_MOST = 6  # models of the front that are paired: of a longer one every other, or fewer
_WORK = ("FLOPs", "latency", "bit operations")
"""Costs that are paid at each answer. Of the others a cascade pays both models', always."""


def cascades_of(run: RunRecord) -> list[Cascade]:
    """The front of the cascades of a run, by rising cost; costs are in the unit of the run.

    None for a run that compares divergences or numbers, whose texts have several labels, or that
    counts what is stored, and for one of an earlier version, which kept no answers.
    """
    unpruned, judged = run.unpruned, read_rows(run)
    if judged is None or unpruned.cost_name not in _WORK or unpruned.objective != "metric":
        return []
    classes = judged.unpruned["select"].shape[-1]
    if classes < 2 or judged.labels["select"].ndim == 2:
        return []
    answers = {
        trial.number: (trial.result.cost, kept)
        for trial in run.front[:: -(-len(run.front) // _MOST) or 1]
        if (kept := read_answers(run, trial.number)) is not None
    }
    rows = Rows(
        metric=run.definition["task.metric"],  # type: ignore[arg-type]
        labels=judged.labels,
        original={role: logits.argmax(-1) for role, logits in judged.unpruned.items()},
        classes=classes,
    )
    members = [Member(number, cost, kept) for number, (cost, kept) in answers.items()]
    if "teacher answers" not in run.sources:  # a teacher that is no model can be asked no more
        members.append(Member(None, unpruned.cost, judged.unpruned))
    return front_of(cascades(pairs_of(members, rows)))
