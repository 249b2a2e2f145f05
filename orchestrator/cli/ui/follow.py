"""Following runs: their logs as they grow, their status as it changes. Ctrl-C stops following, never the job."""

from __future__ import annotations

import select
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, TextIO

from orchestrator.backends.log_query import LogBlock, LogQuery
from orchestrator.cli.ui.render import next_commands, status_text
from orchestrator.cli.ui.terminal import hint, live_view, print_document, print_result, redraws, show_block, write_line
from orchestrator.run import Run
from orchestrator.runs.status import RunState, RunStatus
from orchestrator.support.errors import ConflictError, Interrupted
from orchestrator.support.formatting import duration
from train_jobs.config.visible import visible, visible_log

ATTACH_LINES = 20  # last lines of the log that are printed when following starts late
PROGRESS_PREFIX = "step "  # of the job's progress lines; on a terminal, each replaces the previous one
QUIET_SECONDS = 10.0  # without output until the first heartbeat is printed
BEAT_SECONDS, BEAT_SECONDS_ELSEWHERE = 1.0, 60.0  # between two heartbeats, on a terminal and in a file
WATCH_SECONDS = 1.0
TICKING = {"node_hours", "cost", "observed"}  # grow while nothing happens


@contextmanager
def detach_on_interrupt(run: Run) -> Iterator[None]:
    """Turn Ctrl-C into an error that lists the commands for the job, which continues.

    Raises:
        Interrupted: Ctrl-C was pressed.
    """
    try:
        yield
    except KeyboardInterrupt:
        status = run.status()
        problem = Interrupted(
            "stopped following" if status.state.terminal else "stopped following; the job continues",
            facts={"run": run.handle, "state": status.state.value},
            fix=f"orchestrator logs {run.name} -f",
        )
        next_commands(status, lead="\n")
        raise problem from None


def follow_run(run: Run) -> None:
    """Print the logs of a run until it has finished.

    Raises:
        Interrupted: Ctrl-C was pressed; the job continues.
    """
    if run.follow_up()[1]:
        return
    if not run.created:
        hint(f"showing the last {ATTACH_LINES} lines; for all lines: orchestrator logs {run.name}")
    with detach_on_interrupt(run):
        print_logs(run, sys.stderr, LogQuery(follow=True, tail=None if run.created else ATTACH_LINES))
        run.wait()


def finish(run: Run, style: str, *, follow: bool) -> int:
    """Follow a run if asked to, then print its status; return the job's exit code.

    Args:
        run: the run.
        style: output format on stdout.
        follow: wait until it has finished.

    Raises:
        Interrupted: Ctrl-C was pressed; the job continues.
    """
    if follow:
        follow_run(run)
    status = run.status()
    if status.state == RunState.COMPLETED and (path := run.delivery) is not None:
        if path.parent.is_dir():
            try:
                hint(f"predictions  {run.deliver()}")
            except ConflictError as problem:  # the user's edits: the run is completed nevertheless
                hint(f"warning: {problem.message}; {problem.fix}")
        else:  # not an error: a run that was submitted elsewhere may name a folder that this machine does not have
            missing = f"no such folder: {path.parent}"
            hint(f"warning: predictions not written: {missing}; orchestrator download {run.name} predictions")
    finished = follow or status.state.terminal
    print_result(style, status.as_dict(), status_text(status) if finished else status.handle)
    if finished and style == "text":
        next_commands(status)
    return (status.exit_code or 1) if status.state.resumable else 0


def watch(run: Run, stream: TextIO, style: str) -> None:
    """Show the status of a run until it has finished: in place on a terminal, elsewhere as a block for each change.

    With a style other than text only the final status is printed, so that stdout is one document.
    """
    shown: RunStatus | None = None
    with ExitStack() as drawn:
        view = drawn.enter_context(live_view(stream)) if style == "text" and redraws(stream) else None
        while True:
            status, over = run.follow_up()
            if over:
                break
            if view is not None:
                show_block(view, status_text(status))
            elif style == "text" and (shown is None or changed(shown, status)):
                write_line(f"{status_text(status)}\n", stream)
                shown = status
            time.sleep(WATCH_SECONDS)
        if view is not None:
            # The final status is printed below in full: a live view crops it. After Ctrl-C the last view remains.
            view.transient = True
    if style != "text":
        print_document(status.as_dict(), style)
    else:
        write_line(status_text(status), stream)
        next_commands(status)


def changed(before: RunStatus, now: RunStatus) -> bool:
    """Return whether anything but time differs between two statuses."""
    return before.model_dump(exclude=TICKING) != now.model_dump(exclude=TICKING)


