"""Tables of text from files or Hugging Face datasets, and conversion of their columns.

No row is dropped or merged silently: one error lists the rows that cannot be used, with file and line.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

from train_jobs.artifacts.files import file_sha256
from train_jobs.config import DataError
from train_jobs.config.privacy import problem_text, value_text
from train_jobs.config.tasks import OfficialFile
from train_jobs.readers.row_readers import EMPTY_ROW, column_indices, open_table

if TYPE_CHECKING:
    from datasets import Dataset

LONG_TEXT = 100_000  # characters; noted, since almost all of it is truncated
LISTED = 10  # problems listed in an error; the rest are counted
_NUMBER = re.compile(r"\s*[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?\s*")
WHOLE = re.compile(r"-?\d+(\.0*)?")  # programs write whole numbers of a column with a missing value as 1.0
_FRACTION = re.compile(r"[-+]?\d*\.\d+([eE][-+]?\d+)?")
_NUMBERED = re.compile(r"\s*[-+]?\d")
SPLITS = {"train": "train", "dev": "validation", "test": "test"}
"""Our name of a split -> its name in Hugging Face datasets."""
# "none" is not among them: it is a common name of a class. pandas reads all of these as missing.
MISSING = {"", "nan", "-nan", "n/a", "na", "null", "<na>", "#n/a", "#na", "#n/a n/a"}
NO_CLASS = -1  # label of an unlabelled row, in datasets whose labels are classes


@dataclass(frozen=True)
class RowTable:
    """Columns of a file, in the order of its rows."""

    path: Path
    columns: dict[str, list[Any]]
    """Name -> values: str from TSV and CSV, any type from JSON Lines and Parquet."""
    lines: list[int]
    """Line of each row, or in Parquet its number, counted from 1."""
    notes: list[str] = field(default_factory=list)
    """Warnings about the file, each with its line."""
    unit: str = ""
    """Word in front of a row's number in messages."""

    def __len__(self) -> int:
        return len(self.lines)

    def where(self, row: int) -> str:
        """Return the file and line of a row, for messages."""
        return f"{self.path}:{self.unit}{self.lines[row]}"


class RowProblems:
    """Collector of problems with rows, which are raised as one error.

    Args:
        what: message of the error.
        fix: fix of the error.
    """

    def __init__(self, what: str, *, fix: str) -> None:
        self._what, self._fix = what, fix
        self._found: list[str] = []
        self._count = 0

    def add(self, where: str, what: str) -> None:
        """Add a problem.

        Args:
            where: file and line.
            what: description of the problem.
        """
        self._count += 1
        if self._count <= LISTED:
            self._found.append(f"{where}: {what}")

    def check(self) -> None:
        """Raise the collected problems, if there are any.

        Raises:
            DataError: with the first problems and the number of the others.
        """
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
    skip_malformed: bool = False,
) -> RowTable:
    """Read some columns of a table.

    A byte-order mark is ignored and CRLF is read as LF, both with a note; the last line may lack its end.

    Args:
        path, columns, format, header, quoting: see `open_table`.
        skip_malformed: whether to skip rows of TSV with a wrong number of fields, with a note, instead of raising. For
            QQP, whose official files contain such rows.

    Raises:
        DataError: no such file, not UTF-8, a missing column, no row, or rows that cannot be used: each with its line.
    """
    reader = open_table(path, columns, format=format, header=header, quoting=quoting)
    problems = RowProblems(f"{path} has rows that cannot be used", fix=f"fix or delete those lines of {path}")
    table = RowTable(path, {name: [] for name in columns}, [], unit=reader.unit)
    for place, row in reader.rows():
        if isinstance(row, dict):
            table.lines.append(place.line)
            for name, values in table.columns.items():
                values.append(row[name])
        elif skip_malformed and row != EMPTY_ROW:
            table.notes.append(f"{path}:{place.line}: skipped: {row}")
        else:
            problems.add(f"{path}:{reader.unit}{place.line}", row)
    problems.check()
    table.notes[:0] = reader.notes
    return _complete(table, fix="fetch or create it again")


