"""What has come of a file so far, beside its place, and what the server said of it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple, Self

from orchestrator.fetch.answers import range_start
from orchestrator.support.errors import ConflictError, StorageError
from train_jobs.artifacts.file_lock import try_lock
from train_jobs.artifacts.files import sync, write_text

PARTIAL = ".part"
FACTS = ".part.json"


class Known(NamedTuple):
    """What was said of a file with its first byte: to go on only with the very same one."""

    url: str
    etag: str
    modified: str

    @classmethod
    def of(cls, url: str, response: Any) -> Self:
        """Of an answer."""
        return cls(url, response.headers.get("ETag", ""), response.headers.get("Last-Modified", ""))

    @property
    def validator(self) -> str:
        """What names this very content; a weak ETag does not."""
        return self.etag if self.etag and not self.etag.startswith("W/") else self.modified


class Partial:
    """The beginning of a file, held by one process at a time."""

    def __init__(self, target: Path, stream: IO[bytes]) -> None:
        self.stream = stream
        self.path = _beside(target, PARTIAL)
        self._facts = _beside(target, FACTS)
        self._target = target

    @classmethod
    @contextmanager
    def open(cls, target: Path) -> Iterator[Partial]:
        """Holds the beginning of `target`, which may be empty; its folder is made. What there is stays when it fails.

        Raises:
            ConflictError: another process fetches it.
            StorageError: it cannot be written.
        """
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with _beside(target, PARTIAL).open("ab", buffering=0) as stream:
                if not try_lock(stream):
                    raise ConflictError(
                        f"another process fetches {target}", fix="wait for it, or end it and fetch again"
                    )
                yield cls(target, stream)
        except OSError as problem:
            raise StorageError(
                f"{target} cannot be written",
                facts={"why": problem.strerror or problem},
                fix="make room, or --to another folder; what has come is kept",
            ) from None

    @property
    def size(self) -> int:
        """Bytes that are there."""
        return os.fstat(self.stream.fileno()).st_size

    def clear(self) -> None:
        """Begins anew."""
        self.stream.truncate(0)

    def resume(self, url: str, *, checked: bool) -> dict[str, str]:
        """Headers of a request for what is missing.

        Args:
            url: where it is asked for.
            checked: the whole will be compared with a checksum: pieces of several places may then be put together.
        """
        if self.size == 0:
            return {}
        known = self._known()
        if known is not None and known.url == url and known.validator:
            return {"Range": f"bytes={self.size}-", "If-Range": known.validator}
        if checked:
            return {"Range": f"bytes={self.size}-"}
        self.clear()
        return {}

    def goes_on(self, response: Any, now: Known) -> bool:
        """Whether a part of a file that is sent belongs behind what is there."""
        known = self._known()
        same = known is None or known.url != now.url or known.validator == now.validator
        return same and range_start(response) == self.size

    def remember(self, known: Known) -> None:
        """Keeps what the server says of the file."""
        write_text(self._facts, json.dumps(known._asdict()))

    def place(self) -> None:
        """Puts the file, which is whole now, into its place."""
        os.fsync(self.stream.fileno())
        self.path.replace(self._target)
        sync(self._target.parent)
        self._facts.unlink(missing_ok=True)

    def _known(self) -> Known | None:
        try:
            return Known(**json.loads(self._facts.read_text()))
        except (OSError, ValueError, TypeError):
            return None


def _beside(target: Path, end: str) -> Path:
    return target.with_name(f".{target.name}{end}")
