"""Where runs go. A backend is found by name and loaded when it is first asked for."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import cast

from orchestrator.backends.base import Backend
from orchestrator.errors import UsageError

_BACKENDS = {"local": "orchestrator.backends.local.backend:LocalBackend"}


def backend_names() -> list[str]:
    """Names that `load_backend` knows."""
    return sorted(_BACKENDS)


def load_backend(name: str, home: Path) -> Backend:
    """The backend of that name, with its state under `home`.

    Raises:
        UsageError: there is none of that name.
    """
    if name not in _BACKENDS:
        from train_jobs.config.load import did_you_mean

        known = backend_names()
        raise UsageError(
            f"no backend named {name!r}{did_you_mean(name, known)}",
            facts={"known": ", ".join(known)},
            fix=f"--backend {known[0]}",
        )
    module, _, kind = _BACKENDS[name].partition(":")
    return cast(Backend, getattr(import_module(module), kind)(home))
