"""The one subscription, resource group and workspace that the double has, and all that was put into it."""

from __future__ import annotations

import threading
import uuid
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

DEFAULT = "workspaceblobstore"
ARTIFACTS = "workspaceartifactstore"

Document = dict[str, Any]
PROVIDER = "Microsoft.MachineLearningServices"
DEFAULT_QUOTA = 400


def now() -> str:
    """This moment as the services write it."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


@dataclass
class Place:
    """Where the workspace is, and who may ask it."""

    subscription: str = "00000000-0000-4000-8000-000000000001"
    resource_group: str = "double-group"
    workspace: str = "double"
    region: str = "eastus"
    tenant: str = "00000000-0000-4000-8000-00000000000a"
    client: str = "00000000-0000-4000-8000-00000000000c"
    account: str = "doublestore"

    @property
    def group_path(self) -> str:
        return f"/subscriptions/{self.subscription}/resourceGroups/{self.resource_group}"

    @property
    def workspace_path(self) -> str:
        """`/subscriptions/.../workspaces/NAME`, the id of the workspace."""
        return f"{self.group_path}/providers/{PROVIDER}/workspaces/{self.workspace}"

    @property
    def locations_path(self) -> str:
        return f"/subscriptions/{self.subscription}/providers/{PROVIDER}/locations/{self.region}"

    @property
    def data_plane(self) -> str:
        """Host of run history, of the datasets' service and of MLflow."""
        return f"{self.region}.api.azureml.ms"

    @property
    def scoring_domain(self) -> str:
        """What the hosts of online endpoints end with."""
        return f"{self.region}.inference.ml.azure.com"

    @property
    def blob_host(self) -> str:
        return f"{self.account}.blob.core.windows.net"


@dataclass
class Operation:
    """Something that takes the service a while."""

    kind: str
    polls_left: int
    """How often it says that it is not done."""
    error: Document | None = None
    """Why it fails."""


@dataclass
class State:
    """What the services know. Every handler holds the lock while it looks or changes."""

    place: Place
    home: Path
    lock: threading.RLock = field(default_factory=threading.RLock)
    resources: dict[str, Document] = field(default_factory=dict)
    """Path below the workspace (`environments/train/versions/1`) -> document, the oldest first."""
    operations: dict[str, Operation] = field(default_factory=dict)
    pending: dict[str, str] = field(default_factory=dict)
    """Uploads that were announced: path of the code version -> container."""
    quotas: dict[str, int] = field(default_factory=dict)
    """VM family -> cores that the subscription may use; of others `DEFAULT_QUOTA`."""
    failing_computes: dict[str, Document] = field(default_factory=dict)
    """Clusters whose creation fails -> error."""
    no_capacity: set[str] = field(default_factory=set)
    """Clusters that get no machine."""

    def put(self, path: str, kind: str, document: Document) -> tuple[Document, bool]:
        """Keeps a resource; returns it as a GET shows it, and whether it is new."""
        before = self.resources.get(path)
        created = before["systemData"]["createdAt"] if before else now()
        who = {"createdBy": "double", "createdByType": "Application"}
        system = {"createdAt": created, "lastModifiedAt": now(), "lastModifiedBy": "double", **who}
        found = {
            **document,
            "id": f"{self.place.workspace_path}/{path}",
            "name": path.rpartition("/")[2],
            "type": f"{PROVIDER}/workspaces/{kind}",
            "systemData": system,
        }
        self.resources[path] = found
        return found, before is None

    def below(self, path: str) -> list[Document]:
        """Resources directly below a path, the newest first."""
        depth = path.count("/") + 1
        found = [
            document
            for name, document in self.resources.items()
            if name.startswith(f"{path}/") and name.count("/") == depth
        ]
        return found[::-1]

    def start(self, kind: str, *, polls: int = 1, error: Document | None = None) -> str:
        """A long-running operation; returns its id."""
        name = str(uuid.uuid4())
        self.operations[name] = Operation(kind, polls, error)
        return name
