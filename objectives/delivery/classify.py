"""Text in, label out, with tokenizers and onnxruntime, or numpy for a cell without operations.

`Classifier(FOLDER)(["what a lovely morning"])` gives an `Answer` for each text; a pair of texts is
a tuple. In a folder of several models each is asked where the one before it is unsure. The share
that the first defers, `deferred / asked`, is on the model card: where it moves, the texts changed.
`python classify.py < texts.txt` prints the label of each line, or all its labels with ", " between.
A byte that is no UTF-8, or half a character of UTF-16, is read as U+FFFD.
"""

import json
import math
import os
import sys
import threading
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer

# onnxruntime reads it once, when it is loaded: no device id is written, nothing is sent.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

Ids = tuple[list[int], list[int]]
"""Token ids of a text, and their segment ids."""
_WORDS, _LONGEST = 1 << 15, 24  # words in a dictionary, characters of a word: 28 MB at most
_FORMS, _UNLIKE = 1 << 14, "\0"  # characters in a dictionary: 3 MB at most


class Answer(NamedTuple):
    """Label and the probability of each label. For a regression the number, and no probabilities.
    For several labels a text those above 0.5 or their own thresholds, possibly none."""

    label: str | float | list[str]
    probabilities: dict[str, float]


class _Characters(dict[int, str]):
    """Normal form of each character for `str.translate`, with spaces around those that the
    tokenizer splits off; `_UNLIKE` if it may depend on neighbours."""

    def __init__(self, normalize: Callable[[str], str], split: Callable[[str], list[Any]]):
        self.normalize, self.split = normalize, split

    def __missing__(self, code: int) -> str:
        if len(self) >= _FORMS:
            self.clear()
        self[code] = form = "".join(map(self._spaced, self.normalize(chr(code))))
        return form

    def _spaced(self, character: str) -> str:
        parts = len(self.split(f"a{character}a"))  # 2 where it is a space
        if parts == 2:
            return " "
        # Marks change places with one another; of characters newer than Python nothing is known.
        newer = unicodedata.category(character) == "Cn"
        if newer or unicodedata.combining(character) or character.isspace():
            return _UNLIKE
        return f" {character} " if parts == 3 else character


class WordReader:
    """Dictionary from words to token ids, filled by a BERT tokenizer, which reads texts several
    times as fast. Texts whose ids could differ go to the tokenizer."""

    def __init__(self, tokenizer: Tokenizer, longest: int):
        self.model, self.longest = tokenizer.model, longest
        self.pieces: dict[str, list[int]] = {}
        normalizer, splitter = tokenizer.normalizer, tokenizer.pre_tokenizer
        frame = tokenizer.encode("").ids
        self.fits = (
            isinstance(normalizer, BertNormalizer)
            and isinstance(splitter, BertPreTokenizer)
            and isinstance(self.model, WordPiece)
            and len(frame) == 2
            and (probe := tokenizer.encode("a")).ids == [frame[0], *self._learn("a"), frame[1]]
            and not any(probe.type_ids)
        )
        if self.fits:
            self.first, self.last = frame
            self.forms = _Characters(normalizer.normalize_str, splitter.pre_tokenize_str)
            added = tokenizer.get_added_tokens_decoder().values()
            self.others = [_UNLIKE, *(token.content.translate(self.forms) for token in added)]

    def read(self, text: str | tuple[str, str]) -> Ids | None:
        """Ids and segments of a text, None where the tokenizer must read it."""
        if not (self.fits and isinstance(text, str)):
            return None
        normal, ids = text.translate(self.forms), [self.first]
        for other in self.others:
            if other in normal:
                return None
        for word in normal.split():
            ids += self.pieces.get(word) or self._learn(word)
        ids.append(self.last)
        return (ids, [0] * len(ids)) if len(ids) <= self.longest else None  # not cut off

    def _learn(self, word: str) -> list[int]:
        pieces = [piece.id for piece in self.model.tokenize(word)]
        if len(word) <= _LONGEST:
            if len(self.pieces) >= _WORDS:
                self.pieces.clear()
            self.pieces[word] = pieces
        return pieces


class _WordTable:
    """Cell without operations, in numpy: pooled embeddings of words, and a head."""

    pools: ClassVar[dict[str, Callable[[Any], Any]]] = {
        "mean": lambda states: np.add.reduce(states) / len(states),
        "max": np.maximum.reduce,
        "min": np.minimum.reduce,
    }

    def __init__(self, file: Path):
        with np.load(file) as arrays:
            self.arrays: dict[str, Any] = dict(arrays)
        self.pooling = [self.pools[name] for name in self.arrays["pooling"]]
        self.words = self._rows("words")
        self.pairs = self._rows("pairs") if "pairs" in self.arrays else None

    def logits(self, rows: Sequence[Ids]) -> Any:
        arrays, pooled = self.arrays, np.array([self._pooled(*row) for row in rows])
        hidden = np.tanh(pooled.dot(arrays["inner"]) + arrays["inner_bias"])
        return (hidden.dot(arrays["outer"]) + arrays["outer_bias"]).astype(float)

    def _rows(self, name: str) -> Any:
        # float32 in memory: its rows are read in a third of the time of int8 and scales.
        return self.arrays.pop(name) * self.arrays.pop(f"{name}_scales")

    def _pooled(self, ids_of_row: list[int], segments: list[int]) -> Any:
        """Pool a row's words, and norm the result."""
        ids = np.array(ids_of_row)
        states = self.words.take(ids, 0)
        if any(segments):
            states += self.arrays["segments"].take(segments, 0)
        if self.pairs is not None:
            pairs = 1_000_003 * np.concatenate(([0], ids[:-1])) + ids
            states += self.pairs.take(pairs % len(self.pairs), 0)
        pooled = np.concatenate([pool(states) for pool in self.pooling])
        pooled -= np.add.reduce(pooled) / len(pooled)
        return pooled / math.sqrt(pooled.dot(pooled) / len(pooled) + self.arrays["epsilon"])


