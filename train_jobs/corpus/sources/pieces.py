"""What one reader reads at a time."""

from __future__ import annotations

from dataclasses import dataclass

from train_jobs.config.formats import Compression


@dataclass(frozen=True)
class Piece:
    """A file, or a range of one."""

    path: str
    compression: Compression | None = None
    start: int = 0
    """Where it begins: bytes on the disk; for Parquet, row groups."""
    stop: int | None = None
    """Where it ends, not included. None: where the file does."""
