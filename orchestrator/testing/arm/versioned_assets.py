"""Environments, data, models and code: containers of versions that never change."""

from __future__ import annotations

import uuid
from typing import Any

from orchestrator.testing.arm.resource_manager import ResourceManager, Table, page
from orchestrator.testing.cloud_state import Document
from orchestrator.testing.proxy.messages import Call, Refusal, Reply

ROUTES = Table()
KINDS = ("environments", "data", "models", "codes")
CHANGEABLE = {"description", "isArchived", "properties", "stage", "tags", "autoDeleteSetting"}
SHOWN: Document = {"isArchived": False, "isAnonymous": False, "properties": {}, "tags": {}}
"""What a GET shows of any version, whether it was put or not."""
SHOWN_OF: dict[str, Document] = {"environments": {"environmentType": "UserCreated"}, "models": {"flavors": {}}}


def list_containers(service: ResourceManager, call: Call, kind: str) -> Reply:
    found = [_container(service, kind, document["name"]) for document in service.state.below(kind)]
    wanted = [item for item in found if item is not None]
    return page(call, _listed(call, wanted), service.page_size)


def get_container(service: ResourceManager, call: Call, kind: str, name: str) -> Reply:
    if (found := _container(service, kind, name)) is None:
        raise Refusal(404, "UserError", f"{kind} container {name} was not found.")
    return Reply.json(found)


def put_container(service: ResourceManager, call: Call, kind: str, name: str) -> Reply:
    found, new = service.state.put(f"{kind}/{name}", kind, service.body(call, kind))
    return Reply.json(found, 201 if new else 200)


def list_versions(service: ResourceManager, call: Call, kind: str, name: str) -> Reply:
    """With `hash`, which the client asks for code by, of all names: the client makes up a new name each time."""
    if wanted := call.query.get("hash"):
        found = [document for document in _all_versions(service, kind) if _hash(document) == wanted]
    else:
        found = service.state.below(f"{kind}/{name}/versions")
    listed = _listed(call, found)
    return page(call, listed[: int(call.query.get("$top") or len(listed))], service.page_size)


def get_version(service: ResourceManager, call: Call, kind: str, name: str, version: str) -> Reply:
    return Reply.json(service.get(f"{kind}/{name}/versions/{version}", f"{kind} {name}, version"))


def put_version(service: ResourceManager, call: Call, kind: str, name: str, version: str) -> Reply:
    body = service.body(call, f"{kind}/versions")
    path = f"{kind}/{name}/versions/{version}"
    if (before := service.state.resources.get(path)) is not None:
        had, wants = before["properties"], body["properties"]
        changed = sorted(field for field in wants.keys() - CHANGEABLE if wants[field] not in (None, had.get(field)))
        if changed:
            said = f"{kind} {name}:{version} exists, and its {', '.join(changed)} cannot change."
            raise Refusal(409, "Conflict", said)
    properties = {**SHOWN, **SHOWN_OF.get(kind, {}), **body["properties"], "provisioningState": "Succeeded"}
    service.state.resources.setdefault(f"{kind}/{name}", {"name": name, "properties": {}})
    found, new = service.state.put(path, f"{kind}/versions", {"properties": properties})
    return Reply.json(found, 201 if new else 200)


def start_upload(service: ResourceManager, call: Call, kind: str, name: str, version: str) -> Reply:
    """A container for the files of a version that is yet to be made."""
    wanted = call.json
    if wanted.get("pendingUploadType") != "TemporaryBlobReference" or wanted.keys() - {"pendingUploadType"}:
        raise Refusal(400, "InvalidRequestContent", f"unexpected body of startPendingUpload: {wanted}")
    path = f"{kind}/{name}/versions/{version}"
    container = service.state.pending.setdefault(path, f"{service.state.place.workspace}-{uuid.uuid4().hex[:12]}")
    service.storage.make(container)
    uri = f"https://{service.state.place.blob_host}/{container}"
    sas = f"{uri}?{service.storage.sign(container, permissions='racwl', seconds=3600)}"
    credential = {"credentialType": "SAS", "sasUri": sas}
    reference = {"blobUri": uri, "credential": credential, "storageAccountArmId": service.state.place.account}
    pending = str(uuid.uuid4())
    return Reply.json(
        {
            "blobReferenceForConsumption": reference,
            "pendingUploadId": pending,
            "pendingUploadType": "TemporaryBlobReference",
        }
    )


def _register(kind: str) -> None:
    def bound(handler: Any) -> Any:
        return lambda service, call, **more: handler(service, call, kind=kind, **more)

    ROUTES.add("GET", kind)(bound(list_containers))
    ROUTES.add("GET", f"{kind}/{{name}}")(bound(get_container))
    ROUTES.add("PUT", f"{kind}/{{name}}")(bound(put_container))
    ROUTES.add("GET", f"{kind}/{{name}}/versions")(bound(list_versions))
    ROUTES.add("GET", f"{kind}/{{name}}/versions/{{version}}")(bound(get_version))
    ROUTES.add("PUT", f"{kind}/{{name}}/versions/{{version}}")(bound(put_version))
    ROUTES.add("POST", f"{kind}/{{name}}/versions/{{version}}/startPendingUpload")(bound(start_upload))


for each in KINDS:
    _register(each)


def _container(service: ResourceManager, kind: str, name: str) -> Document | None:
    """What a version's own container says: the newest version, and which a number would be next."""
    if (found := service.state.resources.get(f"{kind}/{name}")) is None:
        return None
    versions = [document["name"] for document in service.state.below(f"{kind}/{name}/versions")]
    numbers = [int(version) for version in versions if version.isdigit()]
    latest = {"latestVersion": versions[0] if versions else None, "nextVersion": str(max(numbers, default=0) + 1)}
    properties = {"isArchived": False, **found["properties"], **latest}
    identity = f"{service.state.place.workspace_path}/{kind}/{name}"
    return {**found, "id": identity, "properties": properties}


def _listed(call: Call, documents: list[Document]) -> list[Document]:
    view = call.query.get("listViewType", "ActiveOnly")
    if view == "All":
        return documents
    archived = view == "ArchivedOnly"
    return [document for document in documents if document["properties"].get("isArchived", False) == archived]


def _all_versions(service: ResourceManager, kind: str) -> list[Document]:
    names = [name for name in service.state.resources if name.startswith(f"{kind}/") and "/versions/" in name]
    return [service.state.resources[name] for name in reversed(names)]


def _hash(document: Document) -> object:
    return document["properties"].get("properties", {}).get("hash_sha256")
