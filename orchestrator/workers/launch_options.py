"""What a launch says beside its study."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from orchestrator.errors import RunError
from orchestrator.runs.run_folder import RunFolder
from orchestrator.study import PopulationSize, Study

Backend = Literal["loky", "dask", "ray"]


@dataclass(frozen=True, kw_only=True)
class LaunchOptions:
    """Where, with what and how far a study runs: see `orchestrator.launch`."""

    trials: int | None = None
    population: PopulationSize | None = None
    workers: int = 1
    out: str | Path | None = None
    storage: str | None = field(default=None, repr=False)  # it may hold a password
    device: str = "auto"
    artifacts: str | None = None
    backend: Backend = "loky"
    cluster: str | None = None
    timeout: float | None = None

    @property
    def in_process(self) -> bool:
        """Whether the only worker is the process that launches."""
        return (self.workers, self.backend, self.cluster) == (1, "loky", None)

    def applied(self, study: Study) -> tuple[Study, RunFolder]:
        """The study with what the launch says instead, and its folder. Raises RunError for what is
        no Study, such as the name of its file."""
        if not isinstance(study, Study):
            raise RunError(
                f"a launch takes a Study, not a {type(study).__name__}; read one from a file with "
                "orchestrator.load_study('study.py')"
            )
        if self.timeout is not None and not self.timeout > 0:
            raise RunError(f"timeout is {self.timeout}; it must be seconds above 0", "timeout")
        study = replace(
            study,
            trials=study.trials if self.trials is None else self.trials,
            population=study.population if self.population is None else self.population,
        )
        return study, RunFolder(Path("runs") / study.name if self.out is None else Path(self.out))
