"""MLflow's REST interface as the workspace offers it: each job is a run, whose id is the job's name."""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field

from orchestrator.testing.cloud_state import Document, State
from orchestrator.testing.jobs.job_table import CANCELED, COMPLETED, FAILED, QUEUED, STARTING, CloudJob, Jobs
from orchestrator.testing.proxy.messages import Call, Refusal, Reply
from orchestrator.testing.proxy.routing import Routes

PREFIX = re.compile(r"/mlflow/v[12]\.0(?P<workspace>/.*?)/api/2\.0/mlflow/(?P<rest>.*)")
STATUSES = {COMPLETED: "FINISHED", FAILED: "FAILED", CANCELED: "KILLED", QUEUED: "SCHEDULED", STARTING: "SCHEDULED"}
"""Of a job -> of its run; any other is RUNNING."""
CLAUSE = re.compile(r"""\s*(?P<kind>\w+)\.[`"]?(?P<key>[\w. /-]+?)[`"]?\s*(?P<sign>!?=)\s*'(?P<value>[^']*)'\s*""")
MOST_METRICS, MOST_PARAMS = 1000, 100
PAGE = 25_000


@dataclass
class MlflowRun:
    """One MLflow run."""

    run_id: str
    experiment: str
    name: str
    status: str = "RUNNING"
    started: int = field(default_factory=lambda: int(1000 * time.time()))
    ended: int | None = None
    tags: dict[str, str] = field(default_factory=dict)
    params: dict[str, str] = field(default_factory=dict)
    metrics: dict[str, list[Document]] = field(default_factory=dict)


class Tracking:
    """The workspace's MLflow server.

    Args:
        state: the workspace.
        jobs: each is a run, too.
        check: raises Refusal for a call without a good token.
    """

    def __init__(self, state: State, jobs: Jobs, check: Callable[[Call], None]) -> None:
        self.state = state
        self.jobs = jobs
        self._check = check
        self._runs: dict[str, MlflowRun] = {}
        self.experiments: dict[str, str] = {}

    def answer(self, call: Call) -> Reply:
        """One call.

        Raises:
            Refusal: as the server would refuse it.
        """
        self._check(call)
        found = PREFIX.fullmatch(call.path)
        if found is None or found["workspace"].lower() != self.state.place.workspace_path.lower():
            raise Refusal(404, "ENDPOINT_NOT_FOUND", f"{call.path} is of another workspace, or none of MLflow's")
        try:
            with self.state.lock:
                return ROUTES.answer(self, call, found["rest"])
        except Refusal as refusal:
            return Reply.json({"error_code": refusal.code, "message": refusal.message}, refusal.status)

    def run(self, run_id: str) -> MlflowRun:
        """A run.

        Raises:
            Refusal: there is none.
        """
        job = self.jobs.get(run_id)
        if job is not None and run_id not in self._runs:
            self._runs[run_id] = self._of_job(job)
        if (run := self._runs.get(run_id)) is None:
            raise Refusal(404, "RESOURCE_DOES_NOT_EXIST", f"Run with id {run_id} was not found.")
        if job is not None:
            run.status = STATUSES.get(job.status, "RUNNING")
            if job.ended and run.ended is None:
                run.ended = int(1000 * time.time())
        return run

    def runs(self) -> list[MlflowRun]:
        """All, the newest first."""
        names = dict.fromkeys([*self._runs, *(job.name for job in self.jobs.all())])
        return sorted((self.run(name) for name in names), key=lambda run: run.started, reverse=True)

    def reports(self, run_id: str, metric: str) -> list[float]:
        """Values of a metric in the order in which they were logged."""
        with self.state.lock:
            return [float(point["value"]) for point in self.run(run_id).metrics.get(metric, [])]

    def _of_job(self, job: CloudJob) -> MlflowRun:
        name = job.properties.get("displayName", job.name)
        nested = {"mlflow.parentRunId": job.parent} if job.parent else {}
        own = {"mlflow.rootRunId": job.parent or job.name, "mlflow.runName": name}
        tags = {**own, **nested, **(job.properties.get("tags") or {})}
        return MlflowRun(job.name, self.experiment(job.properties.get("experimentName", "Default")), name, tags=tags)

    def experiment(self, name: str) -> str:
        """Id of an experiment; made if missing."""
        return self.experiments.setdefault(name, str(uuid.uuid5(uuid.NAMESPACE_URL, name)))

    def named(self, identity: str) -> Document:
        """An experiment.

        Raises:
            Refusal: there is none.
        """
        for name, known in self.experiments.items():
            if known == identity:
                return {"experiment_id": known, "name": name, "lifecycle_stage": "active", "artifact_location": ""}
        raise Refusal(404, "RESOURCE_DOES_NOT_EXIST", f"Could not find experiment with ID {identity}")

    def create(self, document: Document) -> MlflowRun:
        """A run that is no job."""
        name = document.get("run_name") or "run"
        run = MlflowRun(str(uuid.uuid4()), document["experiment_id"], name, tags=_pairs(document.get("tags")))
        self._runs[run.run_id] = run
        return run

    def shown(self, run: MlflowRun) -> Document:
        """A run as MLflow's clients read it."""
        place = self.state.place
        artifacts = f"azureml://{place.data_plane}/mlflow/v2.0{place.workspace_path}/experiments/{run.experiment}"
        info: Document = {
            "artifact_uri": f"{artifacts}/runs/{run.run_id}/artifacts",
            "experiment_id": run.experiment,
            "lifecycle_stage": "active",
            "run_id": run.run_id,
            "run_name": run.name,
            "run_uuid": run.run_id,
            "start_time": run.started,
            "status": run.status,
            "user_id": "double",
        }
        if run.ended is not None:
            info["end_time"] = run.ended
        data = {
            "metrics": [{"key": key, **values[-1]} for key, values in run.metrics.items()],
            "params": [{"key": key, "value": value} for key, value in run.params.items()],
            "tags": [{"key": key, "value": value} for key, value in run.tags.items()],
        }
        return {"info": info, "data": data}


