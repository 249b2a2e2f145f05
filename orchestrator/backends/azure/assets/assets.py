"""Assets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.backends.azure.assets import places
from orchestrator.backends.azure.assets.images import CPU_IMAGE, train_image
from orchestrator.backends.azure.options import AzureSpec
from orchestrator.backends.azure.wire.control_plane import Body
from orchestrator.backends.azure.wire.workspace import Workspace
from orchestrator.jobs.inputs import START, JobInput
from train_jobs.config.base import Config

if TYPE_CHECKING:
    from orchestrator.jobs.base import Plan


class Asset(Config):
    """One version of an environment, of code or of data."""

    kind: str
    """environments, codes or data: the word in Azure's ids."""
    name: str
    """Its name."""
    version: str
    """Its version: a hash of its content, or what the spec names."""
    body: Body | None = None
    """What is sent if the workspace does not have it. None: it has to be there."""
    folder: str | None = None
    """Where its files are put in the datastore. None: it has none."""


def asset_id(workspace: Workspace, kind: str, name: str, version: str) -> str:
    """Azure's id of an asset."""
    return f"{workspace.id}/{kind}/{name}/versions/{version}"


def _environment(plan: Plan) -> Asset:
    named = plan.spec.settings_of(AzureSpec).environment
    if named != "auto":
        _, name, version = named.split(":")
        return Asset(kind="environments", name=name, version=version)
    image = train_image(plan.compute.device)
    common: Body = {"isAnonymous": False, "isArchived": False, "osType": "Linux"}
    if image.conda is not None:
        body = {**common, "image": CPU_IMAGE, "condaFile": image.conda}
        return Asset(kind="environments", name=image.name, version=image.version, body={"properties": body})
    folder = places.environment_folder(image.name, image.version)
    body = {**common, "build": {"contextUri": places.ACCOUNT_URL + folder, "dockerfilePath": "Dockerfile"}}
    return Asset(kind="environments", name=image.name, version=image.version, body={"properties": body}, folder=folder)


def _code(plan: Plan) -> Asset:
    digest = plan.snapshot.digest
    folder = places.code_folder(digest)
    body = {"properties": {"codeUri": places.ACCOUNT_URL + folder.rstrip("/"), "isAnonymous": False}}
    return Asset(kind="codes", name=places.CODE, version=digest[: places.DIGITS], body=body, folder=folder)


def _data(plan: Plan) -> list[Asset]:
    return [_data_asset(one, plan.spec.settings_of(AzureSpec).datastore) for one in uploaded(plan)]


def uploaded(plan: Plan) -> list[JobInput]:
    """Return the inputs that become data assets: all but what lies in Azure and what travels with the job."""
    return [one for one in plan.needs.inputs if one.digest and not one.inline and one.remote is None]


def data_name(held: JobInput) -> str:
    """Return the name of the asset of an input."""
    return f"orchestrator-{held.holds}"


def _data_asset(held: JobInput, datastore: str) -> Asset:
    folder = places.model_folder(held.digest) if held.name == START else places.data_folder(held.digest)
    body = {
        "properties": {
            "dataType": "uri_folder",
            "dataUri": places.datastore_uri(datastore, folder),
            "isAnonymous": False,
            "isArchived": False,
        }
    }
    return Asset(kind="data", name=data_name(held), version=held.digest[: places.DIGITS], body=body, folder=folder)
