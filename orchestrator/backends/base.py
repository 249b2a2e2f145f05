"""What every backend does. `request` is pure; a dry run stops after it and so shows the very object that is sent."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from orchestrator.lineage import CheckedLineage
from orchestrator.plan import Plan
from orchestrator.runs import Handle, RunStatus
from orchestrator.specs import ResolvedCompute
from train_jobs.config.base import Config


class Request(Config):
    """Exactly what a backend is asked to run; each backend has its own fields."""

    name: str
    """The run's name."""


@dataclass(frozen=True)
class LogQuery:
    """Which lines of a run's logs."""

    ranks: tuple[int, ...] | None = (0,)
    """Of these ranks; None: of all."""
    node: int | None = None
    """Of the ranks of this machine only."""
    follow: bool = False
    """Go on until the run has ended."""
    tail: int | None = None
    """Of what there is already, only the last so many lines."""
    since: float | None = None
    """Only lines written after this time, seconds since the epoch."""
    grep: re.Pattern[str] | None = None
    """Only lines in which this is found."""


@dataclass(frozen=True)
class LogLine:
    """One line, without its line end."""

    text: str
    """What the rank wrote."""
    rank: int = 0
    """Which rank."""
    node: int = 0
    """On which machine."""


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

    def logs(self, name: str, query: LogQuery) -> Iterator[LogLine]:
        """Lines of the run's logs, those of several ranks in the order of their time.

        Raises:
            NotFoundError: there is no such run, rank or node.
        """
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

    def lineage(self, name: str) -> CheckedLineage:
        """Where the run comes from, each link held against what lies on this machine.

        Raises:
            NotFoundError: there is no such run, or it has not begun to train.
            ConflictError: its lineage does not verify.
        """
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

    def stacks(self, name: str) -> dict[int, str]:
        """Where each rank of a live run is at this moment: rank -> Python stacks of all its threads.

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

    def download(self, name: str, outputs: tuple[str, ...], to: Path) -> list[Path]:
        """Copies outputs of a run (`model`, `checkpoints`, `logs`, ...) to below `to`; returns what it made there.

        Raises:
            NotFoundError: the run has no such output.
        """
        ...

    def delete(self, name: str) -> None:
        """Deletes a run that has ended, with all that it wrote; what MLflow holds of it stays.

        Raises:
            ConflictError: the run goes on.
        """
        ...

    def provision(self, compute: ResolvedCompute) -> str:
        """Makes sure that there is something to run on; returns what it did, in one line."""
        ...
