"""Checks of the project: its defaults, version control, backend and MLflow store."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path

from orchestrator.backends import load_backend
from orchestrator.jobs.resolve import resolve_spec
from orchestrator.runs.tracked_run import SQLITE, default_uri
from orchestrator.specs.resolved import find_project
from orchestrator.support.errors import SpecError, UsageError
from orchestrator.support.finding import Finding, fail, ok, warn
from train_jobs.artifacts.host import MLFLOW
from train_jobs.config.errors import rename_command

GIT_SECONDS = 10
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


def git(environ: Mapping[str, str]) -> Finding:
    """Check for git, which names the commit of a plan's code."""
    program = shutil.which("git", path=environ.get("PATH"))
    if program is None:
        return warn("git", "not on the PATH: plans cannot show the commit of the code", "install git")
    answer = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=GIT_SECONDS)
    return ok("git", answer.stdout.strip().removeprefix("git version "))


def defaults(folder: Path, environ: Mapping[str, str]) -> Iterator[Finding]:
    """Check the project's defaults and the ORCHESTRATOR_* variables, as the next plan would read them."""
    found = find_project(folder)
    where = str(found) if found else "no orchestrator.yaml here or above"
    try:
        resolved = resolve_spec("pretrain", project=found, environ=environ)
    except SpecError as problem:
        yield fail("project", "; ".join(problem.problems) or problem.message, f"edit {found or 'the variables'}")
        return
    yield ok("project", where)
    for warning in resolved.warnings:
        yield warn("project", warning, f"edit {found or 'the environment'}")


def chosen_backend(folder: Path, environ: Mapping[str, str]) -> str:
    """Return the default backend, by the variables or by the project's defaults."""
    try:
        return resolve_spec("pretrain", project=find_project(folder), environ=environ).spec.backend
    except SpecError:  # `defaults` reports it
        return environ.get("ORCHESTRATOR_BACKEND") or "local"


def backend(name: str, home: Path) -> Finding:
    """Check that a backend exists."""
    try:
        load_backend(name, home)
    except UsageError as problem:
        return fail("backend", f"{problem.message} (known: {problem.facts['known']})", str(problem.fix))
    return ok("backend", name)


def store(folder: Path, home: Path, environ: Mapping[str, str]) -> Finding:
    """Check the MLflow store that the project reports to.

    Args:
        folder: of the project.
        home: the user's orchestrator folder, with the default store.
        environ: environment variables.
    """
    try:
        spec = resolve_spec("pretrain", project=find_project(folder), environ=environ).spec
    except SpecError:
        return fail(NAME, "not checked: the project's defaults are wrong", "fix those first")
    uri = spec.tracking.uri or default_uri(home)
    return sqlite_store(Path(uri.removeprefix(SQLITE))) if uri.startswith(SQLITE) else server(uri, environ)


def sqlite_store(path: Path, seconds: float = LOCK_SECONDS) -> Finding:
    """Check an SQLite store without MLflow, which would take seconds to load and try to repair it."""
    if not path.exists():
        return ok(NAME, f"{path}, created by the first run")
    aside = (
        f"{rename_command(path, '.broken')} (the next run creates a new one; finished runs keep their metrics.jsonl)"
    )
    try:
        with closing(sqlite3.connect(f"{path.as_uri()}?mode=rw", uri=True, timeout=seconds)) as database:
            database.execute("BEGIN IMMEDIATE")  # takes the write lock, as a run does; a read would not wait for it
            found = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            if missing := sorted(TABLES - found):
                return fail(NAME, f"{path} has no table {', '.join(missing)}: its creation was interrupted", aside)
            (verdict,) = database.execute("PRAGMA quick_check(1)").fetchone()
            (runs,) = database.execute("SELECT count(*) FROM runs").fetchone()
            database.execute("CREATE TABLE written_by_doctor (probe)")  # fails if it cannot be written; rolled back
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
    """Check a tracking server, in a process with a time limit: MLflow's client retries for minutes.

    Args:
        uri: address of the server.
        environ: environment variables, with the credentials of the server.
        seconds: time limit.
    """
    command, environ = [sys.executable, "-c", PROBE, uri], {MLFLOW: "true", **environ}
    try:
        answer = subprocess.run(command, capture_output=True, text=True, env=environ, timeout=seconds)
    except subprocess.TimeoutExpired:
        return fail(NAME, f"{uri} did not answer within {seconds:g} s", "start it, or --set tracking.uri=URI")
    if answer.returncode:
        words = answer.stderr.strip().splitlines() or ["no message"]
        return fail(NAME, f"{uri}: {words[-1]}", "start it, or --set tracking.uri=URI")
    return ok(NAME, f"{uri} answers")
