"""Input of a prediction, in windows of rows.

One pass over the files finds the start of each window and every row that cannot be used. Windows are then read one by
one, so the input may be larger than memory, and an invalid row is reported before prediction starts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from train_jobs.config import DataError, PredictConfig
from train_jobs.config.predict import LINES
from train_jobs.readers.row_readers import (
    LineReader,
    Reader,
    Row,
    Rows,
    RowStart,
    TextReader,
    open_table,
)
from train_jobs.readers.squad_data import Squad, read_squad
from train_jobs.readers.tables import RowProblems, RowTable, long_texts
from train_jobs.tasks.entities.conll import DOCUMENT, line_columns

WORDS, TAGS = "words", "tags"
ID, QUESTION, CONTEXT, ANSWERS = "id", "question", "context", "answers"
MAX_WINDOW_CHARACTERS = 32_000_000  # of a window: a limit for memory, since rows may be books
PIECE = 256  # rows checked together
MAX_NOTES = 20

Check = Callable[[RowTable, RowProblems], None]


class RowWindow(NamedTuple):
    """Rows that are read, predicted and written together."""

    file: int
    """Index of its file."""
    place: RowStart
    """Start of its first row."""
    first: int
    """Index of its first row among the rows of all files."""
    rows: int


@dataclass(frozen=True)
class Input:
    """Files of checked rows."""

    readers: Sequence[Reader]
    windows: list[RowWindow]
    notes: list[str]
    """Warnings about the files, each with its line."""

    @property
    def rows(self) -> int:
        """Number of rows of all files."""
        return sum(window.rows for window in self.windows)

    def read(self, window: RowWindow) -> RowTable:
        """Read the rows of a window."""
        reader = self.readers[window.file]
        found = list(islice(reader.rows(window.place), window.rows))
        return _table(reader, [(place, row) for place, row in found if isinstance(row, dict)])


def read_input(readers: Sequence[Reader], check: Check, *, rows: int, characters: int = MAX_WINDOW_CHARACTERS) -> Input:
    """Read all files once, check all rows, and split them into windows.

    Args:
        readers: readers of the files.
        check: function that adds the problems of rows.
        rows: maximum rows of a window.
        characters: maximum characters of a window with several rows.

    Raises:
        DataError: a file has no row, or rows that cannot be used: each with its line.
    """
    # Problems are collected per file: the user can fix all rows of a file before the next attempt.
    cutter, notes = _WindowBuilder(rows, characters), []
    for number, reader in enumerate(readers):
        problems = RowProblems(
            f"{reader.path} has rows that cannot be used", fix=f"fix or delete those lines of {reader.path}"
        )
        for piece in _pieces(reader, problems):
            table = _table(reader, piece)
            check(table, problems)
            notes.extend(long_texts(table))
            for place, row in piece:
                cutter.add(number, place, row)
        problems.check()
        if not cutter.windows or cutter.windows[-1].file != number:
            raise DataError(f"{reader.path} has no row", fix="fetch or create it again")
        if isinstance(reader, SquadReader):
            notes.extend(reader.squad.notes)
    more = [f"and {len(notes) - MAX_NOTES} more notes"] if len(notes) > MAX_NOTES else []
    return Input(readers, cutter.windows, notes[:MAX_NOTES] + more)


def open_readers(config: PredictConfig, kind: str) -> list[Reader]:
    """Open the files of a configuration.

    Args:
        config: names of the files.
        kind: kind of prediction.

    Raises:
        SpecError: predictions of this kind cannot read files of this format.
        DataError: a file cannot be read, or lacks a column.
    """
    form = config.require_readable(kind)
    return [_reader(config, form, path, config.columns(kind)) for path in config.input]


def _reader(config: PredictConfig, form: str, path: Path, columns: Sequence[str]) -> Reader:
    data = config.data
    if form == "squad":
        return SquadReader(path, [ID, QUESTION, CONTEXT, ANSWERS])
    if form == "conll":
        columns = [WORDS, *([TAGS] if config.evaluate else [])]
        return ConllReader(path, columns, word=data.word_column, tag=data.tag_column)
    if form == LINES:
        return LineReader(path, columns)
    return open_table(path, columns, format=form, header=data.header, quoting=data.quoting)


def _pieces(reader: Reader, problems: RowProblems) -> Iterator[list[tuple[RowStart, Row]]]:
    """Yield lists of up to PIECE rows; add a problem for each row that cannot be used."""
    rows = reader.rows()
    while some := list(islice(rows, PIECE)):
        for place, row in some:
            if isinstance(row, str):
                problems.add(f"{reader.path}:{reader.unit}{place.line}", row)
        yield [(place, row) for place, row in some if isinstance(row, dict)]


def _table(reader: Reader, rows: Sequence[tuple[RowStart, Row]]) -> RowTable:
    columns = {name: [row[name] for _, row in rows] for name in reader.columns}
    return RowTable(reader.path, columns, [place.line for place, _ in rows], unit=reader.unit)


class _WindowBuilder:
    """Builder of windows, row by row.

    Args:
        rows: maximum rows of a window.
        characters: maximum characters of a window with several rows.
    """

    def __init__(self, rows: int, characters: int) -> None:
        self.windows: list[RowWindow] = []
        self._most_rows, self._most_characters, self._characters = rows, characters, 0

    def add(self, file: int, place: RowStart, row: Row) -> None:
        """Add a row to the last window, or begin a new one with it."""
        # Windows never span two files: each is read with one reader, from one start.
        size = sum(len(value) for value in row.values() if isinstance(value, str))
        self._characters += size
        last = self.windows[-1] if self.windows else None
        if last and last.file == file and last.rows < self._most_rows and self._characters <= self._most_characters:
            self.windows[-1] = last._replace(rows=last.rows + 1)
        else:
            self.windows.append(RowWindow(file, place, last.first + last.rows if last else 0, 1))
            self._characters = size


class ConllReader(TextReader):
    """Reader of CoNLL files: a word, optional columns and a tag on each line; an empty line ends a sentence.

    Args:
        path: the file.
        columns: names of the columns to read.
        word: column of the word, counted from 1.
        tag: column of the tag; None: the last.
    """

    def __init__(self, path: Path, columns: Sequence[str], *, word: int = 1, tag: int | None = None) -> None:
        super().__init__(path, columns)
        self._word, self._tag = word, tag
        self._least = max(word, tag or word + 1) if TAGS in columns else word

    def rows(self, start: RowStart | None = None) -> Rows:
        begun: RowStart | None = None
        lines: list[list[str]] = []
        for place, line in self.lines(start):
            fields = line_columns(line)
            if fields and fields[0] != DOCUMENT:
                begun = begun or place
                lines.append(fields)
            elif begun is not None:
                yield begun, self._sentence(begun, lines)
                begun, lines = None, []
        if begun is not None:
            yield begun, self._sentence(begun, lines)

    def _sentence(self, place: RowStart, lines: list[list[str]]) -> Row | str:
        width = len(lines[0])
        for number, fields in enumerate(lines):
            # The first line decides: a line with a missing column would otherwise take its tag from another column.
            if len(fields) != width:
                return f"line {place.line + number}: {len(fields)} columns, need {width}"
        if width < self._least:
            what = "a word and its tag" if self._least == 2 and TAGS in self.columns else self._least
            return f"{width} column{'s' if width > 1 else ''}, need {what}"
        row = {WORDS: [fields[self._word - 1] for fields in lines]}
        return row | ({TAGS: [fields[(self._tag or 0) - 1] for fields in lines]} if TAGS in self.columns else {})


class SquadReader(Reader):
    """Reader of SQuAD files, which are one JSON document and therefore read as a whole when opened."""

    unit = "question "

    def __init__(self, path: Path, columns: Sequence[str]) -> None:
        super().__init__(path, columns)
        self.squad: Squad = read_squad(path)

    def rows(self, start: RowStart | None = None) -> Rows:
        first = start.offset if start else 0
        for number, question in enumerate(self.squad.questions[first:], start=first):
            values = (question.id, question.text, question.context, question.answers)
            yield RowStart(number, number + 1), dict(zip((ID, QUESTION, CONTEXT, ANSWERS), values, strict=True))
