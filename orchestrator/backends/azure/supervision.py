"""Supervision by Azure ML itself: a schedule that starts a small job every few minutes, which restarts a run.

The job needs nothing of the machine that submitted the run. Its code is this package, uploaded as an asset, and it
signs in with a managed identity. `cloud_supervisor.py` is what it runs.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from orchestrator.backends.azure import places
from orchestrator.backends.azure.assets import ENVIRONMENTS, Asset, asset_id, code_asset, image
from orchestrator.backends.azure.options import SERVERLESS, VARIABLES, AzureSpec, Workspace
from orchestrator.backends.azure.prices import price_of_size
from orchestrator.backends.azure.sizes import find_size
from orchestrator.backends.azure.supervisor_code import ARCHIVE, code_digest
from orchestrator.backends.azure.wire.control_plane import Body
from orchestrator.backends.azure.wire.sign_in import VARIABLE as SIGN_IN
from orchestrator.support.errors import SpecError
from train_jobs.config.fields import Config

if TYPE_CHECKING:
    from orchestrator.jobs.base import Plan

ENVIRONMENT = "supervise"  # folder in environments/
MODULE = "orchestrator.backends.azure.cloud_supervisor"
SWEEP_MODULE = "orchestrator.sweeps.driver.cloud"
EXPERIMENT = "orchestrator-supervision"
TAG = "orchestrator.supervises"
TIME_LIMIT = "PT30M"
LOOK_MINUTES = 6  # from the start of the machine to the end of the job; assumed


class Supervisor(Config):
    """The schedule of a run."""

    schedule: str
    """Its name."""
    minutes: int
    """Time between two of its jobs."""
    body: Body
    """Body to send."""


def plan_supervisor(plan: Plan, run: str, workspace: Workspace) -> tuple[Supervisor, list[Asset]] | None:
    """Return the schedule that supervises a run, with the assets that it needs; None: commands that follow it do.

    Args:
        plan: the plan.
        run: name of the run.
        workspace: where the run is sent.

    Raises:
        SpecError: a restart from Azure would lack something that only this machine or its user has.
    """
    azure = plan.spec.settings_of(AzureSpec)
    if azure.supervise != "cloud":
        return None
    if azure.identity == "user":
        raise SpecError(
            "cannot supervise the run from Azure: a restart would need your own identity",
            facts={"key": "azure.identity"},
            fix="--set azure.identity=managed",
        )
    assets = [image(ENVIRONMENT).asset(), supervisor_code()]
    ids = {one.kind: asset_id(workspace, one.kind, one.name, one.version) for one in assets}
    job: Body = {
        "jobType": "Command",
        "displayName": schedule_name(run),
        "experimentName": EXPERIMENT,
        "codeId": ids["codes"],
        "environmentId": ids["environments"],
        "command": f"python -m zipfile -e {ARCHIVE} . && exec python -m {MODULE} {run}",
        "resources": {"instanceCount": 1},
        "limits": {"jobLimitsType": "Command", "timeout": TIME_LIMIT},
        "identity": {"identityType": "Managed"},
        "environmentVariables": {
            "PYTHONUNBUFFERED": "1",
            SIGN_IN: "managed-identity",
            **{variable: getattr(workspace, key) for key, variable in VARIABLES.items()},
        },
        "tags": {TAG: run},
    }
    if azure.supervise_cluster == SERVERLESS:
        job["resources"]["instanceType"] = azure.supervise_sku
        job["queueSettings"] = {"jobTier": "Standard"}
    else:
        job["computeId"] = f"{workspace.id}/computes/{azure.supervise_cluster}"
    if azure.identity_client_id is not None:
        job["identity"]["clientId"] = azure.identity_client_id
        job["environmentVariables"]["AZURE_CLIENT_ID"] = azure.identity_client_id
    body = {
        "properties": {
            "displayName": schedule_name(run),
            "isEnabled": True,
            "tags": {TAG: run},
            "trigger": {"triggerType": "Recurrence", "frequency": "Minute", "interval": azure.supervise_minutes},
            "action": {"actionType": "CreateJob", "jobDefinition": job},
        }
    }
    return Supervisor(schedule=schedule_name(run), minutes=azure.supervise_minutes, body=body), assets


def schedule_name(run: str) -> str:
    """Return the name of the schedule of a run."""
    return f"supervise-{run}"


def supervision_text(plan: Plan) -> str:
    """Return the line of the plan about the supervision from Azure, with its cost."""
    azure = plan.spec.settings_of(AzureSpec)
    where = f"serverless {azure.supervise_sku}" if azure.supervise_cluster == SERVERLESS else azure.supervise_cluster
    text = f"by Azure: every {azure.supervise_minutes} minutes a job on {where} restarts the run if it was evicted"
    size = find_size(azure.supervise_sku)
    price = price_of_size(size, spot=False, refreshed={}) if size and azure.supervise_cluster == SERVERLESS else None
    if price is not None:
        minutes = min(LOOK_MINUTES / azure.supervise_minutes, 1.0) * 24 * 60
        text += f"; about ${price.usd * minutes / 60:,.2f} a day ({LOOK_MINUTES} minutes for each job, assumed)"
    return f"{text}; the schedule is deleted when the run ends"


@cache
def supervisor_code() -> Asset:
    """Return the asset of the supervisor's code, whose version is the hash of the code."""
    digest = code_digest(ENVIRONMENTS)
    return code_asset(places.SUPERVISOR_CODE, digest, places.content_folder("supervisor", digest))