def official_path(folder: Path, names: Sequence[str], *, need: str, fix: str) -> Path:
    """Return the first existing file of a folder.

    Args:
        folder: the folder.
        names: candidates, in order of preference.
        need: required files, for the error.
        fix: fix of the error.

    Raises:
        DataError: none exists.
    """
    for name in names:
        if (folder / name).is_file():
            return folder / name
    raise DataError(f"no such file: {folder / names[0]}", facts={"need": need, "where": folder}, fix=fix)


def official_differences(official: OfficialFile, path: Path, count: int, *, unit: str = "rows") -> list[str]:
    """Return a note if a file differs from the official one, in row count or content; empty if it does not.

    Args:
        official: row count and SHA-256 of the official file.
        path: the file.
        count: its number of rows.
        unit: word for rows, in the note.
    """
    if official.rows is not None and count != official.rows:
        return [f"{path}: {count:,} {unit}, the official file has {official.rows:,}"]
    if official.sha256 is not None and (found := file_sha256(path)) != official.sha256:
        return [f"{path}: SHA-256 {found[:8]}, the official file has {official.sha256[:8]}: other content"]
    return []


def _complete(table: RowTable, *, fix: str) -> RowTable:
    if not len(table):
        raise DataError(f"{table.path} has no row", fix=fix)
    table.notes.extend(long_texts(table, suffix=", truncated to the maximum length"))
    return table


def long_texts(table: RowTable, *, suffix: str = "") -> list[str]:
    """Return a note for each text of more than 100,000 characters, followed by `suffix`."""
    return [
        f"{table.where(row)}: a text of {len(value):,} characters{suffix}"
        for values in table.columns.values()
        for row, value in enumerate(values)
        if isinstance(value, str) and len(value) > LONG_TEXT
    ]


def texts(table: RowTable, column: str, problems: RowProblems, *, may_be_empty: bool = False) -> list[str]:
    """Return a column of texts; add a problem for each value that is not text or empty.

    Args:
        table: the table.
        column: name of the column.
        problems: receives the problems.
        may_be_empty: whether an empty text is only a note.
    """
    for row, value in enumerate(table.columns[column]):
        if not isinstance(value, str):
            kind = "missing" if value is None else f"of type {type(value).__name__}"
            problems.add(table.where(row), f"column {column!r} is not text: {kind}")
        elif not value.strip() and may_be_empty:
            table.notes.append(f"{table.where(row)}: column {column!r} has an empty text, which is kept")
        elif not value.strip():
            problems.add(table.where(row), f"column {column!r} has an empty text")
    return table.columns[column]


def numbers(table: RowTable, column: str, problems: RowProblems) -> list[float]:
    """Return a column of finite numbers; add a problem for each other value, including NaN and infinity."""
    return _converted(table, column, problems, to_number)


def classes(table: RowTable, column: str, problems: RowProblems) -> list[str]:
    """Return a column of class names; add a problem for each missing value, including NaN."""
    return _converted(table, column, problems, to_class)


def class_ids(
    table: RowTable, column: str, ids: Mapping[str, int], problems: RowProblems, unknown: Callable[[str], str]
) -> list[int]:
    """Return a column of class names as their ids; add a problem for each unknown name.

    Args:
        table: the table.
        column: name of the column.
        ids: name of a class -> its id.
        problems: receives the problems.
        unknown: returns the message about a name without an id.
    """
    found = classes(table, column, problems)
    for row, name in enumerate(found):
        if name is not None and name not in ids:
            problems.add(table.where(row), unknown(name))
    return [ids.get(name, -1) for name in found]


def label_ids(classes: Sequence[str]) -> dict[str, int]:
    """Return label in a file -> id of a model's class: its name, or its number.

    Numbers are not accepted if a name begins with one: of the classes 1 to 5, the label 1 is the first, not the second.
    """
    ids = {name: number for number, name in enumerate(classes)}
    if any(map(_NUMBERED.match, classes)):
        return ids
    return {str(number): number for number in ids.values()} | ids


def _converted(table: RowTable, column: str, problems: RowProblems, convert: Callable[[Any], Any]) -> list[Any]:
    found = []
    for row, value in enumerate(table.columns[column]):
        try:
            found.append(convert(value))
        except ValueError as problem:
            found.append(None)
            problems.add(table.where(row), f"column {column!r}: {problem}")
    return found


