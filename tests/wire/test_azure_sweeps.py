"""Sweeps of Azure's service: submitted once, read into the usual table, cancelled."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from wire_entities import write_sweep

from orchestrator.backends.azure.native_sweeps import alias
from orchestrator.backends.azure.runs import observer
from orchestrator.backends.azure.wire.control_plane import Wire
from orchestrator.cli.main import main
from orchestrator.client import Orchestrator
from orchestrator.runs.status import RunState
from orchestrator.support.errors import ConflictError, NotFoundError, QuotaError, RequestRefused, ServiceError
from orchestrator.support.home import SWEEPS
from orchestrator.sweep import Sweep
from orchestrator.testing import AzureDouble
from tests.conftest import wait_for

pytestmark = pytest.mark.usefixtures("small_snapshot")

RATE, STEPS = "optimizer.learning_rate", "train.steps"
JOB = "PUT management.azure.com*/jobs/*"
ARRIVING = "Azure's sweep service does not show the sweep yet: its submission may still arrive"
BANDIT = {"policy": "bandit", "slack_factor": 0.5, "delay": 2}


@pytest.fixture
def orchestrator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Orchestrator:
    monkeypatch.setenv("ORCHESTRATOR_AZURE_POLL_SECONDS", "0.1")
    monkeypatch.setenv("ORCHESTRATOR_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return Orchestrator(home=tmp_path / "home", environ={})


def submit(orchestrator: Orchestrator, space: dict[str, Any], **sections: Any) -> Sweep:
    sweeps = orchestrator.sweeps
    return sweeps.submit(sweeps.plan(file=write_sweep(space, **sections)))


def sent_jobs(azure: AzureDouble) -> tuple[list[str], int]:
    """Return the jobs of the workspace, and how often one was sent."""
    return [job.name for job in azure.jobs.all()], len(azure.requests(JOB))


def test_sweep_by_command_line_runs_to_its_end(
    running_azure: AzureDouble, orchestrator: Orchestrator, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    space = {RATE: [0.01, 9.0, 0.012, 100.0], STEPS: [2]}
    write_sweep(space, early_termination=BANDIT, limits={"concurrent": 1})
    assert main(["submit", "sweep", "-f", "sweep.yaml", "-o", "json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    name, rows = shown["name"], shown["rows"]
    assert (shown["state"], shown["ended"], shown["trials"], shown["mlflow_run_id"]) == ("completed", 4, 4, name)
    assert [row["state"] for row in rows] == ["completed", "stopped", "completed", "failed"]
    assert [row["runs"] for row in rows] == [[f"{name}_{number}"] for number in range(4)]
    assert [row["settings"] for row in rows] == [{RATE: rate, STEPS: 2} for rate in (0.01, 9.0, 0.012, 100.0)]
    assert [row["values"] for row in rows] == [[11.0, 10.5], [9001.0, 9000.5], [13.0, 12.5], []]
    assert [row["outcome"] for row in rows] == [10.5, 9000.5, 12.5, None]
    assert [row["incumbent"] for row in rows] == [True, False, False, False]
    assert rows[1]["why"] == "stopped at report 2: 9000 > 10.5 x 1.5"
    assert "status code 3" in rows[3]["why"]

    assert main(["sweep", "best", "@last", "--spec", "best.yaml"]) == 0
    assert capsys.readouterr().out.startswith(f"trial 0 of sweep {name}: validation_loss 10.5\n")
    assert yaml.safe_load(Path("best.yaml").read_text())["optimizer"]["learning_rate"] == 0.01
    assert main(["list"]) == 0
    listed = [line.split()[0] for line in capsys.readouterr().out.splitlines()[1:]]
    assert sorted(listed) == [f"{name}_{number}" for number in range(4)], "the service's trials are listed as runs"
    assert main(["logs", f"{name}_0"]) == 0
    assert capsys.readouterr().out == "learning rate 0.01\n"
    assert main(["download", f"{name}_0", "model", "--to", "best"]) == 0
    assert json.loads(Path("best/model/settings.json").read_text())[RATE] == 0.01
    assert main(["cancel", name]) == 0
    assert main(["wait", name, "-o", "json"]) == 0

    asked = len(running_azure.requests())
    sweep = orchestrator.sweeps.attach(name)
    assert sweep.status().as_dict() == shown
    assert len(running_azure.requests()) == asked, "finished trials are not requested again"
    assert "10.50" in sweep.report().read_text()
    assert "4 of 4 trials" in sweep._repr_html_()
    assert set(sweep.importance()) == set(), "three trials are too few for importance"
    run = orchestrator.attach(f"{name}_3")
    assert (run.status().state, run.plan()["spec"]["optimizer"]["learning_rate"]) == (RunState.FAILED, 100.0)
    with pytest.raises(ConflictError, match="did not make its job"):
        run.resume()
    assert run.wait(max_restarts=3).attempt == 1
    assert not orchestrator.sweeps.submit(orchestrator.sweeps.plan(file=Path("sweep.yaml"))).created
    assert len(running_azure.requests(JOB)) == 1

    other = Orchestrator(home=tmp_path / "other", environ={}).sweeps
    seen = other.attach(f"azure://double/{name}").status().as_dict()
    assert {**seen, "folder": ""} == {**shown, "folder": ""}
    with pytest.raises(NotFoundError, match="unknown sweep 'azure://double/nothing'"):
        other.attach("azure://double/nothing")


def test_cancelled_sweep_is_continued_here_only(
    running_azure: AzureDouble, orchestrator: Orchestrator, capsys: pytest.CaptureFixture[str]
) -> None:
    space, limits = {RATE: {"low": 1.0, "high": 9.0, "log": True}}, {"trials": 3, "concurrent": 2}
    sweep = submit(orchestrator, space, sampling="random", limits=limits)
    wait_for(lambda: [row.reports for row in sweep.status().rows] == [2, 2], what="reports of two trials at a time")
    assert {row.state for row in sweep.status().rows} == {"running"}
    with pytest.raises(ConflictError, match="is running"):
        sweep.resume()
    assert main(["cancel", f"azure://double/{sweep.name}"]) == 0
    assert capsys.readouterr().out == f"cancelled  {sweep.name}\n"
    status = sweep.wait(timeout=60)
    assert (status.state, status.reason, status.ended) == (RunState.CANCELLED, "it was cancelled", 2)
    assert [row.state for row in status.rows] == ["ended early", "ended early"]
    assert [row.outcome for row in status.rows] == [1000 * row.settings[RATE] + 0.5 for row in status.rows]
    assert [job.status for job in running_azure.jobs.all()] == ["Canceled"] * 3

    here = f"orchestrator submit sweep -f {sweep.folder.path / 'here.yaml'}"
    with pytest.raises(ConflictError, match="cannot resume a sweep") as refused:
        sweep.resume()
    assert refused.value.fix == here
    assert f">{here}\n" in sweep.report().read_text(), "its page shows a working command"
    with pytest.raises(ConflictError, match="cannot add trials to a sweep") as refused:
        sweep.extend(2)
    assert refused.value.fix == f"{here} --set limits.trials=5"
    with pytest.raises(ConflictError, match="is cancelled") as refused:
        orchestrator.sweeps.submit(orchestrator.sweeps.plan(file=Path("sweep.yaml")))
    assert refused.value.fix == here
    again = orchestrator.sweeps.plan(file=sweep.folder.path / "here.yaml", sets=["limits.trials=5"])
    assert (again.on_service, again.record.name == sweep.name) == (False, False)
    sets = ["sampling=tpe", f"warm_start=[{sweep.name}]"]
    begun = orchestrator.sweeps.plan(file=sweep.folder.path / "here.yaml", sets=sets)
    assert [(one.sweep, one.used) for one in begun.record.earlier] == [(sweep.name, 2)]


def test_dry_run_prints_the_body_that_is_sent(
    azure: AzureDouble, orchestrator: Orchestrator, capsys: pytest.CaptureFixture[str]
) -> None:
    """The digest in its tags covers the whole body."""
    file = write_sweep({RATE: [0.01, 0.02]})
    assert main(["plan", "sweep", "-f", str(file), "-o", "json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    sweep = orchestrator.sweeps.submit(orchestrator.sweeps.plan(file=file))
    assert shown["sweep"]["name"] == sweep.name
    tags = azure.job(sweep.name).properties["tags"]
    assert shown["request"]["properties"]["tags"]["orchestrator.request"] == tags["orchestrator.request"]


@pytest.mark.parametrize("driver", ["here", "service"])
def test_cluster_has_room_for_concurrent_trials(azure: AzureDouble, orchestrator: Orchestrator, driver: str) -> None:
    file = write_sweep({RATE: [0.01, 0.02, 0.03, 0.04]}, limits={"concurrent": 3}, driver=driver)
    document = yaml.safe_load(file.read_text())
    del document["trial"]["compute"]["max_nodes"]
    file.write_text(yaml.safe_dump(document))
    planned = orchestrator.sweeps.plan(file=file)
    facts = dict(planned.facts())
    assert facts["cluster"].startswith("cpu: 0 to 3 x Standard_D16s_v5, ")
    assert facts["room"].startswith("for 3 of 3 concurrent trials;")
    cost = 3 * (planned.plan.compute.price_per_hour or 0) * (5 * 60 + 120) / 3600
    assert facts["overhead"].startswith(f"about ${cost:,.2f} for 5 minutes to start (assumed) and 120 s idle")
    if driver == "service":  # `test_azure_sweeps_here` submits the other
        orchestrator.sweeps.submit(planned)
        assert max_nodes(azure) == 3


def test_small_quota_makes_trials_wait(
    azure: AzureDouble, orchestrator: Orchestrator, capsys: pytest.CaptureFixture[str]
) -> None:
    azure.set_quota("standardDSv5Family", 40)
    file = write_sweep({RATE: [0.01, 0.02, 0.03, 0.04]}, limits={"concurrent": 4})
    document = yaml.safe_load(file.read_text())
    del document["trial"]["compute"]["max_nodes"]
    file.write_text(yaml.safe_dump(document))
    orchestrator.sweeps.submit(orchestrator.sweeps.plan(file=file))
    assert max_nodes(azure) == 2
    assert "warning: the quota allows 2 of 4 machines" in capsys.readouterr().err


def test_own_maximum_of_machines_is_warned_of(azure: AzureDouble, orchestrator: Orchestrator) -> None:
    file = write_sweep({RATE: [0.01, 0.02, 0.03, 0.04]}, limits={"concurrent": 4})
    planned = orchestrator.sweeps.plan(file=file, sets=["trial.compute.max_nodes=2"])
    text = "trial.compute.max_nodes 2: 2 of 4 concurrent runs have machines, the others wait in the queue"
    assert [one for one in planned.record.warnings if one.startswith(text)]
    assert dict(planned.facts())["room"].startswith("for 2 of 4 concurrent trials, the others wait in the queue")


def test_best_trial_without_a_metric_is_no_result(
    azure: AzureDouble, orchestrator: Orchestrator, capsys: pytest.CaptureFixture[str]
) -> None:
    """Azure may name a trial the best that reported nothing: neither command fails, and both report the same state."""
    sweep = submit(orchestrator, {RATE: [0.01, 0.02]})
    name = f"{sweep.name}_0"
    tags = {"hyperparameters": json.dumps({alias(RATE): "0.01"})}
    azure.jobs.submit(name, {"jobType": "Command", "tags": tags}, parent=sweep.name)
    for moved in ("Running", "Completed"):
        azure.move(name, moved)
    azure.move(sweep.name, "Running")
    azure.job(sweep.name).properties["properties"] = {"best_child_run_id": name}
    capsys.readouterr()
    assert main(["sweep", "best", sweep.name]) == 5
    assert f"no trial of sweep {sweep.name} has a result" in capsys.readouterr().err
    assert main(["sweep", "show", sweep.name]) == 0
    (row,) = [line for line in capsys.readouterr().out.splitlines() if "0.01" in line]
    assert "completed" in row.split()
    assert main(["status", name]) == 0
    assert "completed" in capsys.readouterr().out.split()


def max_nodes(azure: AzureDouble) -> int:
    """Return the maximum number of machines in the last body of the cluster."""
    body = azure.requests("PUT *computes/cpu*")[-1].body
    return int(body["properties"]["properties"]["scaleSettings"]["maxNodeCount"])


@pytest.fixture
def without_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retry without a pause."""
    monkeypatch.setattr(time, "sleep", lambda seconds: None)


