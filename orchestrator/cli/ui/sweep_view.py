"""Sweep view."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from orchestrator.cli.ui.terminal import Terminal
    from orchestrator.sweep import PlannedSweep, Sweep
    from orchestrator.sweeps.driver.sweep_status import SweepStatus, TrialRow

HEAD_LINES = 2  # of the table


def plan_text(planned: PlannedSweep) -> str:
    """A planned sweep for humans."""
    rows = [("sweep", planned.record.name), *planned.facts()]
    width = max(len(label) for label, _ in rows)
    return "\n".join(f"  {label:<{width}}  {text}" for label, text in rows)


def follow(sweep: Sweep) -> None:
    """Shows the table until the sweep has ended: in place on a terminal, else a line whenever a trial begins or ends.

    Raises:
        Interrupted: Ctrl-C; the sweep goes on.
    """
    shown = SweepFollower(live=sys.stderr.isatty())
    with leaving_alone(sweep):
        while True:
            status = sweep.status()
            shown.update(status)
            if status.state.terminal:
                return
            time.sleep(sweep.poll_seconds)


@contextmanager
def leaving_alone(sweep: Sweep) -> Iterator[None]:
    """End the command on Ctrl-C, and print that the sweep continues and how to reach it.

    Raises:
        Interrupted: Ctrl-C came.
    """
    from orchestrator.support.errors import Interrupted

    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted(
            "not following any more; the sweep goes on",
            facts={"sweep": sweep.name, "cancel": f"orchestrator cancel {sweep.name}"},
            fix=f"orchestrator sweep show {sweep.name} -w",
        ) from None


class SweepFollower:
    """What a follower has seen already.

    Args:
        live: whether the table may be redrawn in place.
    """

    def __init__(self, *, live: bool) -> None:
        self._live = live
        self._lines = 0
        self._told: dict[int, str] = {}

    def update(self, status: SweepStatus) -> None:
        """Shows what is new."""
        from orchestrator.cli.ui.terminal import Terminal

        if self._live:
            columns, rows = shutil.get_terminal_size()
            lines = fitted(sweep_text(status, Terminal(columns - 1)).splitlines(), columns, rows)
            sys.stderr.write((f"\x1b[{self._lines}A\x1b[J" if self._lines else "") + "\n".join(lines) + "\n")
            sys.stderr.flush()
            self._lines = len(lines)
            return
        for row in status.rows:
            if self._told.get(row.trial) != row.state:
                self._told[row.trial] = row.state
                print(row_line(row), file=sys.stderr, flush=True)


def fitted(lines: list[str], columns: int, rows: int) -> list[str]:
    """What of a table a terminal has room for, its head and the newest trials: more could not be redrawn in place."""
    room = max(rows - 1, HEAD_LINES + 1)
    kept = lines if len(lines) <= room else [*lines[:HEAD_LINES], *lines[len(lines) - room + HEAD_LINES :]]
    return [line[: columns - 1] for line in kept]


def row_line(row: TrialRow) -> str:
    """A trial whose state changed, in one line."""
    from orchestrator.specs.settings import settings_text

    told = "" if row.outcome is None else f"  {row.outcome:.6g}"
    return f"trial {row.trial}  {row.state}{told}  {row.why or settings_text(row.settings)}"


def sweep_text(status: SweepStatus, terminal: Terminal | None = None) -> str:
    """A sweep and its trials for humans; the incumbent has a star."""
    from orchestrator.cli.ui.render import duration
    from orchestrator.cli.ui.terminal import table, terminal_of
    from orchestrator.specs.settings import settings_text

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
    """Name, state and how far it is; on a terminal the name, and then the reason, give way."""
    from orchestrator.cli.ui.terminal import NARROWEST, paint_word, shortened

    state, reason = status.state.value, f": {status.reason}" if status.reason else ""
    rest = f", {status.ended} of {status.trials} trials, {status.goal} {status.metric}"
    rest += "".join(f", began with {earlier.text}" for earlier in status.earlier)
    room = None if terminal.columns is None else terminal.columns - len(f"  {state}{rest}")
    name = shortened(status.name, room if room is None else max(room - len(reason), 2 * NARROWEST))
    reason = shortened(reason, room if room is None else max(room - len(name), NARROWEST))
    return f"{name}  {paint_word(state, terminal)}{reason}{rest}"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.5g}"


def _best_text(status: SweepStatus) -> str:
    return "" if status.best is None else f"{_number(status.best.outcome)} (trial {status.best.trial})"


def _finish(sweep: Sweep, style: str, *, followed: bool) -> int:
    """Follow a sweep if asked to, then print its status."""
    from orchestrator.cli.ui.render import hint, print_document

    if followed:
        follow(sweep)
    status = sweep.status()
    if style != "text":
        print_document(status.as_dict(), style)
    elif followed or status.state.terminal:
        print(sweep_text(status))
    else:
        print(status.name)
    hint(f"\nnext\n  show  orchestrator sweep show {sweep.name}\n  best  orchestrator sweep best {sweep.name}")
    return 1 if status.state.resumable else 0
