"""Runs on Azure ML: submitted, followed, resumed, downloaded. The process that follows a run also restarts it."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from orchestrator.backends.azure import places
from orchestrator.backends.azure.assets import report
from orchestrator.backends.azure.native_sweeps import AzureSweeps
from orchestrator.backends.azure.options import AZURE, AzureSpec, Workspace
from orchestrator.backends.azure.runs.observer import Observer, adopt, is_retryable
from orchestrator.backends.azure.runs.record import RecordFolder
from orchestrator.backends.azure.wire.control_plane import Wire
from orchestrator.backends.base import REQUEST, SUBMITTED, Progress, Submission
from orchestrator.backends.capabilities import (
    Deletes,
    Discovers,
    Examines,
    Preempts,
    Provisions,
    ReadsJobFiles,
    Registers,
    Resumes,
)
from orchestrator.backends.log_query import LogBlock, LogQuery
from orchestrator.runs.status import Handle, RunState, RunStatus
from orchestrator.support.errors import AuthError, ConflictError, NotFoundError, ServiceError, StorageError, UsageError
from orchestrator.support.home import run_names
from train_jobs.config.errors import did_you_mean

if TYPE_CHECKING:
    from orchestrator.backends.capabilities import Clusters
    from orchestrator.jobs.base import Plan
    from orchestrator.support.finding import Finding

POLL_VARIABLE = "ORCHESTRATOR_AZURE_POLL_SECONDS"
POLL_SECONDS = 5.0
OUTAGE_SECONDS = 3600.0  # of Azure that a follower tolerates: runs take weeks
MAX_DISCOVERED = 200  # jobs to look at, the newest first


class AzureBackend(AzureSweeps, Resumes, Preempts, Provisions, Examines, Deletes, Registers, Discovers, ReadsJobFiles):
    """Runs on Azure ML. The name `WORKSPACE/NAME` finds a run without a record on this machine.

    Args:
        home: the user's orchestrator folder.
        environ: environment variables; None: those of this process.
    """

    name = AZURE
    remote = own_tracking = True
    instead: ClassVar[Mapping[str, str]] = {
        "Inspects": "orchestrator download RUN stacks, once it has hung for watchdog.hang_minutes"
    }
    deploys_here = False

    def __init__(self, home: Path, environ: Mapping[str, str] | None = None) -> None:
        super().__init__(home, environ)
        self._seen: dict[str, tuple[float, RunStatus]] = {}
        self._waiting: dict[str, float] = {}
        """Runs whose next attempt waits for Azure, and since when."""
        self.poll_seconds = float(self._environ.get(POLL_VARIABLE, POLL_SECONDS))

    def prepare(self, plan: Plan, *, run: str) -> Submission:
        """Return every body that is sent, as one object."""
        from orchestrator.backends.azure.submission import build_request, plan_submission

        workspace = self.workspace(plan.spec.settings_of(AzureSpec).model_dump())
        return plan_submission(plan, build_request(plan, run, workspace), self._home)

    def submit(self, submission: Submission) -> Handle:
        """Create or change the cluster, upload missing files, submit the job.

        A job file goes through the SDK's own operation, so that the SDK uploads what it names.

        Raises:
            ConflictError: the name is taken.
            UserError: Azure refused.
        """
        from orchestrator.backends.azure.runs.dispatch import FileSubmission, send, send_file

        request = submission.request
        folder = RecordFolder(self._runs / request.name)
        wire = self.wire_to(request.workspace.require())
        if (folder.path / REQUEST).is_file():
            raise ConflictError(f"run {request.name} exists", fix=f"orchestrator status {request.name}")
        if isinstance(submission, FileSubmission):
            send_file(wire, submission, folder)
        else:
            request.notify.check(os.environ)
            send(wire, submission, folder, self._home)
        return Handle(self.name, request.name, request.workspace.workspace)

    def accepts(self, path: Path) -> bool:
        """Return whether a path has the name of a job file of `az ml`."""
        return path.suffix in {".yml", ".yaml"}

    def prepare_file(self, path: Path) -> Submission:
        """Return the submission of a job file of `az ml`; its outputs are where the file puts them."""
        from orchestrator.backends.azure.az_yaml import read_job_file
        from orchestrator.backends.azure.runs.dispatch import file_submission

        return file_submission(read_job_file(path), self.workspace({}))

    def describe(self, run: str) -> RunStatus:
        """Return the status of a run; one whose record is damaged has failed, with the damage as its reason.

        While Azure is away, a status that was known before is returned with a warning.
        """
        folder = self._existing(run)
        if (damage := self._damage(folder)) is not None:
            return RunStatus(
                name=folder.name,
                handle=str(self.handle(folder.name)),
                state=RunState.FAILED,
                reason=f"the run's record {folder.path} is damaged: {damage}",
                created=folder.path.stat().st_mtime,
                run_hash="",
            )
        observer = self._observer(folder)
        try:
            status = observer.status()
        except ServiceError as problem:
            seen, known = self._seen.get(run, (0.0, None))
            if known is None or time.monotonic() - seen > OUTAGE_SECONDS:
                raise
            if known.state.terminal:  # of the previous attempt: another one has been submitted
                known = observer.recorded()
            return known.model_copy(update={"warning": problem.message})
        self._seen[run] = time.monotonic(), status
        return status

    def list(self) -> Iterator[RunStatus]:
        """Yield all runs on record here, the newest first; where Azure does not answer, with their last status."""
        away: dict[Workspace, str] = {}
        for name in self.names():
            with suppress(NotFoundError):  # deleted meanwhile, here or in the workspace
                yield self._listed(name, away)

    def _listed(self, name: str, away: dict[Workspace, str]) -> RunStatus:
        """Return the status of a run for a list, which continues if one workspace does not answer.

        Args:
            name: of the run.
            away: workspaces that do not answer, and the reason: each is asked, and reported, only once.
        """
        folder = self._existing(name)
        if self._damage(folder) is not None:
            return self.describe(name)
        observer = self._observer(folder)
        workspace = observer.wire.workspace
        if workspace not in away:
            try:
                return self.describe(name)
            except (AuthError, ServiceError) as problem:
                away[workspace] = problem.message
                report(f"warning: {problem.message}; its runs are listed with their last known status")
        return observer.recorded(away[workspace])

    def names(self) -> Sequence[str]:
        """Return the names of all runs on record here, the newest submission first."""
        return run_names(self._runs)

    def discover(self) -> None:
        """Put the newest runs of the workspace on record here, including those of other machines."""
        wire, known = self.wire({}), set(self.names())
        for job in wire.jobs(MAX_DISCOVERED):
            run = job["tags"].get("orchestrator.run")
            if run == job["name"] and run not in known:
                with suppress(NotFoundError):  # its files were deleted
                    adopt(wire, RecordFolder(self._runs / run))

    def handle(self, run: str) -> Handle:
        """Return the handle of a run on record here: with its workspace, unless the record is damaged."""
        folder = self._existing(run)
        return Handle(self.name, run, None if self._damage(folder) else self._wire_of(folder).workspace.workspace)

    def logs(self, run: str, query: LogQuery) -> Iterator[LogBlock]:
        """Yield lines of the logs of all attempts; following also submits the attempts that the run may still have."""
        from orchestrator.backends.azure.runs.job_logs import RunLogs, follow

        observer = self._observe(run)
        folder, logs = observer.folder, RunLogs(observer, query)
        if query.since is not None:
            report("warning: --since has no effect: logs on Azure have no times")

        def new(over: bool) -> Iterator[LogBlock]:
            return logs.new([attempt.job for attempt in folder.read().attempts if attempt.confirmed], over=over)

        def ended() -> bool:
            return not self.restart_if_needed(folder.name) and folder.read().last.ended is not None

        return follow(new, ended, query, pause=self.poll_seconds, outage=OUTAGE_SECONDS)

    def read(self, run: str, document: str) -> bytes:
        """Return a document on record here, or an output in the datastore."""
        if document in SUBMITTED:
            return self._existing(run).read_bytes(document)
        observer = self._observe(run)
        with suppress(NotFoundError):
            return observer.output(document)
        return b""

    def cancel(self, run: str) -> None:
        """Ask the newest job to end; Azure gives it half a minute to save a checkpoint."""
        observer = self._observe(run)
        record = observer.refresh()
        if record.last.ended is None:
            observer.folder.write(record.model_copy(update={"cancelled": True}))
            observer.wire.cancel_job(record.last.job)

    def preempt(self, run: str) -> None:
        """Simulate a preemption: the job is cancelled, and a process that follows the run submits it again."""
        observer = self._observe(run)
        record = observer.refresh()
        if record.last.state != RunState.RUNNING:
            raise ConflictError(
                f"run {observer.folder.name} is {record.last.state} and not running",
                fix=f"orchestrator status {observer.folder.name}",
            )
        observer.folder.write(record.with_last(preempt=True))
        observer.wire.cancel_job(record.last.job)

    def resume(self, run: str, *, processes: int | None = None) -> Handle:
        """Submit another attempt, which resumes from the newest checkpoint.

        Raises:
            ConflictError: the run completed, or has not ended.
            UsageError: another number of processes, which the job's definition fixes.
        """
        folder = self._existing(run)
        status = self.describe(folder.name)
        if not status.state.resumable:
            raise ConflictError(
                f"run {folder.name} is {status.state} and cannot be resumed",
                fix=f"orchestrator {'status' if status.state.terminal else 'attach'} {folder.name}",
            )
        if not folder.document(REQUEST)["job"]:
            raise ConflictError(
                f"cannot resume run {folder.name}: the orchestrator did not make its job",
                facts={"reason": status.reason or "unknown"},
                fix=f"orchestrator logs {folder.name}",
            )
        if processes is not None:
            raise UsageError("--processes cannot change on Azure", fix=f"orchestrator resume {folder.name}")
        self._submit_again(folder)
        return self.handle(folder.name)

    def restart_if_needed(self, run: str, max_restarts: int | None = None) -> bool:
        """Submit another attempt of a run that was preempted or failed, as often as its request allows.

        Raises:
            ServiceError: Azure was away for longer than OUTAGE_SECONDS.
            UserError: Azure refused it.
        """
        observer = self._observe(run)
        folder, request, record = observer.folder, observer.request, observer.refresh()
        last = record.last
        if last.ended is None or last.refused or record.cancelled or not record.begun:
            return False
        allowed = request["max_restarts"] if max_restarts is None else max_restarts
        if not request["job"] or not is_retryable(last.state, last.exit_code) or record.begun > allowed:
            return False  # `begun` leaves out attempts that Azure never had, because it was away
        report(f"attempt {len(record.attempts)} {last.state}: {last.reason}; submitting another")
        try:
            self._submit_again(folder)
        except ServiceError as problem:
            since = self._waiting.setdefault(folder.name, time.monotonic())
            if folder.read().last.refused or time.monotonic() - since > OUTAGE_SECONDS:
                raise
            report(f"warning: {problem.message}; trying again")
            return True
        self._waiting.pop(folder.name, None)
        return True

    def folder(self, run: str) -> Path | None:
        """Return None: a run on Azure has no folder here."""
        self._existing(run)
        return None

    def examine(self, project: Path, environ: Mapping[str, str]) -> Iterator[Finding]:
        """Yield what a run on Azure needs: workspace, sign-in, storage, quota."""
        from orchestrator.backends.azure.health import examine

        return examine(project, environ)

    def fetch(
        self, run: str, outputs: Sequence[str], to: Path, *, force: bool = False, progress: Progress | None = None
    ) -> Sequence[Path]:
        """Copy outputs from the datastore, of running jobs too: several files in parallel, checked, resumed."""
        from orchestrator.backends.azure.runs.outputs import download

        return download(self._observe(run), outputs, to, force=force, progress=progress)

    def delete(self, run: str) -> None:
        """Delete the files of an ended run in the datastore and its record here; archive its jobs."""
        observer = self._observe(run)
        folder, status = observer.folder, self.describe(run)
        if not status.state.terminal:
            raise ConflictError(f"run {folder.name} is {status.state}", fix=f"orchestrator cancel {folder.name}")
        for attempt in folder.read().attempts:
            if attempt.confirmed:
                observer.wire.archive_job(attempt.job)
        observer.files().delete(places.run_folder(folder.name))
        shutil.rmtree(folder.path)

    def register_model(self, run: str, model: str | None = None) -> dict[str, Any]:
        """Create a model asset that points at the run's outputs, with its lineage in tags."""
        from orchestrator.backends.azure.runs.models import register

        observer = self._observe(run)
        return register(observer, self.describe(observer.folder.name), model)

    def deploy_model(self, run: str, endpoint: str, *, sku: str | None = None) -> dict[str, Any]:
        """Create a managed online endpoint with one deployment that gets all traffic."""
        from orchestrator.backends.azure.runs.models import deploy

        return deploy(self._observe(run), self.register_model(run), endpoint, sku)

    def delete_endpoint(self, endpoint: str) -> None:
        """Delete an endpoint with its deployments."""
        wire = self.wire({})
        if wire.endpoint(endpoint) is None:
            raise NotFoundError(f"endpoint {endpoint} does not exist", fix="az ml online-endpoint list")
        wire.delete_endpoint(endpoint)

    def clusters(self, place: Mapping[str, str | None]) -> Clusters:
        """Return the clusters of a workspace."""
        from orchestrator.backends.azure.clusters import AzureClusters

        return AzureClusters(lambda: self.wire(place), self._home)

    def _submit_again(self, folder: RecordFolder) -> None:
        from orchestrator.backends.azure.runs.dispatch import submit
        from orchestrator.backends.azure.submission import AzureRequest

        record = folder.read()
        number = len(record.attempts) + 1
        if not record.last.confirmed:  # Azure never had it, and its name is free
            number -= 1
            record = record.model_copy(update={"attempts": record.attempts[:-1]})
        folder.write(record.with_another(places.attempt_name(folder.name, number)))
        request = AzureRequest.model_validate(folder.document(REQUEST))
        submit(self._wire_of(folder), request, folder, number=number)

    def _damage(self, folder: RecordFolder) -> str | None:
        """Return the damage of a run's record; None: it is intact.

        Raises:
            NotFoundError: it was deleted at this moment.
        """
        try:
            self._observer(folder).recorded()
        except (StorageError, ValueError, KeyError, TypeError) as problem:
            if not folder.path.is_dir():
                raise NotFoundError(f"no run {folder.name}", fix="orchestrator list") from None
            return str(problem.facts["reason"] if isinstance(problem, StorageError) else repr(problem)).splitlines()[0]
        return None

    def _existing(self, run: str) -> RecordFolder:
        """Return the record of a run, adopted from its workspace if this machine has none.

        Raises:
            NotFoundError: the run does not exist.
        """
        place, _, short = run.rpartition("/")
        folder = RecordFolder(self._runs / short)
        if (folder.path / REQUEST).is_file():
            if place and place != (known := self._wire_of(folder).workspace.workspace):
                raise ConflictError(
                    f"run {short} on record here belongs to workspace {known}, not {place}",
                    fix=f"orchestrator attach azure://{known}/{short}",
                )
            return folder
        if not place:
            raise NotFoundError(f"no run {run}{did_you_mean(run, self.names())}", fix="orchestrator list")
        adopt(self.wire_to(self.workspace({}, place).require()), folder)
        return folder

    def _observe(self, run: str) -> Observer:
        return self._observer(self._existing(run))

    def _observer(self, folder: RecordFolder) -> Observer:
        return Observer(self._wire_of(folder), folder)

    def wire(self, given: Mapping[str, str | None]) -> Wire:
        """Return the connection for clusters and models, which belong to no run."""
        return self.wire_to(self.workspace(given).require())

    def _wire_of(self, folder: RecordFolder) -> Wire:
        return self.wire_to(Workspace.model_validate(folder.document(REQUEST)["workspace"]))
