"""On what a job runs: nodes, processes, device, threads."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field

from orchestrator.errors import SpecError
from train_jobs.config.base import Config, CountOrAuto

NVIDIA_SMI_SECONDS = 20  # a driver that wakes up its GPUs takes seconds, a broken one for ever


class ResolvedCompute(Config):
    """`ComputeSpec` with every `auto` replaced by what the machines have."""

    nodes: int
    """Machines."""
    processes_per_node: int
    """Processes on each machine."""
    device: Literal["cpu", "gpu"]
    """What each process computes on."""
    threads_per_process: int
    """CPU threads of each process."""
    master_port: int
    """TCP port of the rendezvous; 0 is any free one."""
    price_per_hour: float | None = None
    """USD for one machine and hour; None: unknown."""

    @property
    def world_size(self) -> int:
        """Processes of the whole job."""
        return self.nodes * self.processes_per_node


class ComputeSpec(Config):
    """On what the job runs."""

    preset: str = "local"
    """Compute preset that the other keys of this section are laid over."""
    nodes: Annotated[int, Field(gt=0)] = 1
    """Machines."""
    processes_per_node: CountOrAuto = "auto"
    """Processes on each machine; auto: one for each visible GPU, one where there is none."""
    device: Literal["auto", "cpu", "gpu"] = "auto"
    """auto: GPUs where some are visible, else the CPU."""
    threads_per_process: CountOrAuto = "auto"
    """CPU threads of each process; auto: the cores of a machine shared out evenly."""
    master_port: Annotated[int, Field(ge=0, le=65_535)] = 0
    """TCP port of the rendezvous; 0: any free one."""
    price_per_hour: Annotated[float, Field(ge=0)] | None = None
    """USD that one machine costs in an hour, for the figures of `list`, `status` and `cost`. None: unknown."""

    def resolve(self, *, gpus: int, cores: int) -> ResolvedCompute:
        """Replaces every `auto`, for machines of `gpus` visible GPUs and `cores` usable cores each.

        Raises:
            SpecError: GPUs are asked for and there are none, or fewer than processes.
        """
        device = self.device if self.device != "auto" else ("gpu" if gpus else "cpu")
        if device == "gpu" and not gpus:
            raise SpecError(
                "compute.device is gpu, but no GPU is visible",
                facts={"key": "compute.device"},
                fix="--set compute.device=cpu",
            )
        processes = self.processes_per_node
        if processes == "auto":
            processes = gpus if device == "gpu" else 1
        if device == "gpu" and processes > gpus:
            raise SpecError(
                f"compute.processes_per_node {processes} is more than the visible GPUs ({gpus})",
                facts={"key": "compute.processes_per_node"},
                fix=f"--set compute.processes_per_node={gpus}",
            )
        threads = self.threads_per_process
        if threads == "auto":
            threads = max(1, cores // processes)
        return ResolvedCompute(
            nodes=self.nodes,
            processes_per_node=processes,
            device=device,
            threads_per_process=threads,
            master_port=self.master_port,
            price_per_hour=self.price_per_hour,
        )


def usable_cores() -> int:
    """CPU cores that this process may use: its affinity mask where the system has one."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def visible_gpus(environ: Mapping[str, str]) -> int:
    """GPUs that a process started here would see.

    CUDA_VISIBLE_DEVICES decides where it is set (CUDA's own rule: ids after a -1 do not count); else `nvidia-smi -L`
    is asked where it is on the PATH; a machine without it has none.
    """
    listed = environ.get("CUDA_VISIBLE_DEVICES")
    if listed is not None:
        ids = [part.strip() for part in listed.split(",")]
        ends = [index for index, device in enumerate(ids) if device in {"", "-1", "NoDevFiles"}]
        return min(ends, default=len(ids))
    program = shutil.which("nvidia-smi", path=environ.get("PATH"))
    return _listed_gpus(program) if program else 0


def _listed_gpus(nvidia_smi: str) -> int:
    import subprocess  # costs 10 ms that a machine without NVIDIA's tools need not pay

    try:
        answer = subprocess.run([nvidia_smi, "-L"], capture_output=True, text=True, timeout=NVIDIA_SMI_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return 0  # a driver that does not answer has no GPU to offer
    return sum(line.startswith("GPU ") for line in answer.stdout.splitlines()) if answer.returncode == 0 else 0
