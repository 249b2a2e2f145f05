"""Text output about runs: the table of a list of MLflow's, the rows of a status, the commands to type next."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.cli.ui.run_list import VALIDATION, elapsed
from orchestrator.cli.ui.terminal import Terminal, aligned, hint, paint_word, table, terminal_of
from orchestrator.jobs.registry import run_kind
from orchestrator.runs.results import NOT_METRICS
from orchestrator.runs.status import EndCause, RunState, RunStatus
from orchestrator.support.formatting import ago, count, duration, money, score_text, when
from train_jobs.config.errors import in_shell
from train_jobs.config.visible import visible

if TYPE_CHECKING:
    from orchestrator.runs.mlflow_runs import MlflowRun

DATA_WAIT_SHOWN = 0.05  # share of the time from which waiting for data is shown
CAUSE_TEXTS: Mapping[EndCause | None, str] = {
    EndCause.MACHINE: "a machine of the run was lost or restarted",
    EndCause.DISK: "the disk was full",
    EndCause.DAMAGE: "the token store was damaged",
    EndCause.TIME: "the time limit was reached",
    EndCause.MEMORY: "memory ran out",
    EndCause.IMAGE: "the image could not be built or pulled",
    EndCause.MOUNT: "the data could not be mounted or downloaded",
    EndCause.QUOTA: "quota or capacity did not suffice",
}  # causes that neither the state nor the reason names
LABEL_COLUMNS = 14  # indent, longest label of a status, gap
FIGURES = (
    ("mlm_loss", "MLM loss", ".4f"),
    ("unigram_entropy", "unigram entropy", ".4f"),
    ("mlm_accuracy", "MLM accuracy", ".1%"),
    ("mlm_base_rate", "MLM base rate", ".1%"),
    ("nsp_accuracy", "NSP accuracy", ".1%"),
    ("nsp_base_rate", "NSP base rate", ".1%"),
)
PATH_FIELDS = ("folder", "page", "model", "store", "trace")  # fields of a status that hold a path or a link

Rows = list[tuple[str, str]]
"""Label and text."""


def mlflow_table(runs: Sequence[MlflowRun], terminal: Terminal | None = None) -> str:
    """Return a table of runs as MLflow knows them, and of ours."""
    rows = []
    for run in runs:
        score = "" if run.score is None else f"{run.score[0]} {score_text(run.score[1])}"
        place = run.experiment or "(not in MLflow)"
        rows.append([run.name, run.state.value, score, run.data_text, place, run.user or "", ago(run.created)])
    return table(rows, ["RUN", "STATE", "SCORE", "DATA", "EXPERIMENT", "USER", "STARTED"], terminal)


def status_text(status: RunStatus, terminal: Terminal | None = None) -> str:
    """Return the status of a run in the terminal's colours; each attempt of a restarted run takes one line."""
    terminal = terminal_of() if terminal is None else terminal
    rows: Rows = [("handle", status.handle), ("state", paint_word(status.state.value, terminal))]
    if status.reason and status.state != RunState.COMPLETED:
        first, *rest = status.reason.splitlines()
        rows += [("reason", first), *(("", line) for line in rest)]
    if status.state.terminal and status.attempts and (cause := status.attempts[-1].cause) in CAUSE_TEXTS:
        rows.append(("cause", CAUSE_TEXTS[cause]))
    if status.warning:
        rows.append(("warning", status.warning))
    rows.append(("submitted", when(status.created)))
    if status.started:
        rows.append(("time", elapsed(status)))
    rows += _attempts(status, terminal.columns)
    if status.step is not None:
        rows.append(_progress_row(status.step, status))
    if status.eta is not None:
        rows.append(("eta", f"{duration(status.eta - status.now)}, at {when(status.eta)} (estimate)"))
    if status.cost is not None:
        rows.append(("cost", f"{money(status.cost)} for {status.node_hours:.3g} node hours"))
    rows += _reported(status)
    if "sequences_per_second" in status.metrics:
        rows.append(("speed", _speed(status.metrics)))
    if best := status.best_checkpoint:
        rows.append(("best", f"checkpoint of {best.text}"))
    if status.results is not None:
        rows += status.results.rows
    rows += [(label, place) for label in PATH_FIELDS if (place := getattr(status, label))]
    return "\n".join([visible(status.name), *aligned(rows)])


