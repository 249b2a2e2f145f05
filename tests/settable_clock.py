"""A wall clock that a test sets for processes that start meanwhile."""

from __future__ import annotations

from pathlib import Path

# libfaketime 0.9.10 cannot be used: it changes the time since the boot too, or breaks sleeping
HOOK = """
import os, time
real = time.time
time.time = lambda: real() + float(open(os.environ["TEST_CLOCK"]).read())
"""


class SettableClock:
    """The clock of all processes with `variables`.

    Args:
        folder: an empty folder for its files.
    """

    def __init__(self, folder: Path) -> None:
        self._file, self.path = folder / "clock", folder / "hook"
        self.path.mkdir(parents=True)
        (self.path / "sitecustomize.py").write_text(HOOK)
        self.variables = {"TEST_CLOCK": str(self._file), "PYTHONPATH": str(self.path)}
        self.set(0)

    def set(self, offset: float) -> None:
        """Set the clock to this many seconds after the true time."""
        fresh = self._file.with_suffix(".new")  # renamed: a reader must never see an empty file
        fresh.write_text(str(offset))
        fresh.replace(self._file)
