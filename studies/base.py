"""How small may a model be that tells the sentiment of a tweet as a BERT-base does?"""

from dataclasses import replace

from optuna.distributions import CategoricalDistribution, FloatDistribution

from maskfront import CellSearch, ElasticSearch, Stage, Study, Teacher, launch
from studies._data import minilm, mpnet
from studies.quickstart import study as quickstart

elastic = Stage(name="elastic", epochs=3, learning_rate=1.5e-4, loss="prediction+hidden")
answers = replace(elastic, learning_rate=6e-4, loss="prediction")
cells = CellSearch(operations=("conv5", "none"), epochs=2)

study = Study(
    name="base",
    task=replace(quickstart.task, train=4000, unlabelled_split=quickstart.task.split),
    teacher=Teacher(checkpoint=mpnet()),
    method={"cut": ElasticSearch(elastic=elastic), "cells": cells},
    space={
        "cut.target_ratio": FloatDistribution(0.03, 1, log=True),
        "cells.width": CategoricalDistribution((64, 128, 256)),
        "cells.operations[1]": CategoricalDistribution(("conv5", "attention", "none")),
    },
    first=(
        *({"method": "cut", "cut.target_ratio": ratio} for ratio in (0.6, 0.3, 0.15, 0.07)),
        {"method": "cells", "cells.width": 128},
    ),
    trials=16,
)
# maskfront run studies/base.py --study study_minilm
study_minilm = replace(
    study,
    name="base-minilm",
    student=minilm(),
    method={"cut": ElasticSearch(elastic=answers), "cells": cells},
)

if __name__ == "__main__":
    launch(study)  # or: maskfront run studies/base.py
