"""Batches that another process makes, so that the thread that launches kernels does not wait for the GIL.

    python -m train_jobs.engine.loop.batch_process PARENT_PID

256 sequences of 128 tokens take some 3 ms of a core to plan, assemble, mask, pack and stage. In a thread these delay
the next kernels: on an H200 a step took 1.09 and 1.11 times as long. Here a thread only waits for the arrays and reads
them into pinned memory, both without the GIL.

The process reads JSON, line by line: first `sys.path` and a `Maker`, then requests. It answers with a line that has the
places of the arrays, and their bytes. Until it is ready, and if it ends, whatever the cause, the loop makes its batches
itself: an error of the data is then raised where it always was.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib import import_module
from typing import Any, NamedTuple, Protocol, Self, runtime_checkable

import torch

from train_jobs.config.errors import UserError
from train_jobs.config.privacy import traceback_text
from train_jobs.engine.loop.gradients import split
from train_jobs.engine.loop.staging import Arrays, Place, StagedArrays
from train_jobs.engine.loop.task import Cursor, TrainingBatch
from train_jobs.engine.runtime.allocator import keep_freed_arrays
from train_jobs.engine.runtime.children import begin_child, start_child

PIPE_BYTES = 1 << 20  # what any user may ask for on Linux; a manifest can have as much, an answer some MB
READY = b"ready\n"  # first line of the process
END_SECONDS = 5.0  # that a process has to end after it has closed its pipe


class Maker(NamedTuple):
    """Description of an object that makes batches; all values are JSON."""

    function: str
    """MODULE:NAME of a function that returns the object, see `MakesBatches`."""
    arguments: Mapping[str, Any]
    """Its keyword arguments."""


class MakesBatches(Protocol):
    """Methods of a task that the process calls."""

    def train_batch(self, cursor: Cursor) -> tuple[Any, Cursor]:
        """See `TrainingTask.train_batch`; the batch has a method `arrays`."""

    def counts(self, batch: Any) -> list[float]:
        """See `TrainingTask.counts`."""

    def arrays(self, batch: Any) -> Arrays:
        """See `StagesBatches.arrays`."""


@runtime_checkable
class HasMaker(Protocol):
    """A task whose batches another process can make."""

    def batch_maker(self) -> Maker:
        """Return the description from which the other process makes the same batches."""

    def batch_from(self, arrays: Arrays) -> TrainingBatch:
        """Return the batch whose method `arrays` returned these."""


class MadeBatch(NamedTuple):
    """A share of a global batch that the process has made."""

    batch: TrainingBatch
    counts: list[float]
    staged: StagedArrays
    following: Cursor
    """Cursor of the next batch."""


class BatchProcess:
    """A process that makes batches, in a context that ends it.

    Args:
        task: the task.
        pinned: whether to read the arrays of micro batches into page-locked memory.
        warn: called once with a line of text if the process is lost.
    """

    def __init__(self, task: HasMaker, *, pinned: bool, warn: Callable[[str], None]) -> None:
        self._task, self._pinned, self._warn = task, pinned, warn
        self._process = start_child(__name__, str(os.getpid()))
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._in, self._out = self._process.stdin, self._process.stdout
        if hasattr(fcntl, "F_SETPIPE_SZ"):  # on Linux
            for stream in (self._in, self._out):
                with suppress(OSError):  # faster only
                    fcntl.fcntl(stream, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        self._ready = self._lost = False
        self._ask({"path": sys.path, "maker": task.batch_maker()})  # own code is found in the same folders

    def make(self, cursor: Cursor, micro_batch_size: int) -> MadeBatch | None:
        """Return the share at a cursor, or None if the process is not ready yet, or lost.

        One thread at a time may call it.

        Args:
            cursor: position in the data.
            micro_batch_size: sequences of a micro batch.
        """
        if self._lost:
            return None
        try:
            if not self.is_ready():
                return None
            self._ask({"cursor": cursor, "micro_batch_size": micro_batch_size})
            answer = json.loads(self._out.readline())
            whole, micros = answer["arrays"]
            batch, staged = self._read(*whole, pinned=False), self._read(*micros, pinned=self._pinned)
        except (EOFError, ValueError):
            self._lost = True
            self._warn(f"the process that makes batches ended with {self._end()}; a thread makes them now")
            return None
        arrays = {name: view.numpy() for name, view in batch.on_host()[0].items()}
        return MadeBatch(self._task.batch_from(arrays), answer["counts"], staged, answer["following"])

    def is_ready(self, seconds: float = 0.0) -> bool:
        """Return whether the process is ready, after at most some seconds.

        Raises:
            EOFError: the process is lost.
        """
        if not self._ready and select.select([self._out], [], [], seconds)[0]:
            if self._out.readline() != READY:
                raise EOFError
            self._ready = True
        return self._ready

    def _ask(self, request: Mapping[str, Any]) -> None:
        with suppress(BrokenPipeError):  # `make` notices the loss when it reads
            self._in.write(json.dumps(request).encode() + b"\n")
            self._in.flush()

    def _read(self, size: int, places: list[dict[str, list[Any]]], *, pinned: bool) -> StagedArrays:
        found = [{name: Place(*place) for name, place in one.items()} for one in places]
        buffer = torch.empty(size, dtype=torch.uint8, pin_memory=pinned)
        if self._out.readinto(buffer.numpy()) < size:  # type: ignore[attr-defined]
            raise EOFError
        return StagedArrays(found, buffer)

    def _end(self) -> str:
        """Return how the process ended, as text."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(END_SECONDS)
        self._process.kill()
        code = self._process.wait()
        return signal.Signals(-code).name if code < 0 else f"exit code {code}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *problem: object) -> None:
        self._process.kill()
        for stream in (self._in, self._out):
            with suppress(OSError):
                stream.close()
        self._process.wait()


def main() -> int:
    """Make batches until stdin ends or one fails; return an exit code."""
    if (stream := begin_child(int(sys.argv[1]))) is None:
        return 1
    keep_freed_arrays()
    try:
        first = json.loads(sys.stdin.readline())
        sys.path[:] = first["path"]
        maker = Maker(*first["maker"])
        module, _, name = maker.function.partition(":")
        batches: MakesBatches = getattr(import_module(module), name)(**maker.arguments)
        stream.write(READY)
        stream.flush()
        for line in sys.stdin:
            request = json.loads(line)
            batch, following = batches.train_batch(request["cursor"])
            micros = [batches.arrays(micro) for micro in split(batch, request["micro_batch_size"])]
            made = [StagedArrays.copied(arrays, pinned=False) for arrays in ([batch.arrays()], micros)]
            sizes = [(len(staged.buffer), staged.places) for staged in made]
            answer = {"counts": batches.counts(batch), "following": following, "arrays": sizes}
            stream.write(json.dumps(answer).encode() + b"\n")
            for staged in made:
                stream.write(staged.buffer.numpy().data)
            stream.flush()
    except UserError:
        return 1  # the loop meets the same error, and reports it
    except Exception as problem:
        print(traceback_text(problem), file=sys.stderr, flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
