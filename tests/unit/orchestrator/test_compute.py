"""Resolution of `auto`, and the count of GPUs."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.specs.compute import ComputeSpec, visible_gpus
from orchestrator.support.errors import SpecError


@pytest.mark.parametrize(
    ("spec", "gpus", "expected"),
    [
        (ComputeSpec(), 0, ("cpu", 1, 8)),
        (ComputeSpec(), 4, ("gpu", 4, 2)),
        (ComputeSpec(device="cpu"), 4, ("cpu", 1, 8)),
        (ComputeSpec(processes_per_node=2), 0, ("cpu", 2, 4)),
        (ComputeSpec(processes_per_node=2, threads_per_process=3), 4, ("gpu", 2, 3)),
        (ComputeSpec(processes_per_node=16), 0, ("cpu", 16, 1)),
    ],
)
def test_auto_depends_on_the_devices_of_the_machine(
    spec: ComputeSpec, gpus: int, expected: tuple[str, int, int]
) -> None:
    resolved = spec.resolve(gpus=gpus, cores=8)
    assert (resolved.device, resolved.processes_per_node, resolved.threads_per_process) == expected


def test_world_size_counts_every_node() -> None:
    assert ComputeSpec(nodes=3).resolve(gpus=8, cores=8).world_size == 24


def test_more_processes_than_gpus_are_refused() -> None:
    with pytest.raises(SpecError, match=r"processes_per_node 4 is more than the visible GPUs \(2\)"):
        ComputeSpec(processes_per_node=4).resolve(gpus=2, cores=8)


@pytest.mark.parametrize(
    ("listed", "count"), [("", 0), ("-1", 0), ("0", 1), ("0,1,2", 3), ("2,-1,3", 1), ("GPU-a, GPU-b", 2)]
)
def test_visible_gpus_follows_cuda_visible_devices(listed: str, count: int) -> None:
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": listed, "PATH": ""}) == count


@pytest.mark.parametrize(
    ("script", "count"),
    [("echo 'NVIDIA H200, 143771 MiB'; echo 'NVIDIA H200, 143771 MiB'", 2), ("echo 'NVIDIA H200, 1 MiB'; exit 9", 0)],
)
def test_visible_gpus_asks_nvidia_smi(tmp_path: Path, script: str, count: int) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    assert visible_gpus({"PATH": str(tmp_path)}) == count


def test_without_nvidia_smi_there_is_no_gpu(tmp_path: Path) -> None:
    assert visible_gpus({"PATH": str(tmp_path)}) == 0
