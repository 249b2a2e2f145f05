"""Readers of TSV, CSV, JSON Lines, Parquet and text files, row by row, from any row.

For a row that cannot be used a reader yields its problem, so that the caller can report all of them.
"""

from __future__ import annotations

import csv
import json
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from train_jobs.artifacts.csv_tables import SEPARATORS, TABLE_FORMATS, UNBALANCED, carriage_returns, table_format
from train_jobs.artifacts.regular_files import SpecialFileError, open_regular
from train_jobs.artifacts.text_files import UTF16_MARKS
from train_jobs.artifacts.unreadable import unreadable
from train_jobs.config import DataError, did_you_mean, in_shell
from train_jobs.config.privacy import header_text, is_header, names_text, problem_text

LONG_ROW = 1 << 18  # bytes: a quoted field that does not end within them is taken for an unbalanced quotation mark
LONGEST_FIELD = 2**31 - 1  # characters; the default of csv is 131,072
BOM = "\ufeff"
EMPTY_ROW = "an empty row"
_UNBALANCED_FIX = 'close the mark, or double it inside a field (""); --set data.quoting=false reads it as text'
_HALF = re.compile("[\ud800-\udfff]")


class RowStart(NamedTuple):
    """Position of a row in its file."""

    offset: int
    """Byte offset; for Parquet and SQuAD the index of the row, from 0."""
    line: int
    """Line number, from 1; for Parquet and SQuAD the number of the row, from 1."""


Row = dict[str, Any]
"""Column -> value."""
Rows = Iterator[tuple[RowStart, Row | str]]
"""Start of each row, and the row or its problem."""


class Reader(ABC):
    """Reader of a file of rows.

    Args:
        path: the file.
        columns: names of the columns to read.

    Raises:
        DataError: the file does not exist or cannot be opened.
    """

    unit = ""
    """Word in front of a row's number in messages."""

    def __init__(self, path: Path, columns: Sequence[str]) -> None:
        self.path, self.columns = path, list(columns)
        self.notes: list[str] = []
        """Warnings about the file, each with its line; complete once all rows were read."""
        self.stop: int | None = None
        """Offset after which no row begins that is read. None: all rows are read."""
        self.stopped = False
        """Whether rows were left out because of `stop`."""
        try:
            if not path.exists():
                raise DataError(f"no such file: {path}", fix="give the path of a file")
            open_regular(path).close()
        except (PermissionError, IsADirectoryError, SpecialFileError) as problem:
            raise unreadable(path, problem) from None

    @abstractmethod
    def rows(self, start: RowStart | None = None) -> Rows:
        """Yield the rows from `start`, by default from the first.

        Raises:
            DataError: the file cannot be read, or lacks a column.
        """

    def names(self) -> list[str]:
        """Return the names of all columns."""
        return self.columns


class TextReader(Reader):
    """Reader of UTF-8 text. LF ends a line; a CR before it and a byte-order mark are not part of the text."""

    def lines(self, start: RowStart | None = None) -> Iterator[tuple[RowStart, str]]:
        """Yield the start of each line, and the line with its end.

        Args:
            start: line to start from. None: the first.

        Raises:
            DataError: the file is UTF-16 or not UTF-8, or its lines end with CR alone.
        """
        crlf = first_crlf = 0
        # Bytes, not text mode: offsets must be exact, so that a later call can start at any row, and an invalid byte
        # must be reported with its line.
        with open_regular(self.path) as stream:
            head = stream.read(len(BOM.encode()))
            if head.startswith(UTF16_MARKS):
                raise self._unreadable("is UTF-16, not UTF-8", ":1", "utf-16")
            begin = len(head) if head == BOM.encode() else 0
            offset, line = start or (begin, 1)
            stream.seek(offset)
            for number, raw in enumerate(stream, start=line):
                if self.stop is not None and offset >= self.stop:
                    self.stopped = True
                    return
                try:
                    text = raw.decode()
                except UnicodeDecodeError as problem:
                    where = f":{number}, byte {offset + problem.start} of the file"
                    raise self._unreadable("is not UTF-8", where, "latin1") from None
                # One line with a CR and no LF is a file of old Mac programs; as one row it would only be "too long".
                if number == 1 and "\r" in text and not text.endswith("\n"):
                    lf = in_shell(f"{self.path.stem}.lf{self.path.suffix}")
                    raise DataError(
                        f"cannot read {self.path}: its lines end with CR alone",
                        facts={"where": f"{self.path}:1"},
                        fix=f"tr '\\r' '\\n' < {in_shell(self.path)} > {lf}",
                    )
                if text.endswith("\r\n"):
                    crlf, first_crlf = crlf + 1, first_crlf or number
                yield RowStart(offset, number), text
                offset += len(raw)
        mark = f"{self.path}:1: a byte-order mark, which is not part of the first column"
        ends = f"{self.path}:{first_crlf}: {crlf} lines end with CRLF, read as LF"
        self.notes = [*([mark] if begin else []), *([ends] if crlf else [])]

    def _unreadable(self, what: str, where: str, encoding: str) -> DataError:
        recoded = in_shell(f"{self.path.stem}.utf8{self.path.suffix}")
        return DataError(
            f"{self.path} {what}",
            facts={"where": f"{self.path}{where}"},
            fix=f"iconv -f {encoding} -t utf-8 {in_shell(self.path)} > {recoded}",
        )


