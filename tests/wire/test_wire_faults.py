"""Faults that a test can inject, seen by the unmodified client."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from azure.core.exceptions import ClientAuthenticationError, HttpResponseError
from wire_entities import cluster, data, get_json, job, prepare

from orchestrator.testing import AzureDouble


@pytest.mark.parametrize("status", [429, 500, 503])
def test_client_retries(azure: AzureDouble, ml: Any, status: int) -> None:
    azure.fail_next("GET */workspaces/double", status=status, retry_after=0.01, times=2)
    assert ml.workspaces.get().name == "double"
    assert [call.status for call in azure.requests("GET */workspaces/double")] == [status, status, 200]
    assert azure.faults.left == []


def test_refused_access_is_reported_immediately(azure: AzureDouble, ml: Any) -> None:
    azure.fail_next("GET */computes", status=403)
    with pytest.raises(HttpResponseError, match="AuthorizationFailed"):
        list(ml.compute.list())
    assert len(azure.requests("GET */computes")) == 1


def test_fault_with_a_custom_message(azure: AzureDouble, ml: Any) -> None:
    azure.fail_next("PUT */computes/*", status=409, code="ClusterNameConflict", message="taken")
    with pytest.raises(HttpResponseError, match=r"\(ClusterNameConflict\) taken"):
        ml.compute.begin_create_or_update(cluster()).result()
    assert list(ml.compute.list()) == []


def test_expired_token_is_refused_until_renewed(azure: AzureDouble, client: Any, ml: Any) -> None:
    assert ml.workspaces.get().name == "double"
    azure.expire_tokens()
    with pytest.raises(ClientAuthenticationError, match="InvalidAuthenticationToken"):
        ml.workspaces.get()
    assert client(azure).workspaces.get().name == "double"


def test_client_renews_a_token_before_it_expires(azure: AzureDouble, ml: Any) -> None:
    azure.login.lifetime = 1
    for _ in range(3):
        assert ml.workspaces.get().name == "double"
    assert len(azure.requests("POST login.*/token")) == 3


def test_wrong_secret_is_refused(azure: AzureDouble, client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_CLIENT_SECRET", "wrong")
    with pytest.raises(ClientAuthenticationError, match="Invalid client secret"):
        client(azure).workspaces.get()


@pytest.mark.parametrize("when", ["connection", "upload", "reply"])
def test_interrupted_upload_is_finally_complete(azure: AzureDouble, when: str) -> None:
    from azure.storage.blob import BlobServiceClient, LinearRetry

    azure.reset_next("PUT *.blob.*text.txt*", when=when, times=2)
    content = bytes(range(256)) * 100
    waits_not = LinearRetry(backoff=0, random_jitter_range=0)  # MLClient's own would wait 15 s
    url = f"https://{azure.place.blob_host}"
    with BlobServiceClient(url, azure.storage.key, retry_policy=waits_not, max_single_put_size=10_000) as service:
        blob = service.get_blob_client("azureml", "folder/text.txt")
        blob.upload_blob(content, max_concurrency=1)
        assert blob.download_blob().readall() == content
    assert [call.status for call in azure.requests("PUT *.blob.*text.txt")][:3] == [None, None, 201]


@pytest.mark.slow
def test_upload_of_an_asset_survives_a_reset(azure: AzureDouble, ml: Any, tmp_path: Path) -> None:
    azure.reset_next("PUT *.blob.*text.txt", when="upload")
    ml.data.create_or_update(data(tmp_path / "corpus"))
    assert next(azure.folder().glob("LocalUpload/*/corpus/text.txt")).read_text() == "some text\n"


def test_lost_reply_to_a_job_makes_no_second_one(azure: AzureDouble, ml: Any, code: Path, tmp_path: Path) -> None:
    prepare(ml, tmp_path)
    azure.reset_next("PUT */jobs/one", when="reply")
    ml.jobs.create_or_update(job("one", code))  # azure-core repeats a PUT
    assert [call.status for call in azure.requests("PUT */jobs/one")] == [None, 200]
    assert [found.name for found in azure.jobs.all()] == ["one"]


def test_cluster_that_cannot_be_created_has_an_error(azure: AzureDouble, ml: Any) -> None:
    azure.fail_compute("gpu", code="ClusterCreationFailed", message="no subnet")
    with pytest.raises(HttpResponseError, match="no subnet"):
        ml.compute.begin_create_or_update(cluster()).result()
    assert ml.compute.get("gpu").provisioning_state == "Failed"


def test_quota_limits_nodes(azure: AzureDouble, ml: Any) -> None:
    azure.set_quota("standardNDSH100v5Family", 96)
    with pytest.raises(HttpResponseError, match=r"vCPU quota of 96 .* needs 192"):
        ml.compute.begin_create_or_update(cluster()).result()
    ml.compute.begin_create_or_update(cluster(max_instances=1, min_instances=1)).result()
    # the client's own Usage.current_value stays None: it keeps the service's spelling
    (usage,) = [found for found in ml.compute.list_usage() if found.name["value"] == "standardNDSH100v5Family"]
    assert (usage.currentValue, usage.limit) == (96, 96)


def test_size_missing_in_the_region_is_refused(azure: AzureDouble, ml: Any) -> None:
    with pytest.raises(HttpResponseError, match="Standard_NC6 is not supported in eastus"):
        ml.compute.begin_create_or_update(cluster(size="Standard_NC6")).result()
    assert "Standard_NC4as_T4_v3" in [size.name for size in ml.compute.list_sizes()]


SLEEPS: dict[str, Any] = {
    "command": "sleep 600",
    "inputs": {},
    "outputs": {},
    "instance_count": 1,
    "distribution": None,
}


def nodes(azure: AzureDouble) -> tuple[int, int, list[str]]:
    """Return the nodes of a cluster, its running nodes, and its errors."""
    cluster = get_json(azure, "computes/gpu", "2023-08-01-preview")["properties"]["properties"]
    codes = [found["error"]["code"] for found in cluster.get("errors", [])]
    return cluster["currentNodeCount"], cluster["nodeStateCounts"]["runningNodeCount"], codes


def test_job_waits_in_queue_for_capacity_and_its_turn(
    running_azure: AzureDouble, client: Any, code: Path, tmp_path: Path
) -> None:
    ml = client(running_azure)
    prepare(ml, tmp_path)
    running_azure.hold_queue()
    running_azure.without_capacity("gpu")
    ml.jobs.create_or_update(job("one", code, **{**SLEEPS, "instance_count": 2}))
    with pytest.raises(TimeoutError, match="one is still Queued"):
        running_azure.wait("one", ["Running"], seconds=0.3)
    running_azure.hold_queue(False)
    with pytest.raises(TimeoutError, match="one is still Queued"):
        running_azure.wait("one", ["Running"], seconds=0.3)
    assert nodes(running_azure) == (0, 0, ["AllocationFailed"])
    running_azure.without_capacity("gpu", False)
    assert running_azure.wait("one", ["Running"]) == "Running"
    assert nodes(running_azure) == (2, 2, [])
    ml.jobs.create_or_update(job("two", code, **{**SLEEPS, "command": "true"}))
    with pytest.raises(TimeoutError, match="two is still Queued"):  # the other job has both nodes
        running_azure.wait("two", ["Running"], seconds=0.3)
    running_azure.preempt("one")
    assert running_azure.wait("two") == "Completed"
    ml.compute.begin_create_or_update(cluster(min_instances=1)).result()
    assert nodes(running_azure) == (1, 0, [])


def test_queued_job_is_cancelled(running_azure: AzureDouble, client: Any, code: Path, tmp_path: Path) -> None:
    ml = client(running_azure)
    prepare(ml, tmp_path)
    running_azure.hold_queue()
    ml.jobs.create_or_update(job("one", code, **SLEEPS))
    ml.jobs.begin_cancel("one").result()
    assert running_azure.wait("one") == "Canceled"
    assert "Running" not in running_azure.job("one").history


def test_preempted_job_fails_without_a_warning(
    running_azure: AzureDouble, client: Any, code: Path, tmp_path: Path
) -> None:
    ml = client(running_azure)
    prepare(ml, tmp_path)
    ml.jobs.create_or_update(job("one", code, **{**SLEEPS, "command": "trap 'echo warned' TERM; sleep 600"}))
    running_azure.wait("one", ["Running"])
    running_azure.preempt("one")
    assert running_azure.wait("one") == "Failed"
    error = running_azure.job("one").error
    assert error is not None
    assert error["code"] == "UserError"  # as the service does
    assert "PreemptionError: Nodes of this job got pre-empted." in error["message"]
    assert "warned" not in running_azure.logs("one")["std_log.txt"]  # bash may print that its child was killed
    with pytest.raises(ValueError, match="only a running job"):
        running_azure.preempt("one")


def test_failed_machine_reports_the_given_error(
    running_azure: AzureDouble, client: Any, code: Path, tmp_path: Path
) -> None:
    ml = client(running_azure)
    prepare(ml, tmp_path)
    ml.jobs.create_or_update(job("one", code, **SLEEPS))
    running_azure.wait("one", ["Running"])
    running_azure.preempt("one", {"code": "ServiceError", "message": "NodeFailure"})
    assert running_azure.wait("one") == "Failed"
    assert running_azure.job("one").error == {"code": "ServiceError", "message": "NodeFailure"}


def test_job_over_its_time_limit_is_cancelled(
    running_azure: AzureDouble, client: Any, code: Path, tmp_path: Path
) -> None:
    ml = client(running_azure)
    prepare(ml, tmp_path)
    ml.jobs.create_or_update(job("one", code, **{**SLEEPS, "timeout": 1}))
    assert running_azure.wait("one") == "Canceled"


def test_datastores_without_secrets_accept_tokens(azure: AzureDouble, ml: Any, tmp_path: Path) -> None:
    azure.by_identity()
    ml.data.create_or_update(data(tmp_path / "corpus"))
    (upload,) = [call for call in azure.requests("PUT *.blob.*text.txt") if "comp" not in call.query]
    assert (upload.status, "sig" in upload.query) == (201, False)
    assert azure.requests("POST */listSecrets") == []


def test_missing_data_fail_the_job(running_azure: AzureDouble, client: Any, code: Path, tmp_path: Path) -> None:
    ml = client(running_azure)
    prepare(ml, tmp_path)
    next(running_azure.folder().glob("LocalUpload/*/corpus/text.txt")).unlink()
    next(running_azure.folder().glob("LocalUpload/*/corpus")).rmdir()
    ml.jobs.create_or_update(job("one", code))
    assert running_azure.wait("one") == "Failed"
    error = running_azure.job("one").error
    assert error is not None
    assert error["message"].startswith("DataAccessError: input data: /subscriptions/")


def test_machine_has_an_identity(azure: AzureDouble) -> None:
    from azure.identity import CredentialUnavailableError, ManagedIdentityCredential

    with ManagedIdentityCredential() as absent, pytest.raises(CredentialUnavailableError):
        absent.get_token("https://management.azure.com/.default")
    azure.login.managed_identity = True
    with ManagedIdentityCredential() as machine:
        assert machine.get_token("https://management.azure.com/.default").token in azure.secrets
