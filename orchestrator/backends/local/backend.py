"""The local backend: the same plan, snapshot, launcher and outputs as on a cluster, on this machine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from orchestrator.backends.base import Submission
from orchestrator.backends.capabilities import Preempts, Resumes
from orchestrator.backends.folder.backend import FolderBackend, writable
from orchestrator.backends.folder.run_folder import RunFolder
from orchestrator.backends.folder.submission import job_arguments
from orchestrator.backends.local.launch import LocalRequest, check_port
from orchestrator.runs.status import Handle
from orchestrator.specs.local_machine import usable_cores
from orchestrator.support.errors import ServiceError, UsageError
from orchestrator.support.home import RUNS
from train_jobs.artifacts.files import write_text

if TYPE_CHECKING:
    from orchestrator.jobs.base import Plan


class LocalBackend(FolderBackend, Resumes, Preempts):
    """Runs below HOME/runs, each under a supervisor of its own."""

    name = "local"
    shares_machine = True
    place = RUNS
    prefix: ClassVar[Sequence[str]] = ()
    """Words before the command of each rank."""

    def prepare(self, plan: Plan, *, run: str) -> Submission:
        """Return the command of each rank and the documents of the run's folder."""
        arguments = job_arguments(plan, self._folder(run), self._home)
        request = LocalRequest(
            **LocalRequest.shared(plan, run, self._home),
            command=[*self.prefix, sys.executable, "-m", plan.spec.code.entry, *arguments],
            threads=_threads(plan),
            master_port=plan.compute.master_port,
        )
        return self._submission(plan, request, request.command)

    def submit(self, submission: Submission) -> Handle:
        """Create the run's folder and start its supervisor.

        Raises:
            ConflictError: the name or the port is taken.
            StorageError: the home folder cannot be written; nothing half-made stays.
        """
        check_port(submission.request.master_port)
        self._supervise(self._make(submission))
        return Handle(self.name, submission.run)

    def preempt(self, name: str) -> None:
        """Takes the machine away, as a cloud does: SIGTERM without a request to cancel; the job saves and stops."""
        self._signal(name, signal.SIGUSR1)

    def resume(self, name: str, *, processes: int | None = None) -> Handle:
        """Another attempt in the same folder."""
        run = self._existing(name)
        state = self._resumable(run)
        request = LocalRequest.model_validate(run.read_json("request.json"))
        check_port(request.master_port)
        if processes is not None:
            request = _with_processes(request, processes, self.plan(name))
            with writable(run):
                write_text(run.path / "request.json", request.model_dump_json(indent=1))
        self._requeue(run, state)
        self._supervise(run)
        return Handle(self.name, name)

    def _supervise(self, run: RunFolder) -> None:
        """Starts the supervisor and waits until it holds the run."""
        ready, told = os.pipe()
        with (run.logs / "supervisor.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "orchestrator.backends.local.supervisor", str(run.path), str(told)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                pass_fds=[told],
                cwd="/",
            )
        os.close(told)
        with os.fdopen(ready, "rb") as stream:
            answer = stream.read(5)
        if answer != b"ready":
            words = (run.logs / "supervisor.log").read_text(errors="replace").strip().splitlines()
            raise ServiceError(
                f"the supervisor of run {run.name} did not start",
                facts={"exit code": process.wait(), "says": words[-1] if words else "nothing"},
                fix=f"orchestrator resume {run.name}",
            )
        process.returncode = 0  # ours no longer: it is watched by its lock, not by its parent


def _with_processes(request: LocalRequest, processes: int, plan: Mapping[str, Any]) -> LocalRequest:
    """The request with so many processes on each node, each with its share of the threads unless their number is given.

    Raises:
        UsageError: there are none, or more than sequences in a global batch.
    """
    train = plan["job"].get("train")
    world_size, most = request.nodes * processes, train["global_batch_size"] if train else processes * request.nodes
    if not 1 <= world_size <= most:
        raise UsageError(
            f"{processes} processes on each of {request.nodes} nodes cannot share a global batch of {most} sequences",
            fix=f"orchestrator resume {request.name} --processes {max(1, most // request.nodes)}",
        )
    threads = request.threads
    if plan["spec"]["compute"]["threads_per_process"] == "auto":
        threads = max(1, usable_cores() // world_size)
    return request.model_copy(update={"processes_per_node": processes, "threads": threads})


def _threads(plan: Plan) -> int:
    """CPU threads of a rank: what `auto` finds for one machine is shared out over the nodes that it plays."""
    threads = plan.compute.threads_per_process
    shared = plan.spec.compute.threads_per_process == "auto"
    return max(1, threads // plan.compute.nodes) if shared else threads
