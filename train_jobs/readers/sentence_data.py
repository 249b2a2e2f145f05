"""Rows of sentence tasks: GLUE's official files, and the user's own tables."""

from __future__ import annotations

import difflib
import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from decimal import Decimal
from itertools import compress
from pathlib import Path
from typing import Any

from train_jobs.config import DataError, did_you_mean
from train_jobs.config.finetune import ColumnsConfig, ExamplesConfig, FinetuneConfig
from train_jobs.config.privacy import classes_text, value_text
from train_jobs.config.tasks import NUMBER_METRICS, TASKS, OfficialFile, SentenceTask, own_metrics
from train_jobs.readers.class_labels import label_problem
from train_jobs.readers.row_readers import open_table
from train_jobs.readers.tables import (
    WHOLE,
    RowProblems,
    RowTable,
    class_ids,
    classes,
    dataset_table,
    is_labelled,
    is_missing,
    numbers,
    official_differences,
    official_path,
    open_dataset,
    read_table,
    texts,
    to_class,
)


@dataclass(frozen=True)
class Examples:
    """A split of a task's data, in the order of its file."""

    table: RowTable
    texts: list[str]
    pairs: list[str] | None
    labels: list[int] | list[float] | None
    """Ids of classes, or numbers; None where they are unknown, as in GLUE's test sets."""
    notes: list[str] = field(default_factory=list)
    """Warnings about the file, each with its line."""

    def __len__(self) -> int:
        return len(self.texts)


@dataclass(frozen=True)
class TaskData:
    """A task and all of its rows."""

    task: SentenceTask
    train: Examples
    dev: dict[str, Examples]
    """Sets to score, by their names; MNLI has two."""
    test: dict[str, Examples]
    """Sets to predict, by the names of their prediction files."""
    held_back: dict[str, Examples] = field(default_factory=dict)
    """Labelled sets that choose nothing and are scored once, with the best checkpoint, by their names."""

    @property
    def notes(self) -> list[str]:
        """Notes on the files, each with its place."""
        return [note for split in (self.train, *self.dev.values(), *self.test.values()) for note in split.notes]


def read_data(config: FinetuneConfig) -> TaskData:
    """Read the rows of training, dev and test sets.

    Raises:
        DataError: a file is missing, or has rows that cannot be used: each with its line.
    """
    entry = TASKS.get(config.task)
    return _read_built_in(entry, config.data) if isinstance(entry, SentenceTask) else _read_own_tables(config.data)


def has_training_data(config: FinetuneConfig) -> bool:
    """Return whether the official training file of a task exists."""
    train = TASKS[config.task].files["train"].paths[0]
    return config.data.glue is not None and (config.data.glue / train).is_file()


def _read_own_tables(data: ExamplesConfig) -> TaskData:
    if data.dataset is not None:
        task, splits = read_dataset_task(data, data.dataset)
    else:
        files = {"train": data.train, "dev": data.validation, "test": data.test}
        task, splits = read_table_task(data, {split: path for split, path in files.items() if path is not None})
    test = {"predictions": splits["test"]} if "test" in splits else {}
    held_back = {name: found for name, found in test.items() if found.labels is not None}
    held_back |= divide(splits, data)
    train = splits["train"]
    trained = set(train.labels or ())
    if lost := [name for number, name in enumerate(task.labels) if number not in trained]:
        train.notes.append(_untrained_note(train.table.path, lost))
    return TaskData(task, splits["train"], {"dev": splits["dev"]}, test, held_back)


def divide(splits: dict[str, Examples], data: ExamplesConfig) -> dict[str, Examples]:
    """Make the dev set from training rows unless it exists, and return the rows that are held back as test.

    Args:
        splits: train, and dev unless it is made here; both are replaced.
        data: the shares.

    Raises:
        DataError: a split would have no row.
    """
    if "dev" not in splits:
        # Another hash than that of the test: else a test taken from the dev set would be all of it.
        key = "data.validation_fraction"
        splits["train"], splits["dev"] = hold_back(splits["train"], data.validation_fraction, key=key, salt="dev\0")
    if data.test_fraction is None:
        return {}
    split = "train" if data.test_fraction_from == "train" else "dev"
    splits[split], test = hold_back(splits[split], data.test_fraction)
    return {"held_back": test}


