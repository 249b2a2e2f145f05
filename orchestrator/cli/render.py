"""How results look: documents on stdout; hints, progress and warnings on stderr."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from orchestrator.runs import RunState, RunStatus

PROGRESS_PREFIX = "step "  # the job's progress lines; on a terminal each takes the place of the one before
COLUMNS = 80
FIGURES = (
    ("mlm_loss", "MLM loss", ".4f"),
    ("unigram_entropy", "unigram entropy", ".4f"),
    ("mlm_accuracy", "MLM accuracy", ".1%"),
    ("nsp_accuracy", "NSP accuracy", ".1%"),
)


def print_document(document: Any, style: str) -> None:
    """One JSON or YAML document on stdout."""
    if style == "json":
        print(json.dumps(document, indent=2))
        return
    import yaml

    print(yaml.safe_dump(document, sort_keys=False), end="")


def hint(text: str) -> None:
    """Anything that is not the result."""
    print(text, file=sys.stderr, flush=True)


def table(rows: Iterable[Sequence[str]], header: Sequence[str]) -> str:
    """Columns as wide as their widest cell; the first is cut where the lines would not fit."""
    cells = [list(header), *[list(row) for row in rows]]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
    spare = COLUMNS - sum(widths[1:]) - 2 * (len(header) - 1)
    widths[0] = min(widths[0], max(spare, 20))
    for row in cells:
        if len(row[0]) > widths[0]:
            row[0] = row[0][: widths[0] - 3] + "..."
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells
    )


def status_text(status: RunStatus) -> str:
    """A run for humans."""
    rows: list[tuple[str, str]] = [("handle", status.handle), ("state", status.state.value)]
    if status.reason and status.state != RunState.COMPLETED:
        first, *rest = status.reason.splitlines()
        rows += [("reason", first), *(("", line) for line in rest)]
    rows.append(("submitted", when(status.created)))
    if status.started:
        rows.append(("time", duration((status.ended or time.time()) - status.started)))
    if status.attempt > 1:
        rows.append(("attempt", str(status.attempt)))
    if status.step is not None:
        rows.append(("step", f"{status.step} of {status.steps}"))
    rows += _figures(status.metrics)
    if best := status.best_checkpoint:
        rows.append(("best", f"checkpoint of step {best.step}, validation loss {best.validation_loss:.4f}"))
    rows += [(label, place) for label, place in (("folder", status.folder), ("model", status.model)) if place]
    width = max(len(label) for label, _ in rows)
    return "\n".join([status.name, *(f"  {label:<{width}}  {value}" for label, value in rows)])


def _figures(metrics: Mapping[str, float]) -> list[tuple[str, str]]:
    """Training and validation, each on one line; what a run did not report is left out."""
    rows = []
    for split in ("train", "validation"):
        parts = [
            f"{label} {metrics[f'{split}_{key}']:{style}}"
            for key, label, style in FIGURES
            if f"{split}_{key}" in metrics
        ]
        if parts:
            rows.append((split, ", ".join(parts)))
    if "sequences_per_second" in metrics:
        rows.append(("speed", f"{metrics['sequences_per_second']:.4g} sequences/s"))
    return rows


def next_commands(status: RunStatus, *, lead: str = "\nnext\n") -> None:
    """Hints at what one would type next about a run, by its state."""
    name, state = status.name, status.state
    rows = {}
    if shutil.which("orchestrator") is None and (activate := Path(sys.prefix, "bin", "activate")).exists():
        rows["first"] = f"source {activate}"
    rows["status"] = f"orchestrator status {name}"
    rows["logs"] = f"orchestrator logs {name}" + ("" if state.terminal else " -f")
    if not state.terminal:
        rows["cancel"] = f"orchestrator cancel {name}"
    if state.resumable:
        rows["resume"] = f"orchestrator resume {name}"
    if state == RunState.COMPLETED:
        rows["report"] = f"orchestrator report {name}"
        if status.tracking_uri:
            rows["mlflow"] = f"mlflow ui --backend-store-uri {status.tracking_uri}"
    hint(lead + "\n".join(f"  {label:<7} {command}" for label, command in rows.items()) + "\n")


def when(seconds: float) -> str:
    """Local time."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def duration(seconds: float) -> str:
    """`3 s`, `2 min 05 s`, `1 h 02 min`."""
    minutes, rest = divmod(int(max(seconds, 0)), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"


class LogPrinter:
    """Log lines as they come; progress lines stay in place on a terminal."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._live = stream.isatty()
        self._open = False

    def line(self, text: str) -> None:
        """Prints one line."""
        if self._live and text.startswith(PROGRESS_PREFIX):
            self._stream.write(f"\r\x1b[K{text}")
            self._open = True
        else:
            self.close()
            self._stream.write(text + "\n")
        self._stream.flush()

    def close(self) -> None:
        """Ends a progress line."""
        if self._open:
            self._stream.write("\n")
            self._open = False
