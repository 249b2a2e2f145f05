"""Home folders that were moved or copied, and processes that belong to the original of a copied folder.

Documents of runs and sweeps have absolute paths, because jobs on this machine read them too. A command therefore
replaces paths below the former home when it reads a document. Paths outside the home stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from train_jobs.config.fields import Config

SQLITE = "sqlite:///"  # before the absolute path of a store


@dataclass(frozen=True)
class MovedHome:
    """A home folder that was moved or copied after a document was written."""

    prefixes: tuple[tuple[str, str], ...]
    """Each way to write the former path -> the same for the present path, the longest first."""

    @classmethod
    def find(cls, recorded: Iterable[object], home: Path) -> Self | None:
        """Return the move between two paths of a home; None: a document still has the right ones.

        Args:
            recorded: paths of the home when the document was written; relative ones and None are ignored.
            home: its path now.
        """
        # A symlink or a second mount of the same folder is no move: all paths in the document work.
        former = {path for one in recorded if isinstance(one, str) and (path := Path(one)).is_absolute()}
        moved = sorted((path for path in former if not is_same(path, home)), key=lambda path: -len(str(path)))
        if not moved:
            return None
        now = home.absolute()
        return cls(
            tuple(
                pair
                for path in moved
                for pair in (
                    (str(path), str(now)),
                    (f"{SQLITE}{path}", f"{SQLITE}{now}"),
                    (path.as_uri(), now.as_uri()),
                )
            )
        )

    def follow(self, document: Any) -> Any:
        """Return a document with the paths below the former home replaced."""
        if isinstance(document, dict):
            return {key: self.follow(value) for key, value in document.items()}
        if isinstance(document, list):
            return [self.follow(value) for value in document]
        return self._replaced(document) if isinstance(document, str) else document

    def _replaced(self, text: str) -> str:
        option, equals, value = text.partition("=") if text.startswith("--") else ("", "", text)
        for former, now in self.prefixes:
            # a home that was moved to below its former path: a resume that was killed has replaced some documents
            if _is_below(now, former) and _is_below(value, now):
                return text
            if _is_below(value, former):
                return f"{option}{equals}{now}{value[len(former) :]}"
        return text


class FolderIdentity(Config):
    """A folder as a process saw it that was started for it, so that a copy is not taken for it."""

    path: str
    """Its path at that time."""
    device: int
    """Number of its device."""
    inode: int
    """Number of its inode."""

    @classmethod
    def of(cls, folder: Path) -> Self:
        """Return the identity of a folder that exists."""
        found = folder.stat()
        return cls(path=str(folder), device=found.st_dev, inode=found.st_ino)

    def matches(self, folder: Path) -> bool:
        """Return whether a folder is the same one, also by another name or after it was renamed."""
        # by the path first: with some FUSE file systems, inode numbers change with every mount
        path = Path(self.path)
        if path.exists():
            return is_same(path, folder)
        try:
            found = folder.stat()
        except OSError:
            return False
        return (found.st_dev, found.st_ino) == (self.device, self.inode)


def is_same(one: Path, other: Path) -> bool:
    """Return whether two paths are equal or lead to the same file or folder."""
    try:
        return one == other or one.samefile(other)
    except OSError:
        return False


def _is_below(text: str, folder: str) -> bool:
    return text == folder or text.startswith(f"{folder}/")
