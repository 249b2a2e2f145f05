"""State, exit code and reason of a job, from Azure's report."""

from __future__ import annotations

import json
from typing import Any

import pytest

from orchestrator.backends.azure.runs.endings import (
    RankError,
    ending_of,
    error_codes,
    error_text,
    exit_code_of,
    rank_error,
    seconds,
    state_of,
)
from orchestrator.runs.status import EndCause, RunState


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


def ended(message: str, code: str = "UserError", **more: Any) -> dict[str, Any]:
    """Return the details of a failed job."""
    return {"status": "Failed", "error": {"error": {"code": code, "message": message}}, **more}


START, END = "2026-01-01T00:00:00Z", "2026-01-01T06:00:00Z"
REAL = (
    "AzureMLCompute job failed.\nPreemptionError: Nodes of this job got pre-empted. Check if the run has failed or"
    " restarted. Reason: Received pre-emption warning signal"
)
OWN = RankError("error[training]: no", 1, EndCause.ERROR, is_peer=False)
PEER = OWN._replace(is_peer=True)


@pytest.mark.parametrize(
    "text",
    [
        "FileNotFoundError: /mnt/data/hotspots.csv",
        "Execution failed. User process '0' exited with status code 1. NCCL watchdog: timeout, timed out",
        "AzureMLCompute job failed.\nExecutionFailed: the node was evicted from spot, preempted\n\texit_codes: 1",
        "I saw PreemptionError: once",
        "the image was built, the mount is there, out of memory, exceeded quota",
    ],
)
@pytest.mark.parametrize("code", ["UserError", "ServiceError"])
def test_no_word_of_a_message_makes_a_preemption(text: str, code: str) -> None:
    for own in (None, OWN):
        ending = ending_of(ended(text, code), own)
        assert (ending.state, ending.cause) == (RunState.FAILED, EndCause.ERROR)


@pytest.mark.parametrize(
    "details",
    [
        ended(REAL),
        ended(REAL.replace("\n", " ")),
        ended("JobNodePreempted: a compute node of the job was preempted.", "ServiceError"),
        {"status": "Failed", "error": {"error": {"code": "UserError", "innerError": {"code": "PreemptionError"}}}},
    ],
)
def test_code_of_azure_makes_a_preemption(details: dict[str, Any]) -> None:
    for own in (None, PEER):
        ending = ending_of(details, own)
        assert (ending.state, ending.exit_code, ending.cause) == (RunState.PREEMPTED, 75, EndCause.PREEMPTED)


@pytest.mark.parametrize(
    ("message", "cause"),
    [
        ("AzureMLCompute job failed.\nAcrRefreshTokenRetrievalError: Unable to retrieve a token, timed out", "image"),
        ("AzureMLCompute job failed.\nAggregatedUnauthorizedAccessError: Failed to pull Docker image x", "image"),
        ("ImageBuildFailure: timed out", "image"),
        ("AzureMLCompute job failed. AZFMountError: unable to mount Azure File", "mount"),
        ("ScriptExecution.StreamAccess.NotFound: The requested stream was not found", "mount"),
        ("DataMountError: time-out of a low-priority node", "mount"),
        ("OutOfQuota: 96 cores", "quota"),
        ("AllocationFailed: no machine", "quota"),
        ("AzureMLCompute job failed.\nOOMKilled: the container", "memory"),
        ("Execution failed. User process '0' exited with status code 137", "memory"),
        ("Execution failed. User process '0' exited with status code -9", "memory"),
    ],
)
@pytest.mark.parametrize("code", ["UserError", "ServiceError"])
def test_codes_tell_image_mount_quota_and_memory(message: str, cause: str, code: str) -> None:
    for own in (None, PEER):
        ending = ending_of(ended(message, code, startTimeUtc=START), own)
        assert (ending.state, ending.cause) == (RunState.FAILED, EndCause(cause))
    assert ending_of(ended(message, code), OWN).cause == EndCause.ERROR, "the error of a rank is closer to the cause"


