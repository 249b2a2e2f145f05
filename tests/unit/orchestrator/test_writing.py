"""Full and read-only folders, and suggested commands: errors for users of local runs."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.backends.folder.run_folder import RunFolder
from orchestrator.backends.local.backend import LocalBackend
from orchestrator.client import Orchestrator
from orchestrator.run import Run
from orchestrator.runs.status import Handle, RunState
from orchestrator.support.errors import ConflictError, StorageError
from tests.conftest import tmpfs, write_corpus, write_spec
from tests.run_folders import make_run, write_local_request


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a disk of a megabyte."""
    with tmpfs(tmp_path / "disk", "1m") as disk:
        yield disk


def make_stopped_run(home: Path) -> RunFolder:
    """Create a run that can be resumed."""
    plan = {"spec": {"tags": {}, "compute": {"threads_per_process": 1}}}
    run = make_run(home, "stopped", RunState.CANCELLED, plan=plan)
    write_local_request(run)
    run.cancel_file.touch()
    return run


def fill(disk: Path, *, left: int = 0) -> None:
    """Fill a disk except for `left` bytes."""
    with (disk / "filler").open("wb", buffering=0) as stream:
        try:
            while True:
                stream.write(bytes(4096))
        except OSError:
            stream.truncate(stream.tell() - left)


def read_only(disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)


@pytest.mark.parametrize("harm", [read_only, fill])
@pytest.mark.parametrize("processes", [None, 2])
def test_resume_on_unwritable_disk_is_refused(disk: Path, harm: object, processes: int | None) -> None:
    run, backend = make_stopped_run(disk), LocalBackend(disk)
    assert callable(harm)
    harm(disk)
    with pytest.raises(StorageError, match=r"cannot resume run stopped: (No space left|read-only)") as failure:
        backend.resume("stopped", processes=processes)
    assert failure.value.facts["where"] == run.path
    assert run.state().state == RunState.CANCELLED


def test_full_disk_without_reserve_still_resumes(disk: Path) -> None:
    run = make_stopped_run(disk)
    fill(disk, left=16 * 4096)
    LocalBackend(disk)._requeue(run, run.state())
    assert run.stored_state().state == RunState.QUEUED


def make_predicted_run(home: Path) -> Run:
    """Create a run with predictions."""
    run = make_run(home, "one")
    (run.outputs / "predictions.jsonl").write_text("{}\n")
    return Run(LocalBackend(home), Handle("local", run.name))


def test_predictions_are_copied_to_the_given_path(tmp_path: Path) -> None:
    (tmp_path / "out.jsonl").write_text("earlier")
    assert make_predicted_run(tmp_path / "home").deliver(tmp_path / "out.jsonl") == tmp_path / "out.jsonl"
    assert (tmp_path / "out.jsonl").read_text() == "{}\n"


def test_unwritable_predictions_raise_storage_error(tmp_path: Path, disk: Path) -> None:
    run = make_predicted_run(tmp_path / "home")
    (tmp_path / "folder" / "below").mkdir(parents=True)
    with pytest.raises(StorageError, match="Is a directory") as failure:
        run.deliver(tmp_path / "folder")
    assert failure.value.fix == "orchestrator download one predictions"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["disk", "folder", "home"]
    read_only(disk)
    with pytest.raises(StorageError, match="Read-only file system"):
        run.deliver(disk / "out.jsonl")


@pytest.mark.parametrize(("steps", "progress"), [(None, "step 0"), (7, "step 0 of 7")])
def test_run_of_the_same_plan_shows_its_progress(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: int | None, progress: str
) -> None:
    monkeypatch.chdir(tmp_path)
    write_corpus(tmp_path / "corpus.txt")
    write_spec(tmp_path / "job.yaml", data={"text": ["corpus.txt"]})
    orchestrator = Orchestrator(home=tmp_path / "home", environ={"CUDA_VISIBLE_DEVICES": ""})
    plan = orchestrator.plan(file=tmp_path / "job.yaml")
    make_run(tmp_path / "home", plan.name, RunState.CANCELLED, plan={"steps": steps})
    with pytest.raises(ConflictError, match="a run of the same plan was cancelled") as failure:
        orchestrator.submit(plan)
    assert failure.value.facts["run"] == f"{plan.name}, {progress}"


@pytest.mark.parametrize("taken", [False, True], ids=["full disk", "name taken"])
def test_failed_submission_leaves_no_draft(tmp_path: Path, disk: Path, taken: bool) -> None:
    write_spec(tmp_path / "job.yaml", data={"text": [str(write_corpus(tmp_path / "corpus.txt"))]})
    home = tmp_path / "home" if taken else disk
    plan = Orchestrator(home=home, environ={"CUDA_VISIBLE_DEVICES": ""}).plan(file=tmp_path / "job.yaml")
    backend = LocalBackend(home)
    submission = backend.prepare(plan, run="one")
    if taken:
        backend._make(submission)
    with pytest.raises(ConflictError if taken else StorageError):  # the code does not fit on the disk
        backend._make(submission)
    assert [path.name for path in (home / "runs").iterdir()] == (["one"] if taken else [])


def test_temporary_files_of_killed_processes_are_deleted(tmp_path: Path) -> None:
    run = make_run(tmp_path, "one")
    below = run.outputs / "model"
    below.mkdir()
    left = [run.path / ".state.json.7.tmp", run.outputs / ".probe-7", run.outputs / ".seen-a", below / ".x.7.tmp"]
    for path in left:
        path.touch()
    (below / "config.json").touch()
    run.clear_temporaries()
    assert not any(path.exists() for path in left)
    assert (below / "config.json").exists()


def test_folder_and_its_name_are_on_disk_when_draft_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rename that only the cache knows is lost by a power failure, and with it a run that was reported."""
    synced: list[tuple[str, bool]] = []
    run, fsync = RunFolder(tmp_path / "runs" / "one"), os.fsync

    def note(handle: int) -> None:
        fsync(handle)
        synced.append((str(Path(f"/proc/self/fd/{handle}").readlink()), run.path.exists()))

    monkeypatch.setattr(os, "fsync", note)
    with run.draft() as draft:
        (draft.path / "plan.json").write_text("{}")
    assert (f"{draft.path}/plan.json", False) in synced
    assert [entry for entry in synced if entry[1]] == [(str(run.path.parent), True), (str(tmp_path), True)]
