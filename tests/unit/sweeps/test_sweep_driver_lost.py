"""A restarted driver knows the work of a failed or killed one: cancelled runs, compared reports."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from optuna.trial import TrialState

from orchestrator.cli.main import main
from orchestrator.runs.status import RunState
from orchestrator.support.errors import ConflictError
from orchestrator.support.moved_home import FolderIdentity
from orchestrator.sweeps.design.sweep_record import SweepState
from orchestrator.sweeps.driver import control
from orchestrator.sweeps.driver.control import DriverControl
from orchestrator.sweeps.driver.sweep_folder import SweepFolder
from tests.conftest import tmpfs, wait_for
from tests.unit.sweeps.quick_sweeps import DRIVER_LOST, Sweeps, kill, kill_after_report
from train_jobs.artifacts.host import boot_id, process_started


def cancel_running_sweep(sweeps: Sweeps) -> SweepFolder:
    """Cancel a sweep while two trials run."""
    folder = sweeps.make(limits={"trials": 2, "concurrent": 2}, steps=100, pause=20)
    sweeps.start(folder)
    wait_for(lambda: len(sweeps.starts(folder)) == 2)
    DriverControl(folder, sweeps.home).cancel()
    assert sweeps.end(folder) == RunState.CANCELLED
    folder.cancel_file.unlink()
    return folder


def check_both_resumed(sweeps: Sweeps, folder: SweepFolder) -> None:
    assert sweeps.end(folder) == RunState.COMPLETED
    assert [trial.state for trial in folder.study().trials] == [TrialState.COMPLETE] * 2
    assert set(map(tuple, sweeps.starts(folder).values())) == {("1", "2")}


def test_cancelled_sweep_resumes_after_a_failed_driver(sweeps: Sweeps) -> None:
    folder = cancel_running_sweep(sweeps)
    record = folder.record()
    folder.write_record(record.model_copy(update={"snapshot": "0" * 64}))  # as if the code had changed
    sweeps.start(folder)
    assert sweeps.end(folder) == RunState.FAILED
    folder.write_record(record)
    sweeps.start(folder)
    check_both_resumed(sweeps, folder)


@pytest.mark.slow
def test_cancelled_sweep_resumes_after_a_dead_driver(sweeps: Sweeps) -> None:
    folder = cancel_running_sweep(sweeps)
    sweeps.start(folder)
    kill(folder)
    sweeps.start(folder)
    check_both_resumed(sweeps, folder)


@pytest.mark.slow
def test_sweep_cancelled_without_a_driver_resumes(sweeps: Sweeps) -> None:
    folder = sweeps.make(limits={"trials": 2}, steps=100, pause=20)
    sweeps.start(folder)
    wait_for(lambda: len(sweeps.starts(folder)) == 2)
    kill(folder)
    DriverControl(folder, sweeps.home).cancel()
    wait_for(lambda: {run.stored_state().state for run in sweeps.runs(folder)} == {RunState.CANCELLED})
    folder.cancel_file.unlink()
    folder.write_state(folder.stored_state().model_copy(update={"state": RunState.RUNNING}))  # its next driver died
    sweeps.start(folder)
    check_both_resumed(sweeps, folder)


def test_trial_cancelled_by_its_user_is_not_resumed(sweeps: Sweeps) -> None:
    folder = sweeps.make(limits={"trials": 1}, steps=1000, pause=20)
    sweeps.start(folder)
    wait_for(lambda: sweeps.starts(folder))
    sweeps.runs(folder)[0].cancel_file.touch()
    assert sweeps.end(folder) == RunState.COMPLETED
    (trial,) = folder.study().trials
    assert trial.state == TrialState.FAIL
    assert "cancelled" in trial.user_attrs["end"]["why"]


@pytest.mark.long
def test_next_driver_knows_seeds_of_running_trials(sweeps: Sweeps) -> None:
    space = {"optimizer.learning_rate": [1e-2, 1e-4]}  # the second one leads, and is judged after the first
    rule = {"policy": "wilcoxon", "p_value": 0.1, "delay": 20}
    folder = sweeps.make(
        space=space,
        sampling="grid",
        limits={"trials": None, "concurrent": 2},
        early_termination=rule,
        seeds=[1, 2, 3, 4],
        steps=300,
        pause=15,
    )
    sweeps.start(folder)
    kill_after_report(folder, 0)
    slow = [run.stored_state().pid or 0 for run in sweeps.runs(folder)[:4]]
    for pid in slow:
        os.kill(pid, signal.SIGSTOP)
    sweeps.start(folder)
    wait_for(lambda: len(folder.study().trials[1].intermediate_values) > 25, what="reports of the second trial")
    kill(folder)
    for pid in slow:
        os.kill(pid, signal.SIGCONT)
    sweeps.start(folder)
    assert sweeps.end(folder) == RunState.COMPLETED, (folder.path / "driver.log").read_text()
    why = folder.study().trials[0].user_attrs["end"]["why"]
    stopped = re.fullmatch(r"stopped at report (\d+): p 0.0625 < 0.1 against trial 1", why)
    assert stopped
    assert 20 <= int(stopped[1]) < 300  # a slow machine stops the four runs after report 20


def test_timed_out_trial_stays_timed_out_after_a_restart(sweeps: Sweeps) -> None:
    folder = sweeps.make(limits={"trials": 1, "trial_hours": 0.8 / 3600}, steps=1000, pause=20)
    sweeps.start(folder)
    (run,) = wait_for(lambda: sweeps.runs(folder))
    wait_for(lambda: run.locked() and run.metrics.exists())
    os.kill(run.stored_state().pid or 0, signal.SIGSTOP)  # it handles the cancel after the driver is dead
    wait_for(run.cancel_file.exists, what="the cancel")
    kill(folder)
    os.kill(run.stored_state().pid or 0, signal.SIGCONT)
    wait_for(lambda: run.stored_state().state == RunState.CANCELLED)
    sweeps.start(folder)
    assert sweeps.end(folder) == RunState.COMPLETED
    (trial,) = folder.study().trials
    assert trial.state == TrialState.COMPLETE
    assert trial.user_attrs["end"]["state"] == "timed out"
    assert trial.user_attrs["end"]["outcome"] is not None


def test_trials_of_a_lost_driver_are_shown_as_they_are(
    sweeps: Sweeps, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ORCHESTRATOR_HOME", str(sweeps.home))
    folder = sweeps.make(limits={"trials": 2}, steps=10**4, pause=20)
    sweeps.start(folder)
    runs = wait_for(lambda: (found := sweeps.runs(folder)) and len(sweeps.starts(folder)) == 2 and found)
    wait_for(lambda: all(run.metrics.exists() for run in runs), what="reports")
    kill(folder)
    assert main(["sweep", "show", folder.name]) == 0
    both = capsys.readouterr()
    assert f"{DRIVER_LOST}; 2 trials still running" in both.out
    assert f"resume  orchestrator resume {folder.name}" in both.err
    os.kill(runs[1].stored_state().pid or 0, signal.SIGKILL)
    wait_for(lambda: not runs[1].locked(), what="the death of a trial")
    shown = []
    for _ in range(2):
        assert main(["sweep", "show", folder.name, "-o", "json"]) == 0
        shown.append(json.loads(capsys.readouterr().out))
    assert shown[0]["reason"] == f"{DRIVER_LOST}; 1 trial still running, 1 trial interrupted"
    (alive, dead), (alive_later, dead_later) = (one["rows"] for one in shown)
    assert (alive["state"], dead["state"]) == ("running", "interrupted")
    assert alive_later["seconds"] > alive["seconds"]
    assert dead_later == dead, "no time passes for it"
    assert dead["why"].startswith(f"{runs[1].name} failed: supervisor lost")
    assert shown[0]["ended"] == 0
    DriverControl(folder, sweeps.home).cancel()
    wait_for(lambda: not runs[0].locked(), what="the end of the other trial")
    assert [row.state for row in DriverControl(folder, sweeps.home).status().rows] == ["cancelled"] * 2


def test_trials_of_a_stopped_driver_are_shown_as_they_are(sweeps: Sweeps) -> None:
    folder = sweeps.make(limits={"trials": 1}, steps=10**4, pause=20)
    sweeps.start(folder)
    (run,) = wait_for(lambda: sweeps.starts(folder) and sweeps.runs(folder))
    os.kill(folder.stored_state().pid or 0, signal.SIGTERM)
    assert sweeps.end(folder) == RunState.PREEMPTED
    sweep = DriverControl(folder, sweeps.home)
    assert sweep.status().reason == "the driver was stopped; 1 trial still running"
    run.cancel_file.touch()
    wait_for(lambda: run.state().state.terminal, what="the end of the trial")
    assert sweep.status().reason == "the driver was stopped; 1 trial interrupted"


@contextmanager
def home_on_disk(sweeps: Sweeps) -> Iterator[None]:
    """Put the home on a disk of its own; its sweeps disappear with it."""
    with tmpfs(sweeps.home, "16m"):
        try:
            yield
        finally:
            sweeps.folders.clear()


def remount_read_only(folder: SweepFolder, home: Path) -> None:
    words = ["mount", "-o", "remount,ro", str(home)]  # busy as long as a process has a file open for writing
    wait_for(lambda: subprocess.run(words, check=False, capture_output=True).returncode == 0, what="a quiet disk")


def fill(folder: SweepFolder, home: Path) -> None:
    with (home / "filler").open("wb", buffering=0) as stream, suppress(OSError):
        while True:
            stream.write(bytes(4096))


def restart_machine(folder: SweepFolder, home: Path) -> None:
    folder.write_state(folder.stored_state().model_copy(update={"boot_id": "an earlier boot"}))


def copy_while_it_runs(folder: SweepFolder, home: Path) -> None:
    """Record this process as the driver of another folder."""
    (home / "original").mkdir()
    pid, original = os.getpid(), FolderIdentity.of(home / "original")
    identity = {"pid": pid, "pid_started": process_started(pid), "boot_id": boot_id(), "folder": original}
    folder.write_state(folder.stored_state().model_copy(update=identity))


@pytest.mark.parametrize(
    ("harm", "reason"),
    [
        (restart_machine, "the machine restarted"),
        (remount_read_only, "it could not write: {folder} is on a read-only file system; mount it writable: "),
        (fill, "its process was killed, or ran out of memory, or could not write: the disk is full, "),
        (copy_while_it_runs, "this folder is a copy of {home}/original, made while the sweep was running"),
    ],
)
def test_lost_driver_has_its_true_reason(
    sweeps: Sweeps,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    harm: Callable[[SweepFolder, Path], None],
    reason: str,
) -> None:
    monkeypatch.setenv("ORCHESTRATOR_HOME", str(sweeps.home))
    with home_on_disk(sweeps):
        folder = sweeps.make()
        folder.write_state(folder.stored_state().model_copy(update={"state": RunState.RUNNING}))
        harm(folder, sweeps.home)
        assert main(["sweep", "show", folder.name, "-o", "json"]) == 0
        shown = json.loads(capsys.readouterr().out)
        assert shown["state"] == "failed"
        assert shown["reason"].startswith("driver lost: " + reason.format(folder=folder.path, home=sweeps.home))


def test_driver_records_which_process_it_is(sweeps: Sweeps) -> None:
    folder = sweeps.make(limits={"trials": 1}, steps=10**4, pause=20)
    sweeps.start(folder)
    state = folder.stored_state()
    assert state.has_process()
    assert state.folder is not None
    assert state.folder.matches(folder.path)
    kill(folder)
    assert not state.has_process()
    assert folder.state().reason == DRIVER_LOST


def test_live_driver_on_a_disk_without_locks_gets_no_second_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = SweepFolder(tmp_path / "sweeps" / "s")
    folder.path.mkdir(parents=True)
    folder.write_state(SweepState(state=RunState.RUNNING, **folder.own_process()))
    monkeypatch.setattr(control, "start_driver", lambda *_: pytest.fail("a second driver"))
    monkeypatch.setattr(control, "check_secrets", lambda _: None)
    monkeypatch.setattr(SweepFolder, "record", lambda _: None)
    killed: list[int] = []
    monkeypatch.setattr(os, "kill", lambda pid, _: killed.append(pid))
    sweep = DriverControl(folder, tmp_path)
    with pytest.raises(ConflictError, match="sweep s is running"):
        sweep._restart()
    sweep.cancel()
    assert killed == [os.getpid()]
    assert folder.stored_state().state == RunState.RUNNING  # the driver itself records the end


@pytest.mark.parametrize("words", [("resume", "{}"), ("sweep", "retry", "{}"), ("cancel", "{}")])
def test_change_of_a_sweep_on_read_only_disk_is_refused(
    sweeps: Sweeps, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    monkeypatch.setenv("ORCHESTRATOR_HOME", str(sweeps.home))
    with home_on_disk(sweeps):
        crash = {"validation": {"max_sequences": 19}}  # see quick_trial.py
        folder = sweeps.run(trial=crash, limits={"trials": 1, "retries": 0})
        folder.write_state(folder.stored_state().model_copy(update={"state": RunState.FAILED}))
        remount_read_only(folder, sweeps.home)
        capsys.readouterr()
        assert main([word.format(folder.name) for word in words]) == 1
        shown = capsys.readouterr().err
        assert f"error[storage]: cannot {words[-2]} sweep {folder.name}: read-only file system" in shown
