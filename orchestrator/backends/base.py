"""The interface of a backend: eight methods that each must have, and what follows from them.

`prepare` is pure and offline, and `submit` sends the very object that `prepare` returned. What only some backends can
do (resume, delete, register a model, ...) is a capability: see `capabilities.py`.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from orchestrator.runs.run_documents import parse_object
from orchestrator.runs.status import Handle, RunState
from orchestrator.support.access import open_home
from orchestrator.support.errors import NotFoundError
from train_jobs.artifacts.lineage import METRICS_FILE, seed_folder
from train_jobs.artifacts.metrics_file import parse_report
from train_jobs.config import Config, closest, did_you_mean

if TYPE_CHECKING:  # listing runs needs none of these, and loading them takes longer than listing fifty
    from orchestrator.backends.log_query import LogBlock, LogQuery
    from orchestrator.jobs.base import Plan
    from orchestrator.jobs.inputs import JobInput, JobOutput
    from orchestrator.runs.lineage_report import CheckedLineage
    from orchestrator.runs.status import RunStatus

Progress = Callable[[int, int], None]
"""Called with the number of bytes done and the total number of bytes, as a copy advances."""

PLAN, REQUEST, CONFIG, SPEC, TAGS = "plan.json", "request.json", "config.json", "spec.yaml", "tags.json"
RESULT = "result.json"
NO_RESULT = (  # reason of a job that ended before it was complete, as by `os._exit(0)`
    f"every rank ended with exit code 0, but the job did not write {RESULT}: "
    "a process ended before the job was complete"
)
RANK_ERROR = re.compile(r"error-\d+\.json")
"""Name of the error record of a rank among the outputs; the job may have files such as error-analysis.json."""
SUBMITTED = frozenset({PLAN, REQUEST, CONFIG, SPEC, TAGS})
"""Documents of a run that its submission writes; all others are outputs of the job."""

WRITTEN_LATER = {
    "checkpoints",
    "lineage",
    "metrics",
    "model",
    "predictions",
    "result",
    "scored_rows",
    "store",
    "submission",
}
"""Outputs that jobs write while they run or at their end: their names are never typos."""


class Request(Config):
    """Request of a backend, kept as the run's request.json. Each backend adds its own fields."""

    name: str
    """The run's name."""


@dataclass(frozen=True)
class Submission:
    """Complete request for one run: made by `Backend.prepare`, printed by a dry run, sent by `Backend.submit`."""

    backend: str
    """The backend's name."""
    plan: Plan | None
    """The plan; None: the run comes from a job file of another program."""
    request: Any
    """The backend's `Request`, with fields of its own."""
    command: tuple[str, ...]
    """Command of each rank."""
    variables: Mapping[str, str]
    """Environment variables of each rank, in addition to those of the machine and of the launcher."""
    documents: Mapping[str, str]
    """Name -> text of the documents in `SUBMITTED`."""
    notes: tuple[str, ...] = ()
    """Facts that the plan does not have, `label: text` each."""
    export: Mapping[str, Any] | None = None
    """The job in the format of another program, such as `az ml`; None without such a format."""

    @property
    def run(self) -> str:
        """The run's name."""
        return str(self.request.name)

    @property
    def inputs(self) -> tuple[JobInput, ...]:
        """Inputs that the backend delivers to the job."""
        return self.plan.needs.inputs if self.plan else ()

    @property
    def outputs(self) -> tuple[JobOutput, ...]:
        """Folders that the job writes to."""
        return self.plan.makes if self.plan else ()

    @property
    def options(self) -> Config | None:
        """The backend's own section of the spec; None: it has none."""
        return dict(self.plan.spec).get(self.backend) if self.plan else None

    def as_dict(self) -> dict[str, Any]:
        """Return what a dry run prints as JSON: plan and request in the form of the run's documents."""
        plan = {} if self.plan is None else {"plan": self.plan.as_dict()}
        return {**plan, "request": self.request.model_dump(mode="json")}


