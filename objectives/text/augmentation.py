"""Augmented train text by TinyBERT (Jiao et al. 2020, algorithm 1): words replaced by likely ones.

Unlike its code, each sentence of a pair is changed beside the other as it was, and a replacement is
always one whole word.
"""

import hashlib
import json
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional
from transformers import BertForMaskedLM, PreTrainedTokenizerBase

from objectives.cache import atomic_write, content_key, read_cached
from objectives.device import frozen
from objectives.errors import Checked, PositiveInt, Share, UserError
from objectives.progress import Progress
from objectives.session import Session
from objectives.students.bert.pretrained import Checkpoint
from objectives.students.loading import load
from objectives.text.data import Split
from objectives.text.task import Examples
from objectives.text.text_files import is_number

_ROWS = 100_000
"""Rows of a file that are read, the most frequent words, as TinyBERT does."""
_CHUNK = 256
"""Words whose neighbours are looked up together: their cosines with all rows take 100 MB."""
_BATCH_SIZE = 64
"""Masked sentences that go through the masked LM together."""
_Copy = tuple[int, tuple[str, ...]]
"""Index in train of the row that a copy was made from, and its text."""


@dataclass(frozen=True, kw_only=True)
class Augmentation(Checked):
    """Augmentation of the train rows: which words may replace which, and how often."""

    masked_lm: str
    """Pretrained BERT with its masked-LM head: a folder, or a hub name."""
    word_vectors: str | None = None
    """A GloVe text file, such as glove.6B.300d.txt; None takes the masked LM's own embeddings."""
    copies: PositiveInt
    """Draws for each sentence, N; repeated ones are dropped. >= 1; TinyBERT takes 10 to 30."""
    probability: Share = 0.4
    """Probability p that a replaceable word is replaced in a copy. 0 to 1."""
    candidates: PositiveInt = 15
    """Replacements tried for a word, M; those that are not one whole word are dropped. >= 1."""


@dataclass(frozen=True, eq=False)
class WordVectors:
    """Words and their vectors."""

    words: Sequence[str]
    vectors: Tensor
    """(V, D) float32."""

    @property
    def fingerprint(self) -> str:
        """SHA-256 of words and vectors, hexadecimal, shortened to 16 digits."""
        digest = hashlib.sha256(repr(list(self.words)).encode())
        digest.update(self.vectors.numpy().tobytes())
        return digest.hexdigest()[:16]

    def nearest(
        self, queries: Mapping[str, Tensor], count: int, device: str
    ) -> dict[str, list[str]]:
        """The `count` nearest other words of each word and its vector (D,), nearest first."""
        unit = functional.normalize(self.vectors.to(device), dim=1)
        asked, nearest = list(queries), {}
        for start in range(0, len(asked), _CHUNK):
            chunk = asked[start : start + _CHUNK]
            vectors = torch.stack([queries[word] for word in chunk]).to(device)
            cosines = functional.normalize(vectors, dim=1) @ unit.T
            best = cosines.topk(min(count + 1, len(self.words))).indices.tolist()
            for word, rows in zip(chunk, best, strict=True):
                others = [self.words[row] for row in rows if self.words[row] != word]
                nearest[word] = others[:count]
        return nearest


def read_glove(path: str) -> WordVectors:
    """Read the first 100,000 rows of a GloVe text file. Raises UserError for another file."""
    words: list[str] = []
    rows: list[np.ndarray[tuple[int], np.dtype[np.float32]]] = []
    for number, line in enumerate(_lines(path), start=1):
        fields = line.rstrip().split(" ")
        width = len(rows[0]) if rows else len(fields) - 1
        name, values = fields[: len(fields) - width], fields[len(fields) - width :]
        # Some files have words with spaces in them (". . ."), but none that ends in a number.
        if not name or not values or any(map(is_number, name[1:])):
            raise UserError(
                f"word vectors '{path}': row {number} has {len(fields) - 1} numbers, "
                f"not {max(width, 1)}; each row must be a word and as many numbers as the first"
            )
        try:
            row = np.array(values, dtype=np.float32)
        except ValueError:
            row = np.array([np.nan], dtype=np.float32)
        if not np.isfinite(row).all():
            raise UserError(
                f"word vectors '{path}': row {number} ('{name[0]}') has values that are not "
                "finite numbers; each row must be a word and its numbers, between single spaces"
            )
        words.append(" ".join(name))
        rows.append(row)
    if not rows:
        raise UserError(f"word vectors '{path}': the file is empty; name a GloVe text file")
    return WordVectors(words, torch.from_numpy(np.stack(rows)))


