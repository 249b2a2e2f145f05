"""Supervision from Azure: a schedule whose jobs restart a run, as processes without anything of the submitter."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from azure.core.exceptions import HttpResponseError

from orchestrator.backends import require
from orchestrator.backends.azure.backend import AzureBackend
from orchestrator.backends.azure.cloud_supervisor import look
from orchestrator.backends.azure.wire.control_plane import Wire
from orchestrator.backends.capabilities import Resumes
from orchestrator.cli.main import main
from orchestrator.client import Orchestrator
from orchestrator.run import Run
from orchestrator.runs.status import RunState
from orchestrator.support.errors import AuthError, SpecError, UserError
from orchestrator.testing import AzureDouble
from orchestrator.testing.jobs.job_table import PREEMPTED
from tests.conftest import wait_for, write_corpus, write_spec

T4, A100 = "Standard_NC4as_T4_v3", "Standard_NC24ads_A100_v4"
LONG = "and so on, " * 40  # more than a tag of Azure holds
CRASH = {"code": "UserError", "message": f"Execution failed. User process '0' exited with status code 1. {LONG}"}
Submit = Callable[..., Run]


def orchestrator_of(folder: Path) -> Orchestrator:
    return Orchestrator(home=folder / "home", environ={})


@pytest.fixture
def submit(tmp_path: Path, azure: AzureDouble, monkeypatch: pytest.MonkeyPatch, small_snapshot: None) -> Submit:
    """Return a function that submits the micro job on one spot machine, supervised by Azure."""
    monkeypatch.setenv("ORCHESTRATOR_AZURE_POLL_SECONDS", "0.0001")  # pauses before restarts are multiples of it
    monkeypatch.setenv("ORCHESTRATOR_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    write_corpus(tmp_path / "corpus.txt")

    def run(sku: str | list[str] = T4, **more: Any) -> Run:
        compute = {"cluster": "gpu", "sku": sku, "tier": "spot"}
        own = {"azure": {"supervise": "cloud", "identity": "managed"}, **more}
        write_spec(tmp_path / "job.yaml", data={"text": ["corpus.txt"]}, compute=compute, backend="azure", **own)
        orchestrator = orchestrator_of(tmp_path)
        return orchestrator.submit(orchestrator.plan(file=tmp_path / "job.yaml"))

    return run


@pytest.fixture
def look_once(tmp_path: Path) -> Callable[[Run], str]:
    """Return a function that does what a supervisor's job does, each time in a new empty home."""
    count = iter(range(1000))
    return lambda run: look(run.name, tmp_path / f"supervisor-{next(count)}", os.environ)


def end(azure: AzureDouble, job: str, error: dict[str, str] | None) -> None:
    azure.move(job, "Running")
    azure.move(job, "Failed" if error else "Completed", error)


def schedules(azure: AzureDouble) -> list[str]:
    return [one["name"] for one in azure.state.below("schedules")]


