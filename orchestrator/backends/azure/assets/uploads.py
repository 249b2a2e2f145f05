"""The files of a run, by where they go in the datastore: code, Docker context, text, what it starts from, its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.backends.azure.assets import places
from orchestrator.backends.azure.assets.bindings import data_files, portable, start_files
from orchestrator.backends.azure.assets.command import CONFIG, TAGS
from orchestrator.backends.azure.assets.images import train_image
from orchestrator.backends.azure.submission import AzureRequest
from orchestrator.jobs.base import Content

if TYPE_CHECKING:
    from orchestrator.jobs.base import Plan


def asset_files(kind: str, name: str, plan: Plan, scratch: Path) -> dict[str, Content]:
    """Files of an asset of a request: name below its folder -> content.

    Args:
        kind, name: of the asset.
        plan: that the request is of.
        scratch: an empty folder, for the snapshot.

    Raises:
        ConflictError: a file changed since the plan was made.
    """
    if kind == "environments":
        return dict(train_image(plan.compute.device).files)
    if kind == "codes":
        plan.snapshot.write(scratch)
        return {file.path: scratch / file.path for file in plan.snapshot.files}
    return start_files(plan) if name == places.MODEL else data_files(plan)


def job_documents(request: AzureRequest, plan: Plan) -> dict[str, str]:
    """What the job of a run and whoever attaches to it reads: name -> text."""
    import yaml

    tags = {key: value for key, value in request.job["properties"]["tags"].items() if key != "orchestrator.attempt"}
    return {
        CONFIG: json.dumps(portable(plan), indent=1),
        TAGS: json.dumps(tags),
        "plan.json": json.dumps(plan.as_dict(), indent=1),
        "spec.yaml": yaml.safe_dump(plan.spec.model_dump(mode="json"), sort_keys=False),
        "request.json": request.model_dump_json(indent=1),
    }
