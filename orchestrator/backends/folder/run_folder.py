"""The folder of a run, which process writes which file in it, and the request that describes the run.

RUN/
  spec.yaml plan.json config.json   written once, at submission
  request.json                      written then, and again by a resume with another number of processes
                                    (the first resume in a moved home writes these documents with its paths)
  code/            the snapshot that runs
  state.json       written by the supervisor alone (before it, by the submission)
  tracking.json    id of the MLflow run; written by the process that syncs it
  mlflow-behind.txt  exists while MLflow lacks something of the run: why, and the repair
  mlflow-copies.json  addresses of copies by `mlflow sync --to`
  deliveries.json  size and hash of the predictions that were written to files outside, by path
  mlflow.lock      held by a process that syncs the MLflow run
  lock             held by the supervisor as long as it lives
  cancel           created by any process that asks the run to end
  logs/            rank-0.log ..., agent-0.log, supervisor.log, mirror.log; each with its .times (see log_files.py)
  cgroup           path of the control group of its processes, during an attempt and where one can be created
  launcher/        files of torchrun, deleted at the end of an attempt
  exits/           exit code of each rank of an attempt
  outputs/         the job's own: metrics.jsonl, checkpoints/, model/, result.json, lineage.json
  reserve          reserved bytes, so that the supervisor can store the last state on a full disk
  reserve-ranks    reserved bytes, so that ranks can store their error and exit code on a full disk
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from pydantic import Field

from orchestrator.backends.base import CONFIG, PLAN, REQUEST, Request
from orchestrator.runs.run_documents import reporting_run_damage
from orchestrator.runs.status import EndCause, RunAttempt
from orchestrator.runs.supervised_folder import Below, SupervisedFolder, SupervisedState, reserve_bytes
from orchestrator.runs.tracked_run import default_uri
from orchestrator.specs.notification import NotifySpec
from orchestrator.support.home import TOKEN_STORES
from orchestrator.support.moved_home import MovedHome
from train_jobs.artifacts.files import write_text
from train_jobs.artifacts.lineage import LINEAGE_FILE, METRICS_FILE

if TYPE_CHECKING:
    from orchestrator.jobs.base import Plan

RUN_VARIABLE = "ORCHESTRATOR_RUN"  # in the environment of every process of a run: its folder
# of write_text, require_writable, World.shares_folder and StepProfiler
TEMPORARIES = (".*.tmp", ".probe-*", ".seen-*", ".rank-*.trace.json.gz")
RANK_RESERVE_BYTES = 64 * 1024  # some 16 small files
TAGS_VARIABLE = "ORCHESTRATOR_RUN_TAGS"  # where the job finds the run's tags, for its lineage


class LocalState(SupervisedState):
    """state.json of a run."""

    created: float
    """Submission, seconds since the epoch."""
    started: float | None = None
    """Start of the last attempt."""
    ended: float | None = None
    """End of the last attempt."""
    attempt: int = 1
    """Number of attempts so far."""
    exit_code: int | None = None
    """The job's exit code."""
    ranks: dict[int, int] = Field(default={})
    """Exit codes of the last attempt, by rank."""
    attempts: list[RunAttempt] = Field(default=[])
    """Every start of the run, the oldest first; the last one may still run."""
    warning: str | None = None
    """Warning of the supervisor to the user."""
    mlflow_run_id: str | None = None
    """MLflow run of a run of an earlier version; later ones have it in tracking.json."""

    def closed_attempts(self, last: dict[str, Any]) -> list[RunAttempt]:
        """Return the attempts; one that lost its supervisor counts as ended with its last report.

        Args:
            last: the last report, see `last_report`.
        """
        if not self.attempts or not self.state.terminal or self.attempts[-1].ended is not None:
            return self.attempts
        # the last report is the best estimate of the end: cost and duration must not grow after the loss
        lost = self.attempts[-1]
        ended = max(lost.started, last.get("time", lost.started))
        cause = EndCause.MACHINE if self.machine_restarted else EndCause.SUPERVISOR
        ending = {"state": self.state, "cause": cause, "reason": self.reason, "ended": ended}
        return [*self.attempts[:-1], lost.model_copy(update=ending)]

    def last_end(self, attempts: Sequence[RunAttempt]) -> float | None:
        """Return the end of the last attempt; None: the run has not ended.

        Args:
            attempts: see `closed_attempts`.
        """
        if not self.state.terminal:
            return None
        # Earlier versions kept the end of the attempt before a resume. One that was lost as it began has its start.
        return max(filter(None, (self.ended, self.started, *(one.ended for one in attempts[-1:]))), default=None)


