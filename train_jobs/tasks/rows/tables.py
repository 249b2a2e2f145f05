"""Tables of text in files: TSV, CSV, JSON lines and Parquet, every row with the line that it stands on.

Rows are never dropped or merged without a word: whatever is no row of the table is an error with its file and line, all
of them at once. TSV has no quotes unless told otherwise: GLUE's texts begin with quotation marks that never end, and a
reader that takes those for quotes merges rows (98 of MRPC's 3,668).
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from train_jobs.config import DataError
from train_jobs.config.names import did_you_mean, in_shell

FORMATS = {".tsv": "tsv", ".csv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet"}
SEPARATORS = {"tsv": "\t", "csv": ","}
LONG_TEXT = 100_000  # characters; told of, since almost all of it is cut off
LISTED = 10  # problems spelled out in an error; the rest are counted
LONGEST_FIELD = 2**31 - 1  # characters; csv's own limit is 131,072
BOM = "\ufeff"
UTF16 = (b"\xff\xfe", b"\xfe\xff")
_HALF = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True)
class Table:
    """Some columns of a file, in the order of its rows."""

    path: Path
    columns: dict[str, list[Any]]
    """Name -> values: str from TSV and CSV, whatever stands there from JSON lines and Parquet."""
    lines: list[int]
    """Where each row begins, counted from 1: its line, or in Parquet its row."""
    notes: list[str] = field(default_factory=list)
    """What was read as it was meant although it is unusual, each with its place."""
    unit: str = ""
    """What stands before the number of a place."""

    def __len__(self) -> int:
        return len(self.lines)

    def where(self, row: int) -> str:
        """Place of a row, as errors have it."""
        return f"{self.path}:{self.unit}{self.lines[row]}"


class Problems:
    """What is wrong with the rows of files: collected, and raised together.

    Args:
        what: head of the error.
        fix: how to mend it.
    """

    def __init__(self, what: str, *, fix: str) -> None:
        self._what, self._fix = what, fix
        self._found: list[str] = []
        self._count = 0

    def add(self, where: str, what: str) -> None:
        """Notes one, at its place."""
        self._count += 1
        if self._count <= LISTED:
            self._found.append(f"{where}: {what}")

    def check(self) -> None:
        """Raises DataError if there are any."""
        if not self._count:
            return
        more = [f"and {self._count - LISTED} more"] if self._count > LISTED else []
        raise DataError(self._what, problems=self._found + more, fix=self._fix)


def read_table(
    path: Path,
    columns: Sequence[str],
    *,
    format: str | None = None,  # noqa: A002  # the word for it
    header: Sequence[str] | None = None,
    quoting: bool | None = None,
    pass_over: bool = False,
) -> Table:
    """Reads some columns of a table.

    A byte-order mark is no part of the first column, CRLF ends a line as LF does, and the last line needs no end; the
    first two are told in the table's notes.

    Args:
        path: the file, UTF-8 or Parquet.
        columns: names of those that are wanted.
        format: tsv, csv, jsonl or parquet. None: by the file's name.
        header: names of all columns of a file whose first line is a row already. None: the first line has them.
        quoting: TSV and CSV: a field may stand in quotation marks, and then hold separators and ends of lines. None:
            in CSV.
        pass_over: TSV without quoting: a row with a wrong number of fields is left out, and named in the notes.

    Raises:
        DataError: no such file, not UTF-8, a column that is not there, no row, or rows that are none: each with its
            line.
    """
    kind = _kind(path, format)
    if kind == "parquet":
        table = _read_parquet(path, columns)
    else:
        text, notes = read_text(path)
        if kind == "jsonl":
            table = _read_jsonl(path, text, columns)
        else:
            rows = _rows(path, text, kind, quoting)
            table = _from_rows(path, rows, columns, header, SEPARATORS[kind], pass_over=pass_over)
        table.notes[:0] = notes
    if not len(table):
        raise DataError(f"{path} has no row", fix="fetch or make it again")
    table.notes.extend(long_texts(table))
    return table


def column_names(path: Path, *, format: str | None = None, quoting: bool | None = None) -> list[str]:  # noqa: A002
    """Names of the columns of a table, of JSON lines those that any of its rows has.

    Args:
        path: the file.
        format: as of `read_table`.
        quoting: as of `read_table`.

    Raises:
        DataError: no such file, or not of this format.
    """
    kind = _kind(path, format)
    if kind == "parquet":
        with _parquet(path) as file:
            return list(file.schema_arrow.names)
    text, _ = read_text(path)
    if kind == "jsonl":
        rows = (json_row(line) for _, line in text_lines(text))
        return list(dict.fromkeys(name for row in rows if isinstance(row, dict) for name in row))
    return next((row for _, row in _rows(path, text, kind, quoting)), [])


def _kind(path: Path, format: str | None) -> str:  # noqa: A002
    kind = format or FORMATS.get(path.suffix)
    if kind is None:
        raise DataError(
            f"{path}: what kind of table is it?", facts={"need": ", ".join(FORMATS)}, fix="give it such a name"
        )
    return kind


def _rows(path: Path, text: str, kind: str, quoting: bool | None) -> Iterator[tuple[int, list[str]]]:
    """Fields of a TSV or CSV, row by row, with their lines."""
    quoted = kind == "csv" if quoting is None else quoting
    separator = SEPARATORS[kind]
    return _quoted_rows(path, text, separator) if quoted else _plain_rows(text, separator)


def read_text(path: Path) -> tuple[str, list[str]]:
    """A file's text without its byte-order mark, and notes on that and on CRLF."""
    raw = _bytes(path)
    if raw.startswith(UTF16):
        raise DataError(f"{path} is UTF-16, not UTF-8", facts={"where": f"{path}:1"}, fix=recode(path, "utf-16"))
    try:
        text = raw.decode()
    except UnicodeDecodeError as problem:
        line = raw.count(b"\n", 0, problem.start) + 1
        raise DataError(
            f"{path} is not UTF-8",
            facts={"where": f"{path}:{line}, byte {problem.start} of the file"},
            fix=recode(path, "latin1"),
        ) from None
    if "\r" in text and "\n" not in text:
        raise cr_alone(path)
    notes = []
    if text.startswith(BOM):
        notes.append(f"{path}:1: begins with a byte-order mark, which is no part of the first column")
        text = text[1:]
    if (first := text.find("\r\n")) >= 0:
        count = text.count("\r\n")
        notes.append(f"{path}:{text.count(chr(10), 0, first) + 1}: {count} lines end with CRLF, read as ends of lines")
    return text, notes


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
        raise DataError(f"no such file: {path}", fix="give the file's own path") from None
    except PermissionError:
        raise DataError(f"cannot read {path}", fix=f"chmod u+r {in_shell(path)}") from None


