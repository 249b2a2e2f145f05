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
from orchestrator.backends.azure.machines.clusters import provision
from orchestrator.backends.azure.runs.record import AzureAttempt, Record, RecordFolder
from orchestrator.backends.azure.submission import AzureRequest
from orchestrator.backends.azure.wire.azure_errors import passing, retry_after
from orchestrator.backends.azure.wire.blobs import Files
from orchestrator.backends.azure.wire.control_plane import Body, Wire
from orchestrator.backends.base import PLAN, REQUEST, SPEC, Submission
from orchestrator.backends.capabilities import UnknownError
from orchestrator.runs.status import RunState
from orchestrator.support.errors import ConflictError, ServiceError, UserError

if TYPE_CHECKING:
    from orchestrator.jobs.base import Plan
from orchestrator.backends.azure.assets.command import CONFIG, TAGS

PAUSES = (1.0, 4.0, 15.0)  # seconds before the job is sent again, unless Azure says how long
SETTLE_SECONDS = 2.0  # what Azure gets to show a job that it has accepted
SETTLE_TRIES = 3
TOO_MANY = 429
REQUEST_TAG = "orchestrator.request"


def send(wire: Wire, submission: Submission, folder: RecordFolder, home: Path) -> None:
    """Create all that a run needs, and submit its first attempt.

    Raises:
        ConflictError: the workspace has a job of that name already.
        UserError: Azure refused; nothing runs then.
    """
    stage(wire, submission, home)
    first = AzureAttempt(job=submission.run, intended=time.time())
    folder.fill(submission.documents, Record(created=time.time(), attempts=(first,)))
    submit(wire, submission.request, folder, number=1)


def stage(wire: Wire, submission: Submission, home: Path, more: Mapping[str, str] | None = None) -> None:
    """Create all that a job needs before it is submitted: cluster, assets, documents.

    Args:
        wire: the workspace.
        submission: of the job.
        home: the home folder.
        more: documents beside those of the submission: name -> text.

    Raises:
        ConflictError: the workspace has a job of that name already.
        UserError: Azure refused.
    """
    request: AzureRequest = submission.request
    plan = submission.plan
    assert plan is not None
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
    documents = {**submission.documents, **(more or {})}
    inline = {name: content for one in plan.needs.inputs if one.inline for name, content in one.list_files().items()}
    files.upload(
        places.job_folder(request.name),
        {**{name: text.encode() for name, text in documents.items()}, **inline},
    )


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
        UnknownError: it is not known whether Azure has it.
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
        found = look_for(wire, name, problem)
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


def look_for(wire: Wire, name: str, problem: UserError) -> Body | None:
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
    """Return the documents that the job, and any client that attaches to its run, reads: name -> text."""
    import yaml

    tags = {key: value for key, value in request.job["properties"]["tags"].items() if key != "orchestrator.attempt"}
    return {
        CONFIG: json.dumps(plan.portable(), indent=1),
        TAGS: json.dumps(tags),
        PLAN: json.dumps(plan.as_dict(), indent=1),
        SPEC: yaml.safe_dump(plan.spec.model_dump(mode="json"), sort_keys=False),
        REQUEST: request.model_dump_json(indent=1),
    }
