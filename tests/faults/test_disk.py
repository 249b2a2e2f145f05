"""Disks that are really read-only or full: small file systems in memory."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from tests.conftest import Console, tmpfs, wait_for, write_corpus, write_spec
from tests.faults.campaign import disks
from tests.faults.campaign.scene import Scene, Undisturbed, signal_all
from tests.run_folders import run_script
from train_jobs import prepare
from train_jobs.artifacts.tracking import mlflow_store

pytestmark = pytest.mark.long


def job(output: Path, cache: Path, spec: Path) -> subprocess.CompletedProcess[str]:
    """Run the job alone, without an orchestrator."""
    config = [sys.executable, "-m", "train_jobs.pretrain", "--config", str(spec)]
    return subprocess.run(
        [*config, "--output", str(output), "--cache", str(cache)],
        capture_output=True,
        text=True,
        check=False,
    )


def job_spec(folder: Path, **train: int) -> Path:
    """Write a config for the job, without the keys that only the laptop uses."""
    import yaml

    text = str(write_corpus(folder / "corpus.txt"))
    written = write_spec(folder / "job.yaml", data={"text": [text]}, checkpoint={"keep_best": 0})
    spec = yaml.safe_load(written.read_text())
    for key in ("recipe", "name", "compute"):
        del spec[key]
    spec["train"].update(train)
    (folder / "config.yaml").write_text(yaml.safe_dump(spec))
    return folder / "config.yaml"


def test_read_only_output_folder_is_reported(tmp_path: Path) -> None:
    spec = job_spec(tmp_path)
    with tmpfs(tmp_path / "disk", "8m") as disk:
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        done = job(disk / "output", tmp_path / "cache", spec)
        assert done.returncode == 1
        assert done.stderr.startswith("error[storage]: ")
        assert str(disk / "output") in done.stderr
        assert "Traceback" not in done.stderr
        assert list(disk.iterdir()) == []


def test_disk_full_at_checkpoint_keeps_earlier_ones(tmp_path: Path) -> None:
    """The first checkpoints fit and a later one does not: it leaves no files, and the earlier ones stay valid."""
    from train_jobs.engine.checkpoint.checkpoints import CheckpointStore, verify

    spec = job_spec(tmp_path)
    assert job(tmp_path / "measured", tmp_path / "cache", spec).returncode == 0
    one = sum(path.stat().st_size for path in (tmp_path / "measured/checkpoints/step-00000012").iterdir())
    with tmpfs(tmp_path / "disk", str(int(2.5 * one))) as disk:
        done = job(disk, tmp_path / "cache", spec)
        assert done.returncode == 1, done.stdout
        assert "error[storage]: " in done.stderr
        assert "step 12" in done.stderr
        assert "Traceback" not in done.stderr
        folders = sorted(path.name for path in (disk / "checkpoints").iterdir())
        assert folders == ["step-00000004", "step-00000008"]
        assert all(verify(disk / "checkpoints" / name) for name in folders)
        newest = CheckpointStore(disk / "checkpoints", keep_last=2).newest()
        assert newest is not None
        assert newest.step == 8
        assert json.loads((disk / "error-0.json").read_text())["error"]["kind"] == "storage"
        assert not (disk / "model").exists()


def test_disk_full_at_token_store_is_reported(tmp_path: Path) -> None:
    spec = job_spec(tmp_path)
    with tmpfs(tmp_path / "disk", "24k") as disk:
        done = job(tmp_path / "output", disk / "cache", spec)
        assert done.returncode == 1
        assert done.stderr.startswith("error[storage]: ")
        assert "Traceback" not in done.stderr
        assert not list(disk.rglob("manifest.json")), "it is no store"
        assert {path.parent.name for path in disk.rglob("*.arrow")} <= {"parts"}, "what the next start goes on from"


def test_full_home_ends_run_with_true_state(console: Console, corpus: Path) -> None:
    """State, log and reason are recorded on a disk without a free byte."""
    write_spec(
        console.cwd / "job.yaml",
        data={"text": [str(corpus)]},
        model={"hidden_size": 128},
        train={"steps": 400},
        checkpoint={"every": 5, "keep_last": 100},
    )
    with tmpfs(console.home, "16m"):
        done = console("submit", "pretrain", "-f", "job.yaml", "-o", "json")
        assert done.code == 1, done.err
        assert done.json["state"] == "failed"
        assert "error[storage]: " in done.json["reason"]
        assert "resume the run" in done.json["reason"]
        log = (Path(done.json["folder"]) / "logs" / "rank-0.log").read_text()
        assert "Traceback" not in log


def test_submitted_code_survives_failing_disk(console: Console, corpus: Path) -> None:
    """Without a sync its files would be empty, and a resumed run of empty modules would complete."""
    (console.cwd / "prepare.yaml").write_text(json.dumps({"data": {"text": [str(corpus)], "vocab_size": 256}}))
    words = ("submit", "prepare", "-f", "prepare.yaml", "-d", "-o", "json")
    scene = Scene(console, "prepare", 0.0, Undisturbed(seconds=0, digest="", metrics=[], bytes=0), words, Random(0))
    if why := disks.needs_root():
        pytest.skip(why)
    console.home.mkdir()
    with disks.own_disk(scene):
        submitted = console(*words)
        assert submitted.code == 0, submitted.err
        disks.make_read_only(scene)
        signal_all(console.home)
        disks.repair(scene)
        code = Path(submitted.json["folder"]) / "code"
        assert (code / "train_jobs/prepare.py").read_bytes() == Path(prepare.__file__).read_bytes()
        assert len(list(code.rglob("*.py"))) > 100
        assert [path for path in code.rglob("*.py") if not path.stat().st_size and path.name != "__init__.py"] == []
        resumed = console("resume", submitted.json["name"])
        assert resumed.code == 0, resumed.err
        assert list(console.home.glob("token-stores/*/manifest.json"))


def test_failing_disk_ends_creation_of_mlflow_store(console: Console) -> None:
    """MLflow itself retries for 102 s, and its process keeps the disk in use."""
    scene = Scene(console, "prepare", 0.0, Undisturbed(seconds=0, digest="", metrics=[], bytes=0), (), Random(0))
    if why := disks.needs_root():
        pytest.skip(why)
    console.home.mkdir()
    with disks.own_disk(scene):
        (console.home / "mlflow.lock").touch()
        code = f"from {mlflow_store.__name__} import _create; _create(Path({str(console.home / 'mlflow.db')!r}))"
        disks.make_read_only(scene)
        words = [sys.executable, "-c", f"from pathlib import Path; {code}"]
        done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
        assert "Read-only file system" in done.stderr


FILL = 'cat /dev/zero > "$ORCHESTRATOR_RUN/filler-$RANK" 2>/dev/null; '


@pytest.mark.parametrize(
    ("script", "state", "reason"),
    [
        (f"{FILL} exit 3", "failed", "ended with exit code 3"),
        (f"{FILL} sh -c 'kill -9 $PPID'", "failed", "was killed by signal SIGKILL"),
        (f"{FILL} exit 0", "completed", None),
    ],
    ids=["exit code", "killed", "success"],
)
def test_full_disk_reason_and_exit_codes_are_true(
    console: Console, tmp_path: Path, script: str, state: str, reason: str | None
) -> None:
    """Only the reserves are left for the supervisor's log, the exit codes and the state."""
    with tmpfs(console.home, "12m"):
        name = run_script(console.home, script, **{"tracking.uri": f"sqlite:///{tmp_path}/mlflow.db"})
        wait_for(lambda: console("status", name, "-o", "json").json["ended"], what="the end of the run")
        status = console("status", name, "-o", "json").json
        assert status["state"] == state, status["reason"]
        assert (reason or "") in (status["reason"] or "")
        if state == "failed":
            assert "the disk is full: " in status["reason"]


def test_full_disk_keeps_supervisor_restarting(console: Console, tmp_path: Path) -> None:
    """A message of a restart that does not fit into the log must not end the supervisor."""
    with tmpfs(console.home, "12m"):
        more = {"tracking.uri": f"sqlite:///{tmp_path}/mlflow.db", "max_restarts": 2}
        name = run_script(console.home, f"{FILL} exit 3", **more)
        wait_for(lambda: console("status", name, "-o", "json").json["ended"], what="the end of the run")
        status = console("status", name, "-o", "json").json
        assert status["state"] == "failed"
        assert status["attempt"] >= 2, status["reason"]  # the same failure twice ends the restarts
        # the second is that of a write here, if the rank filled the disk before its exit code had a block
        assert "the disk is full: " in status["reason"] or "No space left on device" in status["reason"]