class LineReader(TextReader):
    """Reader of text files with one text per line."""

    def rows(self, start: RowStart | None = None) -> Rows:
        for place, line in self.lines(start):
            text = strip_line_end(line)
            yield place, dict.fromkeys(self.columns, text) if text.strip() else EMPTY_ROW


class JsonReader(TextReader):
    """Reader of JSON Lines."""

    def rows(self, start: RowStart | None = None) -> Rows:
        for place, line in self.lines(start):
            row = json_row(strip_line_end(line))
            if isinstance(row, dict) and (missing := [name for name in self.columns if name not in row]):
                yield place, f"missing column {', '.join(map(repr, missing))}; have {names_text(list(row))}"
            else:
                yield place, row if isinstance(row, str) else {name: row[name] for name in self.columns}

    def names(self) -> list[str]:
        """Return the columns of all rows."""
        # of all rows, not of the first: JSON Lines has no header, and an optional key may occur later
        rows = (json_row(strip_line_end(line)) for _, line in self.lines())
        return list(dict.fromkeys(name for row in rows if isinstance(row, dict) for name in row))


class TableReader(TextReader):
    """Reader of TSV and CSV.

    Args:
        path: the file.
        columns: names of the columns to read.
        separator: separator of fields.
        quoted: whether quotation marks quote fields, which may then contain separators and line ends.
        header: names of all columns. None: the first line contains them.

    Raises:
        DataError: the file cannot be read, or a column is missing or duplicate.
    """

    # TSV is read without quotes by default: texts of GLUE begin with quotation marks that never close, and a reader
    # that interprets them merges rows (98 of MRPC's 3,668).

    def __init__(
        self, path: Path, columns: Sequence[str], *, separator: str, quoted: bool, header: Sequence[str] | None
    ) -> None:
        super().__init__(path, columns)
        self._separator, self._fields = separator, self._quoted_fields if quoted else self._plain_fields
        self._has_header = header is None
        self._header = next(self._fields(None), (RowStart(0, 1), []))[1] if header is None else list(header)
        self._places = column_indices(f"{path}:1", self._header, columns)

    def rows(self, start: RowStart | None = None) -> Rows:
        what = "tabs" if self._separator == "\t" else "commas"
        fields = self._fields(start)
        if start is None and self._has_header:
            next(fields, None)
        for place, row in fields:
            if len(row) != len(self._header) and len(row) > 1:
                yield place, f"{len(row) - 1} {what}, need {len(self._header) - 1}"
            elif not any(row):
                yield place, EMPTY_ROW
            elif len(row) != len(self._header):
                yield place, f"0 {what}, need {len(self._header) - 1}"
            else:
                yield place, {name: row[number] for name, number in zip(self.columns, self._places, strict=True)}

    def names(self) -> list[str]:
        return self._header

    def _plain_fields(self, start: RowStart | None) -> Iterator[tuple[RowStart, list[str]]]:
        for place, line in self.lines(start):
            yield place, strip_line_end(line).split(self._separator)

    def _quoted_fields(self, start: RowStart | None) -> Iterator[tuple[RowStart, list[str]]]:
        lines = self.lines(start)
        # A csv reader for each row: it consumes exactly the lines of that row, so the start of the next one is known.
        while (first := next(lines, None)) is not None:
            place, line = first
            limit = csv.field_size_limit(LONGEST_FIELD)  # global in csv: restored below, since callers may use csv too
            try:
                text = chain([line], (text for _, text in lines))
                row = next(csv.reader(text, delimiter=self._separator, strict=True))
            except csv.Error as problem:
                if self.stopped and self.stop is not None and self.stop - place.offset < LONG_ROW:
                    return
                what, fix = carriage_returns(problem, self.path, place.line) or (UNBALANCED, _UNBALANCED_FIX)
                facts = {"where": f"{self.path}:{place.line}", "why": problem_text(problem)}
                raise DataError(f"cannot read {self.path}: {what}", facts=facts, fix=fix) from None
            finally:
                csv.field_size_limit(limit)
            yield place, row