@dataclass(frozen=True)
class RunFolder(SupervisedFolder[LocalState]):
    """Paths of one run."""

    noun = "run"
    show_command = "orchestrator status"
    state_kind = LocalState

    code = Below("code")
    """The snapshot that runs."""
    config = Below("config.json")
    """Configuration of the job."""
    tags = Below("tags.json")
    """Tags that identify the run in MLflow and in its lineage."""
    logs = Below("logs")
    """Log files."""
    outputs = Below("outputs")
    """Everything that the job writes."""
    metrics = Below("outputs", METRICS_FILE)
    """The job's reports."""
    lineage = Below("outputs", LINEAGE_FILE)
    """Lineage of the run."""
    model = Below("outputs", "model")
    """The exported Hugging Face folder."""
    launcher = Below("launcher")
    """Files of torchrun, during an attempt."""
    rank_reserve = Below("reserve-ranks")
    """Bytes that ranks free on a full disk, to store why they ended."""
    stacks = Below("outputs", "stacks")
    """Where ranks write their Python stacks."""
    trace = Below("outputs", "profile", "rank-0.trace.json.gz")
    """The profiler's trace."""
    tensorboard = Below("outputs", "tensorboard")
    """Event files."""

    def reserve(self) -> None:
        """Reserve bytes for the last state, and for errors and exit codes of the ranks.

        Raises:
            OSError: the disk is full already; not all is reserved.
        """
        super().reserve()
        reserve_bytes(self.rank_reserve, RANK_RESERVE_BYTES)

    def clear_temporaries(self) -> None:
        """Delete what killed processes left behind; call it only while no process of the run lives."""
        shutil.rmtree(self.launcher, ignore_errors=True)
        found = [*self.path.glob(".*.tmp"), *(path for kind in TEMPORARIES for path in self.outputs.rglob(kind))]
        for path in found:
            with suppress(OSError):
                path.unlink()

    def rank_log(self, rank: int) -> Path:
        """Return the log of one rank, over all attempts."""
        return self.logs / f"rank-{rank}.log"

    def agent_log(self, node: int) -> Path:
        """Return the log of a node's launcher, over all attempts."""
        return self.logs / f"agent-{node}.log"

    def exits(self, attempt: int) -> Path:
        """Return the folder of the exit codes of an attempt."""
        return self.path / "exits" / f"attempt-{attempt}"

    def read_json(self, name: str) -> dict[str, Any]:
        """Return the content of a JSON file of the folder, with the present paths of a moved or copied home.

        Raises:
            OSError: it cannot be read.
            ValueError: it is not valid JSON.
        """
        path = self.path / name
        document: dict[str, Any] = json.loads(_request_text(path) if name == REQUEST else path.read_text())
        moved = self.moved_home()
        return document if moved is None else moved.follow(document)

    def known_state(self) -> LocalState:
        """Return the state, see `state`.

        Raises:
            StorageError: state.json is missing or damaged.
        """
        with reporting_run_damage(self.name, self.path, self.state_file.name):
            return self.state()

    def moved_home(self) -> MovedHome | None:
        """Return how the home was moved or copied since the documents were written; None: it was not."""
        try:
            request = json.loads(_request_text(self.path / REQUEST))
            stores, real = request.get("token_stores"), request.get("real_home")
        except (OSError, ValueError, AttributeError):  # damaged: its reader reports it
            return None
        former = str(Path(stores).parent) if isinstance(stores, str) else None
        return MovedHome.find((former, real), self.path.parent.parent)

    def write_moved(self) -> None:
        """Write the documents that the job reads with the present paths, if the home was moved or copied.

        Raises:
            OSError: they cannot be written.
        """
        if self.moved_home() is None:
            return
        for name in (CONFIG, PLAN, REQUEST):  # the request last: it has the former path
            with suppress(FileNotFoundError, ValueError):  # a damaged one is reported by the job
                self.rewrite(name, json.dumps(self.read_json(name), indent=1))

    def rewrite(self, name: str, text: str) -> None:
        """Replace the text of a document, and keep its time: `list` sorts runs by that of their request.

        Args:
            name: file below the folder of the run.
            text: its new text.

        Raises:
            OSError: it does not exist, or cannot be written.
        """
        path = self.path / name
        before = path.stat()
        write_text(path, text)
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))

    def lost_update(self, state: LocalState) -> dict[str, Any]:
        """Return what changes in the state of a run whose supervisor died."""
        return {"reason": self.lost_reason(state), "exit_code": 1}

    def is_original(self, state: LocalState) -> bool:
        """Return whether a state, also one of an earlier version, is that of this folder rather than of a copy."""
        return super().is_original(state) if state.folder else self.moved_home() is None


