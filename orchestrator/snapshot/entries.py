"""What a snapshot says of the files in it, and of those that are left out."""

from __future__ import annotations

import hashlib

from train_jobs.config.base import Config


class SnapshotFile(Config):
    """One file of a snapshot."""

    path: str
    """Posix path in the folder that the run is started in."""
    size: int
    """Bytes."""
    sha256: str
    """Hash of its content, in hex."""

    @classmethod
    def of(cls, path: str, content: bytes) -> SnapshotFile:
        """The entry of a file of that content."""
        return cls(path=path, size=len(content), sha256=hashlib.sha256(content).hexdigest())


class LeftOut(Config):
    """A file or folder of the user's that is not shipped."""

    path: str
    """Posix path in the user's folder; that of a folder ends with a slash."""
    why: str
    """The ignore file that names it, or the kind of things that it is of."""
    files: int
    """Number of files: 1, or those below a folder."""
    counted: bool = True
    """False: `files` is where counting stopped; there are more."""
