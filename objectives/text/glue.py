"""Tasks of GLUE by name (Wang et al. 2019)."""

from dataclasses import replace
from typing import Any

from objectives.errors import UserError
from objectives.text.task import Task

_HUB = "nyu-mll/glue"
_SENTENCES = ("sentence1", "sentence2")
_PREMISE = ("premise", "hypothesis")


def _task(name: str, text: str | tuple[str, str], **fields: Any) -> Task:
    usual = {"data": _HUB, "subset": name, "heldout_split": "validation"}
    return Task(name=name, text=text, **{**usual, **fields})


_TASKS = {
    task.name: task
    for task in (
        _task("cola", "sentence", metric="mcc"),
        _task("sst2", "sentence"),
        _task("mrpc", _SENTENCES, metric="f1", alpha=250, select=500),
        _task("stsb", _SENTENCES, metric="pearson_spearman"),
        # Two train rows lack the second question: github.com/huggingface/datasets/issues/277.
        _task("qqp", ("question1", "question2"), metric="f1", drop_missing=True),
        _task("mnli", _PREMISE, heldout_split="validation_matched"),
        _task("mnli-mm", _PREMISE, subset="mnli", heldout_split="validation_mismatched"),
        _task("qnli", ("question", "sentence")),
        _task("rte", _SENTENCES, alpha=250, select=300),
        _task("wnli", _SENTENCES, alpha=60, select=70),
    )
}


def glue(name: str, data: str = _HUB, **changes: Any) -> Task:
    """A task of GLUE: cola, sst2, mrpc, stsb, qqp, mnli, qnli, rte or wnli.

    Its validation split is the held-out one, so that the held-out metric is what papers call the
    dev score; `alpha` and `select` are taken from train, fewer rows of it where it is small. "mnli"
    holds out the matched sentences, "mnli-mm" the mismatched. mrpc and qqp are scored by F1, stsb
    by the mean of both correlations.

    Args:
        name: one of these names, or "mnli-mm".
        data: a data set on the hub, or a folder, with GLUE's configurations.
        **changes: other fields of the Task, such as max_length=64.

    Returns:
        The task.

    Raises:
        UserError: for a name that there is not.
    """
    if name not in _TASKS:
        raise UserError(f"no GLUE task '{name}'; there are {', '.join(_TASKS)}")
    return replace(_TASKS[name], data=data, **changes)
