"""Jobs as ARM resources: submitted, shown, listed, cancelled."""

from __future__ import annotations

import re

from orchestrator.testing.arm.machines import check_serverless
from orchestrator.testing.arm.resource_manager import ResourceManager
from orchestrator.testing.cloud_state import ARTIFACTS, DEFAULT, PROVIDER, Document
from orchestrator.testing.jobs.job_table import ENDED, CloudJob
from orchestrator.testing.jobs.sweep_jobs import problems
from orchestrator.testing.proxy.messages import Call, Refusal, Reply, Routes

ROUTES = Routes()
CHANGEABLE = {"description", "displayName", "isArchived", "properties", "services", "tags"}
NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9\-_]{0,254}")
EXPERIMENT = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9\-_]{0,255}")
MAX_TAGS, MAX_TAG_KEY, MAX_TAG_VALUE = 50, 100, 1000  # of a run
EXPERIMENT_REFUSAL = (
    "Experiment name must be 1-256 characters, start with a letter or a number, and can only contain letters, "
    "numbers, underscores, and dashes."
)


@ROUTES.add("GET", "jobs")
def list_jobs(service: ResourceManager, call: Call) -> Reply:
    """List jobs without the trials of sweeps, which the run history lists."""
    view = call.query.get("listViewType", "ActiveOnly")
    archived = {"ActiveOnly": (False,), "ArchivedOnly": (True,), "All": (False, True)}[view]
    jobs = (
        job for job in service.jobs.all() if job.parent is None and job.properties.get("isArchived", False) in archived
    )
    return service.page(call, [job_document(service, job) for job in jobs])


@ROUTES.add("GET", "jobs/{name}")
def get_job(service: ResourceManager, call: Call, name: str) -> Reply:
    """Return a job."""
    return Reply.json(job_document(service, find(service, name)))


@ROUTES.add("PUT", "jobs/{name}")
def put_job(service: ResourceManager, call: Call, name: str) -> Reply:
    """Submit a job, or change an existing one; repeating the same PUT changes nothing.

    Raises:
        Refusal: the body is invalid, or a job of that name has another body.
    """
    properties: Document = service.body(call, "jobs")["properties"]
    if not NAME.fullmatch(name):
        raise Refusal(400, "UserError", f"The job name {name} is invalid.")
    if (before := service.jobs.get(name)) is not None:  # a client whose reply was lost may send the same job again
        _change(before, properties)
        return Reply.json(job_document(service, before))
    check_references(service, properties)
    return Reply.json(job_document(service, service.jobs.submit(name, properties)), 201)


@ROUTES.add("POST", "jobs/{name}/cancel")
def cancel_job(service: ResourceManager, call: Call, name: str) -> Reply:
    """Cancel a job, as a long-running operation; a finished one stays as it is."""
    job = find(service, name)
    if job.status in ENDED:
        return Reply(200)
    service.jobs.cancel(job)
    return service.accepted("job")


@ROUTES.add("DELETE", "jobs/{name}")
def delete_job(service: ResourceManager, call: Call, name: str) -> Reply:
    """Refuse to delete a job.

    Raises:
        Refusal: always.
    """
    raise Refusal(405, "MethodNotAllowed", "Jobs cannot be deleted; they can be archived.")


def find(service: ResourceManager, name: str) -> CloudJob:
    """Return a job.

    Raises:
        Refusal: it does not exist.
    """
    if (job := service.jobs.get(name)) is None:
        raise Refusal(404, "UserError", f"Job {name} was not found.")
    return job


def _change(job: CloudJob, properties: Document) -> None:
    """Change the changeable properties of an existing job; refuse to change others."""
    fixed = properties.keys() - CHANGEABLE
    if different := sorted(key for key in fixed if job.properties.get(key) != properties[key]):
        raise Refusal(
            409, "Conflict", f"A job with the name {job.name} already exists, with another {', '.join(different)}."
        )
    job.properties.update({key: properties[key] for key in properties.keys() & CHANGEABLE})


def check_references(service: ResourceManager, properties: Document) -> None:
    """Check what the service checks and the client does not, such as the search space, the code and the cluster."""
    if not EXPERIMENT.fullmatch(properties.get("experimentName") or "Default"):
        raise Refusal(400, "UserError", EXPERIMENT_REFUSAL)
    tags = properties.get("tags") or {}
    if len(tags) > MAX_TAGS:
        raise Refusal(400, "UserError", f"A run has at most {MAX_TAGS} tags.")
    if any(len(key) > MAX_TAG_KEY or len(value or "") > MAX_TAG_VALUE for key, value in tags.items()):
        raise Refusal(400, "UserError", f"A tag has at most {MAX_TAG_KEY} and at most {MAX_TAG_VALUE} characters.")
    if properties["jobType"] == "Sweep" and (wrong := problems(properties)):
        raise Refusal(400, "UserError", " ".join(wrong))
    work = properties.get("trial", properties)
    for key in ("codeId", "environmentId"):
        if (identity := work.get(key)) is not None and service.state.by_id(identity) is None:
            raise Refusal(400, "UserError", f"The {key} {identity} could not be found.")
    nodes = (work.get("resources") or properties.get("resources") or {}).get("instanceCount", 1)
    if nodes < 1:
        raise Refusal(400, "UserError", "InstanceCount must be at least 1.")
    if (compute := properties.get("computeId")) is None:
        check_serverless(service, work.get("resources") or properties.get("resources") or {})
        return
    name = compute.rpartition("/")[2]
    if (cluster := service.state.resources.get(f"computes/{name}")) is None:
        raise Refusal(400, "UserError", f"Unknown compute target '{name}'.")
    most = cluster["properties"]["properties"].get("scaleSettings", {}).get("maxNodeCount", 1)
    if nodes > most:
        raise Refusal(
            400,
            "UserError",
            f"Requested {nodes} nodes but AzureMLCompute cluster {name} only has {most} maximum nodes.",
        )


def job_document(service: ResourceManager, job: CloudJob) -> Document:
    """Return a job as a GET shows it."""
    place = service.state.place
    outputs = {
        name: {**output, "uri": output.get("uri") or f"azureml://datastores/{DEFAULT}/paths/azureml/{job.name}/{name}/"}
        for name, output in (job.properties.get("outputs") or {}).items()
    }
    uri = f"azureml://datastores/{ARTIFACTS}/{job.folder}"
    outputs["default"] = {"jobOutputType": "uri_folder", "mode": "ReadWriteMount", "uri": uri}
    endpoints = {
        "Studio": f"https://ml.azure.com/runs/{job.name}?wsid={place.workspace_path}&tid={place.tenant}",
        "Tracking": f"azureml://{place.data_plane}/mlflow/v1.0{place.workspace_path}?",
    }
    services = {
        kind: {"endpoint": endpoint, "jobServiceType": kind, "port": None, "status": None}
        for kind, endpoint in endpoints.items()
    }
    named = {"experimentName": "Default", "displayName": job.name}
    return {
        "id": f"{place.workspace_path}/jobs/{job.name}",
        "name": job.name,
        "properties": {**named, **job.properties, "outputs": outputs, "services": services, "status": job.status},
        "systemData": {"createdAt": job.created, "createdBy": "double", "createdByType": "Application"},
        "type": f"{PROVIDER}/workspaces/jobs",
    }
