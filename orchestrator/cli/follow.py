"""Following a run: its log as it grows, and Ctrl-C that stops the following and never the job."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

from orchestrator.cli.render import LogPrinter, next_commands
from orchestrator.errors import Interrupted

if TYPE_CHECKING:
    from orchestrator.client import Run


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


def follow_log(run: Run, stream: TextIO, *, rank: int = 0, follow: bool = True) -> None:
    """Prints a rank's log; progress lines stay in place on a terminal."""
    printer = LogPrinter(stream)
    try:
        for line in run.logs(follow=follow, rank=rank):
            printer.line(line.text)
    finally:
        printer.close()
