"""MLflow's REST API as the workspace offers it: each job is a run, whose id is the job's name.

MLflow's own stores cannot serve it: they generate the ids of runs, and loading its server takes seconds, while the
double starts in 0.1 s.
"""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field

from orchestrator.testing.cloud_state import Document, State
from orchestrator.testing.jobs.job_table import CANCELED, COMPLETED, FAILED, QUEUED, STARTING, CloudJob, Jobs
from orchestrator.testing.proxy.messages import Call, Refusal, Reply, Routes, page, parse_filter

ROUTES = Routes()
PREFIX = re.compile(r"/mlflow/v[12]\.0(?P<workspace>/.*?)/api/2\.0/mlflow/(?P<rest>.*)")
STATUSES = {COMPLETED: "FINISHED", FAILED: "FAILED", CANCELED: "KILLED", QUEUED: "SCHEDULED", STARTING: "SCHEDULED"}
"""Status of a job -> status of its run; any other is RUNNING."""
CLAUSE = re.compile(r"""\s*(?P<kind>\w+)\.[`"]?(?P<key>[\w. /-]+?)[`"]?\s*(?P<sign>!?=)\s*'(?P<value>[^']*)'\s*""")
MAX_METRICS, MAX_PARAMS = 1000, 100  # in one request: limits of MLflow's server (mlflow/utils/validation.py)
BATCH_KEYS = {"log-metric": "metrics", "log-parameter": "params", "set-tag": "tags"}
"""Call that logs one value -> the key of the same value in a batch."""


@dataclass
class MlflowRun:
    """One MLflow run."""

    info: Document
    tags: dict[str, str]
    params: dict[str, str] = field(default_factory=dict)
    metrics: dict[str, list[Document]] = field(default_factory=dict)
    """Key -> points, in the order in which they were logged."""

    def document(self) -> Document:
        """Return the run as MLflow's clients read it."""
        return {
            "info": self.info,
            "data": {
                "metrics": [{"key": key, **points[-1]} for key, points in self.metrics.items()],
                "params": [{"key": key, "value": value} for key, value in self.params.items()],
                "tags": [{"key": key, "value": value} for key, value in self.tags.items()],
            },
        }


