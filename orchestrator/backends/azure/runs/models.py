"""Models on Azure: assets that point at the outputs of a run, and managed online endpoints that answer with them."""

from __future__ import annotations

import hashlib
import io
import zipfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from orchestrator.backends.azure.assets import places
from orchestrator.backends.azure.assets.assets import asset_id
from orchestrator.backends.azure.assets.images import CPU_IMAGE, TrainImage, image
from orchestrator.backends.azure.assets.uploads import filled, say
from orchestrator.backends.azure.machines.sizes import find_size
from orchestrator.backends.azure.runs.record import RecordFolder
from orchestrator.backends.azure.wire.blobs import Files
from orchestrator.backends.azure.wire.control_plane import Body, Wire
from orchestrator.backends.azure.wire.workspace import Workspace
from orchestrator.backends.model_names import check_endpoint, model_name, model_tags, require_model
from orchestrator.runs.status import RunStatus
from orchestrator.support.errors import ConflictError, NotFoundError
from train_jobs.artifacts.lineage import LINEAGE_FILE, Lineage

CODE = "orchestrator-serve"
SCRIPT = "serve.py"
ARCHIVE = "train_jobs.zip"  # beside the script, which looks for it
DEPLOYMENT = "blue"
SIZE = "Standard_DS3_v2"
ENVIRONMENT = "serve-cpu"


def model_body(datastore: str, run: str, tags: dict[str, str]) -> Body:
    """A model asset. It copies nothing: it points at what the run exported."""
    return {
        "properties": {
            "description": f"BERT of run {run}",
            "tags": tags,
            "properties": {},
            "modelType": "custom_model",
            "modelUri": places.datastore_uri(datastore, f"{places.outputs_folder(run)}model/"),
            "isAnonymous": False,
            "isArchived": False,
        }
    }


def endpoint_body(location: str, *, traffic: bool) -> Body:
    """An endpoint that wants a key; without traffic until there is something behind it."""
    return {
        "location": location,
        "identity": {"type": "SystemAssigned"},
        "tags": {},
        "properties": {
            "authMode": "Key",
            "properties": {},
            "traffic": {DEPLOYMENT: 100} if traffic else {},
            "mirrorTraffic": {},
        },
    }


def deployment_body(location: str, workspace: Workspace, model: Body, code: str, env: str, size: str) -> Body:
    """What answers behind an endpoint: one machine with our scoring script.

    Args:
        location: region of the workspace.
        workspace: where all of it is.
        model: {name, version}.
        code: version of the script.
        env: version of the environment.
        size: of the machine.
    """
    return {
        "location": location,
        "tags": {},
        "sku": {"name": "Default", "capacity": 1},
        "properties": {
            "endpointComputeType": "Managed",
            "instanceType": size,
            "appInsightsEnabled": False,
            "model": asset_id(workspace, "models", model["name"], model["version"]),
            "codeConfiguration": {"codeId": asset_id(workspace, "codes", CODE, code), "scoringScript": SCRIPT},
            "environmentId": asset_id(workspace, "environments", ENVIRONMENT, env),
            "properties": {},
            "environmentVariables": {},
        },
    }


def register(wire: Wire, folder: RecordFolder, status: RunStatus, model: str | None) -> dict[str, Any]:
    """Makes the model asset of a run: its version is the run's hash, so that once more changes nothing.

    Raises:
        ConflictError: the run has no model, or that version is of another run.
    """
    require_model(status)
    request, name = folder.document("request.json"), model_name(status, model)
    body = model_body(
        request["datastore"], folder.name, model_tags(status, folder.document("plan.json"), _lineage(wire, folder))
    )
    known = wire.asset("models", name, status.run_hash)
    if known is None:
        wire.put_asset("models", name, status.run_hash, body)
    elif known["properties"]["modelUri"].rstrip("/") != body["properties"]["modelUri"].rstrip("/"):
        raise ConflictError(f"model {name}:{status.run_hash} is of another run", fix="--name with another name")
    found = body["properties"]
    return {"name": name, "version": status.run_hash, "uri": found["modelUri"], "tags": found["tags"]}


def _lineage(wire: Wire, folder: RecordFolder) -> str | None:
    name = places.outputs_folder(folder.name) + LINEAGE_FILE
    try:
        data = Files(wire.store(folder.document("request.json")["datastore"])).read(name)
    except NotFoundError:
        return None
    return Lineage.model_validate_json(data).head.hash


def deploy(wire: Wire, folder: RecordFolder, model: dict[str, Any], endpoint: str, sku: str | None) -> dict[str, Any]:
    """Makes an endpoint, what answers behind it, and gives it all traffic.

    Raises:
        ConflictError: there is an endpoint of that name.
    """
    check_endpoint(endpoint)
    size = find_size(sku or SIZE, where="--sku")
    if wire.endpoint(endpoint) is not None:
        raise ConflictError(f"there is an endpoint {endpoint}", fix=f"orchestrator model delete {endpoint} -y")
    location = wire.location()
    code = _script(wire, folder)
    environment = _environment(wire, image(ENVIRONMENT))
    wire.put_endpoint(endpoint, endpoint_body(location, traffic=False))
    say(f"endpoint {endpoint}: made; its machine takes some 10 minutes")
    machine = size.name if size else str(sku)
    body = deployment_body(location, wire.workspace, model, code, environment, machine)
    wire.put_deployment(endpoint, DEPLOYMENT, body)
    wire.put_endpoint(endpoint, endpoint_body(location, traffic=True))
    found = wire.endpoint(endpoint) or {}
    uri = (found.get("properties") or {}).get("scoringUri")
    return {"endpoint": endpoint, "uri": uri, "run": folder.name}


def _script(wire: Wire, folder: RecordFolder) -> str:
    """Sees to it that the workspace has the scoring script and what it imports; returns the version of both."""
    spec = find_spec("train_jobs")
    assert spec is not None, "train_jobs is installed"
    package = Path(str(spec.origin)).parent
    content = {SCRIPT: (package / "tools" / SCRIPT).read_bytes(), ARCHIVE: package_archive(package)}
    version = hashlib.sha256(b"".join(content.values())).hexdigest()[: places.DIGITS]
    if wire.asset("codes", CODE, version) is None:
        store, place = wire.store(folder.document("request.json")["datastore"]), f"{places.ROOT}serve/{version}/"
        Files(store).upload(place, content)
        body = {"properties": {"codeUri": places.ACCOUNT_URL + place.rstrip("/"), "isAnonymous": False}}
        wire.put_asset("codes", CODE, version, filled(body, store))
    return version


def package_archive(package: Path) -> bytes:
    """A package's modules, to be imported out of the archive: the same ones give the same bytes."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for path in sorted(package.rglob("*.py")):
            archive.writestr(zipfile.ZipInfo(path.relative_to(package.parent).as_posix()), path.read_bytes())
    return buffer.getvalue()


def _environment(wire: Wire, found: TrainImage) -> str:
    if wire.asset("environments", found.name, found.version) is None:
        properties = {"isAnonymous": False, "isArchived": False, "osType": "Linux", "image": CPU_IMAGE}
        body = {"properties": {**properties, "condaFile": found.conda}}
        wire.put_asset("environments", found.name, found.version, body)
    return found.version
