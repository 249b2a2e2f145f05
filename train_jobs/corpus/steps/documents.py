"""The documents step, which cleans and hashes the documents of a part, and the duplicates step.

    documents-00012.arrow   text and the first half of its hash, in the order of the source; zstd
    hashes-00012.arrow      the hash in two halves and the position of its document, sorted by hash
    duplicates.arrow        positions of the duplicates of all parts

Of documents with equal hashes the first one is kept, in the order of parts. The hashes of a billion documents do not
fit into memory, so they are compared in ranges. Each part has sorted its own hashes: a range is one slice of every
part's file, with a few million hashes in total.
"""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate, pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from train_jobs.artifacts.store_places import StorePath, nearby, new_file
from train_jobs.corpus.arrow import mapped_file, number_column, numbers, text_column
from train_jobs.corpus.sources.text_parts import read_part
from train_jobs.corpus.steps.document_rules import HASH_SIZE, DocumentSurvey, clean, document_digest
from train_jobs.corpus.steps.records import (
    KEY_DIGITS,
    DocumentsRecord,
    DuplicatesRecord,
    PartTask,
    PreparationSetting,
    RowRange,
    describe_file,
    part_name,
    write_record,
)

Advance = Callable[[int, int], None]  # called with the bytes and documents processed since the last call
Positions = npt.NDArray[np.uint32]

BATCH_CHARACTERS = 1 << 21  # per batch of documents; limits the memory of a reader
HASHES_AT_ONCE = 1 << 22  # compared together; about 400 MB including the memory for sorting
TEXT = pa.schema([("text", pa.large_string()), ("hash", pa.uint64())])
HASHES = pa.schema([("high", pa.uint64()), ("low", pa.uint64()), ("position", pa.uint32())])
READ = "read"
UNFIT = "unfit"  # reason for dropping a document of which `clean` leaves nothing
DUPLICATES = "duplicates"


class Documents(NamedTuple):
    """Consecutive documents of a part."""

    first: int
    """Position of the first one in the part."""
    texts: list[str]
    """[documents] cleaned text of each."""
    hashes: npt.NDArray[np.uint64]
    """[documents] `document_hash` of each."""


def hashes_file(part: int) -> str:
    """Return the name of the file of a part's sorted hashes."""
    return f"{part_name('hashes', part)}.arrow"


def extract(setting: PreparationSetting, task: PartTask, advance: Advance) -> DocumentsRecord:
    """Read and clean a part; write its documents, their hashes and the record, and return the record.

    Args:
        setting: sources, rules and folders.
        task: the part and the key of its record.
        advance: called with the bytes read and documents processed since its last call.

    Raises:
        DataError: a file has another format than expected; the message names the file and the place.
    """
    started = time.monotonic()
    name, folder = part_name(task.step, task.number), setting.folder
    path, survey, counts = folder / f"{name}.arrow", DocumentSurvey(text_bytes=task.size), Counter[str]()
    text_bytes, digests = _write_documents(path, _cleaned_batches(setting, task, counts, advance), survey)
    _write_hashes(folder / hashes_file(task.number), digests)
    read = counts.pop(READ, 0)  # the other counts are reasons for dropping
    record = DocumentsRecord(
        key=task.key,
        files=[describe_file(path), describe_file(folder / hashes_file(task.number))],
        seconds=time.monotonic() - started,
        raw_bytes=task.part.size,
        text_bytes=text_bytes,
        read=read,
        documents=survey.documents,
        dropped=counts,
        lowest=survey.lowest,
        highest=survey.highest,
        words=sorted(survey.words),
        letters=survey.letters,
    )
    write_record(folder, name, record)
    return record


