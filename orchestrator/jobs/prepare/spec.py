"""Spec of a preparation of text."""

from __future__ import annotations

from typing import Literal

from orchestrator.specs.job import CodeSpec, JobSpec
from orchestrator.specs.names import ModuleName
from orchestrator.specs.paths import PathKeys
from train_jobs.config import PrepareConfig
from train_jobs.config.prepare import EXECUTOR_PATHS

PATHS = PathKeys(
    files=("data.vocabulary",), unchecked=("store", "data.add_tokens", *EXECUTOR_PATHS), sources=("data.text",)
)


class PrepareCode(CodeSpec):
    """The code that prepares text."""

    entry: ModuleName = "train_jobs.prepare"
    """Module that every process runs; your own module receives the same arguments, and can pass them on."""


class PrepareSpec(PrepareConfig, JobSpec):
    """The preparation of text: every key of `PrepareConfig` at top level."""

    kind: Literal["prepare"] = "prepare"
    """Kind of the job."""
    recipe: str = "uncased"
    """Recipe: uncased or cased. The keys of the job override its values."""
    code: PrepareCode = PrepareCode()

    def job_config(self) -> PrepareConfig:
        """Return the part that the job itself reads."""
        return self.part(PrepareConfig)
