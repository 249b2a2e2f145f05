"""The exact request: every body that is sent for a run, made of the plan alone, without Azure or its SDK."""

from __future__ import annotations

import getpass
import hashlib
import json
from typing import TYPE_CHECKING

from orchestrator.backends.azure.assets import places
from orchestrator.backends.azure.assets.assets import Asset, _code, _data, _environment, asset_id, data_name
from orchestrator.backends.azure.assets.command import job_command, job_variables
from orchestrator.backends.azure.machines.clusters import Cluster, _shared_memory, _silent, cluster_body, duration
from orchestrator.backends.azure.machines.sizes import check_runs_torch, find_size
from orchestrator.backends.azure.options import MOST_HOURS, AzureSpec
from orchestrator.backends.azure.wire.control_plane import Body
from orchestrator.backends.azure.wire.workspace import Workspace
from orchestrator.backends.base import Request
from orchestrator.specs.sections import NotifySpec
from orchestrator.support.errors import SpecError

if TYPE_CHECKING:
    from orchestrator.jobs.base import Plan

MODES = {"ro_mount": "ReadOnlyMount", "download": "Download"}
IDENTITIES = {"managed": "Managed", "user": "UserIdentity"}


class AzureRequest(Request):
    """What is sent to Azure ML. `{account}`, `{endpoint}` and `{container}` in it are the datastore's."""

    workspace: Workspace
    """Where it is sent to."""
    cluster: Cluster
    """On what it runs."""
    assets: tuple[Asset, ...]
    """What it needs there: environment, code, text, what training starts from."""
    datastore: str
    """That all files lie in."""
    job: Body
    """The job."""
    nodes: int
    """Machines."""
    processes_per_node: int
    """Ranks on each."""
    max_restarts: int
    """How often a follower submits a failed or preempted attempt again."""
    notify: NotifySpec = NotifySpec()
    """Notification settings."""

    @property
    def world_size(self) -> int:
        """Ranks of the whole job."""
        return self.nodes * self.processes_per_node

    def asset(self, kind: str, name: str | None = None) -> Asset | None:
        """The asset of a kind."""
        return next((one for one in self.assets if one.kind == kind and name in (None, one.name)), None)

    def attempt(self, number: int) -> Body:
        """The body of a later attempt: the same job, that says which attempt it is."""
        if number == 1:
            return self.job
        properties = self.job["properties"]
        tags = {**properties["tags"], "orchestrator.attempt": str(number)}
        return {"properties": {**properties, "displayName": places.attempt_name(self.name, number), "tags": tags}}


def build_request(plan: Plan, run: str, workspace: Workspace) -> AzureRequest:
    """Puts the request for a run together.

    Raises:
        SpecError: the service would refuse it.
    """
    _check(plan)
    spec, compute = plan.spec, plan.compute
    assets = [_environment(plan), _code(plan), *_data(plan)]
    body = _job_body(plan, run, workspace, {asset.name: asset for asset in assets})
    return AzureRequest(
        name=run,
        workspace=workspace,
        cluster=Cluster(name=str(spec.compute.cluster), body=cluster_body(plan), silent=_silent(plan)),
        assets=tuple(assets),
        datastore=spec.settings_of(AzureSpec).datastore,
        job=body,
        nodes=compute.nodes,
        processes_per_node=compute.processes_per_node,
        max_restarts=spec.max_restarts,
        notify=spec.notify,
    )


def _check(plan: Plan) -> None:
    if plan.needs.stays:
        raise SpecError("some of what is named cannot go to Azure", problems=list(plan.needs.stays), fix="-b local")
    size = find_size(plan.compute.size) if plan.compute.size else None
    azure, tier = plan.spec.settings_of(AzureSpec), plan.spec.compute.tier
    if size is not None and azure.environment == "auto":
        check_runs_torch(size)
    hours = azure.timeout_hours
    if hours is not None and hours > MOST_HOURS[tier]:
        raise SpecError(
            f"azure.timeout_hours {hours:g} is more than Azure lets a job run on {tier} machines",
            facts={"limit": f"{MOST_HOURS[tier]:g} h"},
            fix=f"--set azure.timeout_hours={MOST_HOURS[tier]:g} --max-restarts 3",
        )


