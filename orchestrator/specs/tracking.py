"""Where metrics go."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from train_jobs.config.base import Config


class TrackingSpec(Config):
    """MLflow."""

    uri: str | None = None
    """Tracking server or store. None: an SQLite file in the home folder (ORCHESTRATOR_HOME)."""
    experiment: Annotated[str, Field(min_length=1)] = "bert-pretraining"
    """Experiment that the run belongs to; made when there is none of that name."""
