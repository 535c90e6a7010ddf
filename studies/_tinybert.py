"""What the studies of GLUE share: a general TinyBERT, searched below a BERT-base of the task.

All checkpoints and data are named as on the hub. Where there is no hub, two variables say where
they lie: MASKFRONT_MODELS, a folder that holds the checkpoints under these names, as safetensors
with their tokenizers, and MASKFRONT_GLUE, a folder with the configurations of nyu-mll/glue.
"""

import os
from typing import Literal

from optuna.distributions import FloatDistribution

from maskfront import FOUR_STEPS, MaskSearch, Study, Teacher, glue

TEACHER = "bert-base-uncased"
STUDENTS = {
    "4x312": "huawei-noah/TinyBERT_General_4L_312D",
    "6x768": "huawei-noah/TinyBERT_General_6L_768D",
}


def tinybert_study(task: str, size: Literal["4x312", "6x768"]) -> Study:
    """The study of a GLUE task with a TinyBERT of this many layers and dimensions."""
    return Study(
        name=f"{task}-{size}",
        task=glue(task, os.environ.get("MASKFRONT_GLUE", "nyu-mll/glue")),
        teacher=Teacher(checkpoint=_checkpoint(TEACHER), epochs=10, batch_size=32),
        student=_checkpoint(STUDENTS[size]),
        # Alpha starts uniform: a general TinyBERT has no classifier yet, so that its Fisher
        # information would say nothing.
        method=MaskSearch.preset("anneal", stages=FOUR_STEPS),
        space={
            "flops_weight": FloatDistribution(0.1, 10, log=True),
            "target_ratio": FloatDistribution(0.2, 1, log=True),
            "tolerance": FloatDistribution(0.01, 0.1, log=True),
            "grad_rescale": FloatDistribution(0.03, 0.3, log=True),
        },
        first=tuple({"target_ratio": ratio} for ratio in (1.0, 0.75, 0.5, 0.25)),
        trials=24,
        population=8,
    )


def _checkpoint(name: str) -> str:
    folder = os.environ.get("MASKFRONT_MODELS")
    return name if folder is None else os.path.join(folder, name)
