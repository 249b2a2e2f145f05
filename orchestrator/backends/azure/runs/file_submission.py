"""Submissions of job files of `az ml`: prepared from the file alone, sent by the SDK, which uploads what they name."""

from __future__ import annotations

import json
import shutil
import time
from dataclasses import dataclass
from typing import Any

from orchestrator.backends.azure.machines.clusters import Cluster, provision
from orchestrator.backends.azure.options import AZURE
from orchestrator.backends.azure.runs.az_yaml import JobFile, rest_body
from orchestrator.backends.azure.runs.dispatch import look_for
from orchestrator.backends.azure.runs.record import AzureAttempt, Record, RecordFolder
from orchestrator.backends.azure.submission import AzureRequest
from orchestrator.backends.azure.wire.control_plane import Wire
from orchestrator.backends.azure.wire.workspace import Workspace
from orchestrator.backends.base import PLAN, REQUEST, Submission
from orchestrator.support.errors import ConflictError, UserError

DATASTORE = "workspaceblobstore"


@dataclass(frozen=True)
class FileSubmission(Submission):
    """What is sent for a job file."""

    file: JobFile | None = None
    """The file."""

    def as_dict(self) -> dict[str, Any]:
        """Return the body that the SDK sends."""
        assert self.file is not None
        return {"name": self.run, "request": {"job": rest_body(self.file)}}


def file_submission(file: JobFile, workspace: Workspace) -> FileSubmission:
    """Return what is sent for a job file, with the documents by which its run is followed like any other."""
    request = AzureRequest(
        name=file.name,
        workspace=workspace,
        cluster=Cluster(name=str(file.document["compute"]).removeprefix("azureml:")),
        assets=(),
        datastore=DATASTORE,
        job={},
        nodes=file.nodes,
        processes_per_node=file.processes,
        max_restarts=0,
    )
    plan = {
        "run_hash": file.digest,
        "world_size": request.world_size,
        "job": {"train": {"steps": None}},
        "compute": {"nodes": file.nodes, "processes_per_node": file.processes},
        "changes": {},
        "data": {"sha256": ""},
        "spec": {"tags": {key: str(value) for key, value in (file.document.get("tags") or {}).items()}},
        "file": str(file.path.absolute()),
    }
    return FileSubmission(
        backend=AZURE,
        plan=None,
        request=request,
        command=(str(file.work.get("command", "")),),
        variables=file.work.get("environment_variables") or {},
        documents={PLAN: json.dumps(plan, indent=1), REQUEST: request.model_dump_json(indent=1)},
        export={**file.document, "name": file.name},
        file=file,
    )


def send_file(wire: Wire, submission: FileSubmission, folder: RecordFolder) -> None:
    """Send a job file through the SDK's own operation.

    Raises:
        ConflictError: the workspace has a job of that name already.
        UserError: Azure refused, or has no such cluster.
    """
    assert submission.file is not None
    name, cluster = submission.run, submission.request.cluster
    wire.location()
    if wire.job(name) is not None:
        raise ConflictError(f"the workspace has a job {name} already", fix="another name: in the file, or leave it out")
    if "/" not in cluster.name:
        provision(wire, cluster)
    first = AzureAttempt(job=name, intended=time.time())
    folder.fill(submission.documents, Record(created=time.time(), attempts=(first,)))
    try:
        wire.put_job_file(submission.file.job)
    except UserError as problem:
        if look_for(wire, name, problem) is None:
            shutil.rmtree(folder.path)
            raise
    folder.write(folder.read().with_last(confirmed=True))
