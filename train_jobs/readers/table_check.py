"""A check of the user's own tables before anything starts: all problems of all files, each with its fix.

The plan on the laptop reads the beginning of each file, or all of it on request. Readers and conversions are those of
the job, so what passes a complete check is read by the job too.
"""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from train_jobs.artifacts.csv_tables import SEPARATORS, other_separator, table_format
from train_jobs.config import DataError, PredictConfig, closest, did_you_mean, in_shell
from train_jobs.config.errors import python_command
from train_jobs.config.finetune import ColumnsConfig
from train_jobs.config.predict import EMBEDDINGS, FILL_MASK, MASK, QUESTION_ANSWERING, TABLES
from train_jobs.config.privacy import classes_text, header_text, is_header, is_name
from train_jobs.readers.class_labels import LabelProblem, label_problem
from train_jobs.readers.file_kind import check_kind
from train_jobs.readers.findings import LINE, Findings
from train_jobs.readers.row_readers import (
    JsonReader,
    Reader,
    TableReader,
    json_row,
    open_table,
    strip_line_end,
)
from train_jobs.readers.tables import MISSING, are_fractions, is_missing, label_ids, to_class, to_number

QUICK_BYTES = 4 << 20  # of each file: together with its other work a plan takes about a second
QUICK_ROWS = 20_000  # of Parquet
CHARACTERS_PER_TOKEN = 4.0  # of English in WordPiece, roughly
FEW_CLASSES = 20
GUESSED_ROWS = 200  # rows that decide which column is meant
MOST_GUESSED = 1000  # columns that are considered for that
_DECIMAL_COMMA = re.compile(r"\s*[-+]?\d+,\d+\s*")
PANDAS = "import pandas as pd"
_MORE = re.compile(r" and [\d,]+ more$")  # columns that a message does not name
_WHOLE = re.compile(r"\s*[-+]?\d+\s*")


@dataclass
class CheckedTable:
    """Facts about a table that was checked."""

    path: Path
    rows: int = 0
    """Rows that were read."""
    complete: bool = True
    """Whether all rows were read."""
    labels: Counter[str] = field(default_factory=Counter)
    """Class -> rows; empty for a regression and for a table without labels."""
    texts: dict[int, int] = field(default_factory=dict)
    """Hash of a text or pair -> rows with it."""
    lengths: list[int] = field(default_factory=list)
    """Characters of the texts of each row."""
    notes: list[str] = field(default_factory=list)
    """Warnings about the file, each with its place."""


def check_tables(
    columns: ColumnsConfig, files: Mapping[str, Path], *, most_bytes: int | None = QUICK_BYTES
) -> dict[str, CheckedTable]:
    """Check the tables of a task of the user's own.

    Args:
        columns: names of the columns, and format.
        files: split -> file; `test` may lack labels.
        most_bytes: bytes of each file to read. None: all.

    Returns:
        Split -> what was seen.

    Raises:
        DataError: all problems of all files, each with its place and fix.
    """
    findings = Findings()
    seen: dict[str, CheckedTable] = {}
    for split, path in files.items():
        before = len(findings)
        checked = _TableCheck(columns, path, findings, most_bytes)
        table = checked.run(labels="optional" if split == "test" else "needed")
        if len(findings) == before:
            _check_labels(columns, table, seen.get("train"), findings, defines=split == "train")
        if len(findings) == before:
            seen[split] = table
    findings.check("the tables")
    return seen


@dataclass(frozen=True)
class PredictedTable:
    """Needs of a prediction of its tables, by its model.

    Attributes:
        kind: kind of prediction, which decides the columns.
        classes: names of the model's classes. None: it predicts numbers, or its labels are not scored.
        numbers: whether labels are numbers.
    """

    kind: str
    classes: Sequence[str] | None = None
    numbers: bool = False


