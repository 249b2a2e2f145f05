"""A file system in memory that fills up and turns read-only for real."""

from __future__ import annotations

import subprocess
from pathlib import Path


class Disk:
    """A mounted file system of its own.

    Args:
        folder: where it is mounted.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def resize(self, size: int) -> None:
        """Makes the disk `size` bytes large, whatever is on it."""
        self._mount(f"remount,size={size}")

    def make_read_only(self) -> None:
        """From now on every write is refused, root's too."""
        self._mount("remount,ro")

    def _mount(self, options: str) -> None:
        subprocess.run(["mount", "-o", options, str(self.folder)], check=True, capture_output=True)
