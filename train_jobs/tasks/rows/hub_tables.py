"""Tables by the name of a dataset of Hugging Face, by its `datasets`, which need not be installed for anything else."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from train_jobs.config import DataError
from train_jobs.tasks.rows.tables import Table, column_places, long_texts

if TYPE_CHECKING:
    from datasets import Dataset

SPLITS = {"train": "train", "dev": "validation", "test": "test"}
"""What we call them -> what datasets do."""
NO_CLASS = -1  # of a row that nobody labelled, in datasets whose labels are classes


def open_dataset(name: str) -> Mapping[str, Dataset]:
    """The splits of a dataset by our names: train, dev and, if there is one, test.

    Args:
        name: NAME[:CONFIGURATION], of the Hub or of a folder.

    Raises:
        DataError: `datasets` is not installed, there is no such dataset, or it has no split of that name.
    """
    try:
        from datasets import load_dataset
    except ImportError:
        raise DataError(
            f"{name} is a dataset of Hugging Face, and `datasets` is not installed", fix="pip install datasets"
        ) from None
    owner, _, configuration = name.partition(":")
    with _errors(name):
        splits = load_dataset(owner, configuration or None)
    if missing := [SPLITS[split] for split in ("train", "dev") if SPLITS[split] not in splits]:
        raise DataError(
            f"the dataset {name} has no split {' and none '.join(missing)}",
            facts={"have": ", ".join(splits)},
            fix="save its splits as Parquet, and name the files in data.train and data.validation",
        )
    return {ours: splits[theirs] for ours, theirs in SPLITS.items() if theirs in splits}


def dataset_table(name: str, split: str, dataset: Dataset, columns: Sequence[str]) -> Table:
    """Some columns of a split; classes by their names.

    Raises:
        DataError: there is no such column.
    """
    path = Path(f"{name}@{SPLITS[split]}")
    column_places(str(path), dataset.column_names, columns)
    with _errors(name):
        values = {column: _named(dataset[column][:], dataset.features[column]) for column in columns}
    table = Table(path, values, list(range(1, len(dataset) + 1)), unit="row ")
    if not len(table):
        raise DataError(f"{path} has no row", fix="name another dataset")
    table.notes.extend(long_texts(table))
    return table


def is_labelled(dataset: Dataset, label: str) -> bool:
    """Whether a split has labels: test sets often have a column of -1."""
    return label in dataset.column_names and any(value not in (None, NO_CLASS) for value in dataset[label])


def _named(values: list[Any], feature: Any) -> list[Any]:
    names = getattr(feature, "names", None)  # of a ClassLabel
    if names is None:
        return values
    return [None if value in (None, NO_CLASS) else names[value] for value in values]


@contextmanager
def _errors(name: str) -> Iterator[None]:
    """What `datasets` and the network raise, in the form of the house."""
    try:
        yield
    except (OSError, ValueError, RuntimeError) as problem:
        why = re.sub(r"\s+", " ", str(problem))
        raise DataError(
            f"the dataset {name} cannot be read",
            facts={"why": why[:300]},
            fix="give NAME[:CONFIGURATION] as huggingface.co/datasets has it, or files in data.train, data.validation",
        ) from None