@dataclass(frozen=True)
class DividedRows:
    """Division of the user's own tables."""

    sizes: dict[str, int]
    """train, dev, and held_back if it exists -> rows."""
    notes: list[str]
    """A warning about classes without a training row, if there are any."""


def divided_rows(data: ExamplesConfig) -> DividedRows:
    """Return how the user's own tables are divided into train, dev and held-back test; labels are not checked.

    Raises:
        DataError: a file is missing, or has rows that cannot be used.
    """
    splits = {}
    for split, path in (("train", data.train), ("dev", data.validation)):
        if path is not None:
            table = read_table(path, _column_names(data, labelled=split == "train"), **_format_settings(data))
            pairs = table.columns[data.pair] if data.pair else None
            splits[split] = Examples(table, table.columns[data.text], pairs, None)
    before = splits["train"].table
    test = divide(splits, data)
    sizes = {name: len(found) for name, found in {**splits, **test}.items()}
    lost = set() if data.regression else _classes_of(before, data) - _classes_of(splits["train"].table, data)
    return DividedRows(sizes, [_untrained_note(before.path, sorted(lost))] if lost else [])


def _classes_of(table: RowTable, data: ExamplesConfig) -> set[str]:
    found = set()
    for value in table.columns[data.label]:
        with suppress(ValueError):  # the check of the tables refuses such a row
            found.add(to_class(value))
    return found


def _untrained_note(path: Path, names: Sequence[str]) -> str:
    return (
        f"{path}: no row of {classes_text(names)} is trained, because its texts are all held back for dev or test: add"
        " rows of it, or choose a dev set with data.validation"
    )


def hold_back(
    examples: Examples, fraction: float, *, key: str = "data.test_fraction", salt: str = ""
) -> tuple[Examples, Examples]:
    """Divide a split by the hash of its texts; return the rows that stay, and those that are held back.

    Args:
        examples: the split.
        fraction: share of the distinct texts to hold back.
        key: key of the fraction, for the error.
        salt: prefix of each text before it is hashed; divisions with different ones are independent.

    Raises:
        DataError: no row would stay, or none would be held back.
    """
    # By content: equal texts fall on one side, and a row does not move when others are added or sorted.
    pairs = examples.pairs or [""] * len(examples)
    texts_found = (f"{salt}{text}\0{pair}".encode() for text, pair in zip(examples.texts, pairs, strict=True))
    chosen = [int.from_bytes(hashlib.sha256(one).digest()[:8], "big") < fraction * 2**64 for one in texts_found]
    if all(chosen) or not any(chosen):
        raise DataError(
            f"cannot hold back {fraction:g} of {examples.table.path}: {sum(chosen)} of its {len(chosen)} rows",
            fix=f"add rows, or set {key} nearer to 0.5",
        )
    return _subset(examples, [not one for one in chosen]), replace(_subset(examples, chosen), notes=[])


def _subset(examples: Examples, kept: list[bool]) -> Examples:
    columns = {name: list(compress(values, kept)) for name, values in examples.table.columns.items()}
    table = replace(examples.table, columns=columns, lines=list(compress(examples.table.lines, kept)))
    pairs = None if examples.pairs is None else list(compress(examples.pairs, kept))
    labels: Any = None if examples.labels is None else list(compress(examples.labels, kept))
    return Examples(table, list(compress(examples.texts, kept)), pairs, labels, examples.notes)


def _read_built_in(task: SentenceTask, data: ExamplesConfig) -> TaskData:
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


