"""Spec of a command of the user's own."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

from orchestrator.specs.job import CodeSpec, JobSpec
from orchestrator.specs.names import MAX_NAME_LENGTH, ModuleName
from train_jobs.config.command import CommandConfig


class CommandCode(CodeSpec):
    """The code of the command."""

    entry: ModuleName = "train_jobs.command"
    """Module that starts the command in every process."""


class CommandSpec(CommandConfig, JobSpec):
    """A command: every key of `CommandConfig` at top level."""

    kind: Literal["command"] = "command"
    """Kind of the job."""
    recipe: str = "default"
    """Recipe: default. The keys of the job override its values."""
    code: CommandCode = CommandCode()

    @property
    def slug(self) -> str:
        """First part of the run's name, from the script or, without one, from the program."""
        scripts = (word for word in self.command[1:] if Path(word).suffix in {".py", ".sh"})
        stem = Path(next(scripts, self.command[0])).stem.lower()
        words = re.findall(r"[a-z0-9]+", stem)
        return self.name or "-".join([self.kind, *words])[:MAX_NAME_LENGTH].rstrip("-")

    def job_config(self) -> CommandConfig:
        """Return the part that the job itself reads."""
        return self.part(CommandConfig)
