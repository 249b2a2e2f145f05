"""What only Azure ML needs to know of a job."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from train_jobs.config.base import Config

AZURE = "azure"  # the backend's name
MOST_HOURS = {"dedicated": 21 * 24.0, "low-priority": 7 * 24.0}  # Azure ends a job after so long


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
    """Whether data named so lies in Azure, and not on this machine."""
    return bool(re.match(r"azureml:[A-Za-z0-9][\w.-]*:[\w.-]+$|azureml://datastores/\w+/paths/.+|https://.+", text))


def _bytes(text: str) -> str:
    if text != "auto" and not re.fullmatch(r"[1-9]\d*[bkmg]", text):
        raise ValueError("must be auto, or a number with b, k, m or g, such as 16g")
    return text


class AzureSpec(Config):
    """What only Azure ML needs to know of a job."""

    subscription_id: str | None = None
    """Subscription. None: ORCHESTRATOR_AZURE_SUBSCRIPTION_ID, or config.json of the workspace."""
    resource_group: str | None = None
    """Resource group. None: ORCHESTRATOR_AZURE_RESOURCE_GROUP, or config.json."""
    workspace: str | None = None
    """Workspace. None: ORCHESTRATOR_AZURE_WORKSPACE, or config.json."""
    environment: Annotated[str, AfterValidator(_asset)] = "auto"
    """auto: environments/train-gpu or train-cpu, by the device, built once; or azureml:NAME:VERSION."""
    datastore: Annotated[str, Field(pattern=r"^[A-Za-z0-9_]+$")] = "workspaceblobstore"
    """Datastore that code, text, checkpoints and outputs lie in."""
    data: Annotated[str, AfterValidator(_remote)] | None = None
    """Text that lies in Azure and takes the place of data.text: azureml:NAME:VERSION, azureml://datastores/..., https://..."""
    data_mode: Literal["ro_mount", "download"] = "ro_mount"
    """How the job gets at the text: streamed as it is read, or copied to the machine before the job starts."""
    identity: Literal["none", "managed", "user"] = "none"
    """As whom the job reaches its data: by the datastore's key, by the cluster's identity, or as you."""
    shm_size: Annotated[str, AfterValidator(_bytes)] = "auto"
    """Shared memory of the container; auto: half of the machine's memory, at most 64g."""
    timeout_hours: Annotated[float, Field(gt=0, le=21 * 24)] | None = None
    """The job is ended after so many hours. None: Azure's own limit, 21 days, or 7 days on low-priority machines."""
    preflight: bool = True
    """Check the GPUs and the network of all nodes for 10 s before training, and name the sick one."""
