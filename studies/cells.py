"""Below a hundredth of a MiniLM: which few operations tell the sentiment of a tweet?"""

from dataclasses import replace

from optuna.distributions import CategoricalDistribution

from maskfront import CellSearch, Study, launch
from studies.quickstart import study as quickstart

OPERATIONS = CategoricalDistribution(("conv3", "conv5", "conv7", "attention", "gated", "none"))

study = Study(
    name="cells",
    task=replace(quickstart.task, unlabelled_split=quickstart.task.split),
    teacher=quickstart.teacher,
    method=CellSearch(operations=("conv5", "conv5", "none"), epochs=2),
    space={
        "width": CategoricalDistribution((32, 64, 128)),
        "operations[0]": OPERATIONS,
        "operations[1]": OPERATIONS,
        "operations[2]": OPERATIONS,
    },
    trials=16,
)

if __name__ == "__main__":
    launch(study)  # or: maskfront run studies/cells.py
