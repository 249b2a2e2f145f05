"""Status, names and models that the local backend reads from run folders, without running a job."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
from contextlib import closing, suppress
from pathlib import Path

import pytest
from torch.distributed import TCPStore

from orchestrator.backends.debug.backend import DebugBackend
from orchestrator.backends.folder.run_folder import RUN_VARIABLE, LocalState, RunFolder
from orchestrator.backends.folder.run_processes import kill_leftovers
from orchestrator.backends.folder.supervision import read_exits
from orchestrator.backends.local.backend import LocalBackend
from orchestrator.backends.local.launch import LOOPBACK, LocalRequest, check_port, held_port
from orchestrator.backends.log_query import LogQuery
from orchestrator.backends.run_progress import last_report
from orchestrator.cli.main import main
from orchestrator.client import Orchestrator
from orchestrator.jobs.base import Plan
from orchestrator.runs.status import Handle, RunState
from orchestrator.support.errors import ConflictError, NotFoundError, SpecError, UsageError
from tests.conftest import write_bert
from tests.run_folders import make_run, report, write_local_request
from train_jobs.artifacts.files import file_sha256
from train_jobs.artifacts.host import RunClock
from train_jobs.artifacts.lineage import Lineage, Link
from train_jobs.config import Config, PretrainConfig

IP_LOCAL_PORT_RANGE = 51  # ip(7): the ports that a connection may get


def test_status_has_newest_value_of_each_metric(tmp_path: Path) -> None:
    run = make_run(tmp_path, "one")
    report(run, 10, train_loss=3.0, validation_loss=4.0)
    report(run, 20, train_loss=2.0, bad=float("nan"))
    with run.metrics.open("a") as stream:
        stream.write('{"step": 30, "ti')  # truncated by a crash
    status = LocalBackend(tmp_path).describe("one")
    assert (status.step, status.steps) == (20, 100)
    assert status.metrics == {"train_loss": 2.0, "validation_loss": 4.0}
    assert json.loads(json.dumps(status.as_dict(), allow_nan=False))["state"] == "completed"
    assert status.tags == {"a": "b"}


def checkpoint(run: RunFolder, step: int, loss: float | None) -> Path:
    folder = run.outputs / "checkpoints" / f"step-{step:08d}"
    folder.mkdir(parents=True)
    (folder / "COMMIT.json").write_text(json.dumps({"format": 2, "step": step, "validation_loss": loss, "files": {}}))
    return folder


def test_status_has_checkpoint_of_lowest_validation_loss(tmp_path: Path) -> None:
    run = make_run(tmp_path, "one")
    assert LocalBackend(tmp_path).describe("one").best_checkpoint is None
    checkpoint(run, 10, None)
    assert LocalBackend(tmp_path).describe("one").best_checkpoint is None
    for step, loss in ((20, 5.0), (30, 4.0), (40, 4.5), (50, 4.0)):
        checkpoint(run, step, loss)
    (checkpoint(run, 60, 1.0) / "COMMIT.json").write_text('{"format": 2, "st')
    (checkpoint(run, 70, 1.0) / "COMMIT.json").unlink()
    (checkpoint(run, 80, 1.0) / "COMMIT.json").write_text('{"format": 1, "step": 80}')
    best = LocalBackend(tmp_path).describe("one").best_checkpoint
    assert best is not None
    assert (best.step, best.validation_loss) == (30, 4.0)
    assert best.folder == str(run.outputs / "checkpoints" / "step-00000030")


def test_last_report_of_large_file_is_read_from_its_end(tmp_path: Path) -> None:
    run = make_run(tmp_path, "large")
    for step in range(5000):
        report(run, step, train_loss=float(step))
    assert last_report(run.metrics) == {"step": 4999, "time": 1.0, "metrics": {"train_loss": 4999.0}}
    assert last_report(tmp_path / "none") == {}


@pytest.mark.parametrize("state", [RunState.STARTING, RunState.RUNNING])
def test_run_with_free_lock_is_not_running(tmp_path: Path, state: RunState) -> None:
    run = make_run(tmp_path, "lost", state)
    status = LocalBackend(tmp_path).describe("lost")
    assert status.state == RunState.FAILED
    assert status.reason is not None
    assert status.reason.startswith("supervisor lost")
    with (run.path / "lock").open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert LocalBackend(tmp_path).describe("lost").state == state


def test_queued_run_has_time_to_start(tmp_path: Path) -> None:
    make_run(tmp_path, "new", RunState.QUEUED)
    make_run(tmp_path, "old", RunState.QUEUED, age=RunFolder.queued_seconds + 5)
    backend = LocalBackend(tmp_path)
    assert backend.describe("new").state == RunState.QUEUED
    assert backend.describe("old").state == RunState.FAILED


def test_damaged_folder_is_failed_run_others_listed(tmp_path: Path) -> None:
    make_run(tmp_path, "good", age=10)
    (make_run(tmp_path, "bad").path / "state.json").write_text("{")
    found = {status.name: status for status in LocalBackend(tmp_path).list()}
    assert found["good"].state == RunState.COMPLETED
    assert found["bad"].state == RunState.FAILED
    assert "damaged" in str(found["bad"].reason)


def test_runs_are_found_by_name_prefix_handle_and_last(tmp_path: Path) -> None:
    for age, name in ((30, "alpha-1"), (20, "alpha-2"), (10, "beta-1")):
        make_run(tmp_path, name, age=age)
    orchestrator = Orchestrator(home=tmp_path, environ={})
    assert [status.name for status in orchestrator.runs()] == ["beta-1", "alpha-2", "alpha-1"]
    for text, name in (("beta", "beta-1"), ("alpha-2", "alpha-2"), ("@last", "beta-1"), ("local://alpha-1", "alpha-1")):
        assert orchestrator.attach(text).handle == Handle("local", name)
    with pytest.raises(NotFoundError, match="more than one run begins with alpha") as caught:
        orchestrator.attach("alpha")
    assert caught.value.facts["runs"] == "alpha-2, alpha-1"
    with pytest.raises(NotFoundError, match=r'did you mean "beta-1"'):
        orchestrator.attach("bela-1")
    with pytest.raises(UsageError, match="unknown backend 'locl'"):
        orchestrator.attach("locl://beta-1")


@pytest.mark.parametrize("words", [("cancel",), ("status",), ("prune", "--yes", "--purge"), ("sweep", "show")])
def test_empty_name_names_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    """An unset variable of a script must not stand for the only run of a home."""
    monkeypatch.setenv("ORCHESTRATOR_HOME", str(tmp_path))
    only = make_run(tmp_path, "alpha-1", age=10)
    assert main([*words, ""]) == 5
    assert "the name of the " in capsys.readouterr().err
    assert (only.path / "state.json").is_file()


@pytest.mark.parametrize("text", ["../outside", "runs/../../outside", ".hidden", "x" * 300, "alpha-1/", "\0"])
def test_text_that_is_no_name_finds_no_folder(tmp_path: Path, text: str) -> None:
    make_run(tmp_path / "home", "alpha-1")
    make_run(tmp_path / "home", ".hidden")
    make_run(tmp_path, "away").path.rename(tmp_path / "home" / "outside")
    with pytest.raises(NotFoundError):
        Orchestrator(home=tmp_path / "home", environ={}).attach(text)


def test_whole_name_is_found_without_the_other_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Time to a status does not depend on the number of runs."""
    make_run(tmp_path, "alpha-1")
    make_run(tmp_path, "alpha-10")
    monkeypatch.setattr(LocalBackend, "names", lambda self: pytest.fail("all runs are listed"))
    assert Orchestrator(home=tmp_path, environ={}).attach("alpha-1").status().name == "alpha-1"


