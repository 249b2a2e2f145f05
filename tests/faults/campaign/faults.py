"""Faults: what happens to a submission at a moment."""

from __future__ import annotations

import os
import signal
import sqlite3
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tests.faults.campaign.jobs import JOBS

ROLES = {  # words of a command line -> role of the process
    "rank_process.py": "wrapper",
    "orchestrator.cli.main": "command",
    "orchestrator.backends.local.supervisor": "supervisor",
    "orchestrator.sweeps.driver": "driver",
    "mlflow_sync": "mirror",
    "torch.distributed.run": "agent",
    "multiprocessing": "worker",
    "train_jobs.": "rank",
}
LOCK_SECONDS = 15.0


@dataclass(frozen=True)
class Fault:
    """Something that happens to a running submission."""

    text: str
    """Row of the table."""
    hit: Callable[[Path], bool]
    """Let it happen in a home folder; False: there was nothing to hit."""
    reasons: tuple[str, ...] = ()
    """One of these is in the reason of a run that ends by it; empty: no run may end by it."""
    kinds: tuple[str, ...] = tuple(JOBS)
    """Kinds of jobs that it can hit."""


def processes(home: Path) -> dict[int, str]:
    """Return the living processes that have a home folder in their environment: pid -> role."""
    found = {}
    mark = f"ORCHESTRATOR_HOME={home}\0".encode()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with suppress(OSError):
                if mark in (entry / "environ").read_bytes():
                    command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                    found[int(entry.name)] = _role(command)
    return found


def _role(command: str) -> str:
    return next((role for words, role in ROLES.items() if words in command), "other")


def _kill(*roles: str, every: bool = True, number: int = signal.SIGKILL) -> Callable[[Path], bool]:
    """Return a fault that signals all processes of these roles, or one; no role: all processes of the submission."""

    def hit(home: Path) -> bool:
        chosen = sorted(pid for pid, role in processes(home).items() if not roles or role in roles)
        for pid in chosen if every else chosen[-1:]:
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        return bool(chosen)

    return hit


def _lock_database(home: Path) -> bool:
    """Hold the write lock of the MLflow store for some seconds."""
    database = home / "mlflow.db"
    if not database.exists():
        return False
    with suppress(sqlite3.Error), sqlite3.connect(database, timeout=1) as held:
        held.execute("BEGIN EXCLUSIVE")
        time.sleep(LOCK_SECONDS)
        held.rollback()
    return True


def _break_database(home: Path) -> bool:
    """Overwrite the middle of the MLflow store."""
    database = home / "mlflow.db"
    if not database.exists():
        return False
    with database.open("r+b") as stream:
        stream.seek(database.stat().st_size // 3)
        stream.write(os.urandom(20_000))
    return True


def _newest(paths: Iterable[Path]) -> Path | None:
    found = [path for path in paths if path.is_file() and path.stat().st_size]
    return max(found, key=lambda path: path.stat().st_mtime_ns, default=None)


def _damage(change: Callable[[Path], None]) -> Callable[[Path], bool]:
    """Return a fault that kills everything and damages the file of a checkpoint or store that was written last."""

    def hit(home: Path) -> bool:
        killed = _kill()(home)
        files = (
            path
            for pattern in ("runs/*/outputs/checkpoints/*/*", "token-stores/*/parts/*")
            for path in home.glob(pattern)
        )
        if (newest := _newest(files)) is not None:
            change(newest)
        return killed and newest is not None

    return hit


def _flip(path: Path) -> None:
    with path.open("r+b") as stream:
        stream.seek(path.stat().st_size // 2)
        byte = stream.read(1)
        stream.seek(-1, os.SEEK_CUR)
        stream.write(bytes([byte[0] ^ 0x40]))


def _tear(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


TRAINS = ("pretrain", "finetune", "sweep")
FAULTS: Mapping[str, Fault] = {
    "kill-rank": Fault("a rank is killed (SIGKILL)", _kill("rank", every=False), ("signal 9", "SIGKILL", "killed")),
    "kill-agent": Fault("the launcher is killed", _kill("agent"), ("launcher", "agent", "killed")),
    "kill-supervisor": Fault("the supervisor is killed", _kill("supervisor"), ("supervisor lost",)),
    "kill-both": Fault(
        "supervisor and launcher are killed together", _kill("supervisor", "agent"), ("supervisor lost",)
    ),
    "kill-command": Fault("the command is killed that submits and follows", _kill("command"), ("supervisor lost",)),
    "kill-mirror": Fault("the copy to MLflow is killed", _kill("mirror")),
    "kill-worker": Fault(
        "a worker of the preparation is killed",
        _kill("worker", every=False),
        ("worker", "killed"),
        ("prepare", "pretrain"),
    ),
    "kill-driver": Fault("the driver of a sweep is killed", _kill("driver"), ("driver lost",), ("sweep",)),
    "kill-all": Fault("all processes are killed together", _kill(), ("lost",)),
    "stop-rank": Fault(
        "a rank gets SIGTERM",
        _kill("rank", every=False, number=signal.SIGTERM),
        ("preempted", "SIGTERM", "signal 15"),
    ),
    "locked-database": Fault("the MLflow store is locked for 15 s", _lock_database),
    "broken-database": Fault("the MLflow store is overwritten with random bytes", _break_database),
    "flipped-bit": Fault(
        "all are killed, and a bit of the newest file of a checkpoint or store flips", _damage(_flip), ("lost",), TRAINS
    ),
    "torn-file": Fault(
        "all are killed, and the newest file of a checkpoint or store is cut in half", _damage(_tear), ("lost",), TRAINS
    ),
}
