"""What one reader reads at a time."""

from __future__ import annotations

from dataclasses import dataclass

from train_jobs.artifacts.text_files import Compression


@dataclass(frozen=True)
class Piece:
    """A file, a range of one, or a file of a dataset."""

    path: str
    """Where it is; for a dataset, its name."""
    compression: Compression | None = None
    start: int = 0
    """Where it begins: bytes on the disk; for Parquet, row groups; for a dataset, which of its files."""
    stop: int | None = None
    """Where it ends, not included. None: where the file does."""
    commit: str | None = None
    """For a dataset: what it was at when the work was planned."""
