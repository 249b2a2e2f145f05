"""Does tasks: in processes of their own, or in this one where there is too little to do for processes to pay."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import train_jobs
from train_jobs.config import errors
from train_jobs.config.errors import OutOfMemoryError, UserError
from train_jobs.corpus.executors.work import Setting, Task, perform

WORTH_A_PROCESS = 16 << 20  # bytes: text that this process is through with in the time that others take to start
READ_AT_ONCE = 1 << 16
KINDS = {kind.kind: kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, UserError)}


def usable_cores() -> int:
    """CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Crew:
    """Does the tasks of a preparation, step after step. Processes start when they are first worth it, and then stay.

    Args:
        setting: what the tasks share.
        workers: most processes.
    """

    def __init__(self, setting: Setting, workers: int) -> None:
        self._setting, self._most = setting, workers
        self._workers: list[_Worker] = []

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *problem: object) -> None:
        for worker in self._workers:
            worker.end()

    def do(self, tasks: Sequence[Task], advance: Callable[[int, int], None]) -> Iterator[int]:
        """Does all tasks; yields the number of each part that is done, as they are done.

        Args:
            advance: told bytes and documents since it was last called.

        Raises:
            UserError: the first one that a task met; the others are given up.
            OutOfMemoryError: a process was killed.
        """
        count = min(self._most, len(tasks))
        if count < 2 or sum(task.size for task in tasks) < WORTH_A_PROCESS:
            for task in tasks:
                perform(self._setting, task, advance)
                yield task.number
            return
        while len(self._workers) < count:
            self._workers.append(_Worker(self._setting))
        yield from _shared_out(self._workers[:count], tasks, advance)


def _shared_out(crew: Sequence[_Worker], tasks: Sequence[Task], advance: Callable[[int, int], None]) -> Iterator[int]:
    """One task for each process at a time, the next as soon as it has done that."""
    waiting = iter(tasks)
    with selectors.DefaultSelector() as selector:
        for worker, task in zip(crew, waiting, strict=False):  # never stricter: there are as many tasks as processes
            worker.give(task)
            selector.register(worker.out, selectors.EVENT_READ, worker)
        while selector.get_map():
            for ready, _ in selector.select():
                worker = ready.data
                for message in worker.hear():
                    if "done" not in message:
                        advance(message["bytes"], message["documents"])
                        continue
                    if (following := next(waiting, None)) is not None:
                        worker.give(following)
                    else:
                        selector.unregister(worker.out)
                    yield message["done"]


class _Worker:
    """A process, started with what its tasks share."""

    def __init__(self, setting: Setting) -> None:
        root = str(Path(train_jobs.__file__).resolve().parents[1])
        path = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
        self._process = subprocess.Popen(
            [sys.executable, "-m", "train_jobs.corpus.executors.worker", str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": path, "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1"},
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._in, self.out = self._process.stdin, self._process.stdout
        self._heard = b""
        self._task: Task | None = None
        self._write(setting.model_dump_json())

    def give(self, task: Task) -> None:
        """A task, when it has none."""
        self._task = task
        self._write(task.model_dump_json())

    def hear(self) -> list[dict[str, Any]]:
        """What it has said; waits if it has said nothing.

        Raises:
            UserError: what it met.
            OutOfMemoryError: it was killed.
        """
        fresh = os.read(self.out.fileno(), READ_AT_ONCE)
        if not fresh:
            raise self._lost()
        *lines, self._heard = (self._heard + fresh).split(b"\n")
        messages = [json.loads(line) for line in lines]
        if errors := [message["error"] for message in messages if "error" in message]:
            raise _as_raised(errors[0])
        return messages

    def end(self) -> None:
        """At once if it is at work; what it has half-written has no record."""
        self._process.kill()
        for stream in (self._in, self.out):
            with suppress(OSError):
                stream.close()
        self._process.wait()

    def _write(self, line: str) -> None:
        with suppress(BrokenPipeError):  # whoever waits for its answer will learn that it is gone
            self._in.write(line.encode() + b"\n")
            self._in.flush()

    def _lost(self) -> UserError:
        code = self._process.wait()
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        where = f"part {self._task.part.get('name', self._task.number)}" if self._task else "at its start"
        return OutOfMemoryError(
            f"a worker ended with {how}",
            facts={"where": where, "why": "SIGKILL without a word is most often the kernel's, for want of memory"},
            fix="the same command with --set data.workers=1 goes on (orchestrator submit: --new as well)",
        )


def _as_raised(error: dict[str, Any]) -> UserError:
    """The error that the worker met."""
    return KINDS.get(error["kind"], UserError)(error["message"], facts=error["facts"], fix=error["fix"])