@pytest.mark.slow  # trains the micro model in three processes
def test_run_is_restarted_without_the_submitters_home(
    running_azure: AzureDouble, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The supervisor is a job of its own, from the uploaded code, signed in with its managed identity."""
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.chdir(tmp_path)
    write_corpus(tmp_path / "corpus.txt")
    compute = {"cluster": "cpu", "sku": "Standard_D16s_v5", "tier": "spot"}
    section = {"supervise": "cloud", "preflight": False}
    own = {"backend": "azure", "compute": compute, "azure": section, "train": {"steps": 40, "precision": "fp32"}}
    write_spec(tmp_path / "job.yaml", data={"text": ["corpus.txt"]}, checkpoint={"every": 2}, **own)
    run = orchestrator_of(tmp_path).submit(orchestrator_of(tmp_path).plan(file=tmp_path / "job.yaml")).name
    shutil.rmtree(tmp_path / "home")

    outputs = running_azure.folder() / "orchestrator" / "runs" / run / "outputs"
    wait_for(lambda: list(outputs.glob("checkpoints/*/COMMIT.json")), what="a checkpoint", seconds=400)
    running_azure.preempt(run)
    running_azure.wait(run)

    def supervise() -> str:
        job = running_azure.trigger(f"supervise-{run}")
        assert running_azure.wait(job, seconds=400) == "Completed", running_azure.logs(job)
        return running_azure.logs(job)["std_log.txt"]

    supervise()
    assert running_azure.wait(f"{run}-a2", seconds=400) == "Completed", running_azure.logs(f"{run}-a2")
    assert f"run {run} is over, completed: schedule supervise-{run} deleted" in supervise()
    assert schedules(running_azure) == []
    assert [job.name for job in running_azure.jobs.all() if job.schedule is None] == [f"{run}-a2", run]


def test_two_supervisors_at_once_submit_one_job(submit: Submit, azure: AzureDouble, look_once: Any) -> None:
    run = submit()
    end(azure, run.name, PREEMPTED)
    lines: list[str] = []
    both = [threading.Thread(target=lambda: lines.append(look_once(run))) for _ in range(2)]
    for one in both:
        one.start()
    for one in both:
        one.join(60)
    assert len(lines) == 2
    assert [job.name for job in azure.jobs.all()] == [f"{run.name}-a2", run.name]


def test_supervisor_leaves_a_running_job_alone(submit: Submit, azure: AzureDouble, look_once: Any) -> None:
    run = submit()
    azure.move(run.name, "Running")
    assert look_once(run) == f"run {run.name}: attempt 1 is running"
    assert schedules(azure) == [f"supervise-{run.name}"]


def test_supervisor_counts_evictions_of_all_attempts(submit: Submit, azure: AzureDouble, look_once: Any) -> None:
    """Nothing is in memory: limits and the same failure twice are judged by what the workspace knows."""
    run = submit(max_preemptions=2, max_restarts=5)
    for job, error in ((run.name, PREEMPTED), (f"{run.name}-a2", CRASH), (f"{run.name}-a3", CRASH)):
        end(azure, job, error)
        line = look_once(run)
    assert line == f"run {run.name} is over, failed: schedule supervise-{run.name} deleted"
    assert len(azure.jobs.all()) == 3


def test_supervisor_respects_the_users_cancel(submit: Submit, azure: AzureDouble, look_once: Any) -> None:
    run = submit()
    azure.move(run.name, "Running")
    run.cancel()
    assert schedules(azure) == []
    assert look_once(run).startswith(f"run {run.name} is over, cancelled")
    assert len(azure.jobs.all()) == 1
    run.resume()
    assert schedules(azure) == [f"supervise-{run.name}"]
    end(azure, f"{run.name}-a2", PREEMPTED)
    look_once(run)
    assert azure.jobs.get(f"{run.name}-a3") is not None


def test_supervisor_cancels_a_job_that_appears_later(
    submit: Submit, azure: AzureDouble, look_once: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The submitter died with its request in flight, and its user has cancelled the run since."""
    sent: list[tuple[Wire, str, dict[str, Any]]] = []

    def dying(wire: Wire, name: str, body: dict[str, Any]) -> None:
        sent.append((wire, name, body))
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Wire, "put_job", dying)
        with pytest.raises(KeyboardInterrupt):
            submit()
    run = orchestrator_of(tmp_path).attach(sent[0][1])
    run.cancel()
    assert look_once(run) == f"run {run.name} has no job yet"
    Wire.put_job(*sent[0])
    look_once(run)
    assert azure.job(run.name).status == "Canceled"
    assert look_once(run).startswith(f"run {run.name} is over, cancelled")
    assert schedules(azure) == []


def test_cancel_disables_the_schedule_before_deleting_it(submit: Submit, azure: AzureDouble) -> None:
    """Azure, and the double, refuse to delete an enabled schedule, which would be billed on and on."""
    run = submit()
    azure.move(run.name, "Running")
    name, scope = f"supervise-{run.name}", (azure.place.resource_group, azure.place.workspace)
    wire = AzureBackend(Path("home"), os.environ).wire({})
    with pytest.raises(HttpResponseError, match="must be disabled"):
        wire._ml().schedules.service_client.begin_delete(*scope, name)
    run.cancel()
    assert schedules(azure) == []
    wire.delete_schedule(name)


