"""Restarts on Azure: evictions and errors counted apart, by every command that follows, and Azure's own requeue."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from orchestrator.backends.azure.runs.observer import Observer
from orchestrator.backends.azure.runs.record import RunRecord
from orchestrator.backends.azure.wire.control_plane import Wire
from orchestrator.backends.log_query import LogQuery
from orchestrator.cli.main import main
from orchestrator.client import Orchestrator
from orchestrator.run import Run
from orchestrator.runs.restarts import Backoff
from orchestrator.runs.status import AttemptEnd, EndCause, RunState
from orchestrator.testing import AzureDouble
from orchestrator.testing.jobs.job_table import PREEMPTED
from tests.conftest import wait_for, write_corpus, write_spec
from tests.home_modes import other_modes, umask

pytestmark = pytest.mark.usefixtures("small_snapshot")

CRASH = {"code": "UserError", "message": "Execution failed. User process '0' exited with status code 1. hotspots.csv"}
MOUNT = {"code": "UserError", "message": "AzureMLCompute job failed. AZFMountError: unable to mount Azure File"}
Submit = Callable[..., Run]


@pytest.fixture
def submit(tmp_path: Path, azure: AzureDouble, monkeypatch: pytest.MonkeyPatch) -> Submit:
    """Return a function that submits the micro job on one spot machine."""
    monkeypatch.setenv("ORCHESTRATOR_AZURE_POLL_SECONDS", "0.0001")  # pauses before restarts are multiples of it
    monkeypatch.setenv("ORCHESTRATOR_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    write_corpus(tmp_path / "corpus.txt")

    def run(tier: str = "spot", **more: Any) -> Run:
        compute = {"cluster": "gpu", "sku": "Standard_NC4as_T4_v3", "tier": tier}
        write_spec(tmp_path / "job.yaml", data={"text": ["corpus.txt"]}, compute=compute, backend="azure", **more)
        orchestrator = Orchestrator(home=tmp_path / "home", environ={})
        return orchestrator.submit(orchestrator.plan(file=tmp_path / "job.yaml"))

    return run


def end(azure: AzureDouble, job: str, error: dict[str, str] | None) -> None:
    """Run a job, and end it."""
    wait_for(lambda: azure.jobs.get(job), what=job)
    azure.move(job, "Running")
    azure.move(job, "Failed" if error else "Completed", error)


def follow(run: Run, azure: AzureDouble, errors: list[dict[str, str]]) -> None:
    """Wait for a run whose attempts end with these errors."""
    ended = threading.Thread(target=run.wait, args=[60])
    ended.start()
    for number, error in enumerate(errors, 1):
        end(azure, run.name if number == 1 else f"{run.name}-a{number}", error)
    ended.join(60)
    assert not ended.is_alive()


def test_crash_is_not_restarted_like_an_eviction(submit: Submit, azure: AzureDouble) -> None:
    run = submit()
    follow(run, azure, [PREEMPTED, PREEMPTED, PREEMPTED, CRASH])
    status = run.status()
    assert (status.state, status.attempt, status.exit_code) == (RunState.FAILED, 4, 1)
    assert [attempt.cause for attempt in status.attempts] == [EndCause.PREEMPTED] * 3 + [EndCause.ERROR]
    assert len(azure.jobs.all()) == 4


def test_lost_mount_is_an_error_with_its_cause(
    submit: Submit, azure: AzureDouble, capsys: pytest.CaptureFixture[str]
) -> None:
    run = submit(max_restarts=1)
    follow(run, azure, [PREEMPTED, MOUNT, MOUNT])
    assert [attempt.cause for attempt in run.status().attempts] == [EndCause.PREEMPTED, EndCause.MOUNT, EndCause.MOUNT]
    capsys.readouterr()
    assert main(["status", run.name]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "cause the data could not be mounted or downloaded" in out
    assert "2: failed (mount), " in out


def test_preemptions_have_their_own_limit(submit: Submit, azure: AzureDouble) -> None:
    run = submit(max_restarts=3, max_preemptions=1)
    follow(run, azure, [PREEMPTED, PREEMPTED])
    assert (run.status().state, len(azure.jobs.all())) == (RunState.PREEMPTED, 2)


def test_same_failure_twice_stops_with_the_reason(submit: Submit, azure: AzureDouble) -> None:
    run = submit(max_restarts=9)
    follow(run, azure, [CRASH, CRASH])
    status = run.status()
    assert (status.state, len(azure.jobs.all())) == (RunState.FAILED, 2)
    assert str(status.reason).endswith("not restarted: it failed twice in the same way before the first report")
    assert run.follow_up()[1], "it is over"
    run.resume()
    end(azure, f"{run.name}-a3", CRASH)
    assert not run.follow_up()[1], "attempts before a resume do not count"


def test_followers_at_once_record_one_attempt(submit: Submit, azure: AzureDouble, tmp_path: Path) -> None:
    """A follower has read the record when another one records and submits the next attempt."""
    run = submit()
    end(azure, run.name, PREEMPTED)
    others = iter([Orchestrator(home=tmp_path / "home", environ={}).attach(run.name)])

    class Interleaved(Backoff):
        def pause(self, name: str, ends: Sequence[AttemptEnd]) -> float:
            for other in others:
                assert not other.follow_up()[1]
                end(azure, f"{run.name}-a2", PREEMPTED)
                assert other.status().state == RunState.PREEMPTED
            return 0.0

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("orchestrator.backends.azure.backend.Backoff", Interleaved)
        assert not run.follow_up()[1]
    assert [job.name for job in azure.jobs.all()] == [f"{run.name}-a2", run.name]
    assert run.status().attempt == 2


@pytest.mark.parametrize("verb", ["cancel", "preempt"])
def test_command_keeps_what_a_follower_records_meanwhile(
    submit: Submit, azure: AzureDouble, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    """The job is evicted and restarted after the command has read the record."""
    run = submit()
    azure.move(run.name, "Running")
    looks = 0

    def refresh(one: Observer, original: Callable[[Observer], RunRecord] = Observer.refresh) -> RunRecord:
        nonlocal looks
        record = original(one)
        looks += 1
        if looks == 1:
            azure.move(run.name, "Failed", PREEMPTED)
            assert not run.follow_up()[1]
            azure.move(f"{run.name}-a2", "Running")
        return record

    monkeypatch.setattr(Observer, "refresh", refresh)
    getattr(run, verb)()
    assert azure.job(f"{run.name}-a2").status == "Canceled"
    status = run.status()
    expected = RunState.CANCELLED if verb == "cancel" else RunState.PREEMPTED
    assert (status.state, status.attempt) == (expected, 2)


@pytest.mark.long
@pytest.mark.parametrize("command", ["attach", "wait", "logs -f", "supervise", "status -w"])
def test_unattended_preempted_run_is_restarted(submit: Submit, azure: AzureDouble, command: str) -> None:
    run = submit()
    end(azure, run.name, PREEMPTED)
    verb, *flags = command.split()
    codes: list[int] = []
    follower = threading.Thread(target=lambda: codes.append(main([verb, run.name, *flags])))
    follower.start()
    end(azure, f"{run.name}-a2", None)
    follower.join(60)
    assert codes == [0]
    assert run.status().state == RunState.COMPLETED


def test_followed_submit_restarts_a_job_lost_at_once(
    submit: Submit, azure: AzureDouble, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def put(wire: Wire, name: str, body: dict[str, Any], sent: Callable[..., None] = Wire.put_job) -> None:
        sent(wire, name, body)
        end(azure, name, None if name.endswith("-a2") else PREEMPTED)

    monkeypatch.setattr(Wire, "put_job", put)
    submit()  # writes the spec
    assert main(["submit", "pretrain", "-f", "job.yaml", "--set", "train.seed=77"]) == 0


def test_restart_without_the_secret_ends_with_its_name(
    submit: Submit, azure: AzureDouble, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A follower in another shell lacks the secret: no second job is sent, and the run can be resumed with it."""
    monkeypatch.setenv("MY_TOKEN", "first-value-1")
    secret = {"environment": {"secrets": {"MY_TOKEN": "env:MY_TOKEN"}}, "azure": {"secrets_in_body": True}}
    run = submit(**secret)
    capsys.readouterr()
    assert main(["plan", "pretrain", "-f", "job.yaml"]) == 0
    assert "an unattended restart after a reboot lacks it" in " ".join(capsys.readouterr().out.split())
    end(azure, run.name, PREEMPTED)
    monkeypatch.delenv("MY_TOKEN")
    assert main(["wait", run.name]) != 0
    assert "needs MY_TOKEN" in capsys.readouterr().err
    assert len(azure.jobs.all()) == 1
    status = run.status()
    assert status.state == RunState.FAILED
    assert "needs MY_TOKEN" in str(status.reason)
    assert main(["resume", run.name, "-d"]) == 2
    monkeypatch.setenv("MY_TOKEN", "second-value-2")
    assert main(["resume", run.name, "-d"]) == 0
    bodies = [str(job.properties) for job in azure.jobs.all()]
    assert len(bodies) == 2
    assert sum("second-value-2" in body for body in bodies) == 1


