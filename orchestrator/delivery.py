"""Predictions of a run, put where they were asked for."""

from __future__ import annotations

import tempfile
from pathlib import Path

from orchestrator.backends.base import Backend
from orchestrator.support.errors import StorageError

PREDICTIONS = "predictions"  # the output of a run that predicts


def deliver(backend: Backend, name: str, to: Path) -> None:
    """Puts the predictions of a run into a file, whole or not at all; what is there is replaced.

    Raises:
        NotFoundError: it has none.
        StorageError: they cannot be written there.
    """
    try:
        with tempfile.TemporaryDirectory(prefix=".predictions.", dir=to.parent) as scratch:
            (found,) = backend.download(name, (PREDICTIONS,), Path(scratch))
            found.replace(to)
    except OSError as problem:
        raise StorageError(
            f"cannot put the predictions at {to}: {problem.strerror}",
            fix=f"orchestrator download {name} {PREDICTIONS}",
        ) from problem
