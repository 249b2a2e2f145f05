"""The workspace itself."""

from __future__ import annotations

from orchestrator.testing.arm.resource_manager import ResourceManager, Table
from orchestrator.testing.cloud_state import PROVIDER, Document
from orchestrator.testing.proxy.messages import Call, Reply

ROUTES = Table()


@ROUTES.add("GET", "")
def get_workspace(service: ResourceManager, call: Call) -> Reply:
    return Reply.json(workspace(service))


def workspace(service: ResourceManager) -> Document:
    """The workspace as a GET shows it."""
    place = service.state.place
    storage = f"{place.group_path}/providers/Microsoft.Storage/storageAccounts/{place.account}"
    properties = {
        "discoveryUrl": f"https://{place.data_plane}/discovery",
        "friendlyName": place.workspace,
        "mlFlowTrackingUri": f"azureml://{place.data_plane}/mlflow/v1.0{place.workspace_path}",
        "provisioningState": "Succeeded",
        "publicNetworkAccess": "Enabled",
        "storageAccount": storage,
        "tenantId": place.tenant,
        "workspaceId": "00000000-0000-4000-8000-00000000000e",
    }
    return {
        "id": place.workspace_path,
        "identity": {"type": "SystemAssigned", "tenantId": place.tenant},
        "kind": "Default",
        "location": place.region,
        "name": place.workspace,
        "properties": properties,
        "tags": {},
        "type": f"{PROVIDER}/workspaces",
    }
