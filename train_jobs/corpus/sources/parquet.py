"""Parquet files with a column of text."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa
import pyarrow.parquet as pq

from train_jobs.config.errors import DataError
from train_jobs.config.names import in_shell
from train_jobs.corpus.sources.pieces import Piece
from train_jobs.corpus.sources.streams import Read

ROWS = 64  # documents taken at once


def read_parquet(piece: Piece, column: str, read: Read) -> Iterator[str]:
    """Yields the column of every row of the piece's row groups; null is no document.

    Raises:
        DataError: no Parquet, damaged, without the column, or with something else in it than text.
    """
    with _errors(piece.path), pq.ParquetFile(piece.path, buffer_size=1 << 20) as file:
        _require_text(file.schema_arrow, column, piece.path)
        metadata = file.metadata
        stop = metadata.num_row_groups if piece.stop is None else piece.stop
        for group in range(piece.start, stop):
            left = row_group_bytes(metadata, group)
            rows = max(metadata.row_group(group).num_rows, 1)
            per_batch = left * ROWS // rows
            for batch in file.iter_batches(batch_size=ROWS, row_groups=[group], columns=[column], use_threads=False):
                yield from (text for text in batch.column(0).to_pylist() if text is not None)
                read(min(per_batch, left))
                left -= min(per_batch, left)
            read(left)


def row_groups(path: str, column: str) -> list[tuple[int, int]]:
    """(bytes on the disk, bytes of the column's text) of each row group.

    Raises:
        DataError: as of `read_parquet`.
    """
    with _errors(path), pq.ParquetFile(path) as file:
        index = _require_text(file.schema_arrow, column, path)
        metadata = file.metadata
        return [
            (row_group_bytes(metadata, group), metadata.row_group(group).column(index).total_uncompressed_size)
            for group in range(metadata.num_row_groups)
        ]


def row_group_bytes(metadata: pq.FileMetaData, group: int) -> int:
    """Bytes of a row group on the disk, all columns: together they are about the file."""
    columns = metadata.row_group(group)
    return sum(columns.column(index).total_compressed_size for index in range(columns.num_columns))


def _require_text(schema: pa.Schema, column: str, path: str) -> int:
    """Index of the column, which is text."""
    index = schema.get_field_index(column)
    if index < 0:
        raise DataError(
            f"{path} has no column {column!r}",
            facts={"have": ", ".join(schema.names)},
            fix="set the source's column to the one that holds the text",
        )
    kind = schema.field(index).type
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)):
        raise DataError(
            f"the column {column!r} of {path} holds no text",
            facts={"have": kind, "columns": ", ".join(schema.names)},
            fix="set the source's column to the one that holds the text",
        )
    return int(index)


@contextmanager
def _errors(path: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise DataError(f"{path} is gone", fix="the same command again, with --data of what there is") from None
    except PermissionError:
        raise DataError(f"cannot read {path}", fix=f"chmod u+r {in_shell(path)}") from None
    except (pa.ArrowException, OSError) as problem:
        raise DataError(
            f"{path} is no Parquet file, or damaged", facts={"why": str(problem).splitlines()[0]}, fix="fetch it again"
        ) from None
