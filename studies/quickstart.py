"""How small can a MiniLM get that tells the sentiment of a tweet?"""

from optuna.distributions import FloatDistribution

from maskfront import ElasticSearch, Stage, Study, Task, Teacher, launch
from studies._data import minilm, tweets

elastic = Stage(name="elastic", epochs=8, learning_rate=6e-4, loss="prediction+hidden")
near_the_training = {"flops_weight": 0.1, "grad_rescale": 2.0}

study = Study(
    name="quickstart",
    task=Task(
        name="tweets", data=tweets, label="sentiment", max_length=48, train=3000, select=1500
    ),
    teacher=Teacher(checkpoint=minilm(), epochs=2, learning_rate=5e-5),
    method=ElasticSearch(elastic=elastic),
    space={
        "flops_weight": FloatDistribution(0.02, 0.5, log=True),
        "target_ratio": FloatDistribution(0.1, 1, log=True),
        "tolerance": FloatDistribution(0.01, 0.1, log=True),
        "grad_rescale": FloatDistribution(0.5, 20, log=True),
    },
    first=tuple(
        {"target_ratio": ratio, **near_the_training} for ratio in (0.95, 0.7, 0.5, 0.3, 0.2, 0.1)
    ),
    trials=16,
)

if __name__ == "__main__":
    launch(study)  # or: maskfront run studies/quickstart.py
