"""What the command line and the notebooks call: plans, submits, and finds runs again.

orchestrator = Orchestrator()
plan = orchestrator.plan(overrides={"recipe": "tiny", "train.steps": 200})
print(plan.summary())
run = orchestrator.submit(plan)
run.wait().metrics["validation_mlm_loss"]
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from orchestrator.backends import load_backend
from orchestrator.backends.base import Backend, LogLine, LogQuery, Request
from orchestrator.errors import ConflictError, JobFailed, NotFoundError, StorageError, TimeoutExceeded
from orchestrator.home import home_folder
from orchestrator.plan import Plan, make_plan
from orchestrator.runs import Handle, RunState, RunStatus
from orchestrator.specs import Flag, find_project, resolve_spec
from train_jobs.config.load import did_you_mean

FIRST_POLL, LAST_POLL = 0.1, 2.0  # seconds; a run takes minutes to weeks
LAST = "@last"


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
        """How it stands now."""
        return self._backend.describe(self.name)

    def logs(self, *, follow: bool = False, rank: int | None = 0) -> Iterator[LogLine]:
        """Lines of one rank's log, or with None of all; with `follow`, until the run has ended."""
        return self._backend.logs(self.name, LogQuery(ranks=None if rank is None else (rank,), follow=follow))

    def plan(self) -> dict[str, Any]:
        """The plan that it was made from, as `Plan.as_dict` gave it."""
        return self._backend.plan(self.name)

    def metrics(self) -> Iterator[dict[str, Any]]:
        """What the job reported: {step, time, metrics}."""
        return self._backend.metrics(self.name)

    def wait(self, timeout: float | None = None) -> RunStatus:
        """Waits until it has ended.

        Args:
            timeout: seconds; None waits for ever.

        Raises:
            TimeoutExceeded: it goes on after `timeout`.
        """
        started, pause = time.monotonic(), FIRST_POLL
        while not (status := self.status()).state.terminal:
            left = None if timeout is None else timeout - (time.monotonic() - started)
            if left is not None and left <= 0:
                raise TimeoutExceeded(
                    f"run {self.name} is {status.state} after {timeout:g} s",
                    fix=f"orchestrator wait {self.name}",
                )
            time.sleep(pause if left is None else min(pause, left))
            pause = min(pause * 1.5, LAST_POLL)
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

    def report(self, to: Path | None = None) -> Path:
        """Writes one self-contained HTML page about the run.

        Args:
            to: the file; None: report.html in the run's folder.

        Raises:
            StorageError: it cannot be written there.
        """
        from orchestrator.reports.profile import read_profile
        from orchestrator.reports.run import render

        path = to or (self.folder or Path.cwd()) / "report.html"
        status = self.status()
        page = render(
            status,
            self.metrics(),
            self.plan(),
            self._backend.result(self.name),
            read_profile(status.trace),
        )
        try:
            path.write_text(page, encoding="utf-8")
        except OSError as problem:
            raise StorageError(
                f"cannot write the report: {problem.strerror}", facts={"where": path}, fix="--to FILE"
            ) from problem
        return path

    def cancel(self) -> None:
        """Asks it to end; it saves a checkpoint first."""
        self._backend.cancel(self.name)

    def preempt(self) -> None:
        """Simulates a preemption: the job saves a checkpoint and stops; `max_restarts` may start it again."""
        self._backend.preempt(self.name)

    def stacks(self, *, rank: int | None = None) -> dict[int, str]:
        """Where each rank stands, or one of them: rank -> Python stacks of all its threads, innermost frame first.

        Raises:
            ConflictError: the run is not running.
            NotFoundError: it has no such rank.
        """
        found = self._backend.stacks(self.name)
        if rank is None:
            return found
        if rank not in found:
            raise NotFoundError(f"run {self.name} has no rank {rank}", facts={"ranks": f"0 to {max(found)}"})
        return {rank: found[rank]}

    def resume(self) -> None:
        """Starts it again from its newest checkpoint."""
        self._backend.resume(self.name)


