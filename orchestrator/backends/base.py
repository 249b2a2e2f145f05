"""What every backend does. `request` is pure; a dry run stops after it and so shows the very object that is sent."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from orchestrator.backends.log_query import LogBlock, LogLine, LogQuery
from orchestrator.runs.status import Handle, RunStatus
from train_jobs.config.base import Config

if TYPE_CHECKING:  # looking at runs needs neither, and loading them takes longer than listing fifty
    from orchestrator.jobs.base import Plan
    from orchestrator.runs.lineage_report import CheckedLineage
    from orchestrator.specs.compute import ResolvedCompute
from collections.abc import Collection, Sequence

from orchestrator.runs.status import RunState
from orchestrator.support.errors import NotFoundError
from train_jobs.config.names import did_you_mean

WRITTEN_LATER = {"checkpoints", "lineage", "metrics", "model", "predictions", "result", "store", "submission"}
"""What jobs write as they go or at their end: who names it has not mistyped anything."""


class Request(Config):
    """Exactly what a backend is asked to run; each backend has its own fields."""

    name: str
    """The run's name."""

    def file(self) -> dict[str, Any] | None:
        """The same for another program that could send it, where there is such a program."""
        return None


class Backend(Protocol):
    """Runs plans and tells what became of them. Runs are named by name, not by handle."""

    name: str
    poll_seconds: float = 2.0
    """Between two looks of somebody who waits, at most."""
    deletes_weights: bool = False
    """Whether `delete_weights` is offered."""

    def request(self, plan: Plan, run_name: str) -> Request:
        """The exact request for a plan: pure, offline."""
        ...

    def notes(self, request: Any, plan: Plan) -> list[str]:
        """What a user should know of a request beside the plan, `label: text` each; offline."""
        return []

    def schedule(self, request: Any, plan: Plan) -> Handle:
        """Sends the request; returns once the backend answers for the run."""
        ...

    def describe(self, name: str) -> RunStatus:
        """How a run stands.

        Raises:
            NotFoundError: there is no such run.
        """
        ...

    def runs(self) -> Iterator[RunStatus]:
        """All runs, the newest first, each looked at when it is asked for."""
        ...

    def names(self) -> list[str]:
        """Names of all runs, the newest first, without looking into them."""
        ...

    def discover(self) -> None:
        """Takes note of runs that were submitted from other machines, where there can be such."""

    def handle(self, name: str) -> Handle:
        """The handle of one of them."""
        return Handle(self.name, name)

    def log_blocks(self, name: str, query: LogQuery) -> Iterator[LogBlock]:
        """Lines of the run's logs in blocks, those of several logs in the order of their time.

        Raises:
            NotFoundError: there is no such run, rank or node.
        """
        ...

    def logs(self, name: str, query: LogQuery) -> Iterator[LogLine]:
        """The same one by one.

        Raises:
            NotFoundError: there is no such run, rank or node.
        """
        return (line for block in self.log_blocks(name, query) for line in block.lines())

    def metrics(self, name: str, *, seed: int | None = None) -> Iterator[dict[str, Any]]:
        """Reports {step, time, metrics} in the order in which they were made.

        Args:
            seed: of a fine-tuning with several seeds those that were made while it trained with this one; none before
                that has begun.
        """
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

    def resume(self, name: str, *, processes: int | None = None) -> Handle:
        """Starts a run that did not complete again, from its newest checkpoint.

        Args:
            processes: on each node, from now on. None: as many as before.

        Raises:
            ConflictError: it completed, or goes on.
            UsageError: there cannot be so many processes.
        """
        ...

    def folder(self, name: str) -> Path | None:
        """The run's folder, where it lies on this machine."""
        ...

    def download(
        self,
        name: str,
        outputs: tuple[str, ...],
        to: Path,
        *,
        force: bool = False,
        progress: Callable[[int, int], None] | None = None,
    ) -> list[Path]:
        """Copies outputs of a run (`model`, `checkpoints`, `logs`, ...) to below `to`; returns what it made there.

        Args:
            name: the run's name.
            outputs: which; none: all that there are.
            to: folder; made if missing.
            force: replace what is there.
            progress: told bytes done and bytes in all.

        Raises:
            NotFoundError: the run has no such output.
            ConflictError: there is something in the place of one.
            StorageError: `to` cannot be written.
        """
        ...

    def delete(self, name: str) -> None:
        """Deletes a run that has ended, with all that it wrote; what MLflow holds of it stays.

        Raises:
            ConflictError: the run goes on.
            StorageError: it cannot be deleted.
        """
        ...

    def delete_weights(self, name: str, why: str) -> bool:
        """Deletes the checkpoints and models of a run that has ended; what it reported, its logs and records stay.

        Args:
            name: the run's name.
            why: told by its status from now on.

        Returns:
            False if somebody still holds the run: to be asked again.

        Raises:
            StorageError: they cannot be deleted.
        """
        return False

    def tend(self, name: str, max_restarts: int | None = None) -> bool:
        """Starts a run again that has ended and may, where its backend has nobody who does so: whoever follows it asks.

        Args:
            name: the run's name.
            max_restarts: how often it may be started again; None: as it was submitted.

        Returns:
            Whether it was started, or will be when it is asked for again.

        Raises:
            NotFoundError: there is no such run.
        """
        return False

    def register_model(self, name: str, model: str | None = None) -> dict[str, Any]:
        """Puts the model of a completed run into the registry: {name, version, uri, tags}. Once more changes nothing.

        Args:
            name: the run's name.
            model: the model's name; None: the first part of the run's.

        Raises:
            ConflictError: the run has no model.
        """
        ...

    def deploy_model(self, name: str, endpoint: str, *, sku: str | None = None) -> dict[str, Any]:
        """Answers requests with the model of a completed run: {endpoint, uri}.

        Args:
            name: the run's name.
            endpoint: what the endpoint is called.
            sku: size of its machine, where it has one of its own.

        Raises:
            ConflictError: the run has no model, or there is such an endpoint.
        """
        ...

    def delete_endpoint(self, endpoint: str) -> None:
        """Ends an endpoint.

        Raises:
            NotFoundError: there is none of that name.
        """
        ...

    def leftovers(self) -> list[Path]:
        """Folders on this machine that interrupted submissions and deletions left behind, and that nobody works on."""
        ...

    def provision(self, compute: ResolvedCompute) -> str:
        """Makes sure that there is something to run on; returns what it did, in one line."""
        ...


def no_such_output(run: str, state: RunState, asked: Sequence[str], known: Collection[str]) -> NotFoundError:
    """What a run does not have, what it has, and what one may type.

    Args:
        run: its name.
        state: how it stands.
        asked: names of outputs that it does not have; none: it has nothing at all.
        known: those that it has.
    """
    first = asked[0] if asked else ""
    near = did_you_mean(first, known) if first not in WRITTEN_LATER else ""
    if not near and not state.terminal:
        fix = f"orchestrator wait {run}"
    elif not near and state.resumable:
        fix = f"orchestrator resume {run}"
    else:
        fix = f"orchestrator download {run} {next(iter(known))}" if known else f"orchestrator status {run}"
    return NotFoundError(
        f"run {run} has no output {', '.join(asked) or 'yet'}{near}",
        facts={"state": state.value, "has": ", ".join(known) or "nothing"},
        fix=fix,
    )