def _reported(status: RunStatus) -> Rows:
    """Return what a run has reported; the metrics of the user's own command under their own names."""
    kind = run_kind(status.kind)
    if kind.scored:
        return _scores(status)
    if kind.trains or kind.makes_store:
        return _figures(status.metrics)
    shown = ", ".join(f"{visible(name)} {value:.6g}" for name, value in status.metrics.items())
    return [("metrics", shown)] if shown else []


def _scores(status: RunStatus) -> Rows:
    """Return the latest validation scores of a run that has no results yet."""
    measured = {
        key.removeprefix(VALIDATION): status.metrics[key] for key in status.metrics if key.startswith(VALIDATION)
    }
    shown = ", ".join(f"{name} {score_text(value)}" for name, value in measured.items() if name not in NOT_METRICS)
    return [("validation", shown)] if shown and status.results is None else []


def _progress_row(step: int, status: RunStatus) -> tuple[str, str]:
    """Return the progress of a run in the unit of its job."""
    if status.counts == "parts":
        return "parts", f"{step} done, over all preparation steps"
    done = f"{step} of {status.steps}" if status.steps is not None else str(step)
    return ("step", done) if status.counts == "steps" else (status.counts, f"{done} done")


def _attempts(status: RunStatus, columns: int | None) -> Rows:
    """Return how each attempt of a restarted run ended."""
    if status.attempt == 1:
        return []
    rows = [("attempt", str(status.attempt))]
    for number, attempt in enumerate(status.attempts, 1):
        lasted = duration((attempt.ended or status.now) - attempt.started)
        reached = f", step {attempt.step}" if attempt.step is not None else ""
        cause = f" ({attempt.cause})" if attempt.cause in CAUSE_TEXTS else ""
        line = f"{number}: {attempt.state.value}{cause}, {lasted}{reached}"
        if attempt.reason and attempt.ended:
            line += f": {attempt.reason.splitlines()[0]}"
        if columns is not None and len(line) > columns - LABEL_COLUMNS:
            line = f"{line[: columns - LABEL_COLUMNS - 3]}..."
        rows.append(("", line))
    return rows


def _figures(metrics: Mapping[str, float]) -> Rows:
    """Return the reported figures: progress of a preparation, one line each for training and validation."""
    rows = [
        (
            step,
            f"{count(int(metrics[f'{step}_documents']))} documents, {metrics[f'{step}_mb_per_second']:.1f} MB/s"
            + (f", {count(int(workers))} workers" if (workers := metrics.get(f"{step}_workers", 1)) > 1 else ""),
        )
        for step in ("documents", "tokens")
        if f"{step}_documents" in metrics
    ]
    if "mb_per_second" in metrics:
        amount = f"{count(int(metrics['tokens']))} tokens in {count(int(metrics['documents']))} documents"
        rows.append(("result", f"{amount}, {metrics['mb_per_second']:.1f} MB/s overall"))
    for split in ("train", "validation"):
        found = ((label, metrics.get(f"{split}_{key}"), style) for key, label, style in FIGURES)
        if parts := [f"{label} {value:{style}}" for label, value, style in found if value is not None]:
            rows.append((split, ", ".join(parts)))
    return rows


def _speed(metrics: Mapping[str, float]) -> str:
    parts = [f"{metrics['sequences_per_second']:.4g} sequences/s"]
    if "tokens_per_second" in metrics:
        parts.append(f"{metrics['tokens_per_second']:,.0f} tokens/s")
    if "mfu" in metrics:
        parts.append(f"MFU {metrics['mfu']:.1%}")
    if metrics.get("data_wait_share", 0.0) >= DATA_WAIT_SHOWN:
        parts.append(f"{metrics['data_wait_share']:.0%} waiting for data")
    return ", ".join(parts)


def next_commands(status: RunStatus, *, lead: str = "\nnext\n") -> None:
    """Print the commands that are useful for a run in its state."""
    name, state = status.name, status.state
    rows = {}
    # Started as .venv/bin/orchestrator, as the Makefile does: the commands below work only once it is activated.
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
