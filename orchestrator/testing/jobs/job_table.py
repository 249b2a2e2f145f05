"""All jobs of the workspace, and what may be done to them."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from orchestrator.testing.cloud_state import Document, now

if TYPE_CHECKING:
    from orchestrator.testing.jobs.processes import Launch

QUEUED, STARTING, PREPARING = "Queued", "Starting", "Preparing"
RUNNING, FINALIZING, CANCEL_REQUESTED = "Running", "Finalizing", "CancelRequested"
COMPLETED, FAILED, CANCELED = "Completed", "Failed", "Canceled"
ENDED = (COMPLETED, FAILED, CANCELED)
DURATION = re.compile(r"P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d+)?)S)?)?")
PREEMPTED: Document = {
    "code": "ServiceError",
    "message": "JobNodePreempted: a compute node of the job was preempted.",
}


@dataclass
class CloudJob:
    """One job."""

    name: str
    properties: Document
    """What was put."""
    status: str = STARTING
    error: Document | None = None
    created: str = field(default_factory=now)
    started: str | None = None
    ended: str | None = None
    history: list[str] = field(default_factory=lambda: [STARTING])
    """Every status that it has had, in their order."""
    launch: Launch | None = None
    """Its processes, while it has any."""
    lost: Document | None = None
    """What happened to its machines."""
    parent: str | None = None
    """The sweep that it is a trial of."""

    @property
    def nodes(self) -> int:
        return int(self.properties.get("resources", {}).get("instanceCount", 1))

    @property
    def limit(self) -> float | None:
        """Seconds that it may run; None: as long as it takes."""
        return seconds((self.properties.get("limits") or {}).get("timeout"))

    @property
    def cluster(self) -> str | None:
        """Name of its cluster; None: serverless."""
        named = self.properties.get("computeId", "").rpartition("/")[2]
        return named or None

    @property
    def folder(self) -> str:
        """Where its artifacts lie in the artifact store."""
        return f"ExperimentRun/dcid.{self.name}"


def seconds(duration: str | None) -> float | None:
    """Of an ISO 8601 duration; None: it is none."""
    found = DURATION.fullmatch(duration or "")
    if found is None:
        return None
    days, hours, minutes, rest = (float(part or 0) for part in found.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + rest


class Jobs:
    """The jobs, each with a thread of its own while it is on its way.

    Args:
        execute: runs a job's command; returns the error with which it failed, None if it did not.
        capacity: how many nodes a cluster may have; 0: none can be had.
    """

    def __init__(
        self, execute: Callable[[CloudJob], Document | None] | None, capacity: Callable[[str], int | None]
    ) -> None:
        self._execute = execute
        self._capacity = capacity
        self._jobs: dict[str, CloudJob] = {}
        self._threads: list[threading.Thread] = []
        self._changed = threading.Condition()
        self._held = False
        self._closing = False
        self.crashes: list[Exception] = []
        self.conduct: Callable[[CloudJob], tuple[str, Document | None]] | None = None
        """Conducts a sweep to its end; returns its last status and error. None: sweeps stay as they are."""

    def submit(self, name: str, properties: Document, *, parent: str | None = None) -> CloudJob:
        """A new job; it is on its way when this returns."""
        job = CloudJob(name, properties, parent=parent)
        with self._changed:
            self._jobs[name] = job
        if (way := self._way(job)) is not None:
            thread = threading.Thread(target=way, args=(job,), name=f"azure-double-{name}", daemon=True)
            self._threads.append(thread)
            thread.start()
        return job

    def _way(self, job: CloudJob) -> Callable[[CloudJob], None] | None:
        """What a job does by itself; None: nothing."""
        if self._execute is None:
            return None
        if job.properties["jobType"] == "Command":
            return self._follow
        return self._follow_sweep if self.conduct is not None else None

    def get(self, name: str) -> CloudJob | None:
        with self._changed:
            return self._jobs.get(name)

    def all(self) -> list[CloudJob]:
        """The newest first."""
        with self._changed:
            return list(self._jobs.values())[::-1]

    def nodes_of(self, cluster: str) -> int:
        """Nodes of a cluster that work."""
        with self._changed:
            return self._busy(cluster)

    def _busy(self, cluster: str) -> int:
        at_work = (job for job in self._jobs.values() if job.status in (RUNNING, FINALIZING))
        return sum(job.nodes for job in at_work if job.cluster == cluster and job.properties["jobType"] == "Command")

    def hold(self, held: bool) -> None:
        """Jobs that have not begun to run stay in the queue as long as this is so."""
        with self._changed:
            self._held = held
            self._changed.notify_all()

    def move(self, job: CloudJob, status: str, error: Document | None = None) -> None:
        """Gives a job a status; one that has ended keeps its own."""
        with self._changed:
            if job.status in ENDED or (job.status == CANCEL_REQUESTED and status not in ENDED):
                return
            job.status, job.error = status, error
            job.history.append(status)
            if status == RUNNING:
                job.started = now()
            if status in ENDED:
                job.ended = now()
            self._changed.notify_all()

    def cancel(self, job: CloudJob) -> None:
        """As a user asks: its processes get SIGTERM, and half a minute later SIGKILL."""
        self.move(job, CANCEL_REQUESTED)
        with self._changed:
            launch = job.launch
        if launch is not None:
            launch.stop()
        elif self._way(job) is None:
            self.move(job, CANCELED)

    def preempt(self, job: CloudJob, error: Document | None = None) -> None:
        """Takes the job's machines away: SIGKILL, without a word before.

        Args:
            job: which.
            error: what the service will say of it.

        Raises:
            ValueError: it does not run.
        """
        with self._changed:
            if job.status not in (RUNNING, FINALIZING):
                raise ValueError(f"{job.name} is {job.status}: only a running job can be preempted")
            job.lost = error or PREEMPTED
            launch = job.launch
        if launch is not None:
            launch.kill()
        elif self._execute is None:
            self.move(job, FAILED, job.lost)

    def wait(self, job: CloudJob, statuses: tuple[str, ...], seconds: float) -> str:
        """Waits until a job has one of the statuses, or has ended; returns the status that it has then.

        Raises:
            TimeoutError: it took longer.
        """
        ends = time.monotonic() + seconds
        with self._changed:
            while job.status not in (*statuses, *ENDED):
                if not self._changed.wait(max(0.0, ends - time.monotonic())):
                    raise TimeoutError(f"{job.name} is still {job.status} after {seconds} s")
            return job.status

    @property
    def closing(self) -> bool:
        """Whether nothing is to begin any more."""
        return self._closing

    def pause(self, seconds: float) -> None:
        """Until a job has moved, or so long."""
        with self._changed:
            self._changed.wait(seconds)

    def close(self) -> None:
        """Kills what runs; returns when no thread is left."""
        with self._changed:
            self._closing = True
            running = [job.launch for job in self._jobs.values() if job.launch is not None]
            self._changed.notify_all()
        for launch in running:
            launch.kill()
        for thread in self._threads:
            thread.join()

    def _follow(self, job: CloudJob) -> None:
        for status in (PREPARING, QUEUED):
            self.move(job, status)
        if not self._wait_for_nodes(job):
            self.move(job, CANCELED)
            return
        assert self._execute is not None
        timer = threading.Timer(job.limit or threading.TIMEOUT_MAX, self.cancel, [job])
        timer.daemon = True
        timer.start()
        try:
            error = self._execute(job)
        except Exception as problem:  # a mistake of the double's: the job ends, and who closes the double is told
            self.crashes.append(problem)
            error = {"code": "DoubleCrashed", "message": repr(problem)}
        finally:
            timer.cancel()
            timer.join()
        if job.status == CANCEL_REQUESTED:
            self.move(job, CANCELED)
        elif job.lost is not None:
            self.move(job, FAILED, job.lost)
        elif error is not None:
            self.move(job, FAILED, error)
        else:
            self.move(job, FINALIZING)
            self.move(job, COMPLETED)

    def _follow_sweep(self, job: CloudJob) -> None:
        assert self.conduct is not None
        for status in (PREPARING, RUNNING):
            self.move(job, status)
        try:
            status, error = self.conduct(job)
        except Exception as problem:  # as of `_follow`
            self.crashes.append(problem)
            status, error = FAILED, {"code": "DoubleCrashed", "message": repr(problem)}
        self.move(job, status, error)

    def _wait_for_nodes(self, job: CloudJob) -> bool:
        """Until the cluster has so many nodes free: then it runs. False: it is not to run any more."""
        while True:
            limit = None if job.cluster is None else self._capacity(job.cluster)  # takes a lock of its own
            with self._changed:
                if job.status == CANCEL_REQUESTED or self._closing:
                    return False
                if not self._held and (limit is None or self._busy(job.cluster or "") + job.nodes <= limit):
                    self.move(job, RUNNING)
                    return True
                self._changed.wait(0.2)

    def launched(self, job: CloudJob, launch: Launch | None) -> None:
        """The job's processes are there, or gone."""
        with self._changed:
            job.launch = launch
            late = self._closing or job.lost is not None or job.status == CANCEL_REQUESTED
        if late and launch is not None:  # what was asked while they started
            launch.kill()