def test_supervisor_restarts_a_simulated_preemption(submit: Submit, azure: AzureDouble, look_once: Any) -> None:
    run = submit()
    azure.move(run.name, "Running")
    run.preempt()
    look_once(run)
    assert azure.jobs.get(f"{run.name}-a2") is not None


def size_of(azure: AzureDouble, job: str) -> str:
    """Return the size of the machines of a job's cluster."""
    name = azure.job(job).properties["computeId"].rpartition("/")[2]
    return str(azure.state.resources[f"computes/{name}"]["properties"]["properties"]["vmSize"])


def leave_machines(azure: AzureDouble, run: Run) -> None:
    """Keep the run's job in the queue of a cluster that gets no machines."""
    azure.move(run.name, "Queued")
    (cluster,) = azure.state.below("computes")
    azure.without_capacity(cluster["name"])


def test_supervisor_continues_a_move_of_a_follower(submit: Submit, azure: AzureDouble, look_once: Any) -> None:
    run = submit(sku=[T4, A100])
    leave_machines(azure, run)
    assert require(run._backend, Resumes).restart_if_needed(run.name)
    assert azure.job(run.name).status == "Canceled"
    assert look_once(run) == f"run {run.name}: attempt 2 is queued"
    assert size_of(azure, f"{run.name}-a2") == A100
    assert len(azure.jobs.all()) == 2


def test_status_here_follows_a_move_of_the_supervisor(
    submit: Submit, azure: AzureDouble, look_once: Any, tmp_path: Path
) -> None:
    run = submit(sku=[T4, A100])
    leave_machines(azure, run)
    look_once(run)
    assert azure.job(run.name).status == "Canceled"
    assert run.status().state == RunState.PREEMPTED
    look_once(run)
    azure.move(f"{run.name}-a2", "Running")
    status = run.status()
    assert (status.state, status.attempt) == (RunState.RUNNING, 2)
    other = orchestrator_of(tmp_path / "other").attach(f"azure://double/{run.name}")
    assert run.cost().price_per_hour == other.cost().price_per_hour, "that of its new machines"
    azure.move(f"{run.name}-a2", "Failed", PREEMPTED)
    assert require(run._backend, Resumes).restart_if_needed(run.name)
    assert size_of(azure, f"{run.name}-a3") == A100


def test_users_cancel_ends_a_move(submit: Submit, azure: AzureDouble, tmp_path: Path) -> None:
    """The cancel of a move did not arrive; then the run's user cancels it on another machine."""
    run = submit(sku=[T4, A100])
    leave_machines(azure, run)
    azure.fail_next("POST *jobs/*/cancel", status=403)
    backend = require(run._backend, Resumes)
    with pytest.raises(AuthError):
        backend.restart_if_needed(run.name)
    orchestrator_of(tmp_path / "other").attach(f"azure://double/{run.name}").cancel()
    assert not backend.restart_if_needed(run.name)
    assert run.status().state == RunState.CANCELLED


def test_status_here_has_the_attempts_of_azure(submit: Submit, azure: AzureDouble, look_once: Any) -> None:
    run = submit()
    end(azure, run.name, PREEMPTED)
    assert run.status().state == RunState.PREEMPTED
    look_once(run)
    azure.move(f"{run.name}-a2", "Running")
    status = run.status()
    assert (status.state, status.attempt) == (RunState.RUNNING, 2)


def test_refused_submission_leaves_no_schedule(submit: Submit, azure: AzureDouble) -> None:
    azure.fail_next("PUT */jobs/*", status=403)
    with pytest.raises(UserError):
        submit()
    assert schedules(azure) == []


def test_refused_restart_is_tried_at_the_next_look(submit: Submit, azure: AzureDouble, look_once: Any) -> None:
    run = submit()
    end(azure, run.name, PREEMPTED)
    azure.fail_next("PUT */jobs/*", status=403)
    with pytest.raises(UserError):
        look_once(run)
    assert schedules(azure) == [f"supervise-{run.name}"]
    look_once(run)
    assert azure.jobs.get(f"{run.name}-a2") is not None


