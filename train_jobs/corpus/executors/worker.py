"""A worker process of a preparation: reads tasks from stdin and writes messages to stdout, one JSON object a line.

    python -m train_jobs.corpus.executors.worker PARENT

It dies with its parent, however the parent ends. Files that it has not finished have no record and are written again.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time
import traceback
from typing import Any

from train_jobs.config.errors import InternalError, UserError
from train_jobs.corpus.steps.documents import Advance, extract
from train_jobs.corpus.steps.records import PartTask, PreparationSetting
from train_jobs.corpus.steps.tokenisation import tokenise
from train_jobs.engine.runtime.storage import explain

PR_SET_PDEATHSIG = 1  # of prctl(2)
M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD = -1, -2, -3  # of mallopt(3)
KEPT_MEMORY = {M_MMAP_THRESHOLD: 32 << 20, M_TRIM_THRESHOLD: 256 << 20, M_TOP_PAD: 16 << 20}  # bytes
SECONDS_BETWEEN_MESSAGES = 0.5
STEPS = {"documents": extract, "tokens": tokenise}


def perform(setting: PreparationSetting, task: PartTask, advance: Advance) -> None:
    """Carry out a task in this process; its record is written last."""
    STEPS[task.step](setting, task, advance)


def keep_freed_memory() -> bool:
    """Configure the allocator to keep freed arrays for reuse; return whether it accepted every setting.

    By default glibc returns them to the system, which must clear every page before it can be used again: a tenth of the
    time when one batch of text is processed after the other.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and all([mallopt(*setting) for setting in KEPT_MEMORY.items()])  # noqa: C419  # set all


class ParentChannel:
    """Sends messages to the parent; progress at most twice a second."""

    def __init__(self) -> None:
        self._stream = os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(2, 1)  # the output of libraries goes to stderr: it is no message
        self._bytes = self._documents = 0
        self._sent = time.monotonic()

    def send(self, **message: Any) -> None:
        """Send one message."""
        self._stream.write(json.dumps(message) + "\n")
        self._stream.flush()

    def advance(self, count: int, documents: int) -> None:
        """Add bytes and documents to the progress."""
        self._bytes += count
        self._documents += documents
        if time.monotonic() - self._sent > SECONDS_BETWEEN_MESSAGES:
            self.send_progress()

    def send_progress(self) -> None:
        """Send the progress since the last message."""
        if self._bytes or self._documents:
            self.send(bytes=self._bytes, documents=self._documents)
        self._bytes = self._documents = 0
        self._sent = time.monotonic()


def main() -> int:
    """Carry out tasks until stdin ends or one fails."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(sys.argv[1]):
        return 1  # the parent died before the call above took effect
    for number in (signal.SIGINT, signal.SIGTERM):  # the terminal and torchrun send them to the whole process group
        signal.signal(number, signal.SIG_IGN)  # the parent decides
    keep_freed_memory()
    channel = ParentChannel()
    setting = PreparationSetting.model_validate_json(sys.stdin.readline())
    for line in sys.stdin:
        task = PartTask.model_validate_json(line)
        try:
            perform(setting, task, channel.advance)
        except Exception as problem:
            known = problem if isinstance(problem, UserError) else None
            error = known or explain(problem, setting.store, "making the token store")
            if error is None:
                traceback.print_exc()
                error = InternalError(f"{type(problem).__name__}: {problem}")
            channel.send(error=error.as_json()["error"])
            return 0
        channel.send_progress()
        channel.send(done=task.number)
    return 0


if __name__ == "__main__":
    sys.exit(main())
