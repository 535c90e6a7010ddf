"""What a study takes at the size of BERT-base: a random model of 12 layers, 768 wide, made-up text.

    OMP_NUM_THREADS=1 python -m benchmarks.bert_base [--length 128] [--steps 4] [--device cuda]

Every text has the length. Measured are a step of the elastic training (three sizes of 32 rows), a
step of a model that trains alone at a quarter of the FLOPs (32 rows), the teacher's hidden states
and a score, a row each; and the memory at its highest. Seconds on a CPU are those of the processor.
Prints them, and what a study of 16 trials with so many rows would take; writes
benchmarks/results/bert_base-<device>.json.
"""

from __future__ import annotations

import resource
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from benchmarks.harness import parsed, parser_of, print_table, write_json
from benchmarks.made_up import make_checkpoint, make_problem
from benchmarks.tasks import search
from benchmarks.timing import Stopwatch, clock, describe, kind_of, until_enough
from maskfront import ElasticSearch, FisherSearch, SearchMethod, Stage
from objectives.measures.evaluate import predict
from objectives.methods.elastic.elastic_search import ELASTIC
from objectives.problem import Problem

SIZES = {
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
}
ROWS, RATIO = 384, 0.25
STEPS_OF_STUDY, SCORED, TRIALS = 3000, 3000, 16
"""Of a study: elastic steps, rows of the selection and the held-out split, trials."""
STATES = "keep the teacher's hidden states"


def step_of(problem: Problem, method: SearchMethod, stage: str, steps: int) -> float:
    """Seconds of a step of a stage."""
    now = clock(problem.device, processor=problem.device == "cpu")
    watch = Stopwatch(stage, steps, 1, now)
    until_enough(type(method).search([method], problem, seed=0, progress=watch))
    return watch.seconds


def measured(problem: Problem, steps: int) -> dict[str, float]:
    """Seconds of each part, by name."""
    elastic = ElasticSearch(search_steps=0, elastic=replace(ELASTIC, epochs=100))
    stage = Stage(name="recover", epochs=100, learning_rate=3e-4, loss="prediction+hidden")
    alone = FisherSearch(target_ratio=RATIO, tolerance=0.02, stages=(stage,))
    found = {}
    if problem.device == "cpu":
        found["hidden states, a row"] = step_of(problem, elastic, STATES, 4) / 64
    found["elastic step"] = step_of(problem, elastic, "elastic", steps)
    found["lone step"] = step_of(problem, alone, "recover", steps)
    model = search(replace(alone, stages=()), problem, 0).model
    now = clock(problem.device, processor=problem.device == "cpu")
    for name, one in (("whole", problem.teacher), ("a quarter", model)):
        predict(one, problem.alpha, problem.device)  # what is made once is nobody's time
        begun = now()
        predict(one, problem.alpha, problem.device)
        found[f"score of {name}, a row"] = (now() - begun) / len(problem.alpha)
    return found


def main() -> None:
    """Measure, print, write."""
    parser = parser_of(__doc__)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--rows", type=int, default=100_000, help="of the study that is reckoned")
    parser.add_argument("--device", default="cpu")
    asked = parsed(parser)
    with TemporaryDirectory() as scratch:
        folder = Path(scratch)
        problem = make_problem(
            make_checkpoint(folder / "model", **SIZES),
            asked.length,
            asked.device,
            train=ROWS,
            alpha=64,
            lengths=(asked.length, asked.length),
            cache=folder / "cache",
        )
        found = measured(problem, asked.steps)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    if kind_of(asked.device) == "cuda":
        memory = torch.cuda.max_memory_allocated() / 2**30
    answers = asked.rows * found["score of whole, a row"]
    training = STEPS_OF_STUDY * found["elastic step"]
    scores = TRIALS * SCORED * found["score of a quarter, a row"]
    study = {"answers of the teacher": answers, "elastic training": training, "scores": scores}
    lines = [(name, f"{seconds:.3f} s") for name, seconds in found.items()]
    lines += [("memory", f"{memory:.1f} GiB")]
    lines += [(f"study: {name}", f"{seconds / 3600:.2f} h") for name, seconds in study.items()]
    print_table(f"BERT-base, {asked.length} tokens", ("what", "takes"), lines)
    about = {
        "device": describe(asked.device),
        "threads": torch.get_num_threads(),
        "length": asked.length,
    }
    written = {**about, "seconds": found, "gib": memory, "study_seconds": study}
    write_json(asked.out / f"bert_base-{kind_of(asked.device)}.json", written)


if __name__ == "__main__":
    main()
