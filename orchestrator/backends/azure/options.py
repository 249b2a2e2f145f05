"""Settings of Azure ML: the section `azure` of specs, and the workspace that specs, variables or config.json name."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from orchestrator.support.errors import SpecError, UsageError
from train_jobs.config.fields import Config

AZURE = "azure"  # the backend's name
SERVERLESS = "serverless"  # `compute.cluster` of jobs without a cluster
MAX_RDMA_NODES = 100  # nodes of one cluster with InfiniBand (Azure's documentation of quotas)
# Azure ends a job after this time, whatever its own limit (documentation: "Manage and increase quotas")
MAX_HOURS = {"dedicated": 21 * 24.0, "spot": 7 * 24.0}
VARIABLES = {
    "subscription_id": "ORCHESTRATOR_AZURE_SUBSCRIPTION_ID",
    "resource_group": "ORCHESTRATOR_AZURE_RESOURCE_GROUP",
    "workspace": "ORCHESTRATOR_AZURE_WORKSPACE",
}
CONFIG_KEYS = {
    "subscription_id": "subscription_id",
    "resource_group": "resource_group",
    "workspace": "workspace_name",
}  # our key -> key of the config.json that Azure ML's studio offers
UNKNOWN = {"subscription_id": "SUBSCRIPTION", "resource_group": "RESOURCE_GROUP", "workspace": "WORKSPACE"}
_CLIENT_ID = r"^[0-9a-fA-F]{8}-([0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}$"
_NAME = re.compile(r"[\w.()-]+")


def _asset(text: str) -> str:
    if text != "auto" and not re.fullmatch(r"azureml:[A-Za-z0-9][\w.-]*:[\w.-]+", text):
        raise ValueError("must be auto, or azureml:NAME:VERSION of an environment in the workspace")
    return text


def _remote(text: str) -> str:
    if not is_remote(text):
        raise ValueError("must be azureml:NAME:VERSION, azureml://datastores/NAME/paths/PATH, or https://... of a blob")
    if "?" in text:
        raise ValueError("must have no ?...: a signature would be a secret; make the container a datastore instead")
    return text


def is_remote(text: str) -> bool:
    """Return whether data of that name is in Azure, and not on this machine."""
    return bool(re.match(r"azureml:[A-Za-z0-9][\w.-]*:[\w.-]+$|azureml://datastores/\w+/paths/.+|https://.+", text))


def _bytes(text: str) -> str:
    if text != "auto" and not re.fullmatch(r"[1-9]\d*[bkmg]", text):
        raise ValueError("must be auto, or a number with b, k, m or g, such as 16g")
    return text


class AzureSpec(Config):
    """Settings that only Azure ML has."""

    subscription_id: str | None = None
    """Subscription. None: ORCHESTRATOR_AZURE_SUBSCRIPTION_ID, or config.json of the workspace."""
    resource_group: str | None = None
    """Resource group. None: ORCHESTRATOR_AZURE_RESOURCE_GROUP, or config.json."""
    workspace: str | None = None
    """Workspace. None: ORCHESTRATOR_AZURE_WORKSPACE, or config.json."""
    environment: Annotated[str, AfterValidator(_asset)] = "auto"
    """auto: environments/train-gpu or train-cpu, by the device, built once; or azureml:NAME:VERSION."""
    datastore: Annotated[str, Field(pattern=r"^[A-Za-z0-9_]+$")] = "workspaceblobstore"
    """Datastore of code, text, checkpoints and outputs."""
    data: Annotated[str, AfterValidator(_remote)] | None = None
    """Text in Azure that replaces data.text: azureml:NAME:VERSION, azureml://datastores/..., https://..."""
    data_mode: Literal["ro_mount", "download"] = "ro_mount"
    """Access to the text: streamed while the job reads it, or copied to the machine before the job starts."""
    identity: Literal["none", "managed", "user"] = "none"
    """Identity of the job towards its data: the datastore's key, the cluster's identity, or your own."""
    identity_client_id: Annotated[str, Field(pattern=_CLIENT_ID)] | None = None
    """Client id of the managed identity of the job and of its supervisor, if the machines have several.
    None: their own, on serverless machines that of the workspace."""
    cluster_identity: Annotated[str, Field(pattern=r"^(none|system|/subscriptions/\S+)$")] = "none"
    """Identity of a cluster that submit creates: none, system, or the ARM id of a user-assigned one."""
    subnet: Annotated[str, Field(pattern=r"^/subscriptions/\S+/subnets/\S+$")] | None = None
    """ARM id of the subnet of a cluster that submit creates. None: the workspace's managed network, if it has one."""
    node_public_ip: bool = True
    """Whether the machines of a cluster that submit creates have public addresses. A managed network needs none."""
    ssh_public_key: str | None = None
    """Public key, or its file, for `az ml job connect-ssh` into the containers of a running job."""
    secrets_in_body: bool = False
    """Send secrets of your environment, files and keyring in the job's definition, which all users of the workspace can
    read. Without it only keyvault: references are accepted, which the job reads with its managed identity."""
    shm_size: Annotated[str, AfterValidator(_bytes)] = "auto"
    """Shared memory of the container; auto: half of the machine's memory, at most 64g."""
    timeout_hours: Annotated[float, Field(gt=0, le=21 * 24)] | None = None
    """Time limit of the job in hours. None: Azure's own limit, 21 days, or 7 days on Spot machines."""
    elastic_nodes: Annotated[int, Field(gt=1)] | None = None
    """Highest number of machines of an elastic job of kind `command`: it starts on as many as Azure has, from
    compute.nodes on. None: exactly compute.nodes."""
    supervise: Literal["here", "cloud"] = "here"
    """Who restarts the run after an eviction: commands that follow it, or a schedule of Azure ML, which needs no
    machine of yours."""
    supervise_minutes: Annotated[int, Field(ge=1, le=24 * 60)] = 10
    """Time between two jobs of that schedule in minutes."""
    supervise_cluster: str = SERVERLESS
    """Cluster of those jobs; serverless: none."""
    supervise_sku: str = "Standard_DS3_v2"
    """Size of their machine, if it is serverless."""
    preflight: bool = True
    """Check the GPUs and the network of all nodes for 10 s before training, and name the sick one."""


