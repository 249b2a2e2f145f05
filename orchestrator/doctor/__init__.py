"""Looks at everything that a run needs before there is a run: each check is a function that returns its findings.

Nothing heavy is imported here: what torch or MLflow have to say they say in a process of their own, with a time limit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from orchestrator.doctor.finding import Finding
from orchestrator.doctor.machine import clock, cores, gpus, loopback, memory, open_files, shared_memory
from orchestrator.doctor.packages import packages, python, torch_build, torch_devices
from orchestrator.doctor.project import backend, git, project
from orchestrator.doctor.storage import disks, home_folder
from orchestrator.doctor.tracking import tracking

__all__ = ["Finding", "examine"]


def examine(*, home: Path, folder: Path, environ: Mapping[str, str], backend_name: str) -> Iterator[Finding]:
    """What each check finds, in the order in which one would mend things.

    Args:
        home: the user's orchestrator folder.
        folder: where the project is.
        environ: environment variables.
        backend_name: where runs would go.
    """
    yield python()
    yield from packages()
    build = torch_build()
    yield build
    visible = gpus(environ)
    yield visible
    if build.level != "fail":
        yield torch_devices(environ)
    yield cores()
    yield memory()
    yield shared_memory(Path("/dev/shm"))
    yield open_files()
    yield from home_folder(home)
    yield from disks(home)
    yield loopback()
    yield clock(home)
    yield git(environ)
    yield from project(folder, environ)
    yield backend(backend_name, home)
    yield tracking(folder, home, environ)
