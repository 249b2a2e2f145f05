"""Records of runs that nobody submitted from here: of other machines, and the trials of Azure's own sweep service."""

from __future__ import annotations

import json
import shutil
import time
from typing import Any

from orchestrator.backends.azure.assets import places
from orchestrator.backends.azure.runs import states
from orchestrator.backends.azure.runs.observer import Look
from orchestrator.backends.azure.runs.record import AzureAttempt, Record, RecordFolder
from orchestrator.backends.azure.wire.blobs import Files
from orchestrator.backends.azure.wire.control_plane import Wire
from orchestrator.specs.sweep_spec import Settings, as_tree
from orchestrator.support.errors import NotFoundError, UserError
from train_jobs.artifacts.layers import Layer, merge

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
        trial, place = places.trial_of(folder.name), wire.workspace.workspace
        raise NotFoundError(
            f"no run {folder.name} in workspace {place}",
            fix=f"orchestrator sweep show azure://{place}/{trial[0]}" if trial else "orchestrator list -b azure",
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


def adopt_trial(
    folder: RecordFolder, plan: dict[str, Any], request: dict[str, Any], settings: Settings, created: float
) -> None:
    """Makes the record of a trial of Azure's sweep service, which is a run like any other, but that nobody resumes it.

    Args:
        folder: where the record goes; its name is the trial's.
        plan, request: plan.json and request.json of the sweep.
        settings: of the trial.
        created: seconds since the epoch.
    """
    if (folder.path / "request.json").is_file():
        return
    tree = as_tree(settings)
    own = {**plan, "name": folder.name, **{part: _with(plan[part], tree) for part in ("spec", "job")}}
    if "train.steps" in settings:
        own["steps"] = settings["train.steps"]
    elif "steps" not in own["job"].get("train", {}) and any(path.startswith("train.") for path in settings):
        own["steps"] = None  # they follow from epochs and rows, which only the job counts
    asked = {**request, "name": folder.name, "job": {}, "max_restarts": 0}
    documents = {"plan.json": json.dumps(own, indent=1), "request.json": json.dumps(asked, indent=1)}
    first = AzureAttempt(job=folder.name, intended=created, confirmed=True)
    folder.fill(documents, Record(created=created, attempts=(first,)))


def _with(section: dict[str, Any], tree: dict[str, Any]) -> dict[str, Any]:
    return merge([Layer("sweep", section), Layer("space", tree)]).tree
