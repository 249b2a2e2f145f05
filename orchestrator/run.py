"""Run."""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.backends import require
from orchestrator.backends.base import Backend, Progress
from orchestrator.backends.capabilities import Inspects, Preempts, Registers, Resumes
from orchestrator.backends.log_query import LogBlock, LogLine, LogQuery, choose_ranks
from orchestrator.runs.status import Handle, RunState, RunStatus
from orchestrator.support.errors import JobFailed, NotFoundError, TimeoutExceeded

if TYPE_CHECKING:
    from orchestrator.estimates.cost import RunCost
    from orchestrator.reports.pages.comparison import Subject
    from orchestrator.runs.differences import Difference, Side
    from orchestrator.runs.lineage_report import CheckedLineage
import tempfile

from orchestrator.support.errors import StorageError

PREDICTIONS = "predictions"  # the output of a run that predicts

WATCH_SECONDS = 2.0
FIRST_POLL = 0.1  # seconds; a run takes minutes to weeks


class Run:
    """A run that was submitted, here or elsewhere.

    Args:
        backend: where it runs.
        handle: its handle.
        created: False if it was there before the submission that returned it.
    """

    def __init__(self, backend: Backend, handle: Handle, *, created: bool = False) -> None:
        self._backend = backend
        self.handle = handle
        self.created = created

    @property
    def name(self) -> str:
        """The run's name."""
        return self.handle.name

    @property
    def folder(self) -> Path | None:
        """Its folder, where that is on this machine."""
        return self._backend.folder(self.name)

    def status(self) -> RunStatus:
        """Return its current status."""
        return self._backend.describe(self.name)

    def logs(
        self,
        *,
        follow: bool = False,
        rank: int | Collection[int] = (),
        all_ranks: bool = False,
        node: int | None = None,
        launcher: bool = False,
        tail: int | None = None,
        since: float | None = None,
        grep: str | re.Pattern[str] | None = None,
    ) -> Iterator[LogLine]:
        """Lines of its logs, of several in the order of their time, to the second; `orchestrator logs` as Python.

        Args:
            follow: go on until the run has ended.
            rank: of these ranks. Without any, `all_ranks`, `node` and `launcher`: of rank 0.
            all_ranks: of all ranks.
            node: of the ranks of this machine.
            launcher: of what starts the ranks and watches them.
            tail: of the existing lines of each log, only the last N.
            since: only lines written after this time, seconds since the epoch.
            grep: only lines in which this regular expression is found.

        Raises:
            NotFoundError: there is no such rank or node.
        """
        query = LogQuery(
            ranks=choose_ranks((rank,) if isinstance(rank, int) else rank, all_ranks, node=node, launcher=launcher),
            node=node,
            launcher=launcher,
            follow=follow,
            tail=tail,
            since=since,
            grep=None if grep is None else re.compile(grep),
        )
        return (line for block in self._backend.logs(self.name, query) for line in block.lines())

    def log_blocks(self, query: LogQuery) -> Iterator[LogBlock]:
        """Lines of its logs that a `query` asks for, in blocks, as they were written: for gigabytes of them."""
        return self._backend.logs(self.name, query)

    def plan(self) -> dict[str, Any]:
        """The plan that it was made from, as `Plan.as_dict` gave it."""
        return self._backend.plan(self.name)

    def metrics(self, *, seed: int | None = None) -> Iterator[dict[str, Any]]:
        """What the job reported: {step, time, metrics}.

        Args:
            seed: of a fine-tuning with several seeds: while it trained with this one. None: the job's own reports, of
                several seeds one for each that is done.
        """
        return self._backend.metrics(self.name, seed=seed)

    def _seeds(self, status: RunStatus, plan: Mapping[str, Any]) -> dict[int, list[dict[str, Any]]]:
        """Of a fine-tuning with several seeds: what was reported with each that has begun."""
        seeds = plan["job"]["seeds"] if status.counts == "runs" else ()
        return {seed: list(self.metrics(seed=seed)) for seed in seeds[: (status.step or 0) + 1]}

    def wait(self, timeout: float | None = None, *, max_restarts: int | None = None) -> RunStatus:
        """Waits until it has ended, and sees to its restarts where its backend has nobody who does.

        Args:
            timeout: seconds; None waits for ever.
            max_restarts: how often it may be started again; None: as it was submitted.

        Raises:
            TimeoutExceeded: it goes on after `timeout`.
        """
        started, pause = time.monotonic(), FIRST_POLL
        while not (status := self._tended(max_restarts)).state.terminal:
            left = None if timeout is None else timeout - (time.monotonic() - started)
            if left is not None and left <= 0:
                raise TimeoutExceeded(
                    f"run {self.name} is {status.state} after {timeout:g} s",
                    fix=f"orchestrator wait {self.name}",
                )
            time.sleep(pause if left is None else min(pause, left))
            pause = min(pause * 1.5, self._backend.poll_seconds)
        return status

    def watch(self, *, every: float = WATCH_SECONDS) -> RunStatus:
        """Wait as `wait` does, and show key figures and curves in a notebook as they change.

        Interrupting the cell, or losing the kernel, ends the watching and never the job, which `attach("@last")` finds
        again.

        Args:
            every: seconds between two looks.
        """
        from orchestrator.reports.pages.notebook import display_of

        draw = display_of(self)
        while not (status := self._tended(None)).state.terminal:
            draw()
            time.sleep(every)
        draw()
        return status

    def _repr_html_(self) -> str:
        """Return its status as a notebook shows it."""
        from orchestrator.reports.pages.notebook import run_html

        status, plan = self.status(), self.plan()
        result, seeds = self._backend.result(self.name), self._seeds(status, plan)
        return run_html(status, self.metrics(), plan, result, seeds=seeds)

    def _tended(self, max_restarts: int | None) -> RunStatus:
        """Return its status; a run that has ended and may restart is restarted first."""
        while True:
            status = self.status()
            if not (status.state.terminal and isinstance(self._backend, Resumes)):
                return status
            if not self._backend.tend(self.name, max_restarts):
                return status

    def raise_for_status(self) -> RunStatus:
        """The status of a completed run.

        Raises:
            JobFailed: it ended otherwise; carries the job's exit code.
        """
        status = self.status()
        if status.state.resumable:
            raise JobFailed(
                f"run {self.name} {'was ' if status.state != RunState.FAILED else ''}{status.state}",
                exit_code=status.exit_code or 1,
                facts={"reason": status.reason or "unknown"},
                fix=f"orchestrator resume {self.name}",
            )
        return status

    def lineage(self) -> CheckedLineage:
        """Where it comes from, each link held against what lies on this machine.

        Raises:
            NotFoundError: it has not begun to train.
            ConflictError: its lineage does not verify.
        """
        return self._backend.lineage(self.name)

    def report(self, to: Path | None = None, *, beside: Sequence[Run] = ()) -> Path:
        """Writes one self-contained HTML page about the run, or about several compared; returns where.

        Args:
            to: the file; None: report.html in the run's folder, or comparison.html here.
            beside: runs to compare it with.

        Raises:
            UsageError: it trains nothing, or these runs have no figures in common.
            StorageError: it cannot be written there.
        """
        from orchestrator.reports.pages.written_pages import write_report

        return write_report([run._subject() for run in (self, *beside)], to)

    def pictures(self, folder: Path, *, beside: Sequence[Run] = ()) -> list[Path]:
        """Write the figures of that page as PNGs into `folder` and return their paths; `beside`: see `report`."""
        from orchestrator.reports.pages.written_pages import write_pictures

        return write_pictures([run._subject() for run in (self, *beside)], folder)

    def download(
        self,
        *outputs: str,
        to: Path | None = None,
        force: bool = False,
        progress: Progress | None = None,
    ) -> Sequence[Path]:
        """Copies outputs, all of them or none; returns where they are now.

        Args:
            outputs: `model`, `checkpoints`, `logs`, `metrics`, ...; none: all that there are.
            to: folder; None: one of the run's name in the current folder.
            force: replace what is there.
            progress: told bytes done and bytes in all.

        Raises:
            NotFoundError: the run has no such output; tells those that it has.
            ConflictError: there is something in the place of one.
            StorageError: `to` cannot be written.
        """
        return self._backend.fetch(self.name, outputs, to or Path(self.name), force=force, progress=progress)

    def deliver(self, to: Path | None = None) -> Path | None:
        """Puts the predictions of a completed run where they were asked for; returns where, None if nobody asked.

        Args:
            to: the file; None: as its submission said. What is there is replaced.

        Raises:
            NotFoundError: it has none.
            StorageError: they cannot be written there.
        """
        asked = Path(self.plan()["spec"].get("output", "")) if to is None else to
        if not asked.is_absolute() or not asked.parent.is_dir():  # asked on another machine
            return None
        deliver(self._backend, self.name, asked)
        return asked

    def cost(self) -> RunCost:
        """What it took and cost until now, and what of that was done twice."""
        from orchestrator.estimates.cost import run_cost

        plan, status = self._backend.plan(self.name), self.status()
        compute, origin = plan["compute"], plan["changes"].get("compute.price_per_hour", {})
        return run_cost(
            self.name,
            status.attempts,
            list(self.metrics()),
            nodes=compute["nodes"],
            processes=plan["world_size"],
            price_per_hour=compute.get("price_per_hour"),
            price_origin=origin.get("from") or compute.get("price_origin"),
            now=time.time(),
        )

    def compare(self, other: Run, *, patch: bool = False) -> Difference:
        """What this run (a) and the `other` (b) have not in common; with `patch`, changed code line by line."""
        from orchestrator.runs.differences import compare

        return compare(self._side(), other._side(), patch=patch)

    def _side(self) -> Side:
        from orchestrator.runs.differences import Side

        folder, backend = self.folder, self._backend
        return Side(
            status=self.status(),
            plan=backend.plan(self.name),
            result=backend.result(self.name),
            code=folder / "code" if folder else None,
        )

    def _subject(self) -> Subject:
        from orchestrator.reports.pages.comparison import Subject

        side = self._side()
        return Subject(side, list(self.metrics()), self._seeds(side.status, side.plan))

    def cancel(self) -> None:
        """Asks it to end; it saves a checkpoint first."""
        self._backend.cancel(self.name)

    def preempt(self) -> None:
        """Simulates a preemption: the job saves a checkpoint and stops; `max_restarts` may start it again."""
        require(self._backend, Preempts).preempt(self.name)

    def stacks(self, *, rank: int | None = None) -> dict[int, str]:
        """Where each rank stands, or one of them: rank -> Python stacks of all its threads, innermost frame first.

        Raises:
            ConflictError: the run is not running.
            NotFoundError: it has no such rank.
        """
        found = require(self._backend, Inspects).stacks(self.name)
        if rank is None:
            return found
        if rank not in found:
            raise NotFoundError(f"run {self.name} has no rank {rank}", facts={"ranks": f"0 to {max(found)}"})
        return {rank: found[rank]}

    @property
    def deploys_here(self) -> bool:
        """Whether an endpoint of its model is a process of this machine, and costs nothing."""
        return require(self._backend, Registers).deploys_here

    def register_model(self, name: str | None = None) -> dict[str, Any]:
        """Puts its model into the registry, with its lineage: {name, version, uri, tags}.

        Its `name` there is, if None is given, the run's without its hash.

        Raises:
            ConflictError: it did not complete.
        """
        return require(self._backend, Registers).register_model(self.name, name)

    def deploy_model(self, endpoint: str, *, sku: str | None = None) -> dict[str, Any]:
        """Answers requests with its model: {endpoint, uri}.

        Args:
            endpoint: its name.
            sku: the machine size behind it, on Azure; None: the backend's own choice.

        Raises:
            ConflictError: it did not complete, or there is such an endpoint.
        """
        return require(self._backend, Registers).deploy_model(self.name, endpoint, sku=sku)

    def resume(self, *, processes: int | None = None) -> None:
        """Starts it again from its newest checkpoint.

        Args:
            processes: on each node, from now on; the global batch stays what it was. None: as many as before.
        """
        require(self._backend, Resumes).resume(self.name, processes=processes)


def deliver(backend: Backend, name: str, to: Path) -> None:
    """Puts the predictions of a run into a file, whole or not at all; what is there is replaced.

    Raises:
        NotFoundError: it has none.
        StorageError: they cannot be written there.
    """
    try:
        with tempfile.TemporaryDirectory(prefix=".predictions.", dir=to.parent) as scratch:
            (found,) = backend.fetch(name, (PREDICTIONS,), Path(scratch))
            found.replace(to)
    except OSError as problem:
        raise StorageError(
            f"cannot put the predictions at {to}: {problem.strerror}",
            fix=f"orchestrator download {name} {PREDICTIONS}",
        ) from problem
