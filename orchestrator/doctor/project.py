"""The project: its defaults, its version control, where its runs go."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

from orchestrator.support.errors import SpecError, UsageError
from orchestrator.support.finding import Finding, fail, ok, warn

GIT_SECONDS = 10


def git(environ: Mapping[str, str]) -> Finding:
    """git names the commit of the code that a plan is made of."""
    program = shutil.which("git", path=environ.get("PATH"))
    if program is None:
        return warn("git", "not on the PATH: plans cannot tell the commit of the code", "install git")
    answer = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=GIT_SECONDS)
    return ok("git", answer.stdout.strip().removeprefix("git version "))


def defaults(folder: Path, environ: Mapping[str, str]) -> Iterator[Finding]:
    """The project's defaults and the ORCHESTRATOR_* variables, as the next plan would read them."""
    from orchestrator.jobs.resolve import resolve_spec
    from orchestrator.specs.resolved import find_project

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
    """Where runs go if nobody says otherwise: by the variables, or by the project's defaults."""
    from orchestrator.jobs.resolve import resolve_spec
    from orchestrator.specs.resolved import find_project

    try:
        return resolve_spec("pretrain", project=find_project(folder), environ=environ).spec.backend
    except SpecError:  # `defaults` says so
        return environ.get("ORCHESTRATOR_BACKEND") or "local"


def backend(name: str, home: Path) -> Finding:
    """Whether there is such a backend."""
    from orchestrator.backends import load_backend

    try:
        load_backend(name, home)
    except UsageError as problem:
        return fail("backend", f"{problem.message} (known: {problem.facts['known']})", str(problem.fix))
    return ok("backend", name)
