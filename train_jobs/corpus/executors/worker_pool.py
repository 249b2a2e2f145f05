"""The executor of one machine: runs tasks in worker processes, or in this one if the text is small.

`concurrent.futures.ProcessPoolExecutor` lacks four properties that this pool has. An error names the signal and the
part that a killed worker was processing (a broken pool names neither). Messages are JSON, never pickles. Workers report
progress within a task. They die with a parent that is killed.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

from train_jobs.config.errors import OutOfMemoryError, UserError
from train_jobs.config.prepare import MIN_BYTES_FOR_WORKERS
from train_jobs.corpus.executors.base import Executor, InProcess, Result, error_of
from train_jobs.corpus.steps.documents import Advance
from train_jobs.corpus.steps.records import PartTask, PreparationSetting
from train_jobs.engine.runtime.children import start_child

READ_AT_ONCE = 1 << 16


class WorkerPool(Executor):
    """Runs the tasks of a preparation. Workers start with the first step that is large enough and serve all others.

    Args:
        setting: settings shared by the tasks.
        workers: maximum number of worker processes.
        min_bytes: a step with fewer bytes in total runs in this process. None: 16 MiB.
    """

    def __init__(self, setting: PreparationSetting, workers: int, *, min_bytes: int | None = None) -> None:
        self._setting, self._most = setting, workers
        self._min_bytes = MIN_BYTES_FOR_WORKERS if min_bytes is None else min_bytes
        self._workers: list[_Worker] = []

    @property
    def workers(self) -> int:
        """Number of worker processes; this process counts as one."""
        return max(len(self._workers), 1)

    def close(self) -> None:
        """Kill the worker processes."""
        for worker in self._workers:
            worker.end()

    def run(self, tasks: Sequence[PartTask], advance: Advance) -> Iterator[Result]:
        """Run all tasks, see `Executor.run`.

        Raises:
            UserError: the first error of a task; the other tasks are abandoned.
            OutOfMemoryError: a worker was killed.
        """
        count = min(self._most, len(tasks))
        if count < 2 or sum(task.size for task in tasks) < self._min_bytes:
            yield from InProcess(self._setting).run(tasks, advance)
            return
        while len(self._workers) < count:
            self._workers.append(_Worker(self._setting))
        waiting = iter(tasks)
        with selectors.DefaultSelector() as selector:
            # One task per worker at a time: parts differ in cost, and a queue per worker would leave some idle.
            for worker, task in zip(self._workers[:count], waiting, strict=False):
                worker.give(task)
                selector.register(worker.out, selectors.EVENT_READ, worker)
            while selector.get_map():
                for worker in [ready.data for ready, _ in selector.select()]:
                    for message in worker.receive():
                        if "done" not in message:
                            advance(message["bytes"], message["documents"])
                            continue
                        if (following := next(waiting, None)) is not None:
                            worker.give(following)
                        else:
                            selector.unregister(worker.out)
                        yield Result(message["done"], message["record"])


class _Worker:
    """A worker process, started with the settings that its tasks share."""

    def __init__(self, setting: PreparationSetting) -> None:
        self._process = start_child("train_jobs.corpus.executors.worker", str(os.getpid()))
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._in, self.out = self._process.stdin, self._process.stdout
        self._unread = b""
        self._task: PartTask | None = None
        self._write(setting)

    def give(self, task: PartTask) -> None:
        """Send a task to an idle worker."""
        self._task = task
        self._write(task)

    def receive(self) -> list[dict[str, Any]]:
        """Wait for messages of the worker and return them.

        Raises:
            UserError: the task failed.
            OutOfMemoryError: the worker was killed.
        """
        fresh = os.read(self.out.fileno(), READ_AT_ONCE)
        if not fresh:
            raise self._lost()
        *lines, self._unread = (self._unread + fresh).split(b"\n")
        messages = [json.loads(line) for line in lines]
        for error in (message["error"] for message in messages if "error" in message):
            raise error_of(error)
        return messages

    def end(self) -> None:
        """Kill the worker, even while it works: unfinished files have no record."""
        self._process.kill()
        for stream in (self._in, self.out):
            with suppress(OSError):
                stream.close()
        self._process.wait()

    def _write(self, message: PreparationSetting | PartTask) -> None:
        with suppress(BrokenPipeError):  # `receive` reports the loss of the worker
            self._in.write(message.model_dump_json().encode() + b"\n")
            self._in.flush()

    def _lost(self) -> UserError:
        code = self._process.wait()
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        return OutOfMemoryError(
            f"a worker ended with {how}",
            facts={
                "where": f"part {self._task.part.name}" if self._task else "at its start",
                "why": "SIGKILL without a message usually comes from the kernel when memory runs out",
            },
            fix="repeat the command with --set data.workers=1 to resume (for orchestrator submit, add --new)",
        )
