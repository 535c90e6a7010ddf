"""What weights on the way back to the teacher's are worth to large cuts of an elastic student.

MiniLM-L6 is fine-tuned on a task once, and one elastic student trained at all sizes. Each ratio is
cut from it twice: with the weights `as trained`, and from weights between these and the teacher's,
as a trial of `ElasticSearch` does it (`objectives/methods/elastic/interpolated.py`).

    OMP_NUM_THREADS=1 python -m benchmarks.interpolation --cache FOLDER [--task cola --glue FOLDER]
        [--seeds 0 1 2] [--epochs 7]

Without `--glue` the task is that of the quickstart, "tweets". Writes
benchmarks/results/interpolation.json row by row and goes on where it was stopped; prints the means
of the rows there. KL is the divergence from the teacher's answers in nats, agreement the share of
rows with its label, both on the selection split and held out.
"""

from __future__ import annotations

from itertools import product

from benchmarks.elastic import elastic
from benchmarks.harness import Rows, parsed, parser_of, print_means
from benchmarks.tasks import kept, measure, workbench
from maskfront import ElasticSearch
from objectives.problem import Problem
from objectives.students.bert.architecture import BertArchitecture
from objectives.students.bert.pretrained import Classifier

RATIOS = (0.98, 0.9, 0.8, 0.7, 0.6, 0.5, 0.3)
ARMS = ("as trained", "interpolated")
KEPT = ("kl", "heldout_kl", "agreement", "heldout_agreement", "heldout")


class AsTrained(ElasticSearch):
    """The same without a way back."""

    def _weights_for(
        self, problem: Problem, trained: Classifier, units: BertArchitecture
    ) -> Classifier:
        """Those that were trained, whatever the size."""
        return trained


def main() -> None:
    """Run, or go on, and print the table."""
    tasks = ("tweets", "sst2", "cola")
    parser = parser_of(__doc__, tasks=tasks, seeds=(0, 1, 2), cache=True, device=True)
    parser.add_argument("--epochs", type=float, default=7, help="of the elastic training")
    asked = parsed(parser)
    rows = Rows(asked.out / "interpolation.json", asked.device)
    bench = workbench(asked.task, asked.glue, asked.cache, device=asked.device)
    trained = elastic(asked.epochs)
    for seed, ratio, arm in product(asked.seeds, RATIOS, ARMS):
        key = {"task": asked.task, "seed": seed, "ratio": ratio, "arm": arm, "epochs": asked.epochs}
        if not rows.has(key):
            kind = AsTrained if arm == "as trained" else ElasticSearch
            method = kind(elastic=trained.elastic, tolerance=trained.tolerance, target_ratio=ratio)
            rows.add({**key, **kept(measure(bench, method, seed), *KEPT)})
    print_means(
        "weights on the way back to the teacher's",
        rows.rows,
        ("task", "epochs", "ratio", "arm"),
        dict.fromkeys(KEPT, ".4f"),
    )


if __name__ == "__main__":
    main()
