"""`check`: test whether a folder still answers as the original model does, on new texts.

Without the original only the texts can be compared, with it the answers, too."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import betaln
from scipy.stats import beta, fisher_exact, ks_2samp

from objectives.combining.members import CONFIDENCE, Array
from objectives.delivery.classify import Classifier
from objectives.delivery.reference import read_reference, strangeness_of, tokenizer_of
from objectives.engines.onnx_model import check_installed
from objectives.errors import UserError, a_few, first_line, spelled
from objectives.measures.evaluate import predict
from objectives.students.bert.pretrained import Checkpoint
from objectives.text.task import Examples, Rows, dataset_of, tokenise
from objectives.text.text_files import TextFile

_TOGETHER = 32  # texts that the original answers before the test is looked at again

# Tests of a promise: of a share, as answers come in, and of two samples.

ALARM = 0.001
"""Largest probability that samples from one source count as different, in all tests together."""
_ROWS_OF_PRIOR = 20  # rows that the prior of the share is worth: a few points around the gate
_MOST_ROWS = 1e6  # more are as good as none


def evidence(agreed: Array | int, asked: Array | int, share: float) -> NDArray[np.float64]:
    """Log evidence (2, ...) that the share of all rows is above `share`, and that it is below.

    Each is the log of a nonnegative supermartingale of mean at most 1 where it is not (a mixture of
    likelihood ratios; Robbins 1970). So with whatever stops the asking, it exceeds
    `log(1 / (1 - CONFIDENCE))` with a chance of at most `1 - CONFIDENCE` (Ville 1939).
    """
    agreed, asked = np.asarray(agreed), np.asarray(asked)
    prior = _ROWS_OF_PRIOR * share, _ROWS_OF_PRIOR * (1 - share)
    after = prior[0] + agreed, prior[1] + asked - agreed
    ratio = betaln(*after) - betaln(*prior)
    ratio = ratio - agreed * np.log(share) - (asked - agreed) * np.log1p(-share)
    above = beta.logsf(share, *after) - beta.logsf(share, *prior)
    below = beta.logcdf(share, *after) - beta.logcdf(share, *prior)
    return np.stack([ratio + above, ratio + below])


def verdict(agrees: Sequence[bool], share: float) -> bool | None:
    """Whether `share` of all rows agrees (95% confidence), by rows at random; None if unknown."""
    if not agrees:
        return None
    agreed, asked = np.cumsum(agrees), np.arange(1, len(agrees) + 1)
    passed = evidence(agreed, asked, share) >= -np.log(1 - CONFIDENCE)
    rows = np.flatnonzero(passed.any(axis=0))
    return bool(passed[0, rows[0]]) if len(rows) else None


def more_rows(agreed: int, asked: int, share: float) -> int | None:
    """Further rows that would decide if they agree as those so far; None if a million would not."""
    rows = asked * np.geomspace(1, _MOST_ROWS / asked, 200)
    proven = evidence(agreed / asked * rows, rows, share).max(axis=0) >= -np.log(1 - CONFIDENCE)
    return int(np.ceil(rows[proven.argmax()] - asked)) if proven.any() else None


@dataclass(frozen=True, kw_only=True)
class Change:
    """Expected and current share of the texts."""

    expected: float
    now: float
    chance: float
    """Probability of such a difference between two samples from one source."""

    @property
    def alarm(self) -> bool:
        """Whether the difference is significant; each of two tests has half of `ALARM`."""
        return self.chance < ALARM / 2


def change_of_share(before: tuple[int, int], now: tuple[int, int]) -> Change:
    """Compare two counts of rows by Fisher's exact test."""
    table = [[count, rows - count] for count, rows in (before, now)]
    chance = float(fisher_exact(table).pvalue)
    return Change(expected=before[0] / before[1], now=now[0] / now[1], chance=chance)


def change_of_scores(before: Array, now: Array) -> Change:
    """Compare scores of two samples by the test of Kolmogorov and Smirnov; `now` is the share of
    the scores before that one of now exceeds in the mean, half if they are alike."""
    ordered = np.sort(before)
    below, up_to = (np.searchsorted(ordered, now, side) for side in ("left", "right"))
    share = float((below + up_to).mean() / 2 / len(before))
    # Not "exact": where that fails it warns, and takes this formula.
    chance = float(ks_2samp(before, now, method="asymp").pvalue)
    return Change(expected=0.5, now=share, chance=chance)