def write_log(azure: AzureDouble, job: str, text: str) -> None:
    """Replace the output of rank 0 of a job."""
    path = azure.folder("workspaceartifactstore") / f"ExperimentRun/dcid.{job}/user_logs/std_log_process_00.txt"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def text_of(run: Run) -> str:
    return b"".join(block.data for block in run.log_blocks(LogQuery())).decode()


FIRST = "the first life\nwith a second line\n"


@pytest.mark.parametrize("noticed_by", ["size", "start"])
def test_requeue_in_place_is_a_former_attempt(submit: Submit, azure: AzureDouble, noticed_by: str) -> None:
    run = submit()
    azure.move(run.name, "Running")
    job = azure.job(run.name)
    job.started = "2026-01-01T00:00:00Z"
    run.status()
    write_log(azure, run.name, FIRST)
    followed = run._backend.logs(run.name, LogQuery(follow=True))
    assert next(followed).data.decode() == FIRST
    azure.requeue(run.name)
    if noticed_by == "size":
        job.started = "2026-01-01T00:00:00Z"  # Azure reports the first start
        write_log(azure, run.name, "again\n")
    else:
        write_log(azure, run.name, FIRST + "and more, after the machines were lost\n")
    second = next(block.data.decode() for block in followed if block.data)
    assert second in {"again\n", FIRST + "and more, after the machines were lost\n"}
    assert run.status().attempt == 2
    assert text_of(run) == FIRST + second
    azure.move(run.name, "Completed")
    status = run.status()
    assert (status.state, status.attempt) == (RunState.COMPLETED, 2)
    assert [attempt.cause for attempt in status.attempts] == [EndCause.PREEMPTED, None]
    assert len(azure.jobs.all()) == 1
    assert text_of(run) == FIRST + second