ROUTES = Routes[Tracking]()


@ROUTES.add("GET", "experiments/get-by-name")
def get_experiment_by_name(service: Tracking, call: Call) -> Reply:
    name = call.query["experiment_name"]
    service.runs()  # their experiments are there from the first job on
    if name not in service.experiments:
        raise Refusal(404, "RESOURCE_DOES_NOT_EXIST", f"Could not find experiment with name '{name}'")
    return Reply.json({"experiment": service.named(service.experiment(name))})


@ROUTES.add("GET", "experiments/get")
def get_experiment(service: Tracking, call: Call) -> Reply:
    service.runs()
    return Reply.json({"experiment": service.named(call.query["experiment_id"])})


@ROUTES.add("POST", "experiments/create")
def create_experiment(service: Tracking, call: Call) -> Reply:
    name = call.json["name"]
    if name in service.experiments:
        raise Refusal(400, "RESOURCE_ALREADY_EXISTS", f"Experiment '{name}' already exists.")
    return Reply.json({"experiment_id": service.experiment(name)})


@ROUTES.add("POST", "experiments/search")
def search_experiments(service: Tracking, call: Call) -> Reply:
    service.runs()
    return Reply.json({"experiments": [service.named(known) for known in service.experiments.values()]})


@ROUTES.add("POST", "runs/create")
def create_run(service: Tracking, call: Call) -> Reply:
    service.named(call.json["experiment_id"])
    return Reply.json({"run": service.shown(service.create(call.json))})


@ROUTES.add("GET", "runs/get")
def get_run(service: Tracking, call: Call) -> Reply:
    wanted = call.query.get("run_id") or call.query["run_uuid"]
    return Reply.json({"run": service.shown(service.run(wanted))})


@ROUTES.add("POST", "runs/update")
def update_run(service: Tracking, call: Call) -> Reply:
    run = service.run(call.json["run_id"])
    run.status = call.json.get("status", run.status)
    run.name = call.json.get("run_name") or run.name
    run.ended = int(call.json["end_time"]) if "end_time" in call.json else run.ended
    return Reply.json({"run_info": service.shown(run)["info"]})