def check_inputs(
    job: PredictConfig, table: PredictedTable, *, most_bytes: int | None = QUICK_BYTES
) -> dict[str, CheckedTable]:
    """Check the tables of a prediction or an evaluation; inputs of other formats are not read.

    Args:
        job: names of files and columns.
        table: what the model needs of them.
        most_bytes: bytes of each file to read. None: all.

    Returns:
        Path -> what was seen.

    Raises:
        DataError: all problems of all files, each with its place and fix.
    """
    data, findings = job.data, Findings()
    roles: dict[str, str | None] = {"text": data.text, "pair": data.pair}
    if table.kind == QUESTION_ANSWERING:
        roles = {"question": data.question, "context": data.context}
    first, second = roles.values()
    scored = job.evaluate and (table.classes is not None or table.numbers)
    seen: dict[str, CheckedTable] = {}
    for path in job.input:
        if (form := job.form(path, table.kind)) not in TABLES:
            continue
        named: dict[str, Any] = {
            "text": first,
            "pair": second,
            "label": data.label,
            "regression": table.numbers,
            "format": form,
        }
        # without its checks: of questions, the label may be called as one of their columns, since none is read
        columns = ColumnsConfig.model_construct(None, **named, quoting=data.quoting)
        masked = table.kind == FILL_MASK and not job.evaluate
        check = _TableCheck(columns, path, findings, most_bytes, roles, data.header, data.keep, masked=masked)
        before = len(findings)
        found = check.run(labels="needed" if scored else "unused")
        if len(findings) == before and table.classes is not None:
            _check_known(data.label, found, table.classes, findings)
        if len(findings) == before:
            seen[str(path)] = found
    findings.check("the tables")
    return seen


def _check_known(label: str, table: CheckedTable, classes: Sequence[str], findings: Findings) -> None:
    """Add the labels that a model cannot predict."""
    known = label_ids(classes)
    if unknown := sorted(name for name in table.labels if name not in known):
        rows = sum(table.labels[name] for name in unknown)
        have = "1 row has a label" if rows == 1 else f"{rows:,} rows have labels"
        guess = did_you_mean(unknown[0], classes) if len(unknown) == 1 else ""
        what = f"column {label!r}: {have} that the model does not know: {classes_text(unknown)}{guess}"
        findings.add(table.path, "", what, "--column label=NAME, or rename or delete these labels")