def to_number(value: Any) -> float:
    # A pattern, not float(): that also accepts "nan", "inf", "1_000" and digits of other alphabets.
    written = isinstance(value, str) and _NUMBER.fullmatch(value)
    if written or (isinstance(value, int | float) and not isinstance(value, bool)):
        with suppress(OverflowError):  # JSON integers may be larger than any float
            if isfinite(found := float(value)):
                return found
    raise ValueError(f"{value_text(value)} is not a finite number")


def to_class(value: Any) -> str:
    """Return a class as text, also from booleans and whole numbers of JSON and Parquet.

    Raises:
        ValueError: the value is missing, NaN, or cannot be a class.
    """
    # Parquet stores integers of a column with missing values as floats: 1.0 must be the class "1" of another file.
    if is_missing(value):
        raise ValueError(f"missing label{f' ({value!r})' if value not in (None, '') else ''}")
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int) or (isinstance(value, str) and value.strip()):
        return str(value)
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    raise ValueError(f"invalid label: {value_text(value)}")


def are_fractions(names: Collection[str]) -> bool:
    """Return whether labels are numbers that are not all whole: a regression whose switch was forgotten."""
    return all(WHOLE.fullmatch(name) or _FRACTION.fullmatch(name) for name in names) and not all(
        float(name).is_integer() for name in names
    )


def is_missing(value: Any) -> bool:
    """Return whether a label is missing: null, empty, or a mark for it that programs write, such as NaN and N/A."""
    return value is None or (isinstance(value, str) and value.strip().lower() in MISSING)


def open_dataset(name: str) -> Mapping[str, Dataset]:
    """Load a Hugging Face dataset; return its splits by our names: train, dev and, if it exists, test.

    Args:
        name: NAME[:CONFIGURATION], on the Hub or in a local folder.

    Raises:
        DataError: `datasets` is not installed, the dataset does not exist, or a split is missing.
    """
    try:
        from datasets import load_dataset
    except ImportError:
        raise DataError(
            f"cannot read the dataset {name}: `datasets` is not installed", fix="pip install datasets"
        ) from None
    owner, _, configuration = name.partition(":")
    with _errors(name):
        splits = load_dataset(owner, configuration or None)
    if missing := [SPLITS[split] for split in ("train", "dev") if SPLITS[split] not in splits]:
        raise DataError(
            f"cannot use the dataset {name}: missing split {', '.join(missing)}",
            facts={"have": ", ".join(splits)},
            fix="save its splits as Parquet, and set data.train and data.validation to the files",
        )
    return {ours: splits[theirs] for ours, theirs in SPLITS.items() if theirs in splits}


def dataset_table(name: str, split: str, dataset: Dataset, columns: Sequence[str]) -> RowTable:
    """Read columns of a split; ids of a ClassLabel become class names.

    Args:
        name: name of the dataset, for messages.
        split: our name of the split.
        dataset: the split.
        columns: names of the columns to read.

    Raises:
        DataError: a column is missing.
    """
    path = Path(f"{name}@{SPLITS[split]}")
    column_indices(str(path), dataset.column_names, columns)
    with _errors(name):
        values = {column: _named(dataset[column][:], dataset.features[column]) for column in columns}
    table = RowTable(path, values, list(range(1, len(dataset) + 1)), unit="row ")
    return _complete(table, fix="name another dataset")


def is_labelled(dataset: Dataset, label: str) -> bool:
    """Return whether a split has labels; test sets often have a label column that contains only -1."""
    return label in dataset.column_names and any(value not in (None, NO_CLASS) for value in dataset[label])


def _named(values: list[Any], feature: Any) -> list[Any]:
    names = getattr(feature, "names", None)  # of a ClassLabel
    if names is None:
        return values
    return [None if value in (None, NO_CLASS) else names[value] for value in values]


@contextmanager
def _errors(name: str) -> Iterator[None]:
    """Convert errors of `datasets` and of the network to DataError."""
    try:
        yield
    except (OSError, ValueError, RuntimeError) as problem:
        why = re.sub(r"\s+", " ", problem_text(problem))
        raise DataError(
            f"cannot read the dataset {name}",
            facts={"why": why[:300]},
            fix="use NAME[:CONFIGURATION] of huggingface.co/datasets, or set data.train and data.validation",
        ) from None
