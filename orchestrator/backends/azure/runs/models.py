"""Models on Azure: assets that point at the outputs of a run, and managed online endpoints that serve them."""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from orchestrator.backends.azure import places
from orchestrator.backends.azure.assets import asset_id, code_asset, ensure_asset, image, report
from orchestrator.backends.azure.endpoints import FORMER, NEW, SLOTS, changed, next_split
from orchestrator.backends.azure.options import Workspace
from orchestrator.backends.azure.runs.observer import Observer
from orchestrator.backends.azure.sizes import find_size
from orchestrator.backends.azure.wire.control_plane import Body
from orchestrator.backends.capabilities import check_endpoint, model_name, model_tags, require_model
from orchestrator.backends.mlflow_model import READ, model_files
from orchestrator.runs.status import RunStatus
from orchestrator.support.errors import ConflictError, NotFoundError, UsageError
from train_jobs.artifacts.lineage import LINEAGE_FILE, Lineage, Link

MLFLOW_MODEL = "mlflow_model"
CODE = "orchestrator-serve"  # name of the code asset
SCRIPT = "serve.py"
ARCHIVE = "train_jobs.zip"  # next to the script, which imports from it
SIZE = "Standard_DS3_v2"
ENVIRONMENT = "serve-cpu"


def model_body(datastore: str, run: str, tags: dict[str, str]) -> Body:
    """Return the body of a model asset. It copies nothing: it points at the folder that the run exported.

    Args:
        datastore: of the run's outputs.
        run: the run's name.
        tags: of the asset, see `model_tags`.
    """
    return {
        "properties": {
            "description": f"BERT of run {run}",
            "tags": tags,
            "properties": {},
            "modelType": MLFLOW_MODEL,
            "modelUri": places.datastore_uri(datastore, f"{places.outputs_folder(run)}model/"),
            "isAnonymous": False,
            "isArchived": False,
        }
    }


def endpoint_body(location: str) -> Body:
    """Return the body of a new endpoint with key authentication, which has no deployment and so no traffic.

    Args:
        location: region of the workspace.
    """
    return {
        "location": location,
        "identity": {"type": "SystemAssigned"},
        "tags": {},
        "properties": {
            "authMode": "Key",
            "properties": {},
            "traffic": {},
            "mirrorTraffic": {},
        },
    }


