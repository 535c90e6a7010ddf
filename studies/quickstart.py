"""How small can a MiniLM get that tells the sentiment of a tweet?"""

from dataclasses import replace

from optuna.distributions import FloatDistribution

from objectives import FisherSearch, Stage, Task, Teacher
from orchestrator import Study, launch
from studies._quickstart_data import minilm, tweets

recover = Stage(name="recover", epochs=0.5, learning_rate=3e-4, loss="prediction+hidden")
search = replace(recover, name="search", epochs=0.1, searches=True, schedule="constant")

study = Study(
    name="quickstart",
    task=Task(
        name="tweets", data=tweets, label="sentiment", max_length=48, train=4000, select=1500
    ),
    teacher=Teacher(checkpoint=minilm(), epochs=2),
    method=FisherSearch(stages=(search, recover)),
    space={
        "flops_weight": FloatDistribution(0.6, 1.2),
        "target_ratio": FloatDistribution(0.1, 1, log=True),
        "tolerance": FloatDistribution(0.01, 0.1, log=True),
        "grad_rescale": FloatDistribution(0.03, 0.3, log=True),
    },
    first=tuple({"target_ratio": ratio} for ratio in (0.95, 0.75, 0.5, 0.3)),
    trials=12,
    population=4,
)

if __name__ == "__main__":
    launch(study)  # or: maskfront run studies/quickstart.py