def fewest_rows(before: int) -> int | None:
    """How many new rows `change_of_scores` needs to find that a fifth is of another kind; None if
    the rows `before` are too few for that. By the limit distribution of the test."""
    inverse = 2 * 0.2**2 / -np.log(ALARM / 4) - 1 / before
    return int(np.ceil(1 / inverse)) if inverse > 0 else None


@dataclass(frozen=True, kw_only=True)
class Holding:
    """Result of `check`: whether the promise holds on new texts, and how these differ from those at
    writing."""

    texts: int
    """Number of different texts that were read."""
    strange: Change
    """Mean share of the texts at writing that are less strange than a new text, by the rarity of
    tokens."""
    deferred: Change | None
    """Share of the texts that the first model defers; None for a folder of one model."""
    promised: float
    """Share of all texts that are answered as the original model does, at 95% confidence."""
    agreed: int = 0
    """Number of answers that equal the original's."""
    asked: int = 0
    """Number of texts that the original answered; 0 if it was not given."""
    holds: bool | None = None
    """Whether the promise holds, with 95% confidence; None if unknown."""
    more: int | None = None
    """Number of further texts that would decide; None if decided, or if a million would not do."""
    tells: bool = True
    """Whether the folder was made with enough texts that new ones alone can show a change."""

    @property
    def changed(self) -> bool:
        """Whether the texts differ from those at writing by more than chance."""
        return any(change.alarm for change in (self.strange, self.deferred) if change is not None)

    @property
    def alarm(self) -> bool:
        """Whether the user must act: the promise does not hold, or the texts changed and that is
        unknown."""
        return self.holds is False or (self.holds is None and self.changed)

    def sentence(self) -> str:
        """The verdict.

        Returns:
            One line.
        """
        counted = f"{self.agreed:,} of {self.asked:,} answers are the original's"
        promise = f"{self.promised:.1%} of all (95% confidence)"
        if self.holds is not None:
            holds, are = ("holds", "at least") if self.holds else ("does not hold", "fewer than")
            return f"{holds}: {counted}, so {are} {promise}"
        more = ""
        if self.more is not None:
            more = f"about {float(f'{self.more:.2g}'):,.0f} more texts would tell"
        if self.asked:
            more = more or "a million more texts would not tell"
            return f"{more}: {counted}, promised are {promise}"
        if self.changed:
            return "may not hold: the texts are not like those at writing; ask the original model"
        if not self.tells:
            return "not known: too few texts made the folder to compare others; give its model"
        return more or "holds as far as texts tell: they differ from those at writing by chance"

    def lines(self) -> list[str]:
        """Comparisons with the texts at writing.

        Returns:
            A line for each comparison.
        """
        what = f"a text is stranger than {self.strange.now:.1%} of those at writing, in the mean"
        shown = [(what, self.strange)]
        if self.deferred is not None:
            shown += [(f"{self.deferred.now:.1%} are deferred to a larger model", self.deferred)]
        return [
            f"{what}; expected {change.expected:.1%} "
            f"({'changed' if change.alarm else 'no more than chance'}, p = {change.chance:.2g})"
            for what, change in shown
        ]


