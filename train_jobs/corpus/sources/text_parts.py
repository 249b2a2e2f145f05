"""The parts of a corpus: units of work of about equal size, and their documents.

Parts are planned from the input alone, so they do not depend on the number of processes. Each part is read by the
reader of its format.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import BinaryIO, NamedTuple

from train_jobs.artifacts.csv_tables import SEPARATORS
from train_jobs.artifacts.fingerprints import embedded_files
from train_jobs.artifacts.remote_files import RemoteFile, TextPath, fix_in_copy, require_version
from train_jobs.artifacts.text_documents import document_rules
from train_jobs.artifacts.text_files import (
    EXPANDED,
    UTF16_MARKS,
    SourceFile,
    part_bytes,
    source_files,
    text_bytes,
)
from train_jobs.config.errors import DataError
from train_jobs.config.prepare import BLANK_LINE, LINE, SourceConfig
from train_jobs.corpus.sources.mediawiki import index_of, read_wikipedia, stream_cuts
from train_jobs.corpus.sources.streams import Piece, Read, ignore
from train_jobs.corpus.sources.text_columns import dataset_pieces, read_dataset, read_parquet, row_groups
from train_jobs.corpus.sources.text_formats import (
    embedded_documents,
    read_jsonl,
    read_table,
    read_text,
    read_wikiextractor,
)

EMBEDDED, DATASET, TEXT = "embedded", "dataset", "text"
# At the end of a match, one document is complete and the next may begin.
_BOUNDARIES = {
    BLANK_LINE: re.compile(rb"\n[ \t\r]*\n"),
    LINE: re.compile(rb"\n"),
    "jsonl": re.compile(rb"\n"),
    "wikiextractor": re.compile(rb"\n</doc>\r*\n"),
    "wikipedia": re.compile(rb"</page>"),
}
_PLAIN_READERS: dict[str, Callable[[Piece, Read], Iterator[str]]] = {
    "wikipedia": read_wikipedia,
    "wikiextractor": read_wikiextractor,
}
_COLUMN_READERS: dict[str, Callable[[Piece, str, Read], Iterator[str]]] = {
    "jsonl": read_jsonl,
    "parquet": read_parquet,
    **{form: partial(read_table, separator=sign) for form, sign in SEPARATORS.items()},
}
_LONGEST_BOUNDARY = 64  # bytes; a longer one may be missed between two blocks, which only makes a part larger
_BLOCK = 1 << 20


@dataclass(frozen=True)
class Part:
    """A unit of work: a group of small files, one file, or a range of a large one."""

    source: int
    """Number of its source, from 0."""
    name: str
    """Name in messages."""
    size: int
    """Bytes to read from the disk; 0 if unknown."""
    format: str
    """Format of its pieces."""
    pieces: tuple[Piece, ...]
    """Files or ranges, in order."""
    document: str = ""
    """What separates documents of plain text, see `text_documents.document_rules`; empty: another format."""


def read_part(sources: Sequence[SourceConfig], part: Part, *, read: Read = ignore) -> Iterator[str]:
    """Yield the text of each document of a part; memory holds one document and buffers at most.

    Args:
        sources: the sources given to `plan_parts`.
        part: a part that `plan_parts` returned.
        read: called with the bytes read from the disk since its last call.

    Raises:
        DataError: a file has another format than expected; the message names the file and the place. Or a file by URL
            has changed since the parts were planned.
    """
    for piece in part.pieces:
        version = None if part.format == DATASET else piece.version
        require_version(piece.path, version)
        if part.format == EMBEDDED:
            yield from embedded_documents([Path(piece.path)])
            read(_size(Path(piece.path)))
            continue
        source = sources[part.source]
        if part.format == DATASET:
            documents = read_dataset(source, piece)
        elif part.format == TEXT:
            documents = read_text(piece, read, rule=part.document, strip_gutenberg=source.strip_gutenberg)
        elif part.format in _PLAIN_READERS:
            documents = _PLAIN_READERS[part.format](piece, read)
        else:
            documents = _COLUMN_READERS[part.format](piece, source.column, read)
        # Closed here, because a consumer that stops early would leave files open until garbage collection.
        try:
            with closing(documents):  # type: ignore[type-var]  # every reader is a generator, annotated as an iterator
                yield from documents
        except DataError as problem:
            problem.fix = problem.fix and fix_in_copy(problem.fix, piece.path)
            raise
        # Again: ranges of two versions of a file would be neither.
        require_version(piece.path, version)


def plan_parts(sources: Sequence[SourceConfig]) -> list[Part]:
    """Divide sources into parts of about `part_bytes` of text each.

    Args:
        sources: sources of text; empty: the embedded corpus, as one part.

    Raises:
        DataError: a source does not exist, or has another format than expected.
    """
    if not sources:
        files = embedded_files()
        return [Part(0, EMBEDDED, sum(map(_size, files)), EMBEDDED, tuple(Piece(str(path)) for path in files))]
    sized = [
        [(file, _text_bytes(file, source.column)) for file in (source_files(source) if source.dataset is None else ())]
        for source in sources
    ]
    rules = document_rules(sources)
    size = part_bytes(sum(text for files in sized for _, text in files))
    planned = [
        part
        for index, (source, files) in enumerate(zip(sources, sized, strict=True))
        for part in (
            _file_parts(_Source(index, source, rules[index]), files, size)
            if source.dataset is None
            else _dataset_parts(index, source)
        )
    ]
    return [replace(part, document=rules[part.source]) if part.format == TEXT else part for part in planned]


class _Source(NamedTuple):
    """A source whose files are cut into parts."""

    number: int
    config: SourceConfig
    rule: str
    """What separates the documents of its plain text."""


def _dataset_parts(index: int, source: SourceConfig) -> Iterator[Part]:
    pieces = dataset_pieces(source)
    for number, piece in enumerate(pieces, start=1):
        yield Part(index, f"{source.title}, file {number} of {len(pieces)}", 0, DATASET, (piece,))


def _file_parts(source: _Source, files: list[tuple[SourceFile, int]], size: int) -> Iterator[Part]:
    """Yield parts of a source: small neighbouring files as groups, large files as ranges."""
    group: list[SourceFile] = []
    held = 0
    for file, text in files:
        if group and (held + text > size or file.format != group[0].format):
            yield _group(source.number, group)
            group, held = [], 0
        if text > size:
            yield from _ranges(source, file, size)
        else:
            group.append(file)
            held += text
    if group:
        yield _group(source.number, group)


def _text_bytes(file: SourceFile, column: str) -> int:
    """Return the approximate bytes of text in a file."""
    if file.format == "parquet":
        return sum(text for _, text in row_groups(str(file.path), column))
    return text_bytes(file)


def _group(index: int, files: list[SourceFile]) -> Part:
    name = files[0].path.name + (f" and {len(files) - 1} more" if len(files) > 1 else "")
    pieces = tuple(Piece(str(file.path), file.compression, version=_version(file)) for file in files)
    return Part(index, name, sum(_size(file.path) for file in files), files[0].format, pieces)


def _ranges(source: _Source, file: SourceFile, part_size: int) -> Iterator[Part]:
    """Yield parts of a large file: ranges between documents, or the complete file if its format has none."""
    path, name, index = str(file.path), file.path.name, source.number
    if file.format == "parquet":
        for start, stop, stored in _row_group_runs(path, source.config.column, part_size):
            span = f"{name}, row groups {start} to {stop - 1}"
            yield Part(index, span, stored, file.format, (Piece(path, None, start, stop, _version(file)),))
        return
    cuts, size = _cuts(source, file, part_size), _size(file.path)
    if not cuts:
        yield _group(index, [file])
        return
    for start, stop in zip([0, *cuts], [*cuts, size], strict=True):
        piece = Piece(path, file.compression, start, stop if stop < size else None, _version(file))
        yield Part(index, f"{name}, bytes {start} to {stop}", stop - start, file.format, (piece,))


def _row_group_runs(path: str, column: str, part_size: int) -> Iterator[tuple[int, int, int]]:
    """Yield (first row group, end, bytes on the disk) of consecutive groups with about `part_size` bytes of text."""
    start = stored = text = 0
    sizes = row_groups(path, column)
    for group, (more_stored, more_text) in enumerate(sizes):
        if group > start and text + more_text > part_size:
            yield start, group, stored
            start, stored, text = group, 0, 0
        stored += more_stored
        text += more_text
    yield start, len(sizes), stored


def _cuts(source: _Source, file: SourceFile, part_size: int) -> list[int]:
    """Return offsets on the disk where a document begins, about `part_size` bytes of text apart."""
    # Compressed data cannot be entered in the middle, except for Wikipedia's dumps with an index of their streams.
    if file.compression == "bzip2" and file.format == "wikipedia" and (index := index_of(file.path)) is not None:
        return stream_cuts(file.path, index, part_size // EXPANDED["bzip2"])
    cuts: list[int] = []
    boundary = _BOUNDARIES.get(source.rule if file.format == TEXT else file.format)
    # without a boundary a document may be a whole file; Gutenberg's header is known by its place
    if file.compression is not None or boundary is None or source.config.strip_gutenberg:
        return cuts
    size = _size(file.path)
    with file.path.open("rb") as stream:
        if stream.read(2) in UTF16_MARKS:
            return cuts  # in UTF-16, a newline is not a single byte
        while (cut := _boundary(stream, boundary, (cuts or [0])[-1] + part_size)) and cut < size:
            cuts.append(cut)
    return cuts


def _boundary(stream: BinaryIO, pattern: re.Pattern[bytes], start: int) -> int | None:
    """Return the offset of the end of the first match after `start`; None without one."""
    stream.seek(start)
    rest = b""
    while block := stream.read(_BLOCK):
        data = rest + block
        if match := pattern.search(data):
            return start + match.end()
        rest = data[-_LONGEST_BOUNDARY:]
        start += len(data) - len(rest)
    return None


def _size(path: TextPath) -> int:
    return path.stat().st_size


def _version(file: SourceFile) -> str | None:
    return file.path.version if isinstance(file.path, RemoteFile) else None
