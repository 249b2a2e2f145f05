"""Paths in the datastore and names in the workspace, all derived from names and hashes.

orchestrator/
  code/DIGEST/            snapshots                          environments/NAME-VERSION/   Docker contexts
  data/SHA256/            text, as on the laptop             models/HASH/                 start of a training
  token-stores/           prepared data, shared by all runs
  runs/RUN/job/           config.json, plan.json, ...        runs/RUN/outputs/            files that the job writes
  runs/SWEEP/job/         the same of a sweep that Azure's own service drives, for its trials SWEEP_0, SWEEP_1, ...

Paths of folders end with a slash: blobs are listed by prefix, and RUN is a prefix of RUN-2. Caches of this machine are
JSON files below the home folder.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from train_jobs.artifacts.files import read_object, write_text

ROOT = "orchestrator/"
EXPERIMENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,255}")
EXPERIMENT_RULE = "1 to 256 letters, digits, dashes and underscores, of which the first is a letter or a digit"
TOKEN_STORES = f"{ROOT}token-stores/"
DIGITS = 16  # of a hash in a name or version
CODE = "orchestrator-code"
CANCELLED = "cancelled"  # mark of a run that its user cancelled
SUPERVISOR_CODE = "orchestrator-supervisor"
# Only the workspace knows the account and the container: `fill_placeholders` inserts them just before a body is sent,
# so that a dry run needs no network.
ACCOUNT_URL = "https://{account}.blob.{endpoint}/{container}/"


def content_folder(kind: str, digest: str) -> str:
    """Return the folder of a snapshot (`code`), a text (`data`) or a start of training (`models`), by its hash."""
    return f"{ROOT}{kind}/{digest[:DIGITS]}/"


def run_folder(run: str) -> str:
    """Return the folder of everything that belongs to a run."""
    return f"{ROOT}runs/{run}/"


def sweep_archive(sweep: str) -> str:
    """Return the path of the archive of a sweep that a schedule takes on."""
    return f"{sweep_archive_folder(sweep)}state.zip"


def sweep_archive_folder(sweep: str) -> str:
    """Return the folder that contains only that archive."""
    return f"{ROOT}sweeps/{sweep}/"


def job_folder(run: str) -> str:
    """Return the folder of what the job of a run reads."""
    return f"{run_folder(run)}job/"


def outputs_folder(run: str) -> str:
    """Return the folder of what the job of a run writes."""
    return f"{run_folder(run)}outputs/"


def marks_folder(run: str) -> str:
    """Return the folder of the files that report to other machines why a job was cancelled.

    Their names are CANCELLED, and `preempt_mark` and `moved_mark` of a job.
    """
    return f"{job_folder(run)}marks/"


def preempt_mark(job: str) -> str:
    """Return the mark of a job whose preemption its user simulates."""
    return f"preempt-{job}"


def moved_mark(job: str) -> str:
    """Return the mark of a job that left its machines; its content is the number of others that are left to try."""
    return f"moved-{job}"


def datastore_uri(datastore: str, path: str) -> str:
    """Return the address of a path in a datastore, as jobs and data assets name it."""
    return f"azureml://datastores/{datastore}/paths/{path}"


def attempt_name(run: str, attempt: int) -> str:
    """Return the name of the job of an attempt: RUN, RUN-a2, RUN-a3.

    Azure never frees the name of a job, so each attempt needs its own. The name depends only on run and number: two
    processes that restart the same run submit the same job, and Azure keeps one of them.
    """
    return run if attempt == 1 else f"{run}-a{attempt}"


def trial_of(job: str) -> tuple[str, int] | None:
    """Return the sweep of Azure's service that a job named SWEEP_3 may be a trial of, and its number."""
    sweep, _, number = job.rpartition("_")
    return (sweep, int(number)) if sweep and number.isdecimal() else None


def read_cache(path: Path) -> dict[str, Any]:
    """Return the JSON object of a file; empty if the file is missing or damaged."""
    return read_object(path) or {}


def write_cache(path: Path, document: dict[str, Any]) -> None:
    """Write a JSON object that `read_cache` returns."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, json.dumps(document, indent=1))
