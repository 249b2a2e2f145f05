"""The preflight with torchrun as on a cluster: healthy machines pass and faulty ones are named."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from train_jobs.tools.preflight import check_build, check_device, find_device, has_code, main

SICK = """
import os, sys, torch
import train_jobs.tools.preflight as preflight
if os.environ["RANK"] == "1":
    preflight.check_device = lambda device: "an ECC error"
sys.exit(preflight.main(["--device", "cpu"]))
"""


def torchrun(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_faulty_process_is_named_by_all(tmp_path: Path) -> None:
    (tmp_path / "sick.py").write_text(SICK)
    done = torchrun(str(tmp_path / "sick.py"))
    assert done.returncode == 1
    assert "an ECC error" in done.stderr
    assert "preflight: rank 1 on " in done.stderr
    assert "rank 0 on" not in done.stderr
    assert "no problem" not in done.stdout


def test_healthy_processes_pass() -> None:
    done = torchrun("-m", "train_jobs.tools.preflight", "--device", "cpu")
    assert (done.returncode, done.stdout.count("no problem")) == (0, 1), done.stderr


@pytest.mark.skipif(torch.cuda.is_available(), reason="for machines without a GPU")
def test_missing_gpus_are_counted(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert main(["--device", "gpu"]) == 1
    assert "0 GPUs are visible, need 8" in capsys.readouterr().err


def test_wrong_matrix_product_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    device, wrong = find_device("cpu", 0, 1)
    assert wrong is None
    assert check_device(device) is None
    matmul = torch.Tensor.__matmul__
    monkeypatch.setattr(torch.Tensor, "__matmul__", lambda self, other: matmul(self, other) * 1.5)
    assert "is off by" in str(check_device(device))
    monkeypatch.setattr(torch.Tensor, "__matmul__", lambda self, other: matmul(self, other) * float("nan"))
    assert "is off by" in str(check_device(device))


CUDA_13 = ["sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120", "compute_120"]


@pytest.mark.parametrize(
    ("capability", "built", "found"),
    [
        ((7, 0), CUDA_13, False),  # V100
        ((7, 5), CUDA_13, True),  # T4
        ((8, 9), CUDA_13, True),  # code for its generation
        ((9, 0), ["sm_80", "sm_90a"], True),
        ((9, 0), ["sm_80", "compute_80"], True),  # compiled from PTX when it is loaded
        ((9, 0), ["sm_80", "sm_86"], False),
        ((8, 0), ["sm_86", "compute_90"], False),
        ((12, 1), CUDA_13, True),
        ((9, 4), ["gfx942"], True),  # unknown
    ],
)
def test_gpu_support_is_read_from_torch_build(capability: tuple[int, int], built: list[str], found: bool) -> None:
    assert has_code(capability, built) == found


def test_unsupported_gpu_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Tesla V100-SXM2-32GB")
    monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: ["sm_75", "sm_80"])
    problem = check_build(torch.device("cuda", 0))
    assert problem == f"torch {torch.__version__} has no code for Tesla V100-SXM2-32GB (sm_70), only for sm_75, sm_80"
    assert check_build(torch.device("cpu")) is None