def test_template_of_azure_tells_a_failed_image_build() -> None:
    failed = ended("Image build failed. For more details, check log file azureml-logs/20_image_build_log.txt.")
    assert ending_of(failed, None).cause == EndCause.ERROR, "a job may print these words"
    failed["error"]["error"]["messageFormat"] = "Image build failed. For more details, check log file {ArtifactPath}."
    assert ending_of(failed, None).cause == EndCause.IMAGE


def test_codes_are_nested_and_leading() -> None:
    details = ended(REAL)
    details["error"]["error"]["innerError"] = {"code": "BadArgument", "innerError": {"code": "Deepest"}}
    assert error_codes(details) == ["UserError", "BadArgument", "Deepest", "PreemptionError"]
    assert error_codes({}) == []


def test_service_error_of_a_running_job_lost_its_machine() -> None:
    lost = ended("the node does not answer", "ServiceError", startTimeUtc=START)
    assert ending_of(lost, None).cause == ending_of(lost, PEER).cause == EndCause.MACHINE
    assert ending_of(lost, OWN).cause == EndCause.ERROR
    never_ran = ended("the image cannot be built", "ServiceError")
    assert ending_of(never_ran, None).cause == EndCause.ERROR


def test_error_of_a_rank_is_the_cause() -> None:
    message = "Execution failed. User process '0' exited with status code 1"
    full = OWN._replace(cause=EndCause.DISK)
    assert ending_of(ended(message), full) == (RunState.FAILED, 1, EndCause.DISK, "error[training]: no")
    assert ending_of(ended(message), None) == (RunState.FAILED, 1, EndCause.ERROR, message)
    assert ending_of(ended(message.replace("code 1", "code 2")), None).cause == EndCause.INPUT
    stopped = ended(message.replace("code 1", "code 75"))
    assert [ending_of(stopped, own).state for own in (None, PEER)] == [RunState.PREEMPTED] * 2
    # its peers are stopped when a rank fails: their code does not hide its error
    assert ending_of(stopped, OWN) == (RunState.FAILED, 1, EndCause.ERROR, OWN.text)


def test_cancelled_job_ended_by_its_user_or_its_limit() -> None:
    cancelled = {"status": "Canceled", "startTimeUtc": START, "endTimeUtc": END}
    assert ending_of(cancelled, None, limit=7 * 3600.0) == (RunState.CANCELLED, 75, None, "cancelled")
    reached = ending_of(cancelled, None, limit=6 * 3600.0)
    assert reached == (RunState.PREEMPTED, 75, EndCause.TIME, "it reached its time limit of 6 h")
    assert ending_of(cancelled, None, preempt=True).state == RunState.PREEMPTED
    assert ending_of({"status": "Completed"}, None, preempt=True) == (RunState.COMPLETED, 0, None, None)


def test_rank_error_has_text_and_code() -> None:
    details = {"error": {"error": {"code": "UserError", "message": "it\n failed with ?sig=abcdefgh"}}}
    assert error_text(details) == "it failed with ?sig=REDACTED"
    assert error_text({"error": {"error": {"code": "ServiceError", "message": "lost"}}}) == "ServiceError: lost"
    assert error_text({"error": {"error": {"code": "Odd"}}}) == "Odd"
    assert error_text({}) is None
    left = json.dumps({"error": {"kind": "data", "message": "m"}, "text": "error[data]: m"}).encode()
    assert rank_error(left) == ("error[data]: m", 2, EndCause.INPUT, False)
    assert rank_error(left.replace(b'"data"', b'"hang"', 1)) == ("error[data]: m", 76, EndCause.ERROR, False)
    assert rank_error(left.replace(b'"data"', b'"peer"', 1)) == ("error[data]: m", 1, EndCause.ERROR, True)
    assert rank_error(b"{") is None
    assert rank_error(b"[]") is None


def test_seconds_parses_azure_times() -> None:
    assert seconds("1970-01-01T00:01:00Z") == 60.0
    assert seconds("1970-01-01T01:00:00.5+01:00") == 0.5
    assert seconds(None) is None
