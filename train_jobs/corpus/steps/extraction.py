"""The first step: a part of a source becomes cleaned documents, each with its hash.

documents-00012.arrow   text, and the first half of its hash, in the order of the source; zstd
hashes-00012.arrow      the hash in two halves, and the place of its document, sorted by hash: see `duplicates`
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from train_jobs.config.prepare import TextConfig
from train_jobs.corpus.arrow import number_column, numbers, text_column
from train_jobs.corpus.sources import Part, read_part
from train_jobs.corpus.steps.cleaning import clean
from train_jobs.corpus.steps.records import DocumentsRecord, describe_file, write_record
from train_jobs.corpus.steps.splits import HASH_BYTES, Survey, document_digest

Advance = Callable[[int, int], None]  # told bytes and documents since it was last called
BATCH_CHARACTERS = 1 << 21  # of a batch of documents: what a reader holds at once
TEXT = pa.schema([("text", pa.large_string()), ("hash", pa.uint64())])
HASHES = pa.schema([("high", pa.uint64()), ("low", pa.uint64()), ("position", pa.uint32())])
UNFIT = "unfit"  # why a document is not kept: `clean` leaves nothing of it


class Documents(NamedTuple):
    """Some documents of a part, in order."""

    first: int
    """Place of the first one in the part."""
    texts: list[str]
    """Cleaned text."""
    hashes: npt.NDArray[np.uint64]
    """[documents] `splits.document_hash` of each."""


def documents_name(part: int) -> str:
    """Name of a part's record."""
    return f"documents-{part:05d}"


def hashes_file(part: int) -> str:
    """Name of the file of a part's sorted hashes."""
    return f"hashes-{part:05d}.arrow"


def extract(data: TextConfig, part: Part, number: int, *, folder: Path, key: str, advance: Advance) -> DocumentsRecord:
    """Reads and cleans a part, and writes its documents.

    Args:
        data: sources and rules.
        part: what to read.
        number: of the part.
        folder: where to.
        key: of the record.
        advance: told of progress.

    Raises:
        DataError: a file is not what it is taken for; the message says which and where.
    """
    started = time.monotonic()
    name = documents_name(number)
    path, survey, dropped = folder / f"{name}.arrow", Survey(), Counter[str]()
    digests: list[bytes] = []
    read = text_bytes = 0

    def batches() -> Iterator[list[str]]:
        nonlocal read
        pending: list[str] = []
        size = told = 0
        for document in read_part(data.text, part, read=lambda count: advance(count, 0)):
            read += 1
            fit = clean(document, data.clean)
            if not fit:
                dropped[UNFIT] += 1
            pending += fit
            size += sum(map(len, fit))
            if size >= BATCH_CHARACTERS:
                yield pending
                pending, size = [], 0
                advance(0, read - told)
                told = read
        if pending:
            yield pending
        advance(0, read - told)

    with path.open("wb") as stream:  # not Arrow's own: errors keep their errno
        writer = pa.ipc.new_file(stream, TEXT, options=pa.ipc.IpcWriteOptions(compression="zstd"))
        try:
            for texts in batches():
                fresh = [document_digest(text) for text in texts]
                hashes = np.frombuffer(b"".join(fresh), ">u8")[::2].astype(np.uint64)
                for text, hashed in zip(texts, hashes.tolist(), strict=True):
                    survey.add(text, hashed)
                column = text_column(texts)
                text_bytes += column.nbytes
                writer.write_batch(pa.record_batch([column, number_column(hashes)], schema=TEXT))
                digests += fresh
            writer.close()
        except BaseException:
            with suppress(OSError):
                stream.close()
            path.unlink(missing_ok=True)  # its space may be what is lacking
            raise
    _write_hashes(folder / hashes_file(number), digests)
    record = DocumentsRecord(
        key=key,
        files=[describe_file(path), describe_file(folder / hashes_file(number))],
        seconds=time.monotonic() - started,
        raw_bytes=part.size,
        text_bytes=text_bytes,
        read=read,
        documents=survey.documents,
        dropped=dropped,
        lowest=survey.lowest,
        highest=survey.highest,
        words=sorted(survey.words),
    )
    write_record(folder, name, record)
    return record


def read_back(folder: Path, part: int) -> Iterator[Documents]:
    """The documents of a part, some at a time."""
    first = 0
    with (folder / f"{documents_name(part)}.arrow").open("rb") as stream:
        reader = pa.ipc.open_file(stream)
        for index in range(reader.num_record_batches):
            batch = reader.get_batch(index)
            yield Documents(first, batch.column(0).to_pylist(), numbers(batch.column(1)))
            first += batch.num_rows


def _write_hashes(path: Path, digests: list[bytes]) -> None:
    halves = np.frombuffer(b"".join(digests), ">u8").reshape(-1, DIGEST_HALVES).astype(np.uint64)
    order = np.lexsort((halves[:, 1], halves[:, 0]))  # stable: of equal ones the first stays first
    columns = [halves[order, 0], halves[order, 1], order.astype(np.uint32)]
    with path.open("wb") as stream, pa.ipc.new_file(stream, HASHES) as writer:
        writer.write_batch(pa.record_batch([number_column(column) for column in columns], schema=HASHES))


DIGEST_HALVES = 2
assert len(document_digest("")) == HASH_BYTES * DIGEST_HALVES