@dataclass
class Tracking:
    """The workspace's MLflow server.

    Args:
        state: the workspace.
        jobs: each is a run, too.
        check: raises Refusal for a call without a valid token.
    """

    state: State
    jobs: Jobs
    check: Callable[[Call], None]
    known: dict[str, MlflowRun] = field(default_factory=dict)
    """Id -> run, once it was asked for."""
    experiments: dict[str, str] = field(default_factory=dict)
    """Id -> name."""

    def answer(self, call: Call) -> Reply:
        """Answer one call.

        Raises:
            Refusal: invalid token, or another workspace.
        """
        self.check(call)
        matched = PREFIX.fullmatch(call.path)
        if matched is None or matched["workspace"].lower() != self.state.place.workspace_path.lower():
            raise Refusal(404, "ENDPOINT_NOT_FOUND", f"{call.path} is not a path of this workspace's MLflow")
        try:
            with self.state.lock:
                if matched["rest"].startswith("experiments/"):
                    self.runs()  # adds the experiments of jobs that no call has asked for yet
                return ROUTES.answer(self, call, matched["rest"])
        except Refusal as refusal:
            return Reply.json({"error_code": refusal.code, "message": refusal.message}, refusal.status)

    def run(self, run_id: str) -> MlflowRun:
        """Return a run.

        Raises:
            Refusal: it does not exist.
        """
        job = self.jobs.get(run_id)
        if job is not None and run_id not in self.known:
            self._add_job(job)
        if (run := self.known.get(run_id)) is None:
            raise Refusal(404, "RESOURCE_DOES_NOT_EXIST", f"Run with id {run_id} was not found.")
        if job is not None:
            run.info["status"] = STATUSES.get(job.status, "RUNNING")
            if job.ended:
                run.info.setdefault("end_time", int(1000 * time.time()))
        return run

    def runs(self) -> list[MlflowRun]:
        """Return all runs, the newest first."""
        names = dict.fromkeys([*self.known, *(job.name for job in self.jobs.all())])
        return sorted(map(self.run, names), key=lambda run: int(run.info["start_time"]), reverse=True)

    def reports(self, run_id: str, metric: str) -> list[float]:
        """Return the values of a metric in the order in which they were logged."""
        with self.state.lock:
            return [float(point["value"]) for point in self.run(run_id).metrics.get(metric, [])]

    def _add_job(self, job: CloudJob) -> None:
        name = job.properties.get("displayName", job.name)
        tags = {"mlflow.rootRunId": job.parent or job.name, "mlflow.runName": name}
        tags |= {"mlflow.parentRunId": job.parent} if job.parent else {}
        experiment = self.experiment(job.properties.get("experimentName", "Default"))
        self.add(job.name, experiment, name, {**tags, **(job.properties.get("tags") or {})})

    def add(self, run_id: str, experiment: str, name: str, tags: dict[str, str]) -> MlflowRun:
        """Add a run.

        Args:
            run_id: its id; for a job its name.
            experiment: id of its experiment.
            name: its display name.
            tags: its tags.
        """
        place = self.state.place
        artifacts = f"azureml://{place.data_plane}/mlflow/v2.0{place.workspace_path}/experiments/{experiment}"
        info: Document = {
            "artifact_uri": f"{artifacts}/runs/{run_id}/artifacts",
            "experiment_id": experiment,
            "lifecycle_stage": "active",
            "run_id": run_id,
            "run_name": name,
            "run_uuid": run_id,
            "start_time": int(1000 * time.time()),
            "status": "RUNNING",
            "user_id": "double",
        }
        self.known[run_id] = MlflowRun(info, tags)
        return self.known[run_id]

    def experiment(self, name: str) -> str:
        """Return the id of an experiment; create it if it does not exist."""
        identity = str(uuid.uuid5(uuid.NAMESPACE_URL, name))  # the same name gives the same id, in every double
        self.experiments[identity] = name
        return identity

    def experiment_document(self, identity: str) -> Document:
        """Return an experiment as MLflow's clients read it.

        Raises:
            Refusal: it does not exist.
        """
        if (name := self.experiments.get(identity)) is None:
            raise Refusal(404, "RESOURCE_DOES_NOT_EXIST", f"Could not find experiment with ID {identity}")
        return {"experiment_id": identity, "name": name, "lifecycle_stage": "active", "artifact_location": ""}


@ROUTES.add("GET", "experiments/get-by-name")
def get_experiment_by_name(service: Tracking, call: Call) -> Reply:
    """Return an experiment by its name.

    Raises:
        Refusal: it does not exist.
    """
    if (name := call.query["experiment_name"]) not in service.experiments.values():
        raise Refusal(404, "RESOURCE_DOES_NOT_EXIST", f"Could not find experiment with name '{name}'")
    return Reply.json({"experiment": service.experiment_document(service.experiment(name))})


@ROUTES.add("GET", "experiments/get")
def get_experiment(service: Tracking, call: Call) -> Reply:
    """Return an experiment by its id."""
    return Reply.json({"experiment": service.experiment_document(call.query["experiment_id"])})


@ROUTES.add("POST", "experiments/create")
def create_experiment(service: Tracking, call: Call) -> Reply:
    """Create an experiment.

    Raises:
        Refusal: it exists.
    """
    if (name := call.json["name"]) in service.experiments.values():
        raise Refusal(400, "RESOURCE_ALREADY_EXISTS", f"Experiment '{name}' already exists.")
    return Reply.json({"experiment_id": service.experiment(name)})


@ROUTES.add("POST", "experiments/search")
def search_experiments(service: Tracking, call: Call) -> Reply:
    """List all experiments; filters are ignored."""
    return Reply.json({"experiments": [service.experiment_document(identity) for identity in service.experiments]})


