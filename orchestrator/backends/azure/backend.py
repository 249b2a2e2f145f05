"""Runs on Azure ML: submitted, followed, resumed, downloaded. The process that follows a run also restarts it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from orchestrator.backends.azure import places
from orchestrator.backends.azure.assets import report
from orchestrator.backends.azure.cloud_sweeps import AzureCloudSweeps
from orchestrator.backends.azure.options import AZURE, AzureSpec, Workspace
from orchestrator.backends.azure.runs.observer import CANCEL_PENDING, Observer, adopt
from orchestrator.backends.azure.runs.record import RecordFolder, RunRecord, price_of_machine
from orchestrator.backends.azure.wire.control_plane import Wire
from orchestrator.backends.base import PLAN, REQUEST, SUBMITTED, Progress, Submission
from orchestrator.backends.capabilities import (
    Deletes,
    Discovers,
    Examines,
    Preempts,
    Provisions,
    ReadsJobFiles,
    Registers,
    Resumes,
    RoutesTraffic,
)
from orchestrator.backends.log_query import LogBlock, LogQuery
from orchestrator.backends.stored_data import KeepsData
from orchestrator.runs.hidden_folders import remove_tree
from orchestrator.runs.restarts import Backoff, Pauses, Restart, RestartLimits, decide_restart
from orchestrator.runs.status import Handle, RunState, RunStatus
from orchestrator.support.errors import (
    AuthError,
    ConflictError,
    NotFoundError,
    RequestRefused,
    ServiceError,
    StorageError,
    UsageError,
)
from orchestrator.support.home import run_names, similar_run
from orchestrator.support.secret_sources import look_up

if TYPE_CHECKING:
    from orchestrator.backends.capabilities import Clusters, Endpoints
    from orchestrator.backends.stored_data import DataAssets
    from orchestrator.jobs.base import Plan
    from orchestrator.support.finding import Finding

POLL_VARIABLE = "ORCHESTRATOR_AZURE_POLL_SECONDS"
POLL_SECONDS = 5.0
OUTAGE_SECONDS = 3600.0  # longest outage of Azure that a follower tolerates: runs take weeks
BACKOFF_POLLS = 3, 120  # first and longest pause before a restart without progress, in polls: 15 s and 10 minutes
MAX_DISCOVERED = 200  # newest jobs of the workspace that `discover` reads


class AzureBackend(
    AzureCloudSweeps,
    Resumes,
    Preempts,
    Provisions,
    Examines,
    Deletes,
    Registers,
    RoutesTraffic,
    KeepsData,
    Discovers,
    ReadsJobFiles,
):
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
        """Run -> time and value of its last status, which is reported during an outage."""
        self._waiting: dict[str, float] = {}
        """Run whose next attempt could not be submitted -> time of the first try."""
        self._pauses = Pauses()
        self.poll_seconds = float(self._environ.get(POLL_VARIABLE, POLL_SECONDS))

    def prepare(self, plan: Plan, *, run: str) -> Submission:
        """Return every body that is sent, as one object."""
        from orchestrator.backends.azure.plan_notes import plan_submission
        from orchestrator.backends.azure.submission import build_request

        workspace = self.workspace(plan.spec.settings_of(AzureSpec).model_dump())
        return plan_submission(plan, build_request(plan, run, workspace), self._home)

    def submit(self, submission: Submission) -> Handle:
        """Create or change the cluster, upload missing files, submit the job.

        A job file goes through the SDK's own operation, which uploads the files that it names.

        Raises:
            ConflictError: the name is taken.
            UnknownError: it is unknown whether Azure has the job; the run stays on record.
            UserError: Azure refused.
        """
        from orchestrator.backends.azure.runs.dispatch import FileSubmission, send, send_file

        request = submission.request
        folder = RecordFolder(self._runs / request.name)
        wire = self.wire_to(request.workspace.require())
        if (folder.path / REQUEST).is_file():
            raise ConflictError(f"run {request.name} already exists", fix=f"orchestrator status {request.name}")
        if isinstance(submission, FileSubmission):
            send_file(wire, submission, folder)
        else:
            request.notify.check(os.environ)
            look_up(request.secrets, os.environ)  # before anything is uploaded
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

        During an outage of Azure, the last known status of this process is returned with a warning, for up to an hour.

        Raises:
            NotFoundError: the run does not exist.
            ServiceError: Azure cannot be reached, and no recent status is known.
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
            # `wait` and `attach` poll for weeks: a status of a minute ago serves them better than an error that ends
            # them. The first request of a command has no such status, and fails.
            seen, known = self._seen.get(run, (0.0, None))
            if known is None or time.monotonic() - seen > OUTAGE_SECONDS:
                raise
            if known.state.terminal:  # of the previous attempt: another one has been submitted since
                known = observer.recorded()
            return known.model_copy(update={"warning": problem.message})
        self._seen[run] = time.monotonic(), status
        return status

    def list(self) -> Iterator[RunStatus]:
        """Yield all runs on record here, the newest first; where Azure does not answer, with their recorded status."""
        away: dict[Workspace, str] = {}
        for name in self.names():
            with suppress(NotFoundError):  # deleted meanwhile, or its workspace was
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
            except (AuthError, RequestRefused, ServiceError) as problem:
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
            # only first attempts: RUN-a2 has the tag of RUN, and `adopt` finds all attempts of a run itself
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
            return logs.new([attempt for attempt in folder.read().attempts if attempt.confirmed], over=over)

        def ended() -> bool:
            return not self.restart_if_needed(folder.name) and folder.read().last.ended is not None

        return follow(new, ended, query, pause=self.poll_seconds, outage=OUTAGE_SECONDS)

    def read(self, run: str, document: str) -> bytes:
        """Return a document on record here, or an output in the datastore; empty if it does not exist (yet)."""
        if document in SUBMITTED:
            return self._existing(run).read_bytes(document)
        observer = self._observe(run)
        with suppress(NotFoundError):
            return observer.output(document)
        return b""

    def cancel(self, run: str) -> None:
        """Ask the newest job to end; Azure sends SIGTERM, and SIGKILL about half a minute later.

        The request of a submitter that died may still arrive: the next look at the run cancels a job that appears.
        """
        observer = self._observe(run)
        record = observer.refresh()
        running = record.last.ended is None
        if running or self._decide_restart(observer, record).due:
            # The record first: an eviction may end the job before the request below arrives, and the next
            # `restart_if_needed` must not restart a run that its user cancelled, or that waits for its restart.
            changed = record if running else record.with_last(state=RunState.CANCELLED, cause=None)
            changed = changed.model_copy(update={"cancelled": True, "final": None})
            if observer.folder.update(record, changed) is not changed:
                return self.cancel(run)  # another command has changed the record meanwhile
            observer.mark(places.CANCELLED)
        if running:
            try:
                observer.wire.cancel_job(record.last.job)
            except NotFoundError:
                if not record.cancelled:  # a sweep repeats the cancel at each poll
                    report(f"warning: {CANCEL_PENDING}")
                return None  # with its supervisor, which cancels the job too
        self._end_supervision(observer)
        return None

    def preempt(self, run: str) -> None:
        """Simulate a preemption: the job is cancelled, and a process that follows the run submits it again.

        Raises:
            ConflictError: the run is not running.
        """
        observer = self._observe(run)
        record = observer.refresh()
        if record.last.state != RunState.RUNNING:
            raise ConflictError(
                f"cannot preempt run {observer.folder.name}: it is {record.last.state}",
                fix=f"orchestrator status {observer.folder.name}",
            )
        # on record first: Azure reports both as Canceled, and only this mark makes it a preemption
        changed = record.with_last(preempt=True)
        if observer.folder.update(record, changed) is not changed:
            return self.preempt(run)  # another command has changed the record meanwhile
        observer.mark(places.preempt_mark(record.last.job))
        observer.wire.cancel_job(record.last.job)
        return None

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
                f"cannot resume run {folder.name}: it is {status.state}",
                fix=f"orchestrator {'status' if status.state.terminal else 'attach'} {folder.name}",
            )
        if not folder.document(REQUEST)["job"]:
            raise ConflictError(
                f"cannot resume run {folder.name}: the orchestrator did not make its job",
                facts={"reason": status.reason or "unknown"},
                fix=f"orchestrator logs {folder.name}",
            )
        if processes is not None:
            raise UsageError(
                "cannot change --processes on Azure: the job's definition fixes it",
                fix=f"orchestrator resume {folder.name}",
            )
        observer = self._observer(folder)
        if (supervisor := observer.request.get("supervisor")) is not None:
            observer.files().delete(places.marks_folder(folder.name))
            observer.wire.put_schedule(supervisor["schedule"], supervisor["body"])
        record = folder.read()
        if record.last.ended is None or not self._submit_again(folder, record, resumed=True):
            raise ConflictError(
                f"cannot resume run {folder.name}: another command restarts it",
                fix=f"orchestrator attach {folder.name}",
            )
        return self.handle(folder.name)

    def restart_if_needed(self, run: str, max_restarts: int | None = None, max_preemptions: int | None = None) -> bool:
        """Submit another attempt of a run that was preempted or failed, as often as its spec allows.

        Azure may requeue an evicted job, but need not. Any number of processes may follow the same run: attempts have
        names that follow from the run's name and their number, so two of them submit the same job.

        Raises:
            ServiceError: Azure could not be reached for longer than OUTAGE_SECONDS.
            UserError: Azure refused it.
        """
        from orchestrator.backends.azure.runs.failover import leave_machines, move

        observer = self._observe(run)
        folder, record = observer.folder, observer.refresh()
        last = record.last
        if leave_machines(observer, record):
            return True
        restart = self._decide_restart(observer, record, max_restarts, max_preemptions)
        if restart.why_not and last.not_restarted is None:
            changed = record.with_last(not_restarted=restart.why_not).model_copy(update={"final": None})
            folder.update(record, changed)
        if last.ended is None or not restart.due:
            return False
        if not self._pauses.over(folder.name, last.ended, restart.pause):
            return True
        report(f"attempt {len(record.attempts)} {last.state}: {last.reason}; submitting another")
        try:
            if (moving := record.moving) is not None:
                move(observer, moving, self._home)
            self._submit_again(folder, record)
        except ServiceError as problem:
            # Preemptions and outages come together: a follower that gave up here would leave the run stopped until a
            # user notices. A refusal is final, an outage is not.
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

    def record_folder(self, run: str) -> Path:
        """Return the folder of the run's record."""
        return self._existing(run).path

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
        """Delete the files of a finished run in the datastore and its record here; archive its jobs.

        Raises:
            ConflictError: the run has not finished.
            NotFoundError: it does not exist.
            UserError: Azure refused.
        """
        observer = self._observe(run)
        folder, status = observer.folder, self.describe(run)
        if not status.state.terminal:
            raise ConflictError(
                f"cannot delete run {folder.name}: it is {status.state}", fix=f"orchestrator cancel {folder.name}"
            )
        # the record last: without it, an interrupted deletion could not be repeated
        for attempt in folder.read().attempts:
            if attempt.confirmed:
                with suppress(NotFoundError):  # deleted from the workspace
                    observer.wire.archive_job(attempt.job)
        self._end_supervision(observer)
        observer.files().delete(places.run_folder(folder.name))
        remove_tree(folder.path)

    def register_model(
        self, run: str, model: str | None = None, *, alias: str | None = None, checkpoints: bool = False
    ) -> dict[str, Any]:
        """Create a model asset that points at the run's outputs, with its lineage in tags.

        Args:
            run: the run's name.
            model: name of the asset; None: the run's name without its hash.
            alias: Azure's registry has none.
            checkpoints: Azure's registry has no logged models.

        Raises:
            UsageError: an alias is given, or checkpoints are asked for.
        """
        from orchestrator.backends.azure.runs.models import register

        if checkpoints:
            raise UsageError("invalid --checkpoints: Azure's registry has no logged models", fix="leave it out")
        observer = self._observe(run)
        return register(observer, self.describe(observer.folder.name), model, alias)

    def deploy_model(
        self, run: str, endpoint: str, *, sku: str | None = None, traffic: int | None = None, key: Path | None = None
    ) -> dict[str, Any]:
        """Create a managed online endpoint, or a second deployment of an existing one; takes about 10 minutes.

        Args:
            run: the run's name.
            endpoint: name of the endpoint, unique in the region.
            sku: size of its machine. None: Standard_DS3_v2.
            traffic: percent for the second deployment. None: a new endpoint, whose deployment gets all traffic.
            key: must be None.

        Raises:
            ConflictError: the run has not completed, or the endpoint exists and no `traffic` was given.
            UsageError: a signature is required.
            UserError: Azure refused.
        """
        from orchestrator.backends.azure.runs.models import deploy

        if key is not None:
            raise UsageError(
                "invalid --require-signature: an endpoint on Azure does not check the signature of its model",
                facts={"or": f"orchestrator download {run}, then orchestrator model verify FOLDER --key KEY"},
                fix="leave out --require-signature",
            )
        return deploy(self._observe(run), lambda: self.register_model(run), endpoint, sku, traffic)

    def endpoints(self) -> Endpoints:
        """Return the online endpoints of the workspace."""
        from orchestrator.backends.azure.endpoints import AzureEndpoints

        return AzureEndpoints(self.wire({}))

    def data_assets(self) -> DataAssets:
        """Return the data assets of the workspace."""
        from orchestrator.backends.azure.data_assets import AzureDataAssets

        return AzureDataAssets(self.wire({}))

    def delete_endpoint(self, endpoint: str) -> None:
        """Delete an endpoint with its deployments.

        Raises:
            NotFoundError: it does not exist.
        """
        wire = self.wire({})
        if wire.endpoint(endpoint) is None:
            raise NotFoundError(f"endpoint {endpoint} does not exist", fix="orchestrator model endpoints")
        wire.delete_endpoint(endpoint)

    def clusters(self, place: Mapping[str, str | None]) -> Clusters:
        """Return the clusters of a workspace."""
        from orchestrator.backends.azure.clusters import AzureClusters
        from orchestrator.backends.azure.health import project_settings

        return AzureClusters(lambda: self.wire(place), self._home, lambda: project_settings(Path.cwd(), os.environ))

    def _end_supervision(self, observer: Observer) -> None:
        if (supervisor := observer.request.get("supervisor")) is not None:
            observer.wire.delete_schedule(supervisor["schedule"])

    def _decide_restart(
        self, observer: Observer, record: RunRecord, errors: int | None = None, preemptions: int | None = None
    ) -> Restart:
        """Decide whether a run gets another attempt; `errors` and `preemptions` replace the limits of its spec."""
        if record.last.ended is None or record.last.refused or record.cancelled or not observer.request["job"]:
            return Restart(False)
        if record.moving is not None:
            return Restart(True)
        limits = RestartLimits.from_spec(observer.plan["spec"], errors=errors, preemptions=preemptions)
        return decide_restart(observer.folder.name, record.counted, limits, self._backoff())

    def _backoff(self) -> Backoff:
        return Backoff(*(polls * self.poll_seconds for polls in BACKOFF_POLLS))

    def _submit_again(self, folder: RecordFolder, record: RunRecord, *, resumed: bool = False) -> bool:
        """Record another attempt, and submit it; return False if another command has changed the record.

        Args:
            folder: of the run.
            record: its content as it was read, whose last attempt has finished.
            resumed: the run's user resumes it.

        Raises:
            UserError: Azure refused it, cannot be reached, or a secret does not exist.
        """
        from orchestrator.backends.azure.runs.dispatch import submit
        from orchestrator.backends.azure.submission import AzureRequest

        request = AzureRequest.model_validate(folder.document(REQUEST))
        if resumed:  # a restart without the user records the lack as the run's end instead
            look_up(request.secrets, os.environ)
        # Azure never had an attempt that is not confirmed, and its name is free. It is used again, because `adopt` on
        # another machine stops at the first missing number.
        attempts = record.attempts if record.last.confirmed else record.attempts[:-1]
        number = len(attempts) + 1
        kept = record.model_copy(update={"attempts": attempts})
        price = price_of_machine(folder.document(PLAN))
        another = kept.with_another(places.attempt_name(folder.name, number), price=price, resumed=resumed)
        if folder.update(record, another) is not another:
            return False  # the other follower has submitted this attempt
        submit(self._wire_of(folder), request, folder, number=number)
        return True

    def _damage(self, folder: RecordFolder) -> str | None:
        """Return the damage of a run's record; None: it is intact.

        Raises:
            NotFoundError: it was deleted at this moment.
        """
        try:
            self._observer(folder).recorded()
        except (StorageError, ValueError, KeyError, TypeError) as problem:
            if not folder.path.is_dir():
                raise NotFoundError(f"unknown run {folder.name!r}", fix="orchestrator list") from None
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
            raise NotFoundError(f"unknown run {run!r}{similar_run(run, self.names())}", fix="orchestrator list")
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
