"""Datastores: two containers of the one account, by its key or by who asks."""

from __future__ import annotations

from orchestrator.testing.arm.resource_manager import ResourceManager, Table
from orchestrator.testing.cloud_state import DEFAULT, PROVIDER, Document
from orchestrator.testing.proxy.messages import Call, Refusal, Reply

ROUTES = Table()


@ROUTES.add("GET", "datastores")
def list_datastores(service: ResourceManager, call: Call) -> Reply:
    only_default = call.query.get("isDefault", "").lower() == "true"
    names = [DEFAULT] if only_default else list(service.storage.datastores)
    return Reply.json({"value": [_datastore(service, name) for name in names]})


@ROUTES.add("GET", "datastores/{name}")
def get_datastore(service: ResourceManager, call: Call, name: str) -> Reply:
    return Reply.json(_datastore(service, name))


@ROUTES.add("POST", "datastores/{name}/listSecrets")
def list_secrets(service: ResourceManager, call: Call, name: str) -> Reply:
    container = _container(service, name)
    if service.storage.by_identity:
        raise Refusal(400, "UserError", f"Datastore {name} is identity based: it has no secrets.")
    if call.body and call.json.get("expirableSecret"):
        hours = call.json.get("expireAfterHours", 1)
        token = service.storage.sign(container, permissions="racwdl", seconds=3600 * hours)
        return Reply.json({"secretsType": "Sas", "sasToken": token})
    return Reply.json({"secretsType": "AccountKey", "key": service.storage.key})


def _container(service: ResourceManager, name: str) -> str:
    if (container := service.storage.datastores.get(name)) is None:
        raise Refusal(404, "UserError", f"Could not find datastore: {name}")
    return container


def _datastore(service: ResourceManager, name: str) -> Document:
    place = service.state.place
    properties = {
        "accountName": place.account,
        "containerName": _container(service, name),
        "credentials": {"credentialsType": "None" if service.storage.by_identity else "AccountKey"},
        "datastoreType": "AzureBlob",
        "description": None,
        "endpoint": "core.windows.net",
        "isDefault": name == DEFAULT,
        "protocol": "https",
        "serviceDataAccessAuthIdentity": "None",
        "tags": {},
    }
    path = f"{place.workspace_path}/datastores/{name}"
    return {"id": path, "name": name, "type": f"{PROVIDER}/workspaces/datastores", "properties": properties}