def _lines(path: str) -> Iterator[str]:
    try:
        with open(path, encoding="utf-8", newline="\n") as file:
            yield from islice(file, _ROWS)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise UserError(
            f"word vectors '{path}': the file cannot be read ({reason}); name a GloVe text file, "
            "such as glove.6B.300d.txt"
        ) from error


@dataclass(frozen=True, eq=False)
class MaskedLM:
    """Masked LM, found and checked; its weights are not loaded yet."""

    checkpoint: str
    tokenizer: PreTrainedTokenizerBase
    longest: int
    """Longest input in tokens."""

    def words(self, text: str) -> list[str]:
        """The basic tokens of a text, words and punctuation, in the spelling of the vocabulary."""
        backend = self.tokenizer.backend_tokenizer
        spelled = backend.normalizer.normalize_str(text)
        return [word for word, _ in backend.pre_tokenizer.pre_tokenize_str(spelled)]

    def whole_word(self, entry: str) -> str | None:
        """Vocabulary entry as one basic token; None for others such as "##ing" and "[CLS]"."""
        words = self.words(entry)
        return words[0] if len(words) == 1 else None

    def sentence(self, text: str) -> "Sentence":
        """Split a text into basic tokens and word pieces; replacements are not known yet."""
        words, model = self.words(text), self.tokenizer.backend_tokenizer.model
        return Sentence(words, [[piece.id for piece in model.tokenize(word)] for word in words])


@dataclass(frozen=True, eq=False)
class Sentence:
    """Text as basic tokens, each of one or more word pieces."""

    words: Sequence[str]
    pieces: Sequence[list[int]]
    options: dict[int, list[str]] = field(default_factory=dict)
    """Replacements of each replaceable word, by its index; never empty."""

    def replaceable(self) -> list[int]:
        """Indices of its words, without stop words, numbers and punctuation."""
        # 318 words, instead of NLTK's; the import takes a second, which few studies need.
        from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS as STOP_WORDS

        words = enumerate(self.words)
        return [n for n, word in words if word.isalpha() and word.lower() not in STOP_WORDS]

    def position(self, index: int) -> int:
        """Position of a word's first piece, after [CLS]."""
        return 1 + sum(map(len, self.pieces[:index]))


@dataclass(frozen=True, eq=False)
class Augmenter:
    """`Augmentation` whose files were found and checked."""

    settings: Augmentation
    masked_lm: MaskedLM
    glove: WordVectors | None
    definition: Mapping[str, object]
    """Everything except the seed that decides the copies of a text; files count by content. Its
    `word_vectors` names the source of neighbours: GloVe's fingerprint, or the masked LM."""


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
            "masked_lm": Checkpoint(settings.masked_lm).fingerprint_with_tokenizer,
            "word_vectors": "embeddings of the masked LM" if glove is None else glove.fingerprint,
        },
    )


