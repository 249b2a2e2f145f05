"""How results look: documents on stdout; hints, progress and warnings on stderr."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from orchestrator.cli.ui.terminal import Terminal, paint_word, table, terminal_of
from orchestrator.cli.ui.terminal import hint as hint
from orchestrator.cli.ui.terminal import print_document as print_document
from orchestrator.jobs.registry import run_kind
from orchestrator.runs.results import APART
from orchestrator.runs.status import RunState, RunStatus
from train_jobs.config.names import in_shell

if TYPE_CHECKING:
    from orchestrator.backends.log_query import LogBlock

PROGRESS_PREFIX = "step "  # the job's progress lines; on a terminal each takes the place of the one before
COLUMNS = 80
WORTH_TELLING = 0.05  # of the time
HELD_OUT = "validation_"  # how metrics of text that nothing is learned from begin
LABELS = 14  # columns that the longest label of a status takes
FIGURES = (
    ("mlm_loss", "MLM loss", ".4f"),
    ("unigram_entropy", "unigram entropy", ".4f"),
    ("mlm_accuracy", "MLM accuracy", ".1%"),
    ("nsp_accuracy", "NSP accuracy", ".1%"),
)


def run_table(runs: Sequence[RunStatus], terminal: Terminal | None = None) -> str:
    """Runs, a line each; what they cost where one of them has a price."""
    header = ["RUN", "STATE", "STEP", "TIME", "SUBMITTED"]
    rows = [
        [status.name, status.state.value, _progress(status), _lasted(status), ago(status.created)] for status in runs
    ]
    if any(status.cost is not None for status in runs):
        header.insert(4, "COST")
        for row, status in zip(rows, runs, strict=True):
            row.insert(4, "" if status.cost is None else money(status.cost))
    return table(rows, header, terminal)


def _progress(status: RunStatus) -> str:
    if status.steps is None:
        return "" if status.step is None else f"{count(status.step)} {status.counts}"
    return f"{count(status.step or 0)}/{count(status.steps)}" + (
        f" {status.counts}" if status.counts != "steps" else ""
    )


def _lasted(status: RunStatus) -> str:
    return "" if status.started is None else duration((status.ended or time.time()) - status.started)


def status_text(status: RunStatus, terminal: Terminal | None = None) -> str:
    """A run for humans; on a terminal in its colours, and what earlier attempts ended with in a line each."""
    terminal = terminal_of() if terminal is None else terminal
    rows: list[tuple[str, str]] = [("handle", status.handle), ("state", paint_word(status.state.value, terminal))]
    if status.reason and status.state != RunState.COMPLETED:
        first, *rest = status.reason.splitlines()
        rows += [("reason", first), *(("", line) for line in rest)]
    if status.warning:
        rows.append(("warning", status.warning))
    rows.append(("submitted", when(status.created)))
    if status.started:
        rows.append(("time", duration((status.ended or time.time()) - status.started)))
    rows += _attempts(status, terminal.columns)
    if status.step is not None:
        rows.append(_reached(status.step, status))
    if status.eta is not None:
        rows.append(("eta", f"{duration(status.eta - time.time())}, at {when(status.eta)} (estimate)"))
    if status.cost is not None:
        rows.append(("cost", f"{money(status.cost)} for {status.node_hours:.3g} node hours"))
    rows += _scores_so_far(status) if run_kind(status.kind).scored else _figures(status.metrics)
    if best := status.best_checkpoint:
        rows.append(("best", f"checkpoint of {best.text}"))
    if status.results is not None:
        rows += status.results.rows
    places = (
        ("folder", status.folder),
        ("page", status.page),
        ("model", status.model),
        ("store", status.store),
        ("trace", status.trace),
    )
    rows += [(label, place) for label, place in places if place]
    width = max(len(label) for label, _ in rows)
    return "\n".join([status.name, *(f"  {label:<{width}}  {value}" for label, value in rows)])


def _scores_so_far(status: RunStatus) -> list[tuple[str, str]]:
    """What was last measured, until there are results, and the speed."""
    measured = {
        name.removeprefix(HELD_OUT): status.metrics[name] for name in status.metrics if name.startswith(HELD_OUT)
    }
    shown = ", ".join(f"{name} {value:.4f}" for name, value in measured.items() if name not in APART)
    rows = [("validation", shown)] if shown and status.results is None else []
    if "sequences_per_second" in status.metrics:
        rows.append(("speed", _speed(status.metrics)))
    return rows


def _reached(step: int, status: RunStatus) -> tuple[str, str]:
    """How far it is, in what it counts."""
    if status.counts == "parts":
        return "parts", f"{step} done, over all steps"
    done = f"{step} of {status.steps}" if status.steps is not None else str(step)
    return ("step", done) if status.counts == "steps" else (status.counts, f"{done} done")


def _attempts(status: RunStatus, columns: int | None) -> list[tuple[str, str]]:
    """How each start of a run that was started more than once ended."""
    if status.attempt == 1:
        return []
    rows = [("attempt", str(status.attempt))]
    for number, attempt in enumerate(status.attempts, 1):
        lasted = duration((attempt.ended or time.time()) - attempt.started)
        reached = f", step {attempt.step}" if attempt.step is not None else ""
        line = f"{number}: {attempt.state.value}, {lasted}{reached}"
        if attempt.reason and attempt.ended:
            line += f": {attempt.reason.splitlines()[0]}"
        if columns is not None and len(line) > columns - LABELS:
            line = f"{line[: columns - LABELS - 3]}..."
        rows.append(("", line))
    return rows


def _figures(metrics: Mapping[str, float]) -> list[tuple[str, str]]:
    """Training and validation, each on one line; what a run did not report is left out."""
    rows = _preparation(metrics)
    for split in ("train", "validation"):
        parts = [
            f"{label} {metrics[f'{split}_{key}']:{style}}"
            for key, label, style in FIGURES
            if f"{split}_{key}" in metrics
        ]
        if parts:
            rows.append((split, ", ".join(parts)))
    if "sequences_per_second" in metrics:
        rows.append(("speed", _speed(metrics)))
    return rows


def _preparation(metrics: Mapping[str, float]) -> list[tuple[str, str]]:
    """What a preparation has done, step by step, and in the end."""
    rows = [
        (step, f"{count(int(metrics[f'{step}_documents']))} documents, {metrics[f'{step}_mb_per_second']:.1f} MB/s")
        for step in ("documents", "tokens")
        if f"{step}_documents" in metrics
    ]
    if "mb_per_second" in metrics:
        told = f"{count(int(metrics['tokens']))} tokens in {count(int(metrics['documents']))} documents"
        rows.append(("result", f"{told}, {metrics['mb_per_second']:.1f} MB/s in all"))
    return rows


def _speed(metrics: Mapping[str, float]) -> str:
    parts = [f"{metrics['sequences_per_second']:.4g} sequences/s"]
    if "tokens_per_second" in metrics:
        parts.append(f"{metrics['tokens_per_second']:,.0f} tokens/s")
    if "mfu" in metrics:
        parts.append(f"MFU {metrics['mfu']:.1%}")
    if metrics.get("data_wait_share", 0.0) >= WORTH_TELLING:
        parts.append(f"{metrics['data_wait_share']:.0%} of it waiting for data")
    return ", ".join(parts)


def next_commands(status: RunStatus, *, lead: str = "\nnext\n") -> None:
    """Hints at what one would type next about a run, by its state."""
    name, state = status.name, status.state
    rows = {}
    if shutil.which("orchestrator") is None and (activate := Path(sys.prefix, "bin", "activate")).exists():
        rows["first"] = f"source {in_shell(activate)}"
    rows["status"] = f"orchestrator status {name}"
    rows["logs"] = f"orchestrator logs {name}" + ("" if state.terminal else " -f")
    if not state.terminal:
        rows["cancel"] = f"orchestrator cancel {name}"
    if state.resumable:
        rows["resume"] = f"orchestrator resume {name}"
    if state == RunState.COMPLETED:
        rows |= run_kind(status.kind).next_commands(status)
        if status.tracking_uri and status.page is None:
            rows["mlflow"] = f"mlflow ui --backend-store-uri {in_shell(status.tracking_uri)}"
    if status.tensorboard:
        rows["curves"] = f"tensorboard --logdir {in_shell(status.tensorboard)}"
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


def ago(seconds: float) -> str:
    """How long ago, in one unit: `3 min ago`, `12 d ago`."""
    passed = max(time.time() - seconds, 0)
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if passed >= size:
            return f"{int(passed // size)} {unit} ago"
    return f"{int(passed)} s ago"


def money(usd: float) -> str:
    """`$0.42`, `$1,234`; what is less than a cent says so."""
    if 0 < usd < 0.005:
        return "<$0.01"
    return f"${usd:,.2f}" if usd < 1000 else f"${usd:,.0f}"


def count(number: int) -> str:
    """`7038`, `100k`, `1.5M`: of at most five figures."""
    for unit, size in (("M", 1_000_000), ("k", 1000)):
        if number >= 100_000 and number >= size:
            return f"{number / size:.4g}{unit}"
    return str(number)


def counted(number: int, noun: str) -> str:
    """`1 run`, `2 runs`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


