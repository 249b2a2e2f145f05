"""Faults of Azure: each gives one clear message or is recovered silently, and never leads to two jobs."""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.backends.azure.backend import AzureBackend
from orchestrator.backends.azure.runs import observer
from orchestrator.backends.log_query import LogQuery
from orchestrator.client import Orchestrator
from orchestrator.jobs.base import Plan
from orchestrator.run import Run
from orchestrator.runs.status import EndCause, Handle, RunState
from orchestrator.support.errors import AuthError, CapacityError, ConflictError, NotFoundError, QuotaError, ServiceError
from orchestrator.testing import AzureDouble
from tests.conftest import write_corpus, write_spec

pytestmark = pytest.mark.usefixtures("small_snapshot")

T4 = "Standard_NC4as_T4_v3"
JOB = "PUT management.azure.com*/jobs/*"
PREEMPTED = {"code": "ServiceError", "message": "JobNodePreempted: a compute node of the job was preempted."}


@pytest.fixture
def cloud(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[AzureDouble]:
    """Yield a workspace that accepts jobs and leaves them as they are; check that no secret of it is stored."""
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    monkeypatch.setenv("ORCHESTRATOR_AZURE_POLL_SECONDS", "0.0001")  # pauses before restarts are multiples of it
    monkeypatch.setattr(observer, "GRACE_SECONDS", 0.0)
    for name in ("subscription", "resource_group", "workspace"):
        monkeypatch.delenv(f"ORCHESTRATOR_AZURE_{name.upper()}", raising=False)
    logging.getLogger("azure").setLevel(logging.ERROR)
    with AzureDouble(tmp_path / "azure", run_jobs=False) as double:
        yield double
        assert (double.violations, double.refused, double.faults.left) == ([], [], [])
        kept = [path for path in (tmp_path / "home").rglob("*") if path.is_file()]
        text = "".join(path.read_text(errors="replace") for path in kept)
        assert not [secret for secret in double.secrets if secret in text]


@pytest.fixture
def orchestrator(tmp_path: Path, cloud: AzureDouble) -> Orchestrator:
    return Orchestrator("azure", home=tmp_path / "home", environ={})


@pytest.fixture
def plan(tmp_path: Path, orchestrator: Orchestrator) -> Callable[..., Plan]:
    """Return the micro job on one machine with a T4."""
    write_corpus(tmp_path / "corpus.txt")

    def make(**overrides: Any) -> Plan:
        write_spec(tmp_path / "job.yaml", data={"text": ["corpus.txt"]}, compute={"cluster": "gpu", "sku": T4})
        changed = {key.replace("__", "."): value for key, value in overrides.items()}
        return orchestrator.plan(file=tmp_path / "job.yaml", overrides=changed)

    return make


def jobs(cloud: AzureDouble) -> list[str]:
    return [job.name for job in cloud.jobs.all()]


def puts(cloud: AzureDouble) -> int:
    return len(cloud.requests(JOB))


def records(orchestrator: Orchestrator, tmp_path: Path) -> list[Path]:
    return list((tmp_path / "home" / "azure").glob("*"))


@pytest.mark.parametrize("status", [429, 500, 503])
def test_busy_service_is_asked_again(
    status: int, cloud: AzureDouble, orchestrator: Orchestrator, plan: Callable[..., Plan]
) -> None:
    for match in (JOB, "GET *computes/gpu", "PUT *blob*config.json", "PUT *codes*"):
        cloud.fail_next(match, status=status, retry_after=0.01, times=2)
    run = orchestrator.submit(plan())
    assert jobs(cloud) == [run.name]
    assert run.status().state == RunState.STARTING


def test_busy_service_leaves_one_message_and_no_run(
    cloud: AzureDouble, orchestrator: Orchestrator, plan: Callable[..., Plan], tmp_path: Path
) -> None:
    cloud.fail_next(JOB, status=503, times=4)
    with pytest.raises(ServiceError) as failure:
        orchestrator.submit(plan())
    assert "HTTP 503" in failure.value.message
    assert jobs(cloud) == []
    assert records(orchestrator, tmp_path) == []
    assert orchestrator.submit(plan()).created


@pytest.mark.parametrize("when", ["connection", "upload"])
def test_reset_upload_is_resumed_without_loss(
    when: str, cloud: AzureDouble, orchestrator: Orchestrator, plan: Callable[..., Plan], tmp_path: Path
) -> None:
    cloud.reset_next("PUT *.blob.*corpus.txt", when=when)
    run = orchestrator.submit(plan())
    (text,) = (cloud.folder() / "orchestrator" / "data").rglob("corpus.txt")
    assert text.read_bytes() == (tmp_path / "corpus.txt").read_bytes()
    assert jobs(cloud) == [run.name]


@pytest.mark.parametrize("when", ["reply", "cut"])
def test_lost_reply_is_settled_by_asking(
    when: str, cloud: AzureDouble, orchestrator: Orchestrator, plan: Callable[..., Plan], tmp_path: Path
) -> None:
    cloud.reset_next(JOB, when=when)
    run = orchestrator.submit(plan())
    assert (jobs(cloud), puts(cloud)) == ([run.name], 1)
    (record,) = records(orchestrator, tmp_path)
    (attempt,) = json.loads((record / "record.json").read_text())["attempts"]
    assert (attempt["job"], attempt["confirmed"]) == (run.name, True)
    assert run.status().state == RunState.STARTING


def test_lost_request_is_sent_again(cloud: AzureDouble, orchestrator: Orchestrator, plan: Callable[..., Plan]) -> None:
    cloud.reset_next(JOB, when="connection", times=2)
    run = orchestrator.submit(plan())
    assert jobs(cloud) == [run.name]


def test_unknown_submission_stays_on_record(
    cloud: AzureDouble, orchestrator: Orchestrator, plan: Callable[..., Plan], monkeypatch: pytest.MonkeyPatch
) -> None:
    from orchestrator.backends.azure.wire.control_plane import Wire

    cloud.reset_next(JOB, when="reply")
    made = plan()
    name, put = made.name, Wire.put_job

    def then_block_requests(wire: Wire, name: str, body: dict[str, Any]) -> None:
        cloud.fail_next(f"GET *jobs/{name}", status=403)
        put(wire, name, body)

    monkeypatch.setattr(Wire, "put_job", then_block_requests)
    with pytest.raises(ServiceError, match="whether Azure has job") as failure:
        orchestrator.submit(made)
    assert failure.value.fix == f"orchestrator status {name}"
    assert jobs(cloud) == [name]
    assert AzureBackend(orchestrator._home).describe(name).state == RunState.STARTING
    assert not orchestrator.submit(made).created
    assert (jobs(cloud), puts(cloud)) == ([name], 1)


def test_run_of_killed_process_can_be_resumed(
    cloud: AzureDouble, orchestrator: Orchestrator, plan: Callable[..., Plan], monkeypatch: pytest.MonkeyPatch
) -> None:
    from orchestrator.backends.azure.wire.control_plane import Wire

    with monkeypatch.context() as patch:
        patch.setattr(Wire, "put_job", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            orchestrator.submit(plan())
    (name,) = (run.name for run in orchestrator.attach_all())
    run = orchestrator.attach(name)
    assert run.status().state == RunState.FAILED
    assert "not submitted" in str(run.status().reason)
    run.resume()
    assert jobs(cloud) == [name]
    assert (run.status().state, run.status().attempt) == (RunState.STARTING, 1)


def test_expired_token_is_replaced(cloud: AzureDouble, orchestrator: Orchestrator, plan: Callable[..., Plan]) -> None:
    run = orchestrator.submit(plan())
    cloud.expire_tokens()
    assert run.status().state == RunState.STARTING
    cloud.expire_tokens()
    cloud.move(run.name, "Failed", PREEMPTED)
    run._backend.restart_if_needed(run.name, 1)
    assert jobs(cloud) == [f"{run.name}-a2", run.name]


def test_forbidden_request_is_not_repeated(
    cloud: AzureDouble, orchestrator: Orchestrator, plan: Callable[..., Plan], tmp_path: Path
) -> None:
    cloud.fail_next(JOB, status=403)
    with pytest.raises(AuthError) as failure:
        orchestrator.submit(plan())
    assert "may not do this" in failure.value.message
    assert puts(cloud) == 1
    assert records(orchestrator, tmp_path) == []


def test_missing_workspace_is_reported(
    cloud: AzureDouble, orchestrator: Orchestrator, plan: Callable[..., Plan]
) -> None:
    with pytest.raises(NotFoundError, match="workspace elsewhere does not exist"):
        orchestrator.submit(plan(azure__workspace="elsewhere"))
    assert jobs(cloud) == []


def test_name_of_another_job_is_refused(
    cloud: AzureDouble, orchestrator: Orchestrator, plan: Callable[..., Plan], tmp_path: Path
) -> None:
    made = plan()
    other = Orchestrator("azure", home=tmp_path / "home" / "of-somebody-else", environ={})
    other.submit(made)
    with pytest.raises(ConflictError, match="exists in the workspace") as failure:
        orchestrator.submit(made)
    assert failure.value.fix == f"orchestrator attach azure://double/{made.name}"
    assert puts(cloud) == 1
    assert orchestrator.attach(f"azure://double/{made.name}").status().state == RunState.STARTING


def test_quota_is_checked_before_anything_is_created(
    cloud: AzureDouble, orchestrator: Orchestrator, plan: Callable[..., Plan]
) -> None:
    cloud.set_quota("standardNCASv3_T4Family", 6)
    with pytest.raises(QuotaError) as failure:
        orchestrator.submit(plan(compute__nodes=2))
    assert failure.value.facts["need"] == "8 cores of standardNCASv3_T4Family, limit 6, used 0"
    assert "Standard_NC24ads_A100_v4" in str(failure.value.facts["fits"])
    assert failure.value.fix == "--set compute.nodes=1 --set compute.max_nodes=1"
    assert cloud.requests("PUT *") == []


def test_cluster_without_capacity_is_reported(
    cloud: AzureDouble, orchestrator: Orchestrator, plan: Callable[..., Plan]
) -> None:
    cloud.fail_compute("gpu", code="AllocationFailed", message="There is not enough capacity in the region.")
    with pytest.raises(CapacityError, match="cluster gpu"):
        orchestrator.submit(plan())
    assert jobs(cloud) == []


@pytest.mark.parametrize("status", [503, 429, 500, None])
def test_request_for_the_key_of_a_datastore_is_repeated(
    cloud: AzureDouble, orchestrator: Orchestrator, plan: Callable[..., Plan], status: int | None
) -> None:
    if status is None:
        cloud.reset_next("POST *listSecrets", when="reply", times=2)
    else:
        cloud.fail_next("POST *listSecrets", status=status, times=2)
    run = orchestrator.submit(plan())
    assert jobs(cloud) == [run.name]
    assert len(cloud.requests("POST *listSecrets")) == 3


def test_cluster_in_a_failed_state_is_refused(
    cloud: AzureDouble, orchestrator: Orchestrator, plan: Callable[..., Plan]
) -> None:
    orchestrator.submit(plan())
    cluster = cloud.state.resources["computes/gpu"]["properties"]
    cluster["provisioningState"] = "Failed"
    cluster["provisioningErrors"] = [{"error": {"code": "SubnetFull", "message": "the subnet is full"}}]
    with pytest.raises(ConflictError, match="cannot use cluster gpu: its state is Failed") as refused:
        orchestrator.submit(plan(train__seed=9))
    assert refused.value.facts == {"reason": "the subnet is full"}
    assert str(refused.value.fix).startswith("orchestrator cluster delete --name gpu")
    assert len(jobs(cloud)) == 1


def test_queued_job_shows_reason(cloud: AzureDouble, orchestrator: Orchestrator, plan: Callable[..., Plan]) -> None:
    run = orchestrator.submit(plan())
    cloud.move(run.name, "Queued")
    assert (run.status().state, run.status().warning) == (RunState.QUEUED, None)
    cloud.without_capacity("gpu")
    assert "not enough capacity" in str(run.status().warning)


def test_preempted_run_restarts_up_to_its_limit(
    cloud: AzureDouble, orchestrator: Orchestrator, plan: Callable[..., Plan]
) -> None:
    run = orchestrator.submit(plan(max_restarts=2))
    for attempt in (run.name, f"{run.name}-a2", f"{run.name}-a3"):
        cloud.move(attempt, "Running")
        assert run.status().state == RunState.RUNNING
        cloud.move(attempt, "Failed", PREEMPTED)
        run._backend.restart_if_needed(run.name)
    status = run.status()
    assert (status.state, status.attempt, status.exit_code) == (RunState.PREEMPTED, 3, 75)
    assert "JobNodePreempted" in str(status.reason)
    assert len(status.attempts) == 3
    assert jobs(cloud) == [f"{run.name}-a3", f"{run.name}-a2", run.name]
    bodies = [json.dumps(cloud.job(name).properties["outputs"]["run"]) for name in jobs(cloud)]
    assert len(set(bodies)) == 1  # one place for the checkpoints of all


def test_clock_set_back_delays_no_restart(
    cloud: AzureDouble, orchestrator: Orchestrator, plan: Callable[..., Plan], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, true_time = orchestrator.submit(plan(max_restarts=1, compute__price_per_hour=3600.0)), time.time
    cloud.move(run.name, "Running")
    before = run.status()
    cloud.move(run.name, "Failed", PREEMPTED)
    monkeypatch.setattr(time, "time", lambda: true_time() - 86400)
    assert run._backend.restart_if_needed(run.name)
    assert jobs(cloud) == [f"{run.name}-a2", run.name]
    cloud.move(f"{run.name}-a2", "Running")
    assert run.status().cost >= before.cost


def test_clock_set_ahead_raises_no_cost(
    cloud: AzureDouble, orchestrator: Orchestrator, plan: Callable[..., Plan], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, true_time = orchestrator.submit(plan(compute__price_per_hour=3600.0)), time.time
    cloud.move(run.name, "Running")
    assert run.status().state == RunState.RUNNING
    monkeypatch.setattr(time, "time", lambda: true_time() + 86400)
    assert (run.status().cost or 0.0) < 3600


def test_two_followers_submit_one_job(
    cloud: AzureDouble, orchestrator: Orchestrator, plan: Callable[..., Plan], tmp_path: Path
) -> None:
    run = orchestrator.submit(plan(max_restarts=1))
    elsewhere = Orchestrator("azure", home=tmp_path / "home" / "of-another-machine", environ={})
    other = elsewhere.attach(str(run.handle))
    cloud.move(run.name, "Failed", PREEMPTED)
    for follower in (run, other):
        follower._backend.restart_if_needed(run.name)
    assert jobs(cloud) == [f"{run.name}-a2", run.name]
    assert other.status().state == run.status().state == RunState.STARTING


def test_only_retryable_endings_are_restarted(
    cloud: AzureDouble, orchestrator: Orchestrator, plan: Callable[..., Plan]
) -> None:
    error = {"code": "UserError", "message": "Execution failed. User process '0' exited with status code 2."}
    endings: list[tuple[Callable[[Run], None], RunState, int]] = [
        (lambda run: cloud.move(run.name, "Failed", error), RunState.FAILED, 2),
        (lambda run: run.cancel(), RunState.CANCELLED, 75),
        (lambda run: cloud.move(run.name, "Completed"), RunState.COMPLETED, 0),
    ]
    for seed, (end, state, code) in enumerate(endings):
        run = orchestrator.submit(plan(max_restarts=3, train__seed=seed))
        cloud.move(run.name, "Running")
        end(run)
        run._backend.restart_if_needed(run.name)
        assert (run.status().state, run.status().exit_code, run.status().attempt) == (state, code, 1)


def test_cancel_during_preemption_is_a_cancel(
    cloud: AzureDouble, orchestrator: Orchestrator, plan: Callable[..., Plan], monkeypatch: pytest.MonkeyPatch
) -> None:
    from orchestrator.backends.azure.wire.control_plane import Wire

    run = orchestrator.submit(plan(max_restarts=3))
    cloud.move(run.name, "Running")
    monkeypatch.setattr(Wire, "cancel_job", lambda *_: None)  # the request has not arrived yet
    run.cancel()
    cloud.move(run.name, "Failed", PREEMPTED)
    assert not run._backend.restart_if_needed(run.name)
    assert jobs(cloud) == [run.name]
    assert run.status().state == RunState.CANCELLED


@pytest.mark.parametrize("moved", [False, True])
def test_cancel_before_a_restart_submits_nothing(
    moved: bool, cloud: AzureDouble, orchestrator: Orchestrator, plan: Callable[..., Plan]
) -> None:
    run = orchestrator.submit(plan(max_restarts=3))
    cloud.move(run.name, "Running")
    cloud.move(run.name, "Failed", PREEMPTED)
    assert run.status().state == RunState.PREEMPTED
    folder = AzureBackend(orchestrator._home)._existing(run.name)
    folder.write(folder.read().with_last(moved=moved))
    run.cancel()
    assert run.wait(60).state == RunState.CANCELLED
    assert jobs(cloud) == [run.name]
    run.resume()
    assert jobs(cloud) == [f"{run.name}-a2", run.name]


def test_cancel_keeps_the_state_of_a_final_failure(
    cloud: AzureDouble, orchestrator: Orchestrator, plan: Callable[..., Plan]
) -> None:
    run = orchestrator.submit(plan(max_restarts=0))
    cloud.move(run.name, "Running")
    cloud.move(run.name, "Failed", {"code": "UserError", "message": "exited with status code 1."})
    run.cancel()
    assert run.status().state == RunState.FAILED


def test_error_of_an_earlier_attempt_is_not_reported_again(
    cloud: AzureDouble, orchestrator: Orchestrator, plan: Callable[..., Plan]
) -> None:
    run = orchestrator.submit(plan(max_restarts=3))
    cloud.move(run.name, "Running")
    error = cloud.folder() / "orchestrator" / "runs" / run.name / "outputs" / "error-0.json"
    error.parent.mkdir(parents=True, exist_ok=True)
    error.write_text(json.dumps({"error": {"kind": "internal"}, "text": "a bug of the job"}))
    cloud.move(run.name, "Failed", {"code": "UserError", "message": "exited with status code 1."})
    run._backend.restart_if_needed(run.name)
    past = time.time() - 60
    os.utime(error, (past, past))
    cloud.move(f"{run.name}-a2", "Failed", {"code": "ImagePullError", "message": "no such image"})
    run._backend.restart_if_needed(run.name)
    first, second = run.status().attempts[:2]
    assert (first.reason, second.cause) == ("a bug of the job", EndCause.IMAGE)
    assert "no such image" in str(second.reason)
    assert jobs(cloud)[0] == f"{run.name}-a3", "another failure than that of the first attempt"


def test_completed_job_without_result_has_failed(
    cloud: AzureDouble, orchestrator: Orchestrator, plan: Callable[..., Plan]
) -> None:
    run = orchestrator.submit(plan())
    cloud.move(run.name, "Running")
    cloud.move(run.name, "Completed", result=False)
    (status,) = (one.status() for one in orchestrator.attach_all())
    assert (status.state, status.exit_code, status.attempts[0].cause) == (RunState.FAILED, 1, EndCause.ERROR)
    assert "did not write result.json" in str(status.reason)
    assert f"orchestrator logs {run.name}" in str(status.reason)


@pytest.mark.parametrize("kind", ["prepare", "finetune"])
def test_completed_run_without_result_is_still_listed(
    kind: str, cloud: AzureDouble, orchestrator: Orchestrator, plan: Callable[..., Plan]
) -> None:
    run = orchestrator.submit(plan())
    folder = AzureBackend(orchestrator._home)._existing(run.name)
    changed = {"plan.json": folder.document("plan.json"), "request.json": folder.document("request.json")}
    changed["plan.json"]["spec"]["kind"] = kind
    del changed["request.json"]["writes_result"]  # as an earlier version submitted it
    folder.fill({name: json.dumps(document) for name, document in changed.items()}, folder.read())
    cloud.move(run.name, "Running")
    cloud.move(run.name, "Completed", result=False)
    assert [status.state for status in AzureBackend(orchestrator._home).list()] == [RunState.COMPLETED]


def test_status_in_flight_keeps_a_resumed_attempt(
    cloud: AzureDouble, orchestrator: Orchestrator, plan: Callable[..., Plan], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = orchestrator.submit(plan())
    cloud.move(run.name, "Running")
    cloud.move(run.name, "Failed", {"code": "UserError", "message": "exited with status code 1."})
    reports = observer.Observer._last_reports
    with monkeypatch.context() as patch:

        def resumed_meanwhile(one: observer.Observer) -> list[dict[str, Any]]:
            patch.setattr(observer.Observer, "_last_reports", reports)
            run.resume()
            return reports(one)

        patch.setattr(observer.Observer, "_last_reports", resumed_meanwhile)
        status = AzureBackend(orchestrator._home).describe(run.name)
    assert (status.state, status.attempt) == (RunState.STARTING, 2)
    assert (run.status().state, run.status().attempt) == (RunState.STARTING, 2)


def test_missing_cluster_without_size_is_refused(
    cloud: AzureDouble, orchestrator: Orchestrator, plan: Callable[..., Plan]
) -> None:
    with pytest.raises(NotFoundError, match="cluster gpu does not exist") as failure:
        orchestrator.submit(plan(compute__sku=None, compute__processes_per_node=1))
    assert str(failure.value.fix).startswith("orchestrator cluster create --name gpu")
    assert cloud.requests("PUT *") == []


def test_sent_bodies_equal_dry_run(cloud: AzureDouble, orchestrator: Orchestrator, plan: Callable[..., Plan]) -> None:
    made = plan(compute__nodes=2)
    submission = orchestrator.prepare(made)
    request = json.loads(json.dumps(submission.as_dict()))["request"]
    run = orchestrator.submit(submission)
    (job,) = cloud.requests(JOB)
    assert job.body == request["job"]
    (cluster,) = cloud.requests("PUT *computes/gpu")
    assert cluster.body == {"location": "eastus", **request["cluster"]["body"]}
    for asset in request["assets"]:
        (sent,) = cloud.requests(f"PUT *{asset['kind']}/{asset['name']}/versions/{asset['version']}")
        container = cloud.storage.datastores["workspaceblobstore"]
        known = {"{account}": cloud.place.account, "{endpoint}": "core.windows.net", "{container}": container}
        shown = json.dumps(asset["body"])
        for name, value in known.items():
            shown = shown.replace(name, value)
        assert sent.body == json.loads(shown)
    again = orchestrator.submit(plan(compute__nodes=2, train__seed=7))
    assert again.name != run.name
    assert len(cloud.requests("PUT *computes/gpu")) == 1  # it needs no change
    assert len(cloud.requests("PUT *versions*")) == len(request["assets"])  # nor do existing assets
    assert Handle.parse(str(again.handle)).place == "double"


@pytest.mark.parametrize(("identity", "sent"), [("user", "UserIdentity"), ("managed", "Managed")])
def test_job_runs_as_user_or_cluster(
    identity: str, sent: str, cloud: AzureDouble, orchestrator: Orchestrator, plan: Callable[..., Plan]
) -> None:
    run = orchestrator.submit(plan(azure__identity=identity))
    assert cloud.job(run.name).properties["identity"] == {"identityType": sent}


def test_wait_and_follow_outlast_outage(
    cloud: AzureDouble, orchestrator: Orchestrator, plan: Callable[..., Plan]
) -> None:
    run = orchestrator.submit(plan())
    cloud.move(run.name, "Running")
    assert run.status().warning is None
    cloud.fail_next(f"GET *jobs/{run.name}", status=503, times=4)  # one request and its retries
    status = run.status()
    assert (status.state, "HTTP 503" in str(status.warning)) == (RunState.RUNNING, True)
    assert run.status().warning is None
    cloud.fail_next(f"GET *jobs/{run.name}", status=503, times=8)
    blocks = run.log_blocks(LogQuery(follow=True))
    assert next(blocks).data == b""
    cloud.move(run.name, "Completed")
    assert list(blocks) == []
    fresh = AzureBackend(orchestrator._home)
    assert fresh.describe(run.name).state == RunState.COMPLETED
    assert run.wait().state == RunState.COMPLETED


def test_first_status_reports_outage(cloud: AzureDouble, orchestrator: Orchestrator, plan: Callable[..., Plan]) -> None:
    run = orchestrator.submit(plan())
    cloud.fail_next(f"GET *jobs/{run.name}", status=503, times=4)
    with pytest.raises(ServiceError, match="HTTP 503"):
        AzureBackend(orchestrator._home).describe(run.name)
