"""Status of a run on Azure: from Azure's report of its newest job, the job's own files, and the record here.

Runs that were submitted elsewhere are adopted: their record here is made from their files and tags in the workspace.
"""

from __future__ import annotations

import json
import shutil
import time
from pathlib import PurePosixPath
from typing import Any

from orchestrator.backends.azure import assets, places
from orchestrator.backends.azure.options import MAX_HOURS, SERVERLESS
from orchestrator.backends.azure.runs.endings import (
    ENDING_STATUSES,
    JobEnding,
    RankError,
    ending_of,
    rank_error,
    seconds,
    state_of,
)
from orchestrator.backends.azure.runs.record import (
    FORMER_TAG,
    REASON_TAG,
    RESUMED_TAG,
    AzureAttempt,
    RecordFolder,
    RunRecord,
    price_of_machine,
)
from orchestrator.backends.azure.wire.blobs import Files
from orchestrator.backends.azure.wire.control_plane import Wire, duration_seconds
from orchestrator.backends.base import CONFIG, NO_RESULT, PLAN, RANK_ERROR, REQUEST, RESULT, SPEC, TAGS
from orchestrator.backends.run_progress import TAIL_BYTES, PaceWatch, Target, newest, tail_reports
from orchestrator.estimates.cost import HOUR, price_of_attempts
from orchestrator.jobs.kind import JobKind
from orchestrator.jobs.registry import DEFAULT, run_kind
from orchestrator.runs.results import read_results
from orchestrator.runs.status import EndCause, RunAttempt, RunState, RunStatus, attempt_seconds
from orchestrator.specs.settings import Settings
from orchestrator.specs.sweep_spec import as_tree
from orchestrator.specs.tiers import current_tier
from orchestrator.support.errors import NotFoundError, UserError
from orchestrator.support.redact import redact
from train_jobs.artifacts.host import RunClock
from train_jobs.artifacts.layers import ConfigLayer, merge
from train_jobs.artifacts.lineage import METRICS_FILE

NOT_ACCEPTED = "Azure never had the job: it was not submitted"
UNCONFIRMED = "Azure does not show the job yet: its submission may still arrive"
DELETED = "its job was deleted from the workspace"
CANCELLED_BEFORE = "it was cancelled before Azure had the job"
CANCEL_PENDING = "Azure does not show the job yet: if it appears, the next orchestrator status cancels it"
REQUEUED = "Azure took its machines away, and started the same job again"
NO_MACHINES = "its cluster got no machines; the run moves to others"
ARRIVAL_SECONDS = 900.0  # between a request and the creation of its job, with the difference of both clocks
GRACE_SECONDS = 90.0  # a request whose sender died may still arrive: longer than any proxy or gateway keeps one
LOOKS, LOOK_PAUSE = 3, 1.0  # requests for a missing job before it counts as never submitted, and seconds between two
CLOCK_SECONDS = 1.0  # a start that is later by more than this is another start
_CLOCK = RunClock.start()  # durations and costs of running jobs stay true if the machine's clock is set meanwhile


