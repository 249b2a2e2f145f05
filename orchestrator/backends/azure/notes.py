"""What the plan of a run on Azure says beside what every plan says: cluster, environment, what an eviction costs."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.backends.azure.machines.clusters import shape_text
from orchestrator.backends.azure.submission import Asset, AzureRequest, Cluster
from orchestrator.backends.azure.wire.workspace import Workspace
from orchestrator.jobs.finetune.plan import FinetunePlan
from orchestrator.jobs.pretrain.plan import PretrainPlan
from train_jobs.artifacts.files import write_text

if TYPE_CHECKING:
    from orchestrator.jobs.base import Plan

SEEN = Path("cache", "azure-assets.json")  # below the home folder: which assets a workspace was seen to have
BUILD_MINUTES = 10  # of an environment, roughly


def request_notes(request: AzureRequest, plan: Plan, home: Path) -> list[str]:
    """A line each, `label: text`."""
    notes = [f"workspace: {_workspace(request.workspace)}", f"cluster: {_cluster(request.cluster, plan)}"]
    if (image := request.asset("environments")) is not None:
        notes.append(f"image: {image.name}:{image.version}, {_cached(home, request.workspace, image)}")
    if plan.spec.compute.tier != "dedicated":
        notes.append(f"eviction: {_eviction(plan)}")
    return notes


def _workspace(workspace: Workspace) -> str:
    if not workspace.known:
        return "none given yet: ORCHESTRATOR_AZURE_WORKSPACE and its like, or config.json"
    return f"{workspace.workspace} in {workspace.resource_group}"


def _cluster(cluster: Cluster, plan: Plan) -> str:
    if cluster.body is None:
        return f"{cluster.name}, which has to be there, and is left as it is"
    idle = plan.spec.compute.idle_seconds
    return f"{cluster.name}: {shape_text(cluster.body)}, machines given back after {idle} s; made or changed to fit"


def _eviction(plan: Plan) -> str:
    """The most work that one eviction loses: Azure promises no warning before it."""
    times = f"up to {plan.spec.max_restarts} times" if plan.spec.max_restarts else "not at all (--max-restarts 0)"
    again = f"and Azure promises no warning; whoever follows the run submits it again {times}"
    if not isinstance(plan, FinetunePlan | PretrainPlan):
        return f"each loses the parts that are being made, {again}"
    checkpoint = plan.job.checkpoint
    parts = []
    if checkpoint.every:
        parts.append(f"{checkpoint.every:,} steps")
    if checkpoint.every_minutes:
        parts.append(f"{checkpoint.every_minutes:g} minutes")
    price = plan.compute.price_per_hour
    money = ""
    if price is not None and checkpoint.every_minutes:
        money = f", up to ${price * plan.compute.nodes * checkpoint.every_minutes / 60:,.2f}"
    return (
        f"each loses the work since the last checkpoint ({' or '.join(parts) or 'none is saved'}, whichever is"
        f" sooner{money}), {again}"
    )


def _cached(home: Path, workspace: Workspace, image: Asset) -> str:
    if image.body is None:
        return "which has to be there"
    seen = _read(home).get(_key(workspace, image.name, image.version))
    if seen is not None:
        return f"cached (seen {seen})"
    return f"will build, about {BUILD_MINUTES} minutes, unless the workspace has it"


def remember_asset(home: Path, workspace: Workspace, name: str, version: str) -> None:
    """Notes that a workspace has an asset, for the next plan."""
    known = _read(home)
    key = _key(workspace, name, version)
    if key not in known:
        (home / SEEN).parent.mkdir(parents=True, exist_ok=True)
        write_text(home / SEEN, json.dumps({**known, key: time.strftime("%Y-%m-%d")}, indent=1))


def _key(workspace: Workspace, name: str, version: str) -> str:
    return f"{workspace.id}/{name}:{version}"


def _read(home: Path) -> dict[str, str]:
    try:
        found: dict[str, str] = json.loads((home / SEEN).read_text())
    except (FileNotFoundError, ValueError):
        return {}
    return found
