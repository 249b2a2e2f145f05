"""The section `polite` of specs. Planning and `--help` load this module and not the backend, so it imports little."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from orchestrator.specs.site import Site
from train_jobs.config.fields import Config


class PoliteOptions(Config):
    """Settings of the polite backend."""

    load: Annotated[float, Field(gt=0)] | None = None
    """Highest load average at which a run starts. None: no limit."""


class PoliteSite(Site):
    """This machine, with a section of settings."""

    options = PoliteOptions
