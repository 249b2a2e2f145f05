"""Wikipedia's multi-stream dumps: bzip2 streams of 100 pages, and an index file of where each begins."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from train_jobs.artifacts.text_files import MAGIC
from train_jobs.config.errors import DataError
from train_jobs.corpus.sources.pieces import Piece
from train_jobs.corpus.sources.streams import ignore, open_piece

_DUMP = re.compile(r"(?P<head>.*-multistream)(?P<number>\d*)\.xml(?P<pages>-p\d+p\d+)?\.bz2")


def index_of(path: Path) -> Path | None:
    """The index file beside a dump, packed or not; None if there is none."""
    match = _DUMP.fullmatch(path.name)
    if match is None:
        return None
    name = f"{match['head']}-index{match['number']}.txt{match['pages'] or ''}"
    return next((path.with_name(name + end) for end in (".bz2", "") if path.with_name(name + end).is_file()), None)


def stream_cuts(path: Path, index: Path, distance: int) -> list[int]:
    """Offsets of streams of a dump, at least `distance` bytes apart, without the beginning of the file.

    Raises:
        DataError: the index is damaged, or of another dump.
    """
    cuts: list[int] = []
    with path.open("rb") as dump:
        for offset in _offsets(index):
            if offset - (cuts[-1] if cuts else 0) < distance:
                continue
            dump.seek(offset)
            if dump.read(3) != MAGIC["bzip2"]:
                raise DataError(
                    f"{index} is not the index of {path.name}",
                    facts={"where": f"byte {offset} of the dump", "need": "the beginning of a bzip2 stream"},
                    fix=f"fetch both again, of the same date; without {index.name} the dump is read as one",
                )
            cuts.append(offset)
    return cuts


def _offsets(index: Path) -> Iterator[int]:
    """Where the stream of each page begins, as the lines `OFFSET:PAGE:TITLE` have it."""
    with open_piece(Piece(str(index), "bzip2" if index.suffix == ".bz2" else None), ignore) as stream:
        for number, line in enumerate(stream, start=1):
            offset = line.partition(b":")[0]
            if not offset.isdigit():
                raise DataError(
                    f"{index} is no index of a dump", facts={"where": f"line {number}"}, fix="fetch it again"
                )
            yield int(offset)
