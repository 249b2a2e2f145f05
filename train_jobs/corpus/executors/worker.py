"""A process that makes text into tokens: tasks come in on stdin, a line of JSON each, and words go out on stdout.

    python -m train_jobs.corpus.executors.worker PARENT

It ends with its parent, however that ends: what is half-written then has no record, and is made again.
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
from train_jobs.corpus.executors.freed_memory import keep_freed_memory
from train_jobs.corpus.executors.work import Setting, Task, perform
from train_jobs.engine.runtime.storage import explain

PR_SET_PDEATHSIG = 1
SECONDS_BETWEEN_WORDS = 0.5


class Voice:
    """Tells the parent; of progress, not more often than it can use."""

    def __init__(self) -> None:
        self._stream = os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(2, 1)  # whatever a library prints is no message
        self._bytes = self._documents = 0
        self._told = time.monotonic()

    def say(self, **message: Any) -> None:
        """One message."""
        self._stream.write(json.dumps(message) + "\n")
        self._stream.flush()

    def advance(self, count: int, documents: int) -> None:
        """So many bytes and documents more."""
        self._bytes += count
        self._documents += documents
        if time.monotonic() - self._told > SECONDS_BETWEEN_WORDS:
            self.tell()

    def tell(self) -> None:
        """What is not told yet."""
        if self._bytes or self._documents:
            self.say(bytes=self._bytes, documents=self._documents)
        self._bytes = self._documents = 0
        self._told = time.monotonic()


def die_with(parent: int) -> None:
    """A parent that is killed takes this process along."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit(1)  # it was quicker


def main() -> int:
    """Does tasks until there are no more."""
    die_with(int(sys.argv[1]))
    for number in (signal.SIGINT, signal.SIGTERM):  # of the terminal, of torchrun: to the whole group
        signal.signal(number, signal.SIG_IGN)  # the parent decides
    keep_freed_memory()
    voice = Voice()
    setting = Setting.model_validate_json(sys.stdin.readline())
    for line in sys.stdin:
        task = Task.model_validate_json(line)
        try:
            perform(setting, task, voice.advance)
        except Exception as problem:
            found = (
                problem if isinstance(problem, UserError) else explain(problem, setting.store, "making the token store")
            )
            if found is None:
                traceback.print_exc()
                found = InternalError(f"{type(problem).__name__}: {problem}")
            voice.say(error=found.as_json()["error"])
            return 0
        voice.tell()
        voice.say(done=task.number)
    return 0


if __name__ == "__main__":
    sys.exit(main())