def _session(file: Path, threads: int) -> Any:
    import onnxruntime  # here, as a folder of numpy alone needs none

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    return onnxruntime.InferenceSession(str(file), options, ["CPUExecutionProvider"])


class _Stage:
    def __init__(self, folder: Path, settings: dict[str, Any], threads: int):
        file = folder / settings["model"]
        self.table = _WordTable(file) if file.suffix == ".npz" else None
        self.session: Any = None if self.table else _session(file, threads)
        self.tokenizer = Tokenizer.from_file(str(folder / settings["tokenizer"]))
        longest = settings["max_length"]
        head = longest // 4 if settings.get("truncation") == "head+tail" else longest
        self.head, self.tail = head, longest - head
        if self.tail:
            self.tokenizer.no_truncation()
        else:
            side = settings.get("truncation_side", "right")
            self.tokenizer.enable_truncation(longest, direction=side)
        self.tokenizer.no_padding()
        self.words = WordReader(self.tokenizer, longest)
        self.words.fits &= settings.get("words", False)
        self.settings = settings

    def read(self, texts: Sequence[str | tuple[str, str]]) -> list[Ids]:
        """Read plain texts by the dictionary, all others by the tokenizer."""
        rows: list[Any] = [self.words.read(text) for text in texts]
        if others := [index for index, row in enumerate(rows) if row is None]:
            encodings = self.tokenizer.encode_batch([texts[index] for index in others])
            for index, encoding in zip(others, encodings, strict=True):
                types = encoding.type_ids if self.settings["segments"] else [0] * len(encoding.ids)
                rows[index] = encoding.ids, types
        return rows

    def logits(self, rows: Sequence[Ids]) -> Any:
        longest = self.head + self.tail
        read = [
            row if len(row[0]) <= longest else (self._cut(row[0]), self._cut(row[1]))
            for row in rows
        ]
        if self.table:
            return self.table.logits(read)
        shape = (len(read), max(len(ids_of_row) for ids_of_row, _ in read))
        ids, types, mask = (np.full(shape, fill) for fill in (self.settings["pad"], 0, 0))
        for row, (ids_of_row, segments) in enumerate(read):
            ids[row, : len(ids_of_row)], mask[row, : len(ids_of_row)] = ids_of_row, 1
            types[row, : len(ids_of_row)] = segments
        feeds = {"input_ids": ids, "attention_mask": mask, "token_type_ids": types}
        return self.session.run(["logits"], feeds)[0].astype(float)

    def _cut(self, ids: list[int]) -> list[int]:
        """Truncate as in training: keep the head, or head and tail."""
        return ids[: self.head] + ids[len(ids) - self.tail :]

    def unsure(self, logits: Any) -> list[int]:
        """Indices of the rows that are deferred to the next model."""
        sure = _CONFIDENCES[self.settings["confidence"]]
        temperature, threshold = self.settings["temperature"], self.settings["threshold"]
        rows = enumerate(logits.tolist())
        return [index for index, row in rows if sure(_softmax(row, temperature)) < threshold]