@ROUTES.add("POST", "runs/create")
def create_run(service: Tracking, call: Call) -> Reply:
    """Create a run that belongs to no job."""
    wanted = call.json
    experiment = service.experiment_document(wanted["experiment_id"])["experiment_id"]
    tags = _pairs(wanted.get("tags"))
    run = service.add(str(uuid.uuid4()), experiment, wanted.get("run_name") or "run", tags)
    return Reply.json({"run": run.document()})


@ROUTES.add("GET", "runs/get")
def get_run(service: Tracking, call: Call) -> Reply:
    """Return a run."""
    return Reply.json({"run": _wanted(service, call).document()})


@ROUTES.add("POST", "runs/update")
def update_run(service: Tracking, call: Call) -> Reply:
    """Change the status, name or end of a run."""
    wanted, info = call.json, service.run(call.json["run_id"]).info
    info |= {key: wanted[key] for key in ("status", "run_name") if wanted.get(key)}
    if "end_time" in wanted:
        info["end_time"] = int(wanted["end_time"])
    return Reply.json({"run_info": info})


@ROUTES.add("POST", "runs/{what:log-batch|log-metric|log-parameter|set-tag}")
def log_values(service: Tracking, call: Call, what: str) -> Reply:
    """Log metrics, parameters and tags, one by one or in a batch.

    Raises:
        Refusal: too many values in one request, or a parameter that was logged with another value.
    """
    run, body = service.run(call.json["run_id"]), call.json
    batch = body if what == "log-batch" else {BATCH_KEYS[what]: [body]}
    metrics, params = batch.get("metrics", []), _pairs(batch.get("params"))
    if len(metrics) > MAX_METRICS or len(params) > MAX_PARAMS:
        raise Refusal(
            400, "INVALID_PARAMETER_VALUE", f"at most {MAX_METRICS} metrics and {MAX_PARAMS} params in one request"
        )
    for metric in metrics:
        point = {"value": metric["value"], "timestamp": int(metric["timestamp"]), "step": int(metric.get("step", 0))}
        run.metrics.setdefault(metric["key"], []).append(point)
    for key, value in params.items():
        if run.params.setdefault(key, value) != value:
            raise Refusal(400, "INVALID_PARAMETER_VALUE", f"Changing param values is not allowed: {key}")
    run.tags.update(_pairs(batch.get("tags")))
    return Reply.json({})


@ROUTES.add("GET", "metrics/get-history")
def get_history(service: Tracking, call: Call) -> Reply:
    """Return all points of a metric, in pages."""
    key = call.query["metric_key"]
    points = [{"key": key, **point} for point in _wanted(service, call).metrics.get(key, [])]
    return _page("metrics", points, int(call.query.get("max_results") or 25_000), call.query.get("page_token"))


@ROUTES.add("POST", "runs/search")
def search_runs(service: Tracking, call: Call) -> Reply:
    """Search runs by equalities and inequalities joined by `and`."""
    wanted, experiments = call.json, call.json.get("experiment_ids", [])
    clauses = parse_filter(wanted.get("filter", ""), CLAUSE, "INVALID_PARAMETER_VALUE")
    runs = [
        run.document()
        for run in service.runs()
        if run.info["experiment_id"] in experiments and all(_matches(run, **clause) for clause in clauses)
    ]
    return _page("runs", runs, int(wanted.get("max_results") or 1000), wanted.get("page_token"))


def _matches(run: MlflowRun, kind: str, key: str, sign: str, value: str) -> bool:
    table = {"tags": run.tags, "tag": run.tags, "params": run.params, "attributes": run.info}.get(kind, {})
    return (table.get(key) == value) == (sign == "=")


def _wanted(service: Tracking, call: Call) -> MlflowRun:
    return service.run(call.query.get("run_id") or call.query["run_uuid"])


def _page(name: str, documents: list[Document], size: int, token: str | None) -> Reply:
    shown, following = page(documents, size, token)
    return Reply.json({name: shown, **({"next_page_token": following} if following else {})})


def _pairs(entries: list[Document] | None) -> dict[str, str]:
    return {entry["key"]: entry["value"] for entry in entries or []}
