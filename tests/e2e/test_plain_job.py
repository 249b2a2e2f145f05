"""The job without the laptop: plain torchrun, no `orchestrator` to import, and a wheel instead of a checkout."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml

from orchestrator.snapshot import take_snapshot
from tests.conftest import MICRO, Console, write_corpus

ROOT = Path(__file__).resolve().parents[2]


def config_file(folder: Path) -> Path:
    """Write the config of the micro job for plain torchrun."""
    config = {key: value for key, value in MICRO.items() if key not in {"recipe", "name", "compute"}}
    config["data"] = {**config["data"], "text": [str(write_corpus(folder / "corpus.txt"))]}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    return folder / "config.yaml"


def environment(folder: Path) -> dict[str, str]:
    """Return an environment in which importing `orchestrator` fails but the code of the job is importable."""
    take_snapshot().write(folder / "code")
    (folder / "blocked").mkdir()
    (folder / "blocked" / "orchestrator.py").write_text("raise ImportError('the job imported the orchestrator')")
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("MLFLOW_", "ORCHESTRATOR_"))}
    return {**clean, "PYTHONPATH": f"{folder / 'blocked'}:{folder / 'code'}"}


@pytest.mark.long
def test_torchrun_with_two_processes_and_no_orchestrator(tmp_path: Path) -> None:
    command = [
        *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"),
        *("-m", "train_jobs.pretrain", "--config", str(config_file(tmp_path)), "--output", str(tmp_path / "out")),
    ]
    first = subprocess.run(
        command, cwd=tmp_path, env=environment(tmp_path), capture_output=True, text=True, check=False
    )
    assert first.returncode == 0, first.stderr
    assert "batch      8 sequences = 2 micro x 2 accumulation x 2 processes" in first.stdout
    assert json.loads((tmp_path / "out" / "result.json").read_text())["steps"] == 12
    assert (tmp_path / "out" / "model" / "model.safetensors").is_file()


@pytest.mark.long
def test_same_command_resumes_other_config_refused(tmp_path: Path) -> None:
    command = [
        *(sys.executable, "-m", "train_jobs.pretrain", "--config", str(config_file(tmp_path))),
        *("--output", str(tmp_path / "out")),
    ]
    run = {"cwd": tmp_path, "env": environment(tmp_path), "capture_output": True, "text": True}
    assert subprocess.run(command, **run).returncode == 0
    again = subprocess.run(command, **run)
    assert again.returncode == 0, again.stderr
    assert "resumed at step 12" in again.stdout
    other = subprocess.run([*command, "--set", "optimizer.learning_rate=1e-5"], **run)
    assert other.returncode == 1
    assert other.stderr.startswith("error[conflict]: ")
    assert "optimizer.learning_rate: 0.006 -> 1e-05" in other.stderr
    never = subprocess.run([*command, "--set", "resume=never"], **run)
    assert never.returncode == 1
    assert "resume is never" in never.stderr


@pytest.mark.slow
def test_job_with_time_budget_ends_and_stays_finished(tmp_path: Path) -> None:
    command = [
        *(sys.executable, "-m", "train_jobs.pretrain", "--config", str(config_file(tmp_path))),
        *("--output", str(tmp_path / "out"), "--set", "train.steps=100000", "--set", "schedule.hours=0.0003"),
    ]
    run = {"cwd": tmp_path, "env": environment(tmp_path), "capture_output": True, "text": True}
    first = subprocess.run(command, **run)
    assert first.returncode == 0, first.stderr
    assert "warning: schedule.hours: rates and steps depend on the clock" in first.stdout
    steps = json.loads((tmp_path / "out" / "result.json").read_text())["steps"]
    assert 0 < steps < 100_000
    reports = [json.loads(line) for line in (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()]
    (last,) = [
        report["metrics"] for report in reports if report["step"] == steps and "learning_rate" in report["metrics"]
    ]
    assert last["learning_rate"] == 0.0
    again = subprocess.run(command, **run)
    assert f"resumed at step {steps}" in again.stdout
    assert json.loads((tmp_path / "out" / "result.json").read_text())["steps"] == steps


@pytest.mark.slow
def test_plan_from_wheel_has_same_snapshot(tmp_path: Path) -> None:
    built = subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--no-deps", "--quiet", "--wheel-dir", str(tmp_path), str(ROOT)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    (wheel,) = tmp_path.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    console = Console(home=tmp_path / "home", cwd=tmp_path)
    planned = console("plan", "pretrain", "-o", "json", PYTHONPATH=str(tmp_path / "site"))
    assert planned.code == 0, planned.err
    assert planned.json["plan"]["snapshot"]["digest"] == take_snapshot().digest
