"""End of a job on Azure: its own error, or an eviction, a lost machine, a limit of time, memory or quota, image, mount.

Evidence, in this order: the codes of Azure's error, the exit code of a process of the job, the error file of a rank,
and the times of the job. No word of a message decides: a job may print, and Azure may quote, any word.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, NamedTuple

from orchestrator.runs.restarts import PREEMPTED_CODE, USAGE_CODE, error_cause
from orchestrator.runs.status import EndCause, RunState
from orchestrator.support.redact import redact

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
ENDING_STATUSES = {"Finalizing", "CancelRequested"}  # of jobs that will end without another request
LIMIT_TOLERANCE = 60.0  # seconds before a time limit from which a cancellation is attributed to the limit
# "AzureMLCompute job failed. PreemptionError: Nodes of this job got pre-empted. [...]", with the outer code UserError
# (github.com/Azure/MachineLearningNotebooks/issues/1242, github.com/microsoft/MLOpsPython/issues/346)
EVICTION_CODES = {"PreemptionError", "JobNodePreempted"}
# The run history's codes for errors of the service itself; those of jobs are UserError and ValidationError.
SERVICE_CODES = {"ServiceError", "TransientError", "AzureStorageError", "RequestThrottled"}
# In public reports: AcrRefreshTokenRetrievalError, AggregatedUnauthorizedAccessError (a pull), AZFMountError,
# ScriptExecution.StreamAccess.NotFound. Documented, for endpoints: ImageBuildFailure, OutOfQuota, OutOfCapacity.
_CODE_CAUSES = (
    (EndCause.IMAGE, re.compile(r"Image(Build|Pull)|PullingImage|^Acr[A-Z]|^AggregatedUnauthorizedAccess")),
    (EndCause.MOUNT, re.compile(r"Mount|StreamAccess|DataAccess")),
    (EndCause.QUOTA, re.compile(r"Quota|OutOfCapacity|AllocationFail")),
    (EndCause.MEMORY, re.compile(r"OutOfMemory|OOM|^MemoryError$")),
)
IMAGE_TEMPLATE = "Image build failed"  # begins the template of Azure's message, which quotes nothing
KILLED_CODES = {137, -9}  # SIGKILL, which the kernel sends when memory runs out
KILLED = "killed, as when memory runs out"
_EXIT_CODES = {"spec": USAGE_CODE, "data": USAGE_CODE, "usage": USAGE_CODE, "hang": 76}  # kind of the job's error
_LEADING_CODE = re.compile(r"\s*(?:AzureMLCompute job failed\.?\s+)?([A-Z][A-Za-z.]+):\s")
_EXIT_CODE = re.compile(r"(?:status|exit|return)(?:ed)?[ _-]?code[^0-9-]{0,12}(-?\d+)", re.IGNORECASE)


class RankError(NamedTuple):
    """The error that a rank left in its error file."""

    text: str
    exit_code: int
    cause: EndCause
    is_peer: bool
    """Whether it only reports that another rank failed."""


class JobEnding(NamedTuple):
    """End of an attempt."""

    state: RunState
    exit_code: int | None
    cause: EndCause | None
    reason: str | None


def state_of(status: str) -> RunState:
    """Return the state of a run for a status of Azure's job; running for one that is unknown.

    Azure may add statuses. Taken for final, one would never be asked for again; taken for running, it is.
    """
    return STATES.get(status, RunState.RUNNING)


def error_text(details: Mapping[str, Any]) -> str | None:
    """Return Azure's message about a job's end, on one line, without secrets; None without one."""
    error = _root_error(details)
    text = " ".join(redact(str(error.get("message") or "")).split())
    code = str(error.get("code") or "")
    if not text:
        return code or None
    # nearly every failure of a job has one of these two codes, which explain nothing
    return f"{code}: {text}" if code and code not in {"UserError", "ExecutionFailed"} else text


def error_codes(details: Mapping[str, Any]) -> list[str]:
    """Return the codes of Azure's error: the outer one, the inner ones, and the one that begins its message."""

    def nested(error: Any) -> Iterator[str]:
        while isinstance(error, Mapping):
            if error.get("code"):
                yield str(error["code"])
            error = error.get("innerError")

    error = _root_error(details)
    leading = _LEADING_CODE.match(str(error.get("message") or ""))
    return [*nested(error), *([leading[1]] if leading else [])]


