"""Augmented train text: what is kept, what is changed, what it never equals, and its cache."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from shutil import copytree
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import BertConfig, BertForMaskedLM

from objectives.errors import UserError
from objectives.measures.evaluate import predict
from objectives.progress import SilentProgress
from objectives.session import Session
from objectives.text.augmentation import (
    Augmentation,
    Augmenter,
    augment,
    find_options,
    read_augmentation,
)
from objectives.text.task import Examples, Task
from objectives.workbench.inputs import Inputs, read_inputs
from objectives.workbench.teacher import Teacher
from objectives.workbench.workbench import Workbench, prepare
from tests.conftest import FILLERS
from tests.objectives.conformance import RecordingProgress, random_states

TRAIN = [
    ("joy bab bel dog", 1),
    ("Grief, the LOG: fog!", 0),
    ("tidal toast tides", 2),
    ("the 7.", 0),
    ("nog kog", 1),
]
SEA = """tidal 1 0
tides 1 .1
sea 1 .2
ebb 1 .3
flow 1 .4
moon 0 1
rock -1 0
sand 0 -1
dune -1 -1
star -1 1
"""

Make = Callable[..., Examples]


def examples(*rows: tuple[str | tuple[str, ...], int]) -> Examples:
    texts = [(text,) if isinstance(text, str) else text for text, _ in rows]
    return Examples(texts, np.array([label for _, label in rows], dtype=np.int64))


@pytest.fixture(scope="module")
def glove(tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("vectors") / "ten-words.txt"
    file.write_text(SEA)
    return str(file)


@pytest.fixture(scope="module")
def basic(tiny_masked_lm: str, glove: str) -> Augmentation:
    return Augmentation(masked_lm=tiny_masked_lm, word_vectors=glove, copies=6)


@pytest.fixture(scope="module")
def augmenter(basic: Augmentation) -> Augmenter:
    return read_augmentation(basic)


@pytest.fixture
def make(
    augmenter: Augmenter, basic: Augmentation, tmp_path_factory: pytest.TempPathFactory
) -> Make:
    """Augments rows, by default TRAIN and in a new cache, with some fields of `basic` replaced."""

    def made(
        train: Examples | None = None,
        *,
        others: dict[str, Examples] | None = None,
        cache: Path | None = None,
        seed: int = 0,
        progress: Any = None,
        **changes: Any,
    ) -> Examples:
        return augment(
            read_augmentation(replace(basic, **changes)) if changes else augmenter,
            {"train": train or examples(*TRAIN), **(others or {})},
            session=Session(
                cache=cache or tmp_path_factory.mktemp("cache"),
                seed=seed,
                progress=progress or SilentProgress(),
            ),
        )

    return made


def origin(words: list[str], augmenter: Augmenter) -> int:
    """The only row of TRAIN that a copy can come from: stop words, signs and length tell it."""
    found = []
    for place, (text, _) in enumerate(TRAIN):
        sentence = augmenter.masked_lm.sentence(text)
        fixed = set(range(len(sentence.words))) - set(sentence.replaceable())
        if len(sentence.words) == len(words):
            found += [place] * all(sentence.words[i] == words[i] for i in fixed)
    (place,) = found
    return place


def test_rows_stay_and_copies_follow_with_their_labels(make: Make, augmenter: Augmenter) -> None:
    made = make(probability=0.7)
    assert list(made.texts[:5]) == [(text,) for text, _ in TRAIN]
    assert made.labels.dtype == np.int64
    counts = [0] * len(TRAIN)
    for (text,), label in zip(made.texts[5:], made.labels[5:], strict=True):
        place = origin(augmenter.masked_lm.words(text), augmenter)
        counts[place] += 1
        assert label == TRAIN[place][1]
    assert counts[3] == 0, "a text of stop words and signs has nothing to replace"
    assert all(1 <= count <= 6 for count in counts[:3])
    assert made.labels[:5].tolist() == [label for _, label in TRAIN]


WORDS = st.sampled_from(["joy", "bab", "Dog", "tidal", "tiab", "the", "7", "zzz", ".", "a-b"])


@given(
    st.lists(st.lists(WORDS, max_size=6).map(" ".join), min_size=1, max_size=4, unique=True),
    st.integers(1, 5),
    st.floats(0, 1),
    st.integers(1, 20),
    st.integers(0, 3),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25)
def test_a_copy_is_the_sentence_with_some_words_replaced_by_their_options(
    make: Make,
    augmenter: Augmenter,
    texts: list[str],
    copies: int,
    probability: float,
    candidates: int,
    seed: int,
) -> None:
    masked_lm = augmenter.masked_lm
    made = make(
        examples(*((text, number) for number, text in enumerate(texts))),
        copies=copies,
        probability=probability,
        candidates=candidates,
        seed=seed,
    )
    sentences = [masked_lm.sentence(text) for text in texts]
    find_options(
        masked_lm,
        augmenter.glove,
        sentences,
        count=candidates,
        device="cpu",
        progress=SilentProgress(),
    )
    spelled = [" ".join(masked_lm.words(text)) for (text,) in made.texts]
    assert len(set(spelled[len(texts) :]) - set(spelled[: len(texts)])) == len(spelled) - len(texts)
    for label in range(len(texts)):
        assert np.count_nonzero(made.labels == label) <= copies + 1
    for (text,), label in zip(made.texts[len(texts) :], made.labels[len(texts) :], strict=True):
        sentence, words = sentences[label], masked_lm.words(text)
        assert text == " ".join(words)
        assert len(words) == len(sentence.words)
        for place, (old, new) in enumerate(zip(sentence.words, words, strict=True)):
            assert new == old or new in sentence.options[place]


def test_at_probability_0_there_are_the_originals_only(make: Make) -> None:
    """Though "Grief, the LOG" is spelled "grief , the log" in a copy."""
    assert list(make(probability=0).texts) == [(text,) for text, _ in TRAIN]


def test_at_probability_1_with_one_candidate_nothing_is_left_to_chance(
    make: Make, augmenter: Augmenter
) -> None:
    made = make(probability=1, candidates=1)
    assert made.texts == make(probability=1, candidates=1, seed=9, copies=2).texts
    sentences = [augmenter.masked_lm.sentence(text) for text, _ in TRAIN]
    find_options(
        augmenter.masked_lm,
        augmenter.glove,
        sentences,
        count=1,
        device="cpu",
        progress=SilentProgress(),
    )
    wanted = []
    for sentence in sentences:
        words = list(sentence.words)
        for place, options in sentence.options.items():
            (words[place],) = options
        if words != sentence.words:
            wanted.append((" ".join(words),))
    assert len(wanted) == 4
    assert list(made.texts[5:]) == wanted


@pytest.mark.parametrize("probability", [0.2, 0.8])
def test_a_word_is_replaced_as_often_as_its_probability_says(
    make: Make, augmenter: Augmenter, probability: float
) -> None:
    text = " ".join(FILLERS[:6])
    made = make(examples((text, 0)), copies=400, probability=probability, candidates=57)
    drawn = [augmenter.masked_lm.words(text) for (text,) in made.texts[1:]]
    kept = np.mean([[a == b for a, b in zip(FILLERS, words, strict=False)] for words in drawn])
    # Copies without a change, p = 0.2: a quarter, are dropped; so are repeated ones, which are few.
    changed = probability / (1 - (1 - probability) ** 6)
    assert 1 - kept == pytest.approx(changed, abs=0.04)


def test_the_seed_decides_the_draws(make: Make) -> None:
    first, again, other = make(seed=1), make(seed=1), make(seed=2)
    assert first.texts == again.texts
    assert first.labels.tolist() == again.labels.tolist()
    assert first.texts != other.texts


def test_a_rows_copies_do_not_depend_on_the_other_rows(make: Make) -> None:
    together = list(make().texts)
    for text, label in TRAIN:
        alone = list(make(examples((text, label))).texts)
        start = together.index(alone[1]) if alone[1:] else 0
        assert alone[1:] == together[start : start + len(alone) - 1]


def test_each_sentence_of_a_pair_is_changed_beside_the_other_as_it_was(make: Make) -> None:
    pairs = [("Joy, bab.", "dog log"), ("joy bab", "tidal, FOG")]
    made = make(examples((pairs[0], 0), (pairs[1], 1)), probability=0.8)
    assert list(made.texts[:2]) == pairs
    counts = np.zeros((2, 2), dtype=int)
    for (first, second), label in zip(made.texts[2:], made.labels[2:], strict=True):
        one, other = pairs[label]
        assert (first == one) != (second == other)
        counts[label, int(first == one)] += 1
    assert (counts >= 1).all()
    assert (counts <= 6).all()


def test_equal_sentences_of_different_pairs_are_drawn_anew(make: Make) -> None:
    made = make(examples((("joy bab", "dog"), 0), (("joy bab", "7"), 1)))
    first = [{a for (a, b) in made.texts[2:] if b == other} for other in ("dog", "7")]
    assert first[0] != first[1]


@pytest.mark.parametrize("role", ["alpha", "select", "heldout"])
def test_no_copy_has_the_words_of_another_role(make: Make, role: str) -> None:
    free = make()
    (first,), (last,) = free.texts[5], free.texts[-1]
    others = {role: examples((f" {first.upper()}", 1), ("other words", 0), (last, 2))}
    made = make(others=others)
    assert set(free.texts) - set(made.texts) == {(first,), (last,)}
    assert set(made.texts) < set(free.texts)


def test_no_copy_has_the_words_of_another_row_or_copy(make: Make) -> None:
    (copy,) = make().texts[5]
    rows = [*TRAIN, (copy, 0), ("joy joy", 1), ("joy nog", 2)]
    made = make(examples(*rows), copies=200, probability=1, candidates=3)
    assert made.texts.count((copy,)) == 1
    assert len(set(made.texts)) == len(made.texts)


def test_the_second_time_nothing_is_computed(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    progress = RecordingProgress()
    first = make(cache=tmp_path, progress=progress)
    assert progress.taken == progress.wanted == [1]
    monkeypatch.setattr(BertForMaskedLM, "from_pretrained", None)
    idle = RecordingProgress()
    again = make(cache=tmp_path, progress=idle)
    assert idle.wanted == []
    assert list(again.texts) == list(first.texts)
    assert again.labels.tolist() == first.labels.tolist()


def test_the_same_files_elsewhere_are_the_same_augmentation(
    make: Make, basic: Augmentation, tmp_path: Path
) -> None:
    make(cache=tmp_path)
    moved = copytree(basic.masked_lm, tmp_path / "elsewhere")
    (tmp_path / "moved.txt").write_text(SEA)
    progress = RecordingProgress()
    make(
        cache=tmp_path,
        progress=progress,
        masked_lm=str(moved),
        word_vectors=str(tmp_path / "moved.txt"),
    )
    assert progress.wanted == []


def test_whatever_decides_the_copies_makes_others(
    make: Make, tiny_masked_lm: str, tmp_path: Path
) -> None:
    (tmp_path / "other.txt").write_text(SEA.replace("ebb", "surf"))
    model = BertForMaskedLM.from_pretrained(tiny_masked_lm)
    moved = copytree(tiny_masked_lm, tmp_path / "other-model")
    with torch.no_grad():
        model.get_input_embeddings().weight[20] += 1
    model.save_pretrained(moved)
    mended = copytree(tiny_masked_lm, tmp_path / "mended-model")
    BertConfig.from_pretrained(mended, hidden_act="relu").save_pretrained(mended)
    changes: list[dict[str, Any]] = [
        {},
        {"seed": 1},
        {"copies": 7},
        {"probability": 0.5},
        {"candidates": 14},
        {"word_vectors": None},
        {"word_vectors": str(tmp_path / "other.txt")},
        {"masked_lm": str(moved)},
        {"masked_lm": str(mended)},
        {"train": examples(*TRAIN[:4])},
        {"others": {"select": examples(("joy", 0))}},
        {"others": {"heldout": examples(("joy", 0))}},
    ]
    for change in changes:
        progress = RecordingProgress()
        make(cache=tmp_path, progress=progress, **change)
        assert progress.steps > 0, change
    assert len(list(tmp_path.glob("*.jsonl"))) == len(changes)


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: b"",
        lambda content: content[: len(content) // 2],
        lambda content: content[: content[:-1].rindex(b"\n") + 1],
        lambda content: content[content.index(b"\n") + 1 :],
        lambda content: content.replace(b'"row": 0', b'"row": 1', 1),
        lambda content: content + b"{}\n",
        lambda content: b"\x80\x04 no text at all",
    ],
    ids=["empty", "half", "no last line", "no first line", "changed", "longer", "another"],
)
def test_a_damaged_cache_is_made_again(
    make: Make, tmp_path: Path, damage: Callable[[bytes], bytes]
) -> None:
    first = make(cache=tmp_path)
    (file,) = tmp_path.iterdir()
    whole = file.read_bytes()
    file.write_bytes(damage(whole))
    assert file.read_bytes() != whole
    progress = RecordingProgress()
    again = make(cache=tmp_path, progress=progress)
    assert progress.steps > 0
    assert progress.notes == [f"'{file}' is damaged (its checksum is wrong), and is made anew"]
    assert list(again.texts) == list(first.texts)
    assert file.read_bytes() == whole


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
def test_an_interrupted_augmentation_leaves_nothing_behind(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    written: list[str] = []

    def fail(content: dict[str, Any]) -> str:
        if len(written) == 3:
            raise error
        written.append(json.dumps(content))
        return written[-1]

    with monkeypatch.context() as patched:
        patched.setattr("objectives.text.augmentation.json", SimpleNamespace(dumps=fail))
        with pytest.raises(error):
            make(cache=tmp_path)
    assert len(written) == 3
    assert list(tmp_path.iterdir()) == []
    progress = RecordingProgress()
    make(cache=tmp_path, progress=progress)
    assert progress.steps > 0


def test_the_cache_is_lines_of_json(make: Make, tmp_path: Path) -> None:
    made = make(cache=tmp_path)
    (file,) = tmp_path.iterdir()
    *copies, end = [json.loads(line) for line in file.read_text().splitlines()]
    assert [tuple(copy["text"]) for copy in copies] == list(made.texts[5:])
    assert list(end) == ["sha256"]


def test_global_random_state_is_left_alone(make: Make) -> None:
    before = random_states()
    make()
    assert random_states() == before


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"copies": "10"}, "Augmentation.copies is '10'; it must be a whole number"),
        ({"copies": 0}, "Augmentation.copies is 0; it must be >= 1"),
        ({"candidates": -1}, "Augmentation.candidates is -1; it must be >= 1"),
        ({"probability": 1.1}, r"Augmentation.probability is 1.1; it must be in \[0, 1\]"),
        ({"probability": float("nan")}, "Augmentation.probability is nan"),
    ],
)
def test_values_out_of_range_are_refused(
    basic: Augmentation, change: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        replace(basic, **change)


def test_the_definition_says_where_the_neighbours_come_from(
    basic: Augmentation, augmenter: Augmenter
) -> None:
    assert augmenter.glove is not None
    assert augmenter.definition["word_vectors"] == augmenter.glove.fingerprint
    own = read_augmentation(replace(basic, word_vectors=None))
    assert own.definition["word_vectors"] == "embeddings of the masked LM"


def inputs_of(task: Task, checkpoint: str, augmentation: Augmentation | None) -> Inputs:
    teacher = Teacher(checkpoint=checkpoint, epochs=1, learning_rate=1e-3)
    return read_inputs(replace(task, train=40), teacher, augmentation=augmentation)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("shared-cache")


@pytest.fixture(scope="module")
def plain(cache: Path, tiny_bert: str, planted_task: Task) -> Workbench:
    inputs = inputs_of(planted_task, tiny_bert, None)
    return prepare(inputs, session=Session(cache=cache))


def test_students_learn_from_the_copies_and_the_teacher_from_the_rows(
    plain: Workbench, tmp_path: Path, basic: Augmentation, tiny_bert: str, planted_task: Task
) -> None:
    inputs = inputs_of(planted_task, tiny_bert, basic)
    progress = RecordingProgress()
    bench = prepare(inputs, session=Session(cache=tmp_path, progress=progress))
    assert progress.wanted[0] == 2, "steps of the teacher: 40 rows, 32 in a batch"
    assert bench.unpruned == plain.unpruned
    for name, weight in bench.problem.student.state_dict().items():
        assert torch.equal(weight, plain.problem.student.state_dict()[name])

    train, rows = bench.problem.train, plain.problem.train
    assert train.role == "train"
    assert train.input_ids[:40] == rows.input_ids
    assert train.labels[:40].tolist() == rows.labels.tolist()
    assert 40 * 3 < len(train) <= 40 * 7
    logits = predict(bench.problem.student, train, "cpu")
    torch.testing.assert_close(bench.problem.teacher_logits, logits)


def test_only_train_grows(
    plain: Workbench, cache: Path, basic: Augmentation, tiny_bert: str, planted_task: Task
) -> None:
    inputs = inputs_of(planted_task, tiny_bert, basic)
    bench = prepare(inputs, session=Session(cache=cache))
    for mine, other in (
        (bench.problem.alpha, plain.problem.alpha),
        (bench.select, plain.select),
        (bench.heldout, plain.heldout),
    ):
        assert mine.input_ids == other.input_ids
        assert not set(map(tuple, mine.input_ids)) & set(map(tuple, bench.problem.train.input_ids))
