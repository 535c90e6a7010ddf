"""The files that optuna-dashboard shows beside a trial: links in the run folder, or a bucket."""

import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import urlsplit

import optuna
from optuna.artifacts import (
    Boto3ArtifactStore,
    FileSystemArtifactStore,
    get_all_artifact_meta,
    upload_artifact,
)
from optuna.artifacts.exceptions import ArtifactNotFound
from optuna.trial import FrozenTrial

from objectives.cache import sync
from orchestrator.errors import RunError
from orchestrator.optuna_private import storage_of
from orchestrator.runs.reading import as_type
from orchestrator.runs.records import ARTIFACTS
from orchestrator.runs.run_folder import RunFolder
from orchestrator.storage.retry import reason_of

_SECONDS = 10  # until a bucket that does not answer is given up


class LinkingStore(FileSystemArtifactStore):
    """Store of hard links, where a disk has them, to the files of a trial."""

    # Hard links, so the weights of a trial take no room of their own. It reads its own files alone:
    # a stranger's folder may have links to others.

    def __init__(self, folder: Path):
        super().__init__(folder)
        self._folder = folder

    def write(self, artifact_id: str, content_body: BinaryIO) -> None:
        try:
            os.link(content_body.name, self._folder / artifact_id)
        except (AttributeError, OSError, TypeError):  # no file, or a disk without links
            super().write(artifact_id, content_body)
            sync(self._folder / artifact_id)

    def open_reader(self, artifact_id: str) -> BinaryIO:
        try:
            folder = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                # Without waiting: it may be a pipe.
                flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
                file = os.open(Path(artifact_id).name, flags, dir_fd=folder)
            finally:
                os.close(folder)
        except OSError as error:
            raise ArtifactNotFound("not found") from error
        if not stat.S_ISREG(os.fstat(file).st_mode):
            os.close(file)
            raise ArtifactNotFound("not a file")
        return os.fdopen(file, "rb")


@cache
def bucket_store(url: str) -> Boto3ArtifactStore:
    """Open s3://BUCKET; boto3 takes address and keys from AWS_ENDPOINT_URL and the like."""
    parts = urlsplit(url)
    if parts.scheme != "s3" or not parts.netloc or parts.path.strip("/"):
        raise RunError(f"'{url}' must be s3://BUCKET, without a path", "artifacts")
    if find_spec("boto3") is None:
        raise RunError(
            "a bucket needs boto3: pip install -c constraints.txt -e '.[s3]'", "artifacts"
        )
    import boto3
    from botocore.config import Config

    config = Config(
        connect_timeout=_SECONDS, read_timeout=6 * _SECONDS, retries={"total_max_attempts": 2}
    )
    return Boto3ArtifactStore(parts.netloc, client=boto3.client("s3", config=config))


def set_artifact_store(optuna_study: optuna.Study, url: str | None) -> None:
    """Record where the artifacts of a study go, if the launch names a bucket; all workers read it
    there. Raises RunError if the bucket does not answer, or if artifacts went elsewhere so far."""
    address = optuna_study.user_attrs.get(ARTIFACTS)
    if url is None or url == address:
        return
    store = bucket_store(url)
    if address is not None or any(
        t.state.is_finished() for t in optuna_study.get_trials(deepcopy=False)
    ):
        raise RunError(
            f"the files of study '{optuna_study.study_name}' are in "
            f"{address or 'its run folder'} so far, not in {url}; keep that address, or give the "
            "study another name",
            "artifacts",
        )
    try:
        store.client.head_bucket(Bucket=store.bucket)
    except Exception as error:  # boto3 has a class for each thing that may be wrong
        raise RunError(
            f"{url} cannot be used ({reason_of(error)}); check AWS_ENDPOINT_URL, "
            "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        ) from error
    optuna_study.set_user_attr(ARTIFACTS, url)


def stores_of(studies: Sequence[tuple[Mapping[str, Any], RunFolder | None]]) -> Iterator[Any]:
    """Stores of studies with these attributes and folders: the folders, then buckets that open."""
    for _, folder in studies:
        if folder is not None:
            yield LinkingStore(folder.artifacts)
    for attributes, _ in studies:
        with suppress(RunError):
            if url := as_type(str | None, attributes.get(ARTIFACTS), f"the study's {ARTIFACTS}"):
                yield bucket_store(url)


def upload(
    files: Sequence[Path], trial: optuna.Trial, optuna_study: optuna.Study, folder: RunFolder
) -> str:
    """Upload a trial's files, which lie in the run folder too; returns what a bucket refused."""
    url = optuna_study.user_attrs.get(ARTIFACTS)
    try:
        store = _store_at(url, folder)
        for file in files:
            upload_artifact(artifact_store=store, file_path=str(file), study_or_trial=trial)
        sync(folder.artifacts)
    except Exception as error:
        if url is None:
            raise
        return f"; its files are not in {url} ({reason_of(error)})"
    return ""


def remove_artifacts(
    trial: FrozenTrial | optuna.Trial, optuna_study: optuna.Study, folder: RunFolder
) -> None:
    """Remove the artifacts of a failed trial. They stay in a bucket that is away."""
    metas = get_all_artifact_meta(trial, storage=storage_of(optuna_study))
    with suppress(Exception):  # boto3 has a class for each thing that may be wrong
        store = _store_at(optuna_study.user_attrs.get(ARTIFACTS), folder)
        for meta in metas:
            # It may be gone, or its name none that was given.
            with suppress(ArtifactNotFound, ValueError):
                store.remove(meta.artifact_id)


def _store_at(url: str | None, folder: RunFolder) -> LinkingStore | Boto3ArtifactStore:
    return LinkingStore(folder.artifacts) if url is None else bucket_store(url)
