"""Machines of a job: nodes, processes, device, threads; and the resources of this machine."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping
from typing import Annotated, Literal, NamedTuple

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from orchestrator.specs.tiers import current_tier
from orchestrator.support.errors import SpecError
from train_jobs.artifacts.host import host_memory
from train_jobs.config.fields import Config, CountOrAuto

CLUSTER_NAME = r"[A-Za-z][A-Za-z0-9-]{1,22}[A-Za-z0-9]"  # Azure's rule: 3 to 24 characters


def _cluster_name(name: str) -> str:
    if not re.fullmatch(CLUSTER_NAME, name):
        raise ValueError("must be 3 to 24 letters, digits and hyphens, and start with a letter")
    return name


def region_name(text: str) -> str:
    """Return Azure's name of a region: westeurope for `West Europe` and `WestEurope`."""
    return "".join(text.split()).lower()


_Region = Annotated[str, AfterValidator(region_name)]


class MachineChoice(Config):
    """One of several machine sizes and regions that a job may run on."""

    size: str
    """Machine size."""
    region: str | None = None
    """Region of its cluster; None: the workspace's."""
    gpu: str | None = None
    """Name of its GPUs; None: it has none, or its model is unknown."""
    price_per_hour: float | None = None
    """USD for one machine and hour; None: unknown."""
    highest_price_per_hour: float | None = None
    """USD at most, where the price varies."""
    price_origin: str | None = None
    """Source of the price."""


class ResolvedCompute(Config):
    """The machines of a job: `ComputeSpec` with every `auto` resolved."""

    nodes: int
    """Machines."""
    processes_per_node: int
    """Processes on each machine."""
    device: Literal["cpu", "gpu"]
    """Device of each process."""
    threads_per_process: int
    """CPU threads of each process."""
    master_port: int
    """TCP port of the rendezvous; 0 is any free one."""
    price_per_hour: float | None = None
    """USD for one machine and hour; None: unknown."""
    highest_price_per_hour: float | None = None
    """USD for one machine and hour at most, where the price varies as for Spot machines; None: it does not."""
    price_origin: str | None = None
    """Source of the price, unless it is `compute.price_per_hour`."""
    size: str | None = None
    """Machine size of the cluster; None: this machine, or a cluster whose size was not given."""
    region: str | None = Field(default=None, exclude_if=lambda value: value is None)
    """Region of the cluster, if the spec gives it; None: the workspace's."""
    gpu: str | None = None
    """Name of its GPUs; None: it has no GPU, or its model is unknown."""
    memory_bytes: int | None = None
    """Memory of a process: its GPU's, or its share of the machine's; None: not known."""
    choices: tuple[MachineChoice, ...] = ()
    """Sizes and regions that are tried in this order, if there is more than one; the first is in the fields above."""
    concurrent_runs: int = Field(default=1, exclude_if=lambda value: value == 1)
    """Runs of a sweep that share the cluster at the same time."""

    @property
    def world_size(self) -> int:
        """Processes of the whole job."""
        return self.nodes * self.processes_per_node


class ComputeSpec(Config):
    """The machines that the job runs on."""

    preset: str = "local"
    """Compute preset; the other keys of this section override its values."""
    nodes: Annotated[int, Field(gt=0)] = 1
    """Machines."""
    processes_per_node: CountOrAuto = "auto"
    """Processes on each machine; auto: one for each visible GPU, 1 without a GPU."""
    device: Literal["auto", "cpu", "gpu"] = "auto"
    """Device of each process; auto: GPUs if any are visible, else the CPU."""
    threads_per_process: CountOrAuto = "auto"
    """CPU threads of each process; auto: the cores of a machine divided by its processes."""
    master_port: Annotated[int, Field(ge=0, le=65_535)] = 0
    """TCP port of the rendezvous; 0: any free one."""
    price_per_hour: Annotated[float, Field(ge=0)] | None = None
    """Price of one machine in USD per hour, used by `list`, `status` and `cost`. None: unknown."""
    cluster: Annotated[str, AfterValidator(_cluster_name)] | None = None
    """Azure ML cluster to run on. With `sku`, the cluster is created or updated; without it, the cluster must exist.
    serverless: no cluster, but machines of size `sku` that Azure ML allocates for the job."""
    sku: str | Annotated[list[str], Field(min_length=1)] | None = None
    """Machine size of the cluster, see `orchestrator skus`. A list: sizes with equally many GPUs, tried in the order of
    their price until quota and capacity suffice, each with its own cluster. None: use an existing cluster unchanged."""
    region: _Region | Annotated[list[_Region], Field(min_length=1)] | None = None
    """Region of the cluster, or regions, which are tried like sizes. None: the workspace's region."""
    tier: Annotated[Literal["dedicated", "spot"], BeforeValidator(current_tier)] = "dedicated"
    """Tier of the machines. spot: at a rate that varies with region and demand, up to the price of dedicated machines;
    Azure may evict them without warning. low-priority is its old name."""
    min_nodes: Annotated[int, Field(ge=0)] = 0
    """Minimum number of machines of the cluster; they are billed even while the cluster is idle."""
    max_nodes: Annotated[int, Field(gt=0)] | None = None
    """Maximum number of machines of the cluster. None: as many as the job needs."""
    idle_seconds: Annotated[int, Field(ge=60)] = 120
    """Seconds after which an idle machine of the cluster is released; it is billed until then."""

    @property
    def sizes(self) -> tuple[str, ...]:
        """Machine sizes that the job may run on."""
        return () if self.sku is None else (self.sku,) if isinstance(self.sku, str) else tuple(self.sku)

    @property
    def regions(self) -> tuple[str | None, ...]:
        """Regions that the job may run in; None: the workspace's."""
        return tuple(self.region) if isinstance(self.region, list) else (self.region,)

    @model_validator(mode="after")
    def _check_scale(self) -> ComputeSpec:
        most = self.nodes if self.max_nodes is None else self.max_nodes
        if most < max(self.nodes, self.min_nodes):
            raise ValueError(f"max_nodes {most} is less than nodes {self.nodes} or min_nodes {self.min_nodes}")
        return self

    def resolve(
        self, *, gpus: int, cores: int, gpu: Gpu | None = None, memory_bytes: int | None = None
    ) -> ResolvedCompute:
        """Return the machines with every `auto` resolved.

        Args:
            gpus: number of visible GPUs of each machine.
            cores: number of usable cores of each machine.
            gpu: model of the GPUs; None: unknown.
            memory_bytes: memory of each machine; None: unknown.

        Raises:
            SpecError: GPUs are requested, and the machine has none, or fewer than processes.
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
        """Return the machines with these values in place of every `auto`.

        Args:
            processes: processes on each machine.
            device: device of each process.
            threads: CPU threads of each process.
            size: machine size; None: unknown, or this machine.
            gpu: model of its GPUs; None: none, or unknown.
            memory_bytes: memory of each machine; None: unknown.
        """
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


SMI_SECONDS = 20  # a driver that initialises its GPUs takes seconds, a broken one never answers
SMI_QUERY = ("--query-gpu=name,memory.total", "--format=csv,noheader")  # `NVIDIA A100-SXM4-80GB, 81920 MiB`
MEBIBYTE = 1 << 20
INVALID_DEVICES = {"", "-1", "NoDevFiles"}


class Gpu(NamedTuple):
    """The model of a GPU."""

    name: str
    """Its maker's name, or the short one of the table of sizes."""
    memory_bytes: int | None
    """None: the driver does not report it, as for memory shared with the CPU."""


