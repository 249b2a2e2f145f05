"""Interrupted submissions and outages of Azure: nothing is lost and nothing is hidden."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.backends.azure.backend import AzureBackend
from orchestrator.backends.azure.runs import observer
from orchestrator.backends.azure.runs.observer import CANCEL_PENDING, CANCELLED_BEFORE, DELETED, UNCONFIRMED
from orchestrator.backends.azure.wire.control_plane import Wire
from orchestrator.backends.log_query import LogQuery
from orchestrator.client import Orchestrator
from orchestrator.jobs.base import Plan
from orchestrator.run import Run
from orchestrator.runs.status import RunState
from orchestrator.support.errors import AuthError, ServiceError, StorageError
from orchestrator.testing import AzureDouble
from tests.conftest import write_corpus, write_spec
from tests.run_folders import make_run

pytestmark = pytest.mark.usefixtures("small_snapshot")

SIZE = "Standard_NC4as_T4_v3"
JOB = "PUT management.azure.com*/jobs/*"
PREEMPTED = {"code": "ServiceError", "message": "JobNodePreempted: a compute node of the job was preempted."}
Put = Callable[[Wire, str, dict[str, Any]], None]


@pytest.fixture
def home(tmp_path: Path, azure: AzureDouble, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    monkeypatch.setenv("ORCHESTRATOR_AZURE_POLL_SECONDS", "0.0001")  # pauses before restarts are multiples of it
    monkeypatch.setattr(observer, "GRACE_SECONDS", 0.0)
    return tmp_path / "home"


@pytest.fixture
def plan(tmp_path: Path, home: Path) -> Plan:
    """Return the micro job on one machine, with two restarts."""
    write_corpus(tmp_path / "corpus.txt")
    compute = {"cluster": "gpu", "sku": SIZE}
    write_spec(tmp_path / "job.yaml", data={"text": ["corpus.txt"]}, compute=compute, max_restarts=2, backend="azure")
    return Orchestrator(home=home, environ={}).plan(file=tmp_path / "job.yaml")


@pytest.fixture
def run(plan: Plan, home: Path) -> Run:
    """Return the run of an accepted job."""
    return Orchestrator(home=home, environ={}).submit(plan)


def replace_put(monkeypatch: pytest.MonkeyPatch, put: Put) -> None:
    monkeypatch.setattr(Wire, "put_job", put)


def killed(wire: Wire, name: str, body: dict[str, Any]) -> None:
    raise KeyboardInterrupt


def lose_all_answers(azure: AzureDouble) -> Put:
    """Lose the reply to a submission, and the answers to all later requests about it."""
    put = Wire.put_job

    def sent(wire: Wire, name: str, body: dict[str, Any]) -> None:
        azure.reset_next(JOB, when="reply")
        azure.fail_next(f"GET *jobs/{name}", status=403)
        put(wire, name, body)

    return sent


def test_interrupted_submission_is_found_by_its_name(
    plan: Plan, home: Path, azure: AzureDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        replace_put(patch, killed)
        with pytest.raises(KeyboardInterrupt):
            Orchestrator(home=home, environ={}).submit(plan)
    run = Orchestrator(home=home, environ={}).attach(plan.name)
    monkeypatch.setattr(observer, "GRACE_SECONDS", 90.0)
    status = run.status()
    assert (status.state, status.warning) == (RunState.QUEUED, UNCONFIRMED), "its request may still arrive"
    monkeypatch.setattr(observer, "GRACE_SECONDS", 0.0)
    assert (run.status().state, azure.jobs.all()) == (RunState.FAILED, [])
    run.resume()
    assert (run.status().state, run.status().attempt) == (RunState.STARTING, 1)


@pytest.mark.parametrize("grace", [0.0, 90.0])
def test_request_that_arrives_late_is_no_failure(
    plan: Plan, home: Path, azure: AzureDouble, monkeypatch: pytest.MonkeyPatch, grace: float
) -> None:
    """The submitter dies with its request in flight; Azure shows the job only at the third look."""
    bodies: list[dict[str, Any]] = []

    def dying(wire: Wire, name: str, body: dict[str, Any]) -> None:
        bodies.append(body)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        replace_put(patch, dying)
        with pytest.raises(KeyboardInterrupt):
            Orchestrator(home=home, environ={}).submit(plan)
    run = Orchestrator(home=home, environ={}).attach(plan.name)
    monkeypatch.setattr(observer, "GRACE_SECONDS", grace)
    looks = 0

    def look(wire: Wire, name: str, job: Callable[..., Any] = Wire.job) -> Any:
        nonlocal looks
        looks += 1
        if looks == 3:
            wire.put_job(name, bodies[0])
        return job(wire, name)

    monkeypatch.setattr(Wire, "job", look)
    states = [run.status().state for _ in range(3)]
    assert RunState.FAILED not in states
    assert states[-1] == RunState.STARTING
    assert len(azure.jobs.all()) == 1


def die_in_flight(patch: pytest.MonkeyPatch, sent: list[tuple[Wire, str, dict[str, Any]]]) -> Put:
    """Let the submitter die before Azure processes its request, which `sent` keeps."""
    put = Wire.put_job

    def dying(wire: Wire, name: str, body: dict[str, Any]) -> None:
        sent.append((wire, name, body))
        raise KeyboardInterrupt

    replace_put(patch, dying)
    return put


@pytest.mark.parametrize("attempt", [1, 2])
@pytest.mark.parametrize("look", ["status", "list", "restart"])
def test_cancel_reaches_a_job_that_appears_later(
    plan: Plan,
    home: Path,
    azure: AzureDouble,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    attempt: int,
    look: str,
) -> None:
    orchestrator = Orchestrator(home=home, environ={})
    sent: list[tuple[Wire, str, dict[str, Any]]] = []
    if attempt == 2:
        orchestrator.submit(plan)
        azure.move(plan.name, "Failed", PREEMPTED)
    with monkeypatch.context() as patch:
        put = die_in_flight(patch, sent)
        with pytest.raises(KeyboardInterrupt):
            orchestrator.submit(plan) if attempt == 1 else orchestrator.attach(plan.name).follow_up()
    monkeypatch.setattr(observer, "GRACE_SECONDS", 90.0)
    run = orchestrator.attach(plan.name)
    for _ in range(2):
        run.cancel()
    assert capsys.readouterr().err.count(CANCEL_PENDING) == 1
    assert (run.status().state, run.status().warning) == (RunState.QUEUED, CANCEL_PENDING)
    put(*sent[0])
    looks: dict[str, Callable[[], object]] = {
        "status": run.status,
        "list": lambda: [*orchestrator.runs()],
        "restart": run.follow_up,
    }
    looks[look]()
    assert azure.job(sent[0][1]).status == "Canceled"
    assert run.status().state == RunState.CANCELLED
    assert run.follow_up()[1]
    assert len(azure.jobs.all()) == attempt


def cancelled_in_transit(plan: Plan, home: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Run, Callable[[], object]]:
    """Return a run that was cancelled before its job arrived and whose grace period is over, and what delivers it."""
    sent: list[tuple[Wire, str, dict[str, Any]]] = []
    with monkeypatch.context() as patch:
        put = die_in_flight(patch, sent)
        with pytest.raises(KeyboardInterrupt):
            Orchestrator(home=home, environ={}).submit(plan)
    run = Orchestrator(home=home, environ={}).attach(plan.name)
    monkeypatch.setattr(observer, "GRACE_SECONDS", 90.0)
    run.cancel()
    monkeypatch.setattr(observer, "GRACE_SECONDS", 0.0)
    return run, lambda: put(*sent[0])


def test_cancelled_run_that_never_arrives_is_cancelled(
    plan: Plan, home: Path, azure: AzureDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, _ = cancelled_in_transit(plan, home, monkeypatch)
    status, over = run.follow_up()
    assert (status.state, status.reason, over) == (RunState.CANCELLED, CANCELLED_BEFORE, True)
    assert azure.jobs.all() == []
    run.resume()
    assert run.status().state == RunState.STARTING


def test_pending_cancel_spares_a_later_submission(
    plan: Plan, home: Path, azure: AzureDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another submission of the same plan has the same name."""
    run, arrive = cancelled_in_transit(plan, home, monkeypatch)
    monkeypatch.setattr(observer, "ARRIVAL_SECONDS", -3600.0)  # as if an hour had passed before the next submission
    arrive()
    assert run.status().state == RunState.CANCELLED
    assert azure.job(plan.name).status != "Canceled"


