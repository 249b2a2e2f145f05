"""The interface of a backend: eight methods that each must have, and what follows from them.

`prepare` is pure and offline, and `submit` sends the very object that `prepare` returned. What only some backends can
do (resume, delete, register a model, ...) is a capability: see `capabilities.py`.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from orchestrator.runs.status import Handle, RunState
from orchestrator.support.errors import NotFoundError, StorageError
from train_jobs.artifacts.lineage import METRICS_FILE, seed_folder
from train_jobs.config.base import Config
from train_jobs.config.names import did_you_mean

if TYPE_CHECKING:  # listing runs needs none of these, and loading them takes longer than listing fifty
    from orchestrator.backends.log_query import LogBlock, LogQuery
    from orchestrator.jobs.base import Plan
    from orchestrator.runs.lineage_report import CheckedLineage
    from orchestrator.runs.status import RunStatus

Progress = Callable[[int, int], None]
"""Called with bytes done and bytes in all."""

PLAN, REQUEST, CONFIG, SPEC, TAGS = "plan.json", "request.json", "config.json", "spec.yaml", "tags.json"
RESULT = "result.json"
SUBMITTED = frozenset({PLAN, REQUEST, CONFIG, SPEC, TAGS})
"""Documents of a run that its submission writes; all others are outputs of the job."""

WRITTEN_LATER = {"checkpoints", "lineage", "metrics", "model", "predictions", "result", "store", "submission"}
"""Outputs that jobs write while they run or at their end: their names are never typos."""


class Request(Config):
    """What a backend is asked to run. Each backend adds its own fields; kept as the run's request.json."""

    name: str
    """The run's name."""


@dataclass(frozen=True)
class Submission:
    """All that is sent for one run: made by `Backend.prepare`, printed by a dry run, sent by `Backend.submit`."""

    backend: str
    """The backend's name."""
    plan: Plan | None
    """What will be done; None: the run comes from a job file of another program."""
    request: Any
    """What the backend is asked to run, a `Request` with fields of its own."""
    command: tuple[str, ...]
    """Of each rank."""
    variables: Mapping[str, str]
    """Environment variables of each rank, beside those of the machine and of the launcher."""
    documents: Mapping[str, str]
    """Name -> text of the documents in `SUBMITTED`."""
    notes: tuple[str, ...] = ()
    """Facts that the plan does not have, `label: text` each."""
    export: Mapping[str, Any] | None = None
    """The same for another program, such as `az ml`; None: there is none."""

    @property
    def run(self) -> str:
        """The run's name."""
        return str(self.request.name)

    def as_dict(self) -> dict[str, Any]:
        """Return what a dry run prints as JSON: the plan and the request, as the run keeps them."""
        plan = {} if self.plan is None else {"plan": self.plan.as_dict()}
        return {**plan, "request": self.request.model_dump(mode="json")}


