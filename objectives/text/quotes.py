"""Whether quotes enclose the fields of a CSV, or are signs of its text."""

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path

from objectives.errors import UserError


def quotes_of(path: Path, delimiter: str, encoding: str, labels: Sequence[str] = ()) -> str:
    """'"' if quotes enclose the fields of a CSV; nothing if they are signs of its text; else
    UserError."""
    # Nothing: most do not enclose, or in lines with tabs some, and every line is a row without
    # them. Refused: neither holds, or a field of several lines may be rows, as they have as many
    # columns, and known values of `labels`; without labels, if no row needs quotes.
    csv.field_size_limit(2**31 - 1)  # a quote that nothing closes makes one field of a file
    with path.open(encoding=encoding, newline="") as stream:
        numbered = enumerate(stream, start=1)
        header = next((line for _, line in numbered if line.strip()), "")
        names = next(csv.reader([header], delimiter=delimiter), [])
        needed, enclosed, torn, swallowed = '"' in header, 0, [], []
        for lines, fields in _records(numbered, delimiter):
            rows = [line.rstrip("\r\n").split(delimiter) for _, line in lines if line.strip()]
            bare = all(len(row) == len(names) for row in rows)
            place = (lines[0][0], lines[-1][0])
            if fields is None:
                torn.append(place)
            elif bare and (len(rows) > 1 or len(fields) != len(names)):
                swallowed.append((place, rows))
            enclosed += fields is not None
            needed |= not bare and (fields is None or len(fields) == len(names))
    by_tabs = delimiter == "\t" and len(names) > 1
    if not needed and (len(torn) > enclosed or (by_tabs and (torn or swallowed))):
        return ""
    columns = [names.index(label) for label in labels if label in names]
    if swallowed and columns and not by_tabs:
        known = _labels(path, delimiter, encoding, columns, len(names))
        swallowed = [
            (place, rows)
            for place, rows in swallowed
            # One line has the labels of the field's own row.
            if sum(_kinds(row, columns) in known for row in rows) > 1
            or (len(rows) == 1 and not needed)
        ]
    elif needed and not by_tabs:
        swallowed.clear()
    for first, last in sorted([*torn, *(place for place, _ in swallowed)])[:1]:
        what = "does not enclose a field" if first == last else f"reaches to line {last:,}"
        raise UserError(
            f"file '{path}': a quote in line {first:,} {what}; give quotechar='' if quotes are "
            "part of the text, or quotechar='\"' if the file is right as it is, or put that field "
            "in quotes and write each quote in it twice"
        )
    return '"'


def _records(
    numbered: Iterator[tuple[int, str]], delimiter: str
) -> Iterator[tuple[list[tuple[int, str]], list[str] | None]]:
    """The numbered lines and the fields of each row with a quote; None for fields where text
    follows a closing quote, or where nothing closes one."""
    held: list[tuple[int, str]] = []

    def lines() -> Iterator[str]:
        for number, line in numbered:
            if held or '"' in line:
                held.append((number, line))
                yield line

    reader = csv.reader(lines(), delimiter=delimiter, strict=True)
    while True:
        held.clear()
        try:
            fields = next(reader)
        except StopIteration:
            return
        except csv.Error:
            yield held, None
        else:
            yield held, fields


def _labels(
    path: Path, delimiter: str, encoding: str, columns: Sequence[int], width: int
) -> set[tuple[str, ...]]:
    """The labels of all rows."""
    with path.open(encoding=encoding, newline="") as stream:
        rows = csv.reader(stream, delimiter=delimiter)
        return {_kinds(row, columns) for row in rows if len(row) == width}


def _kinds(row: Sequence[str], columns: Sequence[int]) -> tuple[str, ...]:
    """The values of these columns, one for all numbers."""

    def kind(text: str) -> str:
        try:
            float(text)
        except ValueError:
            return text.strip()
        return "0"

    return tuple(kind(row[column]) for column in columns)
