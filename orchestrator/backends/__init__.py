"""Where runs go. A backend is found by name and loaded when it is first asked for.

Other packages add theirs by the entry-point group `orchestrator.backends`, NAME = "package.module:Class"; the class is
called with the user's home folder (docs/backends.md, and an example in docs/example-backend).
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, cast

from orchestrator.backends.base import Backend
from orchestrator.support.errors import ServiceError, UsageError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from orchestrator.backends.capabilities import Capability

C = TypeVar("C", bound="Capability")

GROUP = "orchestrator.backends"
_OURS = {
    "azure": "orchestrator.backends.azure.backend:AzureBackend",
    "debug": "orchestrator.backends.debug.backend:DebugBackend",
    "local": "orchestrator.backends.local.backend:LocalBackend",
}
_HERE = ("debug", "local")  # looked at without having been used: that costs nothing
_USED = "backends"  # file below the home folder: the other backends that runs were sent to


def backend_names() -> list[str]:
    """Names that `load_backend` knows."""
    return sorted({*_OURS, *_installed()})


def load_backend(name: str, home: Path) -> Backend:
    """The backend of that name, with its state under `home`.

    Raises:
        UsageError: there is none of that name.
        ServiceError: another package's cannot be loaded.
    """
    if name in _OURS:
        return _class_of(name)(home)
    found = _installed().get(name)
    if found is None:
        from train_jobs.config.names import did_you_mean

        known = backend_names()
        raise UsageError(
            f"no backend named {name!r}{did_you_mean(name, known)}",
            facts={"known": ", ".join(known)},
            fix="--backend local",
        )
    try:
        return cast(Backend, found.load()(home))
    except Exception as problem:  # whatever another package does on import
        distribution = found.dist.name if found.dist else found.value
        raise ServiceError(
            f"the backend {name} cannot be loaded",
            facts={"where": found.value, "says": f"{type(problem).__name__}: {problem}"},
            fix=f"pip install --force-reinstall {distribution}",
        ) from problem


def require(backend: Backend, capability: type[C]) -> C:
    """Return the backend as one that has a capability.

    Raises:
        UsageError: it has not; names the backends that have.
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
    """Return the backend of this package that has a capability.

    Raises:
        UsageError: none has.
    """
    return require(load_backend(next(iter(_able(capability)), _HERE[-1]), home), capability)


def reader_of(file: Path, home: Path) -> str:
    """Return the name of the backend that takes a job file of another program.

    Raises:
        UsageError: none does.
    """
    from orchestrator.backends.capabilities import ReadsJobFiles

    for name in _able(ReadsJobFiles):
        backend = load_backend(name, home)
        if isinstance(backend, ReadsJobFiles) and backend.accepts(file):
            return name
    raise UsageError(f"no backend takes the job file {file}", fix="orchestrator submit --help")


def _able(capability: type[Capability]) -> Sequence[str]:
    """Names of those of our backends that have a capability."""
    return [name for name in sorted(_OURS) if issubclass(_class_of(name), capability)]


def _class_of(name: str) -> type[Backend]:
    """The class of one of our backends."""
    module, _, attribute = _OURS[name].partition(":")
    return cast(type[Backend], getattr(import_module(module), attribute))


def capability_of(name: str, capability: type[C]) -> type[C] | None:
    """Return the class of the backend of that name if it has a capability; asks no service."""
    point = None if name in _OURS else _installed().get(name)
    found = _class_of(name) if name in _OURS else point and point.load()
    return found if isinstance(found, type) and issubclass(found, capability) else None


def remember(name: str, home: Path) -> None:
    """Notes that runs were sent to a backend, so that `used_backends` looks there."""
    if name in _HERE or name in _noted(home):
        return
    home.mkdir(parents=True, exist_ok=True)
    with (home / _USED).open("a") as stream:
        stream.write(f"{name}\n")


def used_backends(home: Path) -> list[str]:
    """Backends that may have runs of this user: those of this machine, others if runs were sent to them."""
    noted = _noted(home)
    return [*_HERE, *(sorted(set(noted) & {*_OURS, *_installed()}) if noted else [])]


def _noted(home: Path) -> list[str]:
    try:
        return (home / _USED).read_text().split()
    except FileNotFoundError:
        return []


def _installed() -> dict[str, EntryPoint]:
    """Backends of other packages. Ours keep their names."""
    from importlib.metadata import entry_points  # 30 ms; nobody pays who uses ours alone

    return {point.name: point for point in entry_points(group=GROUP) if point.name not in _OURS}
