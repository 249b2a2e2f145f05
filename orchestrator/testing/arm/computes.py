"""Clusters."""

from __future__ import annotations

from typing import Any

from orchestrator.testing.arm import quotas
from orchestrator.testing.arm.resource_manager import ResourceManager, Table, page
from orchestrator.testing.cloud_state import Document, now
from orchestrator.testing.proxy.messages import Call, Refusal, Reply

ROUTES = Table()
OPERATION = "computeOperationsStatus"


@ROUTES.add("GET", "computes")
def list_computes(service: ResourceManager, call: Call) -> Reply:
    return page(call, (shown(service, found) for found in service.state.below("computes")), service.page_size)


@ROUTES.add("GET", "computes/{name}")
def get_compute(service: ResourceManager, call: Call, name: str) -> Reply:
    return Reply.json(shown(service, service.get(f"computes/{name}", "Compute")))


@ROUTES.add("PUT", "computes/{name}")
def put_compute(service: ResourceManager, call: Call, name: str) -> Reply:
    body = service.body(call, "computes")
    wanted = body["properties"]["properties"]
    before = service.state.resources.get(f"computes/{name}")
    _check_change(before, wanted)
    quotas.check(service, name, wanted)
    error = service.state.failing_computes.get(name)
    state = "Failed" if error else "Succeeded"
    properties = {**body["properties"], "provisioningState": state, "createdOn": now(), "modifiedOn": now()}
    if error:
        properties["provisioningErrors"] = [{"error": error}]
    document = {**body, "properties": properties, "location": body.get("location", service.state.place.region)}
    found, new = service.state.put(f"computes/{name}", "computes", document)
    operation = service.state.start("compute", error=error)
    answer = shown(service, found, "Creating")
    return service.accepted(operation, OPERATION, status=201 if new else 200, document=answer)


@ROUTES.add("DELETE", "computes/{name}")
def delete_compute(service: ResourceManager, call: Call, name: str) -> Reply:
    if f"computes/{name}" not in service.state.resources:
        return Reply(204)
    if call.query.get("underlyingResourceAction") not in ("Delete", "Detach"):
        raise Refusal(400, "UserError", "underlyingResourceAction is required: Delete or Detach")
    del service.state.resources[f"computes/{name}"]
    return service.accepted(service.state.start("compute"), OPERATION)


def _check_change(before: Document | None, wanted: Document) -> None:
    """A cluster's size and tier are for ever."""
    if before is None:
        return
    had = before["properties"]["properties"]
    for field in ("vmSize", "vmPriority"):
        if had.get(field, "Dedicated").lower() != wanted.get(field, "Dedicated").lower():
            said = f"Cannot change {field} of a compute from {had.get(field)} to {wanted.get(field)}."
            raise Refusal(400, "BadRequest", said)


def shown(service: ResourceManager, document: Document, state: str | None = None) -> Document:
    """A cluster as a GET shows it: with its nodes."""
    properties = document["properties"]
    size: dict[str, Any] = properties["properties"]
    name = document["name"]
    busy = service.jobs.nodes_of(name)
    least = size.get("scaleSettings", {}).get("minNodeCount", 0)
    nodes = 0 if name in service.state.no_capacity else max(busy, least)
    counts = {"idleNodeCount": max(0, nodes - busy), "runningNodeCount": min(busy, nodes), "leavingNodeCount": 0}
    counts |= {"preemptedNodeCount": 0, "preparingNodeCount": 0, "unusableNodeCount": 0}
    live: Document = {
        **size,
        "allocationState": "Steady",
        "allocationStateTransitionTime": properties["modifiedOn"],
        "currentNodeCount": nodes,
        "targetNodeCount": max(busy, least),
        "nodeStateCounts": counts,
    }
    if name in service.state.no_capacity:
        said = "Allocation failed: there is not enough capacity of this size in the region."
        live["errors"] = [{"error": {"code": "AllocationFailed", "message": said}}]
    shown_properties = {**properties, "properties": live}
    if state is not None:
        shown_properties["provisioningState"] = state
    return {**document, "properties": shown_properties}
