"""What comes from JSON has the type that the code gives it, or is refused in one line."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest

from objectives.errors import Finite, FinitePositive, PositiveInt
from orchestrator.errors import RunError
from orchestrator.runs.reading import as_record, as_type, read_json
from orchestrator.runs.trial_files import read_curve

_WIDTHS = Mapping[str, tuple[PositiveInt, ...]]


@pytest.mark.parametrize(
    ("hint", "value", "read"),
    [
        (_WIDTHS, {"heads": [1, 2], "ffn": []}, {"heads": (1, 2), "ffn": ()}),
        (tuple[float, float], [0, 0.5], (0, 0.5)),
        (float | None, None, None),
        (float, math.inf, math.inf),
        (Literal["a", "b"], "b", "b"),
        (Any, {"x": [[1]]}, {"x": ((1,),)}),
    ],
)
def test_what_is_right_is_read_with_tuples(hint: Any, value: Any, read: Any) -> None:
    assert as_type(hint, value, "it") == read


@pytest.mark.parametrize(
    ("hint", "value", "message"),
    [
        (_WIDTHS, {"heads": [1, 0]}, "a mapping of which each is a tuple of which each is >= 1"),
        (_WIDTHS, [], "it is (); it must be a mapping"),
        (_WIDTHS, {"heads": 3}, "a mapping of which each is a tuple"),
        (tuple[float, float], [1], "it is (1,); it must be a tuple of 2"),
        (tuple[float, float], "ab", "it must be a tuple of 2"),
        (Finite, math.nan, "it is nan; it must be a finite number"),
        (FinitePositive, 0.0, "a finite number above 0"),
        (Finite, "1", "it is '1'; it must be a number"),
        (float, 10**400, "it must be below 1e100"),
        (int, True, "a whole number"),
        (Literal["a", "b"], [], "one of a, b"),
        (str, {"text": "x" * 1000}, "it must be a string"),
    ],
)
def test_what_is_not_is_one_short_line(hint: Any, value: Any, message: str) -> None:
    with pytest.raises(RunError) as caught:
        as_type(hint, value, "it")
    assert message in str(caught.value)
    assert len(str(caught.value)) < 250
    assert "\n" not in str(caught.value)


@dataclass(frozen=True)
class _Known:
    size: PositiveInt
    shape: tuple[int, ...] = ()


def test_a_record_is_read_for_what_is_known_of_it() -> None:
    assert as_record(_Known, {"size": 3, "shape": [1], "colour": 10**400}, "it") == _Known(3, (1,))
    with pytest.raises(RunError, match="it has no size: it is damaged, or another version"):
        as_record(_Known, {"shape": []}, "it")
    with pytest.raises(RunError, match=r"it\.size is None; it must be a whole number"):
        as_record(_Known, {"size": None}, "it")
    with pytest.raises(RunError, match="it is 'x'; it must be a mapping"):
        as_record(_Known, "x", "it")


@pytest.mark.parametrize("content", [b"", b'{"a"', b"[" * 9999, '"é"'.encode("latin1"), b"\0\0"])
def test_a_damaged_file_is_named(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "x.json"
    file.write_bytes(content)
    with pytest.raises(RunError, match=r"x\.json' is damaged \(.*\); restore it from a copy"):
        read_json(file)


def test_what_is_nested_too_deep_to_check_is_refused(tmp_path: Path) -> None:
    nested = json.loads("[" * 600 + "]" * 600)
    with pytest.raises(RunError, match="it must be"):
        as_type(tuple[int, ...], nested, "it")


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    """A stranger's archive may hold one."""
    os.mkfifo(tmp_path / "launch.json")
    with pytest.raises(RunError, match="is not a file"):
        read_json(tmp_path / "launch.json")
    os.mkfifo(tmp_path / "curve.csv")
    assert read_curve(tmp_path) == []
    (tmp_path / "own.csv").write_text("step,salary\n1,2\n")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "curve.csv").symlink_to(tmp_path / "own.csv")
    assert read_curve(tmp_path / "other") == [], "nor is a file of the reader's shown"