class Backend(ABC):
    """Runs plans and reports on the runs. A method names a run by its name, not by its handle.

    Every method that takes a run raises NotFoundError if there is none of that name.

    Args:
        home: the user's orchestrator folder.
    """

    name: ClassVar[str]
    """Its name in specs, handles and `--backend`."""
    poll_seconds: float = 2.0
    """Longest pause between two looks at a run that is waited for."""
    instead: ClassVar[Mapping[str, str]] = {}
    """Name of a capability that it lacks -> what its user can do instead."""
    remote: bool = False
    """Whether runs are on other machines, and a service is asked about them over a network."""
    own_tracking: bool = False
    """Whether the backend itself keeps the runs of MLflow."""
    shares_machine: bool = False
    """Whether runs at the same time share the cores, memory and GPUs of this machine."""

    def __init__(self, home: Path) -> None:
        self._home = home

    @abstractmethod
    def prepare(self, plan: Plan, *, run: str) -> Submission:
        """Return all that would be sent for a plan: pure, offline.

        Args:
            plan: what to do.
            run: name of the run.

        Raises:
            UserError: the backend cannot run it.
        """

    @abstractmethod
    def submit(self, submission: Submission) -> Handle:
        """Send what `prepare` returned; return once the backend answers for the run.

        Raises:
            ConflictError: the name is taken.
            UserError: it was refused; nothing runs then.
        """

    @abstractmethod
    def describe(self, run: str) -> RunStatus:
        """Return the status of a run."""

    @abstractmethod
    def list(self) -> Iterator[RunStatus]:
        """Yield the status of all runs, the newest first, each looked up when it is asked for."""

    @abstractmethod
    def logs(self, run: str, query: LogQuery) -> Iterator[LogBlock]:
        """Yield lines of a run's logs in blocks, those of several logs in the order of their time.

        Raises:
            NotFoundError: there is no such run, rank or node.
        """

    @abstractmethod
    def cancel(self, run: str) -> None:
        """Ask a run to end; it may take a while. A run that has ended stays as it is."""

    @abstractmethod
    def fetch(
        self, run: str, outputs: Sequence[str], to: Path, *, force: bool = False, progress: Progress | None = None
    ) -> Sequence[Path]:
        """Copy outputs of a run to below a folder, all of them or none; return the copies.

        Args:
            run: its name.
            outputs: `model`, `checkpoints`, `logs`, ...; none: all.
            to: the folder; made if missing.
            force: replace what exists there.
            progress: called as the copy advances.

        Raises:
            NotFoundError: the run has no such output.
            ConflictError: a copy exists already.
            StorageError: `to` cannot be written.
        """

    @abstractmethod
    def read(self, run: str, document: str) -> bytes:
        """Return a document of a run, empty if the run has none of that name (yet).

        Args:
            run: its name.
            document: one of `SUBMITTED`, or an output: result.json, metrics.jsonl, seed-1/metrics.jsonl, lineage.json.

        Raises:
            StorageError: it cannot be read.
        """

    def names(self) -> Sequence[str]:
        """Return the names of all runs, the newest first. Override it if `list` is slow."""
        return [status.name for status in self.list()]

    def handle(self, run: str) -> Handle:
        """Return the handle of a run."""
        return Handle(self.name, run)

    def folder(self, run: str) -> Path | None:
        """Return the run's folder, None if it is not on this machine."""
        return None

    def plan(self, run: str) -> dict[str, Any]:
        """Return the plan that a run was made from, as `Plan.as_dict` gave it.

        Raises:
            StorageError: it is damaged.
        """
        try:
            return dict(json.loads(self.read(run, PLAN)))
        except ValueError as problem:
            where = {"where": self.folder(run) or run, "says": f"{PLAN}: {problem}"}
            raise StorageError(f"run {run} is damaged", facts=where, fix=f"orchestrator status {run}") from problem

    def result(self, run: str) -> dict[str, Any]:
        """Return the job's final figures; empty until it has completed."""
        return dict(json.loads(self.read(run, RESULT) or b"{}"))

    def metrics(self, run: str, *, seed: int | None = None) -> Iterator[dict[str, Any]]:
        """Yield the job's reports {step, time, metrics} in the order in which they were made.

        Args:
            run: its name.
            seed: of a fine-tuning with several seeds only the reports of this one.
        """
        name = METRICS_FILE if seed is None else f"{seed_folder(seed)}/{METRICS_FILE}"
        for line in self.read(run, name).split(b"\n"):
            with suppress(ValueError):  # a torn last line
                yield json.loads(line)

    def lineage(self, run: str) -> CheckedLineage:
        """Return the lineage of a run, each link compared with what exists on this machine.

        Raises:
            NotFoundError: there is no such run, or it has not begun to train.
            ConflictError: its lineage does not verify.
        """
        from orchestrator.backends.lineage_check import Records, checked_lineage

        return checked_lineage(self.handle(run), self._home, Records(self.read, self.folder))


def no_such_output(run: str, state: RunState, asked: Sequence[str], known: Collection[str]) -> NotFoundError:
    """What a run does not have, what it has, and what one may type.

    Args:
        run: its name.
        state: its state.
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
