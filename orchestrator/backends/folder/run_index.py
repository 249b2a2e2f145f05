"""Statuses of finished runs, kept from one command to the next: a list of thousands of runs then takes no second.

The index is only a cache, which may be deleted at any time: without it, statuses are read from the runs' folders. A
line has a run's name, a stamp and its status as JSON. The stamp consists of the times of the folders that a change of a
finished run changes, for example when its weights are deleted.
"""

from __future__ import annotations

import os
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from pydantic import ValidationError

from orchestrator.runs.status import RunStatus
from orchestrator.support.errors import NotFoundError
from orchestrator.support.home import SETTLED
from train_jobs.artifacts.files import write_text

STAMPED = ("", "/outputs", "/outputs/checkpoints")  # below a run's folder; a replaced file changes its folder's time
VERSION = 2  # of the lines; a line of another one may have a wrong value
SPARE_LINES = 1000  # of deleted and changed runs, before the file is rewritten


class RunIndex:
    """The index of the runs below one folder.

    Args:
        file: where it is kept.
        runs: folder of the runs.
    """

    def __init__(self, file: Path, runs: Path) -> None:
        self._file, self._runs = file, str(runs)
        # what all lines depend on: their version, the fields of a status and the place of the runs
        fields = zlib.crc32(repr(RunStatus.model_fields).encode())
        self._head = f"{VERSION}-{fields:08x}\t{self._runs}"

    def statuses(
        self, names: Sequence[str], describe: Callable[[str], RunStatus], ended: Callable[[str], bool]
    ) -> Iterator[RunStatus]:
        """Yield the statuses of runs; those that were deleted meanwhile are left out.

        Args:
            names: names of the runs.
            describe: reads the status of a run; raises NotFoundError for a deleted run.
            ended: whether a run has recorded its end. One whose supervisor was lost has not, and is read each time.
        """
        known, lines = self._read()
        fresh: dict[str, str] = {}
        try:
            for name in names:
                stamp = self._stamp(name)
                status = _parsed(known.get(name, ""), stamp)
                if status is None:
                    with suppress(NotFoundError):
                        status = describe(name)
                    if status is not None and ended(name) and self._is_settled(status, stamp):
                        fresh[name] = f"{name}\t{stamp}\t{status.model_dump_json()}"
                if status is not None:
                    yield status
        finally:
            if fresh:
                self._write(known | fresh, fresh, names if lines > len(names) + SPARE_LINES else None)

    def _read(self) -> tuple[dict[str, str], int]:
        """Return name -> line of each run, and the number of lines."""
        with suppress(OSError, ValueError):
            head, *lines = self._file.read_text(encoding="utf-8").splitlines()
            if head == self._head:
                return {line.partition("\t")[0]: line for line in lines}, len(lines)
        return {}, 0

    def _write(self, every: dict[str, str], fresh: dict[str, str], names: Sequence[str] | None) -> None:
        """Append the fresh lines, or rewrite those of `names`."""
        with suppress(OSError):  # a full or read-only disk: the next command reads the folders again
            self._file.parent.mkdir(parents=True, exist_ok=True)
            if names is not None or len(every) == len(fresh):
                kept = every.values() if names is None else [every[name] for name in names if name in every]
                write_text(self._file, "\n".join([self._head, *kept, ""]))
            else:
                with self._file.open("a", encoding="utf-8") as stream:
                    stream.write("".join(f"{line}\n" for line in fresh.values()))

    def _stamp(self, name: str) -> str:
        """Return the times of a run's folders in nanoseconds; 0 for one that does not exist."""
        return ".".join(str(_changed(f"{self._runs}/{name}{below}")) for below in STAMPED)

    def _is_settled(self, status: RunStatus, stamp: str) -> bool:
        """Return whether a status read after the stamp can be kept. A damaged run has no hash."""
        last = max(map(int, stamp.split("."))) / 1e9
        return bool(status.run_hash) and time.time() - last > SETTLED and self._stamp(status.name) == stamp


def _changed(folder: str) -> int:
    try:
        return os.stat(folder).st_mtime_ns  # noqa: PTH116, a Path costs as much as the call
    except OSError:
        return 0


def _parsed(line: str, stamp: str) -> RunStatus | None:
    """Return the status in a line; None: it has none, or not of this stamp."""
    _, _, rest = line.partition("\t")
    found, _, text = rest.partition("\t")
    if found != stamp:
        return None
    try:
        return RunStatus.model_validate_json(text)
    except ValidationError:
        return None