def usable_cores() -> int:
    """Return the number of CPU cores that this process may use."""
    # The affinity mask where the system has one: in a container or a Slurm job, os.cpu_count() is the whole machine.
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def usable_memory() -> int | None:
    """Return the memory of the machine or the limit of the container, in bytes; None: unknown."""
    try:
        return host_memory().total
    except OSError:  # no /proc
        return None


def visible_gpus(environ: Mapping[str, str]) -> int:
    """Return the number of GPUs that a process on this machine would see.

    CUDA_VISIBLE_DEVICES takes precedence, by CUDA's rule that an invalid id ends the list. Otherwise `nvidia-smi`
    counts the GPUs; a machine without it has none. torch is not used: importing it takes seconds.
    """
    listed = listed_gpus(environ)
    return len(_query_nvidia_smi(environ)) if listed is None else len(listed)


def gpus_of_machine(environ: Mapping[str, str]) -> tuple[int, Gpu | None]:
    """Return the number of `visible_gpus`, and their model as `nvidia-smi` reports it.

    If the GPUs differ, the model is the one with the least memory, which limits the micro batch. None: no GPU, or
    unknown. `nvidia-smi` reports whole GPUs, so the memory of MIG slices is unknown.
    """
    listed = listed_gpus(environ)
    if listed == []:
        return 0, None
    installed = visible = _query_nvidia_smi(environ)
    if listed is not None and all(device.isdecimal() and int(device) < len(installed) for device in listed):
        visible = [installed[int(device)] for device in listed]
    elif listed is not None and any(device.startswith("MIG-") for device in listed):
        visible = [Gpu(f"{gpu.name} MIG", None) for gpu in installed]
    count = len(installed) if listed is None else len(listed)
    return count, min(visible, key=lambda gpu: gpu.memory_bytes or 0, default=None)


def listed_gpus(environ: Mapping[str, str]) -> list[str] | None:
    """Return the ids in CUDA_VISIBLE_DEVICES before the first invalid one; None: the variable is not set."""
    listed = environ.get("CUDA_VISIBLE_DEVICES")
    if listed is None:
        return None
    ids = [part.strip() for part in listed.split(",")]
    return ids[: min((index for index, device in enumerate(ids) if device in INVALID_DEVICES), default=len(ids))]


def _query_nvidia_smi(environ: Mapping[str, str]) -> list[Gpu]:
    """Return the GPUs that `nvidia-smi` lists; none if the command is missing or does not answer."""
    import subprocess  # 10 ms, only for machines with NVIDIA's tools

    if (program := shutil.which("nvidia-smi", path=environ.get("PATH"))) is None:
        return []
    try:
        answer = subprocess.run([program, *SMI_QUERY], capture_output=True, text=True, timeout=SMI_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return []  # the GPUs of a driver that does not answer are unusable
    if answer.returncode:
        return []
    rows = [line.rsplit(",", 1) for line in answer.stdout.splitlines() if "," in line]
    return [Gpu(name.strip(), _mebibytes(memory)) for name, memory in rows]


def _mebibytes(text: str) -> int | None:
    """`81920 MiB` in bytes; None for `[N/A]`."""
    number = text.split()[0] if text.strip() else ""
    return int(number) * MEBIBYTE if number.isdecimal() else None
