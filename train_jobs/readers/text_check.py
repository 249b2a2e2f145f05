"""A check of the text of a pretraining before anything starts: all problems of all files, each with its fix.

The plan on the laptop reads some of each file, or all of it on request. Parquet, datasets by name and files compressed
with zstd are left to the job.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO

from train_jobs.artifacts.csv_tables import DOUBLED, SEPARATORS, UNBALANCED, TableRows, carriage_returns
from train_jobs.artifacts.remote_files import TextPath, sibling
from train_jobs.artifacts.text_files import (
    UTF16_MARKS,
    SkippedFiles,
    SourceFile,
    open_unpacked,
    skipped_files,
    source_files,
)
from train_jobs.config.errors import DataError, closest, did_you_mean, in_shell
from train_jobs.config.prepare import SourceConfig
from train_jobs.config.privacy import is_name, names_text
from train_jobs.readers.file_kind import check_kind
from train_jobs.readers.findings import LINE, Findings

QUICK_BYTES = 4 << 20  # of all files together: together with its other work a plan takes about a second
LEAST_BYTES = 16 << 10  # of each file
QUICK_FILES = 256
LONGEST_LINE = 32 << 20  # bytes


class CheckedText:
    """The part of a text that was checked."""

    def __init__(self) -> None:
        self.files = self.all_files = self.read_bytes = 0
        self.complete = True
        self.skipped: list[SkippedFiles] = []

    def text(self) -> str:
        """Return it for a plan."""
        others = [
            f"in {one.folder} {one.skipped:,} other {'file' if one.skipped == 1 else 'files'} not read: {one.names}"
            for one in self.skipped
        ]
        return "; ".join([self._read(), *others])

    def warnings(self) -> Iterator[str]:
        """Yield warnings about folders of which most files are not read."""
        for one in self.skipped:
            if one.skipped > one.read:
                part = f"{one.skipped:,} of {one.read + one.skipped:,} files"
                fix = f"; to read more: {one.fix}" if one.fix else ""
                yield f"{part} in {one.folder} are not read: {one.names}{fix}"

    def _read(self) -> str:
        if self.complete:
            return f"all of {self.all_files:,} {'file' if self.all_files == 1 else 'files'}"
        part = f"the beginning of {self.files:,} of {self.all_files:,} files"
        return f"{part} ({self.read_bytes / 1e6:.1f} MB); --check all reads everything"


def check_text(sources: Sequence[SourceConfig], *, everything: bool = False) -> CheckedText:
    """Check the files of all sources.

    Args:
        sources: sources of text.
        everything: whether to read all files to their ends.

    Raises:
        DataError: all problems of all files, each with its place and fix.
    """
    findings, seen = Findings(), CheckedText()
    found: list[tuple[SourceConfig, SourceFile]] = []
    every: set[TextPath] = set()
    listed: list[SourceConfig] = []
    for source in (source for source in sources if source.dataset is None):
        try:
            files = source_files(source)
        except DataError as problem:
            if len(sources) == 1:
                raise  # with its facts
            findings.add_error(source.path[0], problem)
            continue
        listed.append(source)
        every.update(file.path for file in files)
        empty = [file for file in files if file.path.stat().st_size == 0]
        for file in empty if len(empty) == len(files) else ():
            findings.add(file.path, "", "is empty", "give files with text: --data PATH")
        found += [(source, file) for file in files if file not in empty]
    seen.all_files = len(found)
    seen.skipped = skipped_files(listed, every)
    chosen = found if everything else found[:: -(-len(found) // QUICK_FILES)] if found else []
    seen.complete = len(chosen) == len(found)
    most = None if everything else max(QUICK_BYTES // max(len(chosen), 1), LEAST_BYTES)
    for source, file in chosen:
        try:
            _check_file(source, file, most, findings, seen)
        except DataError as problem:
            findings.add_error(file.path, problem)
    findings.check("the text")
    return seen


def _check_file(
    source: SourceConfig, file: SourceFile, most: int | None, findings: Findings, seen: CheckedText
) -> None:
    seen.files += 1
    if file.format == "parquet" or file.compression == "zstd":
        return
    if file.compression is None and not check_kind(file.path, findings, form=file.format, table=False):
        return
    with open_unpacked(file.path, file.compression) as stream:
        if stream.read(2) in UTF16_MARKS:
            return  # UTF-16 with its mark is read by the job
        stream.seek(0)
        lines = _lines(file.path, stream, most, findings, seen)
        if file.format == "jsonl":
            _check_objects(source, file.path, lines, findings)
        elif file.format in SEPARATORS:
            whole = most is None or (file.compression is None and file.path.stat().st_size <= most)
            _check_table(file, lines, findings, whole=whole)
        else:
            for _ in lines:
                pass


def _lines(
    path: TextPath, stream: BinaryIO, most: int | None, findings: Findings, seen: CheckedText
) -> Iterator[tuple[int, str]]:
    """Yield number and text of each line; add the first one that is not UTF-8."""
    done, number = 0, 0
    try:
        while raw := stream.readline(LONGEST_LINE):
            number += 1
            done += len(raw)
            try:
                text = raw.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError:
                copy = in_shell(sibling(path, f"{path.stem}.utf8{path.suffix}"))
                fix = f"iconv -f latin1 -t utf-8 {in_shell(path)} > {copy}"
                findings.add(path, str(number), "is not UTF-8", fix)
                return
            yield number, text.removesuffix("\n").removesuffix("\r")
            if most is not None and done >= most:
                seen.complete = seen.complete and not stream.read(1)
                return
    except (OSError, EOFError) as problem:
        findings.add(path, str(number + 1), f"cannot be read: {type(problem).__name__}", "download it again")
    finally:
        seen.read_bytes += done


def _check_objects(source: SourceConfig, path: TextPath, lines: Iterator[tuple[int, str]], findings: Findings) -> None:
    name = in_shell(path)
    delete = f"sed -n {LINE}p {name} shows a line, sed -i {LINE}d {name} deletes it"
    for number, line in lines:
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            findings.add(path, str(number), "not a JSON object", delete)
            continue
        if not isinstance(row, dict):
            findings.add(path, str(number), "not a JSON object", delete)
        elif source.column not in row:
            shown = row if all(map(is_name, row)) else {}  # a guess shows nothing that `names_text` withholds
            near = did_you_mean(source.column, shown)
            what = f"no field {source.column!r}{near}; have {names_text(list(row), none='no fields')}"
            guess = closest(source.column, shown) or _longest(shown) or "NAME"
            findings.add(path, str(number), what, f"--column {in_shell(guess)}")
        elif row[source.column] is not None and not isinstance(row[source.column], str):
            what = f"field {source.column!r} is of type {type(row[source.column]).__name__}, not text"
            findings.add(path, str(number), what, "--column NAME of a field with text")


def _longest(row: dict[str, Any]) -> str | None:
    """Return the field with the longest text."""
    texts = {name: len(value) for name, value in row.items() if isinstance(value, str)}
    return max(texts, key=lambda name: texts[name]) if texts else None


def _check_table(file: SourceFile, lines: Iterator[tuple[int, str]], findings: Findings, *, whole: bool) -> None:
    """Read the rows of a table as the job does; its column was found when the file was identified.

    Args:
        file: the table.
        lines: number and text of its lines, as far as they are read.
        findings: receives the problems.
        whole: whether all lines are read; else the last row may be incomplete.
    """
    rows = TableRows((f"{line}\n" for _, line in lines), SEPARATORS[file.format])
    try:
        width = len(next(rows, []))
        found = ((len(row), rows.line) for row in rows if row)
        fields, end = next(found, (width, 0))
        for after in (*found, *([None] if whole else [])):
            if fields != width:
                what = f"a row has {fields} fields, and the header {width}"
                findings.add(file.path, str(end), what, f"sed -n {LINE}p {in_shell(file.path)} shows its last line")
                return
            fields, end = after or (width, 0)
    except csv.Error as problem:
        if whole or "end of data" not in str(problem):  # else the field may end in the part that is not read
            returns = carriage_returns(problem, file.path, rows.line, file.compression)
            what, fix = returns or (f"{UNBALANCED} in or before this line", DOUBLED)
            findings.add(file.path, str(rows.line), what, fix)
