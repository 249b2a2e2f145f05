"""Where things lie in the datastore, and what they are called in the workspace: all follows from names and hashes.

orchestrator/
  code/DIGEST/            snapshots                          environments/NAME-VERSION/   Docker contexts
  data/SHA256/            text, as it lay on the laptop      models/HASH/                 what training starts from
  token-stores/           prepared data, shared by all runs
  runs/RUN/job/           config.json, plan.json, ...        runs/RUN/outputs/            what the job writes
  runs/SWEEP/job/         the same of a sweep that Azure's own service drives, for its trials SWEEP_0, SWEEP_1, ...

Paths of folders end with a slash: blobs are listed by prefix, and RUN is a prefix of RUN-2.
"""

from __future__ import annotations

ROOT = "orchestrator/"
TOKEN_STORES = f"{ROOT}token-stores/"
DIGITS = 16  # of a hash in a name or version
CODE = "orchestrator-code"
ACCOUNT_URL = "https://{account}.blob.{endpoint}/{container}/"  # of the datastore; filled in when it is known


def code_folder(digest: str) -> str:
    """Of a snapshot."""
    return f"{ROOT}code/{digest[:DIGITS]}/"


def environment_folder(name: str, version: str) -> str:
    """Of a Docker context."""
    return f"{ROOT}environments/{name}-{version}/"


def data_folder(sha256: str) -> str:
    """Of a text."""
    return f"{ROOT}data/{sha256[:DIGITS]}/"


def model_folder(digest: str) -> str:
    """Of what training starts from."""
    return f"{ROOT}models/{digest[:DIGITS]}/"


def run_folder(run: str) -> str:
    """Of all that belongs to a run."""
    return f"{ROOT}runs/{run}/"


def job_folder(run: str) -> str:
    """Of what the job of a run reads."""
    return f"{run_folder(run)}job/"


def outputs_folder(run: str) -> str:
    """Of what it writes."""
    return f"{run_folder(run)}outputs/"


def datastore_uri(datastore: str, path: str) -> str:
    """A path of a datastore, as jobs and data assets name it."""
    return f"azureml://datastores/{datastore}/paths/{path}"


def attempt_name(run: str, attempt: int) -> str:
    """The job's name of an attempt: RUN, RUN-a2, RUN-a3. Azure never lets a name be used twice."""
    return run if attempt == 1 else f"{run}-a{attempt}"


def trial_of(job: str) -> tuple[str, int] | None:
    """The sweep of Azure's service that a job may be a trial of, by its name SWEEP_3, and its number."""
    sweep, _, number = job.rpartition("_")
    return (sweep, int(number)) if sweep and number.isdecimal() else None
