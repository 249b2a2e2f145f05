"""What a fine-tuning configuration asks for, read: the task, its rows by split, and what to know of them."""

from __future__ import annotations

from dataclasses import dataclass

from train_jobs.config.finetune import ExamplesConfig, FinetuneConfig
from train_jobs.config.tasks import TASKS, SentenceTask
from train_jobs.tasks.rows.labelled import Examples
from train_jobs.tasks.sentences.glue import read_split
from train_jobs.tasks.sentences.glue_zip import submission_text
from train_jobs.tasks.sentences.own_table import read_named, read_own


@dataclass(frozen=True)
class TaskData:
    """A task and all of its rows."""

    task: SentenceTask
    train: Examples
    dev: dict[str, Examples]
    """Sets that score, by their names; of MNLI there are two."""
    test: dict[str, Examples]
    """Sets to predict, by the names of their files of predictions."""

    @property
    def notes(self) -> list[str]:
        """What the user should know of the files."""
        return [note for split in (self.train, *self.dev.values(), *self.test.values()) for note in split.notes]


def read_data(config: FinetuneConfig) -> TaskData:
    """Reads everything that training, evaluation and prediction need.

    Raises:
        DataError: a file is missing, or has rows that cannot be used: each with its line.
    """
    entry = TASKS.get(config.task)
    return _built_in(entry, config.data) if isinstance(entry, SentenceTask) else _own(config.data)


def predictions_text(task: SentenceTask, predictions: list[float]) -> str:
    """A file of predictions: as GLUE's server wants it, or names of classes and numbers."""
    if task.suite:
        return submission_text(task, predictions)
    rows = (task.labels[int(value)] if task.labels else repr(float(value)) for value in predictions)
    return "index\tprediction\n" + "".join(f"{number}\t{value}\n" for number, value in enumerate(rows))


def has_training_data(config: FinetuneConfig) -> bool:
    """Whether the official file that a task learns from exists."""
    train = TASKS[config.task].files["train"].paths[0]
    return config.data.glue is not None and (config.data.glue / train).is_file()


def _own(data: ExamplesConfig) -> TaskData:
    if data.dataset is not None:
        task, splits = read_named(data, data.dataset)
    else:
        files = {"train": data.train, "dev": data.validation, "test": data.test}
        task, splits = read_own(data, {split: path for split, path in files.items() if path is not None})
    test = {"predictions": splits["test"]} if "test" in splits else {}
    return TaskData(task, splits["train"], {"dev": splits["dev"]}, test)


def _built_in(task: SentenceTask, data: ExamplesConfig) -> TaskData:
    train = read_split(task, "train", data.glue, file=data.train)
    if data.validation is not None:
        dev = {task.dev_splits[0]: read_split(task, task.dev_splits[0], data.glue, file=data.validation)}
    else:
        dev = {split: read_split(task, split, data.glue) for split in task.dev_splits}
    test = {}
    if data.test is not None:
        split, name = next(iter(task.predicted.items()))
        test[name] = read_split(task, split, data.glue, file=data.test)
    elif data.glue is not None:
        for one in (task, *(TASKS[name] for name in task.diagnostics)):
            assert isinstance(one, SentenceTask), "diagnostics of sentences are sentences"
            for split, name in one.predicted.items():
                if split in one.files and any((data.glue / path).is_file() for path in one.files[split].paths):
                    test[name] = read_split(one, split, data.glue)
    return TaskData(task, train, dev, test)
