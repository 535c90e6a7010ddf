"""Session of a launch: device, seed, cache and progress, which everything takes along."""

from dataclasses import dataclass, field
from pathlib import Path

from objectives.progress import Progress, SilentProgress


@dataclass(frozen=True, eq=False, kw_only=True)
class Session:
    """Settings of a worker of a launch, or of a call from Python."""

    cache: Path
    """Cache folder: see `objectives.cache`."""
    seed: int = 0
    """Seed of the order of rows, the teacher, augmentation."""
    device: str = "cpu"
    """"cpu", "cuda" or "cuda:N"."""
    progress: Progress = field(default_factory=SilentProgress)
    """Shows the progress of long work."""
