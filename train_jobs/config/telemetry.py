"""Nobody is told of a run unless its user asks for it."""

from __future__ import annotations

import os

MLFLOW = "MLFLOW_DISABLE_TELEMETRY"


def no_telemetry() -> None:
    """Has MLflow send nothing about its use to its makers, here and in whatever this process starts. It looks when it
    is imported, so this comes first. A variable that is set, to whatever, is the user's word."""
    os.environ.setdefault(MLFLOW, "true")
