"""Count the rows of files of tasks and predictions.

Plans need these counts for steps and time. A plan must be quick, so JSON is not parsed: questions of SQuAD and
sentences of NER are counted by markers in the bytes.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from importlib.util import find_spec
from io import TextIOWrapper
from pathlib import Path

from orchestrator.support.formatting import Rows, duration_text
from train_jobs.artifacts.csv_tables import table_format
from train_jobs.artifacts.regular_files import open_regular, read_bytes
from train_jobs.artifacts.task_files import TaskFile
from train_jobs.artifacts.unreadable import unreadable
from train_jobs.config.fields import Config
from train_jobs.config.finetune import ExamplesConfig
from train_jobs.config.tasks import TASKS

QUESTION = b'"question"'  # a key: within a text its quotes are escaped
DOCUMENT = b"-DOCSTART-"
BLOCK = 1 << 20


class RowEstimates(Config):
    """Time and cost of work on rows: rules of thumb."""

    tokens_per_row: float | None
    """Average tokens of a row, an upper estimate; None: this machine cannot count the rows."""
    seconds: float | None
    """Duration of all runs and evaluations; None: the rows or the device are unknown."""
    cost: float | None
    """Cost of that time in USD; None: no price."""

    def time_rows(self) -> Rows:
        """Return the row of the duration in a plan for humans; empty if the duration is unknown."""
        if self.seconds is None:
            return []
        cost = f", ${self.cost:,.2f}" if self.cost is not None else ""
        tokens = f", {self.tokens_per_row:.0f} tokens a row at most" if self.tokens_per_row else ""
        return [("time", f"{duration_text(self.seconds)}{cost}{tokens} (rule of thumb)")]


def count_rows(file: TaskFile, data: ExamplesConfig) -> int | None:
    """Return the rows of a file of a task; see `count_table`."""
    form: str | None
    if (entry := TASKS.get(file.task)) is not None:
        form = entry.kind.form
    else:
        form = table_format(file.path) if data.format == "auto" else data.format
    header = entry is None or all(official.header is None for official in entry.official(file.split))
    return count_table(file.path, form, quoting=data.quoting, header=header)


def count_table(path: Path, form: str | None, *, quoting: bool | None, header: bool) -> int | None:
    """Return the rows of a table, questions of SQuAD or sentences of NER; None: only the job can count them.

    Args:
        path: the file.
        form: tsv, csv, jsonl, parquet, lines, squad or conll; None: unknown.
        quoting: of tsv and csv, as `data.quoting`.
        header: whether the first line of tsv and csv is a header.

    Raises:
        DataError: it cannot be read.
    """
    try:
        if form == "squad":
            return read_bytes(path).count(QUESTION)
        if form == "conll":
            return _sentences(path)
        if form == "parquet":
            return _parquet_rows(path)
        if form in {"jsonl", "lines"}:
            return _lines(path)
        if form not in {"tsv", "csv"}:
            return None
        quoted = form == "csv" if quoting is None else quoting
        return max((_quoted_rows(path, form) if quoted else _lines(path)) - header, 0)
    except OSError as problem:
        raise unreadable(path, problem) from None


def portable_names(paths: Sequence[Path]) -> dict[str, Path]:
    """Return unique names for files in one folder: name -> file. Equal names get a number."""
    names = [path.name for path in paths]
    return {
        (name if names.count(name) == 1 else f"{number}-{name}"): path
        for number, (name, path) in enumerate(zip(names, paths, strict=True))
    }


def _quoted_rows(path: Path, form: str) -> int:
    with TextIOWrapper(open_regular(path), "utf-8", errors="replace", newline="") as stream:
        return sum(1 for row in csv.reader(stream, delimiter="\t" if form == "tsv" else ",") if row)


def _parquet_rows(path: Path) -> int | None:
    if find_spec("pyarrow") is None:
        return None
    from pyarrow import ArrowException
    from pyarrow.parquet import read_metadata

    with open_regular(path) as stream:
        try:
            return int(read_metadata(stream).num_rows)
        except (ArrowException, OSError, UnicodeDecodeError):
            return None  # the job reports the problem


def _lines(path: Path) -> int:
    """Count lines; the last one may lack its newline."""
    count, last = 0, b"\n"
    with open_regular(path) as stream:
        while block := stream.read(BLOCK):
            count += block.count(b"\n")
            last = block[-1:]
    return count + (last != b"\n")


def _sentences(path: Path) -> int:
    """Count blocks of non-empty lines, except those that begin a document."""
    count, inside = 0, False
    with open_regular(path) as stream:
        for line in stream:
            word = bool(line.strip()) and not line.startswith(DOCUMENT)
            count += word and not inside
            inside = word
    return count
