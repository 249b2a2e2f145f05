"""Assets: environments, data, models and code, with versions that never change; and the datastores with their files."""

from __future__ import annotations

import uuid

from orchestrator.testing.arm.resource_manager import ResourceManager
from orchestrator.testing.cloud_state import DEFAULT, PROVIDER, Document
from orchestrator.testing.proxy.messages import Call, Refusal, Reply, Routes

ROUTES = Routes()
CONTAINERS = "{kind:environments|data|models|codes}"
VERSIONS = f"{CONTAINERS}/{{name}}/versions"
CHANGEABLE = {"description", "isArchived", "properties", "stage", "tags", "autoDeleteSetting"}
SHOWN: Document = {"isArchived": False, "isAnonymous": False, "properties": {}, "tags": {}}
"""Properties that a GET shows of every version, even if the PUT had none of them."""
SHOWN_OF: dict[str, Document] = {"environments": {"environmentType": "UserCreated"}, "models": {"flavors": {}}}


@ROUTES.add("GET", CONTAINERS)
def list_containers(service: ResourceManager, call: Call, kind: str) -> Reply:
    """List the assets of a kind."""
    containers = [_container(service, kind, document["name"]) for document in service.state.below(kind)]
    return service.page(call, _listed(call, containers))


@ROUTES.add("GET", f"{CONTAINERS}/{{name}}")
def get_container(service: ResourceManager, call: Call, kind: str, name: str) -> Reply:
    """Return an asset with its newest version and the next free number."""
    return Reply.json(_container(service, kind, name))


@ROUTES.add("PUT", f"{CONTAINERS}/{{name}}")
def put_container(service: ResourceManager, call: Call, kind: str, name: str) -> Reply:
    """Create or change an asset without a version."""
    container, new = service.state.put(f"{kind}/{name}", kind, service.body(call, kind))
    return Reply.json(container, 201 if new else 200)


@ROUTES.add("GET", VERSIONS)
def list_versions(service: ResourceManager, call: Call, kind: str, name: str) -> Reply:
    """List versions; with `hash`, by which the client looks for code, of all names: it uses a new name each time."""
    if wanted := call.query.get("hash"):
        versions = [
            document
            for path, document in reversed(service.state.resources.items())
            if path.startswith(f"{kind}/")
            and "/versions/" in path
            and document["properties"].get("properties", {}).get("hash_sha256") == wanted
        ]
    else:
        versions = service.state.below(f"{kind}/{name}/versions")
    listed = _listed(call, versions)
    return service.page(call, listed[: int(call.query.get("$top") or len(listed))])


@ROUTES.add("PUT", f"{VERSIONS}/{{version}}")
def put_version(service: ResourceManager, call: Call, kind: str, name: str, version: str) -> Reply:
    """Create a version of an asset, or change the properties of one that may change.

    Raises:
        Refusal: the body is invalid, or would change a fixed property.
    """
    wants = service.body(call, f"{kind}/versions")["properties"]
    path = f"{kind}/{name}/versions/{version}"
    if (before := service.state.resources.get(path)) is not None:
        had = before["properties"]
        changed = sorted(key for key in wants.keys() - CHANGEABLE if wants[key] not in (None, had.get(key)))
        if changed:
            raise Refusal(
                409, "Conflict", f"{kind} {name}:{version} exists, and its {', '.join(changed)} cannot change."
            )
    properties = {**SHOWN, **SHOWN_OF.get(kind, {}), **wants, "provisioningState": "Succeeded"}
    service.state.resources.setdefault(f"{kind}/{name}", {"name": name, "properties": {}})
    document, new = service.state.put(path, f"{kind}/versions", {"properties": properties})
    return Reply.json(document, 201 if new else 200)


