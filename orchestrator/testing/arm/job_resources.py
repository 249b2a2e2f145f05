"""Jobs: taken, shown, listed, cancelled."""

from __future__ import annotations

import re

from orchestrator.testing.arm.resource_manager import ResourceManager, Table, page
from orchestrator.testing.cloud_state import ARTIFACTS, DEFAULT, PROVIDER, Document
from orchestrator.testing.jobs.conductor import problems
from orchestrator.testing.jobs.job_table import ENDED, CloudJob
from orchestrator.testing.proxy.messages import Call, Refusal, Reply

ROUTES = Table()
CHANGEABLE = {"description", "displayName", "isArchived", "properties", "services", "tags"}
NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9\-_]{0,254}")


@ROUTES.add("GET", "jobs")
def list_jobs(service: ResourceManager, call: Call) -> Reply:
    """The trials of a sweep are not among them: the run history lists those."""
    view = call.query.get("listViewType", "ActiveOnly")
    archived = {"ActiveOnly": (False,), "ArchivedOnly": (True,), "All": (False, True)}[view]
    found = (
        job for job in service.jobs.all() if job.parent is None and job.properties.get("isArchived", False) in archived
    )
    return page(call, (shown(service, job) for job in found), service.page_size)


@ROUTES.add("GET", "jobs/{name}")
def get_job(service: ResourceManager, call: Call, name: str) -> Reply:
    return Reply.json(shown(service, find(service, name)))


@ROUTES.add("PUT", "jobs/{name}")
def put_job(service: ResourceManager, call: Call, name: str) -> Reply:
    properties: Document = service.body(call, "jobs")["properties"]
    if not NAME.fullmatch(name):
        raise Refusal(400, "UserError", f"The job name {name} is invalid.")
    if (before := service.jobs.get(name)) is not None:
        return Reply.json(shown(service, _changed(before, properties)))
    _check_references(service, properties)
    return Reply.json(shown(service, service.jobs.submit(name, properties)), 201)


@ROUTES.add("POST", "jobs/{name}/cancel")
def cancel_job(service: ResourceManager, call: Call, name: str) -> Reply:
    job = find(service, name)
    if job.status in ENDED:
        return Reply(200)
    service.jobs.cancel(job)
    return service.accepted(service.state.start("job"), "jobOperationsStatus")


@ROUTES.add("DELETE", "jobs/{name}")
def delete_job(service: ResourceManager, call: Call, name: str) -> Reply:
    raise Refusal(405, "MethodNotAllowed", "Jobs cannot be deleted; they can be archived.")


def find(service: ResourceManager, name: str) -> CloudJob:
    """A job.

    Raises:
        Refusal: there is none.
    """
    if (job := service.jobs.get(name)) is None:
        raise Refusal(404, "UserError", f"Job {name} was not found.")
    return job


def _changed(job: CloudJob, properties: Document) -> CloudJob:
    """A job that is there keeps what it was asked to do; names are for ever."""
    fixed = properties.keys() - CHANGEABLE
    different = sorted(field for field in fixed if job.properties.get(field) != properties[field])
    if different:
        said = f"A job with the name {job.name} already exists, with another {', '.join(different)}."
        raise Refusal(409, "Conflict", said)
    job.properties.update({field: properties[field] for field in properties.keys() & CHANGEABLE})
    return job


def _check_references(service: ResourceManager, properties: Document) -> None:
    """What the service looks up, and the client does not."""
    if properties["jobType"] == "Sweep" and (wrong := problems(properties)):
        raise Refusal(400, "UserError", " ".join(wrong))
    work = properties.get("trial", properties)
    base = f"{service.state.place.workspace_path}/".lower()
    for field in ("codeId", "environmentId"):
        named = work.get(field)
        path = named[len(base) :] if named and named.lower().startswith(base) else None
        if named is not None and path not in service.state.resources:
            raise Refusal(400, "UserError", f"The {field} {named} could not be found.")
    nodes = _resources(properties).get("instanceCount", 1)
    if nodes < 1:
        raise Refusal(400, "UserError", "InstanceCount must be at least 1.")
    _check_cluster(service, properties.get("computeId"), nodes)


def _resources(properties: Document) -> Document:
    found: Document = properties.get("trial", {}).get("resources") or properties.get("resources") or {}
    return found


def _check_cluster(service: ResourceManager, compute: str | None, nodes: int) -> None:
    if compute is None:
        return
    name = compute.rpartition("/")[2]
    cluster = service.state.resources.get(f"computes/{name}")
    if cluster is None:
        raise Refusal(400, "UserError", f"Unknown compute target '{name}'.")
    most = cluster["properties"]["properties"].get("scaleSettings", {}).get("maxNodeCount", 1)
    if nodes > most:
        said = f"Requested {nodes} nodes but AzureMLCompute cluster {name} only has {most} maximum nodes."
        raise Refusal(400, "UserError", said)


def shown(service: ResourceManager, job: CloudJob) -> Document:
    """A job as a GET shows it."""
    place = service.state.place
    outputs = {
        name: {**output, "uri": output.get("uri") or f"azureml://datastores/{DEFAULT}/paths/azureml/{job.name}/{name}/"}
        for name, output in (job.properties.get("outputs") or {}).items()
    }
    uri = f"azureml://datastores/{ARTIFACTS}/{job.folder}"
    outputs["default"] = {"jobOutputType": "uri_folder", "mode": "ReadWriteMount", "uri": uri}
    portal = f"https://ml.azure.com/runs/{job.name}?wsid={place.workspace_path}&tid={place.tenant}"
    tracking = f"azureml://{place.data_plane}/mlflow/v1.0{place.workspace_path}?"
    services = {
        "Studio": {"endpoint": portal, "jobServiceType": "Studio", "port": None, "status": None},
        "Tracking": {"endpoint": tracking, "jobServiceType": "Tracking", "port": None, "status": None},
    }
    properties = {**job.properties, "outputs": outputs, "services": services, "status": job.status}
    properties.setdefault("experimentName", "Default")
    properties.setdefault("displayName", job.name)
    return {
        "id": f"{place.workspace_path}/jobs/{job.name}",
        "name": job.name,
        "properties": properties,
        "systemData": {"createdAt": job.created, "createdBy": "double", "createdByType": "Application"},
        "type": f"{PROVIDER}/workspaces/jobs",
    }
