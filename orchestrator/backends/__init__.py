"""Backends by name, each loaded when it is first needed.

Other packages add theirs by the entry-point group `orchestrator.backends`, NAME = "package.module:Class"; the class is
called with the user's home folder (docs/backends.md, and an example in docs/example-backend).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, cast

from orchestrator.backends.base import Backend
from orchestrator.support.errors import UsageError
from orchestrator.support.plugins import find, installed

if TYPE_CHECKING:
    from orchestrator.backends.capabilities import Capability

C = TypeVar("C", bound="Capability")

GROUP = "orchestrator.backends"
_BUILT_IN = {
    "azure": "orchestrator.backends.azure.backend:AzureBackend",
    "debug": "orchestrator.backends.debug.backend:DebugBackend",
    "local": "orchestrator.backends.local.backend:LocalBackend",
}
# Backends that `list` always reads: their runs are folders of this machine. A remote backend costs the import of its
# SDK and requests, so it is read only after a run was sent to it (see `remember`).
_THIS_MACHINE = ("debug", "local")
_USED_FILE = "backends"  # file below the home folder: names of the other backends that runs were sent to


def backend_names() -> list[str]:
    """Return the names that `load_backend` accepts, sorted: built-in backends and those of installed packages."""
    return sorted({*_BUILT_IN, *installed(GROUP)})


def load_backend(name: str, home: Path) -> Backend:
    """Return the backend of that name, with its state under `home`.

    Args:
        name: a built-in backend, or the name of an entry point in the group `orchestrator.backends`.
        home: the user's orchestrator folder; it may not exist yet.

    Raises:
        UsageError: the name is unknown.
        ServiceError: another package's backend cannot be loaded.
    """
    if (backend := find(name, _BUILT_IN, GROUP, "backend", home)) is not None:
        return cast(Backend, backend)
    from train_jobs.config.errors import did_you_mean

    # only now: listing the entry points of all installed packages takes about 40 ms
    known = backend_names()
    raise UsageError(
        f"unknown backend {name!r}{did_you_mean(name, known)}",
        facts={"known": ", ".join(known)},
        fix="--backend local",
    )


def require(backend: Backend, capability: type[C]) -> C:
    """Return the same backend, typed as one that has the capability.

    Args:
        backend: any backend.
        capability: a class of `capabilities.py`, such as `Resumes`.

    Raises:
        UsageError: the backend does not have it; names the built-in backends that do.
    """
    if isinstance(backend, capability):
        return backend
    able = _able(capability)
    raise UsageError(
        f"cannot {capability.verb}: backend {backend.name} does not support it",
        facts={"supported by": ", ".join(able) or "no backend"},
        fix=backend.instead.get(capability.__name__, f"--backend {able[0]}" if able else None),
    )


def backend_with(capability: type[C], home: Path) -> C:
    """Return the first built-in backend that has a capability, in alphabetical order.

    Raises:
        UsageError: no built-in backend has it.
    """
    # without any, `require` fails on the fallback with the usual message
    return require(load_backend(next(iter(_able(capability)), _THIS_MACHINE[-1]), home), capability)


def reader_of(file: Path, home: Path) -> str:
    """Return the name of the backend that accepts a job file of another program, such as `az ml`.

    Raises:
        UsageError: no backend accepts it.
    """
    from orchestrator.backends.capabilities import ReadsJobFiles

    for name in _able(ReadsJobFiles):
        if require(load_backend(name, home), ReadsJobFiles).accepts(file):
            return name
    raise UsageError(
        f"cannot submit {file}: no backend accepts this type of job file", fix="orchestrator submit --help"
    )


def _able(capability: type[Capability]) -> list[str]:
    """Return the names of the built-in backends that have a capability."""
    return [name for name in sorted(_BUILT_IN) if capability_of(name, capability) is not None]


def capability_of(name: str, capability: type[C]) -> type[C] | None:
    """Return the class of the backend of that name if it has a capability; no service is called."""
    found = find(name, _BUILT_IN, GROUP, "backend")
    return found if isinstance(found, type) and issubclass(found, capability) else None


def remember(name: str, home: Path) -> None:
    """Record that runs were sent to a backend, so that `used_backends` includes it."""
    if name in _THIS_MACHINE or name in _recorded(home):
        return
    home.mkdir(parents=True, exist_ok=True)
    # appended, never rewritten: two submissions at the same time can at most record a name twice
    with (home / _USED_FILE).open("a") as stream:
        stream.write(f"{name}\n")


def used_backends(home: Path) -> list[str]:
    """Return the backends that may have runs of this user: those of this machine, and others that got runs."""
    recorded = _recorded(home)
    # a package that is no longer installed is skipped instead of making every `list` fail
    return [*_THIS_MACHINE, *(sorted({*recorded} & {*backend_names()}) if recorded else [])]


def _recorded(home: Path) -> list[str]:
    try:
        return (home / _USED_FILE).read_text().split()
    except FileNotFoundError:
        return []