@pytest.mark.usefixtures("without_pause")
@pytest.mark.parametrize(
    ("when", "more"), [("reply", 0), ("connection", 0), ("upload", 0), ("429", 1), ("503", 2)], ids=str
)
def test_lost_replies_leave_one_sweep(azure: AzureDouble, orchestrator: Orchestrator, when: str, more: int) -> None:
    if when.isdigit():
        azure.fail_next(JOB, status=int(when), retry_after=0.01, times=more)
    else:
        azure.reset_next(JOB, when=when)
    sweep = submit(orchestrator, {RATE: [0.01, 0.02]})
    jobs, puts = sent_jobs(azure)
    assert jobs == [sweep.name]
    assert puts == (1 if when == "reply" else 2 if when in {"connection", "upload"} else 1 + more)
    assert sweep.status().state == RunState.STARTING
    assert (azure.faults.left, azure.violations) == ([], [])


@pytest.mark.usefixtures("without_pause")
def test_unknown_sweep_submission_is_settled_later(
    azure: AzureDouble, orchestrator: Orchestrator, monkeypatch: pytest.MonkeyPatch
) -> None:
    azure.reset_next(JOB, when="reply")
    put = Wire.put_job

    def lose_all_answers(wire: Wire, name: str, body: dict[str, Any]) -> None:
        azure.fail_next(f"GET *jobs/{name}", status=403)
        put(wire, name, body)

    monkeypatch.setattr(Wire, "put_job", lose_all_answers)
    with pytest.raises(ServiceError, match="whether Azure has job") as failure:
        submit(orchestrator, {RATE: [0.01, 0.02]})
    sweep = orchestrator.sweeps.attach("@last")
    assert failure.value.fix == f"orchestrator sweep show {sweep.name}"
    assert sweep.status().state == RunState.STARTING
    assert not orchestrator.sweeps.submit(orchestrator.sweeps.plan(file=Path("sweep.yaml"))).created
    assert sent_jobs(azure) == ([sweep.name], 1)


