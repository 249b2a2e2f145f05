"""Homes on a disk that is read-only from the start, or becomes so while a run trains."""

from __future__ import annotations

import grp
import json
import os
import subprocess
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.conftest import Console, tmpfs, wait_for, write_corpus, write_spec
from tests.faults.campaign import disks
from tests.faults.campaign.scene import Scene, Undisturbed
from tests.mlflow_runs import make_tracked_run
from tests.run_folders import run_script

pytestmark = pytest.mark.long


def remount_words(place: Path) -> str:
    return f"mount it writable: sudo mount -o remount,rw {place}"


def scene_with_disk(console: Console) -> Scene:
    """Return a scene whose home can be put on its own disk; skip the test where this user may not mount one."""
    if why := disks.needs_root():
        pytest.skip(why)
    console.home.mkdir()
    (console.cwd / ".gitignore").write_text("*.image\n")  # the disk is no code
    return Scene(console, "pretrain", 0.0, Undisturbed(seconds=0, digest="", metrics=[], bytes=0), (), Random(0))


def test_read_only_home_is_shown_and_named(console: Console, tmp_path: Path) -> None:
    """Commands that only read still work; those that write name the file system and the command that repairs it."""
    with tmpfs(console.home, "64m") as disk:
        name = run_script(console.home, "exit 3", **{"tracking.uri": f"sqlite:///{tmp_path}/mlflow.db"})
        assert console("wait", name).code == 3
        # busy as long as a process of the run, such as the copy to MLflow, has a file open for writing
        remounted = ["mount", "-o", "remount,ro", str(disk)]
        wait_for(
            lambda: subprocess.run(remounted, capture_output=True, check=False).returncode == 0, what="a quiet disk"
        )
        assert [run["name"] for run in console("list", "-o", "json").json] == [name]
        status = console("status", name, "-o", "json")
        assert (status.code, status.json["state"], status.json["exit_code"]) == (0, "failed", 3)
        assert console("logs", name).code == 0

        (console.cwd / "prepare.yaml").write_text(
            json.dumps({"data": {"text": [str(write_corpus(tmp_path / "x.txt"))]}})
        )
        for words in (
            ("submit", "prepare", "-f", "prepare.yaml"),
            ("submit", "command", "--", "true"),
            ("resume", name),
            ("prune", "--state", "failed", "--yes"),
        ):
            refused = console(*words)
            assert refused.code == 1, words
            assert "error[storage]: " in refused.err, words
            assert ": read-only file system\n" in refused.err, words
            assert remount_words(disk) in refused.err.replace("\n         ", " "), words
            assert "Traceback" not in refused.err


def test_read_only_home_is_not_damage(console: Console, tmp_path: Path) -> None:
    """Commands of models, MLflow and sharing name the file system; `doctor` reports no copy that it cannot examine."""
    group = grp.getgrgid(os.getegid()).gr_name
    with tmpfs(console.home, "64m") as disk:
        run = make_tracked_run(disk)
        (run.path / "result.json").write_text("{}")
        run.model.mkdir(parents=True)
        assert console("mlflow", "sync", "run").code == 0
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        for words in (
            ("mlflow", "sync", "run"),
            ("mlflow", "sync", "--all"),
            ("mlflow", "sync", "run", "--to", f"sqlite:///{tmp_path}/other.db"),
            ("model", "register", "run"),
            ("model", "deploy", "run", "--endpoint", "abc"),
            ("home", "share", "--group", group),
        ):
            refused = console(*words)
            assert refused.code != 0, words
            assert "error[storage]: " in refused.err, (words, refused.err)
            assert "read-only file system" in refused.err, words
            assert remount_words(disk) in refused.err.replace("\n         ", " "), words
            assert "damaged" not in refused.err, words
        copies = next(row for row in console("doctor", "-o", "json").json if row["name"] == "MLflow copies")
        assert copies["text"].startswith("not checked: ")
        assert "read-only file system" in copies["text"]


@pytest.mark.parametrize("training", [True, False], ids=["the job writes", "the job sleeps"])
def test_run_on_disk_that_becomes_read_only_has_true_reason(console: Console, training: bool) -> None:
    """The supervisor cannot store the end: a reader determines why."""
    scene = scene_with_disk(console)
    corpus = write_corpus(console.cwd / "corpus.txt")
    write_spec(console.cwd / "job.yaml", data={"text": [str(corpus)]}, train={"steps": 4000}, checkpoint={"every": 5})
    job = ("pretrain", "-f", "job.yaml") if training else ("command", "--", "sleep", "12")
    with disks.own_disk(scene):
        kind, *rest = job
        submitted = console("submit", kind, "-d", "-o", "json", *rest)
        assert submitted.code == 0, submitted.err
        name = submitted.json["name"]
        if training:
            metrics = console.folder(name) / "outputs/metrics.jsonl"
            wait_for(metrics.exists, what="the first report")
        disks.make_read_only(scene)
        wait_for(lambda: console("status", name, "-o", "json").json["state"] == "failed", what="the end of the run")
        status = console("status", name, "-o", "json").json
        assert "read-only file system" in status["reason"]
        assert remount_words(console.home) in status["reason"]
        assert f"{name}  failed" in console("list").out


def test_sweep_on_disk_that_becomes_read_only_has_true_reason(console: Console) -> None:
    """The driver cannot store its last state; its trial ends too."""
    scene = scene_with_disk(console)
    text = {"text": [str(write_corpus(console.cwd / "corpus.txt"))]}
    write_spec(console.cwd / "job.yaml", data=text, train={"steps": 4000}, checkpoint={"every": 5})
    space = {"optimizer.learning_rate": [1e-3, 1e-4]}
    document = {"trial": "job.yaml", "sampling": "grid", "space": space, "limits": {"concurrent": 1}}
    (console.cwd / "sweep.yaml").write_text(json.dumps(document))
    with disks.own_disk(scene):
        submitted = console("submit", "sweep", "-f", "sweep.yaml", "-d", "-o", "json")
        assert submitted.code == 0, submitted.err
        name = submitted.json["name"]
        wait_for(lambda: list(console.home.glob("runs/*/outputs/metrics.jsonl")), what="the first report")
        disks.make_read_only(scene)

        def shown() -> dict[str, Any]:
            found: dict[str, Any] = console("sweep", "show", name, "-o", "json").json
            return found

        wait_for(lambda: shown()["state"] == "failed", what="the end of the sweep")
        assert "read-only file system" in shown()["reason"]
        assert remount_words(console.home) in shown()["reason"]
        refused = console("resume", name)
        assert refused.code == 1
        assert "read-only file system" in refused.err
        assert "Traceback" not in refused.err