def exit_code_of(text: str | None) -> int | None:
    """Return the job's exit code, if Azure's message has it."""
    match = _EXIT_CODE.search(text or "")
    return int(match[1]) if match else None


def rank_error(document: bytes) -> RankError | None:
    """Return the error that a rank left in error-RANK.json; None if the file is not valid."""
    try:
        found = json.loads(document)
        error = found["error"]
        kind = error["kind"]
        return RankError(redact(str(found["text"])), _EXIT_CODES.get(kind, 1), error_cause(error), kind == "peer")
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def ending_of(
    details: Mapping[str, Any], own: RankError | None, *, limit: float | None = None, preempt: bool = False
) -> JobEnding:
    """Return how a finished job ended.

    Args:
        details: of the job, from the run history.
        own: the error of a rank, written since the job started; None: no rank left one.
        limit: the job's time limit in seconds; None: none.
        preempt: `orchestrator preempt` cancelled it, to simulate a preemption.
    """
    state, text, codes = state_of(str(details.get("status"))), error_text(details), error_codes(details)
    if state == RunState.COMPLETED:
        return JobEnding(state, 0, None, None)
    if EVICTION_CODES.intersection(codes) or (state == RunState.CANCELLED and preempt):
        return JobEnding(RunState.PREEMPTED, PREEMPTED_CODE, EndCause.PREEMPTED, text or "preempted")
    if state == RunState.CANCELLED:
        started, ended = seconds(details.get("startTimeUtc")), seconds(details.get("endTimeUtc"))
        if limit and started and ended and ended - started > limit - LIMIT_TOLERANCE:
            reason = f"it reached its time limit of {limit / 3600:g} h"
            return JobEnding(RunState.PREEMPTED, PREEMPTED_CODE, EndCause.TIME, reason)
        return JobEnding(state, PREEMPTED_CODE, None, text or state.value)
    code = exit_code_of(text)
    # For Azure, any code but 0 is a failure. Peers of a rank that failed by its own error are stopped, some with 75.
    if code == PREEMPTED_CODE and (own is None or own.is_peer):
        return JobEnding(RunState.PREEMPTED, code, EndCause.PREEMPTED, text)
    cause = _cause_of_codes(details, codes)
    if cause is None and code in KILLED_CODES:
        cause, text = EndCause.MEMORY, f"{text} ({KILLED})"
    # Without an exit code and an error of a rank, the service failed, and a job that was running lost its machine. A
    # job that was not (image, mount) is an error: it would fail again.
    unknown = cause is None and code is None
    lost = bool(unknown and SERVICE_CODES.intersection(codes[:1]) and details.get("startTimeUtc"))
    if own is not None and not (own.is_peer and (lost or cause is not None)):
        return JobEnding(RunState.FAILED, own.exit_code, own.cause, own.text)
    if lost:
        return JobEnding(RunState.FAILED, 1, EndCause.MACHINE, text)
    if cause is None:
        cause = EndCause.INPUT if code == USAGE_CODE else EndCause.ERROR
    return JobEnding(RunState.FAILED, code or 1, cause, text)


def _cause_of_codes(details: Mapping[str, Any], codes: list[str]) -> EndCause | None:
    """Return the cause that Azure's codes or the template of its message name; None: they name none."""
    if str(_root_error(details).get("messageFormat") or "").startswith(IMAGE_TEMPLATE):
        return EndCause.IMAGE
    return next((cause for cause, pattern in _CODE_CAUSES if any(map(pattern.search, codes))), None)


def seconds(time: Any) -> float | None:
    """Return a time in Azure's format (ISO 8601) in seconds since the epoch; None without one."""
    return datetime.fromisoformat(str(time).replace("Z", "+00:00")).timestamp() if time else None


def _root_error(details: Mapping[str, Any]) -> Mapping[str, Any]:
    return (details.get("error") or {}).get("error") or {}
