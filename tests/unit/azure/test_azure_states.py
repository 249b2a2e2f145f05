"""State, exit code and reason of a job, from Azure's report."""

from __future__ import annotations

import json

import pytest

from orchestrator.backends.azure.runs.observer import (
    ending_state,
    error_text,
    exit_code_of,
    is_retryable,
    lost_machine,
    rank_error,
    seconds,
    state_of,
)
from orchestrator.runs.status import RunState


@pytest.mark.parametrize(
    ("status", "state"),
    [
        ("NotStarted", RunState.QUEUED),
        ("Queued", RunState.QUEUED),
        ("Preparing", RunState.STARTING),
        ("Running", RunState.RUNNING),
        ("CancelRequested", RunState.RUNNING),
        ("Finalizing", RunState.RUNNING),
        ("Completed", RunState.COMPLETED),
        ("Failed", RunState.FAILED),
        ("Canceled", RunState.CANCELLED),
        ("SomethingOfTomorrow", RunState.RUNNING),
    ],
)
def test_state_of_maps_azure_status(status: str, state: RunState) -> None:
    assert state_of(status) == state


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("Execution failed. User process '1' exited with status code 2. Please check log file", 2),
        ("process exited with exit code -9", -9),
        ("returned code: 137", 137),
        ("no machine", None),
        (None, None),
    ],
)
def test_exit_code_is_read_from_message(text: str | None, code: int | None) -> None:
    assert exit_code_of(text) == code


@pytest.mark.parametrize(
    ("text", "lost"),
    [
        ("JobNodePreempted: a compute node of the job was preempted.", True),
        ("The low-priority node was evicted", True),
        ("Node tvmps_1 of the job became unusable", True),
        ("Job was cancelled because of reaching maximum execution time", True),
        ("User process '0' exited with status code 1", False),
        ("ModuleNotFoundError: no module node", False),
        (None, False),
    ],
)
def test_lost_machine_is_recognised(text: str | None, lost: bool) -> None:
    assert lost_machine(text) is lost


def test_final_state_of_an_attempt() -> None:
    failed, cancelled = RunState.FAILED, RunState.CANCELLED
    assert ending_state(failed, 1, "exited with status code 1", preempt=False) == failed
    assert ending_state(failed, 75, "exited with status code 75", preempt=False) == RunState.PREEMPTED
    assert ending_state(failed, None, "the node was preempted", preempt=False) == RunState.PREEMPTED
    assert ending_state(cancelled, None, None, preempt=False) == cancelled
    assert ending_state(cancelled, None, None, preempt=True) == RunState.PREEMPTED
    assert ending_state(cancelled, None, "maximum run time", preempt=False) == RunState.PREEMPTED
    assert ending_state(RunState.COMPLETED, None, None, preempt=True) == RunState.COMPLETED


def test_is_retryable_by_state_and_code() -> None:
    assert is_retryable(RunState.FAILED, 1)
    assert is_retryable(RunState.PREEMPTED, 75)
    assert not is_retryable(RunState.FAILED, 2)
    assert not is_retryable(RunState.CANCELLED, 75)
    assert not is_retryable(RunState.COMPLETED, 0)


def test_rank_error_has_text_and_code() -> None:
    details = {"error": {"error": {"code": "UserError", "message": "it\n failed with ?sig=abcdefgh"}}}
    assert error_text(details) == "it failed with ?sig=REDACTED"
    assert error_text({"error": {"error": {"code": "ServiceError", "message": "lost"}}}) == "ServiceError: lost"
    assert error_text({"error": {"error": {"code": "Odd"}}}) == "Odd"
    assert error_text({}) is None
    left = json.dumps({"error": {"kind": "data", "message": "m"}, "text": "error[data]: m"}).encode()
    assert rank_error(left) == ("error[data]: m", 2)
    assert rank_error(left.replace(b'"data"', b'"hang"', 1)) == ("error[data]: m", 76)
    assert rank_error(b"{") is None
    assert rank_error(b"[]") is None


def test_seconds_parses_azure_times() -> None:
    assert seconds("1970-01-01T00:01:00Z") == 60.0
    assert seconds("1970-01-01T01:00:00.5+01:00") == 0.5
    assert seconds(None) is None