@ROUTES.add("POST", "runs/log-batch")
def log_batch(service: Tracking, call: Call) -> Reply:
    run, batch = service.run(call.json["run_id"]), call.json
    metrics, params = batch.get("metrics", []), batch.get("params", [])
    if len(metrics) > MOST_METRICS or len(params) > MOST_PARAMS:
        said = f"at most {MOST_METRICS} metrics and {MOST_PARAMS} params in one request"
        raise Refusal(400, "INVALID_PARAMETER_VALUE", said)
    for metric in metrics:
        _add_metric(run, metric)
    _add_params(run, _pairs(params))
    run.tags.update(_pairs(batch.get("tags")))
    return Reply.json({})


@ROUTES.add("POST", "runs/log-metric")
def log_metric(service: Tracking, call: Call) -> Reply:
    _add_metric(service.run(call.json["run_id"]), call.json)
    return Reply.json({})


@ROUTES.add("POST", "runs/log-parameter")
def log_parameter(service: Tracking, call: Call) -> Reply:
    _add_params(service.run(call.json["run_id"]), _pairs([call.json]))
    return Reply.json({})


@ROUTES.add("POST", "runs/set-tag")
def set_tag(service: Tracking, call: Call) -> Reply:
    service.run(call.json["run_id"]).tags.update(_pairs([call.json]))
    return Reply.json({})


@ROUTES.add("GET", "metrics/get-history")
def get_history(service: Tracking, call: Call) -> Reply:
    key = call.query["metric_key"]
    values = service.run(call.query.get("run_id") or call.query["run_uuid"]).metrics.get(key, [])
    first = int(call.query.get("page_token") or 0)
    last = first + int(call.query.get("max_results") or PAGE)
    answer: Document = {"metrics": [{"key": key, **value} for value in values[first:last]]}
    if last < len(values):
        answer["next_page_token"] = str(last)
    return Reply.json(answer)


@ROUTES.add("POST", "runs/search")
def search_runs(service: Tracking, call: Call) -> Reply:
    experiments = call.json.get("experiment_ids", [])
    clauses = _clauses(call.json.get("filter", ""))
    found = [run for run in service.runs() if run.experiment in experiments and all(fits(run) for fits in clauses)]
    first = int(call.json.get("page_token") or 0)
    last = first + int(call.json.get("max_results") or 1000)
    answer: Document = {"runs": [service.shown(run) for run in found[first:last]]}
    if last < len(found):
        answer["next_page_token"] = str(last)
    return Reply.json(answer)


def _clauses(text: str) -> list[Callable[[MlflowRun], bool]]:
    """What a filter asks: equalities joined by `and`."""
    found = []
    for part in re.split(r"\s+and\s+", text, flags=re.IGNORECASE) if text.strip() else []:
        if (clause := CLAUSE.fullmatch(part)) is None:
            raise Refusal(400, "INVALID_PARAMETER_VALUE", f"the double reads no such filter: {part}")
        found.append(_fits(**clause.groupdict()))
    return found


def _fits(kind: str, key: str, sign: str, value: str) -> Callable[[MlflowRun], bool]:
    def fits(run: MlflowRun) -> bool:
        attributes = {"run_id": run.run_id, "run_name": run.name, "status": run.status}
        table = {"tags": run.tags, "tag": run.tags, "params": run.params, "attributes": attributes}.get(kind, {})
        return (table.get(key) == value) == (sign == "=")

    return fits


def _pairs(entries: list[Document] | None) -> dict[str, str]:
    return {entry["key"]: entry["value"] for entry in entries or []}


def _add_metric(run: MlflowRun, metric: Document) -> None:
    value = {"value": metric["value"], "timestamp": int(metric["timestamp"]), "step": int(metric.get("step", 0))}
    run.metrics.setdefault(metric["key"], []).append(value)


def _add_params(run: MlflowRun, params: dict[str, str]) -> None:
    for key, value in params.items():
        if run.params.setdefault(key, value) != value:
            raise Refusal(400, "INVALID_PARAMETER_VALUE", f"Changing param values is not allowed: {key}")
