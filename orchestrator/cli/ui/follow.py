"""Following a run: its log as it grows, and Ctrl-C that stops the following and never the job."""

from __future__ import annotations

import select
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

from orchestrator.backends.log_query import LogQuery
from orchestrator.cli.ui.render import LogPrinter, duration, next_commands
from orchestrator.runs.status import RunState
from orchestrator.support.errors import Interrupted

if TYPE_CHECKING:
    from orchestrator.run import Run
from pathlib import Path

ATTACH_LINES = 20  # of what a run has printed already, to one who comes back to it

QUIET_SECONDS = 10.0  # then a follower says that it is still there
BEAT_SECONDS, BEAT_SECONDS_ELSEWHERE = 1.0, 60.0  # between two beats, on a terminal and in a file


@contextmanager
def leaving_alone(run: Run) -> Iterator[None]:
    """Ctrl-C inside ends the command, tells that the job goes on and how to reach it.

    Raises:
        Interrupted: Ctrl-C came.
    """
    try:
        yield
    except KeyboardInterrupt:
        status = run.status()
        problem = Interrupted(
            "not following any more" if status.state.terminal else "not following any more; the job goes on",
            facts={"run": run.handle, "state": status.state.value},
            fix=f"orchestrator logs {run.name} -f",
        )
        next_commands(status, lead="\n")
        raise problem from None


def print_logs(run: Run, stream: TextIO, query: LogQuery) -> bool:
    """Prints logs as they come, with signs of life on stderr while it follows; False if there was nothing to print.

    Raises:
        BrokenPipeError: nobody reads `stream` any more.
    """
    printer, heartbeat, anything = LogPrinter(stream, labels=query.several), Heartbeat(run, sys.stderr), False
    try:
        for block in run.log_blocks(query):
            if block.data:
                anything = True
                heartbeat.clear()
                printer.block(block)
            elif _reader_left(stream):  # `logs -f | head`
                raise BrokenPipeError
            elif not printer.in_place:  # a progress line is a sign of life itself
                heartbeat.beat()
        printer.end()
    finally:
        printer.leave_line()
        heartbeat.clear()
    return anything


class Heartbeat:
    """Says that a run that prints nothing is being followed all the same: in place on a terminal, else rarely.

    Args:
        run: which one.
        stream: where to.
    """

    def __init__(self, run: Run, stream: TextIO) -> None:
        self._run = run
        self._stream = stream
        self._live = stream.isatty()
        self._shown = False
        self._quiet_since = time.monotonic()
        self._due = self._quiet_since + QUIET_SECONDS

    def beat(self) -> None:
        """There is nothing new."""
        now = time.monotonic()
        if now < self._due:
            return
        status = self._run.status()
        step = (
            f" at step {status.step} of {status.steps}" if status.steps is not None and status.step is not None else ""
        )
        text = f"waiting: {status.state}{step}, nothing printed for {duration(now - self._quiet_since)}"
        if status.state == RunState.QUEUED and status.warning:
            text += f" ({status.warning})"
        self._shown = self._live  # before it is: Ctrl-C may come in between, and what stands there is to go
        self._stream.write(f"\r\x1b[K{text}" if self._live else f"{text}\n")
        self._stream.flush()
        self._due = now + (BEAT_SECONDS if self._live else BEAT_SECONDS_ELSEWHERE)

    def clear(self) -> None:
        """Makes way for what there is."""
        if self._shown:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
            self._shown = False
        self._quiet_since = time.monotonic()
        self._due = self._quiet_since + QUIET_SECONDS


def _reader_left(stream: TextIO) -> bool:
    """True if the other end of a pipe is closed, which writing would only tell with the next line."""
    try:
        descriptor = stream.fileno()
    except OSError:  # a stream of Python's own
        return False
    poll = select.poll()
    poll.register(descriptor, 0)
    return any(event & select.POLLERR for _, event in poll.poll(0))


def finish(run: Run, style: str, *, follow: bool, delivery: Path | None = None) -> int:
    """Follow a run if asked to, then print its status; the exit code is the job's.

    Args:
        run: which.
        style: of the result on stdout.
        follow: wait for its end.
        delivery: where its predictions are put; None: where it was told at its submission.

    Raises:
        Interrupted: Ctrl-C; the job goes on.
    """
    from orchestrator.backends.log_query import LogQuery
    from orchestrator.cli.ui.follow import leaving_alone, print_logs
    from orchestrator.cli.ui.render import hint, next_commands, print_document, status_text
    from orchestrator.runs.status import RunState

    if follow and not run.status().state.terminal:
        if not run.created:
            hint(f"from its last {ATTACH_LINES} lines on; all of them: orchestrator logs {run.name}")
        with leaving_alone(run):
            print_logs(run, sys.stderr, LogQuery(follow=True, tail=None if run.created else ATTACH_LINES))
            run.wait()
    status = run.status()
    if status.state == RunState.COMPLETED and (path := run.deliver(delivery)) is not None:
        hint(f"predictions  {path}")
    if style != "text":
        print_document(status.as_dict(), style)
    elif follow or status.state.terminal:
        print(status_text(status), flush=True)
        next_commands(status)
    else:
        print(status.handle)
    return (status.exit_code or 1) if status.state.resumable else 0
