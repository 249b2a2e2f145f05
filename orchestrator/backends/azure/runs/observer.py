"""How a run on Azure stands: its newest job, what the job has reported, what is on record here."""

from __future__ import annotations

import json
import time
from pathlib import PurePosixPath
from typing import Any

from orchestrator.backends.azure.assets import places
from orchestrator.backends.azure.runs import states
from orchestrator.backends.azure.runs.record import AzureAttempt, Record, RecordFolder
from orchestrator.backends.azure.wire.blobs import Files
from orchestrator.backends.azure.wire.control_plane import Wire
from orchestrator.backends.run_progress import TAIL_BYTES, Target, newest, parse_reports, whole_lines
from orchestrator.estimates.cost import HOUR, price_of
from orchestrator.jobs.kind import JobKind
from orchestrator.jobs.registry import DEFAULT, run_kind
from orchestrator.runs.results import read_results
from orchestrator.runs.status import Attempt, RunState, RunStatus, attempt_seconds
from orchestrator.support.errors import NotFoundError
from orchestrator.support.redact import redact
from train_jobs.artifacts.lineage import METRICS_FILE

NOT_ACCEPTED = "Azure never had the job: it was not submitted"


class Look:
    """Looks at one run.

    Args:
        wire: its workspace.
        folder: its record.
    """

    def __init__(self, wire: Wire, folder: RecordFolder) -> None:
        self._wire = wire
        self._folder = folder
        self._request = folder.document("request.json")
        self._plan = folder.document("plan.json")

    @property
    def _kind(self) -> JobKind:
        return run_kind(self._plan["spec"].get("kind", DEFAULT))

    def files(self) -> Files:
        """The files of its datastore."""
        return Files(self._wire.store(self._request["datastore"]))

    def refresh(self) -> Record:
        """The record, with what Azure says now of the newest attempt."""
        record = self._folder.read()
        if record.last.ended is not None:
            return record
        refreshed = record.with_last(**self._changes(record.last, cancelled=record.cancelled))
        if refreshed != record:
            self._folder.write(refreshed)
        return refreshed

    def _changes(self, attempt: AzureAttempt, *, cancelled: bool) -> dict[str, Any]:
        job = self._wire.job(attempt.job)
        if job is None:
            if attempt.confirmed:
                raise NotFoundError(f"workspace {self._wire.workspace.workspace} has no job {attempt.job} any more")
            return {"state": RunState.FAILED, "reason": NOT_ACCEPTED, "ended": attempt.intended, "exit_code": None}
        state = states.state_of(str(job["properties"].get("status")))
        found: dict[str, Any] = {"confirmed": True, "state": state}
        if state in {RunState.QUEUED, RunState.STARTING} or (state == RunState.RUNNING and attempt.started is not None):
            return found
        details = self._wire.details(attempt.job)
        found["started"] = states.seconds(details.get("startTimeUtc")) or attempt.started
        if state == RunState.RUNNING:
            return {**found, "started": found["started"] or time.time()}
        ending = self._ending(attempt, state, details)
        if cancelled and ending["state"] == RunState.PREEMPTED:  # the machine was quicker: it is ended as was asked
            ending["state"] = RunState.CANCELLED
        return {**found, **ending}

    def _ending(self, attempt: AzureAttempt, state: RunState, details: dict[str, Any]) -> dict[str, Any]:
        """How it ended: by the words that a rank left, else by Azure's."""
        said = states.error_text(details)
        words, code = None, states.exit_code_of(said)
        if state == RunState.FAILED and not states.lost_machine(said):
            words = self._last_words()
        if words is not None:
            code = words[1]
        ending = states.ending_state(state, code, said, preempt=attempt.preempt)
        if ending == RunState.COMPLETED:
            code, reason = 0, None
        else:
            code = code or (states.PREEMPTED_CODE if ending != RunState.FAILED else 1)
            reason = (
                words[0] if words else said or {"cancelled": "cancelled", "preempted": "preempted"}.get(ending.value)
            )
        last = self.last_report()
        started = states.seconds(details.get("startTimeUtc")) or attempt.started
        return {
            "state": ending,
            "exit_code": code,
            "reason": reason,
            "ended": states.seconds(details.get("endTimeUtc")) or time.time(),
            "step": last["step"] if started and last.get("time", 0.0) >= started else None,
        }

    def _last_words(self) -> tuple[str, int] | None:
        folder = places.outputs_folder(self._folder.name)
        names = sorted(blob.name for blob in self.files().list(folder) if blob.name.startswith("error-"))
        found = [states.last_words(self.files().read(folder + name)) for name in names]
        told = [words for words in found if words is not None]
        return next((words for words in told if "error[peer]" not in words[0]), told[0] if told else None)

    def last_report(self) -> dict[str, Any]:
        """The last step that was reported and the newest value of each metric."""
        name = f"{places.outputs_folder(self._folder.name)}{METRICS_FILE}"
        files = self.files()
        size = files.size(name)
        if not size:
            return {}
        start = max(0, size - TAIL_BYTES)
        return newest(parse_reports(whole_lines(files.read(name, start), cut=start > 0)))

    def store(self) -> str | None:
        """The token store that the run prepared, as `--data` takes it; None: it prepares none, or did not complete."""
        if not self._kind.makes_store or self.refresh().last.state != RunState.COMPLETED:
            return None
        name = PurePosixPath(self._result()["store"]).name
        return places.datastore_uri(self._request["datastore"], f"{places.TOKEN_STORES}{name}")

    def _result(self) -> dict[str, Any]:
        """The job's result.json."""
        found: dict[str, Any] = json.loads(self.files().read(f"{places.outputs_folder(self._folder.name)}result.json"))
        return found

    def _queue_trouble(self) -> str | None:
        """Why the cluster has no machine for a queued job, where it says so."""
        name = self._request["cluster"]["name"]
        found = self._wire.compute(name)
        if found is None:
            return f"cluster {name} is not there any more"
        errors = found["properties"]["properties"].get("errors") or []
        said = next((str((one.get("error") or {}).get("message") or "") for one in errors), "")
        return f"cluster {name}: {' '.join(redact(said).split())}" if said else None

    def status(self) -> RunStatus:
        """All that is known of the run. What can change no more is asked of nobody a second time."""
        record = self.refresh()
        if record.final is not None:
            return record.final
        last, state = record.last, record.last.state
        report = self.last_report() if last.started is not None else {}
        world = range(self._request["nodes"] * self._request["processes_per_node"])
        status = RunStatus(
            **self._on_record(record),
            warning=self._queue_trouble() if state == RunState.QUEUED else None,
            eta=Target.of(self._plan).eta(report) if state == RunState.RUNNING else None,
            step=report.get("step"),
            store=self.store(),
            results=read_results(self._result()) if self._kind.scored and state == RunState.COMPLETED else None,
            ranks=dict.fromkeys(world, 0) if state == RunState.COMPLETED else {},
            tracking_uri=self._wire.tracking_uri() if last.started is not None else None,
            metrics=report.get("metrics", {}),
        )
        if state.terminal:
            self._folder.write(record.model_copy(update={"final": status}))
        return status

    def recorded(self, warning: str | None = None) -> RunStatus:
        """What was known when Azure was last asked; it is not asked now.

        Args:
            warning: why not.
        """
        record = self._folder.read()
        return record.final or RunStatus(**self._on_record(record), warning=warning)

    def _on_record(self, record: Record) -> dict[str, Any]:
        """What a status has that this machine knows by itself."""
        last, target = record.last, Target.of(self._plan)
        attempts = [_attempt(one) for one in record.attempts if one.started is not None]
        node_hours = self._request["nodes"] * attempt_seconds(attempts, time.time()) / HOUR
        return {
            "name": self._folder.name,
            "page": f"https://ml.azure.com/runs/{last.job}?wsid={self._wire.workspace.id}" if last.confirmed else None,
            "handle": f"azure://{self._wire.workspace.workspace}/{self._folder.name}",
            "kind": self._kind.name,
            "state": last.state,
            "exit_code": last.exit_code,
            "reason": last.reason,
            "created": record.created,
            "started": last.started,
            "ended": last.ended,
            "attempt": len(record.attempts),
            "attempts": attempts,
            "nodes": self._request["nodes"],
            "node_hours": node_hours,
            "cost": price_of(node_hours, self._plan["compute"].get("price_per_hour")),
            "steps": target.steps,
            "counts": target.counts,
            "mlflow_run_id": last.job if last.started is not None else None,
            "run_hash": self._plan["run_hash"],
            "tags": self._plan["spec"]["tags"],
        }


def _attempt(attempt: AzureAttempt) -> Attempt:
    assert attempt.started is not None
    return Attempt(
        started=attempt.started,
        ended=attempt.ended,
        state=attempt.state,
        exit_code=attempt.exit_code,
        reason=attempt.reason,
        step=attempt.step,
    )
