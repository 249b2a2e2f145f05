"""The debug backend: the job in this very process, so that `breakpoint()` in a training step opens a debugger.

    orchestrator submit pretrain -b debug --set train.steps=20

It runs one process and the installed code instead of a snapshot, and Ctrl-C ends the job; otherwise it works like
`local`.
"""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from orchestrator.backends.base import Submission
from orchestrator.backends.capabilities import Preempts, Resumes
from orchestrator.backends.folder.backend import FolderBackend
from orchestrator.backends.folder.run_folder import RunFolder, job_arguments
from orchestrator.backends.folder.run_processes import end_survivors
from orchestrator.runs.status import Handle
from orchestrator.support.errors import UsageError

if TYPE_CHECKING:  # listing runs needs none of these
    from orchestrator.jobs.base import Plan


class DebugBackend(FolderBackend, Resumes, Preempts):
    """Runs below HOME/debug-runs. `submit` and `resume` return when the job has finished."""

    name = "debug"
    place = "debug-runs"

    def prepare(self, plan: Plan, *, run: str) -> Submission:
        """Return the module that will run, its arguments and the documents of the run's folder.

        Raises:
            UsageError: the job needs more than one process.
        """
        from orchestrator.backends.debug.session import DebugRequest

        compute = plan.compute
        if compute.world_size != 1:
            raise UsageError(
                f"cannot debug {compute.world_size} processes: the debug backend runs one",
                fix="--set compute.nodes=1 --set compute.processes_per_node=1",
            )
        request = DebugRequest.from_plan(
            plan,
            run,
            self._home,
            module=plan.spec.code.entry,
            code=str(plan.spec.code.folder) if plan.spec.code.folder else None,
            arguments=job_arguments(plan, self._folder(run), self._home),
            threads=compute.threads_per_process,
        )
        return self._submission(plan, request, ("python", "-m", request.module, *request.arguments))

    def submit(self, submission: Submission) -> Handle:
        """Create the run's folder and run the job to its end.

        Raises:
            ConflictError: the name is taken.
            StorageError: the home folder cannot be written; nothing half-made stays.
        """
        return self._run(self._make(submission))

    def preempt(self, name: str) -> None:
        """Simulate a preemption: the job saves a checkpoint and stops."""
        self._signal(name, signal.SIGUSR1)

    def resume(self, name: str, *, processes: int | None = None) -> Handle:
        """Run another attempt in the same folder to its end.

        Raises:
            ConflictError: the run completed, or is still running.
            UsageError: more than one process.
        """
        if processes not in {None, 1}:
            raise UsageError(
                f"cannot debug {processes} processes: the debug backend runs one", fix=f"orchestrator resume {name}"
            )
        run = self._existing(name)
        with run.changing("resume"):
            state = self._resumable(run)
            end_survivors(run)
            self._requeue(run, state)
        return self._run(run)

    def _run(self, run: RunFolder) -> Handle:
        from orchestrator.backends.debug.session import DebugSession

        with run.lock():
            session = DebugSession(run)
            session.supervise()
        session.watch.close()
        return Handle(self.name, run.name)
