"""Rows and header of CSV and TSV as the plan and the job read them, and fixes of tables that they cannot read.

Fields of CSV may be quoted. Those of TSV are never: texts of GLUE begin with quotation marks that never close.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator
from io import StringIO
from pathlib import PurePath

from train_jobs.artifacts.remote_files import TextPath, fix_in_copy, sibling
from train_jobs.config.errors import DataError, closest, in_shell, python_command
from train_jobs.config.privacy import header_text, is_header, is_name

SEPARATORS = {"csv": ",", "tsv": "\t"}
"""Format of a table -> separator of its fields."""
TABLE_FORMATS = {
    ".tsv": "tsv",
    ".csv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".parquet": "parquet",
}
LONGEST_FIELD = 32 << 20  # characters; the default of csv is 131,072
UNBALANCED = "unbalanced quotation marks"
DOUBLED = 'double a quotation mark inside a quoted field ("")'
_CARRIAGE_RETURN = "new-line character"  # in an error of csv, which means one outside of quotation marks
_OTHER_SEPARATORS = ((";", "semicolons"), ("\t", "tabs"), (",", "commas"), ("|", "vertical bars"))
_WITHIN_LINES = r"sed 's/\r\+\([^\r]\)/ \1/g'"  # not those before a line feed
_FOR_LINE_ENDS = r"tr '\r' '\n'"


def table_format(path: PurePath) -> str | None:
    """Return the format of a table of labelled texts by its suffix, of which the case is ignored; None: unknown."""
    return TABLE_FORMATS.get(path.suffix.lower())


def tsv_text(text: str) -> str:
    """Return a text as a field of TSV without quoting: tabs, line ends and backslashes are escaped like JSON."""
    return json.dumps(text, ensure_ascii=False)[1:-1].replace('\\"', '"')


class TableRows:
    """Iterator over the rows of a table, as lists of fields; a blank line is an empty list.

    Args:
        lines: its lines with their ends; only line feeds end lines.
        separator: a comma, whose fields may be quoted, or a tab, whose fields are not.

    Raises:
        csv.Error: the next row of a CSV cannot be read, see `carriage_returns`.
    """

    def __init__(self, lines: Iterable[str], separator: str) -> None:
        self.line = 0
        """Number of the last line that was read."""
        counted = self._counted(lines)
        self._rows = csv.reader(counted, strict=True) if separator == "," else _plain_rows(counted, separator)

    def __iter__(self) -> Iterator[list[str]]:
        return self

    def __next__(self) -> list[str]:
        limit = csv.field_size_limit(LONGEST_FIELD)  # global in csv, so it is restored
        try:
            return next(self._rows)
        finally:
            csv.field_size_limit(limit)

    def _counted(self, lines: Iterable[str]) -> Iterator[str]:
        for line in lines:
            self.line += 1
            yield line


def _plain_rows(lines: Iterable[str], separator: str) -> Iterator[list[str]]:
    for line in lines:
        text = line.rstrip("\r\n")
        yield text.split(separator) if text else []


def carriage_returns(
    problem: csv.Error, path: TextPath | str, line: int, compression: str | None = None
) -> tuple[str, str] | None:
    """Return problem and fix of a row of CSV with a carriage return in it; None: its quotation marks are unbalanced.

    Args:
        problem: error of `csv`.
        path: the file.
        line: number of the last line of the row.
        compression: compression of the file; None: not compressed.
    """
    if _CARRIAGE_RETURN not in str(problem):
        return None
    if line == 1:
        return "its lines end with CR alone", _filtered(_FOR_LINE_ENDS, path, compression)
    return "a carriage return in a field without quotation marks", _filtered(_WITHIN_LINES, path, compression)


def require_column(path: TextPath, head: str, form: str, compression: str | None, column: str) -> None:
    """Refuse a table whose first line has no such column; its fix has the column with the longest text below it.

    Args:
        path: the table.
        head: its beginning, in which the first line ends.
        form: `csv` or `tsv`.
        compression: compression of the file; None: not compressed.
        column: the column.

    Raises:
        DataError: the column is missing, or the first line cannot be read. Fields that may be text, because the first
            line is a row, are not shown.
    """
    first = head.partition("\n")[0]
    rows = TableRows(StringIO(head, newline="\n"), SEPARATORS[form])
    try:
        header = next(rows, [])
        if form == "tsv" and "\r" in first.rstrip("\r"):
            raise csv.Error(_CARRIAGE_RETURN)
    except csv.Error as problem:
        what, fix = carriage_returns(problem, path, 1, compression) or (UNBALANCED, DOUBLED)
        raise DataError(f"{path}:1: {what}", fix=fix) from None
    if column in header:
        return
    if other := _other_form(path, first, form, compression):
        what, fix = other
        raise DataError(f"{path}:1: {what}", fix=fix)
    try:
        row = next(rows, [])
    except csv.Error:  # the reader reports it with its line
        row = []
    shown = header if is_header(header, [column]) else ()  # the fix quotes nothing that the message withholds
    named = [(len(text), name) for name, text in zip(shown, row, strict=False) if is_name(name)]
    guess = closest(column, [name for _, name in named]) or max(named, default=(0, "NAME"))[1]
    raise DataError(
        f"{path}:1: no column {column!r}; have {header_text(header, [column])}",
        fix=f"--data {in_shell(path)} --column {in_shell(guess)}",
    )


def other_separator(first: str, own: str) -> tuple[str, str] | None:
    """Return sign and name of the separator of a first line without the own one; None: it seems to have no other."""
    if own in first:
        return None
    fields = ((sign, name, first.strip().split(sign)) for sign, name in _OTHER_SEPARATORS)
    return next(((sign, name) for sign, name, found in fields if len(found) > 1 and all(map(is_name, found))), None)


def _other_form(path: TextPath, first: str, form: str, compression: str | None) -> tuple[str, str] | None:
    """Return problem and fix of a table with another separator, or of a TSV with quoted names; None: it has neither."""
    own = SEPARATORS[form]
    if other := other_separator(first, own):
        sign, name = other
        known = next((known for known, one in SEPARATORS.items() if one == sign), None)
        fix = _renamed(path, compression, known) if known else _as_csv(path, compression, sign)
        return f"the fields are separated by {name}", fix
    if form == "tsv" and all(name[:1] == name[-1:] == '"' for name in first.strip().split(own)):
        return "the fields are quoted, and those of TSV cannot be", _as_csv(path, compression, own)
    return None


def _renamed(path: TextPath, compression: str | None, form: str) -> str:
    """Return the command that copies a table to the name of another format."""
    copy = in_shell(_sibling(path, compression, f".{form}{path.suffix if compression else ''}"))
    return fix_in_copy(f"cp {in_shell(path)} {copy}; then --data {copy}", path)


def _as_csv(path: TextPath, compression: str | None, separator: str) -> str:
    """Return the command that writes a table with quoted fields as CSV with commas."""
    copy = _sibling(path, compression, ".fixed.csv")
    read = f"read_table({str(path)!r})" if separator == "\t" else f"read_csv({str(path)!r}, sep={separator!r})"
    command = python_command(f"import pandas as pd; pd.{read}.to_csv({copy!r}, index=False)")
    return fix_in_copy(f"{command}; then --data {in_shell(copy)}", path)


def _filtered(command: str, path: TextPath | str, compression: str | None) -> str:
    """Return the command that writes what another makes of a file."""
    source = f"{compression} -dc {in_shell(path)} | {command}" if compression else f"{command} < {in_shell(path)}"
    suffix = PurePath(PurePath(str(path)).stem if compression else str(path)).suffix
    return fix_in_copy(f"{source} > {in_shell(_sibling(path, compression, f'.lf{suffix}'))}", path)


def _sibling(path: TextPath | str, compression: str | None, ending: str) -> str:
    """Return the path next to a table that has another ending."""
    name = PurePath(str(path))
    return sibling(path, PurePath(name.stem if compression else name.name).stem + ending)