@spelled
def check(
    folder: str | Path,
    data: str | Path | Rows,
    *,
    model: str | Path | None = None,
    text: str = "text",
    delimiter: str | None = None,
    encoding: str = "utf-8",
    quotechar: str | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> Holding:
    """Test whether a folder still answers as the original does, on texts of today.

    Args:
        folder: what `compress` or `cascade` wrote.
        data: the texts: one per line (.txt), or a table; in Python also a DataFrame, a
            `datasets.Dataset` or a list of texts. Equal ones count once.
        model: the original classifier, folder or hub name. It answers texts drawn at random until
            a sequential test knows; without it only the texts are compared.
        text: the column of the text, in a table.
        delimiter: what separates the columns of a CSV; "," or, in a .tsv, a tab.
        encoding: how the file's characters are written.
        quotechar: what encloses fields of a CSV, "" for nothing; see `Task.from_files`.
        say: told what is done.

    Returns:
        Whether it holds, and the numbers. Texts count as changed if samples of one source differ
        so much once in 1,000 times.

    Raises:
        UserError: for a folder, a model or a file that cannot be read, for other labels, and
            without the extra "onnx".
    """
    check_installed("onnxruntime")
    folder = Path(folder)
    source = f"file '{data}'" if isinstance(data, str | Path) else f"the {type(data).__name__}"
    reference = read_reference(folder)
    if reference.pairs:
        raise UserError(f"'{folder}' answers pairs of texts; check reads one column")
    with TemporaryDirectory() as cache:
        if isinstance(data, str | Path):
            table = TextFile.named(data, delimiter, encoding, quotechar).read([text], cache)
        elif text not in (table := dataset_of(data, text)).column_names:
            raise UserError(f"no column '{text}'; there are {a_few(table.column_names)}")
        texts = _different(table[text], source, text)
    texts = [line for line in texts if line.strip()]
    if not texts:
        raise UserError(f"{source} holds no text")
    try:
        classifier = Classifier(folder, threads=0)
    except Exception as error:  # onnxruntime and tokenizers have a class for each thing
        raise UserError(
            f"'{folder}' cannot be opened ({first_line(error)}); copy it again, whole"
        ) from error
    say(f"{len(texts):,} texts")
    try:
        labels = [str(answer.label) for answer in classifier(texts)]
    except Exception as error:  # such as a token that has no embedding
        raise UserError(f"'{folder}' cannot answer a text ({first_line(error)})") from error
    strangeness = strangeness_of(tokenizer_of(folder), texts, reference.rarity)
    before, counts = len(reference.strangeness), (classifier.deferred, classifier.asked)
    deferred = None
    if len(classifier.stages) > 1:
        deferred = change_of_share((reference.deferred, before), counts)
    share, agrees, fewest = reference.agreement, list[bool](), fewest_rows(before)
    if model is not None:
        agrees = _asked(Checkpoint(str(model)), classifier, texts, labels, share, say)
        more = more_rows(sum(agrees), len(agrees), share)
    else:
        more = None if fewest is None or fewest <= len(texts) else fewest - len(texts)
    holds = verdict(agrees, share)
    return Holding(
        texts=len(texts),
        strange=change_of_scores(reference.strangeness, strangeness),
        deferred=deferred,
        promised=share,
        agreed=sum(agrees),
        asked=len(agrees),
        holds=holds,
        more=more if holds is None else None,
        tells=model is not None or fewest is not None,
    )


def _different(column: Iterable[Any], source: str, name: str) -> list[str]:
    """Texts of a column, each once. Raises UserError for a list, a mapping, or bytes."""
    texts: dict[str, None] = {}
    for number, row in enumerate(column, 1):
        if isinstance(row, list | dict | bytes):
            raise UserError(
                f"{source}: row {number:,} has {type(row).__name__} in column '{name}'; give texts"
            )
        if row is not None:
            texts[str(row)] = None
    return list(texts)


def _asked(
    original: Checkpoint,
    classifier: Classifier,
    texts: Sequence[str],
    labels: Sequence[str],
    share: float,
    say: Callable[[str], None],
) -> list[bool]:
    """Compare answers with the original's for texts drawn at random until these decide."""
    if not original.has_classifier:
        raise original.refusal("it has no classifier yet; name the model that was fine-tuned")
    names, folder_labels = original.outputs, list(classifier.labels or ())
    if original.unnamed and {*names} != {*folder_labels} and len(names) == len(folder_labels):
        names = folder_labels  # the folder has those of the data, matched by index
    # A cascade may lack labels of the model, which its task does not have.
    if not folder_labels or {*folder_labels} - {*names}:
        raise original.refusal(
            f"its labels ({a_few(names)}) are not the folder's ({a_few(folder_labels)}); "
            "name the model that the folder was made of"
        )
    outputs = [names.index(label) for label in folder_labels]
    settings = classifier.stages[-1].settings
    length, truncation = settings["max_length"], settings.get("truncation", "head")
    with torch.random.fork_rng(devices=[]):  # making a model draws numbers
        served = original.load_classifier()
    order = np.random.default_rng(0).permutation(len(texts)).tolist()
    agrees: list[bool] = []
    for start in range(0, len(order), _TOGETHER):
        rows = order[start : start + _TOGETHER]
        some = Examples([(texts[row],) for row in rows], np.zeros(len(rows), dtype=np.int64))
        split = tokenise(some, "new", original.tokenizer, length, truncation)
        original.check_token(original.tokenizer, split.last_token)
        answers = predict(served, split, "cpu")[:, outputs].argmax(-1).tolist()
        agrees += [
            folder_labels[answer] == labels[row] for answer, row in zip(answers, rows, strict=True)
        ]
        say(f"the original answered {len(agrees):,} texts, {sum(agrees):,} alike")
        if verdict(agrees, share) is not None:
            break
    return agrees
