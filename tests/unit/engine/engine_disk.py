"""A tmpfs that really fills up and really turns read-only."""

from __future__ import annotations

import subprocess
from pathlib import Path


class Disk:
    """A separately mounted file system.

    Args:
        folder: where it is mounted.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def resize(self, size: int) -> None:
        """Resize the disk to `size` bytes, regardless of its contents."""
        self._mount(f"remount,size={size}")

    def make_read_only(self) -> None:
        """Remount the disk read-only; writes fail even for root."""
        self._mount("remount,ro")

    def _mount(self, options: str) -> None:
        subprocess.run(["mount", "-o", options, str(self.folder)], check=True, capture_output=True)