def _job_body(plan: Plan, run: str, workspace: Workspace, assets: dict[str, Asset]) -> Body:
    spec, compute, azure = plan.spec, plan.compute, plan.spec.settings_of(AzureSpec)
    ids = {asset.kind: asset_id(workspace, asset.kind, asset.name, asset.version) for asset in assets.values()}
    own = places.outputs_folder(run)
    properties: Body = {
        "jobType": "Command",
        "displayName": run,
        "experimentName": spec.tracking.experiment,
        "computeId": f"{workspace.id}/computes/{spec.compute.cluster}",
        "codeId": ids["codes"],
        "environmentId": ids["environments"],
        "command": job_command(plan),
        "distribution": {"distributionType": "PyTorch", "processCountPerInstance": compute.processes_per_node},
        "resources": {"instanceCount": compute.nodes, "shmSize": _shared_memory(plan), "properties": {}},
        "environmentVariables": job_variables(plan),
        "inputs": _inputs(plan, run, workspace, assets),
        "outputs": {
            output.name: _output(azure.datastore, places.TOKEN_STORES if output.shared else own)
            for output in plan.makes
        },
        "tags": job_tags(plan, run, workspace),
        "properties": {},
    }
    if azure.timeout_hours is not None:
        timeout = duration(round(azure.timeout_hours * 3600))
        properties["limits"] = {"jobLimitsType": "Command", "timeout": timeout}
    if azure.identity != "none":
        properties["identity"] = {"identityType": IDENTITIES[azure.identity]}
    request = hashlib.sha256(json.dumps(properties, sort_keys=True).encode()).hexdigest()
    properties["tags"]["orchestrator.request"] = request[: places.DIGITS]
    return {"properties": properties}


def _inputs(plan: Plan, run: str, workspace: Workspace, assets: dict[str, Asset]) -> Body:
    azure = plan.spec.settings_of(AzureSpec)
    found = {"job": _input(places.datastore_uri(azure.datastore, places.job_folder(run)), "Download")}
    for one in plan.needs.inputs:
        if one.remote is not None:
            uri = one.remote
            if not uri.startswith(("azureml://", "https://")):
                _, name, version = uri.split(":")
                uri = asset_id(workspace, "data", name, version)
            found[one.name] = _input(uri, MODES[azure.data_mode])
        elif (known := assets.get(data_name(one))) is not None:
            found[one.name] = _input(asset_id(workspace, "data", known.name, known.version), MODES[azure.data_mode])
    return found


def _input(uri: str, mode: str) -> Body:
    return {"uri": uri, "mode": mode, "jobInputType": "uri_folder"}


def _output(datastore: str, folder: str) -> Body:
    uri = places.datastore_uri(datastore, folder)
    return {"uri": uri, "mode": "ReadWriteMount", "jobOutputType": "uri_folder"}


def job_tags(plan: Plan, run: str, workspace: Workspace) -> dict[str, str]:
    """What finds a run again, tells its attempts apart and says what it is of; the user's own tags below."""
    commit = plan.snapshot.git.label if plan.snapshot.git else None
    return {
        **plan.spec.tags,
        "orchestrator.run": run,
        "orchestrator.handle": f"azure://{workspace.workspace}/{run}",
        "orchestrator.attempt": "1",
        "orchestrator.run_hash": plan.run_hash,
        "orchestrator.recipe": plan.spec.recipe,
        "orchestrator.snapshot": plan.snapshot.digest,
        "orchestrator.data": plan.data.sha256,
        "orchestrator.datastore": plan.spec.settings_of(AzureSpec).datastore,
        "orchestrator.user": getpass.getuser(),
        **({"orchestrator.commit": commit} if commit else {}),
    }
