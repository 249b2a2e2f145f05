"""Which workspace is meant: what the spec or a flag says, else the variables, else the standard config.json."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

from orchestrator.support.errors import SpecError, UsageError
from train_jobs.config.base import Config

VARIABLES = {
    "subscription_id": "ORCHESTRATOR_AZURE_SUBSCRIPTION_ID",
    "resource_group": "ORCHESTRATOR_AZURE_RESOURCE_GROUP",
    "workspace": "ORCHESTRATOR_AZURE_WORKSPACE",
}
CONFIG_KEYS = {
    "subscription_id": "subscription_id",
    "resource_group": "resource_group",
    "workspace": "workspace_name",
}  # ours -> that of the config.json that Azure ML's studio offers
UNKNOWN = {"subscription_id": "SUBSCRIPTION", "resource_group": "RESOURCE_GROUP", "workspace": "WORKSPACE"}
_PLAIN = re.compile(r"[\w.()-]+")


class Workspace(Config):
    """Names a workspace."""

    subscription_id: str
    """Id of the subscription."""
    resource_group: str
    """Name of the resource group."""
    workspace: str
    """Name of the workspace."""

    @property
    def id(self) -> str:
        """Azure's id of it, which ids of all that is in it begin with."""
        return (
            f"/subscriptions/{self.subscription_id}/resourceGroups/{self.resource_group}"
            f"/providers/Microsoft.MachineLearningServices/workspaces/{self.workspace}"
        )

    @property
    def known(self) -> bool:
        """False where some of it stands for what nobody said, as in a dry run."""
        return not any(getattr(self, key) == placeholder for key, placeholder in UNKNOWN.items())

    def require(self) -> Workspace:
        """This workspace.

        Raises:
            UsageError: nobody said which one.
        """
        missing = [variable for key, variable in VARIABLES.items() if getattr(self, key) == UNKNOWN[key]]
        if missing:
            raise UsageError(
                "no Azure ML workspace is given",
                facts={"missing": ", ".join(missing), "or": "config.json of the workspace in this folder or above it"},
                fix=f"export {' '.join(f'{variable}=...' for variable in missing)}",
            )
        return self


def find_workspace(
    given: Mapping[str, str | None], environ: Mapping[str, str], folder: Path, *, name: str | None = None
) -> Workspace:
    """The workspace, with placeholders for what nobody said. Of each of its three names the first place counts.

    Args:
        given: of a spec or of flags: subscription_id, resource_group, workspace.
        environ: environment variables.
        folder: where config.json, or .azureml/config.json, is looked for, and above.
        name: the workspace that a handle names; what the others say of the workspace itself does not count then.

    Raises:
        SpecError: config.json cannot be read; a name holds what no name has.
    """
    config = _read_config(folder)
    found = {}
    for key, variable in VARIABLES.items():
        found[key] = given.get(key) or environ.get(variable) or config.get(CONFIG_KEYS[key]) or UNKNOWN[key]
    if name is not None:
        found["workspace"] = name
    for key, value in found.items():
        if not _PLAIN.fullmatch(value):
            raise SpecError(f"{key} {value!r} is no name that Azure gives", fix=f"export {VARIABLES[key]}=...")
    return Workspace(**found)


def _read_config(folder: Path) -> dict[str, str]:
    here = folder.absolute()
    places = [place for parent in (here, *here.parents) for place in (parent / ".azureml", parent)]
    path = next((found for place in places if (found := place / "config.json").is_file()), None)
    if path is None:
        return {}
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as problem:
        raise SpecError(
            f"cannot read {path}", facts={"why": problem}, fix="download it again from the studio"
        ) from None
    if not isinstance(document, dict) or "workspace_name" not in document:
        return {}  # of something else: many programs have a config.json
    return {key: str(value) for key, value in document.items()}