@pytest.mark.usefixtures("without_pause")
def test_resume_sends_sweep_that_was_not_sent(
    azure: AzureDouble, orchestrator: Orchestrator, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Wire, "put_job", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            submit(orchestrator, {RATE: [0.01, 0.02]})
    sweep = orchestrator.sweeps.attach("@last")
    assert (sweep.status().state, sweep.status().reason) == (RunState.QUEUED, ARRIVING)
    monkeypatch.setattr(observer, "GRACE_SECONDS", 0.0)
    assert sweep.status().state == RunState.FAILED
    assert "not submitted" in str(sweep.status().reason)
    with pytest.raises(ConflictError) as refused:
        orchestrator.sweeps.submit(orchestrator.sweeps.plan(file=Path("sweep.yaml")))
    assert refused.value.fix == f"orchestrator resume {sweep.name}"
    sweep.resume()
    assert sweep.status().state == RunState.STARTING
    assert sent_jobs(azure) == ([sweep.name], 1)


@pytest.mark.usefixtures("without_pause")
@pytest.mark.parametrize("grace", [90.0, 0.0])
def test_cancel_reaches_a_sweep_that_arrives_late(
    azure: AzureDouble,
    orchestrator: Orchestrator,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    grace: float,
) -> None:
    """The request is in transit while the user cancels, and arrives before or after the end of the grace period."""
    put, sent = Wire.put_job, list[tuple[Any, ...]]()
    monkeypatch.setattr(observer, "GRACE_SECONDS", grace)

    def delay(*request: Any) -> None:
        sent.append(request)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Wire, "put_job", delay)
        with pytest.raises(KeyboardInterrupt):
            submit(orchestrator, {RATE: [0.01, 0.02]})
    sweep = orchestrator.sweeps.attach("@last")
    capsys.readouterr()
    assert main(["cancel", sweep.name, "--no-wait"]) == 0
    shown = capsys.readouterr()
    assert shown.out.split() == ["queued" if grace else "cancelled", sweep.name]
    assert (f"{ARRIVING}; it is cancelled then" in shown.err) == bool(grace)
    assert not azure.violations
    put(*sent[0])
    azure.fail_next("POST *jobs/*/cancel", status=403, times=1)
    assert not sweep.status().state.terminal
    assert f"warning: cannot cancel sweep {sweep.name}" in capsys.readouterr().err
    sweep.status()
    assert azure.job(sweep.name).status in {"CancelRequested", "Canceled"}
    azure.move(sweep.name, "Canceled")
    assert (sweep.status().state, sweep.status().reason) == (RunState.CANCELLED, "it was cancelled")


