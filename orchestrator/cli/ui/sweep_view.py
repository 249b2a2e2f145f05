"""Text output about sweeps, and following them. Ctrl-C stops following, never the sweep."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from orchestrator.cli.ui import follow
from orchestrator.cli.ui.terminal import (
    MIN_COLUMN_WIDTH,
    Terminal,
    aligned,
    hint,
    paint_word,
    print_result,
    shortened,
    table,
    terminal_of,
    write_line,
)
from orchestrator.run import Run
from orchestrator.specs.settings import settings_text
from orchestrator.support.errors import Interrupted
from orchestrator.support.formatting import duration
from orchestrator.sweep import PlannedSweep, Sweep
from orchestrator.sweeps.driver.sweep_status import SweepStatus, TrialRow
from train_jobs.config.visible import visible

HEAD_LINES = 2  # the line of progress and the table's header


def plan_text(planned: PlannedSweep) -> str:
    """Return a planned sweep as facts."""
    return "\n".join(aligned([("sweep", planned.record.name), *planned.facts()]))


@contextmanager
def detach_on_interrupt(found: Run | Sweep) -> Iterator[None]:
    """Turn Ctrl-C into an error that lists the commands for the run or the sweep, which continues.

    Raises:
        Interrupted: Ctrl-C was pressed.
    """
    if isinstance(found, Run):
        with follow.detach_on_interrupt(found):
            yield
        return
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted(
            "stopped following; the sweep continues",
            facts={"sweep": found.name, "cancel": f"orchestrator cancel {found.name}"},
            fix=f"orchestrator sweep show {found.name} -w",
        ) from None


def finish(found: Run | Sweep, style: str, *, followed: bool) -> int:
    """Follow a run or a sweep if asked to, then print its status; return the exit code.

    Raises:
        Interrupted: Ctrl-C was pressed; the sweep continues.
    """
    if isinstance(found, Run):
        return follow.finish(found, style, follow=followed)
    if followed:
        follow_sweep(found)
    status = found.status()
    finished = followed or status.state.terminal
    print_result(style, status.as_dict(), sweep_text(status) if finished else status.name)
    commands = {"show": f"orchestrator sweep show {found.name}", "best": f"orchestrator sweep best {found.name}"}
    if status.state.resumable and found.may_start_trials:
        commands["resume"] = found.resume_command()
    hint("\nnext" + "".join(f"\n  {label:<6}  {command}" for label, command in commands.items()))
    return 1 if status.state.resumable else 0


def follow_sweep(sweep: Sweep) -> None:
    """Show the trials until the sweep has finished: as a table in place on a terminal, else a line for each change.

    Raises:
        Interrupted: Ctrl-C was pressed; the sweep continues.
    """
    shown = SweepFollower(live=sys.stderr.isatty())
    with detach_on_interrupt(sweep):
        while True:
            status = sweep.status()
            shown.update(status)
            if status.state.terminal:
                return
            follow.leave_without_reader()
            time.sleep(sweep.poll_seconds)


class SweepFollower:
    """Trials of a followed sweep: a table redrawn in place, or a line for each change.

    Args:
        live: whether the table is redrawn in place.
    """

    def __init__(self, *, live: bool) -> None:
        self._live = live
        self._lines = 0
        self._printed: dict[int, str] = {}

    def update(self, status: SweepStatus) -> None:
        """Show what changed."""
        if self._live:
            columns, rows = shutil.get_terminal_size()
            lines = fitted(sweep_text(status, Terminal(columns - 1)).splitlines(), columns, rows)
            sys.stderr.write((f"\x1b[{self._lines}A\x1b[J" if self._lines else "") + "\n".join(lines) + "\n")
            sys.stderr.flush()
            self._lines = len(lines)
            return
        for row in status.rows:
            if self._printed.get(row.trial) != row.state:
                self._printed[row.trial] = row.state
                write_line(row_line(row), sys.stderr)


def fitted(lines: list[str], columns: int, rows: int) -> list[str]:
    """Return the head of a table and its newest trials, as many as a terminal can redraw in place.

    Args:
        lines: the table.
        columns, rows: size of the terminal.
    """
    # The cursor cannot move above the screen: a taller table would be printed again, below itself, at every update.
    room = max(rows - 1, HEAD_LINES + 1)
    kept = lines if len(lines) <= room else [*lines[:HEAD_LINES], *lines[len(lines) - room + HEAD_LINES :]]
    return [line[: columns - 1] for line in kept]


def row_line(row: TrialRow) -> str:
    """Return a trial whose state changed, in one line."""
    outcome = "" if row.outcome is None else f"  {row.outcome:.6g}"
    return f"trial {row.trial}  {row.state}{outcome}  {visible(row.why or settings_text(row.settings))}"


def sweep_text(status: SweepStatus, terminal: Terminal | None = None) -> str:
    """Return a sweep and the table of its trials; the best one is marked with *."""
    header = ("", "TRIAL", "STATE", "LAST", "BEST", "REPORTS", "TIME", "SETTINGS")
    rows = [
        (
            "*" if row.incumbent else "",
            str(row.trial),
            row.state,
            _number(row.last),
            _number(row.best),
            str(row.reports),
            duration(row.seconds),
            settings_text(row.settings, longest=None),
        )
        for row in status.rows
    ]
    return "\n".join([_lead(status, terminal or terminal_of()), table(rows, header, terminal)])


def _lead(status: SweepStatus, terminal: Terminal) -> str:
    """Return name, state and progress; on a narrow terminal the name, then the reason, are shortened."""
    state, reason = status.state.value, f": {visible(status.reason)}" if status.reason else ""
    rest = f", {status.ended} of {status.trials} trials, {status.goal} {status.metric}"
    rest += "".join(f", warm start from {earlier.text}" for earlier in status.earlier)
    room = None if terminal.columns is None else terminal.columns - len(f"  {state}{rest}")
    name = shortened(status.name, room if room is None else max(room - len(reason), 2 * MIN_COLUMN_WIDTH))
    reason = shortened(reason, room if room is None else max(room - len(name), MIN_COLUMN_WIDTH))
    return f"{name}  {paint_word(state, terminal)}{reason}{rest}"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.5g}"


def best_text(status: SweepStatus) -> str:
    """Return the outcome of the best trial; empty if no trial has one."""
    return "" if status.best is None else f"{_number(status.best.outcome)} (trial {status.best.trial})"
