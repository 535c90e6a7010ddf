"""Every cell of a small space, trained once: a table on which a search costs no training.

A cell has three nodes; each reads one state before it by one of five operations. The cells
are 32 wide and learn from the answers of a fine-tuned MiniLM-L6 on the tweets of the quickstart.
Spellings of one cell share its training. The score is minus the divergence from the teacher on the
selection split, in nats.

    OMP_NUM_THREADS=1 python -m benchmarks.cell_table --cache FOLDER [--steps 250]

Writes benchmarks/results/cell_table.json, which `benchmarks.strategies` reads: `places`, and for
each candidate its choices and its score. Cells that are trained are kept beside the teacher, so
that a run that was stopped goes on.
"""

from __future__ import annotations

import json
from itertools import product

from rich.progress import track

from benchmarks.harness import parsed, parser_of, print_table
from benchmarks.tasks import search, workbench
from maskfront import CellSearch, GraphSpace
from objectives.cache import atomic_write_text
from objectives.measures.evaluate import divergence, predict
from objectives.students.cells.genotype import Genotype
from objectives.students.cells.graph import IDENTITY, NONE

SPACE = GraphSpace(nodes=3, operations=("conv3", "conv7", "gated", "max3", IDENTITY), edges=1)
WIDTH, BATCH, SEED = 32, 32, 0


def main() -> None:
    """Train what is not trained, write the table, print its ends."""
    parser = parser_of(__doc__, cache=True)
    parser.add_argument("--steps", type=int, default=250)
    asked = parsed(parser)
    bench = workbench("tweets", None, asked.cache)
    problem, select = bench.problem, bench.select
    taught = predict(problem.teacher, select, problem.device)
    epochs = asked.steps * BATCH / len(problem.train)
    done = asked.cache / f"cells-{problem.fingerprint}-{asked.steps}.json"
    known: dict[str, float] = json.loads(done.read_text()) if done.exists() else {}

    def score(genotype: Genotype) -> float:
        key = genotype.to_json()
        if key not in known:
            method = CellSearch(
                width=WIDTH,
                operations=genotype.operations or (NONE,),
                nodes=genotype.nodes,
                epochs=epochs,
                batch_size=BATCH,
            )
            model = search(method, problem, SEED).model
            known[key] = -divergence(predict(model, select, problem.device), taught, select)
            atomic_write_text(done, json.dumps(known))
        return known[key]

    candidates = list(product(*SPACE.places.values()))
    cells = [
        Genotype(WIDTH, nodes=SPACE.graph(dict(zip(SPACE.places, one, strict=True))).nodes)
        for one in candidates
    ]
    each = list(dict.fromkeys(cells))
    scores = {cell: round(score(cell), 5) for cell in track(each, f"{len(each)} cells")}
    table = {"places": dict(SPACE.places), "candidates": candidates}
    text = json.dumps({**table, "scores": [scores[cell] for cell in cells]})
    atomic_write_text(asked.out / "cell_table.json", text + "\n")
    ranked = sorted(each, key=scores.__getitem__, reverse=True)
    print_table(
        f"{len(candidates)} candidates, {len(each)} cells",
        ["operations", "KL"],
        [[" ".join(c.blocks), f"{-scores[c]:.4f}"] for c in [*ranked[:5], *ranked[-5:]]],
    )


if __name__ == "__main__":
    main()
