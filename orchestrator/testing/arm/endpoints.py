"""Managed online endpoints and their deployments, with keys; the scoring itself is a function of the test's."""

from __future__ import annotations

from orchestrator.testing.arm.resource_manager import ResourceManager, Table, page
from orchestrator.testing.arm.vm_sizes import SIZES
from orchestrator.testing.cloud_state import Document
from orchestrator.testing.proxy.messages import Call, Refusal, Reply

ROUTES = Table()
ENDPOINTS = "onlineEndpoints"
OPERATION = "mfeOperationsStatus"


@ROUTES.add("GET", ENDPOINTS)
def list_endpoints(service: ResourceManager, call: Call) -> Reply:
    return page(call, service.state.below(ENDPOINTS), service.page_size)


@ROUTES.add("GET", f"{ENDPOINTS}/{{name}}")
def get_endpoint(service: ResourceManager, call: Call, name: str) -> Reply:
    return Reply.json(service.get(f"{ENDPOINTS}/{name}", "Online endpoint"))


@ROUTES.add("PUT", f"{ENDPOINTS}/{{name}}")
def put_endpoint(service: ResourceManager, call: Call, name: str) -> Reply:
    body = service.body(call, ENDPOINTS)
    traffic = body["properties"].get("traffic") or {}
    if sum(traffic.values()) not in (0, 100):
        raise Refusal(400, "BadArgument", f"The traffic must sum up to 0 or 100, not {sum(traffic.values())}.")
    known = {deployment["name"] for deployment in service.state.below(f"{ENDPOINTS}/{name}/deployments")}
    if missing := sorted(traffic.keys() - known):
        raise Refusal(400, "BadArgument", f"Traffic is sent to deployments that are not there: {', '.join(missing)}.")
    host = f"{name}.{service.state.place.scoring_domain}"
    properties = {
        "publicNetworkAccess": "Enabled",
        "traffic": {},
        "mirrorTraffic": {},
        **body["properties"],
        "provisioningState": "Succeeded",
        "scoringUri": f"https://{host}/score",
        "swaggerUri": f"https://{host}/swagger.json",
    }
    return _put(service, f"{ENDPOINTS}/{name}", ENDPOINTS, {**body, "properties": properties})


@ROUTES.add("DELETE", f"{ENDPOINTS}/{{name}}")
def delete_endpoint(service: ResourceManager, call: Call, name: str) -> Reply:
    if f"{ENDPOINTS}/{name}" not in service.state.resources:
        return Reply(204)
    for path in [path for path in service.state.resources if f"{path}/".startswith(f"{ENDPOINTS}/{name}/")]:
        del service.state.resources[path]
    return service.accepted(service.state.start("endpoint"), OPERATION)


@ROUTES.add("POST", f"{ENDPOINTS}/{{name}}/listKeys")
def list_keys(service: ResourceManager, call: Call, name: str) -> Reply:
    service.get(f"{ENDPOINTS}/{name}", "Online endpoint")
    return Reply.json({"primaryKey": service.scoring_key, "secondaryKey": service.scoring_key})


@ROUTES.add("GET", f"{ENDPOINTS}/{{name}}/deployments")
def list_deployments(service: ResourceManager, call: Call, name: str) -> Reply:
    service.get(f"{ENDPOINTS}/{name}", "Online endpoint")
    return page(call, service.state.below(f"{ENDPOINTS}/{name}/deployments"), service.page_size)


@ROUTES.add("GET", f"{ENDPOINTS}/{{name}}/deployments/{{deployment}}")
def get_deployment(service: ResourceManager, call: Call, name: str, deployment: str) -> Reply:
    return Reply.json(service.get(f"{ENDPOINTS}/{name}/deployments/{deployment}", "Online deployment"))


@ROUTES.add("PUT", f"{ENDPOINTS}/{{name}}/deployments/{{deployment}}")
def put_deployment(service: ResourceManager, call: Call, name: str, deployment: str) -> Reply:
    service.get(f"{ENDPOINTS}/{name}", "Online endpoint")
    body = service.body(call, f"{ENDPOINTS}/deployments")
    size = body["properties"].get("instanceType", "Standard_F4s_v2")
    if size.lower() not in SIZES:
        raise Refusal(400, "BadArgument", f"The instance type {size} is not supported.")
    _check_assets(service, body["properties"])
    scale = {"scaleSettings": {"scaleType": "Default"}}
    properties = {**scale, **body["properties"], "provisioningState": "Succeeded"}
    path = f"{ENDPOINTS}/{name}/deployments/{deployment}"
    return _put(service, path, f"{ENDPOINTS}/deployments", {**body, "properties": properties})


@ROUTES.add("DELETE", f"{ENDPOINTS}/{{name}}/deployments/{{deployment}}")
def delete_deployment(service: ResourceManager, call: Call, name: str, deployment: str) -> Reply:
    endpoint = service.get(f"{ENDPOINTS}/{name}", "Online endpoint")
    if endpoint["properties"]["traffic"].get(deployment):
        raise Refusal(400, "BadArgument", f"Deployment {deployment} still gets traffic.")
    if service.state.resources.pop(f"{ENDPOINTS}/{name}/deployments/{deployment}", None) is None:
        return Reply(204)
    return service.accepted(service.state.start("deployment"), OPERATION)


def score(service: ResourceManager, call: Call) -> Reply:
    """What an endpoint answers on its own host: what the test's function makes of the request."""
    name = call.host.partition(".")[0]
    endpoint = service.state.resources.get(f"{ENDPOINTS}/{name}")
    if endpoint is None or call.path != "/score" or call.method != "POST":
        raise Refusal(404, "NotFound", call.line)
    if call.headers.get("authorization") != f"Bearer {service.scoring_key}":
        raise Refusal(401, "Unauthorized", "The key of the endpoint is missing or wrong.")
    if (function := service.scoring.get(name)) is None or not any(endpoint["properties"]["traffic"].values()):
        raise Refusal(503, "NoDeployment", f"No deployment of {name} gets traffic.")
    return Reply.json(function(call.json))


def _put(service: ResourceManager, path: str, kind: str, document: Document) -> Reply:
    found, new = service.state.put(path, kind, document)
    operation = service.state.start(kind)
    return service.accepted(operation, OPERATION, status=201 if new else 200, document=found)


def _check_assets(service: ResourceManager, properties: Document) -> None:
    base = f"{service.state.place.workspace_path}/".lower()
    named = {"model": properties.get("model"), "environmentId": properties.get("environmentId")}
    for field, identity in named.items():
        path = (identity or "").removeprefix("azureml:")
        if path.lower().startswith(base) and path[len(base) :] not in service.state.resources:
            raise Refusal(400, "BadArgument", f"The {field} {identity} could not be found.")
