"""Files in, documents out: the text of a corpus, one document at a time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from train_jobs.config.text import SourceConfig
from train_jobs.corpus.sources import plan_parts, read_part


class Corpus:
    """The documents of a job, as often as they are asked for: each iteration reads the files again.

    Args:
        text: `data.text` of the job; empty means the embedded corpus, which is small and stays in memory.

    Raises:
        DataError: a path does not exist, or holds no text (see `plan_parts`); when iterated, a file that is not what it
            should be (see `read_part`).
    """

    def __init__(self, text: list[Path]) -> None:
        self._sources = [SourceConfig(path=[str(path)]) for path in text]
        self._parts = plan_parts(self._sources)
        self._embedded = None if text else list(self._read())

    def __iter__(self) -> Iterator[str]:
        return self._read() if self._embedded is None else iter(self._embedded)

    def _read(self) -> Iterator[str]:
        for part in self._parts:
            yield from read_part(self._sources, part)
