"""Where and how a launch works: what everything takes along that is made once."""

from dataclasses import dataclass, field
from pathlib import Path

from objectives.progress import Progress, SilentProgress


@dataclass(frozen=True, eq=False, kw_only=True)
class Session:
    """A worker of a launch, or a call from Python."""

    cache: Path
    """Folder for what is made once: see `cache`."""
    seed: int = 0
    """Seeds the order of rows, the teacher, augmentation."""
    device: str = "cpu"
    """"cpu", "cuda" or "cuda:N"."""
    progress: Progress = field(default_factory=SilentProgress)
    """Hears how long work goes on."""
