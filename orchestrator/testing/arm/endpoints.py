"""Managed online endpoints, their deployments and keys; the scoring itself is a function of the test."""

from __future__ import annotations

from orchestrator.testing.arm.machines import SIZES
from orchestrator.testing.arm.resource_manager import ResourceManager
from orchestrator.testing.proxy.messages import Call, Refusal, Reply, Routes

ROUTES = Routes()
ENDPOINTS = "onlineEndpoints"


@ROUTES.add("GET", ENDPOINTS)
def list_endpoints(service: ResourceManager, call: Call) -> Reply:
    """List the endpoints."""
    return service.page(call, service.state.below(ENDPOINTS))


@ROUTES.add("PUT", f"{ENDPOINTS}/{{name}}")
def put_endpoint(service: ResourceManager, call: Call, name: str) -> Reply:
    """Create or change an endpoint.

    Raises:
        Refusal: the traffic does not sum up to 0 or 100, or goes to an unknown deployment.
    """
    body = service.body(call, ENDPOINTS)
    traffic = body["properties"].get("traffic") or {}
    if sum(traffic.values()) not in (0, 100):
        raise Refusal(400, "BadArgument", f"The traffic must sum up to 0 or 100, not {sum(traffic.values())}.")
    known = {deployment["name"] for deployment in service.state.below(f"{ENDPOINTS}/{name}/deployments")}
    if missing := sorted(traffic.keys() - known):
        raise Refusal(400, "BadArgument", f"Traffic is sent to unknown deployments: {', '.join(missing)}.")
    host = f"{name}.{service.state.place.scoring_domain}"
    return service.put(
        f"{ENDPOINTS}/{name}",
        ENDPOINTS,
        {
            **body,
            "properties": {
                "publicNetworkAccess": "Enabled",
                "traffic": {},
                "mirrorTraffic": {},
                **body["properties"],
                "provisioningState": "Succeeded",
                "scoringUri": f"https://{host}/score",
                "swaggerUri": f"https://{host}/swagger.json",
            },
        },
    )


@ROUTES.add("DELETE", f"{ENDPOINTS}/{{name}}")
def delete_endpoint(service: ResourceManager, call: Call, name: str) -> Reply:
    """Delete an endpoint with its deployments."""
    if f"{ENDPOINTS}/{name}" not in service.state.resources:
        return Reply(204)
    for path in [path for path in service.state.resources if f"{path}/".startswith(f"{ENDPOINTS}/{name}/")]:
        del service.state.resources[path]
    return service.accepted("mfe")


@ROUTES.add("POST", f"{ENDPOINTS}/{{name}}/listKeys")
def list_keys(service: ResourceManager, call: Call, name: str) -> Reply:
    """Return the keys of an endpoint."""
    service.get(f"{ENDPOINTS}/{name}")
    return Reply.json({"primaryKey": service.scoring_key, "secondaryKey": service.scoring_key})


@ROUTES.add("GET", f"{ENDPOINTS}/{{name}}/deployments")
def list_deployments(service: ResourceManager, call: Call, name: str) -> Reply:
    """List the deployments of an endpoint."""
    service.get(f"{ENDPOINTS}/{name}")
    return service.page(call, service.state.below(f"{ENDPOINTS}/{name}/deployments"))


@ROUTES.add("PUT", f"{ENDPOINTS}/{{name}}/deployments/{{deployment}}")
def put_deployment(service: ResourceManager, call: Call, name: str, deployment: str) -> Reply:
    """Create or change a deployment.

    Raises:
        Refusal: its machine size, model or environment does not exist, or it has no environment
            and the model is not one of MLflow.
    """
    service.get(f"{ENDPOINTS}/{name}")
    body = service.body(call, f"{ENDPOINTS}/deployments")
    wanted = body["properties"]
    size = wanted.get("instanceType", "Standard_F4s_v2")
    if size.lower() not in SIZES:
        raise Refusal(400, "BadArgument", f"The instance type {size} is not supported.")
    base = f"azureml:{service.state.place.workspace_path}/".lower()
    for key in ("model", "environmentId"):
        identity = wanted.get(key) or ""
        ours = f"azureml:{identity.removeprefix('azureml:')}".lower().startswith(base)
        if ours and service.state.by_id(identity) is None:
            raise Refusal(400, "BadArgument", f"The {key} {identity} could not be found.")
    model = service.state.by_id(wanted.get("model") or "") or {}
    if model and not wanted.get("environmentId") and model["properties"].get("modelType") != "mlflow_model":
        raise Refusal(400, "BadArgument", "Only an MLflow model is deployed without an environment.")
    error = service.state.failing_deployments.get(deployment)
    state = "Failed" if error else "Succeeded"
    properties = {"scaleSettings": {"scaleType": "Default"}, **wanted, "provisioningState": state}
    path = f"{ENDPOINTS}/{name}/deployments/{deployment}"
    return service.put(path, f"{ENDPOINTS}/deployments", {**body, "properties": properties}, error)


@ROUTES.add("DELETE", f"{ENDPOINTS}/{{name}}/deployments/{{deployment}}")
def delete_deployment(service: ResourceManager, call: Call, name: str, deployment: str) -> Reply:
    """Delete a deployment.

    Raises:
        Refusal: it still gets traffic.
    """
    endpoint = service.get(f"{ENDPOINTS}/{name}")
    if endpoint["properties"]["traffic"].get(deployment):
        raise Refusal(400, "BadArgument", f"Deployment {deployment} still gets traffic.")
    if service.state.resources.pop(f"{ENDPOINTS}/{name}/deployments/{deployment}", None) is None:
        return Reply(204)
    return service.accepted("mfe")


def score(service: ResourceManager, call: Call) -> Reply:
    """Answer a scoring request on an endpoint's own host, by the test's function.

    Raises:
        Refusal: unknown endpoint, wrong key, or no deployment gets traffic.
    """
    name = call.host.partition(".")[0]
    endpoint = service.state.resources.get(f"{ENDPOINTS}/{name}")
    if endpoint is None or call.path != "/score" or call.method != "POST":
        raise Refusal(404, "NotFound", call.line)
    if call.headers.get("authorization") != f"Bearer {service.scoring_key}":
        raise Refusal(401, "Unauthorized", "The key of the endpoint is missing or wrong.")
    if (function := service.scoring.get(name)) is None or not any(endpoint["properties"]["traffic"].values()):
        raise Refusal(503, "NoDeployment", f"No deployment of {name} gets traffic.")
    return Reply.json(function(call.json))