def print_logs(run: Run, stream: TextIO, query: LogQuery) -> bool:
    """Print logs as they grow, with a heartbeat on stderr while following; return whether anything was printed.

    Raises:
        BrokenPipeError: the reader of `stream` or of stdout closed it.
    """
    printer, heartbeat, anything = LogPrinter(stream, labels=query.several), Heartbeat(run, sys.stderr), False
    try:
        for block in run.log_blocks(query):
            if block.data:
                anything = True
                heartbeat.clear()
                printer.block(block)
            elif not printer.in_place:  # a progress line is a heartbeat itself
                heartbeat.beat()
            leave_without_reader()
        printer.end()
    finally:
        printer.leave_line()
        heartbeat.clear()
    return anything


class Heartbeat:
    """A line that shows that a quiet run is still followed: updated in place on a terminal, elsewhere printed rarely.

    Args:
        run: the run.
        stream: where the line is printed.
    """

    def __init__(self, run: Run, stream: TextIO) -> None:
        self._run = run
        self._stream = stream
        self._live = stream.isatty()
        self._shown = False
        self._quiet_since = time.monotonic()
        self._due = self._quiet_since + QUIET_SECONDS

    def beat(self) -> None:
        """Print the line if the run has been quiet for long enough."""
        now = time.monotonic()
        if now < self._due:
            return
        status = self._run.status()
        step = (
            f" at step {status.step} of {status.steps}" if status.steps is not None and status.step is not None else ""
        )
        text = f"waiting: {status.state}{step}, nothing printed for {duration(now - self._quiet_since)}"
        if status.state == RunState.QUEUED and status.warning:
            text += f" ({visible(status.warning)})"
        self._shown = self._live  # set before writing: after a Ctrl-C between the two the line must still be cleared
        self._stream.write(f"\r\x1b[K{text}" if self._live else f"{text}\n")
        self._stream.flush()
        self._due = now + (BEAT_SECONDS if self._live else BEAT_SECONDS_ELSEWHERE)

    def clear(self) -> None:
        """Erase the line before output is printed, and restart the clock."""
        if self._shown:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
            self._shown = False
        self._quiet_since = time.monotonic()
        self._due = self._quiet_since + QUIET_SECONDS


def leave_without_reader() -> None:
    """End the command if the other end of stdout is closed.

    `logs -f | head` would otherwise follow until the job's next line, which may be hours away: only a write fails.
    `attach 2>&1 | head` writes to stdout at its end alone.

    Raises:
        BrokenPipeError: it is closed.
    """
    try:
        descriptor = sys.stdout.fileno()
    except OSError:  # a stream without a file descriptor
        return
    poll = select.poll()
    poll.register(descriptor, 0)
    if any(event & select.POLLERR for _, event in poll.poll(0)):
        raise BrokenPipeError


class LogPrinter:
    """Print blocks of logs. On a terminal, progress lines of a single log replace each other.

    A terminal gets the colours of a log; other escape sequences are shown, not sent. A file or a pipe gets every byte.

    Output to a pipe or a file bypasses Python's buffers. This is fast for gigabytes, and after Ctrl-C the interpreter
    has no buffer left to flush, which would block on a reader that does not read.

    Args:
        stream: where the lines are printed.
        labels: begin each line with the label of its log.
    """

    def __init__(self, stream: TextIO, *, labels: bool = False) -> None:
        self._stream = stream
        self._labels = labels
        self._terminal = stream.isatty()
        self._live = self._terminal and not labels
        self._unfinished: str | None = None  # label of the log whose last line is incomplete
        self.in_place = False  # whether the cursor is after a progress line

    def block(self, block: LogBlock) -> None:
        """Print a block."""
        if self._live:
            for line in block.lines():
                self._line(visible_log(line.text))
            return
        label, data = block.source.label, block.data
        if self._terminal:
            lines = data.decode(errors="replace").split("\n")
            data = "\n".join(map(visible_log, lines)).encode()
        if self._labels:
            mark = f"[{label}] ".encode()
            data = data[:-1].replace(b"\n", b"\n" + mark) + data[-1:]
            data = data if self._unfinished == label else mark + data
        if self._unfinished not in (None, label):
            data = b"\n" + data
        self._write(data)
        self._unfinished = None if data.endswith(b"\n") else label

    def end(self) -> None:
        """End an incomplete last line."""
        if self._unfinished is not None:
            self._write(b"\n")

    def leave_line(self) -> None:
        """End a progress line."""
        if self.in_place:
            self._stream.write("\n")
            self._stream.flush()
            self.in_place = False

    def _line(self, text: str) -> None:
        if text.startswith(PROGRESS_PREFIX):
            self._stream.write(f"\r\x1b[K{text}")
            self.in_place = True
        else:
            self.leave_line()
            self._stream.write(text + "\n")
        self._stream.flush()

    def _write(self, data: bytes) -> None:
        self._stream.flush()
        try:
            descriptor = self._stream.fileno()
        except OSError:  # a stream without a file descriptor, as in a notebook
            self._stream.write(data.decode(errors="replace"))
            return
        raw: Any = getattr(self._stream.buffer, "raw", self._stream.buffer)
        left = memoryview(data)
        while left:
            select.select((), (descriptor,), ())  # a pipe may be set not to block: then a write does nothing
            left = left[raw.write(left) or 0 :]
