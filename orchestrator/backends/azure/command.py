"""The command that each process of a job runs, and its environment variables."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.estimates.sizes import Size, find_size
from orchestrator.specs.job import KINDS
from train_jobs.config import PrepareConfig
from train_jobs.config.initial import KEY as INIT_FROM
from train_jobs.config.initial import VOCABULARY
from train_jobs.config.machine import METADATA_VARIABLE
from train_jobs.config.phase import KEY as PHASE_FROM
from train_jobs.config.store import store_folder

if TYPE_CHECKING:
    from typing_extensions import TypeIs

    from orchestrator.plan import Plan, PretrainPlan
    from train_jobs.config.text import SourceConfig

TAGS = "tags.json"
CONFIG = "config.json"
METADATA = "http://169.254.169.254"  # every machine of Azure has its own there
ND_A100_TOPOLOGY = "/opt/microsoft/ndv4-topo.xml"  # ND A100 v4 needs it to find its network cards; others do not


def job_command(plan: Plan) -> str:
    """One line of shell. `${{inputs.NAME}}` and `${{outputs.NAME}}` become paths on the machine."""
    job = plan.job
    sets = []
    if plan.spec.azure.data is not None:
        sets.append('data.text=["${{inputs.text}}"]')
    elif trained_on(plan) is not None:
        sets.append("data.store=${{inputs.text}}")
    elif job.data.text:
        sets.append("data.text=[{}]".format(", ".join(_sources(job.data.text))))
    if job.data.vocabulary is not None:
        sets.append(f"data.vocabulary=${{{{inputs.job}}}}/{VOCABULARY}")
    if isinstance(job, PrepareConfig) and job.store is not None:
        sets.append(f"store=${{{{outputs.stores}}}}/{job.store.name}")
    if trains(plan) and plan.job.init_from is not None:
        sets.append(f"{INIT_FROM}=${{{{inputs.start}}}}")
    if trains(plan) and plan.phase is not None:
        sets.append(f"{PHASE_FROM}=${{{{inputs.start}}}}/checkpoints/step-{plan.phase.step:08d}")
    words = [
        *("python", "-m", plan.spec.code.entry, "--config", f"${{{{inputs.job}}}}/{CONFIG}"),
        *(word for text in sets for word in ("--set", shlex.quote(text))),
        *("--output", "${{outputs.run}}", "--cache", "${{outputs.stores}}", "--device", plan.compute.device),
    ]
    check = f"python -m train_jobs.preflight --device {plan.compute.device} && " if plan.spec.azure.preflight else ""
    return f"export ORCHESTRATOR_RUN_TAGS=${{{{inputs.job}}}}/{TAGS}; {check}exec {' '.join(words)}"


def trains(plan: Plan) -> TypeIs[PretrainPlan]:
    """Whether the job is one that trains, and no preparation of text."""
    return KINDS[plan.spec.kind].trains


def trained_on(plan: Plan) -> Path | None:
    """The token store of this machine that is trained on; None: text is given."""
    return store_folder(plan.job.data, plan.job.data.store) if trains(plan) else None


def text_root(text: Sequence[SourceConfig]) -> Path | None:
    """The folder that the paths of a text are uploaded from: each of them keeps its own name below it.

    None: all of it is datasets of the Hugging Face Hub, which the job fetches itself.
    """
    folders = [Path(path).parent for source in text for path in source.path]
    return Path(os.path.commonpath(folders)) if folders else None


def _sources(text: Sequence[SourceConfig]) -> Iterator[str]:
    """Each source as YAML, with its paths as they will be on the machine."""
    root = text_root(text)
    for source in text:
        names = [_escaped(Path(path).relative_to(str(root)).as_posix()) for path in source.path]
        there = [f'"${{{{inputs.text}}}}/{name}"' for name in names]
        told = source.model_dump(mode="json")
        if isinstance(told, str):
            yield there[0]
            continue
        more = {key: value for key, value in told.items() if key != "path" and value is not None}
        paths = f"path: [{', '.join(there)}], " if there else ""
        yield f"{{{paths}{json.dumps(more)[1:-1]}}}"


def job_variables(plan: Plan) -> dict[str, str]:
    """Environment variables of every process: NCCL and InfiniBand by the machine's size, then the user's own."""
    compute = plan.compute
    size = find_size(compute.size) if compute.size else None
    return {
        "PYTHONUNBUFFERED": "1",
        "OMP_NUM_THREADS": str(compute.threads_per_process),
        "LOCAL_WORLD_SIZE": str(compute.processes_per_node),  # Azure's launcher sets the other four, and not this one
        "TOKENIZERS_PARALLELISM": "true",
        "MLFLOW_DISABLE_TELEMETRY": "true",
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


def _escaped(name: str) -> str:
    return name.replace("\\", "\\\\").replace('"', '\\"')
