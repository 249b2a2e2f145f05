"""What every backend does. `request` is pure; a dry run stops after it and so shows the very object that is sent."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

from orchestrator.plan import Plan
from orchestrator.runs import Handle, RunStatus
from train_jobs.config.base import Config


class Request(Config):
    """Exactly what a backend is asked to run; each backend has its own fields."""

    name: str
    """The run's name."""


class Backend(Protocol):
    """Runs plans and tells what became of them. Runs are named by name, not by handle."""

    name: str

    def request(self, plan: Plan, run_name: str) -> Request:
        """The exact request for a plan: pure, offline."""
        ...

    def schedule(self, request: Any, plan: Plan) -> Handle:
        """Sends the request; returns once the backend answers for the run."""
        ...

    def describe(self, name: str) -> RunStatus:
        """How a run stands.

        Raises:
            NotFoundError: there is no such run.
        """
        ...

    def runs(self) -> list[RunStatus]:
        """All runs, the newest first."""
        ...

    def names(self) -> list[str]:
        """Names of all runs, the newest first, without looking into them."""
        ...

    def logs(self, name: str, *, follow: bool = False, rank: int = 0) -> Iterator[str]:
        """Lines of one rank's log, without their line ends; with `follow`, until the run has ended."""
        ...

    def metrics(self, name: str) -> Iterator[dict[str, Any]]:
        """Reports {step, time, metrics} in the order in which they were made."""
        ...

    def plan(self, name: str) -> dict[str, Any]:
        """The plan that the run was made from, as `Plan.as_dict` gave it."""
        ...

    def result(self, name: str) -> dict[str, Any]:
        """The job's final figures; empty until it has completed."""
        ...

    def cancel(self, name: str) -> None:
        """Asks a run to end; it may take a while. A run that has ended is left alone."""
        ...

    def preempt(self, name: str) -> None:
        """Simulates that the run's machine is taken away; the run may be started again by its restarts.

        Raises:
            ConflictError: the run is not running.
        """
        ...

    def resume(self, name: str) -> Handle:
        """Starts a run that did not complete again, from its newest checkpoint."""
        ...

    def folder(self, name: str) -> Path | None:
        """The run's folder, where it lies on this machine."""
        ...
