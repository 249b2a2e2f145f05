"""The command that each process of a job runs, and its environment variables."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from orchestrator.backends.azure.assets.bindings import settings
from orchestrator.backends.azure.machines.sizes import Size, find_size
from orchestrator.backends.azure.options import AzureSpec
from train_jobs.artifacts.host import METADATA_VARIABLE
from train_jobs.config.telemetry import MLFLOW

if TYPE_CHECKING:
    from orchestrator.jobs.base import Plan

TAGS = "tags.json"
CONFIG = "config.json"
METADATA = "http://169.254.169.254"  # every machine of Azure has its own there
ND_A100_TOPOLOGY = "/opt/microsoft/ndv4-topo.xml"  # ND A100 v4 needs it to find its network cards; others do not


def job_command(plan: Plan) -> str:
    """One line of shell. `${{inputs.NAME}}` and `${{outputs.NAME}}` become paths on the machine."""
    words = [
        *("python", "-m", plan.spec.code.entry, "--config", f"${{{{inputs.job}}}}/{CONFIG}"),
        *(word for text in settings(plan) for word in ("--set", shlex.quote(text))),
        *("--output", "${{outputs.run}}"),
        *(("--cache", "${{outputs.stores}}") if plan.stores else ()),
        *("--device", plan.compute.device),
    ]
    preflight = plan.spec.settings_of(AzureSpec).preflight
    check = f"python -m train_jobs.tools.preflight --device {plan.compute.device} && " if preflight else ""
    return f"export ORCHESTRATOR_RUN_TAGS=${{{{inputs.job}}}}/{TAGS}; {check}exec {' '.join(words)}"


def job_variables(plan: Plan) -> dict[str, str]:
    """Environment variables of every process: NCCL and InfiniBand by the machine's size, then the user's own."""
    compute = plan.compute
    size = find_size(compute.size) if compute.size else None
    return {
        "PYTHONUNBUFFERED": "1",
        "OMP_NUM_THREADS": str(compute.threads_per_process),
        "LOCAL_WORLD_SIZE": str(compute.processes_per_node),  # Azure's launcher sets the other four, and not this one
        "TOKENIZERS_PARALLELISM": "true",
        MLFLOW: "true",
        **(_network(size, compute.nodes) if compute.device == "gpu" else {}),
        **({METADATA_VARIABLE: METADATA} if plan.spec.compute.tier == "low-priority" else {}),
        **plan.spec.environment.variables,
    }


def _network(size: Size | None, nodes: int) -> dict[str, str]:
    common = {"NCCL_DEBUG": "WARN", "NCCL_SOCKET_IFNAME": "eth0", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    if size is None:
        return common
    if not size.infiniband_gbps:
        return {**common, "NCCL_IB_DISABLE": "1"} if nodes > 1 else common
    rdma = {"NCCL_IB_PCI_RELAXED_ORDERING": "1", "UCX_TLS": "tcp", "UCX_NET_DEVICES": "eth0"}
    topology = {"NCCL_TOPO_FILE": ND_A100_TOPOLOGY} if size.gpu == "A100" else {}
    return {**common, **rdma, **topology}