class ParquetReader(Reader):
    """Reader of Parquet."""

    unit = "row "

    def __init__(self, path: Path, columns: Sequence[str]) -> None:
        import pyarrow.parquet as pq

        super().__init__(path, columns)
        with self._errors(), pq.ParquetFile(path) as file:
            self._names = list(file.schema_arrow.names)
            column_indices(str(path), self._names, columns)
            sizes = [file.metadata.row_group(number).num_rows for number in range(file.num_row_groups)]
        self._firsts = [sum(sizes[:number]) for number in range(len(sizes))]

    def rows(self, start: RowStart | None = None) -> Rows:
        import pyarrow.parquet as pq

        wanted = start.offset if start else 0
        # Row groups are the smallest unit that Parquet can seek to: from the last that begins at or before the wanted
        # row.
        groups = [number for number, first in enumerate(self._firsts) if first <= wanted][-1:]
        groups += [number for number, first in enumerate(self._firsts) if first > wanted]
        number = self._firsts[groups[0]] if groups else 0
        with self._errors(), pq.ParquetFile(self.path) as file:
            for batch in file.iter_batches(row_groups=groups, columns=self.columns, batch_size=1024):
                if number + len(batch) > wanted:
                    skipped = max(wanted - number, 0)
                    for place, row in enumerate(batch.slice(skipped).to_pylist(), start=number + skipped):
                        yield RowStart(place, place + 1), row
                number += len(batch)

    def names(self) -> list[str]:
        return self._names

    @contextmanager
    def _errors(self) -> Iterator[None]:
        import pyarrow as pa

        try:
            yield
        except (pa.ArrowException, OSError, UnicodeDecodeError) as problem:
            raise DataError(f"cannot read {self.path}", facts={"why": problem_text(problem).splitlines()[0]}) from None


def open_table(
    path: Path,
    columns: Sequence[str],
    *,
    format: str | None = None,  # noqa: A002  # the word for it
    header: Sequence[str] | None = None,
    quoting: bool | None = None,
) -> Reader:
    """Return the reader of a table.

    Args:
        path: the file, UTF-8 or Parquet.
        columns: names of the columns to read.
        format: tsv, csv, jsonl or parquet. None: by the suffix of the file.
        header: names of all columns, for TSV and CSV without a header. None: the first line contains them.
        quoting: whether quotation marks of TSV and CSV quote fields. None: in CSV only.

    Raises:
        DataError: no such file, an unknown format, or a missing column.
    """
    kind = format or table_format(path)
    if kind is None:
        raise DataError(
            f"unknown table format of {path}",
            facts={"need": ", ".join(TABLE_FORMATS)},
            fix="rename the file, or set data.format",
        )
    if kind in SEPARATORS:
        quoted = kind == "csv" if quoting is None else quoting
        return TableReader(path, columns, separator=SEPARATORS[kind], quoted=quoted, header=header)
    return (JsonReader if kind == "jsonl" else ParquetReader)(path, columns)


def read_text(path: Path) -> tuple[str, list[str]]:
    """Return the text of a UTF-8 file without a byte-order mark, and warnings about it and about CRLF.

    Raises:
        DataError: the file does not exist or is not UTF-8.
    """
    reader = LineReader(path, [])
    return "".join(line for _, line in reader.lines()), reader.notes


def strip_line_end(line: str) -> str:
    """Return a line without its end."""
    return line.removesuffix("\n").removesuffix("\r")


def column_indices(where: str, header: Sequence[str], columns: Sequence[str]) -> list[int]:
    """Return the index of each column in the header.

    Args:
        where: place of the header, for messages.
        header: names of all columns.
        columns: names to find.

    Raises:
        DataError: a column is missing, or the header contains a name twice.
    """
    twice = sorted(name for name, count in Counter(header).items() if count > 1)
    if twice:
        what = f"{where}: duplicate columns: {header_text(twice, columns)}"
        raise DataError(what, fix="rename them in the first line")
    places = {name: place for place, name in enumerate(header)}
    missing = [name for name in columns if name not in places]
    if missing:
        known = header if is_header(header, columns) else ()
        raise DataError(
            f"{where}: unknown column {', '.join(f'{name!r}{did_you_mean(name, known)}' for name in missing)}",
            facts={"have": header_text(header, columns)},
            fix="use the column names of the first line",
        )
    return [places[name] for name in columns]


def json_row(line: str) -> dict[str, Any] | str:
    """Return the JSON object of a line, or its problem as text."""
    if not line.strip():
        return EMPTY_ROW
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as problem:  # RecursionError: deeply nested arrays
        return f"not JSON: {problem_text(problem)}"
    if not isinstance(row, dict):
        return f"not a JSON object, but of type {type(row).__name__}"
    return ("\\u" in line and half_character(row)) or row


def half_character(document: Any) -> str:
    """Return the problem of a JSON document that contains half of a surrogate pair; "" without one."""
    # Programs that truncate texts to N units of UTF-16 cut emojis in two. Python reads the half without an error, and
    # the tokenizer fails on it much later.
    half = _HALF.search(json.dumps(document, ensure_ascii=False))
    return f"half a character: \\u{ord(half[0]):x} without its other half" if half else ""
