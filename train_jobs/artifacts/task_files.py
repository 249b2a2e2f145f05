"""The files that a fine-tuning reads, by task and by what they are for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from train_jobs.config.errors import DataError
from train_jobs.config.finetune import ExamplesConfig, FinetuneConfig
from train_jobs.config.tasks import GLUE, GLUE_TASKS, TASKS, data_folder

SPLITS = ("train", "validation", "test")


class TaskFile(NamedTuple):
    """A file that a job reads."""

    task: str
    """Of which task."""
    split: str
    """train, validation or test."""
    key: str
    """Of `data`, that names the file or the folder above it."""
    name: str
    """Below that folder; of a file that is named itself its own name."""
    path: Path
    """Where it lies."""

    @property
    def portable(self) -> str:
        """Where it lies below a folder of all files of the job: `glue/MRPC/train.tsv`, `train/reviews.csv`."""
        return f"{self.key}/{self.name}"


def task_files(job: FinetuneConfig) -> list[TaskFile]:
    """All files that a job reads; of all of GLUE those of the tasks that there are.

    Raises:
        DataError: one that it cannot do without is missing.
    """
    if job.task != GLUE:
        return list(_files_of(job.task, job.data))
    sections = {task: job.of_task(task).data for task in GLUE_TASKS}
    there = [task for task, data in sections.items() if data.train or (data.glue and any(_official(task, data.glue)))]
    if not there:
        raise DataError(
            f"no task of GLUE is in {job.data.glue}",
            facts={"need": "CoLA/train.tsv, SST-2/train.tsv, ..., as its download script makes them"},
            fix="orchestrator data fetch glue --to FOLDER, and --data FOLDER",
        )
    return [file for task in there for file in _files_of(task, sections[task])]


def _files_of(task: str, data: ExamplesConfig) -> Iterator[TaskFile]:
    key = data_folder(task)
    for split in SPLITS:
        named: Path | None = getattr(data, split)
        if named is not None:
            yield TaskFile(task, split, split, named.name, named)
            continue
        if key is None or (folder := getattr(data, key)) is None:
            continue
        found = list(_official(task, folder, split))
        if not found and split != "test":
            raise DataError(
                f"no such file: {folder / TASKS[task].official(split)[0].paths[0]}",
                facts={"need": f"data.{split} of {task}", "where": f"data.{key}"},
                fix=f"--data FOLDER with it, or --set data.{split}=FILE",
            )
        yield from found


def _official(task: str, folder: Path, split: str = "train") -> Iterator[TaskFile]:
    """The official files of a split that exist; of several names of a file the first."""
    key = data_folder(task)
    assert key is not None, "the task has official files"
    for name in (task, *TASKS[task].diagnostics):
        for file in TASKS[name].official(split):
            for path in [path for path in file.paths if (folder / path).is_file()][:1]:
                yield TaskFile(name, split, key, path, folder / path)
