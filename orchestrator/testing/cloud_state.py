"""The double's one subscription, resource group and workspace, and the resources in it."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

DEFAULT = "workspaceblobstore"
ARTIFACTS = "workspaceartifactstore"

Document = dict[str, Any]
PROVIDER = "Microsoft.MachineLearningServices"
DEFAULT_QUOTA = 400


def now() -> str:
    """Return the current time in the services' format."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


@dataclass
class WorkspaceAddress:
    """The workspace's names, region and account, and the application that may call it."""

    subscription: str = "00000000-0000-4000-8000-000000000001"
    resource_group: str = "double-group"
    workspace: str = "double"
    region: str = "eastus"
    tenant: str = "00000000-0000-4000-8000-00000000000a"
    client: str = "00000000-0000-4000-8000-00000000000c"
    account: str = "doublestore"

    @property
    def group_path(self) -> str:
        """ARM id of the resource group."""
        return f"/subscriptions/{self.subscription}/resourceGroups/{self.resource_group}"

    @property
    def workspace_path(self) -> str:
        """ARM id of the workspace, `/subscriptions/.../workspaces/NAME`."""
        return f"{self.group_path}/providers/{PROVIDER}/workspaces/{self.workspace}"

    @property
    def locations_path(self) -> str:
        """ARM path of the region."""
        return f"/subscriptions/{self.subscription}/providers/{PROVIDER}/locations/{self.region}"

    @property
    def data_plane(self) -> str:
        """Host of run history, of the data service and of MLflow."""
        return f"{self.region}.api.azureml.ms"

    @property
    def scoring_domain(self) -> str:
        """Domain of the online endpoints' hosts."""
        return f"{self.region}.inference.ml.azure.com"

    @property
    def blob_host(self) -> str:
        """Host of the blob service."""
        return f"{self.account}.blob.core.windows.net"


@dataclass
class State:
    """Resources and settings of the workspace. Every handler holds the lock while it reads or changes them.

    The lock is reentrant: handlers of one service call those of another.
    """

    place: WorkspaceAddress
    lock: threading.RLock = field(default_factory=threading.RLock)
    resources: dict[str, Document] = field(default_factory=dict)
    """Path below the workspace (`environments/train/versions/1`) -> document, the oldest first."""
    operations: dict[str, list[Document]] = field(default_factory=dict)
    """Long-running operation -> answers that it still has to give; the last one stays."""
    pending: dict[str, str] = field(default_factory=dict)
    """Announced upload: path of the code version -> container."""
    quotas: dict[str, int] = field(default_factory=dict)
    """VM family -> cores that the subscription may use; of others `DEFAULT_QUOTA`."""
    failing_computes: dict[str, Document] = field(default_factory=dict)
    """Cluster whose creation fails -> error."""
    failing_deployments: dict[str, Document] = field(default_factory=dict)
    """Deployment of an online endpoint that fails -> error."""
    no_capacity: set[str] = field(default_factory=set)
    """Clusters that get no machine."""

    def put(self, path: str, kind: str, document: Document) -> tuple[Document, bool]:
        """Store a resource; return it as a GET shows it, and whether it is new.

        Args:
            path: below the workspace, `environments/train/versions/1`.
            kind: its type in ARM, below `workspaces/`, such as `environments/versions`.
            document: body of the PUT.
        """
        before = self.resources.get(path)
        created = before["systemData"]["createdAt"] if before else now()
        author = {"createdBy": "double", "createdByType": "Application"}
        resource = {
            **document,
            "id": f"{self.place.workspace_path}/{path}",
            "name": path.rpartition("/")[2],
            "type": f"{PROVIDER}/workspaces/{kind}",
            "systemData": {"createdAt": created, "lastModifiedAt": now(), "lastModifiedBy": "double", **author},
        }
        self.resources[path] = resource
        return resource, before is None

    def below(self, path: str) -> list[Document]:
        """Return the resources directly below a path, the newest first."""
        return [document for name, document in self.resources.items() if name.rpartition("/")[0] == path][::-1]

    def by_id(self, identity: str) -> Document | None:
        """Return the resource with an ARM id, None if this workspace has no such resource."""
        # ARM ids are case-insensitive, and clients change the case of `resourceGroups`
        base, path = f"{self.place.workspace_path}/", identity.removeprefix("azureml:")
        return self.resources.get(path[len(base) :]) if path.lower().startswith(base.lower()) else None
