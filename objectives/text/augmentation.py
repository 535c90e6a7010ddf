"""Augmented train text by TinyBERT (Jiao et al. 2020, algorithm 1): words replaced by likely ones.
Unlike its code, each sentence of a pair is changed beside the other as it was, and a replacement is
always one whole word."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from objectives.cache import atomic_write, content_key, read_cached
from objectives.errors import Checked, PositiveInt, Share
from objectives.session import Session
from objectives.students.bert import pretrained
from objectives.text.replacements import MaskedLM, Sentence, find_options, open_masked_lm
from objectives.text.task import Examples
from objectives.text.word_vectors import WordVectors, read_glove

_Copy = tuple[int, tuple[str, ...]]
"""The place in train of the row that it was made from, and its text."""


@dataclass(frozen=True, kw_only=True)
class Augmentation(Checked):
    """Which words may stand for which, and how often. Only the train rows are augmented."""

    masked_lm: str
    """A BERT with its head for masked words, as it was pretrained: a folder, or a hub name."""
    word_vectors: str | None = None
    """A GloVe text file, such as glove.6B.300d.txt; None takes the masked LM's own embeddings."""
    copies: PositiveInt
    """Draws for each sentence, N; repeated ones are dropped. >= 1; TinyBERT takes 10 to 30."""
    probability: Share = 0.4
    """Chance that a word that can be replaced is replaced in a copy, p. 0 to 1."""
    candidates: PositiveInt = 15
    """Words that may stand for a word, M; those that are no whole word are dropped. >= 1."""


@dataclass(frozen=True, eq=False)
class Augmenter:
    """An `Augmentation` whose files were found and checked."""

    settings: Augmentation
    masked_lm: MaskedLM
    glove: WordVectors | None
    definition: Mapping[str, object]
    """All that decides the copies of a text but for the seed, the files by what they hold. Its
    `word_vectors` says where the neighbours come from: GloVe's fingerprint, or the masked LM."""


def read_augmentation(settings: Augmentation) -> Augmenter:
    """Check the masked LM and read the word vectors. Raises UserError for what is unfit."""
    masked_lm = open_masked_lm(settings.masked_lm)
    glove = None if settings.word_vectors is None else read_glove(settings.word_vectors)
    return Augmenter(
        settings=settings,
        masked_lm=masked_lm,
        glove=glove,
        definition={
            **asdict(settings),
            "masked_lm": pretrained.fingerprint_with_tokenizer(
                settings.masked_lm, masked_lm.tokenizer
            ),
            "word_vectors": "embeddings of the masked LM" if glove is None else glove.fingerprint,
        },
    )


def augment(augmenter: Augmenter, roles: Mapping[str, Examples], session: Session) -> Examples:
    """The rows of `train`, then their copies with their labels; no copy repeats the words of any
    row."""
    # What is drawn for a row depends on the seed and its own text.
    train = roles["train"]
    text = [(role, list(examples.texts)) for role, examples in sorted(roles.items())]
    key = content_key({**augmenter.definition, "seed": session.seed, "text": text})
    file = session.cache / f"augmentation-{key}.jsonl"
    copies = read_cached(file, _read, session.progress.note)
    if copies is None:
        copies = list(_copies(augmenter, roles, session))
        _write(file, copies)
    places = np.array([place for place, _ in copies], dtype=np.int64)
    return replace(
        train,
        texts=[*train.texts, *(texts for _, texts in copies)],
        labels=np.concatenate([train.labels, train.labels[places]]),
    )


def _copies(
    augmenter: Augmenter, roles: Mapping[str, Examples], session: Session
) -> Iterator[_Copy]:
    settings, masked_lm = augmenter.settings, augmenter.masked_lm
    texts = dict.fromkeys(text for row in roles["train"].texts for text in row)
    sentences = {text: masked_lm.sentence(text) for text in texts}
    find_options(
        masked_lm,
        augmenter.glove,
        list(sentences.values()),
        count=settings.candidates,
        device=session.device,
        progress=session.progress,
    )
    # By words: what differs in case or spaces alone is the same text to a model.
    seen = {
        tuple(" ".join(masked_lm.words(text)) for text in row)
        for examples in roles.values()
        for row in examples.texts
    }
    for place, row in enumerate(roles["train"].texts):
        own = tuple(" ".join(sentences[text].words) for text in row)
        for column, text in enumerate(row):
            digest = hashlib.sha256(repr((session.seed, row, column)).encode()).digest()
            generator = np.random.default_rng(int.from_bytes(digest, "big"))
            for copy in _drawn(sentences[text], settings, generator):
                words = (*own[:column], copy, *own[column + 1 :])
                if words not in seen:
                    seen.add(words)
                    yield place, (*row[:column], copy, *row[column + 1 :])


def _drawn(
    sentence: Sentence, settings: Augmentation, generator: np.random.Generator
) -> Iterator[str]:
    """N times the sentence, each replaceable word replaced with probability p."""
    places, options = list(sentence.options), list(sentence.options.values())
    shape = (settings.copies, len(places))
    replaced = generator.random(shape) < settings.probability
    chosen = generator.integers(np.array([len(words) for words in options], dtype=int), size=shape)
    for swaps, choices in zip(replaced, chosen, strict=True):
        words = list(sentence.words)
        for number in np.flatnonzero(swaps):
            words[places[number]] = options[number][choices[number]]
        yield " ".join(words)


def _write(file: Path, copies: Sequence[_Copy]) -> None:
    """Write a copy a line and the SHA-256 of these lines in the last; whole or not at all."""
    digest = hashlib.sha256()
    with atomic_write(file) as unfinished, unfinished.open("wb") as lines:
        for place, texts in copies:
            line = json.dumps({"row": place, "text": texts}).encode() + b"\n"
            digest.update(line)
            lines.write(line)
        lines.write(_last_line(digest))


def _read(file: Path) -> list[_Copy]:
    """The copies of a file. Raises ValueError if it does not hold what was written."""
    *lines, end = file.read_bytes().splitlines(keepends=True) or [b""]
    if end != _last_line(hashlib.sha256(b"".join(lines))):
        raise ValueError("its checksum is wrong")
    found = map(json.loads, lines)
    return [(copy["row"], tuple(copy["text"])) for copy in found]


def _last_line(of_others: "hashlib._Hash") -> bytes:
    return json.dumps({"sha256": of_others.hexdigest()}).encode() + b"\n"
