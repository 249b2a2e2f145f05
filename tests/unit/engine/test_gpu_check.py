"""Reports of GPUs that cannot compute, as such: by preflight, by a start on this machine, by doctor.

The boundary is torch.cuda and nvidia-smi, which are replaced by doubles with an answer of a real machine.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from train_jobs.config import MachineError
from train_jobs.engine.runtime import distributed, gpu_check
from train_jobs.engine.runtime.gpu_check import has_code, require_driver, require_usable_gpu
from train_jobs.tools import gpu_report
from train_jobs.tools.preflight import main as preflight

ROOT = Path(__file__).parents[3]
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
        if shutil.which("cc") is None:
            pytest.skip("a double of the driver needs a C compiler")
        library = self._folder / f"libcuda-{supports}.so"
        code = f"int cuDriverGetVersion(int *version) {{ *version = {supports}; return 0; }}"
        subprocess.run(["cc", "-shared", "-x", "c", "-", "-o", str(library)], input=code, text=True, check=True)
        self._patch.setattr(gpu_check, "DRIVER_LIBRARY", str(library))
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
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "CUDA_VISIBLE_DEVICES"):
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
    assert "compute.device=cpu" in str(caught.value.fix)


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


@pytest.mark.parametrize("counted", [0, 1])  # torch counts through NVML or, where that fails, through the driver
@pytest.mark.parametrize("device", ["auto", "gpu"])
def test_start_on_this_machine_reports_old_driver(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, device: str, counted: int
) -> None:
    machine.driver("535.161.08", 12020)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: counted)
    for start in (distributed.start, distributed.uses_gpu):
        with pytest.raises(MachineError, match="too old") as caught:
            start(device)
        assert caught.value.exit_code == 8


@pytest.mark.parametrize(
    ("device", "visible"), [("cpu", "0"), ("auto", ""), ("auto", "-1"), ("auto", "NoDevFiles"), ("auto", "none")]
)
def test_start_without_gpus_ignores_old_driver(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, device: str, visible: str
) -> None:
    machine.driver("535.161.08", 12020)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert not distributed.uses_gpu(device)
    assert distributed.start(device).device.type == "cpu"


@pytest.mark.parametrize(
    ("device", "backends", "bound"),
    [("gpu", "cpu:gloo,cuda:nccl", torch.device("cuda", 1)), ("cpu", "gloo", None)],
)
def test_start_binds_rank_to_its_gpu(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, device: str, backends: str, bound: torch.device | None
) -> None:
    """Otherwise nccl connects in the first step only, and a barrier guesses the GPU."""
    for name in ("RANK", "LOCAL_RANK"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(distributed, "require_usable_gpu", lambda device: None)
    joined: list[tuple[str, torch.device | None]] = []
    monkeypatch.setattr(
        torch.distributed, "init_process_group", lambda backend, *, device_id, **_: joined.append((backend, device_id))
    )
    distributed.start(device)
    assert joined == [(backends, bound)]


ALLOCATOR_VARIABLES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")


@pytest.mark.parametrize("module", ["train_jobs.pretrain", "benchmarks.gpu_rows"])
@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({}, ["expandable_segments:True", None]),
        ({"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"}, ["backend:cudaMallocAsync", None]),
        ({"PYTORCH_ALLOC_CONF": "backend:cudaMallocAsync"}, [None, "backend:cudaMallocAsync"]),
    ],
)
def test_allocator_is_set_before_torch_is_imported(
    tmp_path: Path, module: str, given: dict[str, str], found: list[str | None]
) -> None:
    """A double in place of torch prints what torch would read at its import."""
    double = "import json, os; print(json.dumps([os.environ.get(name) for name in {}]), flush=True); os._exit(0)"
    (tmp_path / "torch.py").write_text(double.format(ALLOCATOR_VARIABLES))
    environ = {name: value for name, value in os.environ.items() if name not in ALLOCATOR_VARIABLES}
    environ |= {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)]), **given}
    done = subprocess.run([sys.executable, "-m", module], env=environ, capture_output=True, text=True)
    assert json.loads(done.stdout) == found, done.stderr


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


class VirtualGpu:
    """A GPU without CUDA's virtual memory management: with expandable segments its first allocation fails."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, able: bool = True) -> None:
        self.settings: list[str] = []
        self._able = able
        monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
        monkeypatch.setattr(torch._C, "_accelerator_setAllocatorSettings", self.settings.append)
        monkeypatch.setattr(torch, "ones", self._allocate)

    def _allocate(self, size: int, **more: object) -> torch.Tensor:
        if not self.settings or not self._able:
            raise RuntimeError("CUDA driver error: operation not supported")
        return torch.zeros(size)


