"""Files that a fine-tuning job reads, and how a fine-tuned model's tables were read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path, PurePath
from typing import Any, NamedTuple

from train_jobs.artifacts.csv_tables import SEPARATORS, table_format
from train_jobs.artifacts.layers import ConfigLayer
from train_jobs.artifacts.lineage import LINEAGE_FILE, Link, read_lineage
from train_jobs.config.errors import ConflictError, DataError
from train_jobs.config.finetune import ExamplesConfig, FinetuneConfig
from train_jobs.config.predict import AUTO
from train_jobs.config.tasks import GLUE, GLUE_TASKS, NER, OWN, TASKS, data_folder

SPLITS = ("train", "validation", "test")


class TaskFile(NamedTuple):
    """A file that a fine-tuning job reads."""

    task: str
    """Name of the task."""
    split: str
    """train, validation or test."""
    key: str
    """Key of `data` that names the file or its folder."""
    name: str
    """Path relative to the folder; of a file that is named itself, its name."""
    path: Path
    """Path of the file."""

    @property
    def portable(self) -> str:
        """Relative path in an upload of all files of the job: `glue/MRPC/train.tsv`, `train/reviews.csv`."""
        return f"{self.key}/{self.name}"


def task_files(job: FinetuneConfig) -> list[TaskFile]:
    """Return all files that a job reads; for task glue, the files of those tasks that have any.

    Raises:
        DataError: a required file is missing.
    """
    if job.task != GLUE:
        return list(_files_of(job.task, job.data))
    sections = {task: job.of_task(task).data for task in GLUE_TASKS}
    available = [
        task for task, data in sections.items() if data.train or (data.glue and any(official_files(task, data.glue)))
    ]
    if not available:
        raise DataError(
            f"no task of GLUE is in {job.data.glue}",
            facts={"need": "CoLA/train.tsv, SST-2/train.tsv, ..., as written by its download script"},
            fix="run orchestrator data fetch glue --to FOLDER, then give --data FOLDER",
        )
    return [file for task in available for file in _files_of(task, sections[task])]


def _files_of(task: str, data: ExamplesConfig) -> Iterator[TaskFile]:
    key = data_folder(task)
    for split in SPLITS:
        named: Path | None = getattr(data, split)
        if named is not None:
            yield TaskFile(task, split, split, named.name, named)
            continue
        if key is None or (folder := getattr(data, key)) is None:
            continue
        found = list(official_files(task, folder, split))
        if not found and split != "test":
            raise DataError(
                f"no such file: {folder / TASKS[task].official(split)[0].paths[0]}",
                facts={"need": f"data.{split} of {task}", "where": f"data.{key}"},
                fix=f"give its folder with --data FOLDER, or the file with --set data.{split}=FILE",
            )
        yield from found


def official_files(task: str, folder: Path, split: str = "train") -> Iterator[TaskFile]:
    """Yield the existing official files of a split; of several possible names of a file, the first."""
    key = data_folder(task)
    assert key is not None, "the task has official files"
    for name in (task, *TASKS[task].diagnostics):
        for file in TASKS[name].official(split):
            for path in [path for path in file.paths if (folder / path).is_file()][:1]:
                yield TaskFile(name, split, key, path, folder / path)


KEYS = {OWN: ("text", "pair", "label", "positive_label"), NER: ("word_column", "tag_column")}
"""Task -> keys of `data` for columns; other tasks have fixed columns."""


def finetuned_tables(written: Mapping[str, Any]) -> list[ConfigLayer]:
    """Return a layer with columns, format and quoting of the tables that the model of a prediction was fine-tuned on.

    Args:
        written: values of the user, with `model: FOLDER` or `model: {name: FOLDER}`.

    Returns:
        The layer; empty without a lineage.
    """
    model = written.get("model")
    named = model.get("name") if isinstance(model, dict) else model
    head = _head(Path(named)) if isinstance(named, str | Path) else None
    if head is None or head.kind != "finetune":
        return []
    config = head.facts.get("config")
    data = config.get("data") if isinstance(config, dict) else None
    task = str(head.facts.get("task"))
    if not isinstance(data, dict):
        return []
    found = {key: data[key] for key in KEYS.get(task, ()) if data.get(key) is not None}
    if task == OWN and written.get("task") in {None, OWN}:  # tables of GLUE have a format of their own
        found |= _reading(data, written)
    return [ConfigLayer(f"from the model {head.name}", {"data": found})] if found else []


def _reading(trained: Mapping[str, Any], written: Mapping[str, Any]) -> dict[str, Any]:
    """Return format and quoting of the tables of a training, where they apply to the input of a prediction.

    Args:
        trained: section `data` of the training.
        written: values of the user.
    """
    inputs, data = written.get("input"), written.get("data")
    given = data.get("format") if isinstance(data, dict) else None
    forms = {_form(path, given) for path in (inputs if isinstance(inputs, list) else [inputs])}
    train = trained.get("train")
    form = _form(train, trained.get("format"))
    found: dict[str, Any] = {}
    # The suffix of a table decides first: a CSV stays one for a model that was trained on TSV.
    if forms == {None} and form is not None and _form(train) is None:
        found["format"], forms = form, {form}
    # Only for the same format: quotes of a CSV mean nothing for the marks in a TSV.
    if isinstance(trained.get("quoting"), bool) and form in SEPARATORS and forms == {form}:
        found["quoting"] = trained["quoting"]
    return found


def _form(path: Any, given: Any = None) -> str | None:
    """Return the format of a table: the given one, unless it is auto, else that of its name. None: unknown."""
    if isinstance(given, str) and given != AUTO:
        return given
    return table_format(PurePath(path)) if isinstance(path, str | PurePath) else None


def _head(folder: Path) -> Link | None:
    try:
        lineage = read_lineage(folder / LINEAGE_FILE)
    except (ConflictError, OSError):  # a damaged lineage is reported where it is needed
        return None
    return lineage.head if lineage is not None else None
