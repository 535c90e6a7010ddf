"""Reading GloVe files, and the nearest words by cosine."""

from pathlib import Path

import numpy as np
import pytest
import torch

from objectives.errors import UserError
from objectives.text import augmentation
from objectives.text.augmentation import WordVectors, read_glove


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "vectors.txt"


def test_a_file_is_words_and_their_numbers(file: Path) -> None:
    file.write_text("the 1 -2.5\nseà 3e-1 0\n. . . 4 5 \n")
    vectors = read_glove(str(file))
    assert vectors.words == ["the", "seà", ". . ."]
    torch.testing.assert_close(vectors.vectors, torch.tensor([[1, -2.5], [0.3, 0], [4, 5]]))
    assert vectors.vectors.dtype == torch.float32


def test_only_the_first_rows_are_read(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write_text("a 1\nb 2\nc broken\n")
    monkeypatch.setattr(augmentation, "_ROWS", 2)
    assert read_glove(str(file)).words == ["a", "b"]


def test_a_fingerprint_is_that_of_words_and_numbers(file: Path) -> None:
    seen = set()
    for text in ("a 1 2\nb 3 4\n", "a 1 2\nc 3 4\n", "a 1 2\nb 3 5\n"):
        file.write_text(text)
        seen.add(read_glove(str(file)).fingerprint)
    assert len(seen) == 3
    file.write_text("a 1.0 2\nb 3 4e0")
    same = read_glove(str(file)).fingerprint
    file.write_text("a 1 2\nb 3 4\n")
    assert read_glove(str(file)).fingerprint == same


@pytest.mark.parametrize("count", [1, 3, 9, 50])
def test_the_nearest_words_are_those_of_the_largest_cosines(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(augmentation, "_CHUNK", 4)
    generator = np.random.default_rng(0)
    words = [f"w{place}" for place in range(10)]
    vectors = generator.normal(size=(10, 5)) * generator.uniform(0.1, 10, size=(10, 1))
    table = WordVectors(words, torch.from_numpy(vectors).float())
    nearest = table.nearest(dict(zip(words, table.vectors, strict=True)), count, "cpu")
    norms = np.linalg.norm(vectors, axis=1)
    for place, word in enumerate(words):
        cosines = vectors @ vectors[place] / norms / norms[place]
        order = [words[other] for other in np.argsort(-cosines) if other != place]
        assert nearest[word] == order[:count]


def test_a_word_that_has_no_row_of_its_own_gets_as_many() -> None:
    table = WordVectors(["a", "b", "c"], torch.tensor([[1.0, 0], [0, 1], [1, 1]]))
    assert table.nearest({"new": torch.tensor([2.0, 1])}, 2, "cpu") == {"new": ["c", "a"]}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the file is empty"),
        (b"word\n", "row 1 has 0 numbers, not 1"),
        (b"400000 2\nthe 1 2\n", "row 2 has 2 numbers, not 1"),
        (b"a 1 2\nb 3\n", "row 2 has 1 numbers, not 2"),
        (b"a 1 2\nb 3 4 5\n", "row 2 has 3 numbers, not 2"),
        (b"a 1 2\n\n", "row 2 has 0 numbers, not 2"),
        (b"a 1 two\n", r"row 1 \('a'\) has values that are not finite numbers"),
        (b"a 1 2\nb 1 nan\n", r"row 2 \('b'\) has values that are not finite numbers"),
        (b"a 1 2\n\xff\xfe 1 2\n", r"cannot be read \(it is not UTF-8 text\); name a GloVe"),
    ],
)
def test_a_file_of_another_kind_is_refused(file: Path, content: bytes, message: str) -> None:
    file.write_bytes(content)
    with pytest.raises(UserError, match=f"^word vectors '{file}': .*{message}") as error:
        read_glove(str(file))
    assert "\n" not in str(error.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    for path, reason in ((tmp_path / "nowhere.txt", "No such file"), (tmp_path, "Is a directory")):
        with pytest.raises(UserError, match=f"^word vectors '{path}': .*{reason}.*name a GloVe"):
            read_glove(str(path))