class Observer:
    """Access to one run on Azure: asks for its jobs, reads its files and updates its record.

    Args:
        wire: its workspace.
        folder: its record.
    """

    def __init__(self, wire: Wire, folder: RecordFolder) -> None:
        self.wire, self.folder = wire, folder
        self.request, self.plan = folder.document(REQUEST), folder.document(PLAN)
        self._outputs = places.outputs_folder(folder.name)

    @property
    def _kind(self) -> JobKind:
        return run_kind(self.plan["spec"].get("kind", DEFAULT))

    def files(self) -> Files:
        """Return the files of its datastore."""
        return Files(self.wire, self.request["datastore"])

    def mark(self, mark: str, content: str = "1") -> None:
        """Report to the run's supervisor in Azure, if it has one, why its job is cancelled."""
        if self.request.get("supervisor"):
            self.files().upload(places.marks_folder(self.folder.name), {mark: content.encode()})

    def _with_marks(self, attempt: AzureAttempt) -> AzureAttempt:
        """Return a cancelled attempt with what other machines report about its cancel."""
        if not self.request.get("supervisor"):
            return attempt
        files, folder = self.files(), places.marks_folder(self.folder.name)
        marks = {blob.name for blob in files.list(folder)}
        if places.CANCELLED in marks:  # the user's cancel counts more than one for a restart
            return attempt.model_copy(update={"preempt": False, "moved": False})
        found: dict[str, Any] = {}
        if places.preempt_mark(attempt.job) in marks:
            found["preempt"] = True
        if (moved := places.moved_mark(attempt.job)) in marks:
            found |= {"moved": True, "alternatives": int(files.read(folder + moved))}
        return attempt.model_copy(update=found)

    def output(self, name: str) -> bytes:
        """Return the content of a file that the job wrote.

        Raises:
            NotFoundError: it does not exist.
        """
        return self.files().read(self._outputs + name)

    def refresh(self) -> RunRecord:
        """Return the record after asking Azure about the newest attempt; one whose job has finished never changes.

        Raises:
            NotFoundError: the workspace does not exist.
            StorageError: the record is damaged.
            UserError: Azure cannot be reached, or refused.
        """
        record = self._with_attempts_of_azure(self.folder.read())
        if record.last.ended is not None and record.last.reason != DELETED:  # Azure may hide a job for a while
            return record
        refreshed = record.with_last(**self._changes(record.last, cancelled=record.cancelled))
        if refreshed == record or self.folder.update(record, refreshed) is refreshed:
            return refreshed
        return self.refresh()  # another command has changed the record meanwhile

    def _with_attempts_of_azure(self, record: RunRecord) -> RunRecord:
        """Return the record with the attempts that the run's supervisor in Azure has submitted since."""
        while self.request.get("supervisor") and record.last.state in {RunState.FAILED, RunState.PREEMPTED}:
            name = places.attempt_name(self.folder.name, len(record.attempts) + 1)
            if (job := self.wire.job(name)) is None:
                break
            if record.moving is not None:
                self._read_moved_documents()
            created = seconds((job.get("systemData") or {}).get("createdAt")) or time.time()
            another = record.with_another(name, price=price_of_machine(self.plan))
            another = another.with_last(intended=created, confirmed=True)
            another = another.with_last(**self._changes(another.last, cancelled=False))
            record = self.folder.update(record, another)
        return record

    def _read_moved_documents(self) -> None:
        """Replace the documents here by those of the machines to which the supervisor moved the run."""
        files, folder = self.files(), places.job_folder(self.folder.name)
        self.folder.write_documents({name: files.read(folder + name).decode() for name in (PLAN, REQUEST)})
        self.request, self.plan = self.folder.document(REQUEST), self.folder.document(PLAN)

    def _changes(self, attempt: AzureAttempt, *, cancelled: bool) -> dict[str, Any]:
        job = self._job_of(attempt)
        created = seconds((job.get("systemData") or {}).get("createdAt")) if job is not None else None
        created = created or attempt.intended
        if cancelled and not attempt.confirmed and created > attempt.intended + ARRIVAL_SECONDS:
            job = None  # of another submission, which has the same name if its plan is the same
        if job is None and attempt.confirmed:
            return {
                "state": RunState.CANCELLED if cancelled else RunState.FAILED,
                "reason": DELETED,
                "ended": max(self.last_report().get("time", 0.0), attempt.started or attempt.intended),
                "refused": True,  # a restart would undo what a user of the workspace did
            }
        if job is None:
            if time.time() - attempt.intended < GRACE_SECONDS:
                return {}
            return {
                "state": RunState.CANCELLED if cancelled else RunState.FAILED,
                "cause": None if cancelled else EndCause.MACHINE,
                "reason": CANCELLED_BEFORE if cancelled else NOT_ACCEPTED,
                "ended": attempt.intended,
                "exit_code": None,
            }
        status = str(job["properties"].get("status"))
        state = state_of(status)
        if cancelled and not state.terminal and status not in ENDING_STATUSES:
            self._repeat_cancel(attempt.job)
        found: dict[str, Any] = {"confirmed": True, "state": state}
        if attempt.reason == DELETED:
            found |= {"ended": None, "reason": None, "refused": False}
        # a second request, to the run history, is needed only for the start and the end of an attempt
        if state in {RunState.QUEUED, RunState.STARTING}:
            return found | (self._new_life(attempt) if attempt.started and status != "Paused" else {})
        if state == RunState.RUNNING and attempt.started is not None:
            return found
        details = self.wire.details(attempt.job)
        found |= self._start(attempt, details)
        if state == RunState.RUNNING:
            return {**found, "started": found["started"] or time.time()}
        found |= self._ending(attempt.model_copy(update=found), {**details, "status": status}, created)
        # an eviction may end the job before the user's cancel does: a restart would ignore what the user asked for
        if cancelled and found["state"] == RunState.PREEMPTED:
            found |= {"state": RunState.CANCELLED, "cause": None}
        return found

    def _repeat_cancel(self, job: str) -> None:
        """Cancel a job whose cancel is on record: it appeared later, or the request for it was lost."""
        try:
            self.wire.cancel_job(job)
        except UserError as problem:  # the status is known all the same, and the next look tries again
            assets.report(f"warning: cannot cancel job {job}: {problem.message}; trying again")

    def _job_of(self, attempt: AzureAttempt) -> dict[str, Any] | None:
        """Return the job of an attempt; None: Azure does not have it (yet).

        Raises:
            NotFoundError: the workspace does not exist.
        """
        job = self.wire.job(attempt.job)
        if job is None and attempt.confirmed:
            self.wire.location()  # fails if the workspace does not exist: its jobs would look the same
        if attempt.reason == DELETED:
            return job
        if not attempt.confirmed and time.time() - attempt.intended < GRACE_SECONDS:
            return job
        for _ in range(LOOKS - 1):
            if job is None:
                time.sleep(LOOK_PAUSE)
                job = self.wire.job(attempt.job)
        return job

    def note_start(self, attempt: AzureAttempt, started: float | None) -> AzureAttempt:
        """Return the newest attempt after comparing the start of its job with the known one.

        Azure may take the machines of a job away and run the same job again in place: with another start and new logs.

        Args:
            attempt: the attempt; another one, if the run was restarted meanwhile, stays as it is.
            started: the start that Azure reports, in seconds since the epoch; None: another one, not known yet.
        """
        record = self.folder.read()
        last = record.last
        if last.job != attempt.job:
            return attempt
        if last.ended is not None or last.started is None or not _is_later(started, last.started):
            return last
        record = self.folder.update(record, record.with_last(**self._new_life(last, started)))
        return record.last if record.last.job == attempt.job else attempt

    def _start(self, attempt: AzureAttempt, details: dict[str, Any]) -> dict[str, Any]:
        started = seconds(details.get("startTimeUtc"))
        if attempt.started is not None and started is not None and _is_later(started, attempt.started):
            return self._new_life(attempt, started)
        # Azure may still report the first start of a job that it requeued
        ends = [life.ended for life in attempt.lives if life.ended is not None]
        return {"started": max([started, *ends[-1:]]) if started else attempt.started}

    def _new_life(self, attempt: AzureAttempt, started: float | None = None) -> dict[str, Any]:
        """Return the changes of an attempt that Azure requeued: its life so far becomes a former one."""
        last = self.last_report()
        step = last["step"] if attempt.started and last.get("time", 0.0) >= attempt.started else None
        life = RunAttempt(
            started=attempt.started or attempt.intended,
            ended=started or time.time(),
            state=RunState.PREEMPTED,
            cause=EndCause.PREEMPTED,
            reason=REQUEUED,
            step=step,
            price_per_hour=attempt.price_per_hour,
        )
        return {"lives": (*attempt.lives, life), "started": started}

    def _ending(self, attempt: AzureAttempt, details: dict[str, Any], created: float) -> dict[str, Any]:
        """Return the fields of an attempt that its end changes; `created` is when Azure got its job."""
        reported = state_of(details["status"])
        failed = reported == RunState.FAILED
        if reported == RunState.CANCELLED:
            attempt = self._with_marks(attempt)
        else:  # it got machines before its cancel arrived
            attempt = attempt.model_copy(update={"moved": False})
        # A job may fail before it starts, as at its image: errors of the ranks are of earlier attempts then. Files and
        # jobs have the times of Azure, which those of this machine need not match.
        since = max([created, *(life.ended or 0.0 for life in attempt.lives)])
        own = self._rank_error(attempt.started or since) if failed else None
        ending = ending_of(details, own, limit=self._limit(), preempt=attempt.preempt or attempt.moved)
        if attempt.moved:
            ending = ending._replace(reason=NO_MACHINES)
        if ending.state == RunState.COMPLETED and self.request.get("writes_result") and self._result() is None:
            text = f"{NO_RESULT}; see orchestrator logs {self.folder.name}"
            ending = JobEnding(RunState.FAILED, 1, EndCause.ERROR, text)
        last = self.last_report()
        started = attempt.started
        return {
            **ending._asdict(),
            **attempt.model_dump(include={"preempt", "moved", "alternatives"}),
            "ended": seconds(details.get("endTimeUtc")) or time.time(),
            "step": last["step"] if started and last.get("time", 0.0) >= started else None,
        }

    def _limit(self) -> float:
        """Return the time limit of its jobs in seconds: their own, or that of their machines."""
        limits = (self.request["job"].get("properties") or {}).get("limits") or {}
        if timeout := limits.get("timeout"):
            return float(duration_seconds(timeout))
        return MAX_HOURS[current_tier((self.plan["spec"].get("compute") or {}).get("tier", "dedicated"))] * HOUR

    def _rank_error(self, since: float) -> RankError | None:
        """Return the error of a rank that is the cause of the end: of this attempt, and not that of a lost peer."""
        blobs = [blob for blob in self.files().list(self._outputs) if RANK_ERROR.fullmatch(blob.name)]
        current = sorted(blob.name for blob in blobs if blob.modified >= since - CLOCK_SECONDS)
        errors = [error for name in current if (error := rank_error(self.output(name))) is not None]
        return next((error for error in errors if not error.is_peer), errors[0] if errors else None)

    def last_report(self) -> dict[str, Any]:
        """Return the last reported step and the newest value of each metric, see `newest`."""
        return newest(self._last_reports())

    def _last_reports(self) -> list[dict[str, Any]]:
        """Return the reports in the tail of the metrics file."""
        files, name = self.files(), self._outputs + METRICS_FILE
        size = files.size(name)
        if not size:
            return []
        start = max(0, size - TAIL_BYTES)
        return tail_reports(files.read(name, start), time.time(), cut=start > 0)

    def _result(self) -> dict[str, Any] | None:
        """Return result.json; None: the job did not write it."""
        try:
            return dict(json.loads(self.output(RESULT)))
        except NotFoundError:
            return None

    def store(self) -> str | None:
        """Return the token store that the run prepared, as `--data` takes it; None: it prepared none (yet)."""
        if not self._kind.makes_store or self.refresh().last.state != RunState.COMPLETED:
            return None
        if (result := self._result()) is None:
            return None
        name = PurePosixPath(result["store"]).name
        return places.datastore_uri(self.request["datastore"], f"{places.TOKEN_STORES}{name}")

    def _queue_problem(self, record: RunRecord) -> str | None:
        """Return the reason why the cluster has no machine for a queued job, if Azure reports one."""
        if not record.last.confirmed:
            return CANCEL_PENDING if record.cancelled else UNCONFIRMED
        name = self.request["cluster"]["name"]
        if name == SERVERLESS:
            return None  # Azure reports no reason for it
        found = self.wire.compute(name)
        if found is None:
            return f"cluster {name} was deleted"
        errors = found["properties"]["properties"].get("errors") or [{}]
        message = (errors[0].get("error") or {}).get("message")
        return f"cluster {name}: {' '.join(redact(str(message)).split())}" if message else None

    def status(self) -> RunStatus:
        """Return the status; a final one is read from the record, without asking Azure again.

        Raises:
            NotFoundError: the workspace does not exist.
            StorageError: the record is damaged.
            UserError: Azure cannot be reached, or refused.
        """
        record = self.refresh()
        if record.final is not None:
            return record.final
        last, state = record.last, record.last.state
        reports = self._last_reports() if last.started is not None else []
        report = newest(reports)
        completed = state == RunState.COMPLETED
        result = self._result() if self._kind.scored and completed else None
        world = range(self.request["nodes"] * self.request["processes_per_node"])
        status = RunStatus(
            **self._recorded_facts(record),
            warning=self._queue_problem(record) if state == RunState.QUEUED else _slow_rank(reports, last.started),
            eta=Target.from_plan(self.plan).eta(report) if state == RunState.RUNNING else None,
            step=report.get("step"),
            store=self.store(),
            results=read_results(result) if result is not None else None,
            ranks=dict.fromkeys(world, 0) if completed else {},
            tracking_uri=self.wire.tracking_uri() if last.started is not None else None,
            metrics=report.get("metrics", {}),
        )
        # `list` shows hundreds of finished runs: each costs requests only once
        if state.terminal and last.reason != DELETED:
            final = record.model_copy(update={"final": status})
            if self.folder.update(record, final) is not final:
                return self.status()
        return status

    def recorded(self, warning: str | None = None) -> RunStatus:
        """Return the status when Azure was last asked, without asking it now.

        Args:
            warning: the reason for that.
        """
        record = self.folder.read()
        return record.final or RunStatus(**self._recorded_facts(record), warning=warning)

    def _recorded_facts(self, record: RunRecord) -> dict[str, Any]:
        """Return the fields of a status that are on record here."""
        last, target = record.last, Target.from_plan(self.plan)
        attempts = record.known_attempts
        now = _CLOCK.now()
        hours = [self.request["nodes"] * attempt_seconds([attempt], now) / HOUR for attempt in attempts]
        return {
            "name": self.folder.name,
            "page": f"https://ml.azure.com/runs/{last.job}?wsid={self.wire.workspace.id}" if last.confirmed else None,
            "handle": f"azure://{self.wire.workspace.workspace}/{self.folder.name}",
            "kind": self._kind.name,
            "state": last.state,
            "exit_code": last.exit_code,
            "reason": "\n".join(filter(None, (last.reason, last.not_restarted))) or None,
            "created": record.created,
            "started": last.started,
            "ended": last.ended,
            "observed": None if last.state.terminal else now,
            "attempt": sum(1 + len(attempt.lives) for attempt in record.attempts),
            "attempts": attempts,
            "nodes": self.request["nodes"],
            "node_hours": sum(hours),
            "cost": price_of_attempts(attempts, hours, price_of_machine(self.plan)),
            "steps": target.steps,
            "counts": target.counts,
            "mlflow_run_id": last.job if last.started is not None else None,
            "run_hash": self.plan["run_hash"],
            "tags": self.plan["spec"]["tags"],
        }


