"""One trial: a submission, a fault, the commands of a user until the end, and which promises held."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from orchestrator.backends.local.backend import LocalBackend
from orchestrator.runs.status import RunState, RunStatus
from tests.conftest import Console
from tests.faults.campaign.faults import FAULTS, processes
from tests.faults.campaign.jobs import JOBS, inputs, metric_points
from train_jobs.config.fields import Config

COMMANDS = 6  # that a user may need until the job is done
LEFT_BEHIND = ("runs/.*", "sweeps/.*", "token-stores/.*.building", "**/*.tmp", "**/torchelastic_*", "**/.probe-*")
SETTLING = 60.0  # seconds that processes have to end after the last command


class Undisturbed(Config):
    """A job without a fault."""

    seconds: float
    digest: str
    metrics: list[tuple[str, int, str, float]]


class Outcome(Config):
    """The line of a trial in results.jsonl."""

    fault: str
    kind: str
    seed: int
    moment: float
    """Share of the undisturbed duration at which it happened."""
    commit: str
    date: str
    same_bytes: bool
    metrics_once: bool
    mlflow_runs: bool
    """Whether each run is one MLflow run."""
    processes_left: list[str]
    files_left: list[str]
    reason: str
    """Reason of the run that ended by it; empty: none did."""
    reason_true: bool
    noticed: float | None = None
    """Seconds until the status reported the end."""
    commands: list[str]
    """What a user typed until the job was done."""
    problem: str = ""
    """Why the job did not get done."""

    @property
    def passed(self) -> bool:
        """Whether every promise held."""
        kept = self.same_bytes and self.metrics_once and self.mlflow_runs and self.reason_true
        return kept and not (self.processes_left or self.files_left or self.problem)


def undisturbed(kind: str) -> Undisturbed:
    """Run a job of a kind without a fault."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        console = Console(Path(folder), inputs(kind))
        started = time.monotonic()
        done = console(*JOBS[kind].words)
        seconds = time.monotonic() - started
        assert done.code == 0, done.err
        assert not _left(console.home)
        return Undisturbed(
            seconds=seconds,
            digest=JOBS[kind].digest(console.home),
            metrics=metric_points(console.home),
        )


def run_trial(fault: str, kind: str, seed: int, reference: Undisturbed, stamp: dict[str, str]) -> Outcome | None:
    """Run one trial; None: at its moment there was nothing that the fault could hit.

    Args:
        fault: name of the fault.
        kind: kind of job.
        seed: decides the moment.
        reference: the job without a fault.
        stamp: commit and date.
    """
    moment = random.Random(f"{fault}/{kind}/{seed}").random()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        console = Console(Path(folder), inputs(kind))
        command = console.start(*JOBS[kind].words)
        time.sleep(moment * reference.seconds)
        hit, at = FAULTS[fault].hit(console.home), time.monotonic()
        command.communicate()
        if not hit:
            _end_all(console.home)
            return None
        ended, noticed = _ended(console.home, at)
        commands, problem = _bring_to_its_end(console, kind)
        left = _left(console.home)  # first: the last copy to MLflow may still run
        reason = (ended.reason or "") if ended is not None else ""
        return Outcome(
            fault=fault,
            kind=kind,
            seed=seed,
            moment=round(moment, 4),
            **stamp,
            same_bytes=JOBS[kind].digest(console.home) == reference.digest,
            metrics_once=_named_alike(metric_points(console.home)) == _named_alike(reference.metrics),
            mlflow_runs=_one_mlflow_run_each(console.home),
            processes_left=left,
            files_left=sorted(
                str(path.relative_to(console.home)) for one in LEFT_BEHIND for path in console.home.glob(one)
            ),
            reason=reason,
            reason_true=_is_true(reason, FAULTS[fault].reasons, ended=ended is not None),
            noticed=noticed,
            commands=commands,
            problem=problem,
        )


def _runs(home: Path) -> list[RunStatus]:
    return list(LocalBackend(home).list())


def _ended(home: Path, at: float) -> tuple[RunStatus | None, float | None]:
    """Return the run that ended without completing, and the seconds until its status reported it."""
    while True:
        runs = _runs(home)
        for run in runs:
            if run.state.terminal and run.state != RunState.COMPLETED:
                return run, round(time.monotonic() - at, 1)
        if not processes(home) or all(run.state.terminal for run in runs):
            return None, None
        time.sleep(0.2)


def _bring_to_its_end(console: Console, kind: str) -> tuple[list[str], str]:
    """Type what a user types until the job is done; return the commands, and the last error if it is not done."""
    typed: list[str] = []
    for _ in range(COMMANDS):
        words = _next_command(console, kind)
        if words is None:
            return typed, ""
        typed.append(" ".join(words))
        done = console(*words)
    return typed, done.err[-500:] or "not completed"


def _next_command(console: Console, kind: str) -> tuple[str, ...] | None:
    if JOBS[kind].is_sweep:
        sweeps = sorted(path.name for path in (console.home / "sweeps").glob("[!.]*"))
        if not sweeps:
            return JOBS[kind].words
        state = console("sweep", "show", sweeps[0], "-o", "json").json["state"]
        return None if state == "completed" else ("resume" if state in ("failed", "cancelled") else "wait", sweeps[0])
    runs = _runs(console.home)
    if not runs:
        return JOBS[kind].words
    if runs[0].state == RunState.COMPLETED:
        return None
    return ("resume" if runs[0].state.terminal else "wait", runs[0].name)


def _is_true(reason: str, expected: tuple[str, ...], *, ended: bool) -> bool:
    return not ended if not expected else not ended or any(words in reason for words in expected)


def _named_alike(points: list[tuple[str, int, str, float]]) -> list[tuple[str, int, str, float]]:
    """Return metrics of runs with numbers instead of their names, which depend on where the inputs lie."""
    names = {name: str(number) for number, name in enumerate(sorted({point[0] for point in points}))}
    return sorted((names[name], *rest) for name, *rest in points)  # type: ignore[misc]


def _one_mlflow_run_each(home: Path) -> bool:
    with suppress(sqlite3.Error), sqlite3.connect(home / "mlflow.db") as store:
        tags = [value for (value,) in store.execute("SELECT value FROM tags WHERE key = 'orchestrator.run'")]
        return sorted(tags) == sorted(run.name for run in _runs(home))
    return False


def _left(home: Path) -> list[str]:
    deadline = time.monotonic() + SETTLING
    while (left := processes(home)) and time.monotonic() < deadline:
        time.sleep(0.5)
    _end_all(home)
    return sorted(left.values())


def _end_all(home: Path) -> None:
    for pid in processes(home):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
