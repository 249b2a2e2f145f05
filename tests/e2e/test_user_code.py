"""User code on the local backend: an entry module that calls train_jobs.pretrain, and a schedule."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.conftest import Console, write_spec

pytestmark = pytest.mark.usefixtures("untracked")

MY_PRETRAIN = """\
import os
import sys

import train_jobs.pretrain

print(f"my own code as rank {os.environ['RANK']}", flush=True)
sys.exit(train_jobs.pretrain.main())
"""
CONSTANT = """\
def constant(*, peak, **progress):
    return peak / 2
"""


@pytest.mark.slow
def test_user_module_runs_from_snapshot_with_commit(console: Console, corpus: Path) -> None:
    code = console.cwd / "project"
    (code / "schedules").mkdir(parents=True)
    (code / "my_pretrain.py").write_text(MY_PRETRAIN)
    (code / "schedules" / "mine.py").write_text(CONSTANT)
    (code / ".gitignore").write_text("*.ckpt\n")
    (code / "large.ckpt").write_bytes(b"\0" * 20_000_000)
    write_spec(console.cwd / "job.yaml", data={"text": [str(corpus)]}, train={"steps": 2}, checkpoint={"every": 2})
    for words in (
        ["init"],
        ["add", "schedules"],
        ["-c", "user.name=x", "-c", "user.email=x@y", "commit", "-m", "first"],
    ):
        subprocess.run(["git", *words], cwd=code, capture_output=True, check=True)

    words = [
        "submit",
        "pretrain",
        "-f",
        "job.yaml",
        "--code",
        "project",
        "--set",
        "code.entry=my_pretrain",
        "--set",
        "schedule=schedules.mine:constant",
        "--set",
        "optimizer.learning_rate=0.00246",
        "-o",
        "json",
    ]
    done = console(*words)
    assert done.code == 0, done.err
    folder = console.folder(done.json["name"])
    assert (folder / "code" / "my_pretrain.py").read_text() == MY_PRETRAIN
    assert sorted(path.name for path in (folder / "code").iterdir()) == ["my_pretrain.py", "schedules", "train_jobs"]
    log = (folder / "logs" / "rank-0.log").read_text()
    assert "my own code as rank 0\n" in log
    reports = [json.loads(line) for line in (folder / "outputs" / "metrics.jsonl").read_text().splitlines()]
    assert {report["metrics"].get("learning_rate") for report in reports} - {None} == {0.00123}
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=code, capture_output=True, text=True, check=True)
    assert json.loads((folder / "tags.json").read_text())["orchestrator.commit"] == f"{head.stdout.strip()}+dirty"

    (code / "large.ckpt").unlink()  # not part of the code: the same plan and thus the same run
    assert console(*words).json["name"] == done.json["name"]