def cr_alone(path: Path) -> DataError:
    """What is said of a file whose lines would be read as a single one."""
    fix = f"tr '\\r' '\\n' < {in_shell(path)} > {in_shell(f'{path.stem}.lf{path.suffix}')}"
    return DataError(f"{path} ends its lines with CR alone", facts={"where": f"{path}:1"}, fix=fix)


def recode(path: Path, encoding: str) -> str:
    return f"iconv -f {encoding} -t utf-8 {in_shell(path)} > {in_shell(f'{path.stem}.utf8{path.suffix}')}"


def text_lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines with their numbers: only LF ends one, and a CR before it is left out; no other sign of Unicode does."""
    lines = text.split("\n")
    if not lines[-1]:
        lines.pop()
    for number, line in enumerate(lines, start=1):
        yield number, line.removesuffix("\r")


def _plain_rows(text: str, separator: str) -> Iterator[tuple[int, list[str]]]:
    for number, line in text_lines(text):
        yield number, line.split(separator) if line else []


def _quoted_rows(path: Path, text: str, separator: str) -> Iterator[tuple[int, list[str]]]:
    before = csv.field_size_limit(LONGEST_FIELD)
    try:
        stream = csv.reader(io.StringIO(text, newline="\n"), delimiter=separator, strict=True)
        while True:
            line = stream.line_num + 1
            try:
                row = next(stream)
            except StopIteration:
                return
            except csv.Error as problem:
                raise DataError(
                    f"{path} has quotation marks that do not pair up",
                    facts={"where": f"{path}:{line}", "why": f"{problem}, by line {stream.line_num}"},
                    fix='double a quotation mark inside a quoted field (""), or say that there are no quotes',
                ) from None
            yield line, row
    finally:
        csv.field_size_limit(before)


def _from_rows(
    path: Path,
    rows: Iterator[tuple[int, list[str]]],
    columns: Sequence[str],
    header: Sequence[str] | None,
    separator: str,
    *,
    pass_over: bool,
) -> Table:
    if header is None:
        _, header = next(rows, (1, []))
    places = column_places(f"{path}:1", header, columns)
    problems = Problems(f"{path} has rows that are none", fix=f"mend or delete those lines of {path}")
    table = Table(path, {name: [] for name in columns}, [])
    values = [table.columns[name] for name in columns]
    what = "tabs" if separator == "\t" else "commas"
    for line, row in rows:
        if len(row) != len(header):
            wrong = f"{len(row) - 1} {what}, need {len(header) - 1}" if row else "an empty row"
            if pass_over and row:
                table.notes.append(f"{path}:{line}: left out: {wrong}")
            else:
                problems.add(f"{path}:{line}", wrong)
        elif not any(row):
            problems.add(f"{path}:{line}", "an empty row")
        else:
            table.lines.append(line)
            for column, place in zip(values, places, strict=True):
                column.append(row[place])
    problems.check()
    return table


def column_places(where: str, header: Sequence[str], columns: Sequence[str]) -> list[int]:
    """Index in the header of each column that is wanted.

    Raises:
        DataError: there is none of that name, or several; the error says what there is.
    """
    twice = sorted({name for name in header if header.count(name) > 1})
    if twice:
        raise DataError(f"{where}: columns of one name: {', '.join(twice)}", fix="rename them in the first line")
    missing = [name for name in columns if name not in header]
    if missing:
        raise DataError(
            f"{where}: there is no column {', '.join(f'{name!r}{did_you_mean(name, header)}' for name in missing)}",
            facts={"have": ", ".join(header) or "an empty line"},
            fix="name the columns as the first line has them",
        )
    return [list(header).index(name) for name in columns]


def _read_jsonl(path: Path, text: str, columns: Sequence[str]) -> Table:
    table = Table(path, {name: [] for name in columns}, [])
    problems = Problems(f"{path} has lines that are no row", fix=f"mend or delete those lines of {path}")
    for line, written in text_lines(text):
        row = json_row(written)
        if isinstance(row, str):
            problems.add(f"{path}:{line}", row)
        elif missing := [name for name in columns if name not in row]:
            have = ", ".join(row) or "none"
            problems.add(f"{path}:{line}", f"there is no column {', '.join(map(repr, missing))}; have {have}")
        else:
            table.lines.append(line)
            for name in columns:
                table.columns[name].append(row[name])
    problems.check()
    return table


def json_row(line: str) -> dict[str, Any] | str:
    """The object of a line, or what is wrong with it."""
    if not line.strip():
        return "an empty row"
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as problem:
        return f"not JSON: {problem}"
    if not isinstance(row, dict):
        return f"no JSON object, but of type {type(row).__name__}"
    return ("\\u" in line and half_character(row)) or row


def half_character(document: Any) -> str:
    """What is wrong with a JSON document that has half of a surrogate pair, which is no text: "" if it has none.

    A program that cuts texts off after so many units of UTF-16 leaves one where it cuts an emoji in two.
    """
    half = _HALF.search(json.dumps(document, ensure_ascii=False))
    return f"half a character: \\u{ord(half[0]):x} stands alone" if half else ""


@contextmanager
def _parquet(path: Path) -> Iterator[Any]:
    """The file, open."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if not path.is_file():
        raise DataError(f"no such file: {path}", fix="give the file's own path")
    try:
        with pq.ParquetFile(path) as file:
            yield file
    except (pa.ArrowInvalid, OSError) as problem:
        raise DataError(f"cannot read {path}", facts={"why": str(problem).splitlines()[0]}) from None


def _read_parquet(path: Path, columns: Sequence[str]) -> Table:
    with _parquet(path) as file:
        column_places(str(path), file.schema_arrow.names, columns)
        found = file.read(columns=list(columns))
    values = {name: found[name].to_pylist() for name in columns}
    return Table(path, values, list(range(1, len(found) + 1)), unit="row ")


def long_texts(table: Table) -> list[str]:
    """Notes on texts that are so long that something is hardly right."""
    return [
        f"{table.where(row)}: a text of {len(value):,} characters, cut to the longest sequence"
        for values in table.columns.values()
        for row, value in enumerate(values)
        if isinstance(value, str) and len(value) > LONG_TEXT
    ]
