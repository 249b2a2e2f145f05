"""On what a job runs: nodes, processes, device, threads."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from orchestrator.specs.local_machine import Gpu
from orchestrator.support.errors import SpecError
from train_jobs.config.base import Config, CountOrAuto

CLUSTER_NAME = r"[A-Za-z][A-Za-z0-9-]{1,22}[A-Za-z0-9]"  # Azure's rule: 3 to 24 characters


def _cluster_name(name: str) -> str:
    if not re.fullmatch(CLUSTER_NAME, name):
        raise ValueError("a cluster is named by 3 to 24 letters, digits and hyphens, with a letter first")
    return name


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
    price_origin: str | None = None
    """Where the price is from, if not from `compute.price_per_hour`."""
    size: str | None = None
    """Machine size of the cluster; None: this machine, or a cluster whose size was not given."""
    gpu: str | None = None
    """Name of its GPUs; None: there are none, or nobody here knows them."""
    memory_bytes: int | None = None
    """What a process has: its GPU's memory, or its share of the machine's; None: not known."""

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
    cluster: Annotated[str, AfterValidator(_cluster_name)] | None = None
    """Cluster of Azure ML that runs it. With a size here too it is made or changed to fit, else it has to be there."""
    sku: str | None = None
    """Machine size of the cluster, see `orchestrator skus`. None: the cluster is there, and left as it is."""
    tier: Literal["dedicated", "low-priority"] = "dedicated"
    """low-priority: a fifth of the price, and Azure may take the machines away at any moment, without a warning."""
    min_nodes: Annotated[int, Field(ge=0)] = 0
    """Machines that the cluster keeps, and that cost, when nothing runs."""
    max_nodes: Annotated[int, Field(gt=0)] | None = None
    """Machines that the cluster may grow to. None: as many as the job needs."""
    idle_seconds: Annotated[int, Field(ge=60)] = 1800
    """How long a machine of the cluster waits for the next job before it is given back."""

    @model_validator(mode="after")
    def _check_scale(self) -> ComputeSpec:
        most = self.nodes if self.max_nodes is None else self.max_nodes
        if most < max(self.nodes, self.min_nodes):
            raise ValueError(f"max_nodes {most} is less than nodes {self.nodes} or min_nodes {self.min_nodes}")
        return self

    def resolve(
        self, *, gpus: int, cores: int, gpu: Gpu | None = None, memory_bytes: int | None = None
    ) -> ResolvedCompute:
        """Replaces every `auto`.

        Args:
            gpus: that are visible on each machine.
            cores: usable ones of each machine.
            gpu: what they are; None: not known.
            memory_bytes: of each machine; None: not known.

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
        return self.resolved(
            processes,
            device,
            max(1, cores // processes) if threads == "auto" else threads,
            gpu=gpu,
            memory_bytes=memory_bytes,
        )

    def resolved(
        self,
        processes: int,
        device: Literal["cpu", "gpu"],
        threads: int,
        *,
        size: str | None = None,
        gpu: Gpu | None = None,
        memory_bytes: int | None = None,
    ) -> ResolvedCompute:
        """With these in place of every `auto`; the last three are of each machine."""
        share = memory_bytes // processes if memory_bytes else None
        if device == "gpu":
            share = gpu.memory_bytes if gpu else None
        return ResolvedCompute(
            nodes=self.nodes,
            processes_per_node=processes,
            device=device,
            threads_per_process=threads,
            master_port=self.master_port,
            price_per_hour=self.price_per_hour,
            size=size,
            gpu=gpu.name if gpu and device == "gpu" else None,
            memory_bytes=share,
        )