@ROUTES.add("POST", f"{VERSIONS}/{{version}}/startPendingUpload")
def start_upload(service: ResourceManager, call: Call, kind: str, name: str, version: str) -> Reply:
    """Create a container for the files of a version before the version itself.

    Raises:
        Refusal: a body other than the one that azure-ai-ml sends.
    """
    wanted, place = call.json, service.state.place
    if wanted != {"pendingUploadType": "TemporaryBlobReference"}:
        raise Refusal(400, "InvalidRequestContent", f"unexpected body of startPendingUpload: {wanted}")
    container = service.state.pending.setdefault(
        f"{kind}/{name}/versions/{version}", f"{place.workspace}-{uuid.uuid4().hex[:12]}"
    )
    service.storage.make(container)
    uri = f"https://{place.blob_host}/{container}"
    sas = f"{uri}?{service.storage.sign(container, permissions='racwl', seconds=3600)}"
    return Reply.json(
        {
            "blobReferenceForConsumption": {
                "blobUri": uri,
                "credential": {"credentialType": "SAS", "sasUri": sas},
                "storageAccountArmId": place.account,
            },
            "pendingUploadId": str(uuid.uuid4()),
            "pendingUploadType": "TemporaryBlobReference",
        }
    )


def _container(service: ResourceManager, kind: str, name: str) -> Document:
    """Return the container of an asset's versions, with the newest version and the next free number.

    Raises:
        Refusal: it does not exist.
    """
    if (container := service.state.resources.get(f"{kind}/{name}")) is None:
        raise Refusal(404, "UserError", f"{kind} container {name} was not found.")
    versions = [document["name"] for document in service.state.below(f"{kind}/{name}/versions")]
    following = max((int(version) for version in versions if version.isdigit()), default=0) + 1
    latest = {"latestVersion": versions[0] if versions else None, "nextVersion": str(following)}
    properties = {"isArchived": False, **container["properties"], **latest}
    return {**container, "id": f"{service.state.place.workspace_path}/{kind}/{name}", "properties": properties}


def _listed(call: Call, documents: list[Document]) -> list[Document]:
    """Return the documents of the view that a call asks for: active, archived or all."""
    view = call.query.get("listViewType", "ActiveOnly")
    return [
        document
        for document in documents
        if view == "All" or document["properties"].get("isArchived", False) == (view == "ArchivedOnly")
    ]


@ROUTES.add("GET", "datastores")
def list_datastores(service: ResourceManager, call: Call) -> Reply:
    """List the datastores, or only the default one."""
    only_default = call.query.get("isDefault", "").lower() == "true"
    names = [DEFAULT] if only_default else service.storage.datastores
    return Reply.json({"value": [_datastore(service, name) for name in names]})


@ROUTES.add("GET", "datastores/{name}")
def get_datastore(service: ResourceManager, call: Call, name: str) -> Reply:
    """Return a datastore."""
    return Reply.json(_datastore(service, name))


@ROUTES.add("POST", "datastores/{name}/listSecrets")
def list_secrets(service: ResourceManager, call: Call, name: str) -> Reply:
    """Return the account's key, or a SAS if the client asks for a secret that expires.

    Raises:
        Refusal: the datastore does not exist, or is identity-based.
    """
    container = _datastore(service, name)["properties"]["containerName"]
    if service.storage.by_identity:
        raise Refusal(400, "UserError", f"Datastore {name} is identity based: it has no secrets.")
    if call.body and call.json.get("expirableSecret"):
        hours = call.json.get("expireAfterHours", 1)
        token = service.storage.sign(container, permissions="racwdl", seconds=3600 * hours)
        return Reply.json({"secretsType": "Sas", "sasToken": token})
    return Reply.json({"secretsType": "AccountKey", "key": service.storage.key})


def _datastore(service: ResourceManager, name: str) -> Document:
    """Return a datastore: a container of the one account, opened by the account's key or by identity.

    Raises:
        Refusal: it does not exist.
    """
    place, storage = service.state.place, service.storage
    if name not in storage.datastores:
        raise Refusal(404, "UserError", f"Could not find datastore: {name}")
    properties = {
        "accountName": place.account,
        "containerName": storage.datastores[name],
        "credentials": {"credentialsType": "None" if storage.by_identity else "AccountKey"},
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
