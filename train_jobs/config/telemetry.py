"""Nobody is told of a run unless its user asks for it."""

from __future__ import annotations

import os

MLFLOW, ONNX_RUNTIME = "MLFLOW_DISABLE_TELEMETRY", "ORT_DISABLE_TELEMETRY"


def no_telemetry() -> None:
    """Has MLflow and onnxruntime send nothing about their use to their makers, here and in whatever this process
    starts. They look when they are imported, so this comes first. A variable that is set, to whatever, is the user's
    word."""
    os.environ.setdefault(MLFLOW, "true")
    os.environ.setdefault(ONNX_RUNTIME, "1")
