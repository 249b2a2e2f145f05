"""What work a corpus is: parts of about equal size, the same ones however many processes share them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from train_jobs.artifacts.fingerprints import embedded_files
from train_jobs.artifacts.text_files import Compression, SourceFile, part_bytes, source_files
from train_jobs.config.text import SourceConfig
from train_jobs.corpus.sources.dataset import dataset_pieces
from train_jobs.corpus.sources.multistream import index_of, stream_cuts
from train_jobs.corpus.sources.parquet import row_groups
from train_jobs.corpus.sources.pieces import Piece
from train_jobs.corpus.sources.streams import UTF16_BOMS

EMBEDDED, DATASET = "embedded", "dataset"
# Text per byte on the disk, about. What it is exactly does not matter; that it never changes does.
_RATIOS: dict[Compression | None, int] = {None: 1, "gzip": 3, "bzip2": 4, "xz": 4, "zstd": 3}
# Behind a match a document may begin, and whatever came before has ended.
_BOUNDARIES = {
    "text": re.compile(rb"\n[ \t\r]*\n"),
    "jsonl": re.compile(rb"\n"),
    "wikiextractor": re.compile(rb"\n</doc>\r*\n"),
    "wikipedia": re.compile(rb"</page>"),
}
_LONGEST_BOUNDARY = 64  # bytes; a longer one may be passed over
_BLOCK = 1 << 20


@dataclass(frozen=True)
class Part:
    """The unit of work of preparing a corpus."""

    source: int
    """Which of the sources it is of."""
    name: str
    """What it is called in messages."""
    size: int
    """Bytes on the disk that it is read from; 0 if nobody knows."""
    format: str
    """How its pieces are read."""
    pieces: tuple[Piece, ...]
    """What it is read from, in order."""


def plan_parts(sources: Sequence[SourceConfig]) -> list[Part]:
    """Cuts sources into parts of about `part_bytes`; no source at all is the embedded corpus, in one part.

    Raises:
        DataError: a source cannot be found, or is not what it is said to be.
    """
    if not sources:
        files = embedded_files()
        return [Part(0, EMBEDDED, sum(map(_size, files)), EMBEDDED, tuple(Piece(str(path)) for path in files))]
    sized = [_sized_files(source) for source in sources]
    size = part_bytes(sum(text for found in sized for _, text in found))
    return [
        part
        for index, (source, found) in enumerate(zip(sources, sized, strict=True))
        for part in (_of_files(index, source, found, size) if source.dataset is None else _of_dataset(index, source))
    ]


def _sized_files(source: SourceConfig) -> list[tuple[SourceFile, int]]:
    """The files of a source, if it is one of files, and how much text each of them holds, about."""
    if source.dataset is not None:
        return []
    return [(file, _text_bytes(file, source.column)) for file in source_files(source)]


def _of_dataset(index: int, source: SourceConfig) -> Iterator[Part]:
    pieces = dataset_pieces(source)
    for number, piece in enumerate(pieces, start=1):
        yield Part(index, f"{source.title}, file {number} of {len(pieces)}", 0, DATASET, (piece,))


def _of_files(index: int, source: SourceConfig, files: list[tuple[SourceFile, int]], size: int) -> Iterator[Part]:
    """Neighbours that are small together, what is large in ranges."""
    group: list[SourceFile] = []
    held = 0
    for file, text in files:
        if group and (held + text > size or file.format != group[0].format):
            yield _group(index, group)
            group, held = [], 0
        if text > size:
            yield from _ranges(index, source, file, size)
        else:
            group.append(file)
            held += text
    if group:
        yield _group(index, group)


def _text_bytes(file: SourceFile, column: str) -> int:
    """How much text a file holds, about."""
    if file.format == "parquet":
        return sum(text for _, text in row_groups(str(file.path), column))
    return _size(file.path) * _RATIOS[file.compression]


def _group(index: int, files: list[SourceFile]) -> Part:
    name = files[0].path.name + (f" and {len(files) - 1} more" if len(files) > 1 else "")
    pieces = tuple(Piece(str(file.path), file.compression) for file in files)
    return Part(index, name, sum(_size(file.path) for file in files), files[0].format, pieces)


def _ranges(index: int, source: SourceConfig, file: SourceFile, part_size: int) -> Iterator[Part]:
    """A large file, cut where its format can be."""
    path, name = str(file.path), file.path.name
    if file.format == "parquet":
        for start, stop, stored in _row_group_runs(path, source.column, part_size):
            span = f"{name}, row groups {start} to {stop - 1}"
            yield Part(index, span, stored, file.format, (Piece(path, None, start, stop),))
        return
    cuts = _cuts(file, part_size)
    if not cuts:
        yield _group(index, [file])
        return
    size = _size(file.path)
    for start, stop in zip([0, *cuts], [*cuts, size], strict=True):
        span = f"{name}, bytes {start} to {stop}"
        piece = Piece(path, file.compression, start, stop if stop < size else None)
        yield Part(index, span, stop - start, file.format, (piece,))


def _row_group_runs(path: str, column: str, part_size: int) -> Iterator[tuple[int, int, int]]:
    """(first row group, the one behind the last, bytes on the disk) of runs of about so many bytes of text."""
    start = stored = text = 0
    sizes = row_groups(path, column)
    for group, (more_stored, more_text) in enumerate(sizes):
        if group > start and text + more_text > part_size:
            yield start, group, stored
            start, stored, text = group, 0, 0
        stored += more_stored
        text += more_text
    yield start, len(sizes), stored


def _cuts(file: SourceFile, part_size: int) -> list[int]:
    """Offsets on the disk where a document begins, about so many bytes of text apart."""
    if file.compression is None:
        return _cuts_of_plain(file.path, _BOUNDARIES[file.format], part_size)
    if file.compression == "bzip2" and file.format == "wikipedia" and (index := index_of(file.path)) is not None:
        return stream_cuts(file.path, index, part_size // _RATIOS["bzip2"])
    return []


def _cuts_of_plain(path: Path, pattern: re.Pattern[bytes], part_size: int) -> list[int]:
    """None in UTF-16, whose newlines are not single bytes."""
    cuts: list[int] = []
    with path.open("rb") as stream:
        if stream.read(2) in UTF16_BOMS:
            return cuts
        size = os.fstat(stream.fileno()).st_size
        cut = _boundary(stream, pattern, part_size)
        while cut is not None and cut < size:
            cuts.append(cut)
            cut = _boundary(stream, pattern, cut + part_size)
    return cuts


def _boundary(stream: BinaryIO, pattern: re.Pattern[bytes], start: int) -> int | None:
    """Where the first match behind `start` ends."""
    stream.seek(start)
    rest = b""
    while block := stream.read(_BLOCK):
        data = rest + block
        if match := pattern.search(data):
            return start + match.end()
        rest = data[-_LONGEST_BOUNDARY:]
        start += len(data) - len(rest)
    return None


def _size(path: Path) -> int:
    return path.stat().st_size
