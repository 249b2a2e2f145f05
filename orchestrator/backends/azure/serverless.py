"""Serverless compute: machines that Azure ML allocates for one job, without a cluster.

Such a job names no compute. Its size and number of machines are among its resources, its tier among its queue settings
(documentation: "Model training on serverless compute").
"""

from __future__ import annotations

from typing import Any

from orchestrator.backends.azure.az_yaml import job_file
from orchestrator.backends.azure.clusters import Cluster, check_quota, compute_body, provision
from orchestrator.backends.azure.options import SERVERLESS, Workspace
from orchestrator.backends.azure.wire.control_plane import Body, Wire
from orchestrator.specs.compute import ComputeSpec

JOB_TIERS = {"dedicated": "Standard", "spot": "Spot"}
TIERS = {value: name for name, value in JOB_TIERS.items()}
FEWER = "--nodes {0}"  # flag of `submit`


def target_sections(compute: ComputeSpec, workspace: Workspace) -> Body:
    """Return the properties of a job that name its machines, apart from the number of nodes.

    Args:
        compute: the section `compute` of the spec.
        workspace: where the job is sent.
    """
    if compute.cluster != SERVERLESS:
        return {"computeId": f"{workspace.id}/computes/{compute.cluster}", "resources": {}}
    return {"resources": {"instanceType": compute.sizes[0]}, "queueSettings": {"jobTier": JOB_TIERS[compute.tier]}}


def sweep_sections(trial: Body) -> Body:
    """Return the properties of a sweep that name the machines of its trials.

    Args:
        trial: the properties of the trial's own job.
    """
    if "computeId" in trial:
        return {"computeId": trial["computeId"]}
    return {"queueSettings": trial["queueSettings"], "resources": trial["resources"]}


def exported_file(name: str, job: Body) -> dict[str, Any]:
    """Return a command job in the form of `az ml job create -f`, see `job_file`."""
    properties = job["properties"]
    if "computeId" in properties:
        return job_file(name, job)
    document = job_file(name, {"properties": {**properties, "computeId": SERVERLESS}})
    del document["compute"]
    document["resources"]["instance_type"] = properties["resources"]["instanceType"]
    document["queue_settings"] = {"job_tier": properties["queueSettings"]["jobTier"].lower()}
    return document


def ensure_machines(wire: Wire, cluster: Cluster, job: Body) -> str:
    """Create or change the cluster of a job, or compare its serverless machines with the quota; return a report.

    Args:
        wire: the workspace.
        cluster: of the job.
        job: its body.

    Raises:
        QuotaError: the subscription does not allow that many machines.
        UserError: Azure could not create the cluster.
    """
    if cluster.name != SERVERLESS:
        return provision(wire, cluster)
    properties = job["properties"]
    resources, tier = properties["resources"], TIERS[properties["queueSettings"]["jobTier"]]
    size, nodes = resources["instanceType"], resources["instanceCount"]
    wanted = compute_body(size=size, tier=tier, min_nodes=0, max_nodes=nodes, idle_seconds=60)
    check_quota(wire, wire.location(), wanted, held=0, fix_template=FEWER)
    return f"serverless: {nodes} x {size}{', spot' if tier == 'spot' else ''}"
