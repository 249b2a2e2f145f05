"""Drafts of killed processes: the next draft in the same folder deletes them, and none of a live process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.client import Orchestrator
from orchestrator.fetch.remote_file import new_folder
from tests.run_folders import make_run
from train_jobs.artifacts import drafts
from train_jobs.artifacts.drafts import Owner, draft, scratch_folder
from train_jobs.artifacts.files import write_text
from train_jobs.artifacts.store_places import NewObject
from train_jobs.inference.prediction_files import atomic_file

WRITERS = {
    "text": "from train_jobs.artifacts import files; files.os.fsync = stop; files.write_text(place / 'it', 'text')",
    "file": "from train_jobs.inference.prediction_files import atomic_file\n"
    "with atomic_file(place / 'it') as path: path.touch(); stop()",
    "folder": "from orchestrator.fetch.remote_file import new_folder\n"
    "with new_folder(place / 'it') as path: (path / 'a').touch(); stop()",
    "scratch": "from train_jobs.artifacts.drafts import scratch_folder\n"
    "with scratch_folder('it', place) as path: (path / 'a').touch(); stop()",
}
PROCESS = """\
import os, signal, sys
from pathlib import Path
place = Path(sys.argv[1])
def stop(*_): os.kill(os.getpid(), getattr(signal, sys.argv[2]))
"""


def killed(place: Path, what: str) -> None:
    """Kill a process that writes a draft in a folder."""
    done = subprocess.run([sys.executable, "-c", PROCESS + WRITERS[what], str(place), "SIGKILL"], check=False)
    assert done.returncode == -signal.SIGKILL
    assert len(list(place.glob(".it.*"))) == 1


def write(place: Path, what: str) -> None:
    """Write the same thing in this process."""
    drafts._delete_once.cache_clear()  # as in a new process
    if what == "text":
        write_text(place / "it", "text")
    elif what == "file":
        with atomic_file(place / "it") as path:
            path.touch()
    elif what == "folder":
        with new_folder(place / "it"):
            pass
    else:
        with scratch_folder("it", place):
            pass


@pytest.mark.parametrize("what", list(WRITERS))
def test_draft_of_killed_process_is_deleted(tmp_path: Path, what: str) -> None:
    killed(tmp_path, what)
    write(tmp_path, what)
    assert [path.name for path in tmp_path.iterdir()] == ([] if what == "scratch" else ["it"])


def test_draft_of_live_process_is_kept(tmp_path: Path) -> None:
    words = [sys.executable, "-c", PROCESS + WRITERS["folder"], str(tmp_path), "SIGSTOP"]
    with subprocess.Popen(words) as process:
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)
        write(tmp_path, "scratch")
        assert len(list(tmp_path.glob(".it.*"))) == 1
        process.send_signal(signal.SIGCONT)
    assert [path.name for path in tmp_path.iterdir()] == ["it"]


@pytest.mark.parametrize(("changes", "kept"), [({}, True), ({"started": 1}, False), ({"boot": "f00d"}, True)])
def test_fate_of_a_draft_depends_on_its_process(tmp_path: Path, changes: dict[str, int], kept: bool) -> None:
    """A draft of another machine or container is kept for an hour: nothing is known of its process."""
    other = tmp_path / f".it.0.{Owner.current()._replace(**changes)}.tmp"  # type: ignore[arg-type]
    other.mkdir()
    (tmp_path / ".other.tmp").touch()
    with draft(tmp_path / "x"):
        assert other.exists() == kept
    assert (tmp_path / ".other.tmp").exists()


def test_old_draft_of_another_machine_is_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = tmp_path / f".it.0.{Owner(1, 1, 'f00d')}.tmp"
    other.mkdir()
    monkeypatch.setattr(drafts, "OLD_SECONDS", -3600.0)
    with draft(tmp_path / "x"):
        assert not other.exists()


def test_threads_of_a_process_have_drafts_of_their_own(tmp_path: Path) -> None:
    with draft(tmp_path / "x") as first, draft(tmp_path / "x") as second:
        assert first != second


def test_killed_download_is_deleted_by_the_next(tmp_path: Path) -> None:
    run, to = make_run(tmp_path / "home", "one"), tmp_path / "to"
    (run.outputs / "a.txt").write_text("a")
    code = PROCESS + (
        "from orchestrator.backends.folder import outputs\nfrom orchestrator.client import Orchestrator\n"
        "outputs.replace_path = stop\n"
        "Orchestrator(home=place / 'home', environ={}).attach('one').download('a', to=place / 'to')"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path), "SIGKILL"], check=False)
    assert done.returncode == -signal.SIGKILL
    assert len(list(to.iterdir())) == 1
    Orchestrator(home=tmp_path / "home", environ={}).attach("one").download("a", to=to)
    assert [path.name for path in to.iterdir()] == ["a.txt"]


def test_new_object_has_no_name_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is left of it after a kill."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    uploaded = []

    class Place:
        def upload(self, path: Path) -> None:
            uploaded.append(path.read_bytes())

    new = NewObject(Place())  # type: ignore[arg-type]
    new.stream.write(b"content")
    assert list(tmp_path.iterdir()) == []
    new.commit()
    assert uploaded == [b"content"]
