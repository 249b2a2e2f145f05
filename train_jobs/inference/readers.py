"""Files read row by row from any row on: tables, lines of text, sentences of words; and SQuAD's, which are read whole.

What is no row comes as words that say why, in its place, so that whoever reads can name them all.
"""

from __future__ import annotations

import csv
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from train_jobs.artifacts.files import file_sha256
from train_jobs.config import DataError
from train_jobs.config.names import in_shell
from train_jobs.tasks.entities.conll import DOCUMENT
from train_jobs.tasks.rows.tables import BOM, LONGEST_FIELD, UTF16, column_places, cr_alone, json_row, recode
from train_jobs.tasks.squad.reading import Squad, read_squad

WORDS, TAGS = "words", "tags"
ID, QUESTION, CONTEXT, ANSWERS = "id", "question", "context", "answers"


class Place(NamedTuple):
    """Where a row begins."""

    offset: int
    """Byte of the file; of Parquet and SQuAD the number of the row, from 0."""
    line: int
    """From 1; of Parquet and SQuAD the row's number."""


Row = dict[str, Any]
"""Column -> value."""


class Reader(ABC):
    """A file of rows.

    Args:
        path: the file.
        columns: those that are wanted.
    """

    unit = ""
    """What stands before the number of a place."""

    def __init__(self, path: Path, columns: Sequence[str]) -> None:
        self.path, self.columns = path, list(columns)
        try:
            if not path.is_file():
                raise DataError(f"no such file: {path}", fix="give the file's own path")
            path.open("rb").close()
        except PermissionError:
            raise DataError(f"cannot read {path}", fix=f"chmod u+r {in_shell(path)}") from None

    @abstractmethod
    def rows(self, start: Place | None = None) -> Iterator[tuple[Place, Row | str]]:
        """Each row from a place on, or what is wrong with it; and where it begins.

        Raises:
            DataError: the file cannot be read, or lacks a column.
        """

    @property
    def sha256(self) -> str:
        """Of its content."""
        return file_sha256(self.path)


class TextReader(Reader):
    """UTF-8; LF ends a line, a CR before that is left out, and so is a byte-order mark before the first."""

    def lines(self, start: Place | None = None) -> Iterator[tuple[Place, str]]:
        """Lines with their ends, and where each begins.

        Raises:
            DataError: one is not UTF-8.
        """
        with self.path.open("rb") as stream:
            head = stream.read(len(BOM.encode()))
            if head.startswith(UTF16):
                fix = recode(self.path, "utf-16")
                raise DataError(f"{self.path} is UTF-16, not UTF-8", facts={"where": f"{self.path}:1"}, fix=fix)
            offset, line = start or (len(head) if head == BOM.encode() else 0, 1)
            stream.seek(offset)
            for number, raw in enumerate(stream, start=line):
                try:
                    text = raw.decode()
                except UnicodeDecodeError as problem:
                    raise DataError(
                        f"{self.path} is not UTF-8",
                        facts={"where": f"{self.path}:{number}, byte {offset + problem.start} of the file"},
                        fix=recode(self.path, "latin1"),
                    ) from None
                if number == 1 and "\r" in text and not text.endswith("\n"):
                    raise cr_alone(self.path)
                yield Place(offset, number), text
                offset += len(raw)


class LineReader(TextReader):
    """A text on each line."""

    def rows(self, start: Place | None = None) -> Iterator[tuple[Place, Row | str]]:
        for place, line in self.lines(start):
            text = _bare(line)
            yield place, dict.fromkeys(self.columns, text) if text.strip() else "an empty row"


class JsonReader(TextReader):
    """A JSON object on each line."""

    def rows(self, start: Place | None = None) -> Iterator[tuple[Place, Row | str]]:
        for place, line in self.lines(start):
            row = json_row(_bare(line))
            if isinstance(row, dict) and (missing := [name for name in self.columns if name not in row]):
                yield place, f"there is no column {', '.join(map(repr, missing))}; have {', '.join(row) or 'none'}"
            else:
                yield place, row if isinstance(row, str) else {name: row[name] for name in self.columns}