class Classifier:
    """Models of a folder, safe for any thread; `threads` of one operation, 0 for all cores."""

    def __init__(self, folder: str | Path = Path(__file__).parent, threads: int = 1):
        settings = json.loads((Path(folder) / "classifier.json").read_text(encoding="utf-8"))
        self.labels: list[str] | None = settings["labels"]
        if len(set(self.labels or ())) < len(self.labels or ()):
            raise ValueError(f"{folder}/classifier.json: two labels have one name: {self.labels}")
        self.several: bool = settings.get("several", False)
        self.pairs: bool | None = settings.get("pairs")  # None: not known
        self.thresholds: list[float] = settings.get("thresholds") or [0.5] * len(self.labels or ())
        self.stages = [_Stage(Path(folder), stage, threads) for stage in settings["stages"]]
        self.asked = self.deferred = 0
        self._lock = threading.Lock()

    def logits(self, texts: Iterable[str | tuple[str, str]]) -> Any:
        """Logits of one batch of texts, (texts, labels)."""
        return self._logits(_listed(texts, self.pairs))

    def _logits(self, batch: Sequence[Any]) -> Any:
        stage, deferred = self.stages[0], 0
        read = stage.read(batch)
        logits = stage.logits(read)
        rows = list(range(len(batch)))
        for following in self.stages[1:]:
            unsure = stage.unsure(logits[rows])
            if not unsure:
                break
            rows, read = [rows[index] for index in unsure], [read[index] for index in unsure]
            deferred = deferred or len(rows)
            if following.settings["tokenizer"] != stage.settings["tokenizer"]:
                read = following.read([batch[row] for row in rows])
            logits[rows] = following.logits(read)
            stage = following
        with self._lock:
            self.asked, self.deferred = self.asked + len(batch), self.deferred + deferred
        return logits

    def __call__(self, texts: Iterable[str | tuple[str, str]], batch: int = 8) -> list[Answer]:
        """Answer each text, in order; a string is one text."""
        listed = _listed(texts, self.pairs)
        if len(listed) == 1:
            return self._answers(self._logits(listed))
        # Texts of about one length share a batch, so that there is less padding to compute; which
        # share it must not depend on their order, as int8 rounds a batch by its largest number.
        by_length = sorted(
            range(len(listed)), key=lambda row: (len("".join(listed[row])), str(listed[row]))
        )
        answers: dict[int, Answer] = {}
        for start in range(0, len(listed), batch):
            rows = by_length[start : start + batch]
            logits = self._logits([listed[row] for row in rows])
            answers.update(zip(rows, self._answers(logits), strict=True))
        return [answers[row] for row in range(len(listed))]

    def _answers(self, logits: Any) -> list[Answer]:
        if self.labels is None:
            return [Answer(number, {}) for number in logits[:, 0].tolist()]
        if self.several:
            shares = (1 / (1 + np.exp(-logits.clip(-500, 500)))).tolist()
            labels: list[Any] = [
                [
                    name
                    for name, share, least in zip(self.labels, row, self.thresholds, strict=True)
                    if share > least
                ]
                for row in shares
            ]
        else:
            shares = [_softmax(row) for row in logits.tolist()]
            labels = [self.labels[row.index(max(row))] for row in shares]
        return [
            Answer(label, dict(zip(self.labels, row, strict=True)))
            for label, row in zip(labels, shares, strict=True)
        ]


def _listed(texts: Any, pairs: bool | None) -> list[Any]:
    """Convert texts to a list. Raises TypeError for anything but strings or pairs of strings."""
    if isinstance(texts, Mapping) or hasattr(texts, "columns"):
        raise TypeError("a table or a mapping gives the names of its columns; give a list of texts")
    listed = [texts] if isinstance(texts, str) else texts
    return [_checked(index, text, pairs) for index, text in enumerate(listed)]


def _checked(index: int, text: Any, pairs: bool | None) -> str | tuple[str, ...]:
    if pairs is not None and isinstance(text, str) == pairs:
        reads = "pairs of texts, a list of tuples" if pairs else "strings, a text each"
        raise TypeError(f"texts[{index}] is {text!r:.60}; this model reads {reads}")
    if isinstance(text, str):
        return _mended(text)
    pair = isinstance(text, tuple | list | np.ndarray) and len(text) == 2
    if not pair or not all(isinstance(part, str) for part in text):
        raise TypeError(f"texts[{index}] is {text!r:.60}; give a string, or of a pair a tuple")
    return tuple(map(_mended, text))


def _mended(text: str) -> str:
    if text.isascii():
        return text
    # Half a character becomes U+FFFD: a tokenizer would refuse all texts of the batch.
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _softmax(row: list[float], temperature: float = 1.0) -> list[float]:
    # For a handful of numbers Python is four times as fast as numpy.
    largest = max(row)
    powers = [math.exp((logit - largest) / temperature) for logit in row]
    total = sum(powers)
    return [power / total for power in powers]


def _margin(shares: list[float]) -> float:
    *_, second, first = sorted(shares)
    return first - second


_CONFIDENCES: dict[str, Callable[[list[float]], float]] = {
    "probability": max,
    "margin": _margin,
    "entropy": lambda shares: sum(share * math.log(max(share, 1e-300)) for share in shares),
}


def _main() -> None:
    """Print the label of each line as it arrives, and at the end the lines that are not UTF-8."""
    classifier, torn = Classifier(), []
    if classifier.pairs:
        sys.exit("this model reads pairs of texts, not lines: call Classifier of classify.py")
    try:
        for number, line in enumerate(sys.stdin.buffer, 1):
            text = line.decode("utf-8-sig", "replace")
            [(label, _)] = classifier(text.rstrip("\r\n"))
            shown = ", ".join(label) if isinstance(label, list) else label
            sys.stdout.buffer.write(f"{shown}\n".encode())
            sys.stdout.buffer.flush()
            if "\ufffd" in text and text.encode() != line:
                torn.append(number)
    except BrokenPipeError:  # such as `| head`; nothing may be left to flush at the end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if torn:
        sys.stderr.write(f"lines that are not all UTF-8: {len(torn)}, first line {torn[0]}\n")


if __name__ == "__main__":
    _main()
