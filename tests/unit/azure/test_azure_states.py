"""How a job stands, out of what Azure says."""

from __future__ import annotations

import json

import pytest

from orchestrator.backends.azure.runs.states import (
    ending_state,
    error_text,
    exit_code_of,
    last_words,
    lost_machine,
    seconds,
    state_of,
    worth_another,
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
def test_states(status: str, state: RunState) -> None:
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
def test_exit_codes(text: str | None, code: int | None) -> None:
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
def test_lost_machines(text: str | None, lost: bool) -> None:
    assert lost_machine(text) is lost


def test_how_an_attempt_ended() -> None:
    failed, cancelled = RunState.FAILED, RunState.CANCELLED
    assert ending_state(failed, 1, "exited with status code 1", preempt=False) == failed
    assert ending_state(failed, 75, "exited with status code 75", preempt=False) == RunState.PREEMPTED
    assert ending_state(failed, None, "the node was preempted", preempt=False) == RunState.PREEMPTED
    assert ending_state(cancelled, None, None, preempt=False) == cancelled
    assert ending_state(cancelled, None, None, preempt=True) == RunState.PREEMPTED
    assert ending_state(cancelled, None, "maximum run time", preempt=False) == RunState.PREEMPTED
    assert ending_state(RunState.COMPLETED, None, None, preempt=True) == RunState.COMPLETED


def test_what_is_tried_again() -> None:
    assert worth_another(RunState.FAILED, 1)
    assert worth_another(RunState.PREEMPTED, 75)
    assert not worth_another(RunState.FAILED, 2)
    assert not worth_another(RunState.CANCELLED, 75)
    assert not worth_another(RunState.COMPLETED, 0)


def test_words() -> None:
    details = {"error": {"error": {"code": "UserError", "message": "it\n failed with ?sig=abcdefgh"}}}
    assert error_text(details) == "it failed with ?sig=REDACTED"
    assert error_text({"error": {"error": {"code": "ServiceError", "message": "lost"}}}) == "ServiceError: lost"
    assert error_text({"error": {"error": {"code": "Odd"}}}) == "Odd"
    assert error_text({}) is None
    left = json.dumps({"error": {"kind": "data", "message": "m"}, "text": "error[data]: m"}).encode()
    assert last_words(left) == ("error[data]: m", 2)
    assert last_words(left.replace(b'"data"', b'"hang"', 1)) == ("error[data]: m", 76)
    assert last_words(b"{") is None
    assert last_words(b"[]") is None


def test_times() -> None:
    assert seconds("1970-01-01T00:01:00Z") == 60.0
    assert seconds("1970-01-01T01:00:00.5+01:00") == 0.5
    assert seconds(None) is None
