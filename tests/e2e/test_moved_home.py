"""A home folder that was moved or copied: its runs resume there, and the original of a copy stays as it was."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from orchestrator.backends.folder.run_folder import RunFolder
from tests.conftest import Console, last_step, rank_pid, wait_for, write_spec
from tests.mlflow_runs import wait_for_copy
from train_jobs.artifacts.files import file_sha256

pytestmark = pytest.mark.long


def submit(console: Console, *more: str) -> str:
    done = console("submit", "pretrain", "-f", "job.yaml", "-o", "json", *more)
    assert done.code == 0, done.err
    return str(done.json["name"])


def write_job(console: Console, corpus: Path) -> None:
    # not asynchronous: the checkpoint of step 7 is complete when step 9 is reported
    every = {"checkpoint": {"every": 7, "asynchronous": False}, "validation": {"every": 30}}
    write_spec(console.cwd / "job.yaml", data={"text": [str(corpus)]}, train={"steps": 60, "log_every": 3}, **every)


def submit_and_kill(console: Console) -> str:
    """Submit a run, kill its rank after the first checkpoint, and wait for its end."""
    name = submit(console, "--new", "-d")
    folder = console.folder(name)
    wait_for(lambda: last_step(folder) >= 9, what="step 9")
    pid = rank_pid(folder, 0)
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    assert console("wait", name).code == 137
    return name


def weights(console: Console, name: str) -> dict[str, torch.Tensor]:
    return load_file(console.folder(name) / "outputs" / "model" / "model.safetensors")


def listing(home: Path) -> dict[str, tuple[int, str]]:
    """Return time and hash of each file and folder of a home."""
    found = {}
    for path in sorted(home.rglob("*")):
        content = file_sha256(path) if path.is_file() else ""
        found[str(path.relative_to(home))] = (path.stat().st_mtime_ns, content)
    return found


@pytest.mark.usefixtures("untracked")
def test_moved_home_resumes_bit_exactly(console: Console, corpus: Path) -> None:
    write_job(console, corpus)
    undisturbed = submit(console)
    name = submit_and_kill(console)
    former = console.home
    console.home = former.rename(former.with_name("other"))
    listed = console("list", "-o", "json").json
    assert {one["name"]: one["state"] for one in listed} == {undisturbed: "completed", name: "failed"}
    assert "step" in console("logs", name).out
    resumed = console("resume", name, "-o", "json")
    assert resumed.code == 0, resumed.err
    assert "resumed at step" in resumed.err
    expected, found = weights(console, undisturbed), weights(console, name)
    assert expected.keys() == found.keys()
    assert [key for key in expected if not torch.equal(expected[key], found[key])] == []
    assert console("status", name, "--lineage").code == 0
    pruned = console("prune", "--keep-last", "1", "--yes", "-o", "json")
    assert pruned.code == 0, pruned.err
    assert [path.name for path in (console.home / "runs").glob("[!.]*")] == [name]
    assert not former.exists()


def test_commands_in_copied_home_leave_original(console: Console, corpus: Path) -> None:
    write_job(console, corpus)
    name = submit_and_kill(console)
    wait_for_copy(RunFolder(console.folder(name)))
    original = console.home
    console.home = Path(shutil.copytree(original, original.with_name("copy"), symlinks=True))
    before = listing(original)
    resumed = console("resume", name, "-o", "json")
    assert resumed.code == 0, resumed.err
    wait_for_copy(RunFolder(console.folder(name)))
    assert listing(original) == before
    assert console("mlflow", "sync", "--all").code == 0
    status = console("status", name, "-o", "json").json
    assert (status["folder"], status["tracking_uri"]) == (
        str(console.folder(name)),
        f"sqlite:///{console.home / 'mlflow.db'}",
    )
    registered = console("model", "register", name, "--name", "copied")
    assert registered.code == 0, registered.err
    purged = console("prune", "--purge", name, "--yes")
    assert purged.code == 0, purged.err
    assert not console.folder(name).exists()
    assert str(original) not in purged.out + purged.err
    assert listing(original) == before
