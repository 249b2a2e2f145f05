"""The files that a fine-tuning reads, by task and by what they are for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from train_jobs.config.errors import DataError
from train_jobs.config.finetune import GLUE, GLUE_TASKS, NER, SQUAD_TASKS, ExamplesConfig, FinetuneConfig

FOLDERS = {**dict.fromkeys((*GLUE_TASKS, GLUE), "glue"), **dict.fromkeys(SQUAD_TASKS, "squad"), NER: "conll"}
SPLITS = ("train", "validation", "test")
DIAGNOSTICS = (
    "diagnostic/diagnostic.tsv",
    "AX/diagnostic.tsv",
    "AX/AX.tsv",
    "AX/test.tsv",
    "AX.tsv",
)  # of MNLI's model
NER_FILES = {
    "train": ("train.txt", "eng.train"),
    "validation": ("valid.txt", "eng.testa"),
    "test": ("test.txt", "eng.testb"),
}


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
    there = [task for task, data in sections.items() if data.train or (data.glue and _official(task, data.glue))]
    if not there:
        raise DataError(
            f"no task of GLUE is in {job.data.glue}",
            facts={"need": "CoLA/train.tsv, SST-2/train.tsv, ..., as its download script makes them"},
            fix="orchestrator data fetch glue --to FOLDER, and --data FOLDER",
        )
    return [file for task in there for file in _files_of(task, sections[task])]


def _files_of(task: str, data: ExamplesConfig) -> Iterator[TaskFile]:
    for split in SPLITS:
        named: Path | None = getattr(data, split)
        if named is not None:
            yield TaskFile(task, split, split, named.name, named)
            continue
        if task not in FOLDERS or (folder := getattr(data, FOLDERS[task])) is None:
            continue
        found = list(_official(task, folder, split))
        if not found and split != "test":
            raise DataError(
                f"no such file: {folder / _wanted(task, split)[0]}",
                facts={"need": f"data.{split} of {task}", "where": f"data.{FOLDERS[task]}"},
                fix=f"--data FOLDER with it, or --set data.{split}=FILE",
            )
        yield from found


def _official(task: str, folder: Path, split: str = "train") -> list[TaskFile]:
    """Those that there are; of names that stand for the same file the first, of MNLI's sets all."""
    there = [name for name in _wanted(task, split) if (folder / name).is_file()]
    names = [(task, name) for name in (there if task == "MNLI" else there[:1])]
    if (task, split) == ("MNLI", "test"):
        names += [("AX", name) for name in DIAGNOSTICS if (folder / name).is_file()][:1]
    return [TaskFile(whose, split, FOLDERS[task], name, folder / name) for whose, name in names]


def _wanted(task: str, split: str) -> tuple[str, ...]:
    """Names of the official files of a split, below the folder."""
    if task == NER:
        return NER_FILES[split]
    official = {"validation": "dev"}.get(split, split)
    if task in SQUAD_TASKS:
        return (f"{official}-v{task.removeprefix('SQuAD-')}.json",)
    if task == "MNLI" and split != "train":
        return (f"{task}/{official}_matched.tsv", f"{task}/{official}_mismatched.tsv")
    return (f"{task}/{official}.tsv",)