def _request_text(path: Path) -> str:
    """Return the text of a request, which each read of another document of the run needs too."""
    found = path.stat()
    return _cached_text(path, (found.st_ino, found.st_mtime_ns, found.st_ctime_ns, found.st_size))


@lru_cache(maxsize=16)
def _cached_text(path: Path, version: tuple[int, int, int, int]) -> str:
    return path.read_text(encoding="utf-8")


class FolderRequest(Request):
    """Fields shared by requests of folder-based backends."""

    nodes: int
    """Machines, or processes that simulate them."""
    processes_per_node: int
    """Ranks on each."""
    threads: int
    """CPU threads of each rank."""
    device: str
    """cpu or gpu."""
    max_restarts: int
    """Automatic restarts after errors."""
    max_preemptions: int | None = None
    """Automatic restarts after preemptions; None: as `max_restarts`."""
    variables: dict[str, str]
    """Environment variables beyond those of the caller."""
    secrets: dict[str, str] = Field(default={})
    """Secret environment variables: name -> reference, looked up at each start."""
    snapshot: str
    """SHA-256 of the code."""
    tracking_uri: str
    """MLflow store."""
    experiment: str
    """MLflow experiment."""
    notify: NotifySpec = Field(default_factory=NotifySpec)
    """Notification settings."""
    steps: int | None
    """Optimizer steps to take; None: the job trains nothing."""
    token_stores: str
    """Folder of prepared data, shared by all runs; it is directly below the home folder."""
    real_home: str | None = None
    """The home folder without symbolic links; None: it has none."""
    writes_result: bool = False
    """Whether the job writes result.json before it ends with 0; a run of an earlier version is not checked."""

    @classmethod
    def from_plan(cls, plan: Plan, run_name: str, home: Path, **own: Any) -> Self:
        """Return the request for a plan.

        Args:
            plan: the plan.
            run_name: the run's name.
            home: the user's orchestrator folder: its MLflow store is the default one, its token stores are shared.
            own: fields that the backend adds.
        """
        compute, spec = plan.compute, plan.spec
        return cls(
            name=run_name,
            nodes=compute.nodes,
            processes_per_node=compute.processes_per_node,
            device=compute.device,
            max_restarts=spec.max_restarts,
            max_preemptions=spec.max_preemptions,
            variables=dict(spec.environment.variables),
            secrets=dict(spec.environment.secrets),
            snapshot=plan.snapshot.digest,
            tracking_uri=spec.tracking.uri or default_uri(home),
            experiment=spec.tracking.experiment,
            notify=spec.notify,
            steps=plan.steps,
            token_stores=str(home / TOKEN_STORES),
            real_home=None if (real := home.resolve()) == home else str(real),
            writes_result=plan.writes_result,
            **own,
        )


def job_arguments(plan: Plan, run: RunFolder, home: Path) -> list[str]:
    """Return the arguments of the job's module.

    Args:
        plan: the plan.
        run: folder of the run, whose outputs the job writes.
        home: the user's orchestrator folder, with the prepared data that all runs share.
    """
    return [
        *("--config", str(run.config), "--output", str(run.outputs)),
        *(("--cache", str(home / TOKEN_STORES)) if plan.stores else ()),
        *("--device", plan.compute.device),
    ]