@pytest.mark.usefixtures("without_pause")
def test_refused_sweep_leaves_nothing(azure: AzureDouble, orchestrator: Orchestrator, tmp_path: Path) -> None:
    azure.set_quota("standardDSv5Family", 6)
    with pytest.raises(QuotaError):
        submit(orchestrator, {RATE: [0.01, 0.02]})
    assert azure.requests("PUT *") == []
    azure.set_quota("standardDSv5Family", 400)
    azure.fail_next(JOB, status=400, message="no such thing")
    with pytest.raises(RequestRefused, match="refused"):
        submit(orchestrator, {RATE: [0.01, 0.02]})
    assert list((tmp_path / "home" / SWEEPS).iterdir()) == []
    other = Orchestrator(home=tmp_path / "other", environ={})
    name = submit(other, {RATE: [0.01, 0.02]}).name
    with pytest.raises(ConflictError, match="exists in the workspace") as refused:
        submit(orchestrator, {RATE: [0.01, 0.02]})
    assert refused.value.fix == f"orchestrator attach azure://double/{name}"
    assert sent_jobs(azure) == ([name], 2)


@pytest.mark.usefixtures("without_pause")
def test_follower_outlasts_an_outage(azure: AzureDouble, orchestrator: Orchestrator) -> None:
    sweep = submit(orchestrator, {RATE: [0.01, 0.02]})
    before = sweep.status()
    azure.fail_next(f"GET *jobs/{sweep.name}", status=503, retry_after=0.01, times=50)
    during = sweep.status()
    assert (during.state, "HTTP 503" in str(during.reason)) == (before.state, True)
    azure.faults.clear()
    assert sweep.status() == before


