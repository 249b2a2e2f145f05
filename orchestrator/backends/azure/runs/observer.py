"""Status of a run on Azure: from Azure's report of its newest job, the job's own files, and the record here.

Runs that were submitted elsewhere are adopted: their record here is made from their files and tags in the workspace.
"""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Mapping
from datetime import datetime
from pathlib import PurePosixPath
from typing import Any

from orchestrator.backends.azure import places
from orchestrator.backends.azure.runs.record import AzureAttempt, RecordFolder, RunRecord
from orchestrator.backends.azure.wire.blobs import Files
from orchestrator.backends.azure.wire.control_plane import Wire
from orchestrator.backends.base import CONFIG, PLAN, REQUEST, RESULT, SPEC, TAGS
from orchestrator.backends.run_progress import TAIL_BYTES, Target, complete_lines, newest, parse_reports
from orchestrator.estimates.cost import HOUR, price_of
from orchestrator.jobs.kind import JobKind
from orchestrator.jobs.registry import DEFAULT, run_kind
from orchestrator.runs.results import read_results
from orchestrator.runs.status import RunAttempt, RunState, RunStatus, attempt_seconds
from orchestrator.specs.settings import Settings
from orchestrator.specs.sweep_spec import as_tree
from orchestrator.support.errors import NotFoundError, UserError
from orchestrator.support.redact import redact
from train_jobs.artifacts.layers import ConfigLayer, merge
from train_jobs.artifacts.lineage import METRICS_FILE

STATES = {
    "NotStarted": RunState.QUEUED,
    "Queued": RunState.QUEUED,
    "Paused": RunState.QUEUED,
    "Provisioning": RunState.STARTING,
    "Preparing": RunState.STARTING,
    "Starting": RunState.STARTING,
    "Running": RunState.RUNNING,
    "Finalizing": RunState.RUNNING,
    "CancelRequested": RunState.RUNNING,
    "NotResponding": RunState.RUNNING,
    "Completed": RunState.COMPLETED,
    "Failed": RunState.FAILED,
    "Canceled": RunState.CANCELLED,
}
PREEMPTED_CODE = 75  # exit code of train_jobs.pretrain: stopped by SIGTERM, checkpoint committed
USAGE_CODE = 2  # invalid input: the next attempt would fail in the same way
NOT_ACCEPTED = "Azure never had the job: it was not submitted"
_CODES = {"spec": USAGE_CODE, "data": USAGE_CODE, "usage": USAGE_CODE, "hang": 76}  # kind of the job's error -> code
# Azure reports the loss of a machine as a failed or cancelled job; only the text of the error distinguishes it from a
# failure of the job. A job that reached the time limit of its machines is restarted too: it can resume.
_LOST = re.compile(
    r"preempt|evict|low.?priority|node\w* (?:\S+ ){0,6}(?:lost|unusable|unhealthy|failed|unreachable|went away)"
    r"|(?:lost|unusable|unhealthy) node|spot|maximum (?:run|execution) time|time.?out|timed out",
    re.IGNORECASE,
)
_CODE = re.compile(r"(?:status|exit|return)(?:ed)?[ _-]?code[^0-9-]{0,12}(-?\d+)", re.IGNORECASE)


def state_of(status: str) -> RunState:
    """Return the state of a run for a status of Azure's job; running for one that is unknown.

    Azure may add statuses. Taken for final, one would never be asked for again; taken for running, it is.
    """
    return STATES.get(status, RunState.RUNNING)


def error_text(details: Mapping[str, Any]) -> str | None:
    """Return Azure's message about a job's end, on one line, without secrets; None without one."""
    error = (details.get("error") or {}).get("error") or {}
    text = " ".join(redact(str(error.get("message") or "")).split())
    code = str(error.get("code") or "")
    if not text:
        return code or None
    # nearly every failure of a job has one of these two codes, which explain nothing
    return f"{code}: {text}" if code and code not in {"UserError", "ExecutionFailed"} else text


def exit_code_of(text: str | None) -> int | None:
    """Return the job's exit code, if Azure's message has it."""
    match = _CODE.search(text or "")
    return int(match[1]) if match else None


def lost_machine(text: str | None) -> bool:
    """Return whether a message reports the loss of a machine, by eviction or failure: the job itself did not fail."""
    return bool(_LOST.search(text or ""))


def ending_state(state: RunState, code: int | None, text: str | None, *, preempt: bool) -> RunState:
    """Return the state in which an attempt ended.

    Args:
        state: the state by Azure's status alone.
        code: the job's exit code.
        text: Azure's message.
        preempt: it was cancelled to simulate a preemption.
    """
    by_user = state == RunState.CANCELLED and preempt  # `orchestrator preempt` cancels the job
    stopped = state == RunState.FAILED and code == PREEMPTED_CODE  # for Azure, any code but 0 is a failure
    lost = state in {RunState.FAILED, RunState.CANCELLED} and lost_machine(text)
    return RunState.PREEMPTED if by_user or stopped or lost else state