def deployment_body(location: str, workspace: Workspace, model: Body, code: str, env: str, size: str) -> Body:
    """Return the body of a deployment: one machine with our scoring script.

    Args:
        location: region of the workspace.
        workspace: the workspace.
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


def register(run: Observer, status: RunStatus, model: str | None, alias: str | None = None) -> dict[str, Any]:
    """Create the model asset of a run: its version is the run's hash, so a second call changes nothing.

    The files that make it an MLflow model are put next to the exported ones.

    Args:
        run: the run.
        status: its status.
        model: name of the asset; None: the run's name without its hash.
        alias: Azure has none. None: none.

    Returns:
        {name, version, uri, tags} of the asset; with `replaces`, a version that MLflow cannot load, if there is one.

    Raises:
        ConflictError: the run has no model, or that version belongs to another run.
        UsageError: an alias is given.
    """
    if alias is not None:
        raise UsageError(
            f"invalid --alias {alias}: Azure's registry has no aliases", fix="leave it out, and name the version"
        )
    require_model(status)
    name, version = model_name(status, model), str(status.run_hash)
    try:
        lineage = Lineage.model_validate_json(run.output(LINEAGE_FILE)).head
    except NotFoundError:
        lineage = None
    body = model_body(
        run.request["datastore"], run.folder.name, model_tags(status, run.plan, lineage.hash if lineage else None)
    )
    own, known = body["properties"], run.wire.asset("models", name, version)
    replaced = None
    if known is not None and known["properties"]["modelType"] != MLFLOW_MODEL:
        # of before 0.2, without MLmodel; a version of an asset cannot be changed
        replaced, version = version, f"{version}-mlflow"
        known = run.wire.asset("models", name, version)
    if known is None:
        _add_files(run, status, lineage)
        run.wire.put_asset("models", name, version, body)
    elif known["properties"]["modelUri"].rstrip("/") != own["modelUri"].rstrip("/"):
        raise ConflictError(f"model {name}:{version} belongs to another run", fix="--name with another name")
    found = {"name": name, "version": version, "uri": own["modelUri"], "tags": own["tags"]}
    return found if replaced is None else {**found, "replaces": replaced}


def _add_files(run: Observer, status: RunStatus, lineage: Link | None) -> None:
    """Upload the small files that make the exported folder an MLflow model; its weights stay where they are.

    Raises:
        NotFoundError: the run has no model of its own.
    """
    export = {}
    for name in READ:
        with suppress(NotFoundError):
            export[name] = run.output(f"model/{name}")
    metadata = {"run": status.name}
    if lineage is not None:
        metadata |= {"weights_sha256": lineage.weights or "", "lineage": lineage.hash}
    files = model_files(export, run.plan.get("environment", {}), metadata, run_id=status.mlflow_run_id)
    run.files().upload(f"{places.outputs_folder(run.folder.name)}model/", files)


def deploy(
    run: Observer, register: Callable[[], dict[str, Any]], endpoint: str, sku: str | None, traffic: int | None = None
) -> dict[str, Any]:
    """Create an endpoint with one deployment, which gets all traffic, or a second deployment of an existing one.

    Args:
        run: the run of the model.
        register: returns the model, {name, version, ...}; called after all checks, see `register`.
        endpoint: name of the endpoint.
        sku: machine size. None: Standard_DS3_v2.
        traffic: percent for a second deployment. None: a new endpoint.

    Returns:
        {endpoint, uri, run, deployment, traffic}; requests go to `uri`.

    Raises:
        ConflictError: the endpoint exists and no `traffic` was given, or its traffic is divided.
        NotFoundError: the endpoint does not exist, and `traffic` is given.
        SpecError: the machine size is unknown or retired.
        UsageError: the endpoint's name is invalid.
        UserError: Azure refused, or the deployment failed: it gets no traffic then.
    """
    check_endpoint(endpoint)
    wire, size = run.wire, find_size(sku or SIZE, where="--sku")
    known = wire.endpoint(endpoint)
    if known is not None and traffic is None:
        raise ConflictError(
            f"endpoint {endpoint} already exists",
            facts={"second deployment": "--traffic 10"},
            fix=f"orchestrator model delete {endpoint} -y",
        )
    slot, tags, wanted = SLOTS[0], {}, {SLOTS[0]: 100}
    if traffic is not None:
        if known is None:
            raise NotFoundError(f"endpoint {endpoint} does not exist", fix="leave out --traffic to create it")
        slot, former, wanted = next_split(known, wire.deployments(endpoint), traffic)
        tags = {FORMER: former, NEW: slot}
    location = wire.location()
    environment, code = _ensure_assets(run)
    model = register()
    # Endpoint, deployment, traffic: Azure accepts only this order.
    if known is None:
        wire.put_endpoint(endpoint, endpoint_body(location))
        report(f"endpoint {endpoint}: created")
    report(f"deployment {slot} of endpoint {endpoint}: its machine takes about 10 minutes to start")
    machine = size.name if size else str(sku)
    body = deployment_body(location, wire.workspace, model, code, environment, machine)
    wire.put_deployment(endpoint, slot, body)  # raises if it fails
    now = wire.endpoint(endpoint) or {}
    wire.put_endpoint(endpoint, changed(now, wanted, tags))
    uri = now.get("properties", {}).get("scoringUri")
    return {"endpoint": endpoint, "uri": uri, "run": run.folder.name, "deployment": slot, "traffic": wanted}


def _ensure_assets(run: Observer) -> tuple[str, str]:
    """Upload the scoring script and define its environment, where they are missing; return both versions."""
    wire, files = run.wire, _script()
    version = hashlib.sha256(b"".join(files.values())).hexdigest()[: places.DIGITS]
    code, environment = code_asset(CODE, version, places.content_folder("serve", version)), image(ENVIRONMENT).asset()
    for asset in (code, environment):
        ensure_asset(wire, run.request["datastore"], asset, lambda scratch: files)
    return environment.version, code.version


def _script() -> dict[str, bytes]:
    """Return the scoring script and the package that it imports."""
    spec = find_spec("train_jobs")
    assert spec is not None, "train_jobs is installed"
    package = Path(str(spec.origin)).parent
    return {SCRIPT: (package / "tools" / SCRIPT).read_bytes(), ARCHIVE: package_archive(package)}


def package_archive(package: Path) -> bytes:
    """Return an archive of a package's modules; the same modules give the same bytes, and the same asset version."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for path in sorted(package.rglob("*.py")):
            # a ZipInfo of its own has the fixed date 1980, in place of the time of the file
            archive.writestr(zipfile.ZipInfo(path.relative_to(package.parent).as_posix()), path.read_bytes())
    return buffer.getvalue()