def test_log_replaced_before_the_end_is_read_again(submit: Submit, azure: AzureDouble) -> None:
    """Azure reports the first start only, and the job has finished at the next look."""
    run = submit()
    azure.move(run.name, "Running")
    started = azure.job(run.name).started
    run.status()
    write_log(azure, run.name, FIRST)
    followed = run._backend.logs(run.name, LogQuery(follow=True))
    assert next(followed).data.decode() == FIRST
    azure.requeue(run.name)
    azure.job(run.name).started = started
    write_log(azure, run.name, "again\n")
    azure.move(run.name, "Completed")
    assert [block.data.decode() for block in followed if block.data] == ["again\n"]


def test_requeue_without_a_follower_is_counted_at_the_end(submit: Submit, azure: AzureDouble) -> None:
    run = submit()
    azure.move(run.name, "Running")
    azure.job(run.name).started = "2026-01-01T00:00:00Z"
    run.status()
    azure.requeue(run.name)
    azure.move(run.name, "Failed", PREEMPTED)
    assert (run.status().state, run.status().attempt) == (RunState.PREEMPTED, 2)
    run.resume()
    assert run.status().attempt == 3
    assert [job.name for job in azure.jobs.all()] == [f"{run.name}-a2", run.name]


def test_requeued_job_is_queued_and_runs_again(submit: Submit, azure: AzureDouble) -> None:
    run = submit()
    for status in ("Running", "Queued", "Running"):
        azure.move(run.name, status)
        seen = run.status()
    assert (seen.state, seen.attempt) == (RunState.RUNNING, 2)
    assert seen.attempts[0].ended is not None


@pytest.mark.parametrize("mask", [0, 0o022])
def test_submission_leaves_nothing_to_others(submit: Submit, azure: AzureDouble, tmp_path: Path, mask: int) -> None:
    with umask(mask):
        run = submit()
        azure.move(run.name, "Running")
        write_log(azure, run.name, "one line\n")
        text_of(run)
        end(azure, run.name, None)
        assert run.status().state == RunState.COMPLETED
    assert {path.name for path in (tmp_path / "home").iterdir()} >= {"azure", "backends", "cache"}
    assert other_modes(tmp_path / "home") == {}


def test_secret_in_a_saved_log_is_redacted(submit: Submit, azure: AzureDouble, tmp_path: Path) -> None:
    run = submit()
    azure.move(run.name, "Running")
    run.status()
    secret = "https://account.blob.core.windows.net/x?sv=1&sig=abcdefghijklmnopqrstuvwxyz0123456789"
    write_log(azure, run.name, f"before\n{secret}\nafter\n")
    text_of(run)
    (saved,) = (tmp_path / "home" / "azure" / run.name / "logs").rglob("*.txt")
    lines = saved.read_text().splitlines()
    assert (lines[0], lines[2]) == ("before", "after")
    assert "abcdef" not in lines[1]
    assert saved.stat().st_mode & 0o077 == 0


@pytest.mark.long
def test_value_of_a_run_secret_is_not_shown_later(
    submit: Submit, azure: AzureDouble, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`logs` is a process of its own, which never submitted the run."""
    value, key = "correct-horse-4711", "first line of a key\nsecond line of a key"
    monkeypatch.setenv("NOTE_PASS", value)
    monkeypatch.setenv("NOTE_KEY", key)
    secrets = {"NOTE_PASS": "env:NOTE_PASS", "NOTE_KEY": "env:NOTE_KEY"}
    run = submit(environment={"secrets": secrets}, azure={"secrets_in_body": True})
    azure.move(run.name, "Running")
    write_log(azure, run.name, f"before {value}\n{key}\nafter\n")
    command = [sys.executable, "-m", "orchestrator.cli.main", "logs", run.name]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "before REDACTED\n" in done.stdout
    assert "after\n" in done.stdout
    (saved,) = (tmp_path / "home" / "azure" / run.name / "logs").rglob("*.txt")
    for text in (done.stdout, done.stderr, saved.read_text()):
        assert not any(one in text for one in (value, *key.splitlines()))
    monkeypatch.delenv("NOTE_PASS")
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "the values of NOTE_PASS are not known here" in done.stderr
