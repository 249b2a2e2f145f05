"""Run history: what a run did, with addresses of its logs; and the service that resolves data assets."""

from __future__ import annotations

from orchestrator.testing.arm.job_resources import shown
from orchestrator.testing.arm.resource_manager import ResourceManager
from orchestrator.testing.blobs.blob_service import url
from orchestrator.testing.cloud_state import ARTIFACTS, Document
from orchestrator.testing.jobs.job_table import CloudJob
from orchestrator.testing.proxy.messages import Call, Refusal, Reply
from orchestrator.testing.proxy.routing import Routes
from orchestrator.testing.services.mlflow_service import Tracking

LOG_FOLDERS = ("user_logs", "system_logs")
HOUR = 3600


class RunHistory:
    """Answers on the data plane's host.

    Args:
        manager: knows the jobs.
        tracking: MLflow, on the same host.
    """

    def __init__(self, manager: ResourceManager, tracking: Tracking) -> None:
        self.manager = manager
        self.tracking = tracking
        self.state = manager.state

    def answer(self, call: Call) -> Reply:
        """One call.

        Raises:
            Refusal: as the service would refuse it.
        """
        if call.path == "/discovery":
            base = f"https://{self.state.place.data_plane}"
            services = ("api", "history", "mlflow", "experimentation", "catalog", "modelmanagement")
            return Reply.json(dict.fromkeys(services, base))
        if call.path.startswith("/mlflow/"):
            return self.tracking.answer(call)
        self.manager.login.check(call)
        head, found, tail = call.path.partition(self.state.place.workspace_path)
        if not found:
            raise Refusal(404, "ResourceNotFound", f"{call.path} is of another workspace")
        with self.state.lock:
            return ROUTES.answer(self, call, f"{head.strip('/')}/{tail.strip('/')}")

    def job(self, name: str) -> CloudJob:
        """A job.

        Raises:
            Refusal: there is none.
        """
        if (job := self.manager.jobs.get(name)) is None:
            raise Refusal(404, "UserError", f"Run {name} was not found.")
        return job

    def logs(self, job: CloudJob) -> dict[str, str]:
        """Path below the run's artifacts -> address that opens it."""
        storage = self.manager.storage
        container = storage.datastores[ARTIFACTS]
        found = {}
        for folder in LOG_FOLDERS:
            for blob in storage.blobs(container, f"{job.folder}/{folder}/"):
                sas = storage.sign(container, blob.name, permissions="r", seconds=HOUR)
                found[blob.name.removeprefix(f"{job.folder}/")] = url(self.state.place, container, blob.name, sas)
        return found

    def whole(self, uri: str) -> str:
        """The long form of a datastore path."""
        place = self.state.place
        scope = f"subscriptions/{place.subscription}/resourcegroups/{place.resource_group}/workspaces/{place.workspace}"
        return uri.replace("azureml://", f"azureml://{scope}/", 1) if uri.startswith("azureml://datastores/") else uri

    def run(self, job: CloudJob) -> Document:
        """A run as the list and a GET show it."""
        properties = job.properties
        found: Document = {
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
        }
        if job.error is not None:
            found["error"] = {"error": job.error}
        return found


ROUTES = Routes[RunHistory]()


@ROUTES.add("GET", "history/v1.0/runs/{name}")
def get_run(service: RunHistory, call: Call, name: str) -> Reply:
    return Reply.json(service.run(service.job(name)))


@ROUTES.add("GET", "history/v1.0/runs/{name}/details")
def get_details(service: RunHistory, call: Call, name: str) -> Reply:
    job = service.job(name)
    run = {**service.run(job), "logFiles": service.logs(job), "inputDatasets": [], "outputDatasets": []}
    return Reply.json(run)


@ROUTES.add("GET", "history/v1.0/runs/{name}/children")
def get_children(service: RunHistory, call: Call, name: str) -> Reply:
    """The trials of a sweep, the first first; a page holds as many as one of ARM's lists."""
    service.job(name)
    found = [service.run(job) for job in reversed(service.manager.jobs.all()) if job.parent == name]
    first = int(call.query.get("continuationtoken") or 0)
    last = first + (int(call.query.get("$top") or 0) or service.manager.page_size)
    answer: Document = {"value": found[first:last]}
    if last < len(found):
        query = "&".join(f"{key}={value}" for key, value in {**call.query, "continuationtoken": str(last)}.items())
        answer["nextLink"] = f"https://{call.host}{call.path}?{query}"
    return Reply.json(answer)


@ROUTES.add("PATCH", "history/v1.0/experiments/{experiment}/runs/{name}")
def patch_run(service: RunHistory, call: Call, experiment: str, name: str) -> Reply:
    job = service.job(name)
    wanted = call.json
    renamed = {"displayName": "displayName", "description": "description", "tags": "tags", "hidden": "isArchived"}
    for field, ours in renamed.items():
        if wanted.get(field) is not None:
            job.properties[ours] = wanted[field]
    return Reply.json(service.run(job))


@ROUTES.add("POST", "history/v1.0/rundata")
def get_run_data(service: RunHistory, call: Call) -> Reply:
    job = service.job(call.json["runId"])
    outputs = shown(service.manager, job)["properties"]["outputs"]
    named = {
        name: {"assetId": f"azureml://job/{job.name}/{name}", "type": "uri_folder"}
        for name in outputs
        if name != "default"
    }
    return Reply.json({"runMetadata": {**service.run(job), "outputs": named}})


@ROUTES.add("POST", "data/v1.0/dataversion/batchGetResolvedUris")
def resolve_uris(service: RunHistory, call: Call) -> Reply:
    values = {}
    for asset in call.json["values"]:
        _, _, rest = asset.partition("azureml://job/")
        name, _, output = rest.partition("/")
        uri = shown(service.manager, service.job(name))["properties"]["outputs"][output]["uri"]
        values[asset] = {"uri": service.whole(uri), "type": "uri_folder"}
    return Reply.json({"values": values})
