"""What a user writes for a job: the job's own config, flat, and around it where and with what it runs."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from orchestrator.specs.azure import AzureSpec
from orchestrator.specs.code import CodeSpec
from orchestrator.specs.compute import ComputeSpec
from orchestrator.specs.environment import EnvironmentSpec, Text
from orchestrator.specs.notify import NotifySpec
from orchestrator.specs.tracking import TrackingSpec
from train_jobs.config import PretrainConfig

LONGEST_NAME = 40  # with the hash, a run's name stays within 63 characters, the limit of a DNS label


def _slug(name: str) -> str:
    if len(name) > LONGEST_NAME or not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name):
        raise ValueError(f"must be lower-case letters and digits with single hyphens between, at most {LONGEST_NAME}")
    return name


Slug = Annotated[str, AfterValidator(_slug)]


class PretrainSpec(PretrainConfig):
    """A pretraining job: every section of `PretrainConfig` at top level, and the keys that only the laptop needs."""

    kind: Literal["pretrain"] = "pretrain"
    """Which job this is."""
    recipe: str = "tiny"
    """Recipe that the sections of the job are laid over: tiny, small, base, large or a published one."""
    name: Slug | None = None
    """First part of the run's name, before the hash. None: pretrain-RECIPE."""
    backend: str = "local"
    """Where the run is sent."""
    max_restarts: Annotated[int, Field(ge=0)] = 0
    """How often a run that failed or was preempted is started again by itself, from its newest checkpoint."""
    tags: dict[str, Text] = Field(default={})
    """Free labels of the run; they change nothing about it."""
    code: CodeSpec = CodeSpec()
    compute: ComputeSpec = ComputeSpec()
    environment: EnvironmentSpec = EnvironmentSpec()
    tracking: TrackingSpec = TrackingSpec()
    notify: NotifySpec = NotifySpec()
    azure: AzureSpec = AzureSpec()

    @property
    def slug(self) -> str:
        """First part of the run's name."""
        return self.name or f"{self.kind}-{self.recipe}"

    def job_config(self) -> PretrainConfig:
        """The part that the job itself reads."""
        return PretrainConfig(**{section: getattr(self, section) for section in PretrainConfig.model_fields})
