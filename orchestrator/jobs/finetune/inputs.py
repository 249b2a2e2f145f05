"""What a fine-tuning needs from outside: the files of its task and the model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from orchestrator.jobs.finetune.spec import DATA_PATHS
from orchestrator.jobs.inputs import DATA, START, At, JobInput, Needs, model_input
from train_jobs.artifacts.fingerprints import DataFingerprint
from train_jobs.artifacts.start_model import KEY as INIT_FROM
from train_jobs.artifacts.task_files import TaskFile
from train_jobs.config import FinetuneConfig
from train_jobs.config.tasks import data_folder


def finetuning_needs(
    job: FinetuneConfig, files: list[TaskFile], data: DataFingerprint, remote: str | None, weights: str | None
) -> Needs:
    """Return the needs of a fine-tuning.

    Args:
        job: what is trained.
        files: those of its task.
        data: them by content.
        remote: name of the folder with them at the site.
        weights: SHA-256 of the model that is tuned.
    """
    inputs, placed = list[JobInput](), dict[str, Any]()
    if remote is not None:
        inputs.append(JobInput(DATA, "tables", remote=remote))
        placed[f"data.{data_folder(job.task)}"] = At(DATA)
    else:
        if job.data.dataset is None:  # else the job fetches it
            tables = {file.portable: file.path for file in files}
            inputs.append(JobInput(DATA, "tables", data.sha256, list_files=lambda: tables))
        for key in DATA_PATHS:
            path: Path | None = getattr(job.data, key)
            if path is not None:
                placed[f"data.{key}"] = At(DATA, key if path.is_dir() else f"{key}/{path.name}")
    inputs.append(model_input(Path(job.init_from), weights or ""))
    placed[INIT_FROM] = At(START)
    local = (INIT_FROM, *(f"data.{key}" for key in DATA_PATHS))
    return Needs(tuple(inputs), placed, local, tuple(_left_behind(job)))


def _left_behind(job: FinetuneConfig) -> list[str]:
    """A line for each path that is not delivered: what single tasks of GLUE override, a dataset in a folder."""
    found = {f"per_task.{task}.{INIT_FROM}": own.init_from for task, own in job.per_task.items()}
    for task, own in job.per_task.items():
        found |= {f"per_task.{task}.data.{key}": getattr(own.data, key) for key in DATA_PATHS}
    if (dataset := job.data.dataset) is not None and Path(dataset).is_dir():
        found["data.dataset"] = Path(dataset)
    return [f"{key}: {path} is on this machine" for key, path in found.items() if path is not None]
