"""The plan of a command: its words, its code and its machines; its other inputs are unknown."""

from __future__ import annotations

import shlex
from pathlib import Path

from orchestrator.jobs.base import Plan, SharedFacts
from orchestrator.jobs.command.spec import CommandSpec
from orchestrator.jobs.facts import plan_rows
from orchestrator.specs.resolved import Resolved
from train_jobs.artifacts.fingerprints import DataFingerprint
from train_jobs.config.command import CommandConfig

UNKNOWN_DATA = DataFingerprint(name="known to the command alone", files=0, total_bytes=0, sha256="")


class CommandPlan(Plan):
    """A command of the user's own."""

    spec: CommandSpec
    """What the user wants."""
    job: CommandConfig
    """What the job itself will read."""

    @property
    def writes_result(self) -> bool:
        """Whether the job writes result.json: a command need not."""
        return False

    def facts(self) -> list[tuple[str, str]]:
        """Return the plan for humans: label and fact; an empty label continues the row above."""
        rows = [(label, text) for label, text in plan_rows(self) if label != "data"]
        return [("command", shlex.join(self.job.command)), *rows]


def plan_command(resolved: Resolved, home: Path, reuse: Plan | None) -> CommandPlan:
    """Read the code, and return the plan.

    Args:
        resolved, home, reuse: see `resolve.make_plan`.

    Raises:
        SpecError: the code contains something that must not leave the machine.
    """
    spec = resolved.spec
    assert isinstance(spec, CommandSpec)
    job = spec.job_config()
    shared = SharedFacts.of(resolved, home, (), reuse)
    return CommandPlan(**shared.fields(job.model_dump(mode="json"), UNKNOWN_DATA), job=job)
