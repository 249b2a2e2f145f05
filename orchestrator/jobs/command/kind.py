"""A command of the user's own as a kind of job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from orchestrator.jobs.kind import JobKind
from orchestrator.support.plugins import lazy

if TYPE_CHECKING:
    from orchestrator.jobs.command.spec import CommandSpec
    from orchestrator.runs.status import RunStatus
    from orchestrator.specs.site import Site
    from train_jobs.artifacts.layers import ConfigLayer


class CommandKind(JobKind):
    """Any command, with the packaged code of the current folder."""

    name = "command"
    subject = "command"
    elastic = True
    keys: ClassVar = {}
    spec = lazy("orchestrator.jobs.command.spec:CommandSpec")
    plan = lazy("orchestrator.jobs.command.plan:plan_command")
    recipes = lazy("train_jobs.artifacts.layers:COMMAND_RECIPES")

    def layers(self, written: Sequence[ConfigLayer], here: Path, site: Site) -> list[ConfigLayer]:
        """Return the user's layers; without a folder of code, the current folder is packaged."""
        from train_jobs.artifacts.layers import ConfigLayer

        return [ConfigLayer("current folder", {"code": {"folder": str(here)}}), *written]

    def user_code_names(self, spec: CommandSpec) -> Mapping[str, str]:
        """Return the command, which is the user's own code."""
        return {"command": spec.command[0]}

    def next_commands(self, status: RunStatus) -> dict[str, str]:
        """Return label -> command for what a completed run has made."""
        return {"outputs": f"orchestrator download {status.name} --all --to FOLDER"}


COMMAND = CommandKind()
