"""The local backend: the same plan, snapshot, launcher and outputs as on a cluster, on this machine."""

from __future__ import annotations

import signal
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from orchestrator.backends.base import REQUEST, Submission
from orchestrator.backends.capabilities import Preempts, Resumes
from orchestrator.backends.folder.backend import FolderBackend
from orchestrator.backends.folder.run_folder import RunFolder, job_arguments
from orchestrator.backends.folder.run_processes import end_survivors
from orchestrator.backends.local.launch import LocalRequest, check_port
from orchestrator.runs.run_documents import reporting_run_damage
from orchestrator.runs.status import Handle
from orchestrator.specs.compute import usable_cores
from orchestrator.support.errors import UsageError
from orchestrator.support.home import RUNS

if TYPE_CHECKING:
    from orchestrator.jobs.base import Plan


class LocalBackend(FolderBackend, Resumes, Preempts):
    """Runs below HOME/runs, each with a supervisor process of its own."""

    name = "local"
    shares_machine = True
    place = RUNS
    prefix: ClassVar[Sequence[str]] = ()
    """Words before the command of each rank."""

    def prepare(self, plan: Plan, *, run: str) -> Submission:
        """Return the command of each rank and the documents of the run's folder."""
        arguments = job_arguments(plan, self._folder(run), self._home)
        threads = plan.compute.threads_per_process
        if plan.spec.compute.threads_per_process == "auto":
            # `auto` was resolved for one node, but all simulated nodes share the cores of this machine: without the
            # division, their threads would compete for the same cores
            threads = max(1, threads // plan.compute.nodes)
        request = LocalRequest.from_plan(
            plan,
            run,
            self._home,
            command=[*self.prefix, sys.executable, "-m", plan.spec.code.entry, *arguments],
            threads=threads,
            master_port=plan.compute.master_port,
        )
        return self._submission(plan, request, request.command)

    def submit(self, submission: Submission) -> Handle:
        """Create the run's folder and start its supervisor.

        Raises:
            ConflictError: the name or the port is taken.
            StorageError: the home folder cannot be written; nothing half-made stays.
        """
        check_port(submission.request.master_port)  # before the folder: a taken port must not leave a failed run behind
        return self._supervise(self._make(submission))

    def preempt(self, name: str) -> None:
        """Simulate that a cloud takes the machine away: the job gets SIGTERM, saves and stops."""
        self._signal(name, signal.SIGUSR1)

    def resume(self, name: str, *, processes: int | None = None) -> Handle:
        """Start another attempt in the same folder, from the newest checkpoint.

        Raises:
            ConflictError: the run completed or is still running, a process of it cannot be ended, or the port is taken.
            StorageError: the run's folder is damaged, or cannot be written.
            UsageError: `processes` is less than 1, exceeds the sequences of a global batch, or would lead to micro
                batches of unequal size that have equal weight.
        """
        run = self._existing(name)
        with run.changing("resume"):
            state = self._resumable(run)
            with reporting_run_damage(name, run.path, REQUEST):
                request = LocalRequest.model_validate(run.read_json(REQUEST))
            end_survivors(run)  # they may hold the port
            check_port(request.master_port)
            changed = None if processes is None else _with_processes(request, processes, self.plan(name))
            self._requeue(run, state, changed)
            return self._supervise(run)

    def _supervise(self, run: RunFolder) -> Handle:
        """Start the supervisor; return once it holds the run."""
        arguments = ("-m", "orchestrator.backends.local.supervisor", str(run.path))
        # cwd "/": the user may delete or unmount the folder of this process before the run ends
        run.start_supervisor(arguments, run.logs / "supervisor.log", cwd="/")
        return Handle(self.name, run.name)


def _with_processes(request: LocalRequest, processes: int, plan: Mapping[str, Any]) -> LocalRequest:
    """Return a request with another number of processes on each node, which share the cores in equal parts.

    Raises:
        UsageError: the number is not positive, exceeds the sequences of a global batch, or would lead to micro batches
            of unequal size that have equal weight.
    """
    from train_jobs.config import TrainConfig  # here, since most commands never need it

    world_size = request.nodes * processes
    if train := plan["job"].get("train"):
        keys = train.keys() & {"global_batch_size", "micro_batch_size", "loss_normalization"}
        sizes = TrainConfig.model_validate({key: train[key] for key in keys}).resumable_world_sizes()
        most = train["global_batch_size"]
    else:
        sizes, most = range(1, world_size + 1), world_size
    if world_size not in sizes:
        possible = [size // request.nodes for size in sizes if size % request.nodes == 0]
        fitting = max((one for one in possible if one <= processes), default=max(possible, default=1))
        if not 1 <= world_size <= most:
            raise UsageError(
                f"cannot run {world_size} processes: the global batch has {most} sequences",
                fix=f"orchestrator resume {request.name} --processes {fitting}",
            )
        raise UsageError(
            f"cannot run {world_size} processes: micro batches of unequal size would have equal weight",
            facts={"possible": ", ".join(map(str, possible)), "setting": "train.loss_normalization: micro_batch"},
            fix=f"orchestrator resume {request.name} --processes {fitting}",
        )
    auto = plan["spec"]["compute"]["threads_per_process"] == "auto"
    threads = max(1, usable_cores() // world_size) if auto else request.threads
    return request.model_copy(update={"processes_per_node": processes, "threads": threads})
