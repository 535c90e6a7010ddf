"""Read text from CSV, JSON, Parquet and line files, and explain what is wrong with one."""

import codecs
import csv
import glob
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pandas
from datasets import Dataset, Features, LargeList, List, Value, load_dataset
from datasets.exceptions import DatasetsError

from objectives.errors import SHOWN, UserError, causes, did_you_mean, first_line

DELIMITERS = {".csv": ",", ".tsv": "\t", ".parquet": "", ".json": "", ".jsonl": "", ".txt": ""}
"""Delimiters of columns by the suffix of the file; empty if it needs none."""
_SPOKEN = {",": "','", ";": "';'", "\t": "'\\t'", "|": "'|'"}


@dataclass(frozen=True)
class TextFile:
    """File of text: a CSV with names of columns, JSON, Parquet, or without labels a text a line."""

    path: Path
    delimiter: str
    """Delimiter of the columns of a CSV; empty in other files."""
    encoding: str
    """Encoding of its characters, by Python's name; Parquet has its own."""
    quotechar: str | None = None
    """Quote character of a CSV, "" for none; None: '"', unless it encloses no fields and each line
    is a row without it."""

    @classmethod
    def named(
        cls, path: str | Path, delimiter: str | None, encoding: str, quotechar: str | None = None
    ) -> "TextFile":
        """Make a `TextFile`. Raises UserError for other suffixes or more than one character."""
        delimiter = "\t" if delimiter == "\\t" else delimiter  # as a shell gives it
        suffix = Path(path).suffix.lower()
        if suffix not in DELIMITERS:
            raise UserError(
                f"file '{path}': its name ends in {suffix or 'nothing'}; "
                f"maskfront reads {', '.join(DELIMITERS)}, folders, and data sets of the hub"
            )
        if delimiter is not None and len(delimiter) != 1:
            raise UserError(f"file '{path}': delimiter is {delimiter!r}; it must be one character")
        if suffix == ".txt" and (delimiter or quotechar):
            raise UserError(
                f"file '{path}': each line of a .txt is a text; call a table .csv or .tsv"
            )
        if quotechar is not None and len(quotechar) > 1:
            raise UserError(f"file '{path}': quotechar is {quotechar!r}; it must be one or none")
        usual = DELIMITERS[suffix]
        return cls(Path(path), usual and (delimiter or usual), encoding, quotechar)

    def read(self, columns: Sequence[str], cache: str, labels: Sequence[str] = ()) -> Dataset:
        """Read the columns and `labels` as Arrow tables in `cache`. Raises one-line UserErrors."""
        # All of a CSV is text, "NA" and "null" too; a field without anything in it is missing.
        if self.path.is_dir():
            raise UserError(f"'{self.path}' is a folder, as Spark writes: name the file in it")
        if not self.path.is_file():
            raise UserError(f"file '{self.path}' does not exist")
        if not self.path.stat().st_size:
            raise UserError(f"file '{self.path}' is empty")
        try:
            if self.delimiter:
                quotes = self.quotechar
                if quotes is None:
                    quotes = quotes_of(self.path, self.delimiter, self.encoding, labels)
                quoted = replace(self, quotechar=quotes)
                return quoted._read_csv((*columns, *labels), cache)
            data = without_views(self._read_typed(columns, cache), cache)
            self._check_columns((*columns, *labels), data.column_names)
            return data
        except UserError:
            raise
        except (DatasetsError, OSError, ValueError, LookupError) as error:
            raise UserError(f"file '{self.path}': {self._what(error)}") from error

    def _read_typed(self, columns: Sequence[str], cache: str) -> Dataset:
        """Read a file whose format names the columns, or that has only one."""
        if self.path.suffix.lower() == ".parquet":
            return self._load("parquet", cache)
        if self.path.suffix.lower() == ".txt":
            features = Features({columns[0]: Value("string")})
            return self._load("text", cache, encoding=self.encoding, features=features)
        with self.path.open(encoding=self.encoding) as lines:  # Arrow takes any bytes for UTF-8
            for _ in lines:
                pass
        # In one piece, as far as Arrow reads: `datasets` takes all types from the first one.
        together = {"chunksize": min(max(self.path.stat().st_size + 1, 10 << 20), 1 << 30)}
        if codecs.lookup(self.encoding).name == "utf-8":
            return self._load("json", cache, **together)
        copy = Path(mkdtemp(dir=cache), self.path.name)  # `datasets` reads a list as UTF-8
        copy.write_text(self.path.read_text(self.encoding), encoding="utf-8")
        return replace(self, path=copy)._load("json", cache, **together)

    def _read_csv(self, columns: Sequence[str], cache: str) -> Dataset:
        first = self._first_row()
        names_read = list(first.columns)
        if not isinstance(first.index, pandas.RangeIndex):  # pandas took a column for row names
            raise UserError(
                f"file '{self.path}': the second line has more fields than the first, which names "
                f"{len(names_read)} column{'s' * (len(names_read) > 1)}; "
                f"{self._other_delimiter(names_read) or self._quotes}"
            )
        self._check_columns(columns, names_read)
        # As they stand there: pandas changes a second one.
        names = list(self._first_row(header=None, keep_default_na=False).iloc[0])
        for column in columns:
            numbers = [str(index) for index, name in enumerate(names, start=1) if name == column]
            if len(numbers) > 1:
                raise UserError(
                    f"file '{self.path}': the first line names '{column}' {len(numbers)} times "
                    f"(columns {', '.join(numbers)}); rename all but the one that counts"
                )
        return self._load(
            "csv",
            cache,
            **self._form,
            features=Features(dict.fromkeys(names_read, Value("string"))),
            keep_default_na=False,
            na_values=[""],
        )

    def _check_columns(self, columns: Sequence[str], present: Sequence[str]) -> None:
        missing = [column for column in columns if column not in present]
        if missing:
            hint = did_you_mean(missing[0], present)
            if self.delimiter:
                other = self._other_delimiter(present)
                line = f"; the first line must name the columns{hint}"
                hint = f", one column; {other}" if other else line
            raise UserError(
                f"file '{self.path}': no column '{missing[0]}'; there are "
                f"{', '.join(repr(name[:SHOWN]) for name in present)}{hint}"
            )

    def _first_row(self, **form: Any) -> pandas.DataFrame:
        row: pandas.DataFrame = pandas.read_csv(self.path, nrows=1, dtype=str, **self._form, **form)
        return row

    @property
    def _form(self) -> dict[str, Any]:
        quotes = {"quotechar": self.quotechar} if self.quotechar else {"quoting": csv.QUOTE_NONE}
        return {"sep": self.delimiter, "encoding": self.encoding, **quotes}

    def _load(self, kind: str, cache: str, **form: Any) -> Dataset:
        return load_dataset(
            kind, data_files=glob.escape(str(self.path)), split="train", cache_dir=cache, **form
        )

    @property
    def _quotes(self) -> str:
        return f"put fields that hold {_SPOKEN.get(self.delimiter, self.delimiter)} in quotes"

    def _other_delimiter(self, present: Sequence[str]) -> str:
        """Advice if the name of the only column contains another delimiter."""
        for delimiter, spoken in _SPOKEN.items():
            if len(present) == 1 and delimiter != self.delimiter and delimiter in present[0]:
                return f"if {spoken} separates them, give delimiter={spoken}"
        return ""

    def _what(self, error: BaseException) -> str:
        """Message of an error of pandas, Arrow or `datasets`, its cause first."""
        chain = list(causes(error))
        for cause in chain:
            if isinstance(cause, UnicodeError):
                return self._undecodable(cause)
            if isinstance(cause, LookupError) and self.encoding in str(cause):
                return f"there is no encoding '{self.encoding}'; give one that Python knows"
        line = first_line(chain[-1])
        if isinstance(chain[-1], pandas.errors.ParserError):
            return f"{line}; {self._quotes}"
        if isinstance(chain[-1], pandas.errors.EmptyDataError) or "to no data" in line:
            return "it has no rows"
        return f"it cannot be read ({line})"

    def _undecodable(self, error: UnicodeError) -> str:
        """Find the first line and byte that are not in the encoding, which pandas does not tell."""
        where, end = "", 0
        decoder = codecs.getincrementaldecoder(self.encoding)()
        with self.path.open("rb") as lines:
            wide = lines.peek(2)[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
            for number, line in enumerate(lines, start=1):
                end += len(line)
                try:  # a line of UTF-16 ends amid a character
                    decoder.decode(line, final=not line.endswith(b"\n"))
                except UnicodeDecodeError as found:
                    at, byte = end - len(found.object) + found.start, found.object[found.start]
                    where = f" at line {number}, byte {at:,} (0x{byte:02x})"
                    break
                except UnicodeError:  # UTF-16 that does not say which
                    break
        wide = wide and codecs.lookup(self.encoding).name != "utf-16"
        others = "'utf-16'" if wide else "'latin-1' or 'cp1252'"
        return (
            f"its characters are not all {self.encoding}{where or f' ({error})'}; give encoding=, "
            f"such as {others}, or mend the line"
        )


def without_views(data: Dataset, cache: str) -> Dataset:
    """Cast Arrow's string views, which support no filters, to strings; the copy lies in `cache`."""
    plain = Features({name: _without_view(kind) for name, kind in data.features.items()})
    if plain == data.features:
        return data
    return data.cast(plain, cache_file_name=f"{mkdtemp(dir=cache)}/plain.arrow")


def _without_view(kind: Any) -> Any:
    if isinstance(kind, List | LargeList):
        return replace(kind, feature=_without_view(kind.feature))
    return Value(kind.dtype.removesuffix("_view")) if isinstance(kind, Value) else kind


def quotes_of(path: Path, delimiter: str, encoding: str, labels: Sequence[str]) -> str:
    """Quote character of a CSV, "" for none. Raises UserError if that is unclear."""
    # Nothing: most do not enclose, or in lines with tabs some, and every line is a row without
    # them. Refused: neither holds, or a field of several lines may be rows, as they have as many
    # columns, and known values of `labels`; without labels, if no row needs quotes.
    csv.field_size_limit(2**31 - 1)  # a quote that nothing closes makes one field of a file
    with path.open(encoding=encoding, newline="") as stream:
        numbered = enumerate(stream, start=1)
        header = next((line for _, line in numbered if line.strip()), "")
        names = next(csv.reader([header.removeprefix("\ufeff")], delimiter=delimiter), [])
        needed, enclosed, torn, swallowed = '"' in header, 0, [], []
        for lines, fields in _records(numbered, delimiter):
            rows = [line.rstrip("\r\n").split(delimiter) for _, line in lines if line.strip()]
            bare = all(len(row) == len(names) for row in rows)
            span = (lines[0][0], lines[-1][0])
            if fields is None:
                torn.append(span)
            elif bare and (len(rows) > 1 or len(fields) != len(names)):
                swallowed.append((span, rows))
            enclosed += fields is not None
            needed |= not bare and (fields is None or len(fields) == len(names))
    by_tabs = delimiter == "\t" and len(names) > 1
    if not needed and (len(torn) > enclosed or (by_tabs and (torn or swallowed))):
        return ""
    columns = [names.index(label) for label in labels if label in names]
    if swallowed and columns and not by_tabs:
        label_values = _labels(path, delimiter, encoding, columns, len(names))
        swallowed = [
            (span, rows)
            for span, rows in swallowed
            # One line has the labels of the field's own row.
            if sum(_kinds(row, columns) in label_values for row in rows) > 1
            or (len(rows) == 1 and not needed)
        ]
    elif needed and not by_tabs:
        swallowed.clear()
    for first, last in sorted([*torn, *(span for span, _ in swallowed)])[:1]:
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
    """Numbered lines and fields of each row with a quote; None for fields if a quote is torn."""
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
    with path.open(encoding=encoding, newline="") as stream:
        rows = csv.reader(stream, delimiter=delimiter)
        return {_kinds(row, columns) for row in rows if len(row) == width}


def _kinds(row: Sequence[str], columns: Sequence[int]) -> tuple[str, ...]:
    """Values of these columns, with one placeholder for all numbers."""
    values = [row[column] for column in columns]
    return tuple("0" if is_number(value) else value.strip() for value in values)


def is_number(text: str) -> bool:
    """Whether Python reads the text as a number."""
    try:
        float(text)
    except ValueError:
        return False
    return True
