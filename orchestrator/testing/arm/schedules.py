"""Schedules that start a job again and again: stored, listed, deleted; `AzureDouble.trigger` starts one job."""

from __future__ import annotations

from orchestrator.testing.arm.job_resources import check_references
from orchestrator.testing.arm.resource_manager import ResourceManager
from orchestrator.testing.cloud_state import Document
from orchestrator.testing.jobs.job_table import CloudJob
from orchestrator.testing.proxy.messages import Call, Refusal, Reply, Routes

ROUTES = Routes()
JOB_ACTION = "CreateJob"


@ROUTES.add("GET", "schedules")
def list_schedules(service: ResourceManager, call: Call) -> Reply:
    """List the schedules; without listViewType only the enabled ones."""
    view = call.query.get("listViewType", "EnabledOnly")
    wanted = {"EnabledOnly": (True,), "DisabledOnly": (False,), "All": (False, True)}[view]
    found = service.state.below("schedules")
    return service.page(call, [one for one in found if one["properties"].get("isEnabled", True) in wanted])


@ROUTES.add("GET", "schedules/{name}")
def get_schedule(service: ResourceManager, call: Call, name: str) -> Reply:
    """Return a schedule."""
    return Reply.json(service.get(f"schedules/{name}"))


@ROUTES.add("PUT", "schedules/{name}")
def put_schedule(service: ResourceManager, call: Call, name: str) -> Reply:
    """Create or replace a schedule of command jobs, as a long-running operation.

    Raises:
        Refusal: the body is invalid, or the job names something that the workspace does not have.
    """
    properties: Document = service.body(call, "schedules")["properties"]
    action = properties["action"]
    if action["actionType"] != JOB_ACTION:
        raise Refusal(400, "UserError", f"the double runs no schedule of action {action['actionType']}")
    check_references(service, action["jobDefinition"])
    stored = {"isEnabled": True, **properties, "provisioningState": "Succeeded"}
    return service.put(f"schedules/{name}", "schedules", {"properties": stored})


@ROUTES.add("DELETE", "schedules/{name}")
def delete_schedule(service: ResourceManager, call: Call, name: str) -> Reply:
    """Delete a schedule, as a long-running operation; jobs that it has started continue.

    A second DELETE of the same schedule is answered with 204, as the specification states.

    Raises:
        Refusal: it is enabled ("A schedule must be disabled to be deleted", Microsoft's documentation of schedules).
    """
    found = service.state.resources.get(f"schedules/{name}")
    if found is not None and found["properties"]["isEnabled"]:
        raise Refusal(400, "UserError", f"Schedule {name} must be disabled before it can be deleted.")
    if service.state.resources.pop(f"schedules/{name}", None) is None:
        return Reply(204)
    return service.accepted("mfe")


def start_job(service: ResourceManager, name: str) -> CloudJob:
    """Start a job of a schedule, as Azure does when its time has come.

    Raises:
        KeyError: no such schedule, or it is disabled.
    """
    with service.state.lock:
        schedule = service.state.resources.get(f"schedules/{name}")
        if schedule is None or not schedule["properties"]["isEnabled"]:
            raise KeyError(f"no enabled schedule {name}")
        number = sum(job.schedule == name for job in service.jobs.all())
    definition = schedule["properties"]["action"]["jobDefinition"]
    return service.jobs.submit(f"{name}-{number}", definition, schedule=name)