class Workspace(Config):
    """Address of a workspace."""

    subscription_id: str
    """Id of the subscription."""
    resource_group: str
    """Name of the resource group."""
    workspace: str
    """Name of the workspace."""

    @property
    def id(self) -> str:
        """Azure's id of it; the ids of everything in it begin with this."""
        return (
            f"/subscriptions/{self.subscription_id}/resourceGroups/{self.resource_group}"
            f"/providers/Microsoft.MachineLearningServices/workspaces/{self.workspace}"
        )

    @property
    def missing(self) -> list[str]:
        """Environment variables of the names that are not given, as in a dry run."""
        return [variable for key, variable in VARIABLES.items() if getattr(self, key) == UNKNOWN[key]]

    def require(self) -> Workspace:
        """Return this workspace.

        Raises:
            UsageError: some of its names are not given.
        """
        if missing := self.missing:
            raise UsageError(
                "no Azure ML workspace is given",
                facts={
                    "missing": ", ".join(missing),
                    "or": "config.json of the workspace in this folder or above it",
                },
                fix=f"export {' '.join(f'{variable}=...' for variable in missing)}",
            )
        return self


def find_workspace(
    given: Mapping[str, str | None], environ: Mapping[str, str], folder: Path, *, name: str | None = None
) -> Workspace:
    """Return the workspace: each of its three names from the first source that has it, else a placeholder.

    Args:
        given: from a spec or from flags: subscription_id, resource_group, workspace. The first source.
        environ: environment variables. The second source.
        folder: config.json or .azureml/config.json is searched for here and above. The third source.
        name: the workspace that a handle names; replaces the name from the sources.

    Raises:
        SpecError: config.json cannot be read, or a name has a character that Azure does not allow.
    """
    config = _read_config(folder)
    found = {
        key: given.get(key) or environ.get(variable) or config.get(CONFIG_KEYS[key]) or UNKNOWN[key]
        for key, variable in VARIABLES.items()
    }
    if name is not None:
        found["workspace"] = name
    for key, value in found.items():
        if not _NAME.fullmatch(value):
            raise SpecError(f"invalid {key} {value!r}", fix=f"export {VARIABLES[key]}=...")
    return Workspace(**found)


def _read_config(folder: Path) -> dict[str, str]:
    here = folder.absolute()
    places = [place for parent in (here, *here.parents) for place in (parent / ".azureml", parent)]
    for path in (found for place in places if (found := place / "config.json").is_file()):
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as problem:
            raise SpecError(
                f"cannot read {path}", facts={"reason": problem}, fix="download it again from the studio"
            ) from None
        # else the file of another program: many projects have a config.json
        if isinstance(document, dict) and "workspace_name" in document:
            return {key: str(value) for key, value in document.items()}
    return {}
