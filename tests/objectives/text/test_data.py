"""Batches: every row once an epoch, the order by the seed alone, sequences of like length."""

from array import array
from itertools import islice

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from objectives.text.data import Batch, Split

PAD = 9


def split_of(lengths: list[int], max_length: int = 64) -> Split:
    """Row r holds `lengths[r]` tokens r + 10 and has label r % 3."""
    return Split(
        role="train",
        input_ids=[array("i", [row + 10] * length) for row, length in enumerate(lengths)],
        token_type_ids=[array("b", [1] * length) for length in lengths],
        labels=np.arange(len(lengths), dtype=np.int64) % 3,
        pad_token_id=PAD,
        max_length=max_length,
    )


def rows_of(batches: list[Batch]) -> list[int]:
    return [row for batch in batches for row in batch.rows.tolist()]


def epochs(split: Split, batch_size: int, seed: int, count: int = 1) -> list[Batch]:
    steps = count * -(-len(split) // batch_size)
    return list(islice(split.shuffled(batch_size, seed, "cpu"), steps))


lengths = st.lists(st.integers(1, 40), min_size=1, max_size=200)


@given(lengths, st.integers(1, 7), st.integers(0, 9))
def test_an_epoch_has_every_row_once(lengths: list[int], batch_size: int, seed: int) -> None:
    split = split_of(lengths)
    rows = rows_of(epochs(split, batch_size, seed, count=2))
    everyone = list(range(len(lengths)))
    assert sorted(rows[: len(lengths)]) == everyone
    assert sorted(rows[len(lengths) :]) == everyone


def test_every_epoch_and_every_seed_has_its_own_order() -> None:
    split = split_of([3] * 50)
    first, second = (
        rows_of(epochs(split, 8, 0, count=2))[part] for part in (slice(50), slice(50, 100))
    )
    assert first != second
    assert first != rows_of(epochs(split, 8, 1))


def test_the_order_depends_on_the_seed_alone() -> None:
    split = split_of(list(range(1, 40)))
    np.random.seed(1)
    torch.manual_seed(1)
    once = rows_of(epochs(split, 8, 5))
    np.random.seed(2)
    torch.manual_seed(2)
    assert rows_of(epochs(split, 8, 5)) == once


@given(lengths, st.integers(1, 7))
def test_in_order_has_every_row_once_the_longest_first(lengths: list[int], batch_size: int) -> None:
    split = split_of(lengths)
    rows = rows_of(list(split.in_order(batch_size, "cpu")))
    assert sorted(rows) == list(range(len(lengths)))
    ordered = [lengths[row] for row in rows]
    assert ordered == sorted(ordered, reverse=True)


def test_a_batch_is_padded_with_the_pad_token_and_masked_there() -> None:
    batch = split_of([2, 5, 3]).batch(np.array([2, 1]), "cpu")
    assert batch.input_ids.tolist() == [[12] * 3 + [PAD] * 5, [11] * 5 + [PAD] * 3]
    assert batch.token_type_ids.tolist() == [[1] * 3 + [0] * 5, [1] * 5 + [0] * 3]
    assert batch.attention_mask.tolist() == [[True] * 3 + [False] * 5, [True] * 5 + [False] * 3]
    assert batch.labels.tolist() == [2, 1]
    assert batch.rows.tolist() == [2, 1]


def test_widths_are_multiples_of_8_up_to_the_longest_allowed() -> None:
    split = split_of([1, 8, 9, 17, 20], max_length=20)
    widths = [split.batch(np.array([row]), "cpu").input_ids.shape[1] for row in range(5)]
    assert widths == [8, 8, 16, 20, 20]


def test_batches_hold_sequences_of_like_length() -> None:
    generator = np.random.default_rng(0)
    split = split_of(generator.integers(1, 65, size=320).tolist())
    padded = sum(batch.input_ids.numel() for batch in epochs(split, 8, 0))
    plain = sum(split.batch(np.arange(i, i + 8), "cpu").input_ids.numel() for i in range(0, 320, 8))
    tokens = sum(map(len, split.input_ids))
    assert padded - tokens < 0.3 * (plain - tokens)


def test_rows_that_are_drawn_are_each_there_once_and_depend_on_the_generator_alone() -> None:
    split = split_of([5, 9, 3, 30, 12, 7])
    drawn, again, other = (
        split.drawn(4, np.random.default_rng(seed), batch_size=3) for seed in (0, 0, 1)
    )
    assert [len(batch) for batch in drawn] == [3, 1]
    rows = np.concatenate(drawn).tolist()
    assert len(set(rows)) == 4
    assert rows == np.concatenate(again).tolist()
    assert rows != np.concatenate(other).tolist()
    lengths = [len(split.input_ids[row]) for row in rows]
    assert lengths == sorted(lengths)
    assert sum(map(len, split.drawn(100, np.random.default_rng(0), batch_size=4))) == len(split)
