"""A run's status, again and again until it has ended: in place on a terminal, a block for each change elsewhere."""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, TextIO

from orchestrator.cli.ui.render import next_commands, print_document, status_text
from orchestrator.cli.ui.terminal import live_view, redraws, show_block

if TYPE_CHECKING:
    from orchestrator.run import Run
    from orchestrator.runs.status import RunStatus

SECONDS = 1.0
TICKING = {"node_hours", "cost"}  # these grow while nothing happens


def watch(run: Run, stream: TextIO, style: str) -> int:
    """Shows how a run stands until it has ended; returns 0 however it did.

    With a style other than text only the last status is printed: stdout stays one document.
    """
    shown: RunStatus | None = None
    with ExitStack() as drawn:
        view = drawn.enter_context(live_view(stream)) if style == "text" and redraws(stream) else None
        while not (status := run.status()).state.terminal:
            if view is not None:
                show_block(view, status_text(status))
            elif style == "text" and (shown is None or changed(shown, status)):
                print(status_text(status), end="\n\n", file=stream, flush=True)
                shown = status
            time.sleep(SECONDS)
        if view is not None:
            view.transient = True  # the last status is printed below, whole; after Ctrl-C the last view stays
    if style != "text":
        print_document(status.as_dict(), style)
    else:
        print(status_text(status), file=stream, flush=True)
        next_commands(status)
    return 0


def changed(before: RunStatus, now: RunStatus) -> bool:
    """Whether anything but time went on between two looks."""
    return before.model_dump(exclude=TICKING) != now.model_dump(exclude=TICKING)
