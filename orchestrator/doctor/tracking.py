"""The MLflow store: there, whole, and not held by somebody else."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

from orchestrator.runs.tracked_run import SQLITE, default_uri
from orchestrator.support.errors import SpecError
from orchestrator.support.finding import Finding, fail, ok
from train_jobs.config.names import set_aside
from train_jobs.config.telemetry import MLFLOW

NAME = "tracking"
LOCK_SECONDS = 3.0  # MLflow holds its store for milliseconds
SERVER_SECONDS = 60.0
TABLES = {"alembic_version", "experiments", "metrics", "runs"}
PROBE = """
import sys
from mlflow.tracking import MlflowClient
try:
    MlflowClient(sys.argv[1]).search_experiments(max_results=1)
except Exception as problem:
    sys.exit(" ".join(str(problem).split())[:200])
"""


def store(folder: Path, home: Path, environ: Mapping[str, str]) -> Finding:
    """Whether the store that the project reports to can be used."""
    from orchestrator.jobs.resolve import resolve_spec
    from orchestrator.specs.resolved import find_project

    try:
        spec = resolve_spec("pretrain", project=find_project(folder), environ=environ).spec
    except SpecError:
        return fail(NAME, "not looked at: the project's defaults are wrong", "mend those first")
    uri = spec.tracking.uri or default_uri(home)
    return sqlite_store(Path(uri.removeprefix(SQLITE))) if uri.startswith(SQLITE) else server(uri, environ)


def sqlite_store(path: Path, seconds: float = LOCK_SECONDS) -> Finding:
    """Looks into an SQLite store itself: MLflow would take seconds to load, and try to mend what it finds."""
    if not path.exists():
        return ok(NAME, f"{path}, made by the first run")
    aside = f"{set_aside(path, '.broken')} (a new one is made; finished runs keep their metrics.jsonl)"
    try:
        with closing(sqlite3.connect(f"{path.as_uri()}?mode=rw", uri=True, timeout=seconds)) as database:
            database.execute("BEGIN IMMEDIATE")
            found = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            if missing := sorted(TABLES - found):
                return fail(NAME, f"{path} has no table {', '.join(missing)}: its making was interrupted", aside)
            (verdict,) = database.execute("PRAGMA quick_check(1)").fetchone()
            (runs,) = database.execute("SELECT count(*) FROM runs").fetchone()
            database.execute("CREATE TABLE written_by_doctor (probe)")  # rolled back: can it be written at all?
            database.rollback()
    except sqlite3.OperationalError as problem:
        if "locked" in str(problem):
            return fail(NAME, f"{path} is locked by another process", f"fuser {path}")
        return fail(NAME, f"{path}: {problem}", f"make it readable and writable: ls -l {path}")
    except sqlite3.DatabaseError as problem:
        return fail(NAME, f"{path} is damaged: {problem}", aside)
    if verdict != "ok":
        return fail(NAME, f"{path} is damaged: {verdict.splitlines()[-1]}", aside)
    return ok(NAME, f"{path}, {runs} MLflow runs")


def server(uri: str, environ: Mapping[str, str], seconds: float = SERVER_SECONDS) -> Finding:
    """Asks a tracking server for an experiment, in a process with a time limit."""
    command, environ = [sys.executable, "-c", PROBE, uri], {MLFLOW: "true", **environ}
    try:
        answer = subprocess.run(command, capture_output=True, text=True, env=environ, timeout=seconds)
    except subprocess.TimeoutExpired:
        return fail(NAME, f"{uri} did not answer within {seconds:g} s", "start it, or --set tracking.uri=URI")
    if answer.returncode:
        words = answer.stderr.strip().splitlines() or ["no message"]
        return fail(NAME, f"{uri}: {words[-1]}", "start it, or --set tracking.uri=URI")
    return ok(NAME, f"{uri} answers")