def _write_documents(path: StorePath, batches: Iterable[list[str]], survey: DocumentSurvey) -> tuple[int, list[bytes]]:
    """Write batches of documents to a file and add them to a survey; return their bytes and digests."""
    digests: list[bytes] = []
    text_bytes = 0
    # Not Arrow's own stream, whose errors lose the errno that names a full disk.
    with _new_arrow_file(path, TEXT, pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        for texts in batches:
            fresh = [document_digest(text) for text in texts]
            # Big-endian, as `document_hash` reads it; every second number is the first half of a digest.
            hashes = np.frombuffer(b"".join(fresh), ">u8")[::2].astype(np.uint64)
            survey.add(texts, hashes.tolist())
            column = text_column(texts)
            text_bytes += column.nbytes
            writer.write_batch(pa.record_batch([column, number_column(hashes)], schema=TEXT))
            digests += fresh
    return text_bytes, digests


def _cleaned_batches(
    setting: PreparationSetting, task: PartTask, counts: Counter[str], advance: Advance
) -> Iterator[list[str]]:
    """Yield the cleaned documents of a part in batches; add those read and those dropped to `counts`."""
    pending: list[str] = []
    size = reported = 0
    for document in read_part(setting.data.text, task.part, read=lambda count: advance(count, 0)):
        counts[READ] += 1
        fit = clean(document, setting.data.clean)
        if not fit:
            counts[UNFIT] += 1
        pending += fit
        size += sum(map(len, fit))
        if size >= BATCH_CHARACTERS:
            yield pending
            pending, size = [], 0
            advance(0, counts[READ] - reported)
            reported = counts[READ]
    if pending:
        yield pending
    advance(0, counts[READ] - reported)


def read_documents(folder: StorePath, part: int) -> Iterator[Documents]:
    """Yield the documents of a part in batches.

    Args:
        folder: folder of the steps' files.
        part: number of the part.
    """
    first = 0
    with (folder / f"{part_name('documents', part)}.arrow").open("rb") as stream:
        reader = pa.ipc.open_file(stream)
        for index in range(reader.num_record_batches):
            batch = reader.get_batch(index)
            yield Documents(first, batch.column(0).to_pylist(), numbers(batch.column(1)))
            first += batch.num_rows


def find_duplicates(
    folder: StorePath, documents: Sequence[int], *, key: str, at_once: int = HASHES_AT_ONCE
) -> DuplicatesRecord:
    """Find the documents to drop; write their positions and the record.

    Args:
        folder: folder with the hashes of every part.
        documents: number of documents of each part.
        key: key of the record.
        at_once: approximate number of hashes in memory; each duplicate takes 8 more bytes.

    Returns:
        The record.
    """
    started = time.monotonic()
    with nearby(folder, [hashes_file(part) for part in range(len(documents))]) as hashes:
        found = list(_duplicates(hashes, len(documents), ranges=max(1, -(-sum(documents) // at_once))))
    parts, positions = (np.concatenate(columns) for columns in zip(*found, strict=True))
    positions = positions[np.lexsort((positions, parts))]
    dropped = np.bincount(parts, minlength=len(documents)).tolist()
    path = folder / f"{DUPLICATES}.arrow"
    _write_columns(path, pa.schema([("position", pa.uint32())]), [positions])
    pieces = np.split(positions, np.cumsum(dropped)[:-1])
    record = DuplicatesRecord(
        key=key,
        files=[describe_file(path)],
        seconds=time.monotonic() - started,
        dropped=dropped,
        digests=[_positions_digest(piece) for piece in pieces],
    )
    write_record(folder, DUPLICATES, record)
    return record


def no_duplicates(parts: int, *, key: str) -> DuplicatesRecord:
    """Return the record of a preparation that keeps duplicates."""
    empty = _positions_digest(np.empty(0, np.uint32))
    return DuplicatesRecord(key=key, seconds=0.0, dropped=[0] * parts, digests=[empty] * parts)


def stretches(record: DuplicatesRecord) -> list[RowRange]:
    """Return the rows of each part in the file of duplicates."""
    ends = list(accumulate(record.dropped))
    return [(end - count, count) for end, count in zip(ends, record.dropped, strict=True)]


def read_duplicates(folder: StorePath, stretch: RowRange) -> Positions:
    """Return the positions [n] of the dropped documents of a part, uint32, ascending.

    Args:
        folder: folder of the steps' files.
        stretch: rows of the part in the file of duplicates.
    """
    first, count = stretch
    if not count:
        return np.empty(0, np.uint32)
    with mapped_file(folder / f"{DUPLICATES}.arrow") as mapped:
        # Copied: the array would otherwise refer to a mapping that is closed on return.
        return numbers(pa.ipc.open_file(mapped).get_batch(0).column(0).slice(first, count)).copy()


def _positions_digest(positions: Positions) -> str:
    return hashlib.sha256(positions.tobytes()).hexdigest()[:KEY_DIGITS]


def _write_hashes(path: StorePath, digests: Sequence[bytes]) -> None:
    # numpy has no 128-bit integer, so a digest is two numbers.
    halves = np.frombuffer(b"".join(digests), ">u8").reshape(-1, 2).astype(np.uint64)
    order = np.lexsort((halves[:, 1], halves[:, 0]))  # stable: equal hashes keep the order of their documents
    _write_columns(path, HASHES, [halves[order, 0], halves[order, 1], order.astype(np.uint32)])


def _write_columns(path: StorePath, schema: pa.Schema, columns: Sequence[npt.NDArray[np.unsignedinteger]]) -> None:
    with _new_arrow_file(path, schema) as writer:
        writer.write_batch(pa.record_batch([number_column(column) for column in columns], schema=schema))


@contextmanager
def _new_arrow_file(
    path: StorePath, schema: pa.Schema, options: pa.ipc.IpcWriteOptions | None = None
) -> Iterator[pa.RecordBatchFileWriter]:
    """Write an Arrow file that takes its name when the context ends without an error."""
    file = new_file(path)
    try:
        writer = pa.ipc.new_file(file.stream, schema, options=options)
        yield writer
        writer.close()
        file.commit()
    except BaseException:
        file.discard()  # frees space: the disk may be full
        raise


def _duplicates(folder: Path, parts: int, *, ranges: int) -> Iterator[tuple[npt.NDArray[np.uint32], Positions]]:
    """Yield the part and the position of each document to drop, for one range of hashes after the other."""
    for low, high in pairwise(HASH_SIZE * index // ranges for index in range(ranges + 1)):
        slices = [_hashes_between(folder / hashes_file(part), low, high) for part in range(parts)]
        first, second, places = (np.concatenate(columns) for columns in zip(*slices, strict=True))
        part_of = np.repeat(np.arange(parts, dtype=np.uint32), [len(columns[0]) for columns in slices])
        order = np.lexsort((second, first))  # stable: equal hashes keep the order of parts and positions
        first, second = first[order], second[order]
        again = order[1:][(first[1:] == first[:-1]) & (second[1:] == second[:-1])]
        yield part_of[again], places[again]


def _hashes_between(path: Path, low: int, high: int) -> list[npt.NDArray[np.unsignedinteger]]:
    """Return the columns of a part's hashes from `low` to below `high`."""
    with pa.memory_map(str(path)) as mapped:
        batch = pa.ipc.open_file(mapped).get_batch(0)
        hashes = numbers(batch.column(0))
        start = int(np.searchsorted(hashes, np.uint64(low)))
        stop = len(hashes) if high == HASH_SIZE else int(np.searchsorted(hashes, np.uint64(high)))  # 2**64 overflows
        return [numbers(column)[start:stop].copy() for column in batch.columns]
