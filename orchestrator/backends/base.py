"""What every backend does. `request` is pure; a dry run stops after it and so shows the very object that is sent."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from orchestrator.runs.status import Handle, RunStatus
from train_jobs.config.base import Config

if TYPE_CHECKING:  # looking at runs needs neither, and loading them takes longer than listing fifty
    from orchestrator.jobs.base import Plan
    from orchestrator.runs.lineage_report import CheckedLineage
    from orchestrator.specs.compute import ResolvedCompute


class Request(Config):
    """Exactly what a backend is asked to run; each backend has its own fields."""

    name: str
    """The run's name."""

    def file(self) -> dict[str, Any] | None:
        """The same for another program that could send it, where there is such a program."""
        return None


@dataclass(frozen=True)
class LogQuery:
    """Which lines of a run's logs."""

    ranks: tuple[int, ...] | None = (0,)
    """Of these ranks; None: of all."""
    node: int | None = None
    """Of what runs on this machine only."""
    launcher: bool = False
    """Also of what starts the ranks and watches them."""
    follow: bool = False
    """Go on until the run has ended."""
    tail: int | None = None
    """Of what there is already, only the last so many lines of each log; with `grep`, of those that fit."""
    since: float | None = None
    """Only lines written after this time, seconds since the epoch."""
    grep: re.Pattern[str] | None = None
    """Only lines in which this is found."""

    @property
    def several(self) -> bool:
        """True when it asks for more than one log."""
        return self.ranks is None or len(self.ranks) != 1 or self.launcher


def choose_ranks(
    ranks: Collection[int], all_ranks: bool, *, node: int | None, launcher: bool
) -> tuple[int, ...] | None:
    """`LogQuery.ranks` of what a user said: a node alone means its ranks, the launcher alone none, nothing rank 0."""
    if all_ranks or (node is not None and not ranks and not launcher):
        return None
    return tuple(ranks) or (() if launcher else (0,))


@dataclass(frozen=True)
class LogSource:
    """Who wrote a log."""

    rank: int | None = 0
    """Which rank; None: none of them."""
    node: int | None = 0
    """On which machine; None: on none of the job's."""
    writer: str = "rank"
    """What it is: rank, or agent, supervisor, ... of the launcher."""

    @property
    def label(self) -> str:
        """`0:3` is rank 3 on node 0, `1:agent` what starts the ranks of node 1."""
        who = self.writer if self.rank is None else str(self.rank)
        return who if self.node is None else f"{self.node}:{who}"


@dataclass(frozen=True)
class LogLine:
    """One line, without its line end."""

    text: str
    """What was written; bytes that are not UTF-8 are replaced."""
    rank: int | None = 0
    """Which rank; None: none of them."""
    node: int | None = 0
    """On which machine; None: on none of the job's."""
    writer: str = "rank"
    """What wrote it, as of `LogSource`."""


@dataclass(frozen=True)
class LogBlock:
    """Lines of one log that stand together, as they were written: a log of gigabytes is read in these."""

    data: bytes
    """Whole lines, each with its line end. Of a line of more than 64 KiB a piece, of which the last has the line end.
    Empty: nothing new at this moment, for who follows and wants to say so."""
    source: LogSource = LogSource()
    """Who wrote them."""

    def lines(self) -> Iterator[LogLine]:
        """The lines one by one."""
        source = self.source
        texts = self.data.decode(errors="replace").split("\n")
        if not texts[-1]:
            texts.pop()
        for text in texts:
            yield LogLine(text.removesuffix("\r"), source.rank, source.node, source.writer)


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
