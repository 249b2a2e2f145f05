"""Which reader reads which format."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path

from train_jobs.config.text import SourceConfig
from train_jobs.corpus.sources.dataset import read_dataset
from train_jobs.corpus.sources.embedded import embedded_documents
from train_jobs.corpus.sources.jsonl import read_jsonl
from train_jobs.corpus.sources.parquet import read_parquet
from train_jobs.corpus.sources.pieces import Piece
from train_jobs.corpus.sources.plain_text import read_text
from train_jobs.corpus.sources.streams import Read, ignore
from train_jobs.corpus.sources.text_parts import DATASET, EMBEDDED, Part
from train_jobs.corpus.sources.wikiextractor import read_wikiextractor
from train_jobs.corpus.sources.wikipedia import read_wikipedia

Reader = Callable[[Piece, str, Read], Iterator[str]]


def read_part(sources: Sequence[SourceConfig], part: Part, *, read: Read = ignore) -> Iterator[str]:
    """Yields the text of each document of a part; at most one document, and buffers, are in memory.

    Args:
        sources: as `plan_parts` had them.
        part: one of those that it made of them.
        read: called with the number of bytes that have been read from the disk since the last call.

    Raises:
        DataError: a file that is not what it should be; the message says which one and where.
    """
    if part.format == EMBEDDED:
        for piece in part.pieces:
            yield from embedded_documents([Path(piece.path)])
            read(Path(piece.path).stat().st_size)
        return
    source = sources[part.source]
    if part.format == DATASET:
        for piece in part.pieces:
            yield from read_dataset(source, piece)
        return
    reader = _READERS[part.format]
    for piece in part.pieces:
        # every reader is a generator, annotated as the iterator that its callers need
        with closing(reader(piece, source.column, read)) as documents:  # type: ignore[type-var]
            yield from documents


def _without_column(reader: Callable[[Piece, Read], Iterator[str]]) -> Reader:
    return lambda piece, _column, read: reader(piece, read)


_READERS: dict[str, Reader] = {
    "text": _without_column(read_text),
    "wikipedia": _without_column(read_wikipedia),
    "wikiextractor": _without_column(read_wikiextractor),
    "jsonl": read_jsonl,
    "parquet": read_parquet,
}
