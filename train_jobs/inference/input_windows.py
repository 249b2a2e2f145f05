"""What is to be predicted, in windows of rows: one pass over the files finds where they begin and every row that cannot
be used; later any of them is read alone. So an input may be larger than memory, and an hour's work ends in no surprise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from train_jobs.config import DataError, PredictConfig, SpecError
from train_jobs.inference.readers import (
    ANSWERS,
    CONTEXT,
    ID,
    QUESTION,
    TAGS,
    WORDS,
    ConllReader,
    JsonReader,
    LineReader,
    ParquetReader,
    Place,
    Reader,
    Row,
    SquadReader,
    TableReader,
)
from train_jobs.tasks.rows.tables import LONG_TEXT, Problems, Table

MOST_CHARACTERS = 32_000_000  # of a window, whatever its rows
PIECE = 256  # rows that are checked together
MOST_NOTES = 20

Check = Callable[[Table, Problems], None]


class Window(NamedTuple):
    """Rows that are read, predicted and written together."""

    file: int
    """Number of the file."""
    place: Place
    """Where the first of them begins."""
    first: int
    """Number of the first of them among those of all files."""
    rows: int


@dataclass(frozen=True)
class Input:
    """Files of rows, each checked."""

    readers: Sequence[Reader]
    windows: list[Window]
    notes: list[str]
    """What the user should know of the files, each with its place."""

    @property
    def rows(self) -> int:
        """Of all files."""
        return sum(window.rows for window in self.windows)

    def read(self, window: Window) -> Table:
        """The rows of a window."""
        reader = self.readers[window.file]
        found = list(islice(reader.rows(window.place), window.rows))
        return _table(reader, [(place, row) for place, row in found if isinstance(row, dict)])


def read_input(readers: Sequence[Reader], check: Check, *, rows: int) -> Input:
    """Goes through files once.

    Args:
        readers: of the files.
        check: notes what is wrong with some rows.
        rows: most rows of a window; long texts make it smaller.

    Raises:
        DataError: a file has no row, or rows that cannot be used: each with its line.
    """
    cutter, notes = _Cutter(rows), []
    for number, reader in enumerate(readers):
        problems = Problems(
            f"{reader.path} has rows that cannot be used", fix=f"mend or delete those lines of {reader.path}"
        )
        for piece in _pieces(reader, problems):
            table = _table(reader, piece)
            check(table, problems)
            notes.extend(_long_texts(table))
            for place, row in piece:
                cutter.add(number, place, row)
        problems.check()
        if not cutter.windows or cutter.windows[-1].file != number:
            raise DataError(f"{reader.path} has no row", fix="fetch or make it again")
        if isinstance(reader, SquadReader):
            notes.extend(reader.squad.notes)
    more = [f"and {len(notes) - MOST_NOTES} more notes"] if len(notes) > MOST_NOTES else []
    return Input(readers, cutter.windows, notes[:MOST_NOTES] + more)


def open_readers(config: PredictConfig, columns: Sequence[str], *, forms: Sequence[str], kind: str) -> list[Reader]:
    """The files of a configuration.

    Args:
        config: names them.
        columns: of tables, those that are wanted; of SQuAD's and CoNLL's form what they have.
        forms: those that the task can read.
        kind: what the task is called.

    Raises:
        SpecError: files of a form that the task cannot read.
        DataError: a file cannot be read, or lacks a column.
    """
    form = config.form(config.input[0])
    if form not in forms:
        raise SpecError(
            f"{kind} reads no file of the form {form}",
            facts={"need": ", ".join(forms), "have": config.input[0]},
            fix="--set data.format=FORM, or give another file",
        )
    return [_reader(config, form, path, columns) for path in config.input]


def _reader(config: PredictConfig, form: str, path: Path, columns: Sequence[str]) -> Reader:
    data = config.data
    if form in {"tsv", "csv"}:
        quoted = form == "csv" if data.quoting is None else data.quoting
        return TableReader(path, columns, separator="\t" if form == "tsv" else ",", quoted=quoted, header=data.header)
    if form == "squad":
        return SquadReader(path, [ID, QUESTION, CONTEXT, ANSWERS])
    if form == "conll":
        columns = [WORDS, *([TAGS] if config.evaluate else [])]
        return ConllReader(path, columns, word=data.word_column, tag=data.tag_column)
    if form == "lines" and len(columns) > 1:
        raise SpecError(
            f"{path} has one text on each line, and no columns",
            facts={"need": ", ".join(columns)},
            fix="give a table: .tsv, .csv, .jsonl or .parquet",
        )
    others: dict[str, Callable[[Path, Sequence[str]], Reader]] = {
        "lines": LineReader,
        "jsonl": JsonReader,
        "parquet": ParquetReader,
    }
    return others[form](path, columns)


def _pieces(reader: Reader, problems: Problems) -> Iterator[list[tuple[Place, Row]]]:
    """Rows, so many at a time; what is none is a problem."""
    rows = reader.rows()
    while some := list(islice(rows, PIECE)):
        for place, row in some:
            if isinstance(row, str):
                problems.add(f"{reader.path}:{reader.unit}{place.line}", row)
        yield [(place, row) for place, row in some if isinstance(row, dict)]


def _table(reader: Reader, rows: Sequence[tuple[Place, Row]]) -> Table:
    columns = {name: [row[name] for _, row in rows] for name in reader.columns}
    return Table(reader.path, columns, [place.line for place, _ in rows], unit=reader.unit)


class _Cutter:
    """Cuts files into windows, as rows come.

    Args:
        most: rows of a window.
    """

    def __init__(self, most: int) -> None:
        self.windows: list[Window] = []
        self._most, self._characters = most, 0

    def add(self, file: int, place: Place, row: Row) -> None:
        """One more row of a file: of the last window, or the first of a new one."""
        size = sum(len(value) for value in row.values() if isinstance(value, str))
        self._characters += size
        last = self.windows[-1] if self.windows else None
        if last and last.file == file and last.rows < self._most and self._characters <= MOST_CHARACTERS:
            self.windows[-1] = last._replace(rows=last.rows + 1)
        else:
            self.windows.append(Window(file, place, last.first + last.rows if last else 0, 1))
            self._characters = size


def _long_texts(table: Table) -> list[str]:
    return [
        f"{table.where(row)}: a text of {len(value):,} characters"
        for values in table.columns.values()
        for row, value in enumerate(values)
        if isinstance(value, str) and len(value) > LONG_TEXT
    ]
