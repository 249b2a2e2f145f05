"""A worker process of a preparation: reads tasks from stdin, writes messages to stdout, one JSON object per line.

    python -m train_jobs.corpus.executors.worker PARENT_PID

The kernel kills it when its parent dies. Unfinished files have no record and are written again.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any, BinaryIO

from train_jobs.config.errors import InternalError
from train_jobs.config.privacy import traceback_text
from train_jobs.corpus.executors.base import error_json, perform
from train_jobs.corpus.steps.records import PartTask, PreparationSetting
from train_jobs.engine.runtime.allocator import keep_freed_arrays
from train_jobs.engine.runtime.children import begin_child

SECONDS_BETWEEN_MESSAGES = 0.5


class ParentChannel:
    """Sends messages to the parent; progress at most twice a second.

    Args:
        stream: stream to the parent.
    """

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._bytes = self._documents = 0
        self._sent = time.monotonic()

    def send(self, **message: Any) -> None:
        """Send one message."""
        self._stream.write(json.dumps(message).encode() + b"\n")
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
    """Run tasks until stdin ends or one fails; return an exit code."""
    if (stream := begin_child(int(sys.argv[1]))) is None:
        return 1
    keep_freed_arrays()
    channel = ParentChannel(stream)
    setting = PreparationSetting.model_validate_json(sys.stdin.readline())
    for line in sys.stdin:
        task = PartTask.model_validate_json(line)
        try:
            record = perform(setting, task, channel.advance)
        except Exception as problem:
            error = error_json(problem, setting)
            if error["kind"] == InternalError.kind:
                print(traceback_text(problem), file=sys.stderr, flush=True)
            channel.send(error=error)
            return 0
        channel.send_progress()
        channel.send(done=task.number, record=record)
    return 0


if __name__ == "__main__":
    sys.exit(main())
