"""Which is better for tweets: a BERT that is cut, or a cell of a few operations?"""

from dataclasses import replace

from optuna.distributions import CategoricalDistribution, FloatDistribution

from maskfront import CellSearch, FisherSearch, Stage, Study, launch
from studies.quickstart import study as quickstart

recover = Stage(name="recover", epochs=2, learning_rate=6e-4, loss="prediction+hidden")

study = Study(
    name="cut-or-cells",
    task=replace(quickstart.task, unlabelled_split=quickstart.task.split),
    teacher=quickstart.teacher,
    method={
        "cut": FisherSearch(tolerance=0.01, stages=(recover,)),
        "cells": CellSearch(operations=("conv5", "none"), epochs=2),
    },
    space={
        "cut.target_ratio": FloatDistribution(0.05, 0.5, log=True),
        "cells.width": CategoricalDistribution((64, 128)),
        "cells.operations[1]": CategoricalDistribution(("conv5", "attention", "none")),
    },
    first=({"method": "cells", "cells.width": 128}, {"method": "cut", "cut.target_ratio": 0.2}),
    trials=8,
)

if __name__ == "__main__":
    launch(study)  # or: maskfront run studies/cut_or_cells.py
