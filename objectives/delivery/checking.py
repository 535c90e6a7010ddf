"""`check`: does a folder still answer as the original model does, on the texts of today?

Without the original only the texts can be compared, with it the answers, too."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch

from objectives.combining.holding import (
    Change,
    change_of_scores,
    change_of_share,
    fewest_rows,
    more_rows,
    verdict,
)
from objectives.delivery.classify import Classifier
from objectives.delivery.reference import read_reference, strangeness_of, tokenizer_of
from objectives.engines.onnx_model import check_installed
from objectives.errors import UserError, a_few, spelled
from objectives.measures.evaluate import predict
from objectives.students.bert.pretrained import Checkpoint
from objectives.text.task import Examples, Rows, dataset_of, tokenise
from objectives.text.text_files import TextFile

_TOGETHER = 32  # texts that the original answers before the test is looked at again


@dataclass(frozen=True, kw_only=True)
class Holding:
    """Whether a promise holds on new texts, and how these differ from those at writing."""

    texts: int
    """Different texts that were read."""
    strange: Change
    """Share of the texts at writing that a text is stranger than, in the mean: by the rarity of its
    tokens."""
    deferred: Change | None
    """Share of the texts that the first model defers; None of a folder of one model."""
    promised: float
    """Share of all texts that are answered as the original model does, at 95% confidence."""
    agreed: int = 0
    """Answers that are the original's."""
    asked: int = 0
    """Texts that the original was asked about; 0 where it was not given."""
    holds: bool | None = None
    """Whether the promise holds, with 95% confidence; None where that is not known."""
    more: int | None = None
    """How many more texts would tell; None if it is known, or if a million would not."""

    @property
    def changed(self) -> bool:
        """Whether the texts differ from those at writing by more than chance."""
        return any(change.alarm for change in (self.strange, self.deferred) if change is not None)

    @property
    def alarm(self) -> bool:
        """Whether something must be done: it does not hold, or it may not and nobody knows."""
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
        return more or "holds as far as texts tell: they differ from those at writing by chance"

    def lines(self) -> list[str]:
        """Comparisons with the texts at writing.

        Returns:
            A line for each comparison.
        """
        shown = [
            (
                f"a text is stranger than {self.strange.now:.1%} of those at writing, in the mean",
                self.strange,
            )
        ]
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
        texts = list(dict.fromkeys(str(row) for row in table[text] if row is not None))
    texts = [line for line in texts if line.strip()]
    if not texts:
        raise UserError(f"{source} holds no text")
    classifier = Classifier(folder, threads=0)
    say(f"{len(texts):,} texts")
    labels = [str(answer.label) for answer in classifier(texts)]
    strangeness = strangeness_of(tokenizer_of(folder), texts, reference.rarity)
    before, counts = len(reference.strangeness), (classifier.deferred, classifier.asked)
    deferred = None
    if len(classifier.stages) > 1:
        deferred = change_of_share((reference.deferred, before), counts)
    share, agrees = reference.agreement, list[bool]()
    if model is not None:
        agrees = _asked(Checkpoint(str(model)), classifier, texts, labels, share, say)
        more = more_rows(sum(agrees), len(agrees), share)
    else:
        fewest = fewest_rows(before)
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
    )


def _asked(
    original: Checkpoint,
    classifier: Classifier,
    texts: Sequence[str],
    labels: Sequence[str],
    share: float,
    say: Callable[[str], None],
) -> list[bool]:
    """Whether each answer is the original's, for texts drawn at random until that tells."""
    names = original.outputs
    if sorted(names) != sorted(classifier.labels or ()):
        raise original.refusal(
            f"its labels ({a_few(names)}) are not the folder's ({a_few(classifier.labels or ())}); "
            "name the model that the folder was made of"
        )
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
        answers = predict(served, split, "cpu").argmax(-1).tolist()
        agrees += [names[answer] == labels[row] for answer, row in zip(answers, rows, strict=True)]
        say(f"the original answered {len(agrees):,} texts, {sum(agrees):,} alike")
        if verdict(agrees, share) is not None:
            break
    return agrees
