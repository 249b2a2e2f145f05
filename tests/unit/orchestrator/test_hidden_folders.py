"""Hidden folders of killed submissions and deletions: the next command deletes them, and none of a live process."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from orchestrator.backends.folder.run_folder import RunFolder
from orchestrator.backends.local.backend import LocalBackend
from orchestrator.client import Orchestrator
from orchestrator.runs.hidden_folders import abandoned
from orchestrator.sweeps.driver.sweep_folder import SweepFolder
from tests.run_folders import make_run
from train_jobs.artifacts.drafts import Owner

DRAFT = """\
import os, signal, sys
from pathlib import Path
from orchestrator.backends.folder.run_folder import RunFolder
with RunFolder(Path(sys.argv[1])).draft() as draft:
    (draft.path / "plan.json").write_text("{}")
    os.kill(os.getpid(), getattr(signal, sys.argv[2]))
"""
DELETION = """\
import os, shutil, signal, sys
from pathlib import Path
from orchestrator.backends.local.backend import LocalBackend
shutil.rmtree = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)
LocalBackend(Path(sys.argv[1])).delete("one")
"""


def hidden(place: Path) -> list[str]:
    return sorted(path.name.rpartition(".")[0] for path in place.glob(".*"))


def killed_draft(path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", DRAFT, str(path), "SIGKILL"], check=False)
    assert done.returncode == -signal.SIGKILL
    assert hidden(path.parent) == [f".{path.name}"]


def test_list_deletes_draft_of_killed_submission(tmp_path: Path) -> None:
    killed_draft(tmp_path / "runs" / "one")
    assert list(LocalBackend(tmp_path).list()) == []
    assert hidden(tmp_path / "runs") == []


def test_next_submission_deletes_draft_of_another_run(tmp_path: Path) -> None:
    killed_draft(tmp_path / "runs" / "one")
    with RunFolder(tmp_path / "runs" / "two").draft():
        assert hidden(tmp_path / "runs") == [".two"]
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["two"]


def test_next_sweep_deletes_draft_of_killed_one(tmp_path: Path) -> None:
    killed_draft(tmp_path / "sweeps" / "one")
    with SweepFolder(tmp_path / "sweeps" / "two").draft():
        pass
    assert [path.name for path in (tmp_path / "sweeps").iterdir()] == ["two"]


def test_list_completes_killed_deletion(tmp_path: Path) -> None:
    make_run(tmp_path, "one")
    done = subprocess.run([sys.executable, "-c", DELETION, str(tmp_path)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert hidden(tmp_path / "runs") == [".deleted.one"]
    assert list(LocalBackend(tmp_path).list()) == []
    assert hidden(tmp_path / "runs") == []


def linked_run(home: Path) -> Path:
    """Create a run whose folder was moved to another disk and replaced by a link; return the moved folder."""
    run, moved = make_run(home, "one", ended=1.0).path, home / "disk" / "one"
    moved.parent.mkdir()
    run.rename(moved).joinpath("outputs", "predictions.jsonl").write_text("private")
    run.symlink_to(moved)
    return moved


@pytest.mark.parametrize("purge", [False, True])
def test_run_behind_a_link_is_deleted_with_link(tmp_path: Path, purge: bool) -> None:
    moved, orchestrator = linked_run(tmp_path), Orchestrator(home=tmp_path, environ={})
    if purge:
        orchestrator.purge(orchestrator.purging("one"))
    else:
        orchestrator.prune(orchestrator.pruning())
    assert not moved.exists()
    assert list(moved.parent.iterdir()) == list((tmp_path / "runs").iterdir()) == []


@pytest.mark.parametrize("dangling", [False, True])
def test_list_completes_killed_deletion_of_linked_run(tmp_path: Path, dangling: bool) -> None:
    moved = linked_run(tmp_path)
    done = subprocess.run([sys.executable, "-c", DELETION, str(tmp_path)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert hidden(tmp_path / "runs") == [".deleted.one"]
    if dangling:  # killed after the files, before the link
        shutil.rmtree(moved)
    assert list(LocalBackend(tmp_path).list()) == []
    assert (hidden(tmp_path / "runs"), moved.exists()) == ([], False)


def test_draft_of_live_process_is_kept(tmp_path: Path) -> None:
    """Also of a stopped one, whatever its age; it completes its run later."""
    place = tmp_path / "runs"
    process = subprocess.Popen([sys.executable, "-c", DRAFT, str(place / "one"), "SIGSTOP"])
    os.waitid(os.P_PID, process.pid, os.WSTOPPED)
    assert list(LocalBackend(tmp_path).list()) == []
    assert abandoned(place, older_than=-1.0) == []
    with RunFolder(place / "two").draft():
        assert hidden(place) == [".one", ".two"]
    process.send_signal(signal.SIGCONT)
    assert process.wait() == 0
    assert sorted(path.name for path in place.iterdir()) == ["one", "two"]


@pytest.mark.parametrize("alive", [True, False])
def test_reused_pid_does_not_keep_a_draft(tmp_path: Path, alive: bool) -> None:
    """A process with the id of the dead one, but started at another time."""
    current = Owner.current()
    owner = current if alive else current._replace(started=current.started - 1)
    draft = tmp_path / "runs" / f".one.{owner}"
    draft.mkdir(parents=True)
    (draft / "lock").touch()
    assert list(LocalBackend(tmp_path).list()) == []
    assert draft.exists() == alive


def test_locked_draft_of_unseen_process_is_kept(tmp_path: Path) -> None:
    """A process of another container: its id is unknown here, its lock is not."""
    draft = tmp_path / "runs" / f".one.{Owner.current()._replace(started=1)}"
    draft.mkdir(parents=True)
    with (draft / "lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert list(LocalBackend(tmp_path).list()) == []
        assert draft.exists()
    assert list(LocalBackend(tmp_path).list()) == []
    assert not draft.exists()


def test_draft_of_another_machine_is_kept_for_an_hour(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    draft = tmp_path / "runs" / f".one.{Owner(1, 1, 'f00d')}"
    draft.mkdir(parents=True)
    (draft / "lock").touch()
    assert list(LocalBackend(tmp_path).list()) == []
    assert draft.exists()
    later = time.time() + 3700
    monkeypatch.setattr(time, "time", lambda: later)
    assert list(LocalBackend(tmp_path).list()) == []
    assert not draft.exists()