class _TableCheck:
    """The check of one file."""

    def __init__(
        self,
        columns: ColumnsConfig,
        path: Path,
        findings: Findings,
        most_bytes: int | None,
        roles: Mapping[str, str | None] | None = None,
        header: Sequence[str] | None = None,
        kept: Sequence[str] = (),
        *,
        masked: bool = False,
    ) -> None:
        self._columns, self._path, self._findings, self._most = columns, path, findings, most_bytes
        self._roles = {**(roles or {"text": columns.text, "pair": columns.pair}), "label": columns.label}
        self._kept, self._masked = kept, masked
        self._form = (table_format(path) or "") if columns.format == "auto" else columns.format
        self._settings: dict[str, Any] = {"format": self._form or None, "quoting": columns.quoting, "header": header}
        self._numbers = self._others = 0
        self._long_rows: list[tuple[str, str, str]] = []
        self._labelled = True

    def run(self, *, labels: Literal["needed", "optional", "unused"]) -> CheckedTable:
        """Read the table.

        Args:
            labels: optional: read if the table has their column.
        """
        table = CheckedTable(self._path)
        if self._form != "parquet" and not check_kind(self._path, self._findings, form=self._form, table=True):
            return table
        try:
            reader = self._bounded(open_table(self._path, [], **self._settings))
            names = self._names(reader)
            wanted = [name for name in (self._columns.text, self._columns.pair) if name is not None]
            self._labelled = labels == "needed" or (labels == "optional" and self._columns.label in names)
            if self._labelled and self._columns.label in names and self._is_empty(self._columns.label):
                self._labelled = False
                if labels == "needed":
                    what = f"column {self._columns.label!r} is empty"
                    self._findings.add(self._path, "", what, "--column label=NAME, or add the labels")
            wanted = list(dict.fromkeys([*wanted, *([self._columns.label] if self._labelled else []), *self._kept]))
            if self._form == "jsonl" or self._has_columns(names, wanted):
                self._read(table, self._bounded(open_table(self._path, wanted, **self._settings)))
        except DataError as problem:
            self._findings.add_error(self._path, problem)
        return table

    def _is_empty(self, name: str) -> bool:
        """Return whether all rows lack a value; False if they were not all read."""
        reader = self._bounded(open_table(self._path, [name], **self._settings))
        rows = 0
        for _, row in reader.rows():
            if isinstance(row, dict):
                if not is_missing(row[name]):
                    return False
                rows += 1
        return rows > 0 and not reader.stopped

    def _bounded(self, reader: Reader) -> Reader:
        reader.stop = self._most
        return reader

    def _names(self, reader: Reader) -> list[str]:
        if self._form != "jsonl":
            return reader.names()
        found = (json_row(strip_line_end(line)) for _, line in islice(JsonReader(self._path, []).lines(), GUESSED_ROWS))
        return list(dict.fromkeys(name for row in found if isinstance(row, dict) for name in row))

    def _has_columns(self, names: list[str], wanted: list[str]) -> bool:
        """Return whether the header has the columns; else add why not."""
        missing = [name for name in wanted if name not in names]
        if not missing:
            return True
        if self._form in SEPARATORS and (other := self._other_separator()):
            name, fix = other
            self._findings.add(self._path, "1", f"the fields are separated by {name}", fix)
        elif self._form in SEPARATORS and len(missing) == len(wanted) and self._is_row(names, wanted):
            command = f"sed -i '1i {self._header_for(names)}' {in_shell(self._path)}"
            if len(names) > MOST_GUESSED:
                command = "add a first line with the names of all columns"
            self._findings.add(self._path, "1", "the first line is a row: the header is missing", command)
        else:
            # A first line without any known name may be a row, whose fields are private.
            shown = self._form not in SEPARATORS or is_header(names, wanted) or len(missing) < len(wanted)
            guesses = self._guesses(names) if shown else {}
            for name in missing:
                self._missing_column(name, names, wanted, guesses, shown=shown)
        return False

    def _is_row(self, names: list[str], wanted: list[str]) -> bool:
        """Return whether the first line is a row: a field is no name, or occurs again below, as classes do."""
        if is_header(names, wanted):
            return False
        numbered = [f"column{number}" for number in range(1, len(names) + 1)]
        columns = zip(names, self._values(numbered, header=numbered).values(), strict=False)
        return not all(map(is_name, names)) or any(name in found[1:] for name, found in columns)

    def _missing_column(
        self, name: str, names: list[str], wanted: list[str], guesses: dict[str, str], *, shown: bool
    ) -> None:
        role = self._role(name) or "id"
        named = list(filter(is_name, names)) if shown else []
        guess = closest(name, named) or guesses.get(role)
        what = f"unknown column {name!r}{did_you_mean(name, named)}; have {header_text(names, wanted)}"
        fix = f"--column {role}={in_shell(guess)}" if guess in named else f"--column {role}=NAME"
        self._findings.add(self._path, "1" if self._form in SEPARATORS else "", what, fix)

    def _role(self, name: str) -> str | None:
        """Return the word that `--column` has for a column; None: the column has no role."""
        return next((role for role, column in self._roles.items() if column == name), None)

    def _other_separator(self) -> tuple[str, str] | None:
        """Return the name of the separator that the first line seems to have, and the fix."""
        with self._path.open(encoding="utf-8-sig", errors="replace") as stream:
            first = stream.readline()
        if (other := other_separator(first, SEPARATORS[self._form])) is None:
            return None
        sign, name = other
        form = next((form for form, one in SEPARATORS.items() if one == sign), None)
        return name, f"--set data.format={form}" if form else self._pandas("", sep=sign)

    def _header_for(self, names: list[str]) -> str:
        """Return the header that a table without one seems to need."""
        numbered = [f"column{number}" for number in range(1, len(names) + 1)]
        guesses = self._guesses(numbered, header=numbered)
        roles = {guess: getattr(self._columns, role) for role, guess in guesses.items()}
        separator = SEPARATORS[self._form].replace("\t", "\\t")
        return separator.join(roles.get(name, name) for name in numbered)

    def _guesses(self, names: list[str], header: list[str] | None = None) -> dict[str, str]:
        """Return the columns that texts and labels seem to be in: the longest on average, and that with few values."""
        values = self._values(names, header)
        mean = {name: sum(map(len, found)) / len(found) for name, found in values.items() if found}
        if len(mean) < 2:
            return {}
        text = max(mean, key=lambda name: mean[name])
        kinds = {name: len(set(found)) for name, found in values.items() if found and name != text}
        few = {name: count for name, count in kinds.items() if 2 <= count <= max(FEW_CLASSES, len(values[name]) // 10)}
        return {"text": text, **({"label": min(few, key=lambda name: few[name])} if few else {})}

    def _values(self, names: list[str], header: list[str] | None = None) -> dict[str, list[str]]:
        """Return the values of the first columns in the first rows; none if they cannot be read."""
        names = names[:MOST_GUESSED]
        values: dict[str, list[str]] = {name: [] for name in names}
        with suppress(DataError):
            settings = self._settings if header is None else {**self._settings, "header": header}
            reader = self._bounded(open_table(self._path, names, **settings))
            for _, row in islice(reader.rows(), GUESSED_ROWS):
                for name, value in row.items() if isinstance(row, dict) else ():
                    values[name].append(str(value))
            return values
        return {name: [] for name in names}

    def _read(self, table: CheckedTable, reader: Reader) -> None:
        rows = reader.rows() if self._most is None or self._form != "parquet" else islice(reader.rows(), QUICK_ROWS)
        for place, row in rows:
            table.rows += 1
            where = f"{reader.unit}{place.line}"
            if isinstance(row, str):
                self._bad_row(where, row)
                continue
            self._check_texts(table, where, row)
            if self._labelled:
                self._check_label(table, where, row[self._columns.label])
        table.complete = not reader.stopped and (self._form != "parquet" or table.rows < QUICK_ROWS or not self._most)
        if not table.rows and not reader.stopped:
            self._findings.add(self._path, "", "has no row", "give a file with rows below its header")
        if self._columns.regression and self._others and not self._numbers:
            self._findings.add(
                self._path, "", "labels are names of classes, not numbers", "--set data.regression=false"
            )
        if isinstance(reader, TableReader):
            self._check_swallowed(table, reader)

    def _bad_row(self, where: str, what: str) -> None:
        show = f"sed -n {LINE}p {in_shell(self._path)} shows a line, sed -i {LINE}d {in_shell(self._path)} deletes it"
        if what.startswith("not JSON: "):
            what = "not a JSON object"
        elif what.startswith("missing column "):
            missing, _, have = what.removeprefix("missing column ").partition("; have ")
            role = self._role(missing.strip("'")) or ("text" if not self._kept else "id")
            names = _MORE.sub("", have).split(", ")
            guess = closest(missing.strip("'"), names) or self._guesses(names).get(role, "NAME")
            show = f"--column {role}={in_shell(guess)}, or add the field to these lines"
        self._findings.add(self._path, where, what, show)

    def _check_texts(self, table: CheckedTable, where: str, row: Mapping[str, Any]) -> None:
        names = [name for name in (self._columns.text, self._columns.pair) if name is not None]
        found = [row[name] for name in names]
        for name, value in zip(names, found, strict=True):
            if not isinstance(value, str):
                kind = "is missing" if value is None else f"is of type {type(value).__name__}, not text"
                self._findings.add(self._path, where, f"column {name!r}: the text {kind}", self._drop_rows())
            elif not value.strip():
                self._findings.add(self._path, where, f"column {name!r}: an empty text", self._drop_rows())
            elif self._masked and all(isinstance(one, str) and MASK not in one for one in found):
                what = f"column {name!r}: no {MASK} in the text"
                fix = f"put {MASK} in place of the word to predict, or --set task={EMBEDDINGS}"
                self._findings.add(self._path, where, what, fix)
                break
            elif "\n" in value:
                self._long_rows.append((where, name, value))
        key = hash(tuple(map(str, found)))
        table.texts[key] = table.texts.get(key, 0) + 1
        table.lengths.append(sum(len(value) for value in found if isinstance(value, str)))

    def _check_label(self, table: CheckedTable, where: str, value: Any) -> None:
        name = self._columns.label
        if is_missing(value):
            self._findings.add(self._path, where, f"column {name!r}: missing label", self._drop_rows())
            return
        try:
            if self._columns.regression:
                to_number(value)
                self._numbers += 1
            else:
                table.labels[to_class(value)] += 1
        except ValueError as problem:
            self._others += 1
            if isinstance(value, str) and _DECIMAL_COMMA.fullmatch(value):
                self._numbers += 1
                what = f"column {name!r}: a number with a decimal comma"
                self._findings.add(self._path, where, what, self._decimal_points())
            elif self._numbers or not isinstance(value, str):
                self._findings.add(self._path, where, f"column {name!r}: {problem}", self._drop_rows())

    def _check_swallowed(self, table: CheckedTable, reader: TableReader) -> None:
        """Add the rows whose quoted text contains other rows: a quotation mark that is not closed."""
        header = reader.names()
        for where, name, value in self._long_rows:
            first, *inside = (_fields(line, SEPARATORS[self._form]) for line in value.split("\n"))
            at = header.index(name)
            # From the mark to the end of its row, whole rows, and the begin of the row with the mark that closes it. A
            # letter may have lines with as many commas, but hardly all of them, and with names of classes at their end.
            rows = [[*header[:at], *first], *inside[:-1], [*inside[-1], *header[at + 1 :]]]
            if len(header) == 1 or any(len(row) != len(header) for row in rows):
                continue
            swallowed = max(len(rows) - 2, 1)
            if self._labelled and not self._columns.regression:
                label = header.index(self._columns.label)
                known = {*table.labels, header[label]}
                if not all(row[label] in known for row in rows):
                    continue
                what = f"a quotation mark that is not closed: the row contains {swallowed:,} other rows"
                fix = f'sed -n {LINE}p {in_shell(self._path)} shows it: close it, or double a mark inside a field ("")'
                self._findings.add(self._path, where, what, fix)
            else:
                table.notes.append(
                    f"{self._path}:{where}: a text whose lines look like {swallowed:,} other rows: is its quotation"
                    " mark closed?"
                )

    def _drop_rows(self) -> str:
        """Return a command that keeps only rows with texts and a label."""
        names = [name for name in (self._columns.text, self._columns.pair) if name is not None]
        kept = [f"table[{name!r}].map(lambda value: isinstance(value, str) and bool(value.strip()))" for name in names]
        label = f"table[{self._columns.label!r}]"
        if self._labelled and self._columns.regression:
            kept.append(f"pd.to_numeric({label}, errors='coerce').notna()")
        elif self._labelled:
            known = f"{label}.astype(str).str.strip().str.lower().isin({sorted(MISSING)})"
            kept.append(f"{label}.notna() & ~{known}")
        return self._pandas(f".loc[lambda table: {' & '.join(kept)}]")

    def _decimal_points(self) -> str:
        """Return a command that writes numbers with a point in place of the comma."""
        label = repr(self._columns.label)
        step = f".assign(**{{{label}: lambda table: table[{label}].astype(str).str.replace(',', '.')}})"
        return self._pandas(step)

    def _pandas(self, step: str, **reading: Any) -> str:
        """Return a command that writes a repaired copy of the table."""
        path, copy = self._path, str(self._path.with_name(f"{self._path.stem}.fixed{self._path.suffix}"))
        # Every value that stays must stay the same: pandas writes whole numbers as 1.0 where others are missing, and
        # reads texts such as None as missing.
        if self._form == "jsonl":
            read = f"pd.read_json({str(path)!r}, lines=True, dtype=False, convert_dates=False)"
            written = f"to_json({copy!r}, orient='records', lines=True, double_precision=15)"
            return python_command(f"{PANDAS}; {read}{step}.{written}")
        if self._form == "parquet":
            return python_command(f"{PANDAS}; pd.read_parquet({str(path)!r}){step}.to_parquet({copy!r})")
        separator = SEPARATORS.get(self._form, ",")
        reading = {"sep": separator, **reading} if separator != "," else reading
        reading |= {"dtype": "str", "keep_default_na": False}
        writing: dict[str, Any] = {} if separator == "," else {"sep": separator}
        if self._columns.quoting is False or (self._columns.quoting is None and self._form == "tsv"):
            reading |= {"quoting": csv.QUOTE_NONE}
            writing |= {"quoting": csv.QUOTE_NONE}
        if header := self._settings["header"]:  # the file has no line of names, and its copy must have none either
            reading |= {"header": None, "names": list(header)}
            writing |= {"header": False}
        read, out = ("".join(f", {key}={value!r}" for key, value in some.items()) for some in (reading, writing))
        return python_command(f"{PANDAS}; pd.read_csv({str(path)!r}{read}){step}.to_csv({copy!r}, index=False{out})")


def _fields(line: str, separator: str) -> list[str]:
    try:
        return next(csv.reader([line], delimiter=separator), [])
    except csv.Error:
        return []


def _check_labels(
    columns: ColumnsConfig, table: CheckedTable, train: CheckedTable | None, findings: Findings, *, defines: bool
) -> None:
    """Check the classes of a table as a whole; `defines`: it is the training table, whose labels are the classes."""
    if columns.regression or not table.labels:
        return
    where = f"column {columns.label!r}"
    names = sorted(table.labels)
    if all(_WHOLE.fullmatch(name) or _DECIMAL_COMMA.fullmatch(name) for name in names) and any(
        map(_DECIMAL_COMMA.fullmatch, names)
    ):
        fix = _TableCheck(columns, table.path, findings, None)._decimal_points()
        findings.add(
            table.path, "", f"{where}: numbers with a decimal comma", f"{fix}; then --set data.regression=true"
        )
        return
    if train is not None:
        unknown = [name for name in names if name not in train.labels]
        if unknown and train.complete:
            rows = sum(table.labels[name] for name in unknown)
            have = "1 row has a label" if rows == 1 else f"{rows:,} rows have labels"
            what = f"{where}: {have} that {train.path} lacks: {classes_text(unknown)}"
            findings.add(table.path, "", what, f"add such rows to {train.path}, or delete these")
        return
    problem = label_problem(columns, table.labels, complete=table.complete) if defines else None
    if problem is None:
        return
    if problem.texts and len(table.texts) <= FEW_CLASSES:
        swap = f"--column text={in_shell(columns.label)} --column label={in_shell(columns.text)}"
        what = f"columns {columns.text!r} and {columns.label!r} are swapped: the labels are texts, the texts repeat"
        problem = LabelProblem(what, swap)
    findings.add(table.path, "", problem.what, problem.fix)


def table_warnings(columns: ColumnsConfig, seen: Mapping[str, CheckedTable]) -> Iterator[str]:
    """Yield warnings about tables that can be read: classes and rows that are probably wrong, texts in two splits."""
    train = seen.get("train")
    for table in seen.values():
        yield from table.notes
    if train is not None:
        yield from _class_warnings(columns, train)
    for split, table in seen.items():
        if train is None or table is train:
            continue
        if both := sum(rows for key, rows in table.texts.items() if key in train.texts):
            yield (
                f"{both:,} of {table.rows:,} rows of {table.path} have a text that is also in {train.path}: the scores"
                f" of {split} are too high; delete them from one of the files"
            )


def _class_warnings(columns: ColumnsConfig, train: CheckedTable) -> Iterator[str]:
    names = sorted(train.labels)
    if are_fractions(names):
        yield (
            f"{train.path}: column {columns.label!r} has {len(names):,} different numbers, each a class of its own; to"
            " predict a number: --set data.regression=true"
        )
        return
    if train.complete and (once := [name for name in names if train.labels[name] == 1]):
        them = "class has" if len(once) == 1 else "classes have"
        yield (
            f"{train.path}: {len(once)} {them} a single row, too few to learn and to score:"
            f" {classes_text(once)}; add rows, or merge classes"
        )
    spellings = Counter(name.strip().lower() for name in names)
    if twice := [name for name, count in spellings.items() if count > 1]:
        label = columns.label
        step = f".assign(**{{{label!r}: lambda table: table[{label!r}].str.strip().str.lower()}})"
        fix = _TableCheck(columns, train.path, Findings(), None)._pandas(step)
        yield (
            f"{train.path}: classes that differ only in case or spaces count as different classes:"
            f" {classes_text(twice)}; {fix}"
        )


def length_warnings(seen: Mapping[str, CheckedTable], max_length: int, positions: int) -> Iterator[str]:
    """Yield a warning if most texts are longer than the sequences of a model.

    Args:
        seen: what was seen of the tables.
        max_length: maximum tokens of a sequence; the rest of a text is dropped.
        positions: tokens that the model can read.
    """
    lengths = [characters / CHARACTERS_PER_TOKEN for table in seen.values() for characters in table.lengths]
    longer = sum(length > max_length for length in lengths)
    if not lengths or longer <= len(lengths) / 2:
        return
    middle = sorted(lengths)[len(lengths) // 2]
    share = f"{longer / len(lengths):.0%} of the texts are longer than {max_length} tokens (half of them than"
    fix = (
        f"--set data.max_length={min(positions, max(round(middle), max_length + 1))}"
        if max_length < positions
        else "split them into rows of a paragraph, or pretrain with data.sequence_length=512"
    )
    yield f"{share} {middle:,.0f}, an estimate), and the rest of each is dropped: {fix}"


def checked_text(seen: Mapping[str, CheckedTable]) -> str:
    """Return how much of the tables was read, for a plan."""
    rows = sum(table.rows for table in seen.values())
    if all(table.complete for table in seen.values()):
        return f"all {rows:,} rows"
    return f"the first {rows:,} rows; --check all reads every row"
