"""The record of a run that was submitted from another machine, made of what its jobs and its files tell."""

from __future__ import annotations

import shutil
import time

from orchestrator.backends.azure import places, states
from orchestrator.backends.azure.looks import Look
from orchestrator.backends.azure.record import AzureAttempt, Record, RecordFolder
from orchestrator.backends.azure.storage import Files
from orchestrator.backends.azure.wire import Wire
from orchestrator.errors import NotFoundError, UserError

DOCUMENTS = ("plan.json", "request.json", "spec.yaml", "config.json", "tags.json")


def adopt(wire: Wire, folder: RecordFolder) -> None:
    """Makes the record; nothing of it stays if that fails.

    Args:
        wire: the workspace of the run.
        folder: where the record goes; its name is the run's.

    Raises:
        NotFoundError: the workspace has no such run, or its files are gone.
    """
    wire.location()
    attempts: list[AzureAttempt] = []
    datastore = None
    while (job := wire.job(places.attempt_name(folder.name, len(attempts) + 1))) is not None:
        datastore = (job["properties"].get("tags") or {}).get("orchestrator.datastore")
        created = states.seconds((job.get("systemData") or {}).get("createdAt")) or time.time()
        attempts.append(AzureAttempt(job=str(job["name"]), intended=created, confirmed=True))
    if datastore is None:
        raise NotFoundError(
            f"no run {folder.name} in workspace {wire.workspace.workspace}", fix="orchestrator list -b azure"
        )
    files, place = Files(wire.store(datastore)), places.job_folder(folder.name)
    documents = {name: files.read(place + name).decode() for name in DOCUMENTS}
    try:
        record = Record(created=attempts[0].intended, attempts=())
        for attempt in attempts:  # how each ended: Azure tells, as it told whoever followed it
            record = record.model_copy(update={"attempts": (*record.attempts, attempt)})
            folder.fill(documents, record)
            record = Look(wire, folder).refresh()
    except UserError:
        shutil.rmtree(folder.path, ignore_errors=True)
        raise
