"""What a job reads beside its code, and how it travels: text, tables or a store, and the model that it starts from.

Each kind of plan has its own: which data asset it is, its files, the settings that tell the job where they lie on the
machine (`${{inputs.NAME}}` becomes a path there), and its configuration without the paths of this machine.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from orchestrator.backends.azure.assets import places
from orchestrator.backends.azure.options import AzureSpec
from orchestrator.jobs.finetune.plan import FinetunePlan
from orchestrator.jobs.finetune.spec import DATA_PATHS
from orchestrator.jobs.predict.plan import PredictPlan
from orchestrator.jobs.prepare.plan import PreparePlan
from orchestrator.jobs.pretrain.inputs import trained_on
from orchestrator.jobs.pretrain.plan import PretrainPlan
from orchestrator.jobs.row_counts import portable_names
from train_jobs.artifacts.files import file_sha256
from train_jobs.artifacts.lineage import LINEAGE_FILE
from train_jobs.artifacts.start_model import KEY as INIT_FROM
from train_jobs.artifacts.start_model import VOCABULARY
from train_jobs.artifacts.start_phase import KEY as PHASE_FROM
from train_jobs.artifacts.start_phase import MODEL, find_checkpoint
from train_jobs.artifacts.store_manifest import MANIFEST_FILE
from train_jobs.artifacts.task_files import FOLDERS, task_files
from train_jobs.artifacts.text_files import source_files

if TYPE_CHECKING:
    from orchestrator.jobs.base import Content, Plan
    from train_jobs.config.text import SourceConfig

TEXT = "${{inputs.text}}"
START = "${{inputs.start}}"


class DataAsset(NamedTuple):
    """The data of a job, as the workspace calls it."""

    name: str
    """Of the asset."""
    digest: str
    """SHA-256 that stands for its content."""


def data_asset(plan: Plan) -> DataAsset | None:
    """The data that is uploaded; None: it lies in Azure, or the job has it."""
    if plan.spec.settings_of(AzureSpec).data is not None:
        return None
    if (store := trained_on(plan)) is not None:
        return DataAsset(places.STORE, file_sha256(store / MANIFEST_FILE))  # which has the hash of every file
    if isinstance(plan, FinetunePlan) and plan.job.data.dataset is not None:
        return None  # which the job fetches itself
    if isinstance(plan, FinetunePlan | PredictPlan):
        return DataAsset(places.TABLES, plan.data.sha256)
    assert isinstance(plan, PretrainPlan | PreparePlan), "a plan of a known kind"
    return DataAsset(places.TEXT, plan.data.sha256) if text_root(plan.job.data.text) is not None else None


def data_files(plan: Plan) -> dict[str, Content]:
    """Its files: name below its folder -> where they lie."""
    if (store := trained_on(plan)) is not None:
        return {path.relative_to(store).as_posix(): path for path in sorted(store.rglob("*")) if path.is_file()}
    if isinstance(plan, FinetunePlan):
        return {file.portable: file.path for file in task_files(plan.job)}
    if isinstance(plan, PredictPlan):
        return dict(portable_names(plan.job.input))
    assert isinstance(plan, PretrainPlan | PreparePlan), "a plan of a known kind"
    root = str(text_root(plan.job.data.text))
    paths = [file.path for source in plan.job.data.text for file in source_files(source)]
    return {path.relative_to(root).as_posix(): path for path in paths}


def settings(plan: Plan) -> Iterator[str]:
    """`path.to.key=value`, for all that lies elsewhere on the machine."""
    if isinstance(plan, FinetunePlan):
        yield from _tuning_settings(plan)
        return
    if isinstance(plan, PredictPlan):
        names = [f'"{TEXT}/{escaped(name)}"' for name in portable_names(plan.job.input)]
        yield f"input=[{', '.join(names)}]"
        yield f"model={START}"
        return
    assert isinstance(plan, PretrainPlan | PreparePlan), "a plan of a known kind"
    job = plan.job
    if plan.spec.settings_of(AzureSpec).data is not None:
        yield f'data.text=["{TEXT}"]'
    elif trained_on(plan) is not None:
        yield f"data.store={TEXT}"
    elif job.data.text:
        yield "data.text=[{}]".format(", ".join(_sources(job.data.text)))
    if job.data.vocabulary is not None:
        yield f"data.vocabulary=${{{{inputs.job}}}}/{VOCABULARY}"
    if isinstance(plan, PreparePlan):
        if plan.job.store is not None:
            yield f"store=${{{{outputs.stores}}}}/{plan.job.store.name}"
        return
    if plan.job.init_from is not None:
        yield f"{INIT_FROM}={START}"
    if plan.phase is not None:
        yield f"{PHASE_FROM}={START}/checkpoints/step-{plan.phase.step:08d}"


def _tuning_settings(plan: FinetunePlan) -> Iterator[str]:
    data = plan.job.data
    if plan.spec.settings_of(AzureSpec).data is not None:
        yield f"data.{FOLDERS[plan.job.task]}={TEXT}"
    else:
        for key in DATA_PATHS:
            if (path := getattr(data, key)) is not None:
                below = "" if path.is_dir() else f"/{escaped(path.name)}"
                yield f'data.{key}="{TEXT}/{key}{below}"'
    yield f"{INIT_FROM}={START}"


def left_behind(plan: Plan) -> list[str]:
    """A line for each path that does not travel: what single tasks of GLUE have otherwise, a dataset in a folder."""
    if not isinstance(plan, FinetunePlan):
        return []
    found = {f"per_task.{task}.{INIT_FROM}": own.init_from for task, own in plan.job.per_task.items()}
    for task, own in plan.job.per_task.items():
        found |= {f"per_task.{task}.data.{key}": getattr(own.data, key) for key in DATA_PATHS}
    if (dataset := plan.job.data.dataset) is not None and Path(dataset).is_dir():
        found["data.dataset"] = Path(dataset)
    return [f"{key}: {path} is on this machine" for key, path in found.items() if path is not None]


def portable(plan: Plan) -> dict[str, Any]:
    """The configuration as JSON has it, without what lies elsewhere on the machine, and is said by the command."""
    config = plan.job.model_dump(mode="json")
    config |= dict.fromkeys(config.keys() & {"init_from", "phase_from", "store"})
    data = config["data"]
    if isinstance(plan, PredictPlan):
        return {key: value for key, value in config.items() if key not in {"model", "input"}}
    data |= dict.fromkeys(data.keys() & {"vocabulary", "store", *DATA_PATHS})
    if not isinstance(plan, FinetunePlan):  # which has the name of a column there
        data["text"] = []
    return config


def start_files(plan: Plan) -> dict[str, Content]:
    """An initial model as it lies in its folder; of an earlier phase the checkpoint, its vocabulary and its lineage."""
    assert isinstance(plan, FinetunePlan | PredictPlan | PretrainPlan), "nothing else starts from a model"
    initial = plan.job.model if isinstance(plan, PredictPlan) else plan.job.init_from
    if initial is not None:
        folder = Path(initial)
        return {path.name: path for path in sorted(folder.iterdir()) if path.is_file() and path.name[0] != "."}
    assert isinstance(plan, PretrainPlan), "all others start from a model"
    assert plan.job.phase_from is not None, "a start is a model or a phase"
    checkpoint = find_checkpoint(Path(plan.job.phase_from))
    outputs = checkpoint.parent.parent
    found: dict[str, Content] = {
        f"checkpoints/{checkpoint.name}/{path.name}": path for path in sorted(checkpoint.iterdir()) if path.is_file()
    }
    beside = {name: outputs / name for name in (f"{MODEL}/{VOCABULARY}", LINEAGE_FILE)}
    return {**found, **{name: path for name, path in beside.items() if path.is_file()}}


def vocabulary(plan: Plan) -> dict[str, Content]:
    """The vocabulary, where the job has one."""
    path = plan.job.data.vocabulary if isinstance(plan, PretrainPlan | PreparePlan) else None
    return {VOCABULARY: path} if path is not None else {}


def text_root(text: Sequence[SourceConfig]) -> Path | None:
    """The folder that the paths of a text are uploaded from: each of them keeps its own name below it.

    None: all of it is datasets of the Hugging Face Hub, which the job fetches itself.
    """
    folders = [Path(path).parent for source in text for path in source.path]
    return Path(os.path.commonpath(folders)) if folders else None


def _sources(text: Sequence[SourceConfig]) -> Iterator[str]:
    """Each source as YAML, with its paths as they will be on the machine."""
    root = text_root(text)
    for source in text:
        names = [escaped(Path(path).relative_to(str(root)).as_posix()) for path in source.path]
        there = [f'"${{{{inputs.text}}}}/{name}"' for name in names]
        told = source.model_dump(mode="json")
        if isinstance(told, str):
            yield there[0]
            continue
        more = {key: value for key, value in told.items() if key != "path" and value is not None}
        paths = f"path: [{', '.join(there)}], " if there else ""
        yield f"{{{paths}{json.dumps(more)[1:-1]}}}"


def escaped(name: str) -> str:
    """A name within quotation marks of YAML."""
    return name.replace("\\", "\\\\").replace('"', '\\"')