def test_lost_cancel_of_a_running_job_is_repeated(
    run: Run, azure: AzureDouble, capsys: pytest.CaptureFixture[str]
) -> None:
    azure.move(run.name, "Running")
    azure.fail_next("POST *jobs/*/cancel", status=403, times=2)
    with pytest.raises(AuthError):
        run.cancel()
    assert run.status().state == RunState.RUNNING
    assert f"warning: cannot cancel job {run.name}" in capsys.readouterr().err
    run.status()
    assert azure.job(run.name).status == "Canceled"


def test_fix_of_unknown_submission_finds_the_run(
    plan: Plan, home: Path, azure: AzureDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = lose_all_answers(azure)
    with monkeypatch.context() as patch:
        replace_put(patch, sent)
        with pytest.raises(ServiceError, match=f"whether Azure has job {plan.name}") as failure:
            Orchestrator(home=home, environ={}).submit(plan)
    assert failure.value.fix == f"orchestrator status {plan.name}"
    run = Orchestrator(home=home, environ={}).attach(plan.name)
    azure.move(plan.name, "Failed", PREEMPTED)
    assert run.status().state == RunState.PREEMPTED
    with monkeypatch.context() as patch:
        replace_put(patch, sent)
        with pytest.raises(ServiceError, match=f"whether Azure has job {plan.name}-a2") as failure:
            run.resume()
    assert failure.value.fix == f"orchestrator status {plan.name}"
    assert (run.status().state, run.status().attempt) == (RunState.STARTING, 2)


def test_restart_missed_in_outage_is_repeated(run: Run, azure: AzureDouble, monkeypatch: pytest.MonkeyPatch) -> None:
    """The outage prevents the second attempt twice; a later follower still has both restarts."""
    refused = 0

    def away(wire: Wire, name: str, body: dict[str, Any], put: Put = Wire.put_job) -> None:
        nonlocal refused
        if name.endswith("-a2") and refused < 2:
            refused += 1
            azure.reset_next(f"GET *jobs/{name}", times=4)
            azure.reset_next(JOB, times=4)
        put(wire, name, body)

    replace_put(monkeypatch, away)
    azure.move(run.name, "Failed", PREEMPTED)
    for _ in run.log_blocks(LogQuery(follow=True)):
        for attempt in ("-a2", "-a3"):
            if azure.jobs.get(f"{run.name}{attempt}"):
                azure.move(f"{run.name}{attempt}", "Failed", PREEMPTED)
    status = run.status()
    assert refused == 2
    assert (status.state, status.attempt) == (RunState.PREEMPTED, 3)
    assert [job.name for job in azure.jobs.all()] == [f"{run.name}-a3", f"{run.name}-a2", run.name]


def test_wait_repeats_restart_missed_in_outage(run: Run, azure: AzureDouble, monkeypatch: pytest.MonkeyPatch) -> None:
    sent = 0

    def away(wire: Wire, name: str, body: dict[str, Any], put: Put = Wire.put_job) -> None:
        nonlocal sent
        sent += 1
        if sent == 1:
            azure.reset_next(f"GET *jobs/{name}", times=8)
            azure.reset_next(JOB)
        put(wire, name, body)
        azure.move(name, "Completed")

    replace_put(monkeypatch, away)
    azure.move(run.name, "Failed", PREEMPTED)
    status = run.wait(60)
    assert (status.state, status.attempt, sent) == (RunState.COMPLETED, 2, 2)
    assert (status.warning, azure.faults.left) == (None, [])


def test_refused_restart_is_not_repeated(run: Run, azure: AzureDouble) -> None:
    azure.move(run.name, "Failed", PREEMPTED)
    azure.fail_next(JOB, status=403)
    with pytest.raises(Exception, match="may not do this"):
        run._backend.restart_if_needed(run.name)
    assert not run._backend.restart_if_needed(run.name)
    assert run.status().state == RunState.FAILED
    assert "may not do this" in str(run.status().reason)


@pytest.mark.parametrize("fault", [{"status": 401}, {"status": 403}, {"status": 400}])
def test_list_shows_runs_while_azure_is_away(
    run: Run, home: Path, azure: AzureDouble, fault: dict[str, int], capsys: pytest.CaptureFixture[str]
) -> None:
    azure.move(run.name, "Running")
    assert run.status().state == RunState.RUNNING
    make_run(home, "local-1", age=3600)
    azure.fail_next("* management.azure.com*", times=1000, **fault)
    orchestrator = Orchestrator(home=home, environ={})
    found = {status.name: status for status in orchestrator.runs()}
    assert {name: status.state for name, status in found.items()} == {
        run.name: RunState.RUNNING,
        "local-1": RunState.COMPLETED,
    }
    assert found[run.name].warning
    assert found[run.name].handle == f"azure://double/{run.name}"
    assert capsys.readouterr().err.count("warning: ") == 1
    assert orchestrator.attach("@last").name == run.name
    azure.faults.clear()


@pytest.mark.parametrize("status", ["Running", "Completed"])
def test_run_whose_job_was_deleted_is_listed_and_deleted(run: Run, home: Path, azure: AzureDouble, status: str) -> None:
    azure.move(run.name, status)
    before = run.status().state
    del azure.jobs._jobs[run.name]
    orchestrator = Orchestrator(home=home, environ={})
    (found,) = orchestrator.runs()
    assert found.state == (RunState.FAILED if status == "Running" else before)
    assert status == "Completed" or found.reason == DELETED
    assert run.follow_up()[1], "it is not restarted"
    AzureBackend(home).delete(run.name)
    assert [*orchestrator.runs()] == []
    assert not [path for path in azure.folder().rglob(f"*{run.name}*") if path.is_file()]
    assert not (azure.folder() / "orchestrator" / "runs" / run.name / "job" / "plan.json").exists()


def test_job_that_appears_again_is_followed(run: Run, azure: AzureDouble) -> None:
    """Azure may answer 404 for a job for a while, and the job runs on."""
    azure.move(run.name, "Running")
    assert run.status().state == RunState.RUNNING
    hidden = azure.jobs._jobs.pop(run.name)
    assert (run.status().state, run.status().reason) == (RunState.FAILED, DELETED)
    azure.jobs._jobs[run.name] = hidden
    assert (run.status().state, run.status().reason) == (RunState.RUNNING, None)
    del azure.jobs._jobs[run.name]
    assert run.status().state == RunState.FAILED
    azure.jobs._jobs[run.name] = hidden
    run.cancel()
    assert len(azure.requests("POST *cancel*")) == 1


@pytest.mark.parametrize("file", ["record.json", "request.json", "plan.json"])
@pytest.mark.parametrize("text", ["{", "{}"])
def test_list_shows_damaged_record_as_failed_run(run: Run, home: Path, file: str, text: str) -> None:
    make_run(home, "local-1", age=3600)
    damaged = home / "azure" / run.name / file
    damaged.write_text(text)
    found = {status.name: status for status in Orchestrator(home=home, environ={}).runs()}
    assert found["local-1"].state == RunState.COMPLETED
    assert found[run.name].state == RunState.FAILED
    assert "damaged" in str(found[run.name].reason)
    assert AzureBackend(home).describe(run.name) == found[run.name]
    if text == "{":
        with pytest.raises(StorageError, match="damaged") as failure:
            Orchestrator(home=home, environ={}).attach(run.name)._backend.delete(run.name)
        assert failure.value.fix == f"rm -r {home}/azure/{run.name}"
