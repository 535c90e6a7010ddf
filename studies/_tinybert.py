"""Study of a GLUE task: a general TinyBERT, searched below a BERT-base of the task in four steps.

Checkpoints and data are named as on the hub. Where there is none, MASKFRONT_MODELS is a folder with
the checkpoints under these names, MASKFRONT_GLUE one with the configurations of nyu-mll/glue.
"""

import os
from typing import Literal

from optuna.distributions import FloatDistribution

from maskfront import FOUR_STEPS, Augmentation, MaskSearch, Study, Teacher, glue

TEACHER = "bert-base-uncased"
ROWS = {"cola": 3700, "rte": 1100, "sst2": 33_000}
"""Rows that weights learn from: about half of train."""
COPIES = {"cola": 30, "rte": 30, "sst2": 20}
"""Augmented copies of a row, as TinyBERT has them."""
STUDENTS = {
    "4x312": "huawei-noah/TinyBERT_General_4L_312D",
    "6x768": "huawei-noah/TinyBERT_General_6L_768D",
}


def tinybert_study(task: str, size: Literal["4x312", "6x768"]) -> Study:
    """The study of a GLUE task with a TinyBERT of this many layers and dimensions."""
    copies = COPIES[task]
    # As many steps as ten passes over the rows themselves, as in the source: copies are no excuse.
    method = MaskSearch.preset(
        "anneal", spaces=("heads", "ffn", "qk", "v", "input_qkv"), stages=FOUR_STEPS
    ).scale_epochs(1 / (1 + copies))
    search_steps = sum(stage.epochs for stage in FOUR_STEPS if stage.searches) * ROWS[task] / 32
    return Study(
        name=f"{task}-{size}",
        task=glue(task, os.environ.get("MASKFRONT_GLUE", "nyu-mll/glue"), alpha=0.5),
        teacher=Teacher(checkpoint=_checkpoint(TEACHER), epochs=10, batch_size=32),
        student=_checkpoint(STUDENTS[size]),
        augmentation=Augmentation(masked_lm=_checkpoint(TEACHER), copies=copies),
        # Alpha starts uniform: a general TinyBERT does not know the task, so that its Fisher
        # information would say little.
        method=method,
        space={
            "flops_weight": FloatDistribution(0.1, 10, log=True),
            "target_ratio": FloatDistribution(0.2, 1, log=True),
            "tolerance": FloatDistribution(0.01, 0.1, log=True),
            # Alpha, which starts at 5, can move by kappa x steps: here by 5 to 50.
            "grad_rescale": FloatDistribution(5 / search_steps, 50 / search_steps, log=True),
        },
        first=tuple({"target_ratio": ratio} for ratio in (1.0, 0.75, 0.5, 0.25)),
        trials=24,
        population=8,
    )


def _checkpoint(name: str) -> str:
    folder = os.environ.get("MASKFRONT_MODELS")
    return name if folder is None else os.path.join(folder, name)
