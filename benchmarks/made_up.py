"""A model of MiniLM-L6's sizes and texts as long as tweets, all random."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from datasets import Dataset
from transformers import BertConfig, BertForSequenceClassification, BertTokenizer

from objectives.problem import Problem
from objectives.session import Session
from objectives.text.task import Task
from objectives.workbench.inputs import read_inputs
from objectives.workbench.teacher import Teacher
from objectives.workbench.workbench import prepare

SIZES = {
    "vocab_size": 30522,
    "hidden_size": 384,
    "num_hidden_layers": 6,
    "num_attention_heads": 12,
    "intermediate_size": 1536,
}
TOKENS = (5, 14, 18, 22, 25, 28, 30, 32, 34, 37, 58)
"""Shortest, deciles and longest of the quickstart's tweets in tokens, with [CLS] and [SEP]."""
LABELS = 3
_SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
_WORDS = SIZES["vocab_size"] - len(_SPECIAL)


def make_checkpoint(folder: Path, **sizes: int) -> str:
    """Write a classifier, of these sizes instead of MiniLM's, and a tokenizer of `texts`."""
    torch.manual_seed(0)
    config = BertConfig(**{**SIZES, **sizes}, num_labels=LABELS)
    BertForSequenceClassification(config).save_pretrained(folder)
    words = [*_SPECIAL, *(f"w{number}" for number in range(_WORDS))]
    vocabulary = {word: number for number, word in enumerate(words)}
    BertTokenizer(vocab=vocabulary).save_pretrained(folder)
    return str(folder)


def texts(rows: int, lengths: Sequence[int] = TOKENS) -> Dataset:
    """Draw texts with labels; a word is a token, `lengths` are quantiles at equal distances."""
    generator = np.random.default_rng(0)
    tokens = np.interp(generator.random(rows), np.linspace(0, 1, len(lengths)), lengths)
    numbers = [generator.integers(_WORDS, size=round(length) - 2) for length in tokens]
    words = [" ".join(f"w{number}" for number in some) for some in numbers]
    labels = [str(label) for label in generator.integers(LABELS, size=rows)]
    return Dataset.from_dict({"text": words, "label": labels})


def make_problem(
    checkpoint: str,
    length: int,
    device: str,
    *,
    train: int = 320,
    alpha: int = 320,
    lengths: Sequence[int] = TOKENS,
    cache: Path | None = None,
) -> Problem:
    """Prepare so many rows, cut off at `length` tokens."""
    scored = 64
    task = Task(
        name="made up",
        data=partial(texts, train + alpha + 2 * scored, lengths),
        max_length=length,
        train=train,
        alpha=alpha,
        select=scored,
        heldout=scored,
    )
    inputs = read_inputs(task, Teacher(checkpoint=checkpoint), seq_len=length)
    with TemporaryDirectory() as scratch:
        return prepare(
            inputs,
            session=Session(cache=cache or Path(scratch), device=device),
        ).problem
