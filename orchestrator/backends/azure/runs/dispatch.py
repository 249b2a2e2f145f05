"""Sending a request: cluster, assets, the run's own files, then the job, whose name is on record before it is sent."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.backends.azure.assets import places
from orchestrator.backends.azure.assets.uploads import ensure_asset, remember_asset, say
from orchestrator.backends.azure.machines.clusters import Cluster, provision
from orchestrator.backends.azure.runs.record import AzureAttempt, Record, RecordFolder
from orchestrator.backends.azure.submission import AzureRequest
from orchestrator.backends.azure.wire.azure_errors import passing, retry_after
from orchestrator.backends.azure.wire.blobs import Files
from orchestrator.backends.azure.wire.control_plane import Body, Wire
from orchestrator.backends.capabilities import UnknownError
from orchestrator.runs.status import RunState
from orchestrator.support.errors import ConflictError, ServiceError, UserError

if TYPE_CHECKING:
    from orchestrator.backends.azure.runs.az_yaml import JobFile
    from orchestrator.backends.azure.wire.workspace import Workspace
    from orchestrator.jobs.base import Plan
from orchestrator.backends.azure.assets.command import CONFIG, TAGS

PAUSES = (1.0, 4.0, 15.0)  # seconds before the job is sent again, unless Azure says how long
SETTLE_SECONDS = 2.0  # what Azure gets to show a job that it has accepted
SETTLE_TRIES = 3
TOO_MANY = 429
REQUEST_TAG = "orchestrator.request"


def send(wire: Wire, request: AzureRequest, plan: Plan, folder: RecordFolder, home: Path) -> None:
    """Does all that a run needs, and submits its first attempt.

    Raises:
        ConflictError: the workspace has a job of that name already.
        UserError: Azure refused; nothing runs then.
    """
    documents = prepare(wire, request, plan, home)
    first = AzureAttempt(job=request.name, intended=time.time())
    folder.fill(documents, Record(created=time.time(), attempts=(first,)))
    submit(wire, request, folder, number=1)


def prepare(
    wire: Wire, request: AzureRequest, plan: Plan, home: Path, more: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Does all that a job needs before it is submitted; returns the documents that its record is made of.

    Args:
        wire: where it goes.
        request, plan: what goes there.
        home: the home folder.
        more: documents beside those of every job: name -> text.

    Raises:
        ConflictError: the workspace has a job of that name already.
        UserError: Azure refused.
    """
    wire.location()
    taken = wire.job(request.name)
    if taken is not None:
        raise ConflictError(
            f"the workspace has a job {request.name} already",
            facts={"status": taken["properties"].get("status")},
            fix=f"orchestrator attach azure://{request.workspace.workspace}/{request.name}",
        )
    say(provision(wire, request.cluster))
    store = wire.store(request.datastore)
    files = Files(store)
    for asset in request.assets:
        ensure_asset(wire, files, store, asset, plan)
        remember_asset(home, request.workspace, asset.name, asset.version)
    documents = {**job_documents(request, plan), **(more or {})}
    inline = {name: content for one in plan.needs.inputs if one.inline for name, content in one.list_files().items()}
    files.upload(
        places.job_folder(request.name),
        {**{name: text.encode() for name, text in documents.items()}, **inline},
    )
    return documents


def send_file(wire: Wire, workspace: Workspace, file: JobFile, folder: RecordFolder) -> None:
    """Submits a job file. It goes through the SDK's own operation, so what it names is uploaded by the SDK.

    Raises:
        ConflictError: the workspace has a job of that name already.
        UserError: Azure refused, or has no such cluster.
    """
    wire.location()
    if wire.job(file.name) is not None:
        raise ConflictError(
            f"the workspace has a job {file.name} already", fix="another name: in the file, or leave it out"
        )
    cluster = str(file.document["compute"]).removeprefix("azureml:")
    if "/" not in cluster:
        provision(wire, Cluster(name=cluster))
    request = AzureRequest(
        name=file.name,
        workspace=workspace,
        cluster=Cluster(name=cluster),
        assets=(),
        datastore="workspaceblobstore",
        job={},
        nodes=file.nodes,
        processes_per_node=file.processes,
        max_restarts=0,
    )
    plan = {
        "run_hash": file.digest,
        "world_size": file.nodes * file.processes,
        "job": {"train": {"steps": None}},
        "compute": {"nodes": file.nodes, "processes_per_node": file.processes},
        "changes": {},
        "data": {"sha256": ""},
        "spec": {"tags": {key: str(value) for key, value in (file.document.get("tags") or {}).items()}},
        "file": str(file.path.absolute()),
    }
    first = AzureAttempt(job=file.name, intended=time.time())
    documents = {"plan.json": json.dumps(plan, indent=1), "request.json": request.model_dump_json(indent=1)}
    folder.fill(documents, Record(created=time.time(), attempts=(first,)))
    try:
        wire.put_job_file(file.job)
    except UserError as problem:
        if _look_for(wire, file.name, problem) is None:
            shutil.rmtree(folder.path)
            raise
    folder.write(folder.read().with_last(confirmed=True))


