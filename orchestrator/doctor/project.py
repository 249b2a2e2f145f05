"""Checks of the project: its defaults, version control, backend and MLflow store."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path

from orchestrator.backends import capability_of, load_backend, require, used_backends
from orchestrator.backends.capabilities import CopiesToMlflow
from orchestrator.jobs.resolve import resolve_spec
from orchestrator.runs.tracked_run import default_uri, sync_command
from orchestrator.specs.resolved import find_project
from orchestrator.support.errors import SpecError, UsageError
from orchestrator.support.finding import Finding, fail, ok, warn
from orchestrator.support.formatting import counted
from train_jobs.artifacts.host import MLFLOW
from train_jobs.artifacts.tracking.mlflow_store import Condition, StoreReport, examine, sqlite_path

GIT_SECONDS = 10
NAME = "tracking"
COPIES = "MLflow copies"
SYNC_ALL = "orchestrator mlflow sync --all"
LOCK_SECONDS = 3.0  # MLflow holds its store for milliseconds
SERVER_SECONDS = 60.0
UNREAD = (Condition.OLD, Condition.NEW, Condition.UNUSABLE)
"""Conditions of a store whose runs `examine` cannot list."""
Behind = Callable[[Callable[[str], frozenset[str] | None]], Iterator[str]]
"""Yields the names of what MLflow does not have in full; see `CopiesToMlflow.behind`."""
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
    path = sqlite_path(uri)
    return server(uri, environ) if path is None else sqlite_store(path)


def sqlite_store(path: Path, seconds: float = LOCK_SECONDS) -> Finding:
    """Check an SQLite store without MLflow, which would take seconds to load."""
    found = examine(path, deep=True, seconds=seconds)
    match found.condition:
        case Condition.READY:
            return ok(NAME, f"{path}, {len(found.runs)} MLflow runs")
        case Condition.MISSING:
            return ok(NAME, f"{path}, created by the first run")
        case Condition.OLD:
            return warn(NAME, f"{found.reason}: the next run migrates a copy of it", SYNC_ALL)
        case Condition.BROKEN:
            return fail(NAME, found.reason, f"{SYNC_ALL} (renames it and creates a new one with all runs)")
        case _:
            return fail(NAME, found.reason, found.fix)


def no_sweeps(known: Callable[[str], frozenset[str] | None]) -> Iterator[str]:
    """Yield nothing: the sweeps of a home are not examined."""
    return iter(())


def behind(home: Path, sweeps_behind: Behind = no_sweeps) -> Finding:
    """Check that MLflow has all that the ended runs and sweeps of this home recorded.

    Args:
        home: the user's orchestrator folder.
        sweeps_behind: yields the names of the sweeps that MLflow does not have in full.
    """

    unknown: list[StoreReport] = []

    @cache
    def known(uri: str) -> frozenset[str] | None:
        if (path := sqlite_path(uri)) is None:
            return None
        found = examine(path, deep=True)
        if found.condition in UNREAD:
            unknown.append(found)
            return None
        return found.runs

    copying = [load_backend(name, home) for name in used_backends(home) if capability_of(name, CopiesToMlflow)]
    runs = [name for one in copying for name in require(one, CopiesToMlflow).behind(known)]
    sweeps = list(sweeps_behind(known))
    names = [*sweeps, *runs]
    if not names and unknown:
        return warn(COPIES, f"not checked: {unknown[0].reason}", unknown[0].fix or SYNC_ALL)
    if not names:
        return ok(COPIES, "MLflow has all metrics of the ended runs")
    count = " and ".join(counted(len(found), noun) for found, noun in ((runs, "run"), (sweeps, "sweep")) if found)
    listed = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
    fix = sync_command(names[0]) if len(names) == 1 else SYNC_ALL
    return warn(COPIES, f"MLflow lacks metrics or the status of {count}: {listed}", fix)


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
