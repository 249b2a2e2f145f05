"""Checks of everything that a run needs: each check is a function that returns its findings.

Nothing heavy is imported here: checks that need torch or MLflow run in a process of their own, with a time limit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from orchestrator.backends import load_backend
from orchestrator.backends.capabilities import Examines
from orchestrator.doctor import machine, packages, project
from orchestrator.doctor.gpus import gpu_findings
from orchestrator.doctor.project import Behind, no_sweeps
from orchestrator.support.finding import Finding

__all__ = ["Finding", "examine", "gpu_findings"]


def examine(
    *, home: Path, folder: Path, environ: Mapping[str, str], backend_name: str | None, sweeps_behind: Behind = no_sweeps
) -> Iterator[Finding]:
    """Yield the findings of all checks, in the order in which one would fix the problems.

    Args:
        home: the user's orchestrator folder.
        folder: the project's folder.
        environ: environment variables.
        backend_name: the backend to check. None: the default of variables and project.
        sweeps_behind: see `project.behind`.
    """
    backend_name = backend_name or project.chosen_backend(folder, environ)
    yield packages.python()
    yield from packages.requirements()
    build = packages.torch_build()
    yield build
    yield machine.gpus(environ)
    if build.level != "fail":  # a missing torch would be reported twice
        yield packages.torch_devices(environ)
    yield machine.cores()
    yield machine.memory()
    yield machine.shared_memory(Path("/dev/shm"))
    yield machine.open_files()
    access = machine.access(home)
    yield access
    if access.level != "fail":
        yield from machine.home_folder(home)
    yield from machine.disks(home)
    yield machine.loopback()
    yield machine.clock(home)
    yield project.git(environ)
    yield from project.defaults(folder, environ)
    if access.level == "fail":  # what follows reads the home
        return
    chosen = project.backend(backend_name, home)
    yield chosen
    if chosen.level == "ok" and isinstance(backend := load_backend(backend_name, home), Examines):
        yield from backend.examine(folder, environ)
    yield project.store(folder, home, environ)
    yield project.behind(home, sweeps_behind)