def submit(wire: Wire, request: AzureRequest, folder: RecordFolder, *, number: int) -> None:
    """Submits the attempt that is on record last. A lost reply is settled by asking, never by a second job.

    Raises:
        UserError: Azure does not have it. Of a run that has no other attempt no record stays.
    """
    name, body = folder.read().last.job, request.attempt(number)
    try:
        put(wire, name, body)
    except UnknownError as problem:
        problem.fix = f"orchestrator status {folder.name}"  # a later attempt's job has another name than its run
        raise
    except UserError as problem:
        if number == 1:
            shutil.rmtree(folder.path)
        else:
            away = isinstance(problem, ServiceError) and passing(problem.__cause__)
            ended = {"ended": time.time(), "state": RunState.FAILED, "reason": str(problem), "exit_code": 1}
            folder.write(folder.read().with_last(**ended, refused=not away))
        raise
    folder.write(folder.read().with_last(confirmed=True))


def put(wire: Wire, name: str, body: Body) -> None:
    """Sends a job until Azure has it, or has refused it. A lost reply is settled by asking.

    Raises:
        UnknownError: nobody can tell whether Azure has it.
        UserError: Azure does not have it.
    """
    for pause in (*PAUSES, None):
        try:
            return wire.put_job(name, body)
        except UserError as problem:
            if _arrived(wire, name, body, problem):
                return None
            if pause is None or not isinstance(problem, ServiceError) or not passing(problem.__cause__):
                raise
            time.sleep(retry_after(problem.__cause__) or pause)
    return None


def _arrived(wire: Wire, name: str, body: Body, problem: UserError) -> bool:
    """Whether Azure has the job all the same: its reply was lost, or an earlier request of ours had arrived.

    Raises:
        ConflictError: it has another one of that name.
        ServiceError: nobody can tell.
    """
    if not isinstance(problem, ServiceError | ConflictError):
        return False  # it was read, and refused
    if getattr(problem.__cause__, "status_code", None) == TOO_MANY:
        return False  # it was not read
    for left in reversed(range(SETTLE_TRIES)):
        found = _look_for(wire, name, problem)
        if found is not None:
            break
        if left:
            time.sleep(SETTLE_SECONDS / SETTLE_TRIES)
    else:
        return False
    tags = found["properties"].get("tags") or {}
    if tags.get(REQUEST_TAG) != body["properties"]["tags"][REQUEST_TAG]:
        raise ConflictError(
            f"the workspace has another job {name}", facts={"tags": json.dumps(tags)}, fix="--new, for another name"
        )
    return True


def _look_for(wire: Wire, name: str, problem: UserError) -> Body | None:
    """The job that Azure has, if it has it, after sending it met a `problem`.

    Raises:
        UnknownError: nobody can tell.
    """
    try:
        return wire.job(name)
    except UserError as trouble:
        raise UnknownError(
            f"whether Azure has job {name} is not known",
            facts={"sent": problem.message, "asked": trouble.message},
            fix=f"orchestrator status {name}",
        ) from problem


def job_documents(request: AzureRequest, plan: Plan) -> dict[str, str]:
    """What the job of a run and whoever attaches to it reads: name -> text."""
    import yaml

    tags = {key: value for key, value in request.job["properties"]["tags"].items() if key != "orchestrator.attempt"}
    return {
        CONFIG: json.dumps(plan.portable(), indent=1),
        TAGS: json.dumps(tags),
        "plan.json": json.dumps(plan.as_dict(), indent=1),
        "spec.yaml": yaml.safe_dump(plan.spec.model_dump(mode="json"), sort_keys=False),
        "request.json": request.model_dump_json(indent=1),
    }