def test_trials_have_their_endings(azure: AzureDouble, orchestrator: Orchestrator) -> None:
    """Azure reports Canceled for every trial that the service ended; reports and limits give the state."""
    space = {"objective.next_sentence": [True, False], RATE: [0.01, 0.02, 0.03, 0.04]}
    limits = {"concurrent": 8, "trial_hours": 2}
    policy = {"policy": "bandit", "slack_amount": 1.0, "delay": 2}
    sweep = submit(orchestrator, space, limits=limits, early_termination=policy)
    ends = [
        ([3.0, 2.0], "Completed", 1.0),
        ([4.0, 3.5, 2.9], "Canceled", 1.0),
        ([2.5], "Canceled", 2.0),
        ([], "Completed", 1.0),
        ([2.0], "Canceled", 1.0),
        ([9.0], "Running", 1.0),
    ]
    for number, (reports, status, hours) in enumerate(ends):
        name = f"{sweep.name}_{number}"
        settings = {alias("objective.next_sentence"): "false" if number % 2 else "true", alias(RATE): "0.03"}
        body = {"jobType": "Command", "tags": {"hyperparameters": json.dumps(settings)}}
        job = azure.jobs.submit(name, body, parent=sweep.name)
        for moved in ("Running", status):
            azure.move(name, moved)
        job.started, job.ended = "2026-01-01T00:00:00Z", f"2026-01-01T0{hours:.0f}:00:00Z"
        folder = azure.folder() / "orchestrator" / "runs" / name / "outputs"
        folder.mkdir(parents=True)
        lines = [
            {"step": step, "time": 1.0, "metrics": {"validation_loss": value}} for step, value in enumerate(reports)
        ]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    azure.move(sweep.name, "Running")
    azure.job(sweep.name).properties["properties"] = {"best_child_run_id": f"{sweep.name}_0"}
    status = sweep.status()
    assert [(row.state, row.why) for row in status.rows] == [
        ("completed", None),
        ("stopped", "stopped at report 2: 3.5 > 2 + 1"),
        ("timed out", "took more than 2 h"),
        ("completed", "it never reported validation_loss"),
        ("stopped", "by Azure's sweep service (bandit), which does not report its numbers"),
        ("running", None),
    ]
    assert [row.outcome for row in status.rows] == [2.0, 2.9, 2.5, None, 2.0, None]
    assert [row.settings["objective.next_sentence"] for row in status.rows] == [True, False] * 3
    assert status.rows[0].settings[RATE] == 0.03
    assert status.best == status.rows[0], "in a tie, the trial that Azure names"
    assert status.rows[0].seconds == 3600.0

    azure.move(f"{sweep.name}_5", "Canceled")
    azure.job(f"{sweep.name}_5").ended = "2026-01-01T01:00:00Z"
    azure.move(sweep.name, "Canceled")
    status = sweep.status()
    assert (status.state, status.rows[5].state, status.ended) == (RunState.CANCELLED, "ended early", 6)
