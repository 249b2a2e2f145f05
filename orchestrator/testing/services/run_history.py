"""Run history: what a run did, with the URLs of its logs; and the service that resolves data assets."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote

from orchestrator.testing.arm.job_resources import find, job_document
from orchestrator.testing.arm.resource_manager import ResourceManager
from orchestrator.testing.cloud_state import ARTIFACTS, Document
from orchestrator.testing.jobs.job_table import CloudJob
from orchestrator.testing.proxy.messages import Call, Refusal, Reply, Routes
from orchestrator.testing.services.mlflow_service import Tracking

ROUTES = Routes()
LOG_FOLDERS = ("user_logs", "system_logs")
LOG_URL_SECONDS = 3600
SERVICES = ("api", "history", "mlflow", "experimentation", "catalog", "modelmanagement")
CHANGEABLE = {"displayName": "displayName", "description": "description", "tags": "tags", "hidden": "isArchived"}
"""Field of a run -> property of its job."""


@dataclass
class RunHistory:
    """Answers on the data plane's host.

    Args:
        manager: knows the jobs.
        tracking: MLflow, on the same host.
    """

    manager: ResourceManager
    tracking: Tracking

    def answer(self, call: Call) -> Reply:
        """Answer one call.

        Raises:
            Refusal: the service would refuse it.
        """
        place = self.manager.state.place
        if call.path == "/discovery":
            return Reply.json(dict.fromkeys(SERVICES, f"https://{place.data_plane}"))
        if call.path.startswith("/mlflow/"):
            return self.tracking.answer(call)
        self.manager.login.check(call)
        head, separator, tail = call.path.partition(place.workspace_path)
        if not separator:
            raise Refusal(404, "ResourceNotFound", f"{call.path} is not a path of this workspace")
        with self.manager.state.lock:
            return ROUTES.answer(self, call, f"{head.strip('/')}/{tail.strip('/')}")

    def logs(self, job: CloudJob) -> dict[str, str]:
        """Return path below the run's artifacts -> URL that opens it."""
        storage, place = self.manager.storage, self.manager.state.place
        container, urls = storage.datastores[ARTIFACTS], {}
        for folder in LOG_FOLDERS:
            for blob in storage.blobs(container, f"{job.folder}/{folder}/"):
                sas = storage.sign(container, blob.name, permissions="r", seconds=LOG_URL_SECONDS)
                urls[blob.name.removeprefix(f"{job.folder}/")] = (
                    f"https://{place.blob_host}/{container}/{quote(blob.name)}?{sas}"
                )
        return urls


def _run(job: CloudJob) -> Document:
    """Return a run as the list and a GET show it."""
    properties = job.properties
    return {
        "createdUtc": job.created,
        "dataContainerId": f"dcid.{job.name}",
        "displayName": properties.get("displayName", job.name),
        "endTimeUtc": job.ended,
        "experimentId": properties.get("experimentName", "Default"),
        "properties": properties.get("properties") or {},
        "parentRunId": job.parent,
        "rootRunId": job.parent or job.name,
        "runId": job.name,
        "runType": "azureml.commandjob" if properties["jobType"] == "Command" else "azureml.sweepjob",
        "startTimeUtc": job.started,
        "status": job.status,
        "tags": properties.get("tags") or {},
        "target": job.cluster,
        **({"error": {"error": job.error}} if job.error is not None else {}),
    }


@ROUTES.add("GET", "history/v1.0/runs/{name}")
def get_run(service: RunHistory, call: Call, name: str) -> Reply:
    """Return a run."""
    return Reply.json(_run(find(service.manager, name)))


@ROUTES.add("GET", "history/v1.0/runs/{name}/details")
def get_details(service: RunHistory, call: Call, name: str) -> Reply:
    """Return a run with the addresses of its logs."""
    job = find(service.manager, name)
    return Reply.json({**_run(job), "logFiles": service.logs(job), "inputDatasets": [], "outputDatasets": []})


@ROUTES.add("GET", "history/v1.0/runs/{name}/children")
def get_children(service: RunHistory, call: Call, name: str) -> Reply:
    """List the trials of a sweep, the oldest first."""
    find(service.manager, name)
    children = [_run(job) for job in reversed(service.manager.jobs.all()) if job.parent == name]
    size = int(call.query.get("$top") or 0) or service.manager.page_size
    page, following = call.page(children, size, "continuationtoken")
    return Reply.json({"value": page, **({"nextLink": following} if following else {})})


@ROUTES.add("PATCH", "history/v1.0/experiments/{experiment}/runs/{name}")
def patch_run(service: RunHistory, call: Call, experiment: str, name: str) -> Reply:
    """Change name, description or tags of a run, or archive it: azure-ai-ml 1.35 sends this in place of a PUT."""
    job, wanted = find(service.manager, name), call.json
    job.properties |= {ours: wanted[key] for key, ours in CHANGEABLE.items() if wanted.get(key) is not None}
    return Reply.json(_run(job))


@ROUTES.add("POST", "history/v1.0/rundata")
def get_run_data(service: RunHistory, call: Call) -> Reply:
    """Return a run with its outputs, for `jobs.download`."""
    job = find(service.manager, call.json["runId"])
    return Reply.json(
        {
            "runMetadata": {
                **_run(job),
                "outputs": {
                    name: {"assetId": f"azureml://job/{job.name}/{name}", "type": "uri_folder"}
                    for name in job_document(service.manager, job)["properties"]["outputs"]
                    if name != "default"
                },
            }
        }
    )


@ROUTES.add("POST", "data/v1.0/dataversion/batchGetResolvedUris")
def resolve_uris(service: RunHistory, call: Call) -> Reply:
    """Resolve outputs of jobs (`azureml://job/NAME/OUTPUT`) to long URIs of datastore paths."""
    place, values = service.manager.state.place, {}
    scope = f"subscriptions/{place.subscription}/resourcegroups/{place.resource_group}/workspaces/{place.workspace}"
    for asset in call.json["values"]:
        name, _, output = asset.removeprefix("azureml://job/").partition("/")
        uri = job_document(service.manager, find(service.manager, name))["properties"]["outputs"][output]["uri"]
        uri = uri.replace("azureml://datastores/", f"azureml://{scope}/datastores/", 1)
        values[asset] = {"uri": uri, "type": "uri_folder"}
    return Reply.json({"values": values})
