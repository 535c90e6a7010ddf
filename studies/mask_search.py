"""How small does MiniLM get where its weights and its masks learn together?"""

from optuna.distributions import FloatDistribution

from maskfront import MaskSearch, Stage, Study, launch
from studies.quickstart import study as quickstart

search = Stage(
    name="search",
    epochs=1.5,
    learning_rate=3e-4,
    schedule="constant",
    loss="prediction+hidden",
    searches=True,
)
recover = Stage(name="recover", epochs=3, learning_rate=3e-4, loss="prediction+hidden")

study = Study(
    name="mask-search",
    task=quickstart.task,
    teacher=quickstart.teacher,
    # Units of two spaces; all that there are: heads, ffn, qk, v, input (or input_qkv) and layers.
    method=MaskSearch(spaces=("heads", "ffn"), stages=(search, recover)),
    space={
        "flops_weight": FloatDistribution(0.3, 30, log=True),
        "target_ratio": FloatDistribution(0.1, 1, log=True),
        "tolerance": FloatDistribution(0.01, 0.1, log=True),
        # Alpha, which starts between 2 and 8, can move by kappa x 141 steps: here by 4 to 42.
        "grad_rescale": FloatDistribution(0.03, 0.3, log=True),
    },
    first=tuple({"target_ratio": ratio} for ratio in (0.5, 0.25, 0.1)),
    trials=24,
    population=8,  # trials that search as one program, on a GPU or a CPU
)

if __name__ == "__main__":
    launch(study)  # or: maskfront run studies/mask_search.py
