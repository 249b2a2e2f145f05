"""The preflight with torchrun as on a cluster: healthy machines pass and faulty ones are named."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from train_jobs.tools import preflight
from train_jobs.tools.gpu_report import torchrun
from train_jobs.tools.preflight import check_device, find_device, main

NAMELESS = """
import socket, sys
from train_jobs.tools.gpu_report import torchrun
socket.sethostname("name-without-address")
done = torchrun(2, "-m", "train_jobs.tools.preflight", "--device", "cpu", seconds=60)
sys.exit(done.stderr if done.returncode else 0)
"""
SICK = """
import os, sys, torch
import train_jobs.tools.preflight as preflight
torch.distributed.all_gather_object = None  # it unpickles what other machines send
if os.environ["RANK"] == "1":
    preflight.check_device = lambda device: "an ECC error"
sys.exit(preflight.main(["--device", "cpu"]))
"""


def test_faulty_process_is_named_by_all(tmp_path: Path) -> None:
    (tmp_path / "sick.py").write_text(SICK)
    done = torchrun(2, str(tmp_path / "sick.py"))
    assert done.returncode == 1  # torchrun's own, whatever the code of a process
    assert "an ECC error" in done.stderr
    assert "preflight: rank 1 on " in done.stderr
    assert "rank 0 on" not in done.stderr
    assert "no problem" not in done.stdout


@pytest.mark.long
def test_healthy_processes_pass() -> None:
    done = torchrun(2, "-m", "train_jobs.tools.preflight", "--device", "cpu")
    assert (done.returncode, done.stdout.count("no problem")) == (0, 1), done.stderr


@pytest.mark.long
def test_name_of_machine_needs_no_address() -> None:
    command = ["unshare", "--map-root-user", "--uts", sys.executable, "-c"]
    if shutil.which("unshare") is None or subprocess.run([*command, ""]).returncode:
        pytest.skip("may not change the name of the machine")
    done = subprocess.run([*command, NAMELESS], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("free", [20e9, 79e9])
def test_gpu_that_another_program_fills_is_reported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], free: float
) -> None:
    """A warning, as by doctor --gpu: the job may still fit."""
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(preflight, "require_driver", lambda: None)
    monkeypatch.setattr(preflight, "require_usable_gpu", lambda device: None)
    monkeypatch.setattr(preflight, "check_device", lambda device: None)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free, 80e9))
    assert main(["--device", "gpu"]) == 0
    warned = "warning: memory may run out: GPU 0 of" in capsys.readouterr().err
    assert warned == (free == 20e9)


@pytest.mark.skipif(torch.cuda.is_available(), reason="for machines without a GPU")
def test_missing_gpus_are_counted(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert main(["--device", "gpu"]) == 8
    assert "0 GPUs are visible, need 8" in capsys.readouterr().err


def test_wrong_matrix_product_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    device = find_device("cpu", 0, 1)
    assert check_device(device) is None
    matmul = torch.Tensor.__matmul__
    monkeypatch.setattr(torch.Tensor, "__matmul__", lambda self, other: matmul(self, other) * 1.5)
    assert "is off by" in str(check_device(device))
    monkeypatch.setattr(torch.Tensor, "__matmul__", lambda self, other: matmul(self, other) * float("nan"))
    assert "is off by" in str(check_device(device))
