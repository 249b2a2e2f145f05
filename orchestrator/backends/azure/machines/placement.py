"""The compute section of a job on a cluster of Azure ML: what its machines have follows from their size."""

from __future__ import annotations

from orchestrator.backends.azure.machines.sizes import Size, find_size
from orchestrator.specs.compute import ComputeSpec, ResolvedCompute
from orchestrator.specs.local_machine import Gpu
from orchestrator.support.errors import SpecError

GB = 10**9
MOST_RDMA_NODES = 100  # of one cluster with InfiniBand
THREADS_UNKNOWN = 4  # of each process on machines whose cores nobody here knows


def resolve_on_cluster(compute: ComputeSpec) -> ResolvedCompute:
    """Replaces every `auto`, for machines of the cluster's size.

    Raises:
        SpecError: there is no cluster; its size is retired, has too few GPUs, or is not known where it decides.
    """
    if compute.cluster is None:
        raise SpecError(
            "no cluster to run on",
            facts={"key": "compute.cluster"},
            fix="--cluster NAME --sku Standard_NC4as_T4_v3 (see orchestrator skus)",
        )
    size = find_size(compute.sku) if compute.sku is not None else None
    return _unknown_machines(compute) if size is None else _machines(compute, size)


def _machines(compute: ComputeSpec, size: Size) -> ResolvedCompute:
    most = compute.max_nodes or compute.nodes
    if size.infiniband_gbps and most > MOST_RDMA_NODES:
        raise SpecError(
            f"a cluster of {size.name} has at most {MOST_RDMA_NODES} machines",
            facts={"key": "compute.max_nodes" if compute.max_nodes else "compute.nodes"},
            fix=f"--set compute.nodes={MOST_RDMA_NODES}",
        )
    device = compute.device if compute.device != "auto" else ("gpu" if size.gpus else "cpu")
    if device == "gpu" and not size.gpus:
        raise SpecError(
            f"compute.device is gpu, but {size.name} has none",
            facts={"key": "compute.device"},
            fix="--set compute.device=cpu, or --sku Standard_NC4as_T4_v3",
        )
    there, what = (size.gpus, "GPUs") if device == "gpu" else (size.cores, "cores")
    processes = compute.processes_per_node
    if processes == "auto":
        processes = size.gpus if device == "gpu" else 1
    if processes > there:
        raise SpecError(
            f"compute.processes_per_node {processes} is more than {size.name} has {what} ({there})",
            facts={"key": "compute.processes_per_node"},
            fix=f"--set compute.processes_per_node={there}",
        )
    threads = compute.threads_per_process
    return compute.resolved(
        processes,
        device,
        max(1, size.cores // processes) if threads == "auto" else threads,
        size=size.name,
        gpu=Gpu(size.gpu, size.gpu_memory_gb * GB) if size.gpu else None,
        memory_bytes=size.memory_gb * GB,
    )


def _unknown_machines(compute: ComputeSpec) -> ResolvedCompute:
    """Machines of a size that was not given, or that the table of sizes does not have."""
    processes = compute.processes_per_node
    if processes == "auto" and compute.device != "cpu":
        raise SpecError(
            f"the GPUs of cluster {compute.cluster} are not known here",
            facts={"key": "compute.sku" if compute.sku else "compute.cluster"},
            fix="--processes N, or --sku SIZE of orchestrator skus",
        )
    threads = compute.threads_per_process
    return compute.resolved(
        1 if processes == "auto" else processes,
        "cpu" if compute.device == "cpu" else "gpu",
        THREADS_UNKNOWN if threads == "auto" else threads,
    )