class Backend(ABC):
    """Runs plans and reports on the runs. Methods identify a run by its name, not by its handle.

    Every method with a run raises NotFoundError if the run does not exist.

    Args:
        home: the user's orchestrator folder.
    """

    name: ClassVar[str]
    """Its name in specs, handles and `--backend`."""
    poll_seconds: float = 2.0
    """Longest pause between two status requests while a run is awaited."""
    instead: ClassVar[Mapping[str, str]] = {}
    """Name of a missing capability -> what the user can do instead."""
    remote: bool = False
    """Whether runs are on other machines, behind a service on the network."""
    own_tracking: bool = False
    """Whether the backend itself keeps the runs of MLflow."""
    shares_machine: bool = False
    """Whether concurrent runs share the cores, memory and GPUs of this machine."""

    def __init__(self, home: Path) -> None:
        open_home(home, create=False)
        self._home = home

    @abstractmethod
    def prepare(self, plan: Plan, *, run: str) -> Submission:
        """Return everything that would be sent for a plan: pure, offline.

        Args:
            plan: the plan.
            run: name of the run.

        Raises:
            UserError: the backend cannot run it.
        """

    @abstractmethod
    def submit(self, submission: Submission) -> Handle:
        """Send what `prepare` returned; return once the backend has accepted the run.

        Raises:
            ConflictError: the name is taken.
            UserError: it was refused, and nothing runs.
        """

    @abstractmethod
    def describe(self, run: str) -> RunStatus:
        """Return the current status of a run. A damaged run is a failed one, not an error.

        Raises:
            ServiceError: the service behind the backend cannot be reached, and no recent status is known.
        """

    @abstractmethod
    def list(self) -> Iterator[RunStatus]:
        """Yield the status of all runs, the newest first, each looked up only when it is needed."""

    @abstractmethod
    def logs(self, run: str, query: LogQuery) -> Iterator[LogBlock]:
        """Yield lines of a run's logs in blocks; lines of several logs in the order of their times.

        Raises:
            NotFoundError: the run, rank or node does not exist.
        """

    @abstractmethod
    def cancel(self, run: str) -> None:
        """Ask a run to end and return; it may take a while. A finished run stays as it is.

        The job gets time to save a checkpoint: 30 s on this machine, about as long on Azure.
        """

    @abstractmethod
    def fetch(
        self, run: str, outputs: Sequence[str], to: Path, *, force: bool = False, progress: Progress | None = None
    ) -> Sequence[Path]:
        """Copy outputs of a run into a folder, all of them or none; return the copies.

        Args:
            run: its name.
            outputs: `model`, `checkpoints`, `logs`, ...; none: all.
            to: the folder; created if missing.
            force: replace existing files.
            progress: called as the copy advances.

        Raises:
            NotFoundError: the run has no such output.
            ConflictError: a target already exists.
            StorageError: `to` cannot be written.
        """

    @abstractmethod
    def read(self, run: str, document: str) -> bytes:
        """Return a document of a run, empty if it does not exist (yet).

        Args:
            run: its name.
            document: one of `SUBMITTED`, or an output: result.json, metrics.jsonl, seed-1/metrics.jsonl, lineage.json.

        Raises:
            StorageError: it cannot be read.
        """

    def names(self) -> Sequence[str]:
        """Return the names of all runs, the newest first. Override it if `list` is slow."""
        return [status.name for status in self.list()]

    def has(self, name: str) -> bool:
        """Return whether there is a run of exactly this name. Override it if `names` is slow."""
        return name in self.names()

    def handle(self, run: str) -> Handle:
        """Return the handle of a run."""
        return Handle(self.name, run)

    def folder(self, run: str) -> Path | None:
        """Return the run's folder, None if it is not on this machine."""
        return None

    def record_folder(self, run: str) -> Path | None:
        """Return the folder of a run's record on this machine, None without one. By default it is the run's folder."""
        return self.folder(run)

    def plan(self, run: str) -> dict[str, Any]:
        """Return the plan that a run was made from, as `Plan.as_dict` gave it.

        Raises:
            StorageError: it is damaged.
        """
        return self._object(run, PLAN, self.read(run, PLAN))

    def result(self, run: str) -> dict[str, Any]:
        """Return the job's final figures; empty until it has completed.

        Raises:
            StorageError: they are damaged.
        """
        return self._object(run, RESULT, self.read(run, RESULT) or b"{}")

    def _object(self, run: str, name: str, content: bytes) -> dict[str, Any]:
        return parse_object(run, self.folder(run) or run, name, content)

    def metrics(self, run: str, *, seed: int | None = None) -> Iterator[dict[str, Any]]:
        """Yield the job's reports {step, time, metrics}, the oldest first; lines that are no reports are left out.

        A report that was written without a time has time 0.

        Args:
            run: its name.
            seed: only the reports of this seed of a fine-tuning with several.
        """
        name = METRICS_FILE if seed is None else f"{seed_folder(seed)}/{METRICS_FILE}"
        for line in self.read(run, name).split(b"\n"):
            # not the present time: one that differs at each call would make work of earlier attempts look repeated
            if (report := parse_report(line, 0.0)) is not None:
                yield report

    def lineage(self, run: str) -> CheckedLineage:
        """Return the lineage of a run, each link compared with what exists on this machine.

        Raises:
            NotFoundError: the run does not exist, or has not begun to train.
            ConflictError: its lineage does not verify.
            StorageError: a document of it, or of a run that it starts from, is damaged.
        """
        from orchestrator.backends.lineage_check import Records, checked_lineage

        return checked_lineage(self.handle(run), self._home, Records(self.read, self.folder))


def no_such_output(run: str, state: RunState, asked: Sequence[str], known: Collection[str]) -> NotFoundError:
    """Return the error for outputs that a run does not have, with those that it has and a command that works.

    Args:
        run: its name.
        state: its state.
        asked: names of the missing outputs; none: it has no output at all.
        known: names of its outputs.
    """
    first = asked[0] if asked else ""
    # "model" of a run that still trains is missing, not misspelled: suggesting "metrics" would mislead
    near = closest(first, known) if first not in WRITTEN_LATER else None
    if not near and not state.terminal:
        fix = f"orchestrator wait {run}"
    elif not near and state.resumable:
        fix = f"orchestrator resume {run}"
    else:
        fix = f"orchestrator download {run} {near or next(iter(known))}" if known else f"orchestrator status {run}"
    return NotFoundError(
        f"run {run} has no output {', '.join(asked) or 'yet'}{did_you_mean(first, [near] if near else [])}",
        facts={"state": state.value, "has": ", ".join(known) or "nothing"},
        fix=fix,
    )
