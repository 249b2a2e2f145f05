"""Looks at everything that a run needs before there is a run: each check is a function that returns its findings.

Nothing heavy is imported here: what torch or MLflow have to say they say in a process of their own, with a time limit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from orchestrator.backends import load_backend
from orchestrator.backends.capabilities import Examines
from orchestrator.doctor import disks, machine, packages, project, tracking
from orchestrator.support.finding import Finding

__all__ = ["Finding", "examine"]


def examine(*, home: Path, folder: Path, environ: Mapping[str, str], backend_name: str | None) -> Iterator[Finding]:
    """What each check finds, in the order in which one would mend things.

    Args:
        home: the user's orchestrator folder.
        folder: where the project is.
        environ: environment variables.
        backend_name: where runs would go. None: as variables and project say.
    """
    backend_name = backend_name or project.chosen_backend(folder, environ)
    yield packages.python()
    yield from packages.requirements()
    build = packages.torch_build()
    yield build
    yield machine.gpus(environ)
    if build.level != "fail":
        yield packages.torch_devices(environ)
    yield machine.cores()
    yield machine.memory()
    yield machine.shared_memory(Path("/dev/shm"))
    yield machine.open_files()
    yield from disks.home_folder(home)
    yield from disks.disks(home)
    yield machine.loopback()
    yield machine.clock(home)
    yield project.git(environ)
    yield from project.defaults(folder, environ)
    chosen = project.backend(backend_name, home)
    yield chosen
    if chosen.level == "ok" and isinstance(backend := load_backend(backend_name, home), Examines):
        yield from backend.examine(folder, environ)
    yield tracking.store(folder, home, environ)
