"""A submitted run: its status, logs, metrics, files, and the operations on it."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from orchestrator.backends import require
from orchestrator.backends.base import Backend, Progress
from orchestrator.backends.capabilities import CopiesToMlflow, Inspects, Preempts, Registers, Resumes
from orchestrator.backends.log_query import LogBlock, LogLine, LogQuery, choose_ranks
from orchestrator.runs.status import Handle, RunState, RunStatus
from orchestrator.support.errors import ConflictError, JobFailed, NotFoundError, StorageError, TimeoutExceeded
from train_jobs.artifacts.drafts import scratch_folder
from train_jobs.artifacts.files import content_record, has_content, read_object, write_text

if TYPE_CHECKING:
    from orchestrator.estimates.cost import RunCost
    from orchestrator.jobs.base import Plan
    from orchestrator.reports.pages.run_report import RunReport
    from orchestrator.runs.differences import Difference, Side
    from orchestrator.runs.lineage_report import CheckedLineage
    from orchestrator.runs.mlflow_runs import MlflowRun
    from orchestrator.runs.tracked_run import Synced

PREDICTIONS = "predictions"  # the output of a run that predicts
DELIVERIES = "deliveries.json"  # in the record of a run: path -> size and hash of the predictions written to it

WATCH_SECONDS = 2.0
FIRST_POLL = 0.1  # seconds: `wait` on a finished or short run returns quickly; the pause grows to the backend's own

P = ParamSpec("P")
R = TypeVar("R")


def _renamed_argument(old: str, new: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator that still accepts a keyword argument under its former name."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            if old in kwargs:
                kwargs[new] = kwargs.pop(old)
            return function(*args, **kwargs)

        return call

    return decorate


class Run:
    """A submitted run, on any backend.

    Args:
        backend: backend of the run.
        handle: its handle.
        created: False if the run existed before the submission that returned it.
        submitted: the plan whose submission returned it, which may name another output than the run's own plan.
            None: it was not submitted by plan, or was found again.
    """

    def __init__(
        self, backend: Backend, handle: Handle, *, created: bool = False, submitted: Plan | None = None
    ) -> None:
        self._backend = backend
        self.handle = handle
        self.created = created
        self._submitted = submitted

    def __repr__(self) -> str:
        return f"Run({str(self.handle)!r})"

    @property
    def name(self) -> str:
        """The run's name."""
        return self.handle.name

    @property
    def folder(self) -> Path | None:
        """Its folder, if it is on this machine."""
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
        """Return lines of its logs, like `orchestrator logs`. Several logs are merged by time, to the second.

        Args:
            follow: continue until the run has finished.
            rank: rank or ranks; rank 0 unless `all_ranks`, `node` or `launcher` is given.
            all_ranks: all ranks.
            node: ranks of this node.
            launcher: the processes that start and watch the ranks.
            tail: only the last N of the existing lines of each log.
            since: only lines written after this time, seconds since the epoch.
            grep: only lines that match this regular expression.

        Raises:
            NotFoundError: the run has no such rank or node.
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
        """Return the lines that a query selects as blocks of bytes.

        Blocks are fast enough for logs of gigabytes, which `logs` would split into objects line by line.

        Raises:
            NotFoundError: the run has no such rank or node.
        """
        return self._backend.logs(self.name, query)

    def plan(self) -> dict[str, Any]:
        """Return its plan, as `Plan.as_dict` wrote it."""
        return self._backend.plan(self.name)

    def metrics(self, *, seed: int | None = None) -> Iterator[dict[str, Any]]:
        """Return the reports of the job: {step, time, metrics}, `time` in seconds since the epoch.

        Args:
            seed: in a fine-tuning with several seeds, the seed whose reports to return. None: the job's own reports,
                one for each finished seed.
        """
        return self._backend.metrics(self.name, seed=seed)

    def _seeds(self, status: RunStatus, plan: Mapping[str, Any]) -> dict[int, list[dict[str, Any]]]:
        """Return the reports of each seed that has started, in a fine-tuning with several seeds."""
        seeds = plan["job"]["seeds"] if status.counts == "runs" else ()
        # `step` counts finished seeds, which run one after the other: the next one may have reports already.
        return {seed: list(self.metrics(seed=seed)) for seed in seeds[: (status.step or 0) + 1]}

    def wait(
        self, timeout: float | None = None, *, max_restarts: int | None = None, max_preemptions: int | None = None
    ) -> RunStatus:
        """Wait until it has finished; restart it when due if its backend has no supervisor.

        Args:
            timeout: seconds; None: no limit.
            max_restarts: maximum number of restarts after errors; None: as submitted.
            max_preemptions: maximum number of restarts after preemptions; None: as submitted.

        Raises:
            TimeoutExceeded: it has not finished after `timeout`.
        """
        started, pause = time.monotonic(), FIRST_POLL
        while True:
            status, over = self.follow_up(max_restarts, max_preemptions)
            if over:
                return status
            left = None if timeout is None else timeout - (time.monotonic() - started)
            if left is not None and left <= 0:
                raise TimeoutExceeded(
                    f"run {self.name} is {status.state} after {timeout:g} s",
                    fix=f"orchestrator wait {self.name}",
                )
            time.sleep(pause if left is None else min(pause, left))
            pause = min(pause * 1.5, self._backend.poll_seconds)

    def watch(self, *, every: float = WATCH_SECONDS) -> RunStatus:
        """Wait like `wait`, and keep key figures and curves up to date in a notebook cell.

        Interrupting the cell or losing the kernel does not affect the job; `attach("@last")` finds it again.

        Args:
            every: seconds between two updates.
        """
        from orchestrator.reports.pages.run_page import display_of

        draw = display_of(self)
        while not (found := self.follow_up())[1]:
            draw()
            time.sleep(every)
        draw()
        return found[0]

    def _repr_html_(self) -> str:
        """Return its status as HTML for a notebook."""
        from orchestrator.reports.pages.run_page import run_html

        return run_html(self._report())

    def follow_up(self, max_restarts: int | None = None, max_preemptions: int | None = None) -> tuple[RunStatus, bool]:
        """Return its status, and whether it is over; restart it first if a restart is due.

        Everything that follows a run calls this, so that each of them restarts a run that was preempted
        unattended, and moves one to other machines whose cluster gets none. A run that waits for its restart has
        finished and is not over.

        Args:
            max_restarts: maximum number of restarts after errors; None: as submitted.
            max_preemptions: maximum number of restarts after preemptions; None: as submitted.
        """
        status = self.status()
        finished = status.state.terminal
        if not isinstance(self._backend, Resumes) or not (finished or status.state == RunState.QUEUED):
            return status, finished
        if self._backend.restart_if_needed(self.name, max_restarts, max_preemptions):
            return self.status(), False
        return (self.status(), True) if finished else (status, False)  # again: it may show why it was not restarted

    def raise_for_status(self) -> RunStatus:
        """Return its status, unless it failed, was cancelled or was preempted.

        Raises:
            JobFailed: it finished without completing; carries the job's exit code.
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
        """Return its lineage, each link verified against the files of this machine.

        Raises:
            NotFoundError: it has not started to train.
            ConflictError: its lineage does not verify.
            StorageError: a document of it, or of a run that it starts from, is damaged.
        """
        return self._backend.lineage(self.name)

    @_renamed_argument("beside", "compare_with")
    def report(self, to: str | os.PathLike[str] | None = None, *, compare_with: Sequence[Run] = ()) -> Path:
        """Write a self-contained HTML page about the run, or a comparison of several runs; return its path.

        Args:
            to: the file; None: report.html in the run's folder, or comparison.html in the current folder.
            compare_with: other runs to compare it with.

        Raises:
            UsageError: the job neither trains nor evaluates, or the runs have no figures in common.
            StorageError: the file cannot be written, or a run is damaged.
        """
        from orchestrator.reports.pages.comparison import write_report

        page = None if to is None else Path(to)
        return write_report([run._report(scored=True) for run in (self, *compare_with)], page)

    @_renamed_argument("beside", "compare_with")
    def pictures(self, folder: str | os.PathLike[str], *, compare_with: Sequence[Run] = ()) -> list[Path]:
        """Write the figures of that page as PNG files; return their paths.

        Args:
            folder: destination; created if it is missing.
            compare_with: see `report`.

        Raises:
            UsageError: see `report`.
            StorageError: a file cannot be written.
        """
        from orchestrator.reports.pages.comparison import write_pictures

        return write_pictures([run._report() for run in (self, *compare_with)], Path(folder))

    def download(
        self,
        *outputs: str,
        to: str | os.PathLike[str] | None = None,
        force: bool = False,
        progress: Progress | None = None,
    ) -> Sequence[Path]:
        """Copy outputs, all of them or none; return their paths.

        Args:
            outputs: `model`, `checkpoints`, `logs`, `metrics`, ...; none: all outputs.
            to: folder; None: a folder with the run's name in the current one.
            force: overwrite existing files.
            progress: called with bytes done and total bytes.

        Raises:
            NotFoundError: the run has no such output; the message lists its outputs.
            ConflictError: a destination already exists.
            StorageError: `to` cannot be written.
        """
        folder = Path(self.name if to is None else to)
        return self._backend.fetch(self.name, outputs, folder, force=force, progress=progress)

    @property
    def delivery(self) -> Path | None:
        """The file that `deliver` writes by default; None: the predictions remain among the run's outputs.

        For the result of a submission it is the output of the submitted plan, otherwise that of the run's own plan.
        """
        if self._submitted is not None:
            return self._submitted.delivery
        output = Path(self.plan()["spec"].get("output", ""))
        return output if output.is_absolute() else None

    def deliver(self, to: str | os.PathLike[str] | None = None) -> Path | None:
        """Write the predictions of a completed run to a file; return its path.

        Args:
            to: the file, which is overwritten. None: `delivery`; it is overwritten only by the first delivery, and
                written again if it is missing.

        Returns:
            The file; None without `to` if the submission named no file.

        Raises:
            NotFoundError: the run has no predictions.
            ConflictError: without `to`, the file has changed since an earlier delivery.
            StorageError: the file cannot be written, for example because its folder is on another machine.
        """
        destination = self.delivery if to is None else Path(to)
        if destination is not None:
            deliver(self._backend, self.name, destination, replace=to is not None)
        return destination

    def cost(self) -> RunCost:
        """Return its machine hours and cost so far, and the share that was repeated after restarts."""
        from orchestrator.estimates.cost import run_cost

        status, reports = self.status(), list(self.metrics())
        return run_cost(self.name, status.attempts, reports, plan=self.plan(), now=status.now)

    def compare(self, other: Run, *, patch: bool = False) -> Difference:
        """Return the differences between this run (a) and another one (b).

        Args:
            other: run b.
            patch: also return the changed lines of code.

        Raises:
            StorageError: one of them is damaged.
        """
        from orchestrator.runs.differences import compare

        return compare(self._side(scored=True), other._side(scored=True), patch=patch)

    def as_mlflow_run(self) -> MlflowRun:
        """Return it in the form of runs that other tools record in MLflow."""
        from orchestrator.jobs.datasets import run_datasets
        from orchestrator.runs.mlflow_runs import as_mlflow_run
        from train_jobs.artifacts.lineage import LINEAGE_FILE, parse_lineage

        plan, lineage = self.plan(), None
        if written := self._backend.read(self.name, LINEAGE_FILE):
            with suppress(ConflictError):  # it was changed: `status --lineage` reports it
                lineage = parse_lineage(written, Path(self.name, LINEAGE_FILE))
        return as_mlflow_run(self.status(), plan, run_datasets(plan, lineage))

    def _side(self, *, scored: bool) -> Side:
        from orchestrator.runs.differences import Side
        from orchestrator.runs.significance import scored_places

        folder, backend = self.folder, self._backend
        result = backend.result(self.name)
        places = scored_places(result) if scored else {}
        return Side(
            status=self.status(),
            plan=backend.plan(self.name),
            result=result,
            code=folder / "code" if folder else None,
            scored={task: backend.read(self.name, place) for task, place in places.items()},
        )

    def _report(self, *, scored: bool = False) -> RunReport:
        from orchestrator.reports.pages.run_report import report_of

        side = self._side(scored=scored)
        return report_of(side, self.metrics(), self._seeds(side.status, side.plan))

    def cancel(self) -> None:
        """Cancel it; it saves a checkpoint first."""
        self._backend.cancel(self.name)

    def preempt(self) -> None:
        """Simulate a preemption: the job saves a checkpoint and stops, and restarts if `max_restarts` allows it."""
        require(self._backend, Preempts).preempt(self.name)

    def stacks(self, *, rank: int | None = None) -> dict[int, str]:
        """Return rank -> Python stacks of all threads of that rank, innermost frame first.

        Args:
            rank: only this rank; None: all ranks.

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
        """Whether an endpoint of its model is a process of this machine, which costs nothing."""
        return require(self._backend, Registers).deploys_here

    @property
    def copies_to_mlflow(self) -> bool:
        """Whether its metrics are copied to an MLflow store; a workspace of Azure has MLflow runs of its own."""
        return isinstance(self._backend, CopiesToMlflow)

    def sync_mlflow(self, to: str | None = None) -> Synced:
        """Make its MLflow run equal to its records: store, parameters, tags, metrics, status; safe to repeat.

        Args:
            to: tracking URI of another server or store, which gets a copy too. None: the run's own.

        Raises:
            ServiceError: MLflow or its store refused.
        """
        return require(self._backend, CopiesToMlflow).sync_mlflow(self.name, to)

    def register_model(
        self, name: str | None = None, *, alias: str | None = None, checkpoints: bool = False
    ) -> dict[str, Any]:
        """Register its model as an MLflow model with its lineage; return {name, version, uri, tags}.

        Args:
            name: name of the model; None: the run's name without its hash.
            alias: alias of the version, which another version loses. None: no alias.
            checkpoints: whether each kept checkpoint becomes a logged model of MLflow too.

        Raises:
            ConflictError: it did not complete.
            UsageError: the registry has no aliases, or no logged models.
        """
        backend = require(self._backend, Registers)
        return backend.register_model(self.name, name, alias=alias, checkpoints=checkpoints)

    def deploy_model(
        self,
        endpoint: str,
        *,
        sku: str | None = None,
        traffic: int | None = None,
        require_signature: str | os.PathLike[str] | None = None,
    ) -> dict[str, Any]:
        """Deploy its model to an endpoint; return {endpoint, uri}.

        Args:
            endpoint: name of the endpoint.
            sku: machine size on Azure; None: the backend's default.
            traffic: percent of an existing endpoint's traffic, for a second deployment. None: a new endpoint.
            require_signature: public key that must have signed the model. None: a signature is not required.

        Raises:
            ConflictError: the run did not complete, or the endpoint already exists and no `traffic` was given.
            DataError: the signature is missing or invalid.
            UsageError: the endpoint would be on Azure, which checks no signature.
        """
        key = None if require_signature is None else Path(require_signature)
        backend = require(self._backend, Registers)
        return backend.deploy_model(self.name, endpoint, sku=sku, traffic=traffic, key=key)

    def resume(self, *, processes: int | None = None) -> None:
        """Resume it from its newest checkpoint.

        Args:
            processes: processes on each node; the global batch does not change. None: as before.
        """
        require(self._backend, Resumes).resume(self.name, processes=processes)


def deliver(backend: Backend, name: str, to: Path, *, replace: bool) -> None:
    """Write the predictions of a run to a file, complete or not at all.

    The first delivery overwrites an existing file. Later ones leave the file as it is if it exists and `replace` is
    False.

    Args:
        backend: backend of the run.
        name: its name.
        to: the file.
        replace: overwrite the file even if it has changed since an earlier delivery.

    Raises:
        NotFoundError: the run has no predictions.
        ConflictError: the file has changed since an earlier delivery, and `replace` is False.
        StorageError: the file, or the record of the delivery, cannot be written.
    """
    folder, place = backend.record_folder(name), str(to.absolute())
    record = None if folder is None else folder / DELIVERIES
    delivered = {} if record is None else read_object(record) or {}
    try:
        if not replace and place in delivered and to.exists() and not to.is_dir():
            if has_content(to, delivered[place]):
                return
            raise ConflictError(
                f"cannot write the predictions to {to}: it has changed since they were written",
                fix=f"move it to write them again, or orchestrator download {name} {PREDICTIONS}",
            )
        # Next to the destination, not in /tmp: a rename is atomic only within one file system.
        with scratch_folder("predictions", to.parent) as scratch:
            (found,) = backend.fetch(name, (PREDICTIONS,), scratch)
            if record is not None:  # before the rename: after a kill between the two, an edited file must be kept
                write_text(record, json.dumps({**delivered, place: content_record(found)}, indent=1))
            found.replace(to)
    except OSError as problem:
        raise StorageError(
            f"cannot write the predictions to {to}: {problem.strerror}",
            fix=f"orchestrator download {name} {PREDICTIONS}",
        ) from problem
