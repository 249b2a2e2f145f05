"""The files that a fine-tuning reads, by task and by what they are for, and how many rows they have."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from orchestrator.errors import DataError
from orchestrator.specs.finetune import FOLDERS
from train_jobs.config.finetune import GLUE, GLUE_TASKS, NER, SQUAD_TASKS, ExamplesConfig, FinetuneConfig

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
WITHOUT_HEADER = {("CoLA", "train"), ("CoLA", "validation")}
QUESTION = b'"question"'  # a key: within a text its quotes are escaped
DOCUMENT = b"-DOCSTART-"
BLOCK = 1 << 20


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
    """All files that a job reads.

    Raises:
        DataError: one that it cannot do without is missing.
    """
    tasks = GLUE_TASKS if job.task == GLUE else (job.task,)
    return [file for task in tasks for file in _files_of(task, (job.of_task(task) if job.task == GLUE else job).data)]


def _files_of(task: str, data: ExamplesConfig) -> Iterator[TaskFile]:
    for split in SPLITS:
        named: Path | None = getattr(data, split)
        if named is not None:
            yield TaskFile(task, split, split, named.name, named)
            continue
        if task not in FOLDERS or (folder := getattr(data, FOLDERS[task])) is None:
            continue
        found = list(_official(task, split, folder))
        if not found and split != "test":
            raise DataError(
                f"no such file: {folder / _wanted(task, split)[0]}",
                facts={"need": f"data.{split} of {task}", "where": f"data.{FOLDERS[task]}"},
                fix=f"--data FOLDER with it, or --set data.{split}=FILE",
            )
        yield from found


def _official(task: str, split: str, folder: Path) -> Iterator[TaskFile]:
    """Those that there are; of names that stand for the same file the first, of MNLI's sets all."""
    there = [name for name in _wanted(task, split) if (folder / name).is_file()]
    for name in there if task == "MNLI" else there[:1]:
        yield TaskFile(task, split, FOLDERS[task], name, folder / name)
    if (task, split) == ("MNLI", "test"):
        diagnostic = next((name for name in DIAGNOSTICS if (folder / name).is_file()), None)
        if diagnostic is not None:
            yield TaskFile("AX", split, FOLDERS[task], diagnostic, folder / diagnostic)


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


def count_rows(file: TaskFile, data: ExamplesConfig) -> int | None:
    """Rows of a file: lines of a table, questions of SQuAD, sentences of NER; None where only the job can tell.

    Raises:
        DataError: it cannot be read.
    """
    try:
        if file.task in SQUAD_TASKS:
            return _count(file.path, QUESTION)
        if file.task == NER:
            return _sentences(file.path)
        return _table_rows(file, data)
    except OSError as problem:
        raise DataError(f"cannot read {file.path}: {problem.strerror}", fix=f"chmod u+r {file.path}") from None


def _table_rows(file: TaskFile, data: ExamplesConfig) -> int | None:
    form: str = "tsv" if file.task in {*GLUE_TASKS, "AX"} else data.format
    if form == "auto":
        form = file.path.suffix.removeprefix(".")
    if form not in {"tsv", "csv", "jsonl", "parquet"}:
        return None
    if form == "parquet":
        return _parquet_rows(file.path)
    header = form != "jsonl" and (file.task, file.split) not in WITHOUT_HEADER
    if form == "csv" and data.quoting is not False:
        with file.path.open(newline="", encoding="utf-8", errors="replace") as stream:
            return sum(1 for row in csv.reader(stream) if row) - header
    return _lines(file.path) - header


def _parquet_rows(path: Path) -> int | None:
    if find_spec("pyarrow") is None:
        return None
    from pyarrow import ArrowInvalid
    from pyarrow.parquet import read_metadata

    try:
        return int(read_metadata(path).num_rows)
    except ArrowInvalid:
        return None  # the job says what is wrong with it


def _count(path: Path, what: bytes) -> int:
    return path.read_bytes().count(what)


def _lines(path: Path) -> int:
    """Lines, whether the last one has an end or not."""
    count, last = 0, b"\n"
    with path.open("rb") as stream:
        while block := stream.read(BLOCK):
            count += block.count(b"\n")
            last = block[-1:]
    return count + (last != b"\n")


def _sentences(path: Path) -> int:
    """Runs of lines with something on them, but for those that begin a document."""
    count, inside = 0, False
    with path.open("rb") as stream:
        for line in stream:
            word = bool(line.strip()) and not line.startswith(DOCUMENT)
            count += word and not inside
            inside = word
    return count
