"""What the plan of a run on Azure says beside what every plan says: cluster, environment, what an eviction costs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.backends.azure.assets.assets import Asset
from orchestrator.backends.azure.assets.uploads import _key, _read
from orchestrator.backends.azure.machines.clusters import Cluster, shape_text
from orchestrator.backends.azure.submission import AzureRequest
from orchestrator.backends.azure.wire.workspace import Workspace

if TYPE_CHECKING:
    from orchestrator.jobs.base import Plan

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
    checkpoint = plan.saves
    if checkpoint is None:
        return f"each loses the parts that are being made, {again}"
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