def make_model(run: RunFolder, name: str = "bert") -> Path:
    """Create the exported folder of a run."""
    return write_bert(run.model, weights=name.encode())


def plan_from(home: Path, named: str) -> Plan:
    """Return a plan of a run that starts from another."""
    overrides = {"data.sequence_length": 32, "train.micro_batch_size": 4, "init_from": named}
    return Orchestrator(home=home, environ={"CUDA_VISIBLE_DEVICES": ""}).plan(overrides=overrides)


@pytest.mark.parametrize("named", ["@last", "alpha", "alpha-1", "local://alpha-1"])
def test_start_model_of_a_run_is_its_exported_model(
    tmp_path: Path, named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    model = make_model(make_run(tmp_path, "alpha-1"))
    assert plan_from(tmp_path, named).job.init_from == model


def test_unfinished_run_has_no_start_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    make_model(make_run(tmp_path, "stopped-1", RunState.CANCELLED))
    make_run(tmp_path, "new-1", RunState.QUEUED)
    make_run(tmp_path, "pruned-1")
    with pytest.raises(ConflictError, match="run stopped-1: it is cancelled") as caught:
        plan_from(tmp_path, "stopped-1")
    assert caught.value.fix == "orchestrator resume stopped-1"
    with pytest.raises(ConflictError, match="run new-1: it is queued") as caught:
        plan_from(tmp_path, "new-1")
    assert caught.value.fix == "orchestrator wait new-1"
    with pytest.raises(NotFoundError, match="the model of run pruned-1 is missing"):
        plan_from(tmp_path, "pruned-1")
    with pytest.raises(NotFoundError, match=r"unknown run 'pruned-2' \(did you mean .pruned-1") as caught:
        plan_from(tmp_path, "pruned-2")
    assert "a folder with a model" in caught.value.facts["where"]


def test_lineage_at_submission_names_origin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    make_model(make_run(tmp_path, "alpha-1"))
    plan = plan_from(tmp_path, "alpha-1")
    backend = LocalBackend(tmp_path)
    run = backend._make(backend.prepare(plan, run="beta-1"))
    tags = json.loads(run.tags.read_text())
    assert plan.parent is not None
    assert (tags["orchestrator.parent"], tags["orchestrator.parent_lineage"]) == ("model", plan.parent.hash)
    assert tags["orchestrator.handle"] == "local://beta-1"
    job = PretrainConfig.model_validate(run.read_json("config.json"))
    assert plan.job.data.vocabulary is not None
    assert job.data.vocabulary == run.path / "vocab.txt"
    assert job.data.vocabulary.read_bytes() == plan.job.data.vocabulary.read_bytes()
    assert job.init_from == plan.job.init_from


def test_parent_run_is_tagged_by_its_handle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Facts(Config):
        run: str
        weights: str

    monkeypatch.chdir(tmp_path)
    model = make_model(make_run(tmp_path, "alpha-1"))
    facts = Facts(run="azure://team/alpha-1", weights=file_sha256(model / "model.safetensors"))
    (model / "lineage.json").write_text(Lineage(links=(Link.make("pretrain", "alpha-1", facts),)).text())
    plan = plan_from(tmp_path, "alpha-1")
    backend = LocalBackend(tmp_path)
    run = backend._make(backend.prepare(plan, run="beta-1"))
    assert json.loads(run.tags.read_text())["orchestrator.parent"] == "azure://team/alpha-1"


def test_logs_of_missing_rank_are_refused(tmp_path: Path) -> None:
    run = make_run(tmp_path, "two")
    run.rank_log(1).write_text("one\ntwo\nhalf a li")
    backend = LocalBackend(tmp_path)
    for query in (LogQuery(ranks=(1,)), LogQuery(ranks=(1,), follow=True)):
        lines = [line.text for block in backend.logs("two", query) for line in block.lines()]
        assert lines == ["one", "two", "half a li"]
    assert list(backend.logs("two", LogQuery(ranks=(0,)))) == []
    with pytest.raises(NotFoundError, match="no rank 2"):
        backend.logs("two", LogQuery(ranks=(2,)))


def test_live_or_completed_run_is_not_resumed(tmp_path: Path) -> None:
    make_run(tmp_path, "done")
    stopped = make_run(tmp_path, "stopped", RunState.CANCELLED)
    backend = LocalBackend(tmp_path)
    with pytest.raises(ConflictError, match="it is completed"):
        backend.resume("done")
    with (stopped.path / "lock").open() as held:  # its supervisor is about to write the final state
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(ConflictError):
            backend.resume("stopped")


@pytest.mark.parametrize("processes", [0, -1, 9])
def test_resume_with_processes_exceeding_batch_refused(tmp_path: Path, processes: int) -> None:
    run = make_run(tmp_path, "stopped", RunState.CANCELLED)
    write_local_request(run, processes_per_node=2)
    before = (run.path / "request.json").read_bytes()
    with pytest.raises(UsageError, match="the global batch has 8 sequences") as caught:
        LocalBackend(tmp_path).resume("stopped", processes=processes)
    assert caught.value.fix == "orchestrator resume stopped --processes 8"
    assert (run.path / "request.json").read_bytes() == before
    with pytest.raises(UsageError, match="cannot debug 2 processes"):
        DebugBackend(tmp_path).resume("stopped", processes=2)


MEANS = {"global_batch_size": 16, "micro_batch_size": 4, "loss_normalization": "micro_batch"}


@pytest.mark.parametrize(("processes", "fix"), [(3, 2), (5, 4)])
def test_resume_with_uneven_micro_batches_refused(tmp_path: Path, processes: int, fix: int) -> None:
    run = make_run(tmp_path, "stopped", RunState.CANCELLED, plan={"job": {"train": MEANS}})
    write_local_request(run, processes_per_node=2)
    before = (run.path / "request.json").read_bytes()
    with pytest.raises(UsageError, match=f"cannot run {processes} processes") as caught:
        LocalBackend(tmp_path).resume("stopped", processes=processes)
    assert caught.value.facts["possible"] == "1, 2, 4"
    assert caught.value.fix == f"orchestrator resume stopped --processes {fix}"
    assert (run.path / "request.json").read_bytes() == before


def test_exit_codes_are_in_order_of_the_ranks_ends(tmp_path: Path) -> None:
    for rank, code, ended in ((0, 1, 20), (1, -9, 10), (2, 0, 30)):
        (tmp_path / f"rank-{rank}").write_text(f"{code}\n")
        os.utime(tmp_path / f"rank-{rank}", (ended, ended))
    (tmp_path / "rank-3").touch()  # the disk was full
    assert list(read_exits(tmp_path).items()) == [(1, -9), (0, 1), (2, 0)]


def test_expected_end_follows_speed_of_last_report(tmp_path: Path) -> None:
    run = make_run(tmp_path, "one", RunState.RUNNING)
    with (run.path / "lock").open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        backend = LocalBackend(tmp_path)
        assert backend.describe("one").eta is None
        report(run, 60, at=500.0, sequences_per_second=16.0)
        report(run, 60, at=501.0, validation_loss=2.0)
        assert backend.describe("one").eta == 501.0 + 40 * 8 / 16
    assert backend.describe("one").state == RunState.FAILED
    assert backend.describe("one").eta is None
    report(run, 100, at=600.0, sequences_per_second=16.0)
    with (run.path / "lock").open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert backend.describe("one").state == RunState.RUNNING
        assert backend.describe("one").eta is None


def test_metric_with_non_numeric_newest_value_is_omitted(tmp_path: Path) -> None:
    run = make_run(tmp_path, "one")
    report(run, 10, train_loss=3.0)
    report(run, 20, train_loss=float("nan"))
    assert LocalBackend(tmp_path).describe("one").metrics == {}


def test_metric_that_is_text_is_omitted(tmp_path: Path) -> None:
    """A command of a user may write anything."""
    run = make_run(tmp_path, "run")
    line = {"step": 3, "time": 1.0, "metrics": {"loss": 2.0, "stage": "warm-up", "done": True, "best": None}}
    run.metrics.write_text(json.dumps(line) + "\n")
    assert last_report(run.metrics) == {"step": 3, "time": 1.0, "metrics": {"loss": 2.0}}


def test_damaged_line_does_not_hide_the_others(tmp_path: Path) -> None:
    run = make_run(tmp_path, "one")
    report(run, 10, train_loss=3.0)
    with run.metrics.open("ab") as stream:
        stream.write(b"\0\0\0\n")  # a power failure
    report(run, 20, other=1.0)
    assert last_report(run.metrics) == {"step": 20, "time": 1.0, "metrics": {"train_loss": 3.0, "other": 1.0}}


def test_run_deleted_during_listing_is_omitted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_run(tmp_path, "one")
    make_run(tmp_path, "two", age=10)
    backend = LocalBackend(tmp_path)
    looking = backend.list()
    assert next(looking).name == "one"
    backend.delete("two")
    assert list(looking) == []
    with pytest.raises(NotFoundError):
        backend.describe("two")

    def deleted(run: RunFolder) -> LocalState:
        shutil.rmtree(run.path)
        raise FileNotFoundError(run.path)

    monkeypatch.setattr(RunFolder, "state", deleted)
    with pytest.raises(NotFoundError, match="unknown run 'one'"):
        backend.describe("one")


def test_list_filters_by_state_and_limit(tmp_path: Path) -> None:
    for age, (name, state) in enumerate(
        [("a", RunState.FAILED), ("b", RunState.COMPLETED), ("c", RunState.FAILED), ("d", RunState.CANCELLED)]
    ):
        make_run(tmp_path, name, state, age=age)
    make_run(tmp_path, ".draft.1")
    (tmp_path / "runs" / "no-request").mkdir()
    (tmp_path / "runs" / "a-file").touch()
    orchestrator = Orchestrator(home=tmp_path, environ={})

    def names(**rule: object) -> list[str]:
        return [status.name for status in orchestrator.runs(**rule)]

    assert names() == ["a", "b", "c", "d"]
    assert names(limit=2) == ["a", "b"]
    assert names(states=[RunState.FAILED]) == ["a", "c"]
    assert names(states=[RunState.FAILED, RunState.CANCELLED], limit=2) == ["a", "c"]


def test_delete_refuses_running_run_but_not_damaged_run(tmp_path: Path) -> None:
    run = make_run(tmp_path, "live", RunState.RUNNING)
    backend = LocalBackend(tmp_path)
    with (run.path / "lock").open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(ConflictError, match="cannot delete run live: it is running"):
            backend.delete("live")
    ended = make_run(tmp_path, "ending")
    with (ended.path / "lock").open() as held:  # its supervisor has written the final state and is about to exit
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(ConflictError):
            backend.delete("ending")
    (make_run(tmp_path, "bad").path / "state.json").write_text("{")
    backend.delete("bad")
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["ending", "live"]


def test_failed_attempt_releases_everything(tmp_path: Path) -> None:
    """Freeing a gigabyte and the port takes time; even a stopped process is killed."""
    holder = (
        "import os, signal, socket; s = socket.create_server(('127.0.0.1', 0)); held = b'1' * 2**30;"
        "print(s.getsockname()[1], flush=True); os.kill(os.getpid(), signal.SIGSTOP)"
    )
    environ = {**os.environ, RUN_VARIABLE: str(tmp_path)}
    with subprocess.Popen([sys.executable, "-c", holder], env=environ, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        with pytest.raises(ConflictError, match=f"cannot use port {port}"):
            check_port(port)
        kill_leftovers(tmp_path)
        check_port(port)
        assert process.wait() == -signal.SIGKILL


def test_no_other_process_gets_the_port_of_an_attempt() -> None:
    """Torchrun listens only seconds after the port was chosen; a connection that got it failed the attempt."""
    server = socket.create_server((LOOPBACK, 0))
    with held_port(0) as holder, closing(server):
        port = holder.getsockname()[1]
        with closing(socket.socket()) as client:
            with suppress(OSError):  # older than Linux 6.3
                client.setsockopt(socket.IPPROTO_IP, IP_LOCAL_PORT_RANGE, struct.pack("=HH", port, port))
            with suppress(OSError):  # there is no other port for it
                client.connect(server.getsockname())
            assert client.getsockname()[1] != port
        for _ in range(2000):
            with closing(socket.socket()) as other:
                other.bind((LOOPBACK, 0))
                assert other.getsockname()[1] != port
        store = TCPStore(
            LOOPBACK, port, is_master=True, wait_for_workers=False, master_listen_fd=os.dup(holder.fileno())
        )
        store.set("key", "value")
        assert TCPStore(LOOPBACK, port, is_master=False).get("key") == b"value"


def test_next_phase_needs_a_finished_run_with_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    orchestrator = Orchestrator(home=tmp_path, environ={"CUDA_VISIBLE_DEVICES": ""})
    stopped = make_run(tmp_path, "stopped-1", RunState.CANCELLED)
    make_run(tmp_path, "new-1", RunState.QUEUED)
    with pytest.raises(ConflictError, match="cannot start the next phase of run new-1: it is queued") as caught:
        orchestrator.plan(overrides={"phase_from": "new-1"})
    assert caught.value.fix == "orchestrator wait new-1"
    with pytest.raises(NotFoundError, match="unknown run 'other-1'") as missing:
        orchestrator.plan(overrides={"phase_from": "other-1"})
    assert "a folder of outputs, or a checkpoint" in missing.value.facts["where"]
    (stopped.path / "outputs").mkdir(exist_ok=True)
    with pytest.raises(SpecError) as empty:  # it has no checkpoint
        orchestrator.plan(overrides={"phase_from": "stopped-1"})
    assert f"phase_from: no checkpoint in {stopped.path / 'outputs'}" in str(empty.value)


def test_lost_attempt_ends_with_its_last_report_after_resume(tmp_path: Path) -> None:
    """Otherwise it would seem to run for ever: duration and cost would grow."""
    run = make_run(tmp_path, "lost", RunState.RUNNING, attempts=[{"started": 100.0}])
    report(run, 10, at=160.0, train_loss=3.0)
    LocalBackend(tmp_path)._requeue(run, run.state())
    (lost,) = run.stored_state().attempts
    assert (lost.ended, lost.state) == (160.0, RunState.FAILED)
    assert "supervisor lost" in str(lost.reason)


@pytest.mark.parametrize(("ended", "end"), [(60.0, 60.0), (None, 70.0)])
def test_stored_end_of_earlier_attempt_is_ignored(tmp_path: Path, ended: float | None, end: float) -> None:
    """Earlier versions kept the end of the attempt before a resume."""
    attempts = [{"started": 10.0, "ended": 20.0}, {"started": 50.0, "ended": ended}]
    run = make_run(tmp_path, "one", RunState.RUNNING, started=50.0, ended=20.0, attempts=attempts)
    report(run, 7, at=70.0)
    with run.lock():
        assert LocalBackend(tmp_path).describe("one").ended is None
    assert LocalBackend(tmp_path).describe("one").ended == end


def test_resume_on_other_processes_keeps_the_order_of_runs(tmp_path: Path) -> None:
    """`list`, `@last` and `prune --keep-last` sort runs by their submission."""
    old = make_run(tmp_path, "old", RunState.CANCELLED)
    write_local_request(old)
    os.utime(old.path / "request.json", (1000.0, 1000.0))
    make_run(tmp_path, "new", age=30.0)
    backend = LocalBackend(tmp_path)
    request = LocalRequest.model_validate(old.read_json("request.json"))
    backend._requeue(old, old.state(), request.model_copy(update={"processes_per_node": 3}))
    assert old.read_json("request.json")["processes_per_node"] == 3
    assert [status.name for status in backend.list()] == ["new", "old"]


def test_clock_of_an_earlier_boot_is_the_wall_clock() -> None:
    clock = RunClock.start()
    assert abs(clock.now() - time.time()) < 60
    ahead = clock._replace(wall=clock.wall + 3600)
    assert abs(ahead.now() - time.time() - 3600) < 60
    assert abs(ahead._replace(boot_id="another").now() - time.time()) < 60
