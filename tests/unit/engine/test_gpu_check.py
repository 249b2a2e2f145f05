"""What keeps a machine's GPUs from computing is reported as such: by preflight, by a start on this machine, by doctor.

The boundary is torch.cuda and nvidia-smi, which are replaced by doubles with an answer of a real machine.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from train_jobs.config import MachineError
from train_jobs.engine.runtime import distributed
from train_jobs.engine.runtime.gpu_check import has_code, require_driver, require_usable_gpu
from train_jobs.tools.preflight import main as preflight

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


class Machine:
    """A machine with GPUs, as torch.cuda and nvidia-smi describe it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self._patch, self._folder = monkeypatch, folder
        self.built("13.0")
        self.driver("580.95.05", 13000)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)  # through NVML, which any driver answers
        monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: CUDA_13)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA A100-SXM4-80GB")
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
        monkeypatch.setattr(torch.cuda, "set_device", self._refuse)

    def built(self, cuda: str) -> None:
        """Set the CUDA that torch was built for."""
        self._patch.setattr(torch.version, "cuda", cuda)

    def driver(self, release: str, supports: int) -> None:
        """Set the driver, by its release and the CUDA that it supports, as 1000 x major + 10 x minor."""
        self.supports = supports
        self._patch.setattr(torch._C, "_cuda_getDriverVersion", lambda: supports, raising=False)
        smi = self._folder / "nvidia-smi"
        smi.write_text(f"#!/bin/sh\necho {release}\n")
        smi.chmod(0o755)
        self._patch.setenv("PATH", str(self._folder), prepend=os.pathsep)

    def _refuse(self, device: torch.device) -> None:
        if self.supports < 13000:
            raise RuntimeError("The NVIDIA driver on your system is too old (found version 12020).\nPlease update")
        raise RuntimeError("CUDA error: uncorrectable ECC error encountered")


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Machine:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    return Machine(monkeypatch, tmp_path)


def test_old_driver_is_named_with_its_fix(machine: Machine) -> None:
    machine.driver("535.161.08", 12020)
    with pytest.raises(MachineError, match="the NVIDIA driver is too old for torch") as caught:
        require_usable_gpu(torch.device("cuda", 0))
    assert caught.value.facts == {
        "need": "driver 580 or newer, for CUDA 13.0",
        "have": "driver 535.161.08, for CUDA 12.2",
    }
    assert caught.value.exit_code == 8
    assert "cuda-compat" in str(caught.value.fix)


@pytest.mark.parametrize(
    ("built", "supports"),
    [("13.0", 13010), ("12.8", 12020), ("12.6", 13000)],  # newer; older of the same major release; a newer major one
)
def test_driver_of_same_or_newer_major_release_suffices(machine: Machine, built: str, supports: int) -> None:
    machine.built(built)
    machine.driver("570.1", supports)
    require_driver()


def test_build_without_cuda_needs_no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", None)
    require_driver()


def test_start_on_this_machine_reports_old_driver(machine: Machine) -> None:
    machine.driver("535.161.08", 12020)
    with pytest.raises(MachineError, match="too old"):
        distributed.start("auto")


def test_preflight_reports_old_driver_not_network(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    machine.driver("535.161.08", 12020)
    assert preflight(["--device", "gpu"]) == 8
    said = capsys.readouterr().err
    assert "the NVIDIA driver is too old" in said
    assert "have driver 535.161.08" in said
    assert "cannot reach" not in said


def test_broken_gpu_is_reported_with_its_words(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    assert preflight(["--device", "gpu"]) == 8
    assert "uncorrectable ECC error" in capsys.readouterr().err


def test_unsupported_gpu_is_named(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Tesla V100-SXM2-32GB")
    with pytest.raises(MachineError, match="has no code for it") as caught:
        require_usable_gpu(torch.device("cuda", 0))
    assert caught.value.facts["need"] == "sm_70"
    assert "V100" in caught.value.message