def read_split(task: SentenceTask, split: str, glue: Path | None, *, file: Path | None = None) -> Examples:
    """Read a split of a task.

    Args:
        task: a built-in task.
        split: name of one of its files.
        glue: folder of GLUE; None with a file.
        file: file to read in place of the official one.

    Returns:
        The examples; their notes name differences from the official file, in row count or content, and what is
        unusual in the file. An official file with the known content has no notes.

    Raises:
        DataError: the file is missing, or has rows that cannot be used.
    """
    official = task.files.get(split, OfficialFile((), labelled=False))
    if file is None:
        assert glue is not None, "the configuration requires a folder or a file"
        file = official_path(
            glue, official.paths, need="GLUE's folder as its download script makes it", fix="--set data.glue=FOLDER"
        )
    columns = [task.text, *([task.pair] if task.pair else []), *([task.label] if official.labelled else [])]
    table = read_table(
        file, columns, format="tsv", header=official.header, quoting=False, skip_malformed=task.known_flaws
    )
    found = make_examples(task, table, labelled=official.labelled, empty_texts=task.known_flaws)
    differs = official_differences(official, file, len(found))
    # Flaws of the official files are known to every user of GLUE; warnings about them in each run would hide others.
    if official.sha256 is not None and not differs:
        found.notes.clear()
    found.notes[:0] = differs
    return found


def read_table_task(columns: ColumnsConfig, files: Mapping[str, Path]) -> tuple[SentenceTask, dict[str, Examples]]:
    """Read a task of the user's own, and its splits.

    Its classes are those of the training data, sorted as numbers if every one is an integer, else alphabetically.

    Args:
        columns: names of the columns.
        files: "train" and others by their names; "test" may lack the column of labels, or have an empty one.

    Raises:
        DataError: a file or a column is missing, or rows cannot be used: each with its line.
    """
    settings = _format_settings(columns)
    names = {split: open_table(path, [], **settings).names() for split, path in files.items()}
    labelled = {split: split != "test" or columns.label in names[split] for split in files}
    tables = {
        split: read_table(path, _column_names(columns, labelled[split]), **settings) for split, path in files.items()
    }
    return _assemble_task(columns, tables, labelled, names.get("test", []))


def read_dataset_task(columns: ColumnsConfig, name: str) -> tuple[SentenceTask, dict[str, Examples]]:
    """Read a task of the user's own from the splits of a dataset, as `read_table_task` does from files.

    Args:
        name: NAME[:CONFIGURATION].
    """
    splits = open_dataset(name)
    labelled = {split: split != "test" or is_labelled(rows, columns.label) for split, rows in splits.items()}
    tables = {
        split: dataset_table(name, split, rows, _column_names(columns, labelled[split]))
        for split, rows in splits.items()
    }
    return _assemble_task(columns, tables, labelled, splits["test"].column_names if "test" in splits else [])


def _column_names(columns: ColumnsConfig, labelled: bool) -> list[str]:
    return [columns.text, *([columns.pair] if columns.pair else []), *([columns.label] if labelled else [])]


def _assemble_task(
    columns: ColumnsConfig, tables: dict[str, RowTable], labelled: dict[str, bool], test_names: list[str]
) -> tuple[SentenceTask, dict[str, Examples]]:
    if not labelled.get("test", True):
        _note_misspelt_label(columns, tables["test"], test_names)
    elif "test" in tables and all(map(is_missing, tables["test"].columns[columns.label])):
        labelled = {**labelled, "test": False}
        note = f"{tables['test'].path}: column {columns.label!r} is empty: read as a set without labels"
        tables["test"].notes.append(note)
    labels = () if columns.regression else _found_classes(columns, tables["train"])
    metrics = NUMBER_METRICS if columns.regression else own_metrics(labels, columns.positive_label)
    origin = tables["train"].path
    task = SentenceTask(
        name=origin.stem,
        text=columns.text,
        pair=columns.pair,
        label=columns.label,
        labels=labels,
        metrics=metrics.scored,
        reported=metrics.reported,
        positive=metrics.positive,
    )
    return task, {
        split: make_examples(task, table, labelled=labelled[split], origin=origin) for split, table in tables.items()
    }