def _slow_rank(reports: list[dict[str, Any]], started: float | None) -> str | None:
    """Return the warning of a slow rank in the last reports of an attempt; None: no rank is slow."""
    pace = PaceWatch()
    for report in reports:
        if report["time"] >= (started or 0.0):
            pace.add(report["time"], report["metrics"])
    return pace.warning


def _is_later(started: float | None, known: float) -> bool:
    """Return whether a start is not the known one; None stands for one that is not known yet."""
    return started is None or started > known + CLOCK_SECONDS


def adopt(wire: Wire, folder: RecordFolder) -> None:
    """Create the record of a run that another machine submitted. After an error, no part of it remains.

    Args:
        wire: the workspace of the run.
        folder: of the record; its name is the run's.

    Raises:
        NotFoundError: the workspace has no such run, or its files were deleted.
    """
    wire.location()  # fails with a clear message if the workspace does not exist: a missing job would look the same
    attempts: list[AzureAttempt] = []
    formers: list[dict[str, Any]] = []
    datastore = None
    while (job := wire.job(places.attempt_name(folder.name, len(attempts) + 1))) is not None:
        tags = job["properties"].get("tags") or {}
        datastore = tags.get("orchestrator.datastore")
        created = seconds((job.get("systemData") or {}).get("createdAt")) or time.time()
        resumed = RESUMED_TAG in tags
        attempts.append(AzureAttempt(job=str(job["name"]), intended=created, confirmed=True, resumed=resumed))
        formers.append({**json.loads(tags.get(FORMER_TAG, "{}")), "reason": tags.get(REASON_TAG)})
    if datastore is None:
        trial, place = places.trial_of(folder.name), wire.workspace.workspace
        raise NotFoundError(
            f"unknown run {folder.name!r} in workspace {place}",
            fix=f"orchestrator sweep show azure://{place}/{trial[0]}" if trial else "orchestrator list -b azure",
        )
    files, place = Files(wire, datastore), places.job_folder(folder.name)
    documents = {name: files.read(place + name).decode() for name in (PLAN, REQUEST, SPEC, CONFIG, TAGS)}
    marks = {blob.name for blob in files.list(places.marks_folder(folder.name))}
    try:
        record = RunRecord(created=attempts[0].intended, attempts=(), cancelled=places.CANCELLED in marks)
        for attempt, former in zip(attempts, [*formers[1:], {}], strict=True):
            # Azure reports the end of each, as it did to the machine that followed the run
            record = record.model_copy(update={"attempts": (*record.attempts, attempt)})
            folder.fill(documents, record)
            record = Observer(wire, folder).refresh()
            if "state" in former:  # what only the process knew that submitted the next attempt
                whole = record.last.reason or ""  # of which the tag may have only the beginning
                if former["reason"] is not None and whole.startswith(former["reason"]):
                    former["reason"] = whole
                ended = AzureAttempt.model_validate({**record.last.model_dump(), "step": None, **former})
                record = record.model_copy(update={"attempts": (*record.attempts[:-1], ended)})
                folder.write(record)
    except UserError:
        shutil.rmtree(folder.path, ignore_errors=True)
        raise


def adopt_trial(
    folder: RecordFolder, plan: dict[str, Any], request: dict[str, Any], settings: Settings, created: float
) -> None:
    """Create the record of a trial of Azure's sweep service: a run like any other, except that it cannot be resumed.

    Args:
        folder: of the record; its name is the trial's.
        plan: plan.json of the sweep.
        request: request.json of the sweep.
        settings: of the trial.
        created: seconds since the epoch.
    """
    if (folder.path / REQUEST).is_file():
        return
    layer = ConfigLayer("space", as_tree(settings))
    changed = {part: merge([ConfigLayer("sweep", plan[part]), layer]).tree for part in ("spec", "job")}
    own = {**plan, "name": folder.name, **changed}
    if "train.steps" in settings:
        own["steps"] = settings["train.steps"]
    elif "steps" not in own["job"].get("train", {}) and any(path.startswith("train.") for path in settings):
        own["steps"] = None  # they follow from epochs and rows, which only the job counts
    asked = {**request, "name": folder.name, "job": {}, "max_restarts": 0}
    folder.create({PLAN: json.dumps(own, indent=1), REQUEST: json.dumps(asked, indent=1)}, folder.name, created)
