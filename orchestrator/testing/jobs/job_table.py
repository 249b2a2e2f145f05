"""All jobs of the workspace, their statuses, and the threads that run them."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from orchestrator.testing.cloud_state import Document, now
from orchestrator.testing.jobs.processes import Launch

QUEUED, STARTING, PREPARING = "Queued", "Starting", "Preparing"
RUNNING, FINALIZING, CANCEL_REQUESTED = "Running", "Finalizing", "CancelRequested"
COMPLETED, FAILED, CANCELED = "Completed", "Failed", "Canceled"
ENDED = (COMPLETED, FAILED, CANCELED)
DURATION = re.compile(r"P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d+)?)S)?)?")
PREEMPTED: Document = {
    "code": "UserError",
    "message": "AzureMLCompute job failed. PreemptionError: Nodes of this job got pre-empted. Check if the run has"
    " failed or restarted. Reason: Received pre-emption warning signal",
}


@dataclass
class CloudJob:
    """One job."""

    name: str
    properties: Document
    """As it was put."""
    status: str = STARTING
    error: Document | None = None
    created: str = field(default_factory=now)
    started: str | None = None
    ended: str | None = None
    history: list[str] = field(default_factory=lambda: [STARTING])
    """Every status so far, the first first."""
    launch: Launch | None = None
    """Its processes, while it has any."""
    lost: Document | None = None
    """The error that took its machines away."""
    requeued: bool = False
    """Whether it is to run again in place, once its processes have exited."""
    parent: str | None = None
    """The sweep that it is a trial of."""
    schedule: str | None = None
    """The schedule that started it."""

    given_nodes: int | None = None
    """Number of nodes that an elastic job got; None: it has not started."""

    @property
    def nodes(self) -> int:
        """Number of nodes; of an elastic job that has not started, the fewest."""
        return self.given_nodes or int(self.properties.get("resources", {}).get("instanceCount", 1))

    @property
    def most_nodes(self) -> int:
        """Highest number of nodes, which only an elastic job has."""
        return max(self.nodes, int(self.properties.get("resources", {}).get("maxInstanceCount") or 1))

    @property
    def limit(self) -> float | None:
        """Time limit in seconds; None: none."""
        return seconds((self.properties.get("limits") or {}).get("timeout"))

    @property
    def cluster(self) -> str | None:
        """Name of its cluster; None: serverless."""
        return self.properties.get("computeId", "").rpartition("/")[2] or None

    @property
    def folder(self) -> str:
        """Path of its artifacts in the artifact store."""
        return f"ExperimentRun/dcid.{self.name}"


def seconds(duration: str | None) -> float | None:
    """Return the seconds of an ISO 8601 duration, None if it is not one."""
    if (matched := DURATION.fullmatch(duration or "")) is None:
        return None
    days, hours, minutes, rest = (float(part or 0) for part in matched.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + rest


class Jobs:
    """The jobs, each with a thread of its own until it has finished.

    Args:
        capacity: returns the number of nodes that a cluster may have.
    """

    def __init__(self, capacity: Callable[[str], int]) -> None:
        self._capacity = capacity
        self.execute: Callable[[CloudJob], Document | None] | None = None
        """Runs a job's command; returns its error. None: jobs are not run, and keep their status until `move`."""
        self._jobs: dict[str, CloudJob] = {}
        self._threads: list[threading.Thread] = []
        self._changed = threading.Condition()
        self._held = False
        self.closing = False
        self.crashes: list[Exception] = []
        self.run_sweep: Callable[[CloudJob], tuple[str, Document | None]] | None = None
        """Runs a sweep; returns its last status and error."""

    def submit(
        self, name: str, properties: Document, *, parent: str | None = None, schedule: str | None = None
    ) -> CloudJob:
        """Add a job and start it in a thread of its own.

        Args:
            name: of the job.
            properties: as they were put.
            parent: the sweep that it is a trial of.
            schedule: the schedule that starts it.
        """
        job = CloudJob(name, properties, parent=parent, schedule=schedule)
        with self._changed:
            self._jobs[name] = job
        if self.execute is not None:
            target = self._run if properties["jobType"] == "Command" else self._run_sweep
            thread = threading.Thread(target=target, args=(job,), name=f"azure-double-{name}", daemon=True)
            self._threads.append(thread)
            thread.start()
        return job

    def get(self, name: str) -> CloudJob | None:
        """Return a job, None if it does not exist."""
        return self._jobs.get(name)

    def all(self) -> list[CloudJob]:
        """Return all jobs, the newest first."""
        with self._changed:
            return list(self._jobs.values())[::-1]

    def nodes_of(self, cluster: str) -> int:
        """Return the number of busy nodes of a cluster."""
        running = (job for job in self.all() if job.status in (RUNNING, FINALIZING))
        return sum(job.nodes for job in running if job.cluster == cluster and job.properties["jobType"] == "Command")

    def hold(self, held: bool) -> None:
        """Keep jobs that do not run yet in the queue while `held`."""
        with self._changed:
            self._held = held
            self._changed.notify_all()

    def move(self, job: CloudJob, status: str, error: Document | None = None) -> None:
        """Set the status of a job; a finished job keeps its own.

        Args:
            job: the job.
            status: the new status.
            error: {code, message} that the job shows.
        """
        # A cancel races with the thread that runs the job: after its request only a final status may follow, and after
        # a final status none. Otherwise a client could see Running after Canceled.
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
        """Cancel a job as a user does: SIGTERM, and SIGKILL half a minute later."""
        self.move(job, CANCEL_REQUESTED)
        if (launch := job.launch) is not None:
            launch.stop()
        elif self.execute is None:
            self.move(job, CANCELED)

    def preempt(self, job: CloudJob, error: Document | None = None) -> None:
        """Take the job's machines away: SIGKILL without a warning.

        Args:
            job: a running job.
            error: what it fails with.

        Raises:
            ValueError: it is not running.
        """
        with self._changed:
            if job.status not in (RUNNING, FINALIZING):
                raise ValueError(f"{job.name} is {job.status}: only a running job can be preempted")
            job.lost, launch = error or PREEMPTED, job.launch
        if launch is not None:
            launch.kill()
        elif self.execute is None:
            self.move(job, FAILED, job.lost)

    def requeue(self, job: CloudJob) -> None:
        """Take a running job's machines away, and run the same job again in place, as Azure may do.

        Raises:
            ValueError: it is not running.
        """
        with self._changed:
            if job.status not in (RUNNING, FINALIZING):
                raise ValueError(f"{job.name} is {job.status}: only a running job can be requeued")
            job.requeued, launch = True, job.launch
        if launch is not None:
            launch.kill()
        elif self.execute is None:
            job.requeued = False
            for status in (QUEUED, RUNNING):
                self.move(job, status)

    def wait(self, job: CloudJob, statuses: tuple[str, ...], seconds: float) -> str:
        """Wait until a job has one of the statuses or has finished; return its status.

        Args:
            job: the job.
            statuses: to wait for.
            seconds: time limit.

        Raises:
            TimeoutError: it took longer.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: job.status in (*statuses, *ENDED), seconds):
                raise TimeoutError(f"{job.name} is still {job.status} after {seconds} s")
            return job.status

    def pause(self, seconds: float) -> None:
        """Wait until a job has changed its status, at most for a number of seconds."""
        with self._changed:
            self._changed.wait(seconds)

    def close(self) -> None:
        """Kill running jobs and join every thread."""
        with self._changed:
            self.closing = True
            running = [job.launch for job in self._jobs.values() if job.launch is not None]
            self._changed.notify_all()
        # outside of the lock, which the threads need to finish; `launched` kills processes that start meanwhile
        for launch in running:
            launch.kill()
        for thread in self._threads:
            thread.join()

    def _run(self, job: CloudJob) -> None:
        for status in (PREPARING, QUEUED):
            self.move(job, status)
        if not self._wait_for_nodes(job):
            self.move(job, CANCELED)
            return
        timer = threading.Timer(job.limit or threading.TIMEOUT_MAX, self.cancel, [job])
        timer.daemon = True
        timer.start()
        error = self._execute(job)
        while job.requeued and job.status == RUNNING:
            job.requeued = False
            self.move(job, QUEUED)
            if not self._wait_for_nodes(job):
                break
            error = self._execute(job)
        timer.cancel()
        timer.join()
        if job.status == CANCEL_REQUESTED:
            self.move(job, CANCELED)
        elif job.lost or error:
            self.move(job, FAILED, job.lost or error)
        else:
            self.move(job, FINALIZING)
            self.move(job, COMPLETED)

    def _execute(self, job: CloudJob) -> Document | None:
        try:
            assert self.execute is not None
            return self.execute(job)
        except Exception as problem:
            return self._crash(problem)

    def _run_sweep(self, job: CloudJob) -> None:
        for status in (PREPARING, RUNNING):
            self.move(job, status)
        try:
            assert self.run_sweep is not None
            status, error = self.run_sweep(job)
        except Exception as problem:
            status, error = FAILED, self._crash(problem)
        self.move(job, status, error)

    def _crash(self, problem: Exception) -> Document:
        """Keep a bug of the double itself, which `AzureDouble.close` raises; return the error that ends the job."""
        self.crashes.append(problem)
        return {"code": "DoubleCrashed", "message": repr(problem)}

    def _wait_for_nodes(self, job: CloudJob) -> bool:
        """Wait until the cluster has enough free nodes, and run the job then; False: it was cancelled before."""
        while True:
            # before the lock below: it takes that of the state, whose holders wait for this one in `all`
            limit = None if job.cluster is None else self._capacity(job.cluster)
            with self._changed:
                if job.status == CANCEL_REQUESTED or self.closing:
                    return False
                free = job.most_nodes if limit is None else limit - self.nodes_of(job.cluster or "")
                if not self._held and job.nodes <= free:
                    job.given_nodes = min(free, job.most_nodes)
                    self.move(job, RUNNING)
                    return True
                self._changed.wait(0.2)

    def launched(self, job: CloudJob, launch: Launch | None) -> None:
        """Record the processes of a job, or with None their end."""
        with self._changed:
            job.launch = launch
            late = self.closing or job.lost is not None or job.status == CANCEL_REQUESTED
        if late and launch is not None:  # it was cancelled or preempted while they started
            launch.kill()
