"""The files of a run, by where they go in the datastore: code, Docker context, text, what it starts from, its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.backends.azure import places
from orchestrator.backends.azure.command import CONFIG, TAGS, text_root
from orchestrator.backends.azure.request import AzureRequest
from orchestrator.backends.azure.storage import Content
from orchestrator.images import train_image
from train_jobs.config.formats import source_files
from train_jobs.config.initial import VOCABULARY
from train_jobs.config.lineage import LINEAGE_FILE
from train_jobs.config.phase import MODEL, find_checkpoint
from train_jobs.config.store import store_folder

if TYPE_CHECKING:
    from orchestrator.plan import PretrainPlan as Plan  # no other kind runs on Azure


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
    if name == places.TEXT:
        root = str(text_root(plan.job.data.text))
        paths = [file.path for source in plan.job.data.text for file in source_files(source)]
        return {path.relative_to(root).as_posix(): path for path in paths}
    if name == places.STORE:
        folder = store_folder(plan.job.data, plan.job.data.store)
        assert folder is not None, "the asset is of a store"
        return {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()}
    return _start_files(plan)


def _start_files(plan: Plan) -> dict[str, Content]:
    """An initial model as it lies in its folder; of an earlier phase the checkpoint, its vocabulary and its lineage."""
    job = plan.job
    if job.init_from is not None:
        folder = Path(job.init_from)
        return {path.name: path for path in sorted(folder.iterdir()) if path.is_file() and path.name[0] != "."}
    assert job.phase_from is not None, "a start is a model or a phase"
    checkpoint = find_checkpoint(Path(job.phase_from))
    outputs = checkpoint.parent.parent
    found: dict[str, Content] = {
        f"checkpoints/{checkpoint.name}/{path.name}": path for path in sorted(checkpoint.iterdir()) if path.is_file()
    }
    beside = {name: outputs / name for name in (f"{MODEL}/{VOCABULARY}", LINEAGE_FILE)}
    return {**found, **{name: path for name, path in beside.items() if path.is_file()}}


def job_documents(request: AzureRequest, plan: Plan) -> dict[str, str]:
    """What the job of a run and whoever attaches to it reads: name -> text."""
    import yaml

    data = plan.job.data.model_copy(update={"text": [], "vocabulary": None, "store": None})
    config = plan.job.model_copy(update={"data": data, "init_from": None, "phase_from": None})
    tags = {key: value for key, value in request.job["properties"]["tags"].items() if key != "orchestrator.attempt"}
    return {
        CONFIG: config.model_dump_json(indent=1),
        TAGS: json.dumps(tags),
        "plan.json": json.dumps(plan.as_dict(), indent=1),
        "spec.yaml": yaml.safe_dump(plan.spec.model_dump(mode="json"), sort_keys=False),
        "request.json": request.model_dump_json(indent=1),
    }


def vocabulary(plan: Plan) -> dict[str, Content]:
    """The vocabulary, where the job has one."""
    path = plan.job.data.vocabulary
    return {VOCABULARY: path} if path is not None else {}
