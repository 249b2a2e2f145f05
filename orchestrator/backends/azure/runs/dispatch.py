"""Sending a submission: cluster, assets, the run's own files, then the job, whose name is on record before it is sent.

A job file of `az ml` is prepared from the file alone, and sent by the SDK, which uploads what it names.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from orchestrator.backends.azure import places
from orchestrator.backends.azure.assets import asset_files, asset_id, ensure_asset, remember_asset
from orchestrator.backends.azure.az_yaml import JobFile
from orchestrator.backends.azure.clusters import Cluster, provision
from orchestrator.backends.azure.options import AZURE, AzureSpec, Workspace
from orchestrator.backends.azure.runs.failover import first_available, targets_of
from orchestrator.backends.azure.runs.record import RecordFolder
from orchestrator.backends.azure.submission import AzureRequest, with_secrets
from orchestrator.backends.azure.wire.azure_errors import PAUSES, TOO_MANY, is_transient, retry_after
from orchestrator.backends.azure.wire.blobs import Files
from orchestrator.backends.azure.wire.control_plane import Body, Wire
from orchestrator.backends.base import PLAN, REQUEST, Submission
from orchestrator.backends.capabilities import UnknownError
from orchestrator.runs.hidden_folders import remove_tree
from orchestrator.runs.status import RunState
from orchestrator.support.errors import ConflictError, NotFoundError, ServiceError, UserError

SETTLE_SECONDS = 2.0  # time in which Azure shows a job that it has accepted
SETTLE_TRIES = 3  # requests for the job within this time
REQUEST_TAG = "orchestrator.request"


@dataclass(frozen=True, kw_only=True)
class FileSubmission(Submission):
    """Submission of a job file."""

    file: JobFile
    """The file."""

    def as_dict(self) -> dict[str, Any]:
        """Return the body that the SDK sends."""
        return {"name": self.run, "request": {"job": self.file.body()}}


def file_submission(file: JobFile, workspace: Workspace) -> FileSubmission:
    """Return the submission of a job file, with the documents by which its run is followed like any other."""
    request = AzureRequest(
        name=file.name,
        workspace=workspace,
        cluster=Cluster(name=file.compute),
        assets=(),
        datastore=AzureSpec().datastore,
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
        "spec": {"tags": {key: str(value) for key, value in (file.job.tags or {}).items()}},
        "file": str(file.path.absolute()),
    }
    return FileSubmission(
        backend=AZURE,
        plan=None,
        request=request,
        command=(str(file.work.command),),
        variables=file.work.environment_variables or {},
        documents={PLAN: json.dumps(plan, indent=1), REQUEST: request.model_dump_json(indent=1)},
        notes=tuple(f"warning: {warning}" for warning in file.warnings),
        export={**file.document, "name": file.name},
        file=file,
    )


def send_file(wire: Wire, submission: FileSubmission, folder: RecordFolder) -> None:
    """Send a job file by the SDK's own operation.

    Args:
        wire: the workspace.
        submission: of the job file.
        folder: of the run's record, which is created.

    Raises:
        ConflictError: the workspace has a job of that name.
        UserError: Azure refused, or has no such cluster.
    """
    name = submission.run
    wire.location()
    if wire.job(name) is not None:
        raise ConflictError(
            f"job {name} already exists in the workspace", fix="give the file another name for the job, or none"
        )
    if submission.file.needs_cluster:
        provision(wire, submission.request.cluster)
    folder.create(submission.documents, name)
    try:
        wire.put_job_file(submission.file.job)
    except UserError as problem:
        if find_job(wire, name, problem) is None:
            remove_tree(folder.path)
            raise
    folder.update_attempt(name, confirmed=True)


def send(wire: Wire, submission: Submission, folder: RecordFolder, home: Path) -> None:
    """Create cluster, assets and documents of a run, and submit its first attempt.

    Args:
        wire: the workspace.
        submission: of the run.
        folder: of the run's record, which is created.
        home: the user's orchestrator folder, which records the assets seen so far.

    Raises:
        ConflictError: the workspace has a job of that name.
        UserError: Azure refused; nothing runs then.
    """
    # The order makes every interruption harmless. Uploads come first: they are named by content and repeatable. Then
    # the record, before the job: a process that dies after its request has left the job's name, by which the next
    # `status` finds out whether Azure has it. A job without a record would run, and cost money, unnoticed.
    submission = stage(wire, submission, home)
    folder.create(submission.documents, submission.run)
    supervisor = submission.request.supervisor
    if supervisor is not None:  # before the job: a submitter that dies between the two leaves no job without it
        wire.put_schedule(supervisor.schedule, supervisor.body)
    try:
        submit(wire, submission.request, folder, number=1)
    except UnknownError:
        raise
    except UserError:
        if supervisor is not None:
            wire.delete_schedule(supervisor.schedule)
        raise


def stage(wire: Wire, submission: Submission, home: Path, more: Mapping[str, str] | None = None) -> Submission:
    """Create what a job needs before it is submitted: cluster, assets, documents.

    Returns:
        The submission for the machines that quota and capacity allow: the first of those that the plan names.

    Args:
        wire: the workspace.
        submission: of the job.
        home: the home folder.
        more: additional documents: name -> text.

    Raises:
        ConflictError: the workspace has a job of that name.
        NotFoundError: it lacks a data asset.
        UserError: Azure refused.
    """
    request: AzureRequest = submission.request
    plan = submission.plan
    assert plan is not None
    wire.location()
    if (taken := wire.job(request.name)) is not None:
        raise ConflictError(
            f"job {request.name} already exists in the workspace",
            facts={"status": taken["properties"].get("status")},
            fix=f"orchestrator attach azure://{request.workspace.workspace}/{request.name}",
        )
    _check_data(wire, request)
    target = first_available(wire, targets_of(request, submission.documents), home)
    request, submission = target.request, replace(submission, request=target.request, documents=target.documents)
    for asset in request.assets:
        ensure_asset(wire, request.datastore, asset, partial(asset_files, plan, asset))
        remember_asset(home, request.workspace, asset)
    # last of the uploads, and in the run's own folder: assets are shared, and an interrupted call may leave them
    documents = {name: text.encode() for name, text in {**submission.documents, **(more or {})}.items()}
    inline = {name: content for one in submission.inputs if one.inline for name, content in one.list_files().items()}
    Files(wire, request.datastore).upload(places.job_folder(request.name), {**documents, **inline})
    return submission


def _check_data(wire: Wire, request: AzureRequest) -> None:
    """Check that the workspace has the data assets that the user names: the job would fail on its machine.

    Raises:
        NotFoundError: it does not have one.
    """
    own = {asset_id(request.workspace, one.kind, one.name, one.version) for one in request.assets}
    prefix = f"{request.workspace.id}/data/"
    for one in request.job["properties"].get("inputs", {}).values():
        uri = str(one.get("uri"))
        if uri.startswith(prefix) and uri not in own:
            name, _, version = uri.removeprefix(prefix).split("/")
            if wire.asset("data", name, version) is None:
                raise NotFoundError(f"data asset {name}:{version} does not exist", fix="orchestrator data asset list")


def submit(wire: Wire, request: AzureRequest, folder: RecordFolder, *, number: int) -> None:
    """Submit the last attempt on record. If the reply is lost, Azure is asked for the job; no second one is sent.

    Args:
        wire: the workspace.
        request: of the run.
        folder: of the run's record.
        number: of the attempt, from 1.

    Raises:
        UnknownError: it is unknown whether Azure has it; the record stays.
        UserError: Azure does not have it, or a secret is not to be had. The record of a run without another attempt
            is removed.
    """
    record = folder.read()
    name = record.last.job
    try:
        put(wire, name, with_secrets(request.attempt(number, record.former_tags), request.secrets))
    except UnknownError as problem:
        problem.fix = f"orchestrator status {folder.name}"  # a later attempt's job has another name than its run
        raise
    except UserError as problem:
        if number == 1:
            remove_tree(folder.path)  # nothing of the run exists on Azure: the same command may be repeated
        else:
            away = isinstance(problem, ServiceError) and is_transient(problem.__cause__)
            ended = {"ended": time.time(), "state": RunState.FAILED, "reason": str(problem), "exit_code": 1}
            folder.update_attempt(name, **ended, refused=not away)
        raise
    folder.update_attempt(name, confirmed=True)


def put(wire: Wire, name: str, body: Body) -> None:
    """Send a job until Azure has it, or has refused it.

    After each failed request Azure is asked for the job: a lost reply and a lost request look the same from here.

    Args:
        wire: the workspace.
        name: of the job.
        body: of the job, with the tag `orchestrator.request`.

    Raises:
        ConflictError: the workspace has another job of that name.
        UnknownError: it is unknown whether Azure has it.
        UserError: Azure does not have it.
    """
    for pause in (*PAUSES, None):
        try:
            return wire.put_job(name, body)
        except UserError as problem:
            if _was_accepted(wire, name, body, problem):
                return None
            if pause is None or not isinstance(problem, ServiceError) or not is_transient(problem.__cause__):
                raise
            time.sleep(retry_after(problem.__cause__) or pause)
    return None


def _was_accepted(wire: Wire, name: str, body: Body, problem: UserError) -> bool:
    """Return whether Azure has the job in spite of the error: the reply was lost, or an earlier request had arrived.

    Raises:
        ConflictError: it has another job of that name.
        UnknownError: it cannot be asked.
    """
    # Quota, permission, invalid body, 429: Azure read the request and did nothing. A conflict may come from the job
    # that an earlier request of this submission created.
    read_and_refused = not isinstance(problem, ServiceError | ConflictError)
    if read_and_refused or getattr(problem.__cause__, "status_code", None) == TOO_MANY:
        return False
    for left in reversed(range(SETTLE_TRIES)):  # Azure may show a job only some time after it accepted it
        if (found := find_job(wire, name, problem)) is not None:
            break
        if left:
            time.sleep(SETTLE_SECONDS / SETTLE_TRIES)
    else:
        return False
    # the name alone proves nothing: another user may have submitted a job of that name at the same moment
    tags = found["properties"].get("tags") or {}
    if tags.get(REQUEST_TAG) != body["properties"]["tags"][REQUEST_TAG]:
        raise ConflictError(
            f"cannot submit job {name}: the workspace has another job of this name",
            facts={"tags": json.dumps(tags)},
            fix="--new, for another name",
        )
    return True


def find_job(wire: Wire, name: str, problem: UserError) -> Body | None:
    """Return the job if Azure has it, after a request to submit it failed; None: Azure does not have it.

    Args:
        wire: the workspace.
        name: of the job.
        problem: the error of the request.

    Raises:
        UnknownError: Azure cannot be asked.
    """
    try:
        return wire.job(name)
    except UserError as lookup_error:
        raise UnknownError(
            f"cannot find out whether Azure has job {name}",
            facts={"submission": problem.message, "query": lookup_error.message},
            fix=f"orchestrator status {name}",
        ) from problem