class TableReader(TextReader):
    """TSV or CSV.

    Args:
        path: the file.
        columns: those that are wanted.
        separator: of fields.
        quoted: a field may stand in quotation marks, and then hold separators and ends of lines.
        header: names of all columns, if the first line does not have them.
    """

    def __init__(
        self, path: Path, columns: Sequence[str], *, separator: str, quoted: bool, header: Sequence[str] | None
    ) -> None:
        super().__init__(path, columns)
        self._separator, self._fields = separator, self._quoted_fields if quoted else self._plain_fields
        self._has_header = header is None
        self._header = next(self._fields(None), (Place(0, 1), []))[1] if header is None else list(header)
        self._places = column_places(f"{path}:1", self._header, columns)

    def rows(self, start: Place | None = None) -> Iterator[tuple[Place, Row | str]]:
        what = "tabs" if self._separator == "\t" else "commas"
        fields = self._fields(start)
        if start is None and self._has_header:
            next(fields, None)
        for place, row in fields:
            if not any(row):
                yield place, "an empty row"
            elif len(row) != len(self._header):
                yield place, f"{len(row) - 1} {what}, need {len(self._header) - 1}"
            else:
                yield place, {name: row[number] for name, number in zip(self.columns, self._places, strict=True)}

    def _plain_fields(self, start: Place | None) -> Iterator[tuple[Place, list[str]]]:
        for place, line in self.lines(start):
            yield place, _bare(line).split(self._separator)

    def _quoted_fields(self, start: Place | None) -> Iterator[tuple[Place, list[str]]]:
        csv.field_size_limit(LONGEST_FIELD)
        lines = self.lines(start)
        while (first := next(lines, None)) is not None:  # a reader for each row: it asks for the lines of that alone
            place, line = first
            try:
                row = next(
                    csv.reader(chain([line], (text for _, text in lines)), delimiter=self._separator, strict=True)
                )
            except csv.Error as problem:
                raise DataError(
                    f"{self.path} has quotation marks that do not pair up",
                    facts={"where": f"{self.path}:{place.line}", "why": problem},
                    fix='double a quotation mark inside a quoted field (""), or say that there are no quotes',
                ) from None
            yield place, row


class ConllReader(TextReader):
    """Sentences: a word and maybe other columns on each line, one its tag; an empty line ends one.

    Args:
        path: the file.
        columns: those that are wanted.
        word: which column the word is, counted from 1.
        tag: which one the tag is; None: the last.
    """

    def __init__(self, path: Path, columns: Sequence[str], *, word: int = 1, tag: int | None = None) -> None:
        super().__init__(path, columns)
        self._word, self._tag = word, tag
        self._least = max(word, tag or word + 1) if TAGS in columns else word

    def rows(self, start: Place | None = None) -> Iterator[tuple[Place, Row | str]]:
        begun: Place | None = None
        lines: list[list[str]] = []
        for place, line in self.lines(start):
            fields = _bare(line).split()
            if fields and fields[0] != DOCUMENT:
                begun = begun or place
                lines.append(fields)
            elif begun is not None:
                yield begun, self._sentence(begun, lines)
                begun, lines = None, []
        if begun is not None:
            yield begun, self._sentence(begun, lines)

    def _sentence(self, place: Place, lines: list[list[str]]) -> Row | str:
        width = len(lines[0])
        for number, fields in enumerate(lines):
            if len(fields) != width:
                return f"line {place.line + number}: {len(fields)} columns, need {width}"
        if width < self._least:
            what = "a word and its tag" if self._least == 2 and TAGS in self.columns else self._least
            return f"{width} column{'s' if width > 1 else ''}, need {what}"
        row = {WORDS: [fields[self._word - 1] for fields in lines]}
        return row | ({TAGS: [fields[(self._tag or 0) - 1] for fields in lines]} if TAGS in self.columns else {})


class ParquetReader(Reader):
    """Parquet."""

    unit = "row "

    def __init__(self, path: Path, columns: Sequence[str]) -> None:
        import pyarrow.parquet as pq

        super().__init__(path, columns)
        with self._errors(), pq.ParquetFile(path) as file:
            column_places(str(path), file.schema_arrow.names, columns)
            sizes = [file.metadata.row_group(number).num_rows for number in range(file.num_row_groups)]
        self._firsts = [sum(sizes[:number]) for number in range(len(sizes))]

    def rows(self, start: Place | None = None) -> Iterator[tuple[Place, Row | str]]:
        import pyarrow.parquet as pq

        wanted = start.offset if start else 0
        groups = [number for number, first in enumerate(self._firsts) if first <= wanted][-1:]
        groups += [number for number, first in enumerate(self._firsts) if first > wanted]
        number = self._firsts[groups[0]] if groups else 0
        with self._errors(), pq.ParquetFile(self.path) as file:
            for batch in file.iter_batches(row_groups=groups, columns=self.columns, batch_size=1024):
                if number + len(batch) > wanted:
                    skipped = max(wanted - number, 0)
                    for place, row in enumerate(batch.slice(skipped).to_pylist(), start=number + skipped):
                        yield Place(place, place + 1), row
                number += len(batch)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        import pyarrow as pa

        try:
            yield
        except (pa.ArrowInvalid, OSError) as problem:
            raise DataError(f"cannot read {self.path}", facts={"why": str(problem).splitlines()[0]}) from None


class SquadReader(Reader):
    """SQuAD's JSON, which has one line for all, so it is read whole."""

    unit = "question "

    def __init__(self, path: Path, columns: Sequence[str]) -> None:
        super().__init__(path, columns)
        self.squad: Squad = read_squad(path)

    def rows(self, start: Place | None = None) -> Iterator[tuple[Place, Row | str]]:
        first = start.offset if start else 0
        for number, question in enumerate(self.squad.questions[first:], start=first):
            values = (question.id, question.text, question.context, question.answers)
            yield Place(number, number + 1), dict(zip((ID, QUESTION, CONTEXT, ANSWERS), values, strict=True))


def _bare(line: str) -> str:
    return line.removesuffix("\n").removesuffix("\r")
