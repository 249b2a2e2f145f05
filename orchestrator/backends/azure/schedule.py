"""Sending a request: cluster, assets, the run's own files, then the job, whose name is on record before it is sent."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.backends.azure import places
from orchestrator.backends.azure.clusters import provision
from orchestrator.backends.azure.notes import remember_asset
from orchestrator.backends.azure.record import AzureAttempt, Record, RecordFolder
from orchestrator.backends.azure.request import Asset, AzureRequest, Body
from orchestrator.backends.azure.storage import Files
from orchestrator.backends.azure.upload import asset_files, job_documents, vocabulary
from orchestrator.backends.azure.wire import Store, Wire
from orchestrator.errors import ConflictError, NotFoundError, ServiceError, UserError
from orchestrator.summary import bytes_text

if TYPE_CHECKING:
    from orchestrator.plan import PretrainPlan as Plan  # no other kind runs on Azure

SETTLE_SECONDS = 5.0  # what Azure gets to show a job that it has accepted
SETTLE_TRIES = 3
REQUEST_TAG = "orchestrator.request"


def say(text: str) -> None:
    """Progress."""
    print(text, file=sys.stderr, flush=True)


def send(wire: Wire, request: AzureRequest, plan: Plan, folder: RecordFolder, home: Path) -> None:
    """Does all that a run needs, and submits its first attempt.

    Raises:
        ConflictError: the workspace has a job of that name already.
        UserError: Azure refused; nothing runs then.
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
    documents = job_documents(request, plan)
    files.upload(
        places.job_folder(request.name),
        {**{name: text.encode() for name, text in documents.items()}, **vocabulary(plan)},
    )
    first = AzureAttempt(job=request.name, intended=time.time())
    folder.fill(documents, Record(created=time.time(), attempts=(first,)))
    submit(wire, request, folder, number=1)


def submit(wire: Wire, request: AzureRequest, folder: RecordFolder, *, number: int) -> None:
    """Submits the attempt that is on record last. A lost reply is settled by asking, never by a second job.

    Raises:
        UserError: Azure does not have it; the record says so.
    """
    name, body = folder.read().last.job, request.attempt(number)
    try:
        wire.put_job(name, body)
    except UserError as problem:
        if not _arrived(wire, name, body, problem):
            folder.write(folder.read().with_last(ended=time.time(), reason=str(problem)))
            raise
    folder.write(folder.read().with_last(confirmed=True))


def _arrived(wire: Wire, name: str, body: Body, problem: UserError) -> bool:
    """Whether Azure has the job all the same: its reply was lost, or an earlier request of ours had arrived.

    Raises:
        ConflictError: it has another one of that name.
        ServiceError: nobody can tell.
    """
    if not isinstance(problem, ServiceError | ConflictError):
        return False  # it was read, and refused
    for left in reversed(range(SETTLE_TRIES)):
        try:
            found = wire.job(name)
        except UserError as trouble:
            raise ServiceError(
                f"whether Azure has job {name} is not known",
                facts={"sent": problem.message, "asked": trouble.message},
                fix=f"orchestrator status {name}",
            ) from problem
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


def ensure_asset(wire: Wire, files: Files, store: Store, asset: Asset, plan: Plan) -> None:
    """Sees to it that the workspace has an asset; what it has is neither uploaded nor built again.

    Raises:
        NotFoundError: it is not there, and is none of ours.
    """
    label = f"{asset.kind} {asset.name}:{asset.version}"
    if wire.asset(asset.kind, asset.name, asset.version) is not None:
        say(f"{label}: cached")
        return
    if asset.body is None:
        raise NotFoundError(
            f"the workspace has no {label}",
            facts={"where": f"workspace {wire.workspace.workspace}"},
            fix="--set azure.environment=auto",
        )
    if asset.folder is not None:
        with tempfile.TemporaryDirectory(prefix="orchestrator-") as scratch:
            content = asset_files(asset.kind, asset.name, plan, Path(scratch))
            bar = UploadBar(label)
            sent = files.upload(asset.folder, content, bar)
            bar.end()
        say(f"{label}: {len(content)} files, {bytes_text(sent)} uploaded")
    wire.put_asset(asset.kind, asset.name, asset.version, filled(asset.body, store))
    if asset.kind == "environments":
        say(f"{label}: Azure builds it before the first job starts, which takes some 10 minutes")


def filled(body: Body, store: Store) -> Body:
    """A body with the datastore's own names in the place of `{account}`, `{endpoint}` and `{container}`."""
    text = json.dumps(body)
    for name, value in (("account", store.account), ("endpoint", store.endpoint), ("container", store.container)):
        text = text.replace(f"{{{name}}}", value)
    found: Body = json.loads(text)
    return found


class UploadBar:
    """Says on a terminal how far an upload is, in place."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._shown = False

    def __call__(self, done: int, total: int) -> None:
        if sys.stderr.isatty():
            sys.stderr.write(f"\r\x1b[K{self._label}: {bytes_text(done)} of {bytes_text(total)}")
            sys.stderr.flush()
            self._shown = True

    def end(self) -> None:
        """Makes way for what follows."""
        if self._shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