def test_virtual_gpu_is_used_without_expandable_segments(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    gpu = VirtualGpu(monkeypatch)
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")  # the default of train_jobs
    require_usable_gpu(torch.device("cuda", 0))
    assert gpu.settings == [os.environ["PYTORCH_CUDA_ALLOC_CONF"]] == ["expandable_segments:False"]
    out, err = capsys.readouterr()
    assert (out, err.count("warning: memory may run out earlier")) == ("", 1)


@pytest.mark.parametrize("setting", ["expandable_segments:True", "expandable_segments:True,max_split_size_mb:64"])
def test_segments_that_gpu_lacks_have_a_fix(machine: Machine, monkeypatch: pytest.MonkeyPatch, setting: str) -> None:
    """Neither a choice of the user nor an allocator that does not accept the change lets the job start."""
    VirtualGpu(monkeypatch, able=False)
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", setting)
    with pytest.raises(MachineError, match="does not compute") as caught:
        require_usable_gpu(torch.device("cuda", 0))
    assert "export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:False" in str(caught.value.fix)


def test_unsupported_gpu_is_named(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Tesla V100-SXM2-32GB")
    with pytest.raises(MachineError, match="has no code for it") as caught:
        require_usable_gpu(torch.device("cuda", 0))
    assert caught.value.facts["need"] == "sm_70"
    assert "V100" in caught.value.message


def test_report_ends_with_old_driver(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    machine.driver("535.161.08", 12020)
    assert gpu_report.main([]) == 8
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (last["name"], last["level"]) == ("gpu driver", "fail")
    assert last["text"].startswith("the NVIDIA driver is too old: need driver 580 or newer")
    assert "cuda-compat" in last["fix"]


def test_report_names_gpu_that_does_not_compute(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu_report.main([]) == 8
    *_, before, last = map(json.loads, capsys.readouterr().out.splitlines())
    assert (before["name"], before["level"]) == ("gpu driver", "ok")
    assert before["text"].startswith("580.95.05, for CUDA 13.0")
    assert (last["name"], last["level"]) == ("gpu 0", "fail")
    assert "uncorrectable ECC error" in last["text"]


def test_report_shows_memory_that_others_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_report.gpu_check, "require_usable_gpu", lambda device: None)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H100 80GB HBM3")
    free = [(79e9, 80e9), (20e9, 80e9), (11e9, 12e9)]
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: free[device.index])
    found = list(gpu_report.usable([torch.device("cuda", number) for number in range(3)]))
    assert [one.level for one in found] == ["ok", "warn", "warn"]
    assert "20.0 of 80.0 GB free" in found[1].text
    assert all(one.fix for one in found[1:])


def test_report_without_compiler_or_numba_has_fixes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(gpu_report.sysconfig, "get_paths", lambda: {"include": str(tmp_path)})
    found = gpu_report.compiler()
    assert (found.level, found.text) == ("warn", f"no C compiler and no Python.h ({tmp_path}): torch.compile fails")
    assert "gcc python3-dev" in str(found.fix)
    monkeypatch.setattr(gpu_report, "find_spec", lambda name: None)
    assert gpu_report.planner().level == "warn"


def test_report_names_gpus_without_peer_access(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_report.dist, "is_nccl_available", lambda: True)
    monkeypatch.setattr(torch.cuda.nccl, "version", lambda: (2, 29, 7))
    monkeypatch.setattr(torch.cuda, "can_device_access_peer", lambda a, b: {a.index, b.index} != {0, 2})
    answer = subprocess.CompletedProcess([], 1, "", "preflight: rank 2 on node: an all-reduce gave 2 to 3, not 3\n")
    monkeypatch.setattr(gpu_report.subprocess, "run", lambda *words, **more: answer)
    peers, nccl = gpu_report.links([torch.device("cuda", number) for number in range(3)])
    assert peers.level == "warn"
    assert "0-2, 2-0" in peers.text
    assert nccl.level == "fail"
    assert "an all-reduce gave 2 to 3" in nccl.text


def test_rates_are_measured_on_cpu() -> None:
    cpu = torch.device("cpu")
    assert gpu_report.matrix_rate(cpu, "fp32", 64).level == "ok"
    assert gpu_report.bandwidth(cpu, 1 << 16).level == "ok"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of torch, while it compiles
def test_compiled_step_agrees_with_eager(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = torch.device("cpu")
    found = gpu_report.compiled_step(cpu, "fp32", 64)
    assert found.level == "ok", found.text
    monkeypatch.setattr(gpu_report, "TOLERANCE", -1.0)  # whatever it computes is then wrong
    assert gpu_report.compiled_step(cpu, "fp32", 64).level == "fail"