class LogPrinter:
    """Blocks of logs as they come. Progress lines of a single log stay in place on a terminal.

    What is not for a terminal goes past Python's buffers: as fast as it can be read, and nothing is left to be flushed
    to a reader who does not read when Ctrl-C comes.

    Args:
        stream: where to.
        labels: say in front of each line who wrote it.
    """

    def __init__(self, stream: TextIO, *, labels: bool = False) -> None:
        self._stream = stream
        self._labels = labels
        self._live = stream.isatty() and not labels
        self._unfinished: str | None = None  # whose line waits for its end
        self.in_place = False  # the cursor is behind a progress line

    def block(self, block: LogBlock) -> None:
        """Prints lines."""
        if self._live:
            for line in block.lines():
                self._line(line.text)
            return
        label, data = block.source.label, block.data
        if self._labels:
            mark = f"[{label}] ".encode()
            data = data[:-1].replace(b"\n", b"\n" + mark) + data[-1:]
            data = data if self._unfinished == label else mark + data
        if self._unfinished not in (None, label):
            data = b"\n" + data
        self._write(data)
        self._unfinished = None if data.endswith(b"\n") else label

    def end(self) -> None:
        """Nothing more comes: ends a last line that has no end."""
        if self._unfinished is not None:
            self._write(b"\n")

    def leave_line(self) -> None:
        """Ends a progress line."""
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
        except OSError:  # a stream of Python's own, as in a notebook
            self._stream.write(data.decode(errors="replace"))
            return
        left = memoryview(data)
        while left:
            left = left[os.write(descriptor, left) :]
