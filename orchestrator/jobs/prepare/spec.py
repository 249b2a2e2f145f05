"""Spec of a preparation of text."""

from __future__ import annotations

from typing import Literal

from orchestrator.specs.job import CodeSpec, JobSpec, ModuleName
from orchestrator.specs.paths import PathKeys
from train_jobs.config import PrepareConfig

PATHS = PathKeys(files=("data.vocabulary",), unchecked=("store", "data.add_tokens"), sources=("data.text",))


class PrepareCode(CodeSpec):
    """The code that prepares text."""

    entry: ModuleName = "train_jobs.prepare"
    """Module that every process runs; one of your own takes the same arguments, and may hand them on."""


class PrepareSpec(PrepareConfig, JobSpec):
    """The preparation of text: every key of `PrepareConfig` at top level."""

    kind: Literal["prepare"] = "prepare"
    """Which job this is."""
    recipe: str = "uncased"
    """Recipe that the keys of the job are laid over: uncased or cased."""
    code: PrepareCode = PrepareCode()

    def job_config(self) -> PrepareConfig:
        """Return the part that the job itself reads."""
        return self.part(PrepareConfig)