def augment(augmenter: Augmenter, roles: Mapping[str, Examples], session: Session) -> Examples:
    """Append copies with their labels to the `train` rows; none repeats the words of any row."""
    # What is drawn for a row depends on the seed and its own text.
    train = roles["train"]
    text = [(role, list(examples.texts)) for role, examples in sorted(roles.items())]
    key = content_key({**augmenter.definition, "seed": session.seed, "text": text})
    file = session.cache / f"augmentation-{key}.jsonl"
    copies = read_cached(file, _read, session.progress.note)
    if copies is None:
        copies = list(_copies(augmenter, roles, session))
        _write(file, copies)
    rows = np.array([index for index, _ in copies], dtype=np.int64)
    return replace(
        train,
        texts=[*train.texts, *(texts for _, texts in copies)],
        labels=np.concatenate([train.labels, train.labels[rows]]),
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
    for index, row in enumerate(roles["train"].texts):
        spelled = tuple(" ".join(sentences[text].words) for text in row)
        for column, text in enumerate(row):
            digest = hashlib.sha256(repr((session.seed, row, column)).encode()).digest()
            generator = np.random.default_rng(int.from_bytes(digest, "big"))
            for copy in _drawn(sentences[text], settings, generator):
                words = (*spelled[:column], copy, *spelled[column + 1 :])
                if words not in seen:
                    seen.add(words)
                    yield index, (*row[:column], copy, *row[column + 1 :])


def _drawn(
    sentence: Sentence, settings: Augmentation, generator: np.random.Generator
) -> Iterator[str]:
    """N copies of the sentence, each replaceable word replaced with probability p."""
    indices, options = list(sentence.options), list(sentence.options.values())
    shape = (settings.copies, len(indices))
    replaced = generator.random(shape) < settings.probability
    chosen = generator.integers(np.array([len(words) for words in options], dtype=int), size=shape)
    for swaps, choices in zip(replaced, chosen, strict=True):
        words = list(sentence.words)
        for number in np.flatnonzero(swaps):
            words[indices[number]] = options[number][choices[number]]
        yield " ".join(words)


def _write(file: Path, copies: Sequence[_Copy]) -> None:
    """Write one copy a line, then the SHA-256 of these lines, atomically."""
    digest = hashlib.sha256()
    with atomic_write(file) as unfinished, unfinished.open("wb") as lines:
        for index, texts in copies:
            line = json.dumps({"row": index, "text": texts}).encode() + b"\n"
            digest.update(line)
            lines.write(line)
        lines.write(_last_line(digest))


def _read(file: Path) -> list[_Copy]:
    """Read the copies of a file. Raises ValueError if it is damaged."""
    *lines, end = file.read_bytes().splitlines(keepends=True) or [b""]
    if end != _last_line(hashlib.sha256(b"".join(lines))):
        raise ValueError("its checksum is wrong")
    documents = map(json.loads, lines)
    return [(copy["row"], tuple(copy["text"])) for copy in documents]


def _last_line(of_others: "hashlib._Hash") -> bytes:
    return json.dumps({"sha256": of_others.hexdigest()}).encode() + b"\n"


def open_masked_lm(name: str) -> MaskedLM:
    """Check a masked LM and read its tokenizer. Raises UserError if it has no masked-LM head."""
    checkpoint = Checkpoint(name)
    config = checkpoint.bert_config()
    if not checkpoint.has_mlm_head:
        raise UserError(
            f"masked_lm '{name}': it has no masked-LM head (cls.predictions); "
            "use a pretrained BERT, such as 'bert-base-uncased'"
        )
    tokenizer = checkpoint.tokenizer
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if (
        backend is None
        or type(backend.model).__name__ != "WordPiece"
        or backend.normalizer is None
        or backend.pre_tokenizer is None
        or tokenizer.mask_token_id is None
    ):
        raise UserError(
            f"masked_lm '{name}': its tokenizer is not BERT's (WordPiece, with a mask token);"
            " save the tokenizer of its pretraining beside it"
        )
    tokens = 1 + max(tokenizer.get_vocab().values())
    if tokens > config.vocab_size or config.type_vocab_size < 2:
        raise UserError(
            f"masked_lm '{name}': it must know the {tokens} tokens of its tokenizer and 2 "
            f"segments, but knows {config.vocab_size} and {config.type_vocab_size}; "
            "use another BERT"
        )
    _load(name, only_check=True)
    return MaskedLM(name, tokenizer, config.max_position_embeddings)


def _load(checkpoint: str, *, only_check: bool = False) -> BertForMaskedLM:
    config = Checkpoint(checkpoint).config
    with torch.random.fork_rng(devices=[]):  # making a model draws numbers, even to overwrite them
        return load(BertForMaskedLM, checkpoint, config, other_heads=True, only_check=only_check)


def find_options(
    masked_lm: MaskedLM,
    glove: WordVectors | None,
    sentences: Sequence[Sentence],
    *,
    count: int,
    device: str,
    progress: Progress,
) -> None:
    """Fill in the replacements of each sentence: whole words among the `count` likeliest."""
    # A word of one piece is masked and gets the masked LM's likeliest words; of several pieces the
    # nearest in `glove`, or by embeddings to the mean of its pieces'; without any it stays.
    model = frozen(_load(masked_lm.checkpoint), device)
    spelled = {
        token: word
        for entry, token in masked_lm.tokenizer.get_vocab().items()
        if (word := masked_lm.whole_word(entry)) is not None
    }
    places = [(sentence, index) for sentence in sentences for index in sentence.replaceable()]
    pieces = {sentence.words[index]: sentence.pieces[index] for sentence, index in places}
    several = {word: ids for word, ids in pieces.items() if len(ids) > 1}
    nearest = _neighbours(masked_lm, glove, model, spelled, several, count) if several else {}
    asked = []
    for sentence, index in places:
        word = sentence.words[index]
        sentence.options[index] = nearest.get(word) or [word]
        if word not in several and sentence.position(index) < masked_lm.longest:
            asked.append((sentence, index))
    asked.sort(key=lambda pair: -sum(map(len, pair[0].pieces)))
    source = "embeddings" if glove is None else "GloVe"
    progress.begin(
        f"augment the train text (neighbours by {source})", -(-len(asked) // _BATCH_SIZE)
    )
    for start in range(0, len(asked), _BATCH_SIZE):
        chunk = asked[start : start + _BATCH_SIZE]
        logits = _logits(masked_lm, model, chunk, device)
        best = logits.topk(min(count, logits.shape[1])).indices.tolist()
        for (sentence, index), likeliest in zip(chunk, best, strict=True):
            words_found = dict.fromkeys(spelled[token] for token in likeliest if token in spelled)
            sentence.options[index] = list(words_found) or sentence.options[index]
        progress.advance()


def _neighbours(
    masked_lm: MaskedLM,
    glove: WordVectors | None,
    model: BertForMaskedLM,
    spelled: Mapping[int, str],
    pieces: Mapping[str, list[int]],
    count: int,
) -> dict[str, list[str]]:
    """The nearest words of each word, given with its pieces, that has a vector."""
    if glove is not None:
        table = glove
        rows = {word: row for row, word in enumerate(glove.words)}
        queries = {word: glove.vectors[rows[word]] for word in pieces if word in rows}
    else:
        embeddings = model.bert.embeddings.word_embeddings.weight
        tokens = [token for token in sorted(spelled) if spelled[token].isalpha()]
        table = WordVectors([spelled[token] for token in tokens], embeddings[tokens])
        queries = {word: embeddings[ids].mean(0) for word, ids in pieces.items()}
    nearest = table.nearest(queries, count, str(model.device))
    return {
        word: list(dict.fromkeys(filter(None, map(masked_lm.whole_word, neighbours))))
        for word, neighbours in nearest.items()
    }


@torch.no_grad()
def _logits(
    masked_lm: MaskedLM, model: BertForMaskedLM, asked: Sequence[tuple[Sentence, int]], device: str
) -> Tensor:
    """Logits (B, vocabulary) at one masked position of each of B sentences."""
    # As TinyBERT asks: [CLS], the sentence with the mask, [SEP], the whole sentence, [SEP].
    tokenizer = masked_lm.tokenizer
    ids, types = [], []
    for sentence, index in asked:
        pieces_all = [piece for pieces in sentence.pieces for piece in pieces]
        row = [tokenizer.cls_token_id, *pieces_all, tokenizer.sep_token_id]
        row[sentence.position(index)] = tokenizer.mask_token_id
        second = [*pieces_all, tokenizer.sep_token_id]
        segments = [0] * len(row) + [1] * len(second)
        types.append(array("b", segments[: masked_lm.longest]))
        ids.append(array("i", (row + second)[: masked_lm.longest]))
    split = Split(
        role="masked",
        input_ids=ids,
        token_type_ids=types,
        labels=np.zeros(len(asked), dtype=np.int64),
        pad_token_id=tokenizer.pad_token_id,
        max_length=masked_lm.longest,
    )
    batch = split.batch(np.arange(len(asked)), device)
    hidden: Tensor = model.bert(**batch.inputs).last_hidden_state
    logits: Tensor = model.cls(hidden[batch.input_ids == tokenizer.mask_token_id])
    return logits
