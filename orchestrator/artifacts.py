"""The files that optuna-dashboard shows: beside the trials' own, without a second copy."""

from __future__ import annotations

import os
from pathlib import Path
from typing import BinaryIO

from optuna.artifacts import FileSystemArtifactStore


class LinkingStore(FileSystemArtifactStore):
    """A store whose artifacts are hard links to the files they were made from, where a disk can.

    So the weights of a trial are an artifact and take no room of their own.
    """

    def __init__(self, folder: Path):
        super().__init__(folder)
        self._folder = folder

    def write(self, artifact_id: str, content_body: BinaryIO) -> None:
        """Link the file, or copy it to a disk that has no links."""
        try:
            os.link(content_body.name, self._folder / artifact_id)
        except (AttributeError, OSError, TypeError):  # no file, or a disk without links
            super().write(artifact_id, content_body)
