"""How a job stands, out of what Azure says of it: state, exit code, reason, whether another attempt may end better."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from orchestrator.runs.status import RunState
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
PREEMPTED_CODE = 75  # train_jobs.pretrain: stopped by SIGTERM, checkpoint committed
USAGE_CODE = 2  # wrong input: the next attempt would end alike
_CODES = {"spec": USAGE_CODE, "data": USAGE_CODE, "usage": USAGE_CODE, "hang": 76}  # of the job's kinds of error
_LOST = re.compile(
    r"preempt|evict|low.?priority|node\w* (?:\S+ ){0,6}(?:lost|unusable|unhealthy|failed|unreachable|went away)"
    r"|(?:lost|unusable|unhealthy) node|spot|maximum (?:run|execution) time|time.?out|timed out",
    re.IGNORECASE,
)
_CODE = re.compile(r"(?:status|exit|return)(?:ed)?[ _-]?code[^0-9-]{0,12}(-?\d+)", re.IGNORECASE)


def state_of(status: str) -> RunState:
    """One of Azure's states as one of ours; one that nobody here knows is taken as running."""
    return STATES.get(status, RunState.RUNNING)


def error_text(details: Mapping[str, Any]) -> str | None:
    """What Azure says went wrong, on one line, without secrets; None: nothing."""
    error = (details.get("error") or {}).get("error") or {}
    text = " ".join(redact(str(error.get("message") or "")).split())
    code = str(error.get("code") or "")
    if not text:
        return code or None
    return f"{code}: {text}" if code and code not in {"UserError", "ExecutionFailed"} else text


def exit_code_of(text: str | None) -> int | None:
    """The job's exit code, where Azure's words have it."""
    match = _CODE.search(text or "")
    return int(match[1]) if match else None


def lost_machine(text: str | None) -> bool:
    """Whether Azure took the machine away, or it broke down: the job did nothing wrong."""
    return bool(_LOST.search(text or ""))


def ending_state(state: RunState, code: int | None, text: str | None, *, preempt: bool) -> RunState:
    """How an attempt ended.

    Args:
        state: by Azure's status alone.
        code: the job's exit code.
        text: what Azure says went wrong.
        preempt: it was cancelled to play a preemption.
    """
    if state == RunState.CANCELLED and preempt:
        return RunState.PREEMPTED
    if state == RunState.FAILED and (code == PREEMPTED_CODE or lost_machine(text)):
        return RunState.PREEMPTED
    if state == RunState.CANCELLED and lost_machine(text):
        return RunState.PREEMPTED
    return state


def worth_another(state: RunState, code: int | None) -> bool:
    """Whether another attempt may end better: not after success, a cancel, or with input that stays wrong."""
    return state in {RunState.FAILED, RunState.PREEMPTED} and code != USAGE_CODE


def seconds(time: Any) -> float | None:
    """Seconds since the epoch of a time as Azure writes it."""
    if not time:
        return None
    return datetime.fromisoformat(str(time).replace("Z", "+00:00")).timestamp()


def last_words(document: bytes) -> tuple[str, int] | None:
    """The text that a rank left in error-RANK.json, and the exit code that goes with it; None: it left none."""
    try:
        found = json.loads(document)
        return redact(str(found["text"])), _CODES.get(found["error"]["kind"], 1)
    except (ValueError, KeyError, TypeError):
        return None
