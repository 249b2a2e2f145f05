"""Which documents are in the text already: of those of equal hash the first is kept, in the order of parts.

All hashes of a text of a billion documents do not fit into memory. Each part has sorted its own, so a range of hashes
is one stretch of every part's file, and no range holds more than a few million.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from train_jobs.corpus.arrow import number_column, numbers
from train_jobs.corpus.steps.extraction import hashes_file
from train_jobs.corpus.steps.records import KEY_DIGITS, DuplicatesRecord, describe_file, write_record
from train_jobs.corpus.steps.splits import HASH_SIZE

NAME = "duplicates"
AT_ONCE = 1 << 22  # hashes compared together: some 400 MB with what sorting takes
Positions = npt.NDArray[np.uint32]
Stretch = tuple[int, int]  # first row, and how many


def find_duplicates(folder: Path, documents: Sequence[int], *, key: str, at_once: int = AT_ONCE) -> DuplicatesRecord:
    """Finds the documents to drop, and writes them down.

    Args:
        folder: holds the hashes of every part.
        documents: how many each part has.
        key: of the record.
        at_once: hashes in memory; besides, 8 bytes for each duplicate.
    """
    started = time.monotonic()
    found = list(_found(folder, len(documents), ranges=max(1, -(-sum(documents) // at_once))))
    parts = np.concatenate([part for part, _ in found])
    positions = np.concatenate([position for _, position in found])
    order = np.lexsort((positions, parts))
    positions = positions[order]
    dropped = np.bincount(parts, minlength=len(documents)).tolist()
    path = folder / f"{NAME}.arrow"
    with path.open("wb") as stream, pa.ipc.new_file(stream, pa.schema([("position", pa.uint32())])) as writer:
        writer.write_batch(pa.record_batch([number_column(positions)], names=["position"]))
    pieces = np.split(positions, np.cumsum(dropped)[:-1])
    record = DuplicatesRecord(
        key=key,
        files=[describe_file(path)],
        seconds=time.monotonic() - started,
        dropped=dropped,
        digests=[hashlib.sha256(piece.tobytes()).hexdigest()[:KEY_DIGITS] for piece in pieces],
    )
    write_record(folder, NAME, record)
    return record


def no_duplicates(parts: int, *, key: str) -> DuplicatesRecord:
    """What is dropped where nothing shall be."""
    empty = hashlib.sha256(b"").hexdigest()[:KEY_DIGITS]
    return DuplicatesRecord(key=key, seconds=0.0, dropped=[0] * parts, digests=[empty] * parts)


def stretches(record: DuplicatesRecord) -> list[Stretch]:
    """Where in the file what is dropped of each part stands."""
    ends = list(accumulate(record.dropped))
    return [(end - count, count) for end, count in zip(ends, record.dropped, strict=True)]


def dropped_of(folder: Path, stretch: Stretch) -> Positions:
    """The places in a part whose documents are dropped, ascending."""
    first, count = stretch
    if not count:
        return np.empty(0, np.uint32)
    with pa.memory_map(str(folder / f"{NAME}.arrow")) as mapped:
        return numbers(pa.ipc.open_file(mapped).get_batch(0).column(0).slice(first, count)).copy()


def _found(folder: Path, parts: int, *, ranges: int) -> Iterator[tuple[npt.NDArray[np.uint32], Positions]]:
    """Part and place of each document to drop, one range of hashes after the other."""
    for low, high in pairwise(HASH_SIZE * index // ranges for index in range(ranges + 1)):
        stretches = [_stretch(folder / hashes_file(part), low, high) for part in range(parts)]
        first, second, places = (np.concatenate([stretch[column] for stretch in stretches]) for column in range(3))
        whose = np.repeat(np.arange(parts, dtype=np.uint32), [len(stretch[0]) for stretch in stretches])
        order = np.lexsort((second, first))  # stable: parts and places stay in order
        first, second = first[order], second[order]
        again = order[1:][(first[1:] == first[:-1]) & (second[1:] == second[:-1])]
        yield whose[again], places[again]


def _stretch(path: Path, low: int, high: int) -> list[npt.NDArray[np.unsignedinteger]]:
    """The columns of a part's hashes from `low` to below `high`."""
    with pa.memory_map(str(path)) as mapped:
        batch = pa.ipc.open_file(mapped).get_batch(0)
        hashes = numbers(batch.column(0))
        start = int(np.searchsorted(hashes, np.uint64(low)))
        stop = len(hashes) if high == HASH_SIZE else int(np.searchsorted(hashes, np.uint64(high)))
        return [numbers(column)[start:stop].copy() for column in batch.columns]
