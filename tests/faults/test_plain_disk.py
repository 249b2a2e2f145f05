"""A home on exFAT by FUSE: no links, no modes, and a deleted file that is still open keeps its folder, as on NFS."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.runs.hidden_folders import delete_abandoned
from orchestrator.sweeps.driver.sweep_folder import SweepFolder
from tests.conftest import Console, write_corpus, write_spec

IMAGE_BYTES = 256 << 20
MODULE = delete_abandoned.__module__
PROGRAMS = ("mkfs.exfat", "mount.exfat-fuse", "losetup")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """Mount an empty exFAT file system."""
    if os.geteuid() != 0 or not Path("/dev/fuse").exists():
        pytest.skip("only root can mount, with FUSE")
    if missing := [program for program in PROGRAMS if shutil.which(program) is None]:
        pytest.skip(f"{', '.join(missing)} not installed (Debian: exfatprogs, exfat-fuse)")
    image, place = tmp_path / "image", tmp_path / "disk"
    place.mkdir()
    with image.open("wb") as stream:
        stream.truncate(IMAGE_BYTES)

    def run(*words: str) -> str:
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"{words[0]} fails here: {done.stderr.strip()}")
        return done.stdout.strip()

    run("mkfs.exfat", str(image))
    device = run("losetup", "--find", "--show", str(image))
    try:
        run("mount.exfat-fuse", "-o", "umask=077", device, str(place))
        try:
            yield place
        finally:
            subprocess.run(["umount", "-l", str(place)], check=True)
    finally:
        subprocess.run(["losetup", "--detach", device], check=True)


def test_open_file_does_not_keep_run_from_being_deleted(disk: Path) -> None:
    run = disk / "runs" / "bert"
    for name in ("logs/rank-0.log", "outputs/model/weights", "state.json"):
        (run / name).parent.mkdir(parents=True, exist_ok=True)
        (run / name).write_text("text")
    code = f"import pathlib, {MODULE}; {MODULE}.delete_folder(pathlib.Path({str(run)!r}))"
    with (run / "logs" / "rank-0.log").open() as stream:
        subprocess.run([sys.executable, "-c", code], check=True)
        assert not run.exists()
        delete_abandoned(run.parent)
        assert stream.read() == "text"
        (left,) = run.parent.iterdir()
        assert left.name.startswith(".deleted.bert.")
    assert [path for path in left.rglob("*") if path.is_file()] == []
    delete_abandoned(run.parent)
    assert list(run.parent.iterdir()) == []


def test_study_of_sweep_is_stored_without_links(disk: Path) -> None:
    folder = SweepFolder(disk / "sweeps" / "wards")
    with folder.draft() as draft:
        draft.make_study("wards", "maximize")
    study = folder.study()
    study.tell(study.ask(), 0.5)
    assert [trial.value for trial in folder.study().get_trials()] == [0.5]


@pytest.mark.long
def test_runs_are_copied_to_mlflow_and_purged(disk: Path, console: Console) -> None:
    console.home = disk / "home"
    corpus = write_corpus(console.cwd / "corpus.txt")
    write_spec(console.cwd / "job.yaml", data={"text": [str(corpus)]}, train={"steps": 4})
    submitted = console("submit", "pretrain", "-f", "job.yaml", "-o", "json")
    assert submitted.code == 0, submitted.err
    name = submitted.json["name"]
    synced = console("mlflow", "sync", "--all")
    assert (synced.code, synced.err) == (0, ""), synced.err
    registered = console("model", "register", name, "--name", "notes")
    assert registered.code == 0, registered.err
    purged = console("prune", "--purge", name, "--yes")
    assert purged.code == 0, purged.err
    assert [str(path) for path in console.home.rglob("*") if name in str(path)] == []
