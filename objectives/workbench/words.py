"""Linear model on tf-idf of words, which a teacher should beat."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from objectives.cache import cached_array, content_key
from objectives.measures.bootstrap import Worth, bootstrap_interval
from objectives.metric import Labels, metric_value
from objectives.session import Session

if TYPE_CHECKING:  # they load torch, which readers of a run do without
    from objectives.text.task import Examples, LabelledText, Task

NAME = "words alone (tf-idf)"
"""Name of the model on pages."""
_JUDGING = ("select", "heldout")
_ROWS = 20_000
_CHARACTERS = 20_000_000
"""Most train rows and characters to learn from: a few seconds on one core."""
_FEATURES = 50_000
"""Number of the most frequent words and pairs of words of a column."""


def answers_of_words(task: Task, text: LabelledText, session: Session) -> dict[str, Labels]:
    """Answers (rows,) on "select" and "heldout" of a linear SVM on words, or ridge regression."""
    # It is fitted once for all launches; the answers lie in the cache.
    roles = [text.roles[role] for role in _JUDGING]
    lengths = [len(examples.labels) for examples in roles]
    key = {"data": text.fingerprint_of_roles, "regression": task.regression, "seed": session.seed}
    predicted = cached_array(
        session.cache / f"words-{content_key(key)}.npy",
        (sum(lengths), *roles[0].labels.shape[1:]),
        roles[0].labels.dtype.type,
        session.progress.note,
        lambda: np.concatenate(_fitted(text.roles["train"], roles, session.seed, task.regression)),
    )
    return dict(zip(_JUDGING, np.split(predicted, lengths[:1]), strict=True))


def worth_of_words(task: Task, text: LabelledText, answers: Mapping[str, Labels]) -> Worth:
    """Metric of these answers."""
    metric, classes = task.metric, len(text.label_names)
    pairs = [(text.roles[role].labels, answers[role]) for role in _JUDGING]
    select, heldout = (metric_value(metric, *pair, classes=classes) for pair in pairs)
    of_select, of_heldout = (bootstrap_interval(metric, *pair, classes) for pair in pairs)
    return Worth(select, of_select, heldout, of_heldout)


def _fitted(
    train: Examples, others: Sequence[Examples], seed: int, regression: bool
) -> list[Labels]:
    """Fit a model to the train rows and answer other rows."""
    from scipy.sparse import hstack
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import Ridge
    from sklearn.multiclass import OneVsRestClassifier
    from sklearn.svm import LinearSVC

    rows = _sample(train, seed)
    texts, labels = [train.texts[row] for row in rows], train.labels[rows]
    if not regression and len(np.unique(labels, axis=0)) == 1:
        return [np.repeat(labels[:1], len(other.labels), axis=0) for other in others]
    columns = [
        # Marks count as words: some texts have nothing else.
        TfidfVectorizer(
            ngram_range=(1, 2),
            sublinear_tf=True,
            max_features=_FEATURES,
            token_pattern=r"\w+|[^\w\s]",
        )
        for _ in texts[0]
    ]

    def features(texts: Sequence[tuple[str, ...]], step: str) -> Any:
        parts = zip(columns, zip(*texts, strict=True), strict=True)
        return hstack([getattr(column, step)(words) for column, words in parts], format="csr")

    model: Any = Ridge() if regression else LinearSVC(tol=1e-2, random_state=0)
    if labels.ndim == 2:  # a label that all rows have, or none, makes it warn
        model = OneVsRestClassifier(model)
    category = UserWarning if labels.ndim == 2 else ConvergenceWarning
    with warnings.catch_warnings(action="ignore", category=category):
        model.fit(features(texts, "fit_transform"), labels)
    predicted = [model.predict(features(other.texts, "transform")) for other in others]
    return [answers.astype(labels.dtype) for answers in predicted]


def _sample(train: Examples, seed: int) -> Labels:
    """Indices of the rows to learn from: all, or as many as are quickly learnt."""
    rows = len(train.texts)
    characters = sum(len(text) for texts in train.texts for text in texts)
    most = int(rows * min(1.0, _ROWS / rows, _CHARACTERS / characters))
    return np.random.default_rng(seed).permutation(rows)[: max(1, most)]
