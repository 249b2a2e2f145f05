"""Runs on Azure ML: submitted, followed, recovered, downloaded. Whoever follows a run also sees to its restarts."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from orchestrator.backends.azure.assets import places
from orchestrator.backends.azure.options import AzureSpec
from orchestrator.backends.azure.runs import states
from orchestrator.backends.azure.runs.adoption import adopt
from orchestrator.backends.azure.runs.observer import Look
from orchestrator.backends.azure.runs.record import RecordFolder
from orchestrator.backends.azure.submission import AzureRequest, build_request
from orchestrator.backends.azure.sweeps.native import AzureSweeps
from orchestrator.backends.azure.wire.control_plane import Wire
from orchestrator.backends.azure.wire.workspace import Workspace, find_workspace
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
from train_jobs.config.names import did_you_mean

if TYPE_CHECKING:
    from orchestrator.backends.capabilities import Clusters
    from orchestrator.jobs.base import Plan
    from orchestrator.support.finding import Finding

PLACE = "azure"  # folder below the home folder
POLL_VARIABLE = "ORCHESTRATOR_AZURE_POLL_SECONDS"
POLL_SECONDS = 5.0
OUTAGE_SECONDS = 3600.0  # that Azure may be away from one who follows a run: runs take weeks
MOST_DISCOVERED = 200  # jobs that are looked at, the newest first


class AzureBackend(AzureSweeps, Resumes, Preempts, Provisions, Examines, Deletes, Registers, Discovers, ReadsJobFiles):
    """Runs on Azure ML. A run may be named `WORKSPACE/NAME`, which finds it without a record on this machine.

    Args:
        home: the user's orchestrator folder.
        environ: environment variables; None: those of this process.
    """

    name = "azure"
    remote = own_tracking = True
    instead: ClassVar[Mapping[str, str]] = {
        "Inspects": "orchestrator download RUN stacks, once it has hung for watchdog.hang_minutes"
    }
    deploys_here = False

    def __init__(self, home: Path, environ: Mapping[str, str] | None = None) -> None:
        super().__init__(home)
        self._runs = home / PLACE
        self._environ = os.environ if environ is None else environ
        self._wires: dict[Workspace, Wire] = {}
        self._seen: dict[str, tuple[float, RunStatus]] = {}
        self._waiting: dict[str, float] = {}
        """Runs whose next attempt Azure was away for, and since when."""
        self.poll_seconds = float(self._environ.get(POLL_VARIABLE, POLL_SECONDS))

    def prepare(self, plan: Plan, *, run: str) -> Submission:
        """Return every body that is sent, as one object."""
        workspace = self.workspace(plan.spec.settings_of(AzureSpec).model_dump())
        return self.submission(plan, build_request(plan, run, workspace))

    def submission(self, plan: Plan, request: AzureRequest) -> Submission:
        """Return the submission that sends a request made of a plan."""
        from orchestrator.backends.azure.notes import request_notes
        from orchestrator.backends.azure.runs.az_yaml import job_file
        from orchestrator.backends.azure.runs.dispatch import job_documents

        job = request.job["properties"]
        is_command = job["jobType"] == "Command"
        return Submission(
            backend=self.name,
            plan=plan,
            request=request,
            command=(job["command"],) if is_command else (),
            variables=job["environmentVariables"] if is_command else {},
            documents=job_documents(request, plan),
            notes=tuple(request_notes(request, plan, self._home)),
            export=job_file(request.name, request.job) if is_command else request.job,
        )

    def submit(self, submission: Submission) -> Handle:
        """Create or change the cluster, upload what is missing, submit the job.

        A job file goes through the SDK's own operation, so that the SDK uploads what it names.

        Raises:
            ConflictError: the name is taken.
            UserError: Azure refused.
        """
        from orchestrator.backends.azure.runs.dispatch import send
        from orchestrator.backends.azure.runs.file_submission import FileSubmission, send_file

        request: AzureRequest = submission.request
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
        """Whether a path has the name of a job file of `az ml`."""
        return path.suffix in {".yml", ".yaml"}

    def prepare_file(self, path: Path) -> Submission:
        """Return what a job file of `az ml` asks for; its outputs are where the file says."""
        from orchestrator.backends.azure.runs.az_yaml import read_job_file
        from orchestrator.backends.azure.runs.file_submission import file_submission

        return file_submission(read_job_file(path), self.workspace({}))

    def describe(self, name: str) -> RunStatus:
        """How a run stands; one whose record is damaged has failed, and says how.

        While Azure is away, who has asked before gets the last answer, with a warning.
        """
        folder = self._existing(name)
        if (damage := self._damage(folder)) is not None:
            return self._damaged(folder, damage)
        try:
            status = Look(self._wire_of(folder), folder).status()
        except ServiceError as problem:
            seen, known = self._seen.get(name, (0.0, None))
            if known is None or time.monotonic() - seen > OUTAGE_SECONDS:
                raise
            if known.state.terminal:  # how the attempt before ended: another is on its way
                known = Look(self._wire_of(folder), folder).recorded()
            return known.model_copy(update={"warning": problem.message})
        self._seen[name] = time.monotonic(), status
        return status

    def list(self) -> Iterator[RunStatus]:
        """Yield all runs of this machine's record, the newest first; where Azure does not answer, their last status."""
        away: dict[Workspace, str] = {}
        for name in self.names():
            with suppress(NotFoundError):  # deleted in the meantime, here or in the workspace
                yield self._listed(name, away)

    def _listed(self, name: str, away: dict[Workspace, str]) -> RunStatus:
        """How a run stands, for whoever wants to see the others too.

        Args:
            away: workspaces that do not answer, and why: none is asked, or told of, twice.
        """
        folder = self._existing(name)
        if self._damage(folder) is not None:
            return self.describe(name)
        wire = self._wire_of(folder)
        if wire.workspace not in away:
            try:
                return self.describe(name)
            except (AuthError, ServiceError) as problem:
                from orchestrator.backends.azure.assets.uploads import say

                away[wire.workspace] = problem.message
                say(f"warning: {problem.message}; its runs are shown as they stood when it was last asked")
        return Look(wire, folder).recorded(away[wire.workspace])

    def names(self) -> Sequence[str]:
        """Return the names of all runs of this machine's record, the newest submission first."""
        return run_names(self._runs)

    def discover(self) -> None:
        """Puts the newest runs of the workspace on record here, whoever submitted them."""
        workspace = self.workspace({}).require()
        wire, known = self.wire_to(workspace), set(self.names())
        for job in wire.jobs(MOST_DISCOVERED):
            run = job["tags"].get("orchestrator.run")
            if run == job["name"] and run not in known:
                with suppress(NotFoundError):  # its files were deleted
                    adopt(wire, RecordFolder(self._runs / run))

    def handle(self, name: str) -> Handle:
        """The handle of a run of this machine's record: it names the workspace, unless the record is damaged."""
        folder = self._existing(name)
        whole = self._damage(folder) is None
        return Handle(self.name, name, self._wire_of(folder).workspace.workspace if whole else None)

    def logs(self, name: str, query: LogQuery) -> Iterator[LogBlock]:
        """Yield lines of the logs of all attempts; following also submits the attempts that the run may still have."""
        from orchestrator.backends.azure.runs.job_logs import JobLogs, Layout, choose_sources, follow

        folder = self._existing(name)
        request = folder.document(REQUEST)
        layout = Layout(request["nodes"], request["processes_per_node"])
        sources = choose_sources(folder.name, layout, query)
        if query.since is not None:
            from orchestrator.backends.azure.assets.uploads import say

            say("warning: --since has no effect: logs on Azure have no times")
        wire = self._wire_of(folder)

        def ended() -> bool:
            return not self.tend(folder.name) and folder.read().last.ended is not None

        return follow(
            lambda: [attempt.job for attempt in folder.read().attempts if attempt.confirmed],
            lambda job: JobLogs(wire, job, layout),
            ended,
            sources,
            query,
            pause=self.poll_seconds,
            outage=OUTAGE_SECONDS,
        )

    def read(self, name: str, document: str) -> bytes:
        """Return a document on record here, or an output in the datastore."""
        folder = self._existing(name)
        if document in SUBMITTED:
            return folder.read_bytes(document)
        look = Look(self._wire_of(folder), folder)
        try:
            return look.files().read(places.outputs_folder(folder.name) + document)
        except NotFoundError:
            return b""

    def cancel(self, name: str) -> None:
        """Asks the newest job to end; Azure gives it half a minute to save a checkpoint."""
        folder = self._existing(name)
        look = Look(self._wire_of(folder), folder)
        record = look.refresh()
        if record.last.ended is None:
            folder.write(record.model_copy(update={"cancelled": True}))
            self._wire_of(folder).cancel_job(record.last.job)

    def preempt(self, name: str) -> None:
        """Plays a preemption: the job is cancelled, and whoever follows the run submits it again if it may."""
        folder = self._existing(name)
        record = Look(self._wire_of(folder), folder).refresh()
        if record.last.state != RunState.RUNNING:
            raise ConflictError(
                f"run {folder.name} is {record.last.state} and not running", fix=f"orchestrator status {folder.name}"
            )
        folder.write(record.with_last(preempt=True))
        self._wire_of(folder).cancel_job(record.last.job)

    def resume(self, name: str, *, processes: int | None = None) -> Handle:
        """Submits another attempt, which goes on from the newest checkpoint.

        Raises:
            ConflictError: it completed, or goes on.
            UsageError: another number of processes: the job's definition says how many.
        """
        folder = self._existing(name)
        status = self.describe(folder.name)
        if not status.state.resumable:
            raise ConflictError(
                f"run {folder.name} is {status.state} and cannot be resumed",
                fix=f"orchestrator {'status' if status.state.terminal else 'attach'} {folder.name}",
            )
        if not folder.document(REQUEST)["job"]:
            raise ConflictError(
                f"the job of run {folder.name} is not this program's own, and it makes no other one of it",
                facts={"reason": status.reason or "unknown"},
                fix=f"orchestrator logs {folder.name}",
            )
        if processes is not None:
            raise UsageError("--processes cannot change on Azure", fix=f"orchestrator resume {folder.name}")
        self._submit_again(folder)
        return self.handle(folder.name)

    def tend(self, name: str, max_restarts: int | None = None) -> bool:
        """Submits another attempt of a run that was preempted or failed, as often as its request allows.

        Raises:
            ServiceError: Azure was away for it longer than anybody waits.
            UserError: Azure refused it.
        """
        folder = self._existing(name)
        record = Look(self._wire_of(folder), folder).refresh()
        last = record.last
        if last.ended is None or last.refused or record.cancelled or not record.begun:
            return False
        request = folder.document(REQUEST)
        allowed = request["max_restarts"] if max_restarts is None else max_restarts
        if not request["job"] or not states.worth_another(last.state, last.exit_code) or record.begun > allowed:
            return False  # an attempt that Azure never had, because it was away, is none
        from orchestrator.backends.azure.assets.uploads import say

        say(f"attempt {len(record.attempts)} {last.state}: {last.reason}; submitting another")
        try:
            self._submit_again(folder)
        except ServiceError as problem:
            since = self._waiting.setdefault(folder.name, time.monotonic())
            if folder.read().last.refused or time.monotonic() - since > OUTAGE_SECONDS:
                raise
            say(f"warning: {problem.message}; it is tried again")
            return True
        self._waiting.pop(folder.name, None)
        return True

    def folder(self, name: str) -> Path | None:
        """Return None: a run on Azure has no folder here."""
        self._existing(name)
        return None

    def examine(self, project: Path, environ: Mapping[str, str]) -> Iterator[Finding]:
        """Yield what a run on Azure needs: workspace, sign-in, storage, quota."""
        from orchestrator.backends.azure.health import examine

        return examine(project, environ)

    def fetch(
        self, name: str, outputs: Sequence[str], to: Path, *, force: bool = False, progress: Progress | None = None
    ) -> Sequence[Path]:
        """Copy outputs from the datastore, of running jobs too: several files at once, checked, resumed."""
        from orchestrator.backends.azure.runs.outputs import download

        folder = self._existing(name)
        look = Look(self._wire_of(folder), folder)
        return download(
            look.files(),
            folder.name,
            outputs,
            to,
            store=look.store(),
            state=lambda: self.describe(name).state,
            force=force,
            progress=progress,
        )

    def delete(self, name: str) -> None:
        """Deletes what an ended run has in the datastore, takes its jobs off the workspace's lists, forgets it here."""
        folder = self._existing(name)
        status = self.describe(folder.name)
        if not status.state.terminal:
            raise ConflictError(f"run {folder.name} is {status.state}", fix=f"orchestrator cancel {folder.name}")
        wire = self._wire_of(folder)
        for attempt in folder.read().attempts:
            if attempt.confirmed:
                wire.archive_job(attempt.job)
        Look(wire, folder).files().delete(places.run_folder(folder.name))
        import shutil

        shutil.rmtree(folder.path)

    def register_model(self, name: str, model: str | None = None) -> dict[str, Any]:
        """A model asset that points at the run's outputs, with its lineage in tags."""
        from orchestrator.backends.azure.runs.models import register

        folder = self._existing(name)
        return register(self._wire_of(folder), folder, self.describe(folder.name), model)

    def deploy_model(self, name: str, endpoint: str, *, sku: str | None = None) -> dict[str, Any]:
        """A managed online endpoint with one deployment that gets all traffic."""
        from orchestrator.backends.azure.runs.models import deploy

        folder = self._existing(name)
        return deploy(self._wire_of(folder), folder, self.register_model(folder.name), endpoint, sku)

    def delete_endpoint(self, endpoint: str) -> None:
        """Deletes an endpoint with all behind it."""
        wire = self.wire({})
        if wire.endpoint(endpoint) is None:
            raise NotFoundError(f"there is no endpoint {endpoint}", fix="az ml online-endpoint list")
        wire.delete_endpoint(endpoint)

    def wire(self, given: Mapping[str, str | None]) -> Wire:
        """The workspace that these names, variables and config.json say, for what is no run: clusters, models."""
        return self.wire_to(self.workspace(given).require())

    def clusters(self, place: Mapping[str, str | None]) -> Clusters:
        """Return the clusters of a workspace."""
        from orchestrator.backends.azure.machines.managed import AzureClusters

        return AzureClusters(lambda: self.wire(place), self._home)

    def _submit_again(self, folder: RecordFolder) -> None:
        from orchestrator.backends.azure.runs.dispatch import submit

        record = folder.read()
        number = len(record.attempts) + 1
        if not record.last.confirmed:  # Azure never had it, and its name is free
            number -= 1
            record = record.model_copy(update={"attempts": record.attempts[:-1]})
        folder.write(record.with_another(places.attempt_name(folder.name, number)))
        request = AzureRequest.model_validate(folder.document(REQUEST))
        submit(self._wire_of(folder), request, folder, number=number)

    def _damage(self, folder: RecordFolder) -> str | None:
        """What is wrong with a run's record; None: nothing.

        Raises:
            NotFoundError: it was deleted at this moment.
        """
        try:
            Look(self._wire_of(folder), folder).recorded()
        except (StorageError, ValueError, KeyError, TypeError) as problem:
            if not folder.path.is_dir():
                raise NotFoundError(f"no run {folder.name}", fix="orchestrator list") from None
            return str(problem.facts["says"] if isinstance(problem, StorageError) else repr(problem)).splitlines()[0]
        return None

    def _damaged(self, folder: RecordFolder, damage: str) -> RunStatus:
        return RunStatus(
            name=folder.name,
            handle=str(self.handle(folder.name)),
            state=RunState.FAILED,
            reason=f"the run's record {folder.path} is damaged: {damage}",
            created=folder.path.stat().st_mtime,
            run_hash="",
        )

    def _existing(self, name: str) -> RecordFolder:
        """The record of a run, fetched from its workspace if this machine has none.

        Raises:
            NotFoundError: there is no such run.
        """
        place, _, short = name.rpartition("/")
        folder = RecordFolder(self._runs / short)
        if (folder.path / REQUEST).is_file():
            if place and place != (known := self._wire_of(folder).workspace.workspace):
                raise ConflictError(
                    f"the run {short} on record here is of workspace {known}, not of {place}",
                    fix=f"orchestrator attach azure://{known}/{short}",
                )
            return folder
        if not place:
            raise NotFoundError(f"no run {name}{did_you_mean(name, self.names())}", fix="orchestrator list")
        adopt(self.wire_to(self.workspace({}, place).require()), folder)
        return folder

    def workspace(self, given: Mapping[str, str | None], name: str | None = None) -> Workspace:
        """Which workspace is meant; as of `find_workspace`."""
        return find_workspace(given, self._environ, Path.cwd(), name=name)

    def _wire_of(self, folder: RecordFolder) -> Wire:
        return self.wire_to(Workspace.model_validate(folder.document(REQUEST)["workspace"]))

    def wire_to(self, workspace: Workspace) -> Wire:
        """That workspace."""
        return self._wires.setdefault(workspace, Wire(workspace))