def test_schedule_of_an_old_unknown_run_is_deleted(submit: Submit, azure: AzureDouble, look_once: Any) -> None:
    """The submitter died between the schedule and the job."""
    run = submit()
    with azure.state.lock:
        job = azure.jobs._jobs.pop(run.name)
    assert look_once(run) == f"run {run.name} has no job yet"
    azure.state.resources[f"schedules/supervise-{run.name}"]["systemData"]["createdAt"] = "2026-01-01T00:00:00.000Z"
    assert look_once(run) == f"run {run.name} does not exist: schedule supervise-{run.name} deleted"
    assert (schedules(azure), job.name) == ([], run.name)


def test_plan_shows_schedule_and_cost(submit: Submit, capsys: pytest.CaptureFixture[str]) -> None:
    submit()
    flags = ("--supervise", "cloud", "--dry-run")
    assert main(["submit", "pretrain", "-f", "job.yaml", *flags]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "by Azure: every 10 minutes a job on serverless Standard_DS3_v2" in out
    assert "about $3.30 a day (6 minutes for each job, assumed)" in out
    assert "and Azure promises no warning; evicted time" in out
    assert "Azure restarts it each time" in out
    assert main(["submit", "pretrain", "-f", "job.yaml", *flags, "-o", "json"]) == 0
    supervisor = json.loads(capsys.readouterr().out)["request"]["supervisor"]
    trigger = supervisor["body"]["properties"]["trigger"]
    assert trigger == {"triggerType": "Recurrence", "frequency": "Minute", "interval": 10}


@pytest.mark.parametrize(
    ("section", "warned"),
    [
        ({}, True),
        ({"identity_client_id": "00000000-0000-4000-8000-000000000009"}, False),
        ({"supervise_cluster": "small"}, False),
        ({"supervise": "here"}, False),
    ],
)
def test_serverless_supervisor_needs_an_identity(tmp_path: Path, section: dict[str, Any], warned: bool) -> None:
    """A new workspace has only a system-assigned identity, which serverless machines do not get."""
    write_corpus(tmp_path / "corpus.txt")
    compute = {"cluster": "gpu", "sku": "Standard_NC4as_T4_v3"}
    own = {"backend": "azure", "compute": compute, "azure": {"supervise": "cloud", **section}}
    write_spec(tmp_path / "job.yaml", data={"text": [str(tmp_path / "corpus.txt")]}, **own)
    plan = orchestrator_of(tmp_path).plan(file=tmp_path / "job.yaml")
    assert any("the supervisor cannot sign in" in warning for warning in plan.warnings) == warned


@pytest.mark.parametrize(
    ("section", "environment", "message"),
    [
        ({"identity": "user"}, {}, "would need your own identity"),
        (
            {"secrets_in_body": True},
            {"secrets": {"MY_TOKEN": "env:MY_TOKEN"}},
            "a restart needs MY_TOKEN of this machine",
        ),
    ],
)
def test_supervision_that_lacks_something_is_refused(
    submit: Submit, section: dict[str, Any], environment: dict[str, Any], message: str
) -> None:
    with pytest.raises(SpecError, match=message):
        submit(azure={"supervise": "cloud", **section}, environment=environment)


@pytest.mark.long
def test_supervisor_imports_no_training_package() -> None:
    """Its image has no torch, no transformers and no MLflow."""
    code = (
        "import sys, importlib.metadata as m\n"
        f"import {look.__module__}\n"
        "import orchestrator.backends.azure.runs.dispatch, orchestrator.backends.azure.runs.failover\n"
        "import azure.ai.ml, azure.identity\n"
        "names = m.packages_distributions()\n"
        "print(*sorted({d for t in {n.partition('.')[0] for n in sys.modules} for d in names.get(t, ())}))\n"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"torch", "mlflow", "mlflow-skinny", "transformers"} & {*found.stdout.split()}
