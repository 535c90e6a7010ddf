"""At which rate, and for how long, does a teacher learn most? MiniLM-L6 on four tasks.

    tweets 500, 4000       three classes, 500 or 4,000 train rows
    sst2 2000              two classes (`--glue`)
    docstrings 3000        which of fifty installed packages a docstring is from: uneven classes

    OMP_NUM_THREADS=1 python -m benchmarks.teachers --cache FOLDER --glue FOLDER
        [--tasks "tweets 500" ...] [--rates 5e-5 2e-4] [--epochs 3 ...] [--seeds 0] [--device cuda]

`loss` is the mean loss on the selection split after each epoch, in nats; `words` the metric of a
linear model on tf-idf, held out. Writes benchmarks/results/teachers.json and goes on where it was
stopped.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path
from sysconfig import get_path
from tempfile import TemporaryDirectory

from datasets import Dataset
from transformers import PreTrainedModel

from benchmarks.harness import Row, Rows, parsed, parser_of, print_means
from benchmarks.tasks import task_of
from maskfront import Task, Teacher
from objectives.measures.evaluate import score
from objectives.session import Session
from objectives.workbench.inputs import Inputs, read_inputs
from objectives.workbench.tuning import FineTune, tune
from objectives.workbench.words import answers_of_words, worth_of_words
from studies._quickstart_data import minilm

TASKS = ("tweets 500", "tweets 4000", "sst2 2000", "docstrings 3000")
PACKAGES, MOST, FEWEST = 50, 1200, 20
"""Of docstrings: so many packages, of all sizes, and of each so many rows at most and at least."""


@cache
def docstrings() -> Dataset:
    """First paragraphs of the docstrings of what is installed here, each with its package."""
    found: dict[str, dict[str, None]] = {}
    for package in sorted(Path(get_path("purelib")).iterdir()):
        if (package / "__init__.py").exists():
            own = found.setdefault(package.name, {})
            for file in sorted(package.rglob("*.py")):
                if len(own) >= MOST:
                    break
                own |= dict.fromkeys(_paragraphs(file))
    sizes = sorted((len(own), name) for name, own in found.items() if len(own) >= FEWEST)
    some = [sizes[len(sizes) * place // PACKAGES][1] for place in range(PACKAGES)]
    rows = [(text, name) for name in some for text in found[name]]
    return Dataset.from_dict({"text": [row[0] for row in rows], "label": [row[1] for row in rows]})


def _paragraphs(file: Path) -> Iterator[str]:
    try:
        tree = ast.parse(file.read_text(encoding="utf-8"))
    except (SyntaxError, UnicodeDecodeError):
        return
    kinds = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(tree):
        if isinstance(node, kinds) and (text := ast.get_docstring(node)):
            first = " ".join(text.partition("\n\n")[0].split())
            if len(first) > 30:
                yield first


def task(name: str, glue: str | None) -> Task:
    """One of `TASKS`."""
    kind, rows = name.split()
    if kind == "docstrings":
        own = Task(name=kind, data=docstrings, max_length=48, select=1500)
    else:
        own = task_of(kind, None if kind == "tweets" else glue)
    return replace(own, train=int(rows))


def fill(rows: Rows, ways: Sequence[Row], inputs: Inputs, session: Session) -> None:
    """Fine-tune a teacher in each of these ways, and write what it is worth."""
    said = answers_of_words(inputs.task, inputs.text, session)
    words = worth_of_words(inputs.task, inputs.text, said).heldout_metric

    def choose(fine_tune: FineTune) -> PreTrainedModel:
        for way in ways:
            losses: list[float] = []
            settings = {"learning_rate": way["rate"], "epochs": way["epochs"]}
            model, _ = fine_tune(settings, lambda _, loss: losses.append(loss))  # noqa: B023
            select, heldout = (
                score(model, inputs.split(role), inputs.task.metric, session.device)
                for role in ("select", "heldout")
            )
            worth = {"select": select, "heldout": heldout, "words": words}
            rows.add({**way, "loss": losses, **worth})
        return model

    with TemporaryDirectory() as cache:  # which keeps the last one
        tune(inputs, replace(session, cache=Path(cache)), choose)


def main() -> None:
    """Run, or go on, and print the table."""
    parser = parser_of(__doc__, seeds=(0,), cache=True, device=True)
    parser.add_argument("--glue", help="folder of nyu-mll/glue, for its tasks")
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=TASKS)
    parser.add_argument("--rates", nargs="+", type=float, default=[5e-5, 2e-4])
    parser.add_argument("--epochs", nargs="+", type=int, default=[3, 4, 6, 8, 10])
    asked = parsed(parser)
    rows = Rows(asked.out / "teachers.json", asked.device)
    for name, seed in product(asked.tasks, asked.seeds):
        ways = [
            {"task": name, "seed": seed, "rate": rate, "epochs": epochs}
            for rate, epochs in product(asked.rates, asked.epochs)
        ]
        if missing := [way for way in ways if not rows.has(way)]:
            inputs = read_inputs(task(name, asked.glue), Teacher(checkpoint=minilm()))
            session = Session(cache=asked.cache, seed=seed, device=asked.device)
            fill(rows, missing, inputs, session)
    shown = [{**row, "last": row["loss"][-1], "least": min(row["loss"])} for row in rows.rows]
    print_means(
        "teachers by rate and epochs",
        shown,
        ("task", "rate", "epochs"),
        dict.fromkeys(("last", "least", "select", "heldout", "words"), ".4f"),
    )


if __name__ == "__main__":
    main()