class Orchestrator:
    """The SDK's entry.

    Args:
        backend: where to look for runs and, if the spec does not say, to send them. None: as the spec says, or local.
        home: folder of runs, caches and the tracking store. None: ORCHESTRATOR_HOME, or ~/.orchestrator.
        environ: environment variables; None: those of this process.
    """

    def __init__(
        self, backend: str | None = None, *, home: Path | None = None, environ: Mapping[str, str] | None = None
    ) -> None:
        self._environ = dict(os.environ if environ is None else environ)
        self._home = home or home_folder(self._environ)
        self._backend = backend

    def plan(
        self,
        kind: str = "pretrain",
        *,
        file: Path | None = None,
        overrides: Mapping[str, Any] | None = None,
        flags: Mapping[str, Flag] | None = None,
        sets: Iterable[str] = (),
    ) -> Plan:
        """What would be done: validated, offline.

        Args:
            kind: which job.
            file: a spec file.
            overrides: dotted path -> value, over the file.
            flags: the same from a command line, with the flag's name for messages.
            sets: `a.b=c` strings, over everything.

        Raises:
            SpecError, DataError: all that is wrong, with file and line.
        """
        given = {path: Flag(value, "overrides") for path, value in (overrides or {}).items()}
        if self._backend is not None:
            given.setdefault("backend", Flag(self._backend, "Orchestrator(backend)"))
        resolved = resolve_spec(
            kind,
            file=file,
            sets=sets,
            flags={**given, **(flags or {})},
            environ=self._environ,
            project=find_project(Path.cwd()),
        )
        return make_plan(resolved, home=self._home)

    def request(self, plan: Plan, *, new: bool = False) -> Request:
        """The very object that `submit` would send."""
        backend = load_backend(plan.spec.backend, self._home)
        return backend.request(plan, self._free_name(backend, plan) if new else plan.name)

    def submit(self, plan: Plan, *, new: bool = False) -> Run:
        """Starts the plan, or returns the run of the same hash that is going on or completed.

        Args:
            new: start another run whatever there is.

        Raises:
            ConflictError: there is a run of the same hash that did not complete; it is for the user to resume.
        """
        backend = load_backend(plan.spec.backend, self._home)
        if not new and (earlier := self._same_hash(backend, plan)):
            status = backend.describe(earlier[0])
            if not status.state.resumable:
                return Run(backend, Handle(backend.name, status.name))
            raise ConflictError(
                f"a run of the same plan {'was ' if status.state != RunState.FAILED else ''}{status.state}",
                facts={
                    "run": f"{status.name}, step {status.step or 0} of {status.steps}",
                    "reason": status.reason or "unknown",
                    "or": "--new, to start another from the beginning",
                },
                fix=f"orchestrator resume {status.name}",
            )
        handle = backend.schedule(self.request(plan, new=new), plan)
        return Run(backend, handle, created=True)

    def runs(self) -> list[RunStatus]:
        """All runs, the newest first."""
        return self._default().runs()

    def attach(self, run: str) -> Run:
        """Finds a run again.

        Args:
            run: handle, name, unique beginning of a name, or @last.

        Raises:
            NotFoundError: none, or more than one, fits.
        """
        if "://" in run:
            handle = Handle.parse(run)
            backend = load_backend(handle.backend, self._home)
            backend.describe(handle.name)
            return Run(backend, handle)
        backend = self._default()
        return Run(backend, Handle(backend.name, _find(run, backend.names())))

    def _default(self) -> Backend:
        return load_backend(self._backend or self._environ.get("ORCHESTRATOR_BACKEND") or "local", self._home)

    def _same_hash(self, backend: Backend, plan: Plan) -> list[str]:
        """Names of runs of this plan's hash, the newest first."""
        of_hash = re.compile(rf".*-{plan.run_hash}(-\d+)?")
        return [name for name in backend.names() if of_hash.fullmatch(name)]

    def _free_name(self, backend: Backend, plan: Plan) -> str:
        taken, number = set(backend.names()), 2
        if plan.name not in taken:
            return plan.name
        while f"{plan.name}-{number}" in taken:
            number += 1
        return f"{plan.name}-{number}"


def _find(run: str, names: list[str]) -> str:
    if run == LAST and names:
        return names[0]
    if run in names:
        return run
    fitting = [name for name in names if name.startswith(run)]
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        raise NotFoundError(
            f"more than one run begins with {run}",
            facts={"runs": ", ".join(fitting[:5]) + (", ..." if len(fitting) > 5 else "")},
            fix="give more of the name",
        )
    hint = did_you_mean(run, names)
    raise NotFoundError(f"no run {run}{hint}", fix="orchestrator list" if names else "orchestrator submit pretrain")
