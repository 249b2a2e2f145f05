"""Datasets by name, by Hugging Face's `datasets`, which need not be installed for anything else."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from train_jobs.artifacts.hub import dataset_commit
from train_jobs.config.errors import DataError
from train_jobs.config.text import SourceConfig
from train_jobs.corpus.sources.pieces import Piece

if TYPE_CHECKING:
    from datasets import IterableDataset

_COLUMN_FIX = "set the source's column to the one that holds the text"


def dataset_pieces(source: SourceConfig) -> list[Piece]:
    """A piece for each of the files that a dataset comes in, all of the commit that it is at now.

    Raises:
        DataError: `datasets` is not installed, there is no such dataset, or it has no such column of text.
    """
    name = source.dataset_parts()[0]
    commit = None if Path(name).is_dir() else dataset_commit(name)
    dataset = _open(source, commit)
    _require_column(dataset, source)
    return [Piece(name, start=index, stop=index + 1, commit=commit) for index in range(dataset.num_shards)]


def read_dataset(source: SourceConfig, piece: Piece) -> Iterator[str]:
    """Yields the column of every row of a piece, downloaded as it is read; null is no document.

    Raises:
        DataError: as of `dataset_pieces`, or the network failed.
    """
    rows = _open(source, piece.commit)
    rows = rows.shard(num_shards=rows.num_shards, index=piece.start).select_columns([source.column])
    with _errors(source):
        for row in rows:
            text = row[source.column]
            if text is not None and not isinstance(text, str):
                raise DataError(
                    f"the column {source.column!r} of {source.dataset} holds no text",
                    facts={"have": type(text).__name__},
                    fix=_COLUMN_FIX,
                )
            if text is not None:
                yield text


def _open(source: SourceConfig, commit: str | None) -> IterableDataset:
    try:
        from datasets import load_dataset
    except ImportError:
        raise DataError(
            f"{source.dataset} is a dataset of Hugging Face, and `datasets` is not installed",
            fix="pip install datasets",
        ) from None
    name, configuration, split = source.dataset_parts()
    with _errors(source):
        return load_dataset(name, configuration, split=split, revision=commit, streaming=True)


def _require_column(dataset: IterableDataset, source: SourceConfig) -> None:
    with _errors(source):
        have = dataset.column_names or list(next(iter(dataset), {}))
    if source.column not in have:
        raise DataError(
            f"{source.dataset} has no column {source.column!r}", facts={"have": ", ".join(have)}, fix=_COLUMN_FIX
        )


@contextmanager
def _errors(source: SourceConfig) -> Iterator[None]:
    """What `datasets` and the network raise, in the form of the house."""
    try:
        yield
    except (OSError, ValueError, RuntimeError) as problem:
        why = re.sub(r"\s+", " ", str(problem))
        raise DataError(
            f"the dataset {source.dataset} cannot be read",
            facts={"why": why[:300]},
            fix="give NAME[:CONFIGURATION][@SPLIT] as huggingface.co/datasets has it, or `path` with files",
        ) from None
