"""Sources with a column of text: Parquet files, and Hugging Face datasets by name.

Datasets need the optional package `datasets`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from train_jobs.artifacts.hub import dataset_commit
from train_jobs.artifacts.remote_files import RemoteFile, text_path
from train_jobs.config.errors import DataError
from train_jobs.config.prepare import SourceConfig
from train_jobs.config.privacy import names_text, problem_text
from train_jobs.corpus.sources.streams import Piece, Read, file_errors

if TYPE_CHECKING:
    from datasets import IterableDataset

ROWS = 64  # documents per read
BUFFER = 1 << 20  # bytes per read of a column
_COLUMN_FIX = "set the source's `column` to the one that contains the text"


def read_parquet(piece: Piece, column: str, read: Read) -> Iterator[str]:
    """Yield the column of every row of the piece's row groups; nulls are skipped.

    Args:
        piece: file and range of row groups.
        column: name of the column.
        read: called with the bytes read from the disk since its last call.

    Raises:
        DataError: the file is not Parquet or is damaged, or the column is missing or not text.
    """
    with _parquet_errors(piece.path), _parquet_file(piece.path) as (file, size):
        _text_column(file.schema_arrow, column, piece.path)
        stop = file.metadata.num_row_groups if piece.stop is None else piece.stop
        # Parquet does not report bytes per batch of rows; the size of a row group is spread evenly over its rows.
        stored = [size for size, _ in _row_group_sizes(size, file.metadata)]
        for group in range(piece.start, stop):
            left = stored[group]
            per_batch = left * ROWS // max(file.metadata.row_group(group).num_rows, 1)
            for batch in file.iter_batches(batch_size=ROWS, row_groups=[group], columns=[column], use_threads=False):
                yield from (text for text in batch.column(0).to_pylist() if text is not None)
                read(min(per_batch, left))
                left -= min(per_batch, left)
            read(left)


def row_groups(path: str, column: str) -> list[tuple[int, int]]:
    """Return (bytes on the disk, uncompressed bytes) of all columns of each row group; their sum is the file's size.

    Args:
        path: path of a Parquet file.
        column: name of the column of text.

    Raises:
        DataError: see `read_parquet`.
    """
    with _parquet_errors(path), _parquet_file(path) as (file, size):
        _text_column(file.schema_arrow, column, path)
        return _row_group_sizes(size, file.metadata)


@contextmanager
def _parquet_file(path: str) -> Iterator[tuple[pq.ParquetFile, int]]:
    """Open a Parquet file and return it with its size in bytes; of a file by URL only the needed ranges are read."""
    place = text_path(path)
    size = place.stat().st_size
    opened = place.open("rb") if isinstance(place, RemoteFile) else nullcontext(path)
    with opened as source, pq.ParquetFile(source, buffer_size=BUFFER) as file:
        yield file, size


def _row_group_sizes(size: int, metadata: pq.FileMetaData) -> list[tuple[int, int]]:
    # Not the sizes of each column: pyarrow's RowGroupMetaData.column() aborts the process if the footer is damaged,
    # since Cython does not know that its C++ function throws.
    groups = range(metadata.num_row_groups)
    uncompressed = [max(metadata.row_group(group).total_byte_size, 1) for group in groups]
    total = max(sum(uncompressed), 1)
    return [(size * one // total, one) for one in uncompressed]


def _text_column(schema: pa.Schema, column: str, path: str) -> None:
    """Raise DataError if the column is missing or not text."""
    index = schema.get_field_index(column)
    if index < 0:
        raise DataError(f"{path} has no column {column!r}", facts={"have": names_text(schema.names)}, fix=_COLUMN_FIX)
    kind = schema.field(index).type
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)):
        raise DataError(
            f"the column {column!r} of {path} is not text",
            facts={"have": kind, "columns": names_text(schema.names)},
            fix=_COLUMN_FIX,
        )


@contextmanager
def _parquet_errors(path: str) -> Iterator[None]:
    try:
        with file_errors(path):
            yield
    except (pa.ArrowException, OSError, UnicodeDecodeError) as problem:  # the last: names of columns
        raise DataError(
            f"{path} is not a Parquet file, or is damaged",
            facts={"why": problem_text(problem).splitlines()[0]},
            fix="download it again",
        ) from None


def dataset_pieces(source: SourceConfig) -> list[Piece]:
    """Return a piece for each file of a dataset, all with its current commit.

    Raises:
        DataError: `datasets` is not installed, the dataset does not exist, or it lacks the column.
    """
    name = source.dataset_parts()[0]
    # All nodes and later starts read this commit, even if the dataset changes on the Hub meanwhile.
    version = None if source.dataset_folder else dataset_commit(name)
    dataset = _open_dataset(source, version)
    with _dataset_errors(source):
        have = dataset.column_names or list(next(iter(dataset), {}))
    if source.column not in have:
        raise DataError(
            f"{source.dataset} has no column {source.column!r}", facts={"have": names_text(have)}, fix=_COLUMN_FIX
        )
    return [Piece(name, start=index, stop=index + 1, version=version) for index in range(dataset.num_shards)]


def read_dataset(source: SourceConfig, piece: Piece) -> Iterator[str]:
    """Yield the column of every row of a piece, downloaded while it is read; nulls are skipped.

    Args:
        source: name and column of the dataset.
        piece: a piece from `dataset_pieces`.

    Raises:
        DataError: see `dataset_pieces`; or the column is not text, or the network failed.
    """
    rows = _open_dataset(source, piece.version)
    rows = rows.shard(num_shards=rows.num_shards, index=piece.start).select_columns([source.column])
    with _dataset_errors(source):
        for row in rows:
            text = row[source.column]
            if isinstance(text, str):
                yield text
            elif text is not None:
                raise DataError(
                    f"the column {source.column!r} of {source.dataset} is not text",
                    facts={"have": type(text).__name__},
                    fix=_COLUMN_FIX,
                )


def _open_dataset(source: SourceConfig, version: str | None) -> IterableDataset:
    try:
        from datasets import load_dataset
    except ImportError:
        raise DataError(
            f"cannot read the dataset {source.dataset}: the package `datasets` is not installed",
            fix="pip install datasets",
        ) from None
    name, configuration, split = source.dataset_parts()
    with _dataset_errors(source):
        return load_dataset(name, configuration, split=split, revision=version, streaming=True)


@contextmanager
def _dataset_errors(source: SourceConfig) -> Iterator[None]:
    """Convert errors of `datasets` and of the network to DataError."""
    try:
        yield
    except (OSError, ValueError, RuntimeError) as problem:
        raise DataError(
            f"cannot read the dataset {source.dataset}",
            facts={"why": re.sub(r"\s+", " ", problem_text(problem))[:300]},
            fix="give NAME[:CONFIGURATION][@SPLIT] from huggingface.co/datasets, or `path` with files",
        ) from None
