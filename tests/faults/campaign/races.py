"""Commands that meet, processes that pause, and what a job talks to: the MLflow store and a webhook."""

from __future__ import annotations

import os
import signal
import socket
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

from tests.faults.campaign.scene import Scene, processes, signal_all
from train_jobs.artifacts.tracking.mlflow_store import prepare

LOCK_SECONDS = 15.0
PAUSES = (1.0, 20.0)  # shortest and longest stop of a process, in seconds


def pause(role: str) -> Callable[[Scene], bool]:
    """Return a fault that stops one process of a role, and continues it later."""

    def hit(scene: Scene) -> bool:
        chosen = [pid for pid, found in sorted(processes(scene.home).items()) if found == role]
        if not chosen:
            return False
        pid, seconds = scene.draw.choice(chosen), scene.draw.uniform(*PAUSES)
        scene.detail = f"for {seconds:.0f} s"
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
            time.sleep(seconds)
            os.kill(pid, signal.SIGCONT)
        return True

    return hit


@cache
def _store() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "mlflow.db")
        prepare(path)
        return path.read_bytes()


@contextmanager
def earlier_store(scene: Scene) -> Iterator[None]:
    """Give the home the MLflow store of a user who had runs before, so that there is one at any moment."""
    (scene.home / "mlflow.db").write_bytes(_store())
    yield


def lock_database(scene: Scene) -> bool:
    """Hold the write lock of the MLflow store for some seconds."""
    database = scene.home / "mlflow.db"
    if not database.exists():
        return False
    with suppress(sqlite3.Error), sqlite3.connect(database, timeout=1) as held:
        held.execute("BEGIN EXCLUSIVE")
        time.sleep(LOCK_SECONDS)
        held.rollback()
    return True


def break_database(scene: Scene) -> bool:
    """Overwrite the middle of the MLflow store."""
    database = scene.home / "mlflow.db"
    if not database.exists():
        return False
    with database.open("r+b") as stream:
        stream.seek(database.stat().st_size // 3)
        stream.write(os.urandom(20_000))
    return True


def delete_database(scene: Scene) -> bool:
    """Delete the MLflow store."""
    found = list(scene.home.glob("mlflow.db*"))
    for path in found:
        path.unlink(missing_ok=True)
    return bool(found)


def submit_again(scene: Scene) -> bool:
    """Type the same submission again."""
    scene.type_together(scene.words)
    return True


def prune(scene: Scene) -> bool:
    """Delete all that may be deleted, while the job runs."""
    scene.type_together(("prune", "--yes", "--stores"))
    return bool(processes(scene.home))


def resume_twice(scene: Scene) -> bool:
    """Kill everything and resume the run by two commands at the same time."""
    killed, name = signal_all(scene.home), _name(scene)
    if name:
        scene.type_together(("resume", name), ("resume", name))
    return bool(killed and name)


def move_home(scene: Scene) -> bool:
    """Kill everything and move the home folder; later commands use its new place."""
    killed, name = signal_all(scene.home), _name(scene)
    scene.former = scene.home
    scene.console.home = scene.home.rename(scene.home.with_name("moved"))
    return bool(killed and name)


def cancel_and_resume(scene: Scene) -> bool:
    """Cancel the run and resume it at the same time."""
    if name := _name(scene):
        scene.type_together(("cancel", name), ("resume", name))
    return bool(name)


def _name(scene: Scene) -> str:
    return next((path.name for place in ("sweeps", "runs") for path in scene.home.glob(f"{place}/[!.]*")), "")


@contextmanager
def hanging_webhook(scene: Scene) -> Iterator[None]:
    """Give the run a webhook whose server accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        scene.console.variables["ORCHESTRATOR_WEBHOOK"] = f"http://127.0.0.1:{server.getsockname()[1]}"
        scene.words = (*scene.words, "--set", "notify.on=[failed,completed]", "--set", "notify.allow_private=true")
        yield