def is_retryable(state: RunState, code: int | None) -> bool:
    """Return whether another attempt may end better: not after success, a cancel, or with input that stays wrong."""
    return state in {RunState.FAILED, RunState.PREEMPTED} and code != USAGE_CODE


def seconds(time: Any) -> float | None:
    """Return a time in Azure's format (ISO 8601) in seconds since the epoch; None without one."""
    return datetime.fromisoformat(str(time).replace("Z", "+00:00")).timestamp() if time else None


def rank_error(document: bytes) -> tuple[str, int] | None:
    """Return the text that a rank left in error-RANK.json, and its exit code; None if the file is not valid."""
    try:
        found = json.loads(document)
        return redact(str(found["text"])), _CODES.get(found["error"]["kind"], 1)
    except (ValueError, KeyError, TypeError):
        return None


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
        return Files(self.wire.store(self.request["datastore"]))

    def output(self, name: str) -> bytes:
        """Return the content of a file that the job wrote.

        Raises:
            NotFoundError: it does not exist.
        """
        return self.files().read(self._outputs + name)

    def refresh(self) -> RunRecord:
        """Return the record after asking Azure about the newest attempt; a finished attempt never changes.

        Raises:
            NotFoundError: the job was deleted from the workspace.
            StorageError: the record is damaged.
            UserError: Azure cannot be reached, or refused.
        """
        record = self.folder.read()
        if record.last.ended is not None:
            return record
        refreshed = record.with_last(**self._changes(record.last, cancelled=record.cancelled))
        if refreshed != record:
            self.folder.write(refreshed)
        return refreshed

    def _changes(self, attempt: AzureAttempt, *, cancelled: bool) -> dict[str, Any]:
        job = self.wire.job(attempt.job)
        if job is None:
            # Confirmed once and missing now: deleted. Never confirmed: the request was lost, and the attempt ended
            # before it began.
            if attempt.confirmed:
                raise NotFoundError(f"job {attempt.job} was deleted from workspace {self.wire.workspace.workspace}")
            return {"state": RunState.FAILED, "reason": NOT_ACCEPTED, "ended": attempt.intended, "exit_code": None}
        state = state_of(str(job["properties"].get("status")))
        found: dict[str, Any] = {"confirmed": True, "state": state}
        # a second request, to the run history, is needed only for the start and the end of an attempt
        if state in {RunState.QUEUED, RunState.STARTING} or (state == RunState.RUNNING and attempt.started is not None):
            return found
        details = self.wire.details(attempt.job)
        found["started"] = seconds(details.get("startTimeUtc")) or attempt.started
        if state == RunState.RUNNING:
            return {**found, "started": found["started"] or time.time()}
        found |= self._ending(attempt, state, details)
        # an eviction may end the job before the user's cancel does: a restart would ignore what the user asked for
        if cancelled and found["state"] == RunState.PREEMPTED:
            found["state"] = RunState.CANCELLED
        return found

    def _ending(self, attempt: AzureAttempt, state: RunState, details: dict[str, Any]) -> dict[str, Any]:
        """Return state, exit code and reason of an attempt's end: from a rank's error, else from Azure's message."""
        # A rank's own error names the cause, while Azure reports only an exit code. Not after the loss of a machine:
        # the errors of the surviving ranks would report a lost peer, or belong to an earlier attempt.
        message = error_text(details)
        own = self._rank_error() if state == RunState.FAILED and not lost_machine(message) else None
        reason, code = own or (message, exit_code_of(message))
        ending = ending_state(state, code, message, preempt=attempt.preempt)
        if ending == RunState.COMPLETED:
            code, reason = 0, None
        else:
            code = code or (PREEMPTED_CODE if ending != RunState.FAILED else 1)
            reason = reason or (None if ending == RunState.FAILED else ending.value)
        last = self.last_report()
        started = seconds(details.get("startTimeUtc")) or attempt.started
        return {
            "state": ending,
            "exit_code": code,
            "reason": reason,
            "ended": seconds(details.get("endTimeUtc")) or time.time(),
            "step": last["step"] if started and last.get("time", 0.0) >= started else None,
        }

    def _rank_error(self) -> tuple[str, int] | None:
        names = sorted(blob.name for blob in self.files().list(self._outputs) if blob.name.startswith("error-"))
        errors = [error for name in names if (error := rank_error(self.output(name))) is not None]
        # the error of a rank that only lost its peers is not the cause
        return next((error for error in errors if "error[peer]" not in error[0]), errors[0] if errors else None)

    def last_report(self) -> dict[str, Any]:
        """Return the last reported step and the newest value of each metric, see `newest`."""
        files, name = self.files(), self._outputs + METRICS_FILE
        size = files.size(name)
        if not size:
            return {}
        start = max(0, size - TAIL_BYTES)
        return newest(parse_reports(complete_lines(files.read(name, start), cut=start > 0)))

    def store(self) -> str | None:
        """Return the token store that the run prepared, as `--data` takes it; None: it prepared none (yet)."""
        if not self._kind.makes_store or self.refresh().last.state != RunState.COMPLETED:
            return None
        name = PurePosixPath(json.loads(self.output(RESULT))["store"]).name
        return places.datastore_uri(self.request["datastore"], f"{places.TOKEN_STORES}{name}")

    def _queue_problem(self) -> str | None:
        """Return the reason why the cluster has no machine for a queued job, if Azure reports one."""
        name = self.request["cluster"]["name"]
        found = self.wire.compute(name)
        if found is None:
            return f"cluster {name} was deleted"
        errors = found["properties"]["properties"].get("errors") or [{}]
        message = (errors[0].get("error") or {}).get("message")
        return f"cluster {name}: {' '.join(redact(str(message)).split())}" if message else None

    def status(self) -> RunStatus:
        """Return the status; a final one is read from the record, without asking Azure again.

        Raises:
            NotFoundError: the job was deleted from the workspace.
            StorageError: the record is damaged.
            UserError: Azure cannot be reached, or refused.
        """
        record = self.refresh()
        if record.final is not None:
            return record.final
        last, state = record.last, record.last.state
        report = self.last_report() if last.started is not None else {}
        completed = state == RunState.COMPLETED
        world = range(self.request["nodes"] * self.request["processes_per_node"])
        status = RunStatus(
            **self._recorded_facts(record),
            warning=self._queue_problem() if state == RunState.QUEUED else None,
            eta=Target.from_plan(self.plan).eta(report) if state == RunState.RUNNING else None,
            step=report.get("step"),
            store=self.store(),
            results=read_results(json.loads(self.output(RESULT))) if self._kind.scored and completed else None,
            ranks=dict.fromkeys(world, 0) if completed else {},
            tracking_uri=self.wire.tracking_uri() if last.started is not None else None,
            metrics=report.get("metrics", {}),
        )
        if state.terminal:  # `list` shows hundreds of finished runs: each costs requests only once
            self.folder.write(record.model_copy(update={"final": status}))
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
        attempts = [
            RunAttempt.model_validate(one.model_dump(include={*RunAttempt.model_fields}))
            for one in record.attempts
            if one.started is not None
        ]
        node_hours = self.request["nodes"] * attempt_seconds(attempts, time.time()) / HOUR
        return {
            "name": self.folder.name,
            "page": f"https://ml.azure.com/runs/{last.job}?wsid={self.wire.workspace.id}" if last.confirmed else None,
            "handle": f"azure://{self.wire.workspace.workspace}/{self.folder.name}",
            "kind": self._kind.name,
            "state": last.state,
            "exit_code": last.exit_code,
            "reason": last.reason,
            "created": record.created,
            "started": last.started,
            "ended": last.ended,
            "attempt": len(record.attempts),
            "attempts": attempts,
            "nodes": self.request["nodes"],
            "node_hours": node_hours,
            "cost": price_of(node_hours, self.plan["compute"].get("price_per_hour")),
            "steps": target.steps,
            "counts": target.counts,
            "mlflow_run_id": last.job if last.started is not None else None,
            "run_hash": self.plan["run_hash"],
            "tags": self.plan["spec"]["tags"],
        }


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
    datastore = None
    while (job := wire.job(places.attempt_name(folder.name, len(attempts) + 1))) is not None:
        datastore = (job["properties"].get("tags") or {}).get("orchestrator.datastore")
        created = seconds((job.get("systemData") or {}).get("createdAt")) or time.time()
        attempts.append(AzureAttempt(job=str(job["name"]), intended=created, confirmed=True))
    if datastore is None:
        trial, place = places.trial_of(folder.name), wire.workspace.workspace
        raise NotFoundError(
            f"unknown run {folder.name!r} in workspace {place}",
            fix=f"orchestrator sweep show azure://{place}/{trial[0]}" if trial else "orchestrator list -b azure",
        )
    files, place = Files(wire.store(datastore)), places.job_folder(folder.name)
    documents = {name: files.read(place + name).decode() for name in (PLAN, REQUEST, SPEC, CONFIG, TAGS)}
    try:
        record = RunRecord(created=attempts[0].intended, attempts=())
        for attempt in attempts:  # Azure reports the end of each, as it did to the machine that followed the run
            record = record.model_copy(update={"attempts": (*record.attempts, attempt)})
            folder.fill(documents, record)
            record = Observer(wire, folder).refresh()
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
