"""What a prediction needs from outside: files of rows and the model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from orchestrator.jobs.inputs import DATA, START, At, JobInput, Needs, model_input
from train_jobs.config import PredictConfig


def prediction_needs(job: PredictConfig, files: Mapping[str, Path], sha256: str, weights: str | None) -> Needs:
    """Return the needs of a prediction.

    Args:
        job: what is predicted.
        files: name below the input's folder -> file.
        sha256: of the files.
        weights: SHA-256 of the model.
    """
    return Needs(
        (JobInput(DATA, "tables", sha256, list_files=lambda: files), model_input(job.model, weights or "")),
        {"input": [At(DATA, name) for name in files], "model": At(START)},
        ("model", "input"),
    )
