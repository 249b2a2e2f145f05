"""Spec."""

from __future__ import annotations

from typing import Literal

from orchestrator.specs.job import JobSpec
from train_jobs.config import PretrainConfig


class PretrainSpec(PretrainConfig, JobSpec):
    """A pretraining job: every section of `PretrainConfig` at top level."""

    kind: Literal["pretrain"] = "pretrain"
    """Which job this is."""
    recipe: str = "tiny"
    """Recipe that the sections of the job are laid over: tiny, small, base, large or a published one."""

    def job_config(self) -> PretrainConfig:
        """The part that the job itself reads."""
        return PretrainConfig(**{section: getattr(self, section) for section in PretrainConfig.model_fields})