def _format_settings(columns: ColumnsConfig) -> dict[str, Any]:
    return {"format": None if columns.format == "auto" else columns.format, "quoting": columns.quoting}


def _note_misspelt_label(columns: ColumnsConfig, table: RowTable, names: list[str]) -> None:
    """Add a note if a test set without labels has a column with a similar name."""
    # A test set may lack labels, so a misspelt column is no error, and its scores would be missing without an
    # explanation.
    others = {name.lower(): name for name in names if name not in (columns.text, columns.pair, columns.label)}
    if close := difflib.get_close_matches(columns.label.lower(), others, n=1):
        hint = f'(did you mean "{others[close[0]]}"?)'
        table.notes.append(f"{table.path}: missing column {columns.label!r} {hint}: read as a set without labels")


def _found_classes(columns: ColumnsConfig, table: RowTable) -> tuple[str, ...]:
    problems = RowProblems(
        f"{table.path} has rows that cannot be used", fix=f"fix or delete those rows of {table.path}"
    )
    names = classes(table, columns.label, problems)
    problems.check()
    found = Counter(names)
    if (problem := label_problem(columns, found)) is not None:
        refused = RowProblems(message := f"cannot train: {table.path}: {problem.what}", fix=problem.fix)
        for row, name in enumerate(names):
            if name in problem.labels:
                refused.add(table.where(row), f"column {columns.label!r} has a text of {len(name):,} characters")
        refused.check()
        raise DataError(message, fix=problem.fix)
    table.notes.extend(_nearly_the_same(table, found))
    # Ids must not depend on the order of rows; as numbers, so that "10" follows "9".
    whole = all(map(WHOLE.fullmatch, found))
    return tuple(sorted(found, key=lambda name: (Decimal(name) if whole else 0, name)))


def _nearly_the_same(table: RowTable, names: Iterable[str]) -> Iterator[str]:
    """Yield notes on classes whose names differ only in white space, case or a fraction of 0."""
    alike: dict[str, list[str]] = {}
    for name in sorted(names):
        plain = name.strip().casefold()
        alike.setdefault(plain.partition(".")[0] if WHOLE.fullmatch(plain) else plain, []).append(name)
    for some in alike.values():
        if len(some) > 1:
            several = classes_text(list(map(repr, some)))
            same = len({name.strip().casefold() for name in some}) == 1
            what = "white space or case" if same else "a fraction of 0"
            yield f"{table.path}: labels {several} differ only in {what}; each is a class"


def make_examples(
    task: SentenceTask, table: RowTable, *, labelled: bool = True, empty_texts: bool = False, origin: Path | None = None
) -> Examples:
    """Return the examples of a table, one for each row.

    Args:
        task: names of the columns.
        table: the table.
        labelled: read the column of labels.
        empty_texts: accept empty texts.
        origin: file that the classes come from, for the error about a label that it lacks.

    Raises:
        DataError: each row with an invalid text or label, with its place.
    """
    problems = RowProblems(
        f"{table.path} has rows that cannot be used", fix=f"fix or delete those rows of {table.path}"
    )
    first = texts(table, task.text, problems, may_be_empty=empty_texts)
    second = texts(table, task.pair, problems, may_be_empty=empty_texts) if task.pair else None
    labels = _labels(task, table, problems, origin) if labelled else None
    problems.check()
    return Examples(table, first, second, labels, list(table.notes))


def _labels(task: SentenceTask, table: RowTable, problems: RowProblems, origin: Path | None) -> list[int] | list[float]:
    if task.regression:
        return numbers(table, task.label, problems)

    def unknown(name: str) -> str:
        if origin is not None:
            guess = did_you_mean(name, task.labels)
            return f"the label, {value_text(name)}, is not in {origin}, so nothing can learn it{guess}"
        return f"unknown label: {value_text(name)}; known are {classes_text(task.labels)}"

    ids = {name: number for number, name in enumerate(task.labels)}
    return class_ids(table, task.label, ids, problems, unknown)
